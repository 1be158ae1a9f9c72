//! The process table: finds the processes that belong to a directory, and kills them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::eventually;

/// Directory in which containerd creates the sockets of its shims, independent of its state directory.
const SHIM_SOCKETS: &str = "/run/containerd/s/";

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its id.
    pub pid: i32,
    /// The id of its parent.
    pub parent: i32,
    /// Its start time in clock ticks since boot: with the id it identifies a process for good.
    pub started: u64,
    /// True if it is a zombie.
    pub zombie: bool,
    /// Its command line, words separated by blanks.
    pub command: String,
}

/// Every process of the machine.
///
/// # Panics
/// When `/proc` is not mounted.
#[must_use]
pub fn all() -> Vec<Process> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted");
    entries
        .flatten()
        .filter_map(|entry| find(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// The process of this id, if there is one.
#[must_use]
pub fn find(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything: the fields are counted from its end.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    Some(Process {
        pid,
        parent: fields.get(1)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
        zombie: fields
            .first()
            .is_some_and(|state| *state == "Z" || *state == "X"),
        command: String::from_utf8_lossy(&command)
            .replace('\0', " ")
            .trim_end()
            .to_owned(),
    })
}

/// Returns whether a signal has stopped all threads of a process.
#[must_use]
pub fn is_stopped(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        // A thread that has ended meanwhile does not run.
        let Ok(stat) = fs::read_to_string(thread.path().join("stat")) else {
            return true;
        };
        // The state follows the name, which may contain anything.
        stat.rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with(['T', 'Z']))
    })
}

/// Returns whether the main thread of a process is in the state D, in which it gets no signal.
#[must_use]
pub fn waits_in_kernel(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may contain anything.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('D'))
}

/// The processes that name `root` in their command line or environment, work or are rooted in it, or whose
/// root file system is an overlay of it, and all their descendants. This process and its ancestors are never
/// among them.
#[must_use]
pub fn belonging_to(root: &Path) -> Vec<Process> {
    belonging_to_if(root, |_| true)
}

/// The same, but only those that `wanted` accepts: of the others, only ancestors of these are looked at.
#[must_use]
pub fn belonging_to_if(root: &Path, wanted: impl Fn(&Process) -> bool) -> Vec<Process> {
    let all = all().into_iter().filter(|process| !process.zombie);
    let all: HashMap<i32, Process> = all.map(|process| (process.pid, process)).collect();
    let namespace = fs::read_link("/proc/self/ns/mnt").ok();
    let mut known: HashMap<i32, bool> = HashMap::new();
    let mut ancestor = Pid::this().as_raw();
    while ancestor > 0 && known.insert(ancestor, false).is_none() {
        ancestor = all.get(&ancestor).map_or(0, |process| process.parent);
    }
    let mut found = Vec::new();
    for process in all.values().filter(|process| wanted(process)) {
        let mut lineage = Vec::new();
        let mut next = Some(process);
        let belongs = loop {
            let Some(process) = next else { break false };
            if let Some(belongs) = known.get(&process.pid) {
                break *belongs;
            }
            lineage.push(process.pid);
            if refers(process, root, namespace.as_deref()) {
                break true;
            }
            next = all.get(&process.parent);
        };
        known.extend(lineage.into_iter().map(|pid| (pid, belongs)));
        if belongs {
            found.push(process.clone());
        }
    }
    found.sort_by_key(|process| process.pid);
    found
}

/// The process of `root` that runs this command, if one does: tests of other roots may run the same at the
/// same time.
#[must_use]
pub fn running(root: &Path, command: &str) -> Option<Process> {
    belonging_to(root)
        .into_iter()
        .find(|process| process.command == command)
}

/// Kills what belongs to `root`, again and again until nothing does (a managed child may be restarted
/// meanwhile), and removes the sockets that dead shims leave in `/run/containerd/s`. Returns what survived
/// ten seconds of it.
#[must_use]
pub fn clear(root: &Path) -> Vec<Process> {
    let mut sockets = HashSet::new();
    eventually(Duration::from_secs(10), || {
        let processes = belonging_to(root);
        for process in &processes {
            if process.command.contains("containerd-shim") {
                sockets.extend(shim_sockets(process.pid));
            }
        }
        for process in &processes {
            let _ = kill(Pid::from_raw(process.pid), Signal::SIGKILL);
        }
        processes.is_empty()
    });
    for socket in sockets {
        // The shim itself may have removed it.
        let _ = fs::remove_file(socket);
    }
    belonging_to(root)
}

fn refers(process: &Process, root: &Path, our_namespace: Option<&Path>) -> bool {
    let text = root.to_string_lossy();
    let proc = PathBuf::from(format!("/proc/{}", process.pid));
    if process.command.contains(text.as_ref()) {
        return true;
    }
    for link in ["cwd", "root", "exe"] {
        if fs::read_link(proc.join(link)).is_ok_and(|target| target.starts_with(root)) {
            return true;
        }
    }
    if fs::read(proc.join("environ"))
        .is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(text.as_ref()))
    {
        return true;
    }
    // In our own mount namespace every process sees the mounts of `root`; in one of its own, only a container
    // does.
    if fs::read_link(proc.join("ns/mnt")).ok().as_deref() == our_namespace {
        return false;
    }
    let table = fs::read_to_string(proc.join("mountinfo")).unwrap_or_default();
    table
        .lines()
        .any(|line| line.split(' ').nth(4) == Some("/") && line.contains(text.as_ref()))
}

fn shim_sockets(pid: i32) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let by_inode: HashMap<&str, &str> = table
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            Some((*fields.get(6)?, *fields.get(7)?))
        })
        .collect();
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    files
        .flatten()
        .filter_map(|file| fs::read_link(file.path()).ok())
        .filter_map(|target| {
            let inode = target
                .to_str()?
                .strip_prefix("socket:[")?
                .strip_suffix(']')?
                .to_owned();
            by_inode
                .get(inode.as_str())
                .filter(|path| path.starts_with(SHIM_SOCKETS))
                .map(PathBuf::from)
        })
        .collect()
}
