//! The group above another, on cgroup v2: it counts the kills in all groups below it, and stays when they go.
//!
//! What it has counted and the groups beside ours have not was in ours, or in one that has gone as well.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::oom::{count, kills};

/// Groups beside ours whose counts are read; where there are more, nothing is known of them.
const MAX_SIBLINGS: usize = 16;

/// How often counts are read anew that change while they are read.
const READ_ATTEMPTS: usize = 3;

/// The group above one.
#[derive(Debug)]
pub(crate) struct ParentGroup {
    file: File,
    dir: PathBuf,
    /// The name of our group in it, and that of the file.
    own_name: OsString,
    file_name: OsString,
    baseline: KillCounts,
}

/// What was counted at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct KillCounts {
    all: u64,
    /// By the groups beside ours; `None` if they are too many.
    siblings: Option<BTreeMap<OsString, u64>>,
}

/// Where the kills between two moments were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KillOrigin {
    /// There were none, or in groups beside ours.
    Others,
    /// In ours.
    Own,
    /// Nobody can say.
    Unknown,
}

// === impl Above ===

impl ParentGroup {
    /// The group above that of this file; `None` if that is the root, which counts nothing.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let group = path.parent()?;
        let name = path.file_name()?;
        let dir = group.parent()?;
        let own = group.file_name()?;
        let file = File::open(dir.join(name)).ok()?;
        let own = own.to_owned();
        let name = name.to_owned();
        let before = KillCounts::default();
        Some(Self { file, dir: dir.to_owned(), own_name: own, file_name: name, baseline: before })
    }

    /// What has news when anything is counted below it.
    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    /// What is counted now; `None` if that cannot be read.
    pub(crate) fn read_counts(&self) -> Option<KillCounts> {
        for _ in 0..READ_ATTEMPTS {
            let all = count(&self.file).ok()?;
            let beside = self.sibling_counts().ok()?;
            if count(&self.file).ok()? == all {
                return Some(KillCounts { all, siblings: beside });
            }
        }
        // It changes all the time: nothing can be said of the single groups.
        Some(KillCounts { all: count(&self.file).ok()?, siblings: None })
    }

    /// Takes what was counted before our own file was read as known.
    pub(crate) fn set_baseline(&mut self, census: KillCounts) {
        self.baseline = census;
    }

    /// Where the kills were since then.
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

/// The count of a group; `None` for one that has gone, or has no such file.
fn read(group: &Path, name: &OsStr) -> Option<u64> {
    fs::read_to_string(group.join(name)).ok().map(|text| kills(&text))
}

/// Decides where kills were. A group that came and went in between is not seen. Pure.
fn decide_origin(before: &KillCounts, now: &KillCounts) -> KillOrigin {
    let all = now.all.saturating_sub(before.all);
    if all == 0 {
        return KillOrigin::Others;
    }
    let (Some(then), Some(beside)) = (&before.siblings, &now.siblings) else { return KillOrigin::Unknown };
    let theirs: u64 =
        beside.iter().map(|(group, count)| count.saturating_sub(then.get(group).copied().unwrap_or(0))).sum();
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
        let beside = beside.iter().map(|(group, count)| (OsString::from(group), *count)).collect();
        KillCounts { all, siblings: Some(beside) }
    }

    #[test]
    fn what_others_have_not_counted_was_ours() {
        let check = |before: &KillCounts, now: &KillCounts, expected| {
            assert_eq!(decide_origin(before, now), expected, "{before:?} {now:?}");
        };
        let before = census(4, &[("a", 1), ("b", 0)]);
        check(&before, &before, KillOrigin::Others);
        check(&before, &census(5, &[("a", 1), ("b", 1)]), KillOrigin::Others);
        check(&before, &census(5, &[("a", 1), ("b", 0)]), KillOrigin::Own);
        check(&before, &census(6, &[("a", 2), ("b", 0)]), KillOrigin::Own);
        // A new one has counted all it has since.
        check(&before, &census(5, &[("a", 1), ("b", 0), ("c", 1)]), KillOrigin::Others);
        // One that has gone may have had it.
        check(&before, &census(5, &[("a", 1)]), KillOrigin::Unknown);
        check(&before, &census(5, &[("a", 2)]), KillOrigin::Others);
        let many = KillCounts { all: 5, siblings: None };
        check(&before, &many, KillOrigin::Unknown);
        check(&many, &census(6, &[]), KillOrigin::Unknown);
    }

    #[test]
    fn the_groups_beside_are_counted_and_our_own_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let write = |group: &str, kills: u64| {
            fs::create_dir_all(dir.path().join(group)).unwrap();
            fs::write(dir.path().join(group).join("memory.events"), format!("oom 1\noom_kill {kills}\n"))
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
        assert_eq!(above.kill_origin(&above.read_counts().unwrap()), KillOrigin::Own);
        for number in 0..MAX_SIBLINGS {
            write(&number.to_string(), 0);
        }
        assert_eq!(above.kill_origin(&above.read_counts().unwrap()), KillOrigin::Unknown);
    }
}
