//! The capabilities of a task, as far as the operator allows them.

use std::collections::BTreeSet;

use switchyard_core::spec::CapabilityChanges;
use switchyard_core::{Error, Result};
use switchyard_docker_options::capabilities::{self, ALL, DEFAULTS};

/// The capabilities of a task that adds and drops these, if the operator allows `allowed`.
///
/// As with Docker: a default that the operator does not allow is not granted, and a capability that is both
/// added and dropped is granted. The result names all capabilities of the task, so that no other defaults
/// apply.
///
/// # Errors
/// `InvalidArgument` with the text of Nomad's drivers, if the task adds one that is not allowed; naming
/// `cap_add`, if it adds one that does not exist.
pub(crate) fn changes(
    allowed: &[String],
    add: &[String],
    drop: &[String],
) -> Result<CapabilityChanges> {
    let allowed: BTreeSet<&str> = allowed.iter().map(String::as_str).collect();
    let all_allowed = allowed.contains(ALL);
    if !all_allowed {
        let added: BTreeSet<&str> = add.iter().map(String::as_str).collect();
        let refused: Vec<String> = added
            .difference(&allowed)
            .map(|name| name.to_ascii_lowercase())
            .collect();
        let first = add.iter().position(|name| !allowed.contains(name.as_str()));
        if let Some(index) = first {
            let refused = refused.join(", ");
            return Err(Error::invalid(
                format_args!("cap_add[{index}]"),
                format!("driver does not allow the following capabilities: {refused}"),
            ));
        }
    }
    let defaults = DEFAULTS
        .into_iter()
        .filter(|name| all_allowed || allowed.contains(name));
    capabilities::changes("cap_add", defaults, add, drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: [&str; 3] = ["CHOWN", "KILL", "MKNOD"];

    fn own(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[track_caller]
    fn check(allowed: &[&str], add: &[&str], drop: &[&str], has: &[&str], dropped: &[&str]) {
        let made = changes(&own(allowed), &own(add), &own(drop)).unwrap();
        assert_eq!((made.add, made.drop), (own(has), own(dropped)));
    }

    #[test]
    fn default_capabilities_are_limited_to_allowed_ones() {
        check(&SOME, &[], &[], &SOME, &["ALL"]);
        check(&["CHOWN"], &[], &[], &["CHOWN"], &["ALL"]);
        check(&["ALL"], &[], &[], &DEFAULTS, &["ALL"]);
        check(
            &["CHOWN", "NET_RAW", "SYS_TIME"],
            &[],
            &[],
            &["CHOWN", "NET_RAW"],
            &["ALL"],
        );
    }

    #[test]
    fn allowed_capability_can_be_added() {
        check(&SOME, &["KILL"], &["ALL"], &["KILL"], &["ALL"]);
        check(&["ALL"], &["ALL"], &["SYS_ADMIN"], &["ALL"], &["SYS_ADMIN"]);
    }

    #[test]
    fn disallowed_capability_is_rejected_in_nomads_words() {
        for (add, named) in [
            (&["SYS_TIME", "NET_ADMIN"][..], "net_admin, sys_time"),
            (&["ALL"], "all"),
            (&["NET_RAW"], "net_raw"),
        ] {
            let error = changes(&own(&SOME), &own(add), &[]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("cap_add[0]: driver does not allow the following capabilities: {named}")
            );
        }
    }

    #[test]
    fn unknown_capability_is_rejected_although_all_are_allowed() {
        let error = changes(&own(&["ALL"]), &own(&["SYS_ADMINISTER"]), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cap_add[0]: \"SYS_ADMINISTER\" is no capability of Linux"
        );
    }
}
