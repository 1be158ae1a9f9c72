//! Linux capability names in options, and the capabilities of a task.

use std::collections::BTreeSet;

use switchyard_core::capability::NAMES;
use switchyard_core::spec::CapabilityChanges;
use switchyard_core::{Error, Result};

/// The name for all capabilities.
pub const ALL: &str = "ALL";

/// The capabilities that Docker gives to containers.
pub const DEFAULTS: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The names in upper case and without `CAP_`.
///
/// # Errors
/// `InvalidArgument` for a text that cannot be a name. Whether Linux has the capability is only checked where
/// a task adds it: an operator's list may name more.
pub fn names(field: &str, list: &[String]) -> Result<Vec<String>> {
    list.iter()
        .enumerate()
        .map(|(index, text)| name(field, index, text))
        .collect()
}

/// The name of a capability in upper case, without `CAP_`.
fn name(field: &str, index: usize, text: &str) -> Result<String> {
    let upper = text.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    if bare.is_empty()
        || !bare
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    {
        let why = format!("{text:?} is not the name of a capability");
        return Err(Error::invalid(format_args!("{field}[{index}]"), why));
    }
    Ok(bare.to_owned())
}

/// The capabilities of a task that has these by default, and adds and drops others.
///
/// As with Docker, a capability that is both added and dropped is granted. The result names all capabilities
/// of the task, so that no other defaults apply.
///
/// # Errors
/// `InvalidArgument`, naming the field and the place in the list, if the task adds one that does not exist.
pub fn changes<'a>(
    field: &str,
    defaults: impl IntoIterator<Item = &'a str>,
    add: &'a [String],
    drop: &[String],
) -> Result<CapabilityChanges> {
    for (index, name) in add.iter().enumerate() {
        if name != ALL && !NAMES.contains(&name.as_str()) {
            return Err(Error::invalid(
                format_args!("{field}[{index}]"),
                format!("{name:?} is no capability of Linux"),
            ));
        }
    }
    let add = set(add);
    let drop = set(drop);
    let kept = |name: &&str| !drop.contains(name) && !drop.contains(ALL);
    let mut has: BTreeSet<&str> = defaults.into_iter().filter(kept).collect();
    has.extend(add.iter().filter(|name| **name != ALL));
    let mut dropped = vec![ALL.to_owned()];
    if add.contains(ALL) {
        // With `ALL` added: everything except what is dropped by name and not added by name.
        dropped = drop
            .difference(&add)
            .filter(|name| **name != ALL)
            .map(ToString::to_string)
            .collect();
        has = [ALL].into();
    }
    let added = has.into_iter().map(str::to_owned).collect();
    Ok(CapabilityChanges {
        add: added,
        drop: dropped,
        add_ambient: Vec::new(),
    })
}

fn set(names: &[String]) -> BTreeSet<&str> {
    names.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOME: [&str; 3] = ["CHOWN", "KILL", "MKNOD"];

    fn own(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[track_caller]
    fn check(add: &[&str], drop: &[&str], has: &[&str], dropped: &[&str]) {
        let add = own(add);
        let made = changes("cap_add", SOME, &add, &own(drop)).unwrap();
        assert_eq!((made.add, made.drop), (own(has), own(dropped)));
    }

    #[test]
    fn added_capability_overrides_drop() {
        check(&[], &[], &["CHOWN", "KILL", "MKNOD"], &["ALL"]);
        check(&["KILL"], &["ALL"], &["KILL"], &["ALL"]);
        check(&["KILL"], &["KILL", "CHOWN"], &["KILL", "MKNOD"], &["ALL"]);
        check(
            &["SYS_TIME"],
            &["CHOWN"],
            &["KILL", "MKNOD", "SYS_TIME"],
            &["ALL"],
        );
    }

    #[test]
    fn add_all_excludes_dropped_names() {
        check(&["ALL"], &["SYS_ADMIN"], &["ALL"], &["SYS_ADMIN"]);
        check(&["ALL"], &["ALL"], &["ALL"], &[]);
        check(&["ALL", "CHOWN"], &["CHOWN", "KILL"], &["ALL"], &["KILL"]);
    }

    #[test]
    fn unknown_capability_is_rejected() {
        let error = changes("cap_add", SOME, &own(&["SYS_ADMINISTER"]), &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "cap_add[0]: \"SYS_ADMINISTER\" is no capability of Linux"
        );
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
