//! Reads the usage, OOM kills and processes of cgroups, and removes cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use switchyard_core::stats::Usage;

use crate::error::{Error, Result};
use crate::files::{MAX_DEPTH, children, is_gone, is_unsupported, read_if_there, read_parsed};
use crate::group::Group;
use crate::hierarchy::{CgroupMode, Hierarchy};
use crate::kill_count::kills;
use crate::oom::OomWatch;
use crate::parse;
use crate::remove::{remove_trees, try_remove_one};
use crate::usage::{V1Dirs, v1, v2};

/// The v1 controllers in whose hierarchies processes are looked up, in this order; a runtime puts a task into
/// all of them.
const V1_PROCESS_CONTROLLERS: [&str; 7] = [
    "memory", "pids", "cpuacct", "cpu", "freezer", "devices", "cpuset",
];

/// The outcome of removing a cgroup that should be empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmptyRemoval {
    /// It is in no hierarchy any more.
    Removed,
    /// It has processes or children.
    InUse,
    /// It has neither, and the kernel reports it as busy, as it does shortly after a process exited.
    Busy,
}

/// Reads the cgroups of a node.
#[derive(Debug, Clone)]
pub struct Reader {
    hierarchy: Hierarchy,
}

impl Reader {
    /// A reader of this node's own hierarchies.
    ///
    /// # Errors
    /// As [`Hierarchy::detect`].
    pub fn detect() -> Result<Self> {
        Hierarchy::detect().map(Self::new)
    }

    /// A reader of these hierarchies.
    #[must_use]
    pub const fn new(hierarchy: Hierarchy) -> Self {
        Self { hierarchy }
    }

    /// The hierarchies that are read.
    #[must_use]
    pub const fn hierarchy(&self) -> &Hierarchy {
        &self.hierarchy
    }

    /// The usage of `group`; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::File`] if an existing file cannot be read.
    pub fn usage(&self, group: &Group) -> Result<Option<Usage>> {
        let at = SystemTime::now();
        let usage = match self.hierarchy.mode() {
            CgroupMode::V2 => match self.existing("", group) {
                Some(dir) => v2(&dir, at)?,
                None => return Ok(None),
            },
            CgroupMode::V1 => {
                let dir = |controller| self.existing(controller, group);
                let cpuacct = dir("cpuacct");
                let cpu = dir("cpu");
                let memory = dir("memory");
                let pids = dir("pids");
                let unified = self.hierarchy.unified(group).filter(|dir| dir.is_dir());
                let dirs = V1Dirs {
                    cpuacct: cpuacct.as_deref(),
                    cpu: cpu.as_deref(),
                    memory: memory.as_deref(),
                    pids: pids.as_deref(),
                    unified: unified.as_deref(),
                };
                v1(dirs, at)?
            }
        };
        // No values: the group was removed during the read, or never existed.
        let empty = usage.cpu.is_none() && usage.memory.is_none() && usage.pids.is_none();
        Ok(if empty && !self.hierarchy.exists(group) {
            None
        } else {
            Some(usage)
        })
    }

    /// Number of processes of `group` that the kernel has killed because it was out of memory; `None` if the
    /// group does not exist, or the kernel does not count them.
    ///
    /// # Errors
    /// [`Error::File`] if the file exists and cannot be read.
    pub fn oom_kills(&self, group: &Group) -> Result<Option<u64>> {
        match self.oom_file(group) {
            Some(path) => read_parsed(&path, kills),
            None => Ok(None),
        }
    }

    /// Starts to watch `group` for OOM kills; `None` if it does not exist.
    ///
    /// # Errors
    /// [`Error::File`] if its file exists and cannot be opened, read or subscribed to.
    pub fn watch_oom(&self, group: &Group) -> Result<Option<OomWatch>> {
        match self.oom_file(group) {
            Some(path) => OomWatch::open(&path, self.hierarchy.mode()),
            None => Ok(None),
        }
    }

    fn oom_file(&self, group: &Group) -> Option<PathBuf> {
        let dir = self.hierarchy.dir("memory", group)?;
        Some(dir.join(match self.hierarchy.mode() {
            CgroupMode::V1 => "memory.oom_control",
            CgroupMode::V2 => "memory.events",
        }))
    }

    /// The ids of the processes in `group` and its descendants, in ascending order; `None` if it does not
    /// exist.
    ///
    /// # Errors
    /// [`Error::File`] if an existing file cannot be read.
    pub fn procs(&self, group: &Group) -> Result<Option<Vec<u32>>> {
        let dir = match self.hierarchy.mode() {
            CgroupMode::V2 => self.existing("", group),
            CgroupMode::V1 => V1_PROCESS_CONTROLLERS
                .iter()
                .find_map(|name| self.existing(name, group)),
        };
        let Some(dir) = dir else { return Ok(None) };
        let mut pids = Vec::new();
        collect(&dir, MAX_DEPTH, &mut pids)?;
        pids.sort_unstable();
        pids.dedup();
        Ok(Some(pids))
    }

    /// Removes `group` and all its descendants from every hierarchy, the deepest first. Idempotent: succeeds
    /// if it does not exist. Blocks for up to a second while the kernel reports it as busy, as it does
    /// shortly after a process exited.
    ///
    /// # Errors
    /// [`Error::Busy`] if it still has processes then, [`Error::File`] for any other error of the kernel. The
    /// other hierarchies are tried after a failure too; the first failure is returned.
    pub fn remove(&self, group: &Group) -> Result<()> {
        remove_trees(self.hierarchy.dirs(group))
    }

    /// Removes `group` from every hierarchy if it has neither processes nor children in any. Idempotent. Tried once:
    /// for a busy one the caller pauses ([`busy_pauses`](crate::busy_pauses)) and calls again.
    ///
    /// # Errors
    /// [`Error::File`] for an error of the kernel.
    pub fn remove_empty(&self, group: &Group) -> Result<EmptyRemoval> {
        // All hierarchies are checked before the first removal, so that a group in use stays whole.
        for dir in self.hierarchy.dirs(group) {
            let processes = read_if_there(&dir.join("cgroup.procs"))?.unwrap_or_default();
            if !parse::pids(&processes).is_empty() || !children(&dir)?.is_empty() {
                return Ok(EmptyRemoval::InUse);
            }
        }
        for dir in self.hierarchy.dirs(group) {
            if !try_remove_one(&dir)? {
                return Ok(EmptyRemoval::Busy);
            }
        }
        Ok(EmptyRemoval::Removed)
    }

    pub(crate) fn existing(&self, controller: &str, group: &Group) -> Option<PathBuf> {
        self.hierarchy
            .dir(controller, group)
            .filter(|dir| dir.is_dir())
    }
}

/// Adds the processes of a group and of its descendants, `depth` levels deep, to `pids`.
fn collect(dir: &Path, depth: usize, pids: &mut Vec<u32>) -> Result<()> {
    let path = dir.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => pids.extend(parse::pids(&text)),
        // The file of a threaded group cannot be read: its processes are listed in the group that is the root
        // of the threaded subtree.
        Err(error) if is_gone(&error) || is_unsupported(&error) => {}
        Err(source) => return Err(Error::File { path, source }),
    }
    if depth > 0 {
        for child in children(dir)? {
            collect(&child, depth - 1, pids)?;
        }
    }
    Ok(())
}
