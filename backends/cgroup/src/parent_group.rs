//! The parent of a watched group, on cgroup v2: it counts the OOM kills in all its descendants, and remains
//! when they are removed.
//!
//! A kill that the parent has counted and none of the siblings has was in the watched group, or in a sibling
//! that is removed too.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::kill_count::{count, kills};

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
    /// By sibling; `None` if there are too many.
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
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let group = path.parent()?;
        let name = path.file_name()?;
        let dir = group.parent()?;
        let own = group.file_name()?;
        let file = File::open(dir.join(name)).ok()?;
        let own = own.to_owned();
        let name = name.to_owned();
        let before = KillCounts::default();
        Some(Self {
            file,
            dir: dir.to_owned(),
            own_name: own,
            file_name: name,
            baseline: before,
        })
    }

    /// The file to poll: it signals every kill in a descendant.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// The current counts; `None` if they cannot be read.
    pub(crate) fn read_counts(&self) -> Option<KillCounts> {
        for _ in 0..READ_ATTEMPTS {
            let all = count(&self.file).ok()?;
            let beside = self.sibling_counts().ok()?;
            if count(&self.file).ok()? == all {
                return Some(KillCounts {
                    all,
                    siblings: beside,
                });
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

    /// In which group the kills since the baseline were.
    pub(crate) fn kill_origin(&self, now: &KillCounts) -> KillOrigin {
        decide_origin(&self.baseline, now)
    }

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
            if let Some(count) = read(&entry.path(), &self.file_name) {
                counts.insert(group, count);
            }
        }
        Ok(Some(counts))
    }
}

/// The count of a group; `None` if it is removed, or has no such file.
fn read(group: &Path, name: &OsStr) -> Option<u64> {
    fs::read_to_string(group.join(name))
        .ok()
        .map(|text| kills(&text))
}

/// Decides in which group the kills were. A sibling that was created and removed between the two counts is
/// not noticed. Pure.
fn decide_origin(before: &KillCounts, now: &KillCounts) -> KillOrigin {
    let all = now.all.saturating_sub(before.all);
    if all == 0 {
        return KillOrigin::Others;
    }
    let (Some(then), Some(beside)) = (&before.siblings, &now.siblings) else {
        return KillOrigin::Unknown;
    };
    let theirs: u64 = beside
        .iter()
        .map(|(group, count)| count.saturating_sub(then.get(group).copied().unwrap_or(0)))
        .sum();
    // The kills of a sibling that is gone are in the total, and in no count that can be read.
    let all_stayed = then.keys().all(|group| beside.contains_key(group));
    match (all > theirs, all_stayed) {
        (false, _) => KillOrigin::Others,
        (true, true) => KillOrigin::Own,
        (true, false) => KillOrigin::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn census(all: u64, beside: &[(&str, u64)]) -> KillCounts {
        let beside = beside
            .iter()
            .map(|(group, count)| (OsString::from(group), *count))
            .collect();
        KillCounts {
            all,
            siblings: Some(beside),
        }
    }

    #[test]
    fn oom_kills_not_counted_by_siblings_are_own() {
        let check = |before: &KillCounts, now: &KillCounts, expected| {
            assert_eq!(decide_origin(before, now), expected, "{before:?} {now:?}");
        };
        let before = census(4, &[("a", 1), ("b", 0)]);
        check(&before, &before, KillOrigin::Others);
        check(
            &before,
            &census(5, &[("a", 1), ("b", 1)]),
            KillOrigin::Others,
        );
        check(&before, &census(5, &[("a", 1), ("b", 0)]), KillOrigin::Own);
        check(&before, &census(6, &[("a", 2), ("b", 0)]), KillOrigin::Own);
        // All kills of a new sibling are since then.
        check(
            &before,
            &census(5, &[("a", 1), ("b", 0), ("c", 1)]),
            KillOrigin::Others,
        );
        // The kill may have been in a sibling that is removed.
        check(&before, &census(5, &[("a", 1)]), KillOrigin::Unknown);
        check(&before, &census(5, &[("a", 2)]), KillOrigin::Others);
        let many = KillCounts {
            all: 5,
            siblings: None,
        };
        check(&before, &many, KillOrigin::Unknown);
        check(&many, &census(6, &[]), KillOrigin::Unknown);
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
        let mut above = ParentGroup::of(&dir.path().join("own/memory.events")).unwrap();
        let now = above.read_counts().unwrap();
        assert_eq!(now, census(3, &[("a", 2)]));
        above.set_baseline(now);
        write("", 4);
        assert_eq!(
            above.kill_origin(&above.read_counts().unwrap()),
            KillOrigin::Own
        );
        for number in 0..MAX_SIBLINGS {
            write(&number.to_string(), 0);
        }
        assert_eq!(
            above.kill_origin(&above.read_counts().unwrap()),
            KillOrigin::Unknown
        );
    }
}
