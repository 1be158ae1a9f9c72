//! The owners that hold an image, and the right by which they may use it, in labels of its image records: so
//! this outlives restarts.
//!
//! A label names the content that it applies to. When a tag moves to other content, the labels for the old
//! one have no effect any more.

use std::collections::{BTreeMap, HashMap};

use switchyard_core::id::Owner;
use switchyard_core::image::Right;
use switchyard_registry::Digest;

/// The prefix of the holders' labels; the name of the owner follows.
const PREFIX: &str = "switchyard.io/pulled.";
/// The label of an image record whose last holder has removed the image while others used it. Its value is
/// the right of that holder.
const RELEASED: &str = "switchyard.io/let-go";

/// The holders of one record.
pub(crate) type Holders = BTreeMap<Owner, Right>;

/// The key of a holder's label.
pub(crate) fn holder_label(owner: Owner) -> String {
    format!("{PREFIX}{owner}")
}

/// The value of a holder's label for this content.
pub(crate) fn holder_label_value(right: Right, target: &Digest) -> String {
    let word = match right {
        Right::Open => "open",
        Right::Private => "private",
    };
    format!("{word} {target}")
}

/// The holders of this content, from the labels of an image record.
pub(crate) fn parse(labels: &HashMap<String, String>, target: &Digest) -> Holders {
    let right_of = |owner: Owner| {
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
    Owner::ALL.into_iter().filter_map(right_of).collect()
}

/// Returns whether the last holder of this content had it by credentials and has removed it. Then nobody may
/// use the image until somebody pulls it.
pub(crate) fn was_released(labels: &HashMap<String, String>, target: &Digest) -> bool {
    labels
        .get(RELEASED)
        .is_some_and(|value| *value == holder_label_value(Right::Private, target))
}

/// The update of the labels when this owner removes an image whose record is kept. An empty value removes a
/// label.
pub(crate) fn release_labels(
    holders: &Holders,
    owner: Owner,
    target: &Digest,
) -> HashMap<String, String> {
    let last = holders.keys().all(|holder| *holder == owner);
    let released = match holders.get(&owner) {
        Some(Right::Private) if last => holder_label_value(Right::Private, target),
        Some(Right::Private | Right::Open) | None => String::new(),
    };
    HashMap::from([
        (holder_label(owner), String::new()),
        (RELEASED.to_owned(), released),
    ])
}

/// The action on one record of an image that an owner removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RemovalAction {
    /// It is deleted.
    Delete,
    /// It is kept for others, without the label of this owner.
    Release,
    /// It is kept as it is: this owner does not hold it.
    Keep,
}

/// Decides what is done with a record. `in_use`: other owners use the image.
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
            (
                holder_label(Owner::Nomad),
                holder_label_value(Right::Private, &old),
            ),
            (
                holder_label(Owner::Kubernetes),
                holder_label_value(Right::Open, &new),
            ),
            (holder_label(Owner::Swarm), "strange".to_owned()),
        ]);
        assert_eq!(
            parse(&labels, &old),
            Holders::from([(Owner::Nomad, Right::Private)])
        );
        assert_eq!(
            parse(&labels, &new),
            Holders::from([(Owner::Kubernetes, Right::Open)])
        );
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
            assert!(
                !was_released(&labels, &other),
                "it applies to its own content only"
            );
            was_released(&labels, &this)
        };
        assert!(left(&[(k, Right::Private)]));
        assert!(
            !left(&[(k, Right::Open)]),
            "the registry gives it to everybody"
        );
        assert!(
            !left(&[(k, Right::Private), (n, Right::Private)]),
            "it has a holder yet"
        );
        assert!(
            !was_released(&HashMap::new(), &this),
            "an import is everybody's"
        );
    }

    #[test]
    fn a_record_goes_when_nobody_else_holds_or_uses_it() {
        let of = |owners: &[Owner]| {
            owners
                .iter()
                .map(|owner| (*owner, Right::Open))
                .collect::<Holders>()
        };
        let k = Owner::Kubernetes;
        let n = Owner::Nomad;
        assert_eq!(removal_action(&of(&[k]), k, false), RemovalAction::Delete);
        assert_eq!(removal_action(&of(&[]), k, false), RemovalAction::Delete);
        assert_eq!(
            removal_action(&of(&[k, n]), k, false),
            RemovalAction::Release
        );
        assert_eq!(removal_action(&of(&[k]), k, true), RemovalAction::Release);
        assert_eq!(removal_action(&of(&[n]), k, false), RemovalAction::Keep);
        assert_eq!(removal_action(&of(&[]), k, true), RemovalAction::Keep);
    }
}
