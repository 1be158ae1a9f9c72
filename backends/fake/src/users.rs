//! Resolves the user of a task.

use switchyard_core::object::ResolvedUser;
use switchyard_core::spec::{UserRef, UserSpec};
use switchyard_core::{Error, Result};

/// The user that a task runs as, for an image with this `USER`.
pub(crate) fn resolve(wanted: &UserSpec, of_image: &str) -> Result<ResolvedUser> {
    let (uid, gid) = match &wanted.user {
        Some(UserRef::Uid(uid)) => (*uid, 0),
        Some(UserRef::Name(name)) => user_line(name)?,
        None => user_line(of_image)?,
    };
    Ok(ResolvedUser {
        uid,
        gid: wanted.gid.unwrap_or(gid),
        groups: wanted.supplemental.clone(),
    })
}

/// Resolves a `USER` line for an image whose user database contains root and nobody.
fn user_line(line: &str) -> Result<(u32, u32)> {
    let number = |name: &str| match name {
        "" | "root" => Ok(0),
        "nobody" | "nogroup" => Ok(65534),
        other => other.parse().map_err(|_| {
            Error::invalid(
                "user",
                format!("{other:?} is not in the files of the image"),
            )
        }),
    };
    match line.split_once(':') {
        Some((user, group)) => Ok((number(user)?, number(group)?)),
        None if line == "nobody" => Ok((65534, 65534)),
        None => Ok((number(line)?, 0)),
    }
}
