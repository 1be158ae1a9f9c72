//! Cgroups that could not be removed together with their objects, because processes were still in them. Each
//! is recorded in a file until it is removed, so that the next start of the daemon retries it too.
//!
//! ```text
//! busy ─► file <run>/groups/<id>.left ─► container object deleted ─► removal retried ─► removed ─► file removed
//! ```
//!
//! On a full disk the file may be missing until there is space; if the daemon is killed before, the cgroup stays until
//! the next boot. Without the file nothing would say that the cgroup is ours: its name is an id, and other programs name
//! theirs the same way.

use std::collections::BTreeMap;
use std::path::Path;

use parking_lot::{Mutex, MutexGuard};
use switchyard_cgroup::Group;
use switchyard_core::Result;

/// The suffix of the file names, after the id.
pub(crate) const SUFFIX: &str = ".left";

/// The cgroup of an object that is removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BusyCgroup {
    pub(crate) group: Group,
    /// The ancestors that were created for its sandbox, the deepest first.
    pub(crate) above: Vec<Group>,
}

/// The cgroups that wait for their removal, by the ids of their objects.
#[derive(Debug, Default)]
pub(crate) struct BusyCgroups {
    by_id: Mutex<BTreeMap<String, BusyCgroup>>,
}

// === impl BusyCgroup ===

impl BusyCgroup {
    /// The text of its file: the boot id, since no cgroup outlives a boot, and one path a line. An empty line
    /// ends it, so that a truncated file is recognised.
    pub(crate) fn text(&self, boot: &str) -> String {
        let groups = std::iter::once(&self.group).chain(&self.above);
        let lines: Vec<_> = groups
            .map(|group| group.relative().display().to_string())
            .collect();
        format!("{boot}\n{}\n\n", lines.join("\n"))
    }

    /// Parses such a text; `None` if it is truncated or of another boot.
    pub(crate) fn parse(text: &str, boot: &str) -> Option<Self> {
        let mut lines = text.strip_suffix("\n\n")?.lines();
        if lines.next()? != boot {
            return None;
        }
        let mut groups = lines.map(|line| Group::from_path(Path::new(line)));
        let group = groups.next()?.ok()?;
        Some(Self {
            group,
            above: groups.collect::<Result<_, _>>().ok()?,
        })
    }
}

/// Returns whether the text of such a file says nothing of this boot: it is truncated, or begins with the id of another
/// boot. Any other text that cannot be parsed is of a later version.
pub(crate) fn is_void(text: &str, boot: &str) -> bool {
    let first = text.lines().next().unwrap_or_default();
    let is_boot_id = first.len() == boot.len()
        && first
            .bytes()
            .zip(boot.bytes())
            .all(|(one, other)| (one == b'-') == (other == b'-'));
    !text.ends_with("\n\n") || (is_boot_id && first != boot)
}

// === impl BusyCgroups ===

impl BusyCgroups {
    pub(crate) fn by_id(&self) -> MutexGuard<'_, BTreeMap<String, BusyCgroup>> {
        self.by_id.lock()
    }

    /// Adds a cgroup; `false` if one of this id was there already.
    pub(crate) fn note(&self, id: &str, left: BusyCgroup) -> bool {
        self.by_id().insert(id.to_owned(), left).is_none()
    }

    /// The paths of the cgroups, for the status.
    pub(crate) fn list(&self) -> Vec<String> {
        let groups = self.by_id();
        groups.values().map(|left| left.group.to_string()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(paths: &[&str]) -> BusyCgroup {
        let mut groups = paths
            .iter()
            .map(|path| Group::from_path(Path::new(path)).unwrap());
        BusyCgroup {
            group: groups.next().unwrap(),
            above: groups.collect(),
        }
    }

    #[test]
    fn what_is_on_record_is_read_again_in_the_same_boot() {
        for one in [
            left(&["/pods/a"]),
            left(&["/pods/of/a", "/pods/of", "/pods"]),
        ] {
            assert_eq!(
                BusyCgroup::parse(&one.text("boot"), "boot"),
                Some(one.clone())
            );
            assert_eq!(BusyCgroup::parse(&one.text("boot"), "another"), None);
        }
    }

    #[test]
    fn file_of_the_first_version_is_read_and_written() {
        let golden = "5d0b9f3c\npods/of/a\npods/of\npods\n\n";
        let expected = left(&["/pods/of/a", "/pods/of", "/pods"]);
        assert_eq!(
            BusyCgroup::parse(golden, "5d0b9f3c"),
            Some(expected.clone())
        );
        assert_eq!(expected.text("5d0b9f3c"), golden);
    }

    #[test]
    fn what_a_kill_cut_short_is_not_on_record() {
        let whole = left(&["/pods/of/a", "/pods/of"]).text("boot");
        for end in 0..whole.len() {
            assert_eq!(
                BusyCgroup::parse(&whole[..end], "boot"),
                None,
                "{:?}",
                &whole[..end]
            );
        }
    }

    #[test]
    fn a_text_of_a_later_version_is_not_void() {
        let boot = "5d0b9f3c-6c0e-4d57";
        let text = left(&["/pods/a"]).text(boot);
        assert!(!is_void(&text, boot) && is_void(&text, "6d0b9f3c-6c0e-4d57"));
        assert!(is_void(&text[..text.len() - 1], boot));
        assert!(!is_void("version 2\n5d0b9f3c-6c0e-4d57\n\n", boot));
    }

    #[test]
    fn groups_that_are_left_are_told_until_they_are_gone() {
        let groups = BusyCgroups::default();
        assert!(groups.list().is_empty());
        assert!(groups.note("b", left(&["/pods/b"])) && groups.note("a", left(&["/pods/a"])));
        assert!(!groups.note("a", left(&["/pods/a"])));
        assert_eq!(groups.list(), ["/pods/a", "/pods/b"]);
    }
}
