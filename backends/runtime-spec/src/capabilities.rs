//! Capability sets of a process: the default set, the requested changes, and what the node can give.

use std::collections::BTreeSet;

pub use switchyard_core::capability::NAMES;
use switchyard_core::spec::CapabilityChanges;
use switchyard_core::text::first_names;

use crate::oci;

/// The capabilities of a task that requests no changes: the default set of Docker and containerd.
pub const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SYS_CHROOT",
    "MKNOD",
    "AUDIT_WRITE",
    "SETFCAP",
];

/// The names, with `CAP_`, of the capabilities in a mask as in `/proc/<pid>/status`.
#[must_use]
pub fn from_mask(mask: u64) -> Vec<String> {
    NAMES
        .iter()
        .enumerate()
        .filter(|(bit, _)| mask & (1 << bit) != 0)
        .map(|(_, name)| format!("CAP_{name}"))
        .collect()
}

/// The sets of a task. `available` has the names, with `CAP_`, of what the node can give.
///
/// `ALL` in either list is applied before single names, and drops override adds. An unknown name, and one
/// that the node cannot give, is left out with a warning: a runtime would refuse the whole task for the
/// second.
#[must_use]
pub fn sets(
    changes: &CapabilityChanges,
    privileged: bool,
    available: &[String],
    warnings: &mut Vec<String>,
) -> oci::Capabilities {
    let available: BTreeSet<&str> = available.iter().map(|name| bare(name)).collect();
    let mut unknown = BTreeSet::new();
    let (add_all, add) = asked(&changes.add, &mut unknown);
    let (drop_all, dropped) = asked(&changes.drop, &mut unknown);
    let (ambient_all, ambient) = asked(&changes.add_ambient, &mut unknown);
    // One warning for all: the lists of a client can have any length.
    if !unknown.is_empty() {
        let count = unknown.len();
        let names = first_names(unknown.iter().copied());
        warnings.push(format!(
            "unknown capabilities are left out ({count}): {names}"
        ));
    }
    let every = || {
        NAMES
            .iter()
            .copied()
            .filter(|name| available.contains(name))
    };

    if privileged {
        let names: Vec<String> = every().map(full).collect();
        return oci::Capabilities {
            bounding: names.clone(),
            effective: names.clone(),
            permitted: names,
            ..Default::default()
        };
    }
    let mut set: BTreeSet<&str> = if drop_all {
        BTreeSet::new()
    } else {
        DEFAULT.into_iter().collect()
    };
    if add_all {
        set.extend(every());
    }
    let mut raised: BTreeSet<&str> = if ambient_all {
        every().collect()
    } else {
        BTreeSet::new()
    };
    raised.extend(&ambient);
    set.extend(&add);
    set.extend(&raised);
    set.retain(|name| !dropped.contains(name));
    for name in set.iter().filter(|name| !available.contains(*name)) {
        warnings.push(format!(
            "capability CAP_{name} is left out: this node's bounding set does not have it"
        ));
    }
    set.retain(|name| available.contains(name));
    raised.retain(|name| set.contains(name));

    // Sorted by number, so that the result does not depend on the order of the request.
    let list = |set: &BTreeSet<&str>| {
        NAMES
            .iter()
            .copied()
            .filter(|name| set.contains(name))
            .map(full)
            .collect::<Vec<_>>()
    };
    oci::Capabilities {
        bounding: list(&set),
        effective: list(&set),
        permitted: list(&set),
        // The kernel allows only inheritable capabilities in the ambient set.
        inheritable: list(&raised),
        ambient: list(&raised),
    }
}

/// Returns whether `ALL` is among these names, and the capabilities that they name. Adds names that are no
/// capability to `unknown`.
fn asked<'a>(
    names: &'a [String],
    unknown: &mut BTreeSet<&'a str>,
) -> (bool, BTreeSet<&'static str>) {
    let mut all = false;
    let mut known = BTreeSet::new();
    for name in names {
        match parse(name) {
            Parsed::All => all = true,
            Parsed::One(name) => drop(known.insert(name)),
            Parsed::Unknown => drop(unknown.insert(name)),
        }
    }
    (all, known)
}

enum Parsed {
    All,
    One(&'static str),
    Unknown,
}

fn parse(name: &str) -> Parsed {
    let upper = name.trim().to_ascii_uppercase();
    let wanted = bare(&upper);
    if wanted == "ALL" {
        return Parsed::All;
    }
    NAMES
        .into_iter()
        .find(|known| *known == wanted)
        .map_or(Parsed::Unknown, Parsed::One)
}

fn bare(name: &str) -> &str {
    name.strip_prefix("CAP_").unwrap_or(name)
}

fn full(name: &str) -> String {
    format!("CAP_{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changes(add: &[&str], drop: &[&str], ambient: &[&str]) -> CapabilityChanges {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        CapabilityChanges {
            add: own(add),
            drop: own(drop),
            add_ambient: own(ambient),
        }
    }

    #[track_caller]
    fn check(
        changes: &CapabilityChanges,
        available: u64,
        expected: &[&str],
    ) -> (oci::Capabilities, Vec<String>) {
        let mut warnings = Vec::new();
        let sets = sets(changes, false, &from_mask(available), &mut warnings);
        let mut names: Vec<&str> = sets.bounding.iter().map(|name| bare(name)).collect();
        let mut expected = expected.to_vec();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert_eq!(sets.bounding, sets.effective);
        assert_eq!(sets.bounding, sets.permitted);
        (sets, warnings)
    }

    const ALL: u64 = (1 << 41) - 1;

    #[test]
    fn default_capability_set_is_not_inheritable() {
        let (sets, warnings) = check(&changes(&[], &[], &[]), ALL, &DEFAULT);
        assert_eq!(
            (sets.inheritable.len(), sets.ambient.len(), warnings.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn add_all_precedes_names_and_drops_win() {
        check(&changes(&["NET_ADMIN"], &["all"], &[]), ALL, &["NET_ADMIN"]);
        let most: Vec<&str> = NAMES
            .into_iter()
            .filter(|name| *name != "SYS_ADMIN")
            .collect();
        check(&changes(&["ALL"], &["CAP_SYS_ADMIN"], &[]), ALL, &most);
        check(&changes(&["cap_chown"], &["ALL", "CHOWN"], &[]), ALL, &[]);
        check(&changes(&["ALL"], &["ALL"], &[]), ALL, &NAMES);
    }

    #[test]
    fn unknown_or_unavailable_capabilities_are_dropped_with_a_warning() {
        let (_, warnings) = check(
            &changes(&["FLY", "SYS_TIME"], &["ALL"], &[]),
            ALL & !(1 << 25),
            &[],
        );
        assert_eq!(warnings.len(), 2);
        assert_eq!(
            warnings[0],
            "unknown capabilities are left out (1): \"FLY\""
        );
        assert!(warnings[1].contains("CAP_SYS_TIME"), "{warnings:?}");
    }

    #[test]
    fn many_unknown_capabilities_are_one_short_warning() {
        let many: Vec<String> = (0..1000)
            .map(|number| format!("{number:03}{}", "X".repeat(1000)))
            .collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let (_, warnings) = check(&changes(&many, &many, &["ALSO_NONE"]), ALL, &DEFAULT);
        let [warning] = &warnings[..] else {
            panic!("{} warnings", warnings.len())
        };
        assert!(
            warning.starts_with("unknown capabilities are left out (1001): \"000X"),
            "{warning}"
        );
        assert!(
            warning.len() < 400 && warning.ends_with(" and 998 more"),
            "{warning}"
        );
    }

    #[test]
    fn ambient_capabilities_are_inheritable_too() {
        let (sets, _) = check(
            &changes(&[], &["ALL"], &["NET_BIND_SERVICE"]),
            ALL,
            &["NET_BIND_SERVICE"],
        );
        assert_eq!(sets.ambient, ["CAP_NET_BIND_SERVICE"]);
        assert_eq!(sets.inheritable, sets.ambient);
    }

    #[test]
    fn privileged_task_gets_exactly_the_nodes_capabilities() {
        let sets = sets(
            &changes(&[], &["CHOWN"], &[]),
            true,
            &from_mask(0b11),
            &mut Vec::new(),
        );
        assert_eq!(sets.bounding, ["CAP_CHOWN", "CAP_DAC_OVERRIDE"]);
    }
}
