//! The processes of shims as `/proc` shows them: which there are, whom they serve, and how they are
//! terminated.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use switchyard_cgroup::Group;
use switchyard_core::{Error, Result};
use switchyard_linux::process::{ProcessId, Stat};

use crate::base::container_id::ContainerId;

/// Limit for a shim to exit after SIGTERM.
const SHIM_EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// A shim that serves our containerd and namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShimProcess {
    pub(crate) process: ProcessId,
    /// The container that it was started for.
    pub(crate) id: ContainerId,
    /// Its children: main processes of containers, and processes in them that outlived their parents.
    pub(crate) children: Vec<ProcessId>,
    /// Its bundle has been deleted.
    pub(crate) bundle_deleted: bool,
}

/// A child of a shim: the main process of a container or an exec, or a process that outlived its parent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShimChild {
    pub(crate) pid: i32,
    /// It has not exited.
    pub(crate) runs: bool,
    /// The content of its `/proc/<pid>/cgroup`, which contains the id of its container.
    pub(crate) cgroup_text: String,
}

/// A process of the node's own root user ([`switchyard_linux::process::is_own_root`]), with its command line.
/// Command lines of users' and of containers' processes are not believed: any of them can call itself a
/// shim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootProcess {
    pub(crate) process: ProcessId,
    pub(crate) command: Vec<String>,
    /// Its working directory has been deleted.
    pub(crate) cwd_deleted: bool,
}

// === impl ShimProcess ===

impl ShimProcess {
    /// The current state of its children; those that are gone are left out. Blocks briefly, for reads of
    /// `/proc`.
    pub(crate) fn read_children(&self) -> Vec<ShimChild> {
        let read = |child: &ProcessId| {
            let stat = Stat::of(child.pid).filter(|stat| stat.id == *child)?;
            let cgroup_text = fs::read_to_string(format!("/proc/{}/cgroup", child.pid)).ok()?;
            Some(ShimChild {
                pid: child.pid,
                runs: !stat.ended,
                cgroup_text,
            })
        };
        self.children.iter().filter_map(read).collect()
    }

    /// The exit code of a child that has exited and that the shim has not reaped.
    pub(crate) fn exit_code_of(&self, child: i32) -> Option<i32> {
        Stat::of(child)
            .filter(|stat| stat.parent == self.process.pid)?
            .code()
    }

    /// Returns whether the shim runs and has started a process since it was scanned: then it serves something
    /// that [`ShimProcess::children`] do not show. Blocks, for reads of `/proc`.
    pub(crate) fn has_started_since_scan(&self) -> bool {
        let started =
            |stat: &Stat| stat.parent == self.process.pid && !self.children.contains(&stat.id);
        // Checked last: if the pid still belongs to the shim, so did the children that were listed.
        switchyard_linux::process::all().iter().any(started) && self.process.is_alive()
    }

    /// Kills the shim but not its children. Does nothing if the shim is gone.
    pub(crate) fn kill(&self) -> Result<()> {
        signal(self.process, Signal::SIGKILL)
    }
}

/// The shims among `root_processes` that serve this containerd and namespace, with their children among
/// `all`. Pure.
pub(crate) fn own_shims(
    all: &[Stat],
    root_processes: &[RootProcess],
    address: &Path,
    namespace: &str,
) -> Vec<ShimProcess> {
    let mut children: BTreeMap<i32, Vec<ProcessId>> = BTreeMap::new();
    for stat in all {
        children.entry(stat.parent).or_default().push(stat.id);
    }
    root_processes
        .iter()
        .filter(|root| is_shim_of(root, address, namespace) && !is_helper(root))
        .filter_map(|root| {
            Some(ShimProcess {
                process: root.process,
                id: flag(root, "-id")?.parse().ok()?,
                children: children.get(&root.process.pid).cloned().unwrap_or_default(),
                bundle_deleted: root.cwd_deleted,
            })
        })
        .collect()
}

/// Returns whether a process is a shim, or a helper of one, that works for this containerd and namespace.
/// Pure.
pub(crate) fn is_shim_of(root: &RootProcess, address: &Path, namespace: &str) -> bool {
    let program = root.command.first().map(PathBuf::from).unwrap_or_default();
    program
        .file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("containerd-shim"))
        && flag(root, "-address").is_some_and(|found| Path::new(&found) == address)
        && flag(root, "-namespace").as_deref() == Some(namespace)
}

/// Returns whether a shim process is a helper that containerd runs to start a shim or to clean up after a
/// dead one: the last argument is that verb, and the process exits soon. Pure.
pub(crate) fn is_helper(root: &RootProcess) -> bool {
    root.command
        .last()
        .is_some_and(|last| matches!(last.as_str(), "start" | "delete"))
}

/// The argument after the flag `name` on the command line of a process. Pure.
pub(crate) fn flag(root: &RootProcess, name: &str) -> Option<String> {
    let mut words = root.command.iter();
    words.find(|word| *word == name)?;
    words.next().cloned()
}

/// All processes, and the command lines of those whose command line is believed. Blocks, for reads of
/// `/proc`.
pub(crate) fn scan_processes() -> (Vec<Stat>, Vec<RootProcess>) {
    let all = switchyard_linux::process::all();
    let root_processes = all
        .iter()
        .filter_map(|stat| read_root_process(stat.id))
        .collect();
    (all, root_processes)
}

/// The command line of a process; `None` if it is not a process of the node's own root user, or is gone.
pub(crate) fn read_root_process(process: ProcessId) -> Option<RootProcess> {
    if !switchyard_linux::process::is_own_root(process.pid) {
        return None;
    }
    let proc = PathBuf::from(format!("/proc/{}", process.pid));
    let command = fs::read(proc.join("cmdline")).ok()?;
    let command = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    // The target of the link ends in ` (deleted)` then, but so may the name of a directory. The link count is
    // reliable: a deleted directory has none.
    let cwd_deleted = fs::metadata(proc.join("cwd")).is_ok_and(|dir| dir.nlink() == 0);
    // Checked last: if the pid still belongs to the same process, so did all that was read above.
    process.is_alive().then_some(RootProcess {
        process,
        command,
        cwd_deleted,
    })
}

/// Terminates a shim and its children. Returns the cgroups of the children.
pub(crate) fn terminate(shim: &ShimProcess) -> Result<HashSet<Group>> {
    if shim.has_started_since_scan() {
        return Err(Error::unavailable(format!(
            "process {}, an orphan shim, has started another process since it was scanned",
            shim.process.pid
        )));
    }
    let groups: HashSet<Group> = shim
        .children
        .iter()
        .flat_map(|child| cgroups_of(child.pid, &shim.id))
        .collect();
    for child in &shim.children {
        signal(*child, Signal::SIGKILL)?;
    }
    signal(shim.process, Signal::SIGTERM)?;
    let deadline = Instant::now() + SHIM_EXIT_TIMEOUT;
    while shim.process.is_alive() {
        if Instant::now() > deadline {
            signal(shim.process, Signal::SIGKILL)?;
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(groups)
}

/// The cgroups of a process that have this id in their names.
fn cgroups_of(pid: i32, id: &str) -> Vec<Group> {
    parse_cgroups(
        &fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default(),
        id,
    )
}

/// The same, from the content of a `/proc/<pid>/cgroup`. Of nested cgroups with the id in their names only
/// the outermost: those that a container creates inside its own are removed together with it. Pure.
fn parse_cgroups(text: &str, id: &str) -> Vec<Group> {
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths
        .filter_map(|path| {
            let has_id = |path: &&Path| {
                path.file_name()
                    .is_some_and(|name| name.to_string_lossy().contains(id))
            };
            Path::new(path).ancestors().filter(has_id).last()
        })
        .filter_map(|path| Group::from_path(path).ok())
        .collect()
}

fn signal(process: ProcessId, signal: Signal) -> Result<()> {
    let fail = |fault| {
        Error::internal(format!("send {signal} to process {}", process.pid)).with_source(fault)
    };
    process.signal(signal).map_err(fail)
}

#[cfg(test)]
mod tests;
