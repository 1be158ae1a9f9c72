//! Linux capability names in configurations, and the capabilities of a task.

use std::collections::BTreeSet;

use switchyard_core::capability::NAMES;
use switchyard_core::spec::CapabilityChanges;
use switchyard_core::{Error, Result};

/// The name for all capabilities.
const ALL: &str = "ALL";

/// Docker's default capabilities are Nomad's defaults and `NET_RAW`.
const NET_RAW: &str = "NET_RAW";

/// The names in upper case and without `CAP_`.
///
/// # Errors
/// `InvalidArgument` for a text that cannot be a name. Whether Linux has the capability is only checked where
/// a task adds it: an operator's list may name more.
pub(crate) fn names(field: &str, list: &[String]) -> Result<Vec<String>> {
    list.iter().enumerate().map(|(index, text)| name(field, index, text)).collect()
}

/// The name of a capability in upper case, without `CAP_`.
fn name(field: &str, index: usize, text: &str) -> Result<String> {
    let upper = text.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        let why = format!("{text:?} is not the name of a capability");
        return Err(Error::invalid(format_args!("{field}[{index}]"), why));
    }
    Ok(bare.to_owned())
}

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
    defaults: &[&str],
    allowed: &[String],
    add: &[String],
    drop: &[String],
) -> Result<CapabilityChanges> {
    let allowed = set(allowed);
    let add = set(add);
    let drop = set(drop);
    let all_allowed = allowed.contains(ALL);
    if !all_allowed {
        let refused: Vec<String> = add.difference(&allowed).map(|name| name.to_ascii_lowercase()).collect();
        if !refused.is_empty() {
            let refused = refused.join(", ");
            return Err(Error::new(
                switchyard_core::ErrorKind::InvalidArgument,
                format!("driver does not allow the following capabilities: {refused}"),
            ));
        }
    }
    if let Some(unknown) = add.iter().find(|name| **name != ALL && !NAMES.contains(name)) {
        return Err(Error::invalid("cap_add", format!("{unknown:?} is no capability of Linux")));
    }
    let kept =
        |name: &&str| (all_allowed || allowed.contains(name)) && !drop.contains(name) && !drop.contains(ALL);
    let mut has: BTreeSet<&str> = defaults.iter().copied().chain([NET_RAW]).filter(kept).collect();
    has.extend(add.iter().filter(|name| **name != ALL));
    let mut dropped = vec![ALL.to_owned()];
    if add.contains(ALL) {
        // With `ALL` added: everything except what is dropped by name and not added by name.
        dropped = drop.difference(&add).filter(|name| **name != ALL).map(ToString::to_string).collect();
        has = [ALL].into();
    }
    let added = has.into_iter().map(str::to_owned).collect();
    Ok(CapabilityChanges { add: added, drop: dropped, add_ambient: Vec::new() })
}

fn set(names: &[String]) -> BTreeSet<&str> {
    names.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: [&str; 3] = ["CHOWN", "KILL", "MKNOD"];

    fn own(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[track_caller]
    fn check(allowed: &[&str], add: &[&str], drop: &[&str], has: &[&str], dropped: &[&str]) {
        let made = changes(&DEFAULTS, &own(allowed), &own(add), &own(drop)).unwrap();
        assert_eq!((made.add, made.drop), (own(has), own(dropped)));
    }

    #[test]
    fn default_capabilities_are_limited_to_allowed_ones() {
        check(&DEFAULTS, &[], &[], &["CHOWN", "KILL", "MKNOD"], &["ALL"]);
        check(&["CHOWN"], &[], &[], &["CHOWN"], &["ALL"]);
        check(&["ALL"], &[], &[], &["CHOWN", "KILL", "MKNOD", "NET_RAW"], &["ALL"]);
        check(&["CHOWN", "NET_RAW"], &[], &[], &["CHOWN", "NET_RAW"], &["ALL"]);
    }

    #[test]
    fn added_capability_overrides_drop() {
        check(&DEFAULTS, &["KILL"], &["ALL"], &["KILL"], &["ALL"]);
        check(&DEFAULTS, &["KILL"], &["KILL", "CHOWN"], &["KILL", "MKNOD"], &["ALL"]);
        check(&["ALL"], &["SYS_TIME"], &["CHOWN"], &["KILL", "MKNOD", "NET_RAW", "SYS_TIME"], &["ALL"]);
    }

    #[test]
    fn add_all_excludes_dropped_names() {
        check(&["ALL"], &["ALL"], &["SYS_ADMIN"], &["ALL"], &["SYS_ADMIN"]);
        check(&["ALL"], &["ALL"], &["ALL"], &["ALL"], &[]);
        check(&["ALL"], &["ALL", "CHOWN"], &["CHOWN", "KILL"], &["ALL"], &["KILL"]);
    }

    #[test]
    fn disallowed_capability_is_rejected_in_nomads_words() {
        for (add, named) in [
            (&["SYS_TIME", "NET_ADMIN"][..], "net_admin, sys_time"),
            (&["ALL"], "all"),
            (&["NET_RAW"], "net_raw"),
        ] {
            let error = changes(&DEFAULTS, &own(&DEFAULTS), &own(add), &[]).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("driver does not allow the following capabilities: {named}")
            );
        }
    }

    #[test]
    fn unknown_capability_is_rejected_although_all_are_allowed() {
        let error = changes(&DEFAULTS, &own(&["ALL"]), &own(&["SYS_ADMINISTER"]), &[]).unwrap_err();
        assert_eq!(error.to_string(), "cap_add: \"SYS_ADMINISTER\" is no capability of Linux");
    }

    #[test]
    fn capability_names_parse_in_any_spelling() {
        assert_eq!(
            names("f", &own(&["cap_chown", "Net_Raw", "all"])).unwrap(),
            own(&["CHOWN", "NET_RAW", "ALL"])
        );
        for bad in ["", "CAP_", "a b", "x,y"] {
            let error = names("cap_add", &own(&[bad])).unwrap_err();
            assert!(error.to_string().starts_with("cap_add[0]: "), "{error}");
        }
    }
}
