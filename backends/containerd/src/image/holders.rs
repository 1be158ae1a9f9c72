//! Who holds an image and by what right, as labels of its records say it: so it outlives every restart.
//!
//! A label says of which content it speaks. When a tag moves on to other content, what was said of the old one is void.

use std::collections::{BTreeMap, HashMap};

use switchyard_core::id::Owner;
use switchyard_core::image::Right;
use switchyard_registry::Digest;

/// Labels of holders begin so; the word for the owner follows.
const PREFIX: &str = "switchyard.io/pulled.";
/// The label of a record that its last holder has let go of while others used it: by what right that one had it.
const RELEASED: &str = "switchyard.io/let-go";

/// The holders of one record.
pub(crate) type Holders = BTreeMap<Owner, Right>;

/// The label of a holder.
pub(crate) fn holder_label(owner: Owner) -> String {
    format!("{PREFIX}{owner}")
}

/// What it says of this content.
pub(crate) fn holder_label_value(right: Right, target: &Digest) -> String {
    let word = match right {
        Right::Open => "open",
        Right::Private => "private",
    };
    format!("{word} {target}")
}

/// The holders that labels name of this content.
pub(crate) fn parse(labels: &HashMap<String, String>, target: &Digest) -> Holders {
    let held = |owner: Owner| {
        let (word, digest) = labels.get(&holder_label(owner))?.split_once(' ')?;
        if digest != target.to_string() {
            return None;
        }
        match word {
            "open" => Some((owner, Right::Open)),
            "private" => Some((owner, Right::Private)),
            _other => None,
        }
    };
    Owner::ALL.into_iter().filter_map(held).collect()
}

/// Whether labels say of this content that its last holder had it by credentials: then it is nobody's until somebody pulls it.
pub(crate) fn was_released(labels: &HashMap<String, String>, target: &Digest) -> bool {
    labels.get(RELEASED).is_some_and(|left| *left == holder_label_value(Right::Private, target))
}

/// The labels to write, and with no value those to take off, when this owner lets go of a record that stays.
pub(crate) fn release_labels(holders: &Holders, owner: Owner, target: &Digest) -> HashMap<String, String> {
    let last = holders.keys().all(|holder| *holder == owner);
    let left = match holders.get(&owner) {
        Some(Right::Private) if last => holder_label_value(Right::Private, target),
        Some(Right::Private | Right::Open) | None => String::new(),
    };
    HashMap::from([(holder_label(owner), String::new()), (RELEASED.to_owned(), left)])
}

/// What becomes of one record of an image that an owner lets go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalAction {
    /// It goes.
    Delete,
    /// It stays for others, and no longer names this owner.
    Release,
    /// It is none of this owner's business.
    Keep,
}

/// Decides that. `in_use` says that others use the image.
pub(crate) fn removal_action(holders: &Holders, owner: Owner, in_use: bool) -> RemovalAction {
    let held = holders.contains_key(&owner);
    let by_others = holders.len() > usize::from(held);
    match (held, by_others || in_use) {
        (_, false) => RemovalAction::Delete,
        (true, true) => RemovalAction::Release,
        (false, true) => RemovalAction::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(byte: &str) -> Digest {
        format!("sha256:{}", byte.repeat(64)).parse().unwrap()
    }

    #[test]
    fn a_label_speaks_of_its_own_content_alone() {
        let old = digest("a");
        let new = digest("b");
        let labels = HashMap::from([
            (holder_label(Owner::Nomad), holder_label_value(Right::Private, &old)),
            (holder_label(Owner::Kubernetes), holder_label_value(Right::Open, &new)),
            (holder_label(Owner::Swarm), "strange".to_owned()),
        ]);
        assert_eq!(parse(&labels, &old), Holders::from([(Owner::Nomad, Right::Private)]));
        assert_eq!(parse(&labels, &new), Holders::from([(Owner::Kubernetes, Right::Open)]));
    }

    #[test]
    fn what_the_last_holder_had_by_credentials_is_nobodys_afterwards() {
        let this = digest("a");
        let other = digest("b");
        let k = Owner::Kubernetes;
        let n = Owner::Nomad;
        let left = |holders: &[(Owner, Right)]| {
            let labels = release_labels(&holders.iter().copied().collect(), k, &this);
            assert_eq!(labels[&holder_label(k)], "");
            assert!(!was_released(&labels, &other), "it speaks of its own content alone");
            was_released(&labels, &this)
        };
        assert!(left(&[(k, Right::Private)]));
        assert!(!left(&[(k, Right::Open)]), "the registry gives it to everybody");
        assert!(!left(&[(k, Right::Private), (n, Right::Private)]), "it has a holder yet");
        assert!(!was_released(&HashMap::new(), &this), "an import is everybody's");
    }

    #[test]
    fn a_record_goes_when_nobody_else_holds_or_uses_it() {
        let of = |owners: &[Owner]| owners.iter().map(|owner| (*owner, Right::Open)).collect::<Holders>();
        let k = Owner::Kubernetes;
        let n = Owner::Nomad;
        assert_eq!(removal_action(&of(&[k]), k, false), RemovalAction::Delete);
        assert_eq!(removal_action(&of(&[]), k, false), RemovalAction::Delete);
        assert_eq!(removal_action(&of(&[k, n]), k, false), RemovalAction::Release);
        assert_eq!(removal_action(&of(&[k]), k, true), RemovalAction::Release);
        assert_eq!(removal_action(&of(&[n]), k, false), RemovalAction::Keep);
        assert_eq!(removal_action(&of(&[]), k, true), RemovalAction::Keep);
    }
}
