//! Who holds an image and by what right, as labels of its records say it: so it outlives every restart.
//!
//! A label says of which content it speaks. When a tag moves on to other content, what was said of the old one is void.

use std::collections::{BTreeMap, HashMap};

use switchyard_core::id::Owner;
use switchyard_core::image::Right;
use switchyard_registry::Digest;

/// Labels of holders begin so; the word for the owner follows.
const PREFIX: &str = "switchyard.io/pulled.";

/// The holders of one record.
pub(crate) type Holders = BTreeMap<Owner, Right>;

/// The label of a holder.
pub(crate) fn key(owner: Owner) -> String {
    format!("{PREFIX}{owner}")
}

/// What it says of this content.
pub(crate) fn value(right: Right, target: &Digest) -> String {
    let word = match right {
        Right::Open => "open",
        Right::Private => "private",
    };
    format!("{word} {target}")
}

/// The holders that labels name of this content.
pub(crate) fn parse(labels: &HashMap<String, String>, target: &Digest) -> Holders {
    let held = |owner: Owner| {
        let (word, digest) = labels.get(&key(owner))?.split_once(' ')?;
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

/// What becomes of one record of an image that an owner lets go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes.
    Deleted,
    /// It stays for others, and no longer names this owner.
    LetGo,
    /// It is none of this owner's business.
    Untouched,
}

/// Decides that. `in_use` says that others use the image.
pub(crate) fn fate(holders: &Holders, owner: Owner, in_use: bool) -> Fate {
    let held = holders.contains_key(&owner);
    let by_others = holders.len() > usize::from(held);
    match (held, by_others || in_use) {
        (_, false) => Fate::Deleted,
        (true, true) => Fate::LetGo,
        (false, true) => Fate::Untouched,
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
        let (old, new) = (digest("a"), digest("b"));
        let labels = HashMap::from([
            (key(Owner::Nomad), value(Right::Private, &old)),
            (key(Owner::Kubernetes), value(Right::Open, &new)),
            (key(Owner::Swarm), "strange".to_owned()),
        ]);
        assert_eq!(parse(&labels, &old), Holders::from([(Owner::Nomad, Right::Private)]));
        assert_eq!(parse(&labels, &new), Holders::from([(Owner::Kubernetes, Right::Open)]));
    }

    #[test]
    fn a_record_goes_when_nobody_else_holds_or_uses_it() {
        let of = |owners: &[Owner]| owners.iter().map(|owner| (*owner, Right::Open)).collect::<Holders>();
        let (k, n) = (Owner::Kubernetes, Owner::Nomad);
        assert_eq!(fate(&of(&[k]), k, false), Fate::Deleted);
        assert_eq!(fate(&of(&[]), k, false), Fate::Deleted);
        assert_eq!(fate(&of(&[k, n]), k, false), Fate::LetGo);
        assert_eq!(fate(&of(&[k]), k, true), Fate::LetGo);
        assert_eq!(fate(&of(&[n]), k, false), Fate::Untouched);
        assert_eq!(fate(&of(&[]), k, true), Fate::Untouched);
    }
}
