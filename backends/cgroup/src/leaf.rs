//! Leaf cgroups that a client creates for one task and removes itself: restored after a runtime has changed
//! or removed them, and processes moved into them.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::files::{MAX_DEPTH, children, is_gone, read_if_there};
use crate::group::Group;
use crate::hierarchy::CgroupMode;
use crate::parse;
use crate::reader::Reader;
use crate::remove::remove_trees;

/// Number of passes that move processes while some are left: a process that is forked during a pass starts in
/// its parent's old group.
const PASSES: u32 = 16;

impl Reader {
    /// The existing directories of `group`, of all hierarchies.
    #[must_use]
    pub fn existing_dirs(&self, group: &Group) -> Vec<PathBuf> {
        self.hierarchy()
            .dirs(group)
            .filter(|dir| dir.is_dir())
            .collect()
    }

    /// Removes the directories of `group` that are not in `kept`, and the children of those that are: a
    /// runtime has created these. Idempotent. Blocks as [`Reader::remove`] does.
    ///
    /// # Errors
    /// [`Error::Busy`] if there are still processes; [`Error::File`] for any other error of the kernel.
    pub fn keep_only(&self, group: &Group, kept: &[PathBuf]) -> Result<()> {
        let (theirs, made): (Vec<PathBuf>, Vec<PathBuf>) = self
            .hierarchy()
            .dirs(group)
            .partition(|dir| kept.contains(dir));
        for dir in theirs {
            remove_trees(children(&dir)?.into_iter())?;
        }
        remove_trees(made.into_iter())
    }

    /// Creates directories of a group again that a runtime has removed, unless the parent is removed too.
    /// Idempotent.
    ///
    /// # Errors
    /// [`Error::File`] for an error of the kernel.
    pub fn recreate(&self, kept: &[PathBuf]) -> Result<()> {
        for dir in kept {
            match fs::create_dir(dir) {
                Ok(()) => {}
                Err(fault) if fault.kind() == io::ErrorKind::AlreadyExists || is_gone(&fault) => {}
                Err(source) => {
                    return Err(Error::File {
                        path: dir.clone(),
                        source,
                    });
                }
            }
        }
        Ok(())
    }

    /// Moves all processes of `from`, where a runtime has put them, into `to` in the hierarchy of the cpuset
    /// controller; in other hierarchies they stay. `to` must have CPUs and memory nodes: missing ones are
    /// copied from the nearest ancestor. Does nothing on v2. Idempotent.
    ///
    /// # Errors
    /// [`Error::File`] if `to` does not exist or refuses a process; [`Error::Restless`] if processes are
    /// forked faster than they are moved.
    pub fn move_cpuset(&self, from: &Group, to: &Group) -> Result<()> {
        let Some((from_dir, to_dir)) = self.cpuset_dirs(from, to) else {
            return Ok(());
        };
        for file in ["cpuset.cpus", "cpuset.mems"] {
            // The kernel admits no process to a group without processors or memory nodes.
            inherit(&to_dir, file)?;
        }
        let listing = from_dir.join("cgroup.procs");
        let target = to_dir.join("cgroup.procs");
        // Each process is moved once: one that is exiting, or whose first thread has exited, cannot be moved
        // and stays listed until its end.
        let mut moved = BTreeSet::new();
        for _ in 0..PASSES {
            let mut pids = listed(&listing)?;
            pids.retain(|pid| moved.insert(*pid));
            if pids.is_empty() {
                return Ok(());
            }
            for pid in pids {
                move_if_listed(&listing, &target, pid)?;
            }
        }
        Err(Error::Restless {
            group: from.to_string(),
        })
    }

    /// Copies the CPUs and memory nodes of `to` to `from` in the hierarchy of the cpuset controller, so that
    /// a process that a runtime creates in `from` runs on them even before it is moved. Does nothing on v2.
    /// Idempotent.
    ///
    /// # Errors
    /// [`Error::File`] if one of the groups does not exist, or `from` cannot have the values of `to`.
    pub fn match_cpuset(&self, from: &Group, to: &Group) -> Result<()> {
        let Some((from_dir, to_dir)) = self.cpuset_dirs(from, to) else {
            return Ok(());
        };
        for file in ["cpuset.mems", "cpuset.cpus"] {
            let theirs = to_dir.join(file);
            let ours = from_dir.join(file);
            let text = |path: &Path| {
                fs::read_to_string(path).map_err(|source| Error::File {
                    path: path.to_owned(),
                    source,
                })
            };
            let wanted = text(&theirs)?;
            if text(&ours)?.trim() != wanted.trim() {
                fs::write(&ours, wanted.trim())
                    .map_err(|source| Error::File { path: ours, source })?;
            }
        }
        Ok(())
    }

    /// Sets the CPUs of `group` in the hierarchy of the cpuset controller. Idempotent.
    ///
    /// # Errors
    /// [`Error::File`] if it does not exist, or may not have these CPUs.
    pub fn set_cpus(&self, group: &Group, cpus: &str) -> Result<()> {
        let Some(dir) = self.hierarchy().dir("cpuset", group) else {
            return Ok(());
        };
        let path = dir.join("cpuset.cpus");
        fs::write(&path, cpus).map_err(|source| Error::File { path, source })
    }

    fn cpuset_dirs(&self, from: &Group, to: &Group) -> Option<(PathBuf, PathBuf)> {
        let dir = |group| self.hierarchy().dir("cpuset", group);
        match self.hierarchy().mode() {
            CgroupMode::V1 if from != to => Some((dir(from)?, dir(to)?)),
            CgroupMode::V1 | CgroupMode::V2 => None,
        }
    }
}

/// Copies the value of a cpuset file from the nearest ancestor that has one, unless it has a value already.
fn inherit(dir: &Path, file: &str) -> Result<()> {
    let path = dir.join(file);
    let has = |path: &Path| -> Result<Option<String>> {
        Ok(read_if_there(path)?
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty()))
    };
    if has(&path)?.is_some() {
        return Ok(());
    }
    for above in dir.ancestors().skip(1).take(MAX_DEPTH) {
        if let Some(text) = has(&above.join(file))? {
            // If a group in between has no value either, the kernel refuses this.
            return fs::write(&path, text).map_err(|source| Error::File { path, source });
        }
    }
    Ok(())
}

/// The processes in a `cgroup.procs` file; none if its group is gone.
fn listed(listing: &Path) -> Result<Vec<u32>> {
    Ok(parse::pids(&read_if_there(listing)?.unwrap_or_default()))
}

/// Moves a process to another group if it is still listed in its own: since the pid was read, the process may have
/// exited, and the pid may be that of a stranger.
fn move_if_listed(listing: &Path, target: &Path, pid: u32) -> Result<()> {
    if !listed(listing)?.contains(&pid) {
        return Ok(());
    }
    match fs::write(target, pid.to_string()) {
        Err(fault) if fault.raw_os_error().map(Errno::from_raw) == Some(Errno::ESRCH) => Ok(()),
        Err(source) => Err(Error::File {
            path: target.to_owned(),
            source,
        }),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hierarchy::Hierarchy;

    fn tree() -> (tempfile::TempDir, Reader) {
        let dir = tempfile::tempdir().unwrap();
        for name in ["memory", "cpu", "pids", "cpuset"] {
            fs::create_dir_all(dir.path().join(name).join("nomad")).unwrap();
        }
        let reader = Reader::new(Hierarchy::at(dir.path()).unwrap());
        (dir, reader)
    }

    fn group(path: &str) -> Group {
        Group::from_path(Path::new(path)).unwrap()
    }

    #[test]
    fn leaf_cgroup_is_restored_and_created_cgroups_removed() {
        let (dir, reader) = tree();
        let one = group("/nomad/a.web");
        let at = |name: &str| dir.path().join(name).join("nomad/a.web");
        fs::create_dir(at("memory")).unwrap();
        fs::create_dir(at("cpu")).unwrap();
        let kept = reader.existing_dirs(&one);
        assert_eq!(kept, [at("cpu"), at("memory")]);
        // As a runtime does: it creates further directories, and removes all.
        fs::create_dir(at("pids")).unwrap();
        fs::create_dir_all(at("cpu").join("inner/most")).unwrap();
        fs::remove_dir(at("memory")).unwrap();
        for _ in 0..2 {
            reader.recreate(&kept).unwrap();
            reader.keep_only(&one, &kept).unwrap();
            assert_eq!(reader.existing_dirs(&one), kept);
            assert_eq!(children(&at("cpu")).unwrap(), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn cgroup_with_removed_parent_is_not_recreated() {
        let (dir, reader) = tree();
        let one = group("/nomad/a.web");
        fs::create_dir(dir.path().join("memory/nomad/a.web")).unwrap();
        let kept = reader.existing_dirs(&one);
        fs::remove_dir_all(dir.path().join("memory/nomad")).unwrap();
        reader.recreate(&kept).unwrap();
        assert!(!dir.path().join("memory/nomad").exists());
    }

    #[test]
    fn exiting_process_does_not_block_the_move() {
        let (dir, reader) = tree();
        let from = dir.path().join("cpuset/nomad/a.web");
        let to = dir.path().join("cpuset/nomad/share");
        for at in [&from, &to] {
            fs::create_dir(at).unwrap();
            for file in ["cpuset.cpus", "cpuset.mems"] {
                fs::write(at.join(file), "0\n").unwrap();
            }
        }
        fs::write(from.join("cgroup.procs"), "7\n").unwrap();
        reader
            .move_cpuset(&group("/nomad/a.web"), &group("/nomad/share"))
            .unwrap();
        assert_eq!(fs::read_to_string(to.join("cgroup.procs")).unwrap(), "7");
    }

    #[test]
    fn process_that_has_left_the_group_is_not_moved() {
        let dir = tempfile::tempdir().unwrap();
        let [listing, target] = ["from", "to"].map(|name| dir.path().join(name));
        fs::write(&listing, "7\n").unwrap();
        move_if_listed(&listing, &target, 8).unwrap();
        assert!(!target.exists(), "the pid may be a stranger's");
        move_if_listed(&listing, &target, 7).unwrap();
        assert_eq!(fs::read_to_string(&target).unwrap(), "7");
        fs::remove_file(&listing).unwrap();
        fs::remove_file(&target).unwrap();
        move_if_listed(&listing, &target, 7).unwrap();
        assert!(!target.exists(), "the group is gone");
    }

    #[test]
    fn cpuset_is_copied_from_another_cgroup() {
        let (dir, reader) = tree();
        let ours = dir.path().join("cpuset/nomad/a.web");
        let theirs = dir.path().join("cpuset/nomad/share");
        for (at, cpus) in [(&ours, "0-3\n"), (&theirs, "1\n")] {
            fs::create_dir(at).unwrap();
            fs::write(at.join("cpuset.cpus"), cpus).unwrap();
            fs::write(at.join("cpuset.mems"), "0\n").unwrap();
        }
        for _ in 0..2 {
            reader
                .match_cpuset(&group("/nomad/a.web"), &group("/nomad/share"))
                .unwrap();
            assert_eq!(fs::read_to_string(ours.join("cpuset.cpus")).unwrap(), "1");
            assert_eq!(fs::read_to_string(ours.join("cpuset.mems")).unwrap(), "0\n");
        }
        assert!(
            reader
                .match_cpuset(&group("/nomad/a.web"), &group("/nomad/other"))
                .is_err()
        );
    }

    #[test]
    fn empty_cpuset_inherits_the_parents_cpus() {
        let (dir, _) = tree();
        let above = dir.path().join("cpuset");
        let below = dir.path().join("cpuset/nomad");
        fs::write(above.join("cpuset.mems"), "0\n").unwrap();
        fs::write(below.join("cpuset.mems"), "\n").unwrap();
        inherit(&below, "cpuset.mems").unwrap();
        assert_eq!(fs::read_to_string(below.join("cpuset.mems")).unwrap(), "0");
        fs::write(above.join("cpuset.mems"), "0-1\n").unwrap();
        inherit(&below, "cpuset.mems").unwrap();
        assert_eq!(fs::read_to_string(below.join("cpuset.mems")).unwrap(), "0");
    }
}
