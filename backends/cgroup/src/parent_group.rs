//! The parent of a watched group, on cgroup v2: it counts the OOM kills in all its descendants, and remains
//! when they are removed.
//!
//! A kill that the parent has counted and none of the siblings has was in the watched group, or in a sibling
//! that is removed too.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::files::is_gone;
use crate::kill_count::count;

/// The most siblings whose counts are read; with more of them, none is read.
const MAX_SIBLINGS: usize = 16;

/// Number of times counts are read again if they change while they are read.
const READ_ATTEMPTS: usize = 3;

/// The parent of a watched group.
#[derive(Debug)]
pub(crate) struct ParentGroup {
    file: File,
    dir: PathBuf,
    /// The directory name of the watched group.
    own_name: OsString,
    /// The name of the file with the counts.
    file_name: OsString,
    /// The counts when the file of the watched group was last read.
    baseline: KillCounts,
}

/// The kills that are counted at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KillCounts {
    all: u64,
    /// By sibling; `None` if there are too many, or one cannot be read.
    siblings: Option<BTreeMap<OsString, u64>>,
}

/// In which group the kills between two moments were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillOrigin {
    /// There were none, or only in siblings.
    Others,
    /// In the watched group.
    Own,
    /// Either is possible.
    Unknown,
}

// === impl ParentGroup ===

impl ParentGroup {
    /// The parent of the group that this file belongs to; `None` if that is the root, which has no such file.
    ///
    /// # Errors
    /// [`Error::File`] if its file cannot be opened for another reason.
    pub(crate) fn of(path: &Path) -> Result<Option<Self>> {
        let group = path.parent();
        let (Some(file_name), Some(own_name), Some(dir)) = (
            path.file_name(),
            group.and_then(Path::file_name),
            group.and_then(Path::parent),
        ) else {
            return Ok(None);
        };
        let path = dir.join(file_name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if is_gone(&error) => return Ok(None),
            Err(source) => return Err(Error::File { path, source }),
        };
        Ok(Some(Self {
            file,
            dir: dir.to_owned(),
            own_name: own_name.to_owned(),
            file_name: file_name.to_owned(),
            baseline: KillCounts::default(),
        }))
    }

    /// The file to poll: it signals every kill in a descendant.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// The current counts; `None` if that of the parent cannot be read, as after its removal.
    pub(crate) fn read_counts(&self) -> Option<KillCounts> {
        for _ in 0..READ_ATTEMPTS {
            let all = count(&self.file).ok()?;
            let siblings = self.sibling_counts().ok().flatten();
            if count(&self.file).ok()? == all {
                return Some(KillCounts { all, siblings });
            }
        }
        // The counts keep changing: those of the siblings would not match the total.
        Some(KillCounts {
            all: count(&self.file).ok()?,
            siblings: None,
        })
    }

    /// Sets the counts that were read just before the file of the watched group.
    pub(crate) fn set_baseline(&mut self, counts: KillCounts) {
        self.baseline = counts;
    }

    /// In which group the kills between the baseline and `now` were; `None` for counts that cannot be read.
    pub(crate) fn kill_origin(&self, now: Option<&KillCounts>) -> KillOrigin {
        now.map_or(KillOrigin::Unknown, |now| {
            decide_origin(&self.baseline, now)
        })
    }

    /// The counts of the siblings that exist; `None` if there are too many.
    fn sibling_counts(&self) -> io::Result<Option<BTreeMap<OsString, u64>>> {
        let mut counts = BTreeMap::new();
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let group = entry.file_name();
            if !entry.file_type()?.is_dir() || group == self.own_name {
                continue;
            }
            if counts.len() == MAX_SIBLINGS {
                return Ok(None);
            }
            if let Some(count) = read(&entry.path().join(&self.file_name))? {
                counts.insert(group, count);
            }
        }
        Ok(Some(counts))
    }
}

/// The count in the file of a group; `None` if the group is removed, or has no such file.
fn read(path: &Path) -> io::Result<Option<u64>> {
    match File::open(path).and_then(|file| count(&file)) {
        Ok(count) => Ok(Some(count)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decides in which group the kills were. A sibling that was created and removed between the two counts is
/// not noticed. Pure.
fn decide_origin(before: &KillCounts, now: &KillCounts) -> KillOrigin {
    let all = now.all.saturating_sub(before.all);
    if all == 0 {
        return KillOrigin::Others;
    }
    let (Some(earlier), Some(siblings)) = (&before.siblings, &now.siblings) else {
        return KillOrigin::Unknown;
    };
    let in_siblings: u64 = siblings
        .iter()
        .map(|(group, count)| count.saturating_sub(earlier.get(group).copied().unwrap_or(0)))
        .sum();
    // The kills of a sibling that is gone are in the total, and in no count that can be read.
    let all_exist = earlier.keys().all(|group| siblings.contains_key(group));
    match (all > in_siblings, all_exist) {
        (false, _) => KillOrigin::Others,
        (true, true) => KillOrigin::Own,
        (true, false) => KillOrigin::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent_of(group: &Path) -> Result<Option<ParentGroup>> {
        ParentGroup::of(&group.join("memory.events"))
    }

    fn counts(all: u64, siblings: &[(&str, u64)]) -> KillCounts {
        let siblings = siblings
            .iter()
            .map(|(group, count)| (OsString::from(group), *count))
            .collect();
        KillCounts {
            all,
            siblings: Some(siblings),
        }
    }

    #[test]
    fn oom_kills_not_counted_by_siblings_are_own() {
        let check = |before: &KillCounts, now: &KillCounts, expected| {
            assert_eq!(decide_origin(before, now), expected, "{before:?} {now:?}");
        };
        let before = counts(4, &[("a", 1), ("b", 0)]);
        check(&before, &before, KillOrigin::Others);
        check(
            &before,
            &counts(5, &[("a", 1), ("b", 1)]),
            KillOrigin::Others,
        );
        check(&before, &counts(5, &[("a", 1), ("b", 0)]), KillOrigin::Own);
        check(&before, &counts(6, &[("a", 2), ("b", 0)]), KillOrigin::Own);
        // All kills of a new sibling are since then.
        check(
            &before,
            &counts(5, &[("a", 1), ("b", 0), ("c", 1)]),
            KillOrigin::Others,
        );
        // The kill may have been in a sibling that is removed.
        check(&before, &counts(5, &[("a", 1)]), KillOrigin::Unknown);
        check(&before, &counts(5, &[("a", 2)]), KillOrigin::Others);
        let many = KillCounts {
            all: 5,
            siblings: None,
        };
        check(&before, &many, KillOrigin::Unknown);
        check(&many, &counts(6, &[]), KillOrigin::Unknown);
    }

    #[test]
    fn sibling_cgroups_are_counted_without_own() {
        let dir = tempfile::tempdir().unwrap();
        let write = |group: &str, kills: u64| {
            fs::create_dir_all(dir.path().join(group)).unwrap();
            fs::write(
                dir.path().join(group).join("memory.events"),
                format!("oom 1\noom_kill {kills}\n"),
            )
            .unwrap();
        };
        for (group, kills) in [("", 3), ("own", 1), ("a", 2)] {
            write(group, kills);
        }
        fs::create_dir(dir.path().join("none")).unwrap();
        let mut parent = parent_of(&dir.path().join("own")).unwrap().unwrap();
        let now = parent.read_counts().unwrap();
        assert_eq!(now, counts(3, &[("a", 2)]));
        parent.set_baseline(now);
        write("", 4);
        let origin = |parent: &ParentGroup| parent.kill_origin(parent.read_counts().as_ref());
        assert_eq!(origin(&parent), KillOrigin::Own);
        for number in 0..MAX_SIBLINGS {
            write(&number.to_string(), 0);
        }
        assert_eq!(origin(&parent), KillOrigin::Unknown);
    }

    #[test]
    fn unreadable_counts_leave_the_origin_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let file = |group: &str| dir.path().join(group).join("memory.events");
        for group in ["own", "a"] {
            fs::create_dir(dir.path().join(group)).unwrap();
        }
        fs::write(file(""), "oom_kill 0\n").unwrap();
        fs::write(file("a"), "oom_kill 0\n").unwrap();
        let mut parent = parent_of(&dir.path().join("own")).unwrap().unwrap();
        parent.set_baseline(parent.read_counts().unwrap());
        assert_eq!(parent.kill_origin(None), KillOrigin::Unknown);

        fs::write(file(""), "oom_kill 1\n").unwrap();
        let origin = |parent: &ParentGroup| parent.kill_origin(parent.read_counts().as_ref());
        assert_eq!(origin(&parent), KillOrigin::Own);
        fs::remove_file(file("a")).unwrap();
        fs::create_dir(file("a")).unwrap();
        assert_eq!(origin(&parent), KillOrigin::Unknown);
        fs::write(file(""), "").unwrap();
        assert_eq!(parent.read_counts(), None);
    }

    #[test]
    fn parent_that_cannot_be_opened_is_an_error_unless_it_is_the_root() {
        let dir = tempfile::tempdir().unwrap();
        assert!(parent_of(&dir.path().join("own")).unwrap().is_none());
        let file = dir.path().join("memory.events");
        std::os::unix::fs::symlink(&file, &file).unwrap();
        assert!(matches!(
            parent_of(&dir.path().join("own")),
            Err(Error::File { path, .. }) if path == file
        ));
    }
}
