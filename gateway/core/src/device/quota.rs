//! How many slots of a group each owner may hold, as operators write it.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::id::Owner;

/// The quota that owners have by their names, as `kubernetes`.
///
/// # Errors
/// `InvalidArgument` for a name that is no owner's.
pub fn parse(named: &BTreeMap<String, usize>) -> Result<BTreeMap<Owner, usize>> {
    let one = |(name, most): (&String, &usize)| match Owner::parse(name) {
        Some(owner) => Ok((owner, *most)),
        None => {
            let known = Owner::ALL.map(Owner::as_str).join(", ");
            Err(Error::invalid("quota", format!("{name:?} is no owner: {known}")))
        }
    };
    named.iter().map(one).collect()
}
