//! The maximum number of slots of a group that each owner may hold, as configured.

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::id::Owner;

/// Parses quotas by owner names, for example `kubernetes`.
///
/// # Errors
/// `InvalidArgument` for a name that is not an owner.
pub fn parse(named: &BTreeMap<String, usize>) -> Result<BTreeMap<Owner, usize>> {
    let one = |(name, most): (&String, &usize)| match Owner::parse(name) {
        Some(owner) => Ok((owner, *most)),
        None => {
            let known = Owner::ALL.map(Owner::as_str).join(", ");
            Err(Error::invalid(
                "quota",
                format!("{name:?} is no owner: {known}"),
            ))
        }
    };
    named.iter().map(one).collect()
}
