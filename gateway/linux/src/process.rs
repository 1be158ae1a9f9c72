//! Identifies processes unambiguously, determines whether they can be trusted, and signals no wrong one: a
//! process id alone may have been reused.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::signal::Signal;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, kill_process, pidfd_open, pidfd_send_signal};

/// A process by its id and start time. Process ids are reused, these pairs are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// The process id.
    pub pid: i32,
    /// The start time, in clock ticks since boot.
    pub started: u64,
}

/// A text that is not a [`ProcessId`].
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is not a process: expected its id and its start time")]
pub struct ParseProcessIdError(String);

/// The kernel's information about a process that can be read without accessing its memory, which may block
/// forever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The process.
    pub id: ProcessId,
    /// The process id of its parent.
    pub parent: i32,
    /// True if it has exited; a zombie has.
    pub ended: bool,
    /// The wait(2) status, if it has exited.
    pub status: Option<i32>,
}

// === impl Stat ===

impl Stat {
    /// The status of the process that has this id now.
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the text of a `/proc/<pid>/stat`. Pure.
    #[must_use]
    pub fn parse(pid: i32, text: &str) -> Option<Self> {
        let fields = stat_fields(text);
        // Fields 3, 4, 22 and 52 of proc(5).
        let ended = matches!(*fields.first()?, "Z" | "X" | "x");
        Some(Self {
            id: ProcessId {
                pid,
                started: fields.get(19)?.parse().ok()?,
            },
            parent: fields.get(1)?.parse().ok()?,
            ended,
            status: fields
                .get(49)
                .filter(|_| ended)
                .and_then(|status| status.parse().ok()),
        })
    }

    /// The exit code as in a shell, if it has exited.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        let status = self.status?;
        let signal = status & 0x7f;
        Some(if signal == 0 {
            (status >> 8) & 0xff
        } else {
            128 + signal
        })
    }
}

// === impl ProcessId ===

impl ProcessId {
    /// The process that has this id now, unless it has exited (a zombie has).
    #[must_use]
    pub fn of(pid: i32) -> Option<Self> {
        Stat::of(pid).filter(|stat| !stat.ended).map(|stat| stat.id)
    }

    /// Returns whether it still runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// Sends it a signal. Does nothing, without an error, if it has exited, whether or not its id has been
    /// reused.
    ///
    /// # Errors
    /// Those of the kernel, such as for lack of permissions.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(());
        };
        let signal = rustix::process::Signal::from_named_raw(signal as i32)
            .expect("a named signal of one library is one of the other");
        let sent = match pidfd_open(pid, PidfdFlags::empty()) {
            // Checked after opening the pidfd: the pidfd cannot refer to another process then.
            Ok(held) if self.is_alive() => pidfd_send_signal(&held, signal),
            // A kernel older than 5.3 has no pidfd: the process could exit and its id be reused in the moment
            // in between.
            Err(Errno::NOSYS) if self.is_alive() => kill_process(pid, signal),
            Ok(_) | Err(Errno::NOSYS | Errno::SRCH) => Ok(()),
            Err(fault) => Err(fault),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(fault) => Err(fault.into()),
        }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.started)
    }
}

impl FromStr for ProcessId {
    type Err = ParseProcessIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fail = || ParseProcessIdError(text.to_owned());
        let (pid, started) = text.trim().split_once(' ').ok_or_else(fail)?;
        match (pid.parse(), started.parse()) {
            (Ok(pid), Ok(started)) if pid > 0 => Ok(Self { pid, started }),
            _ => Err(fail()),
        }
    }
}

/// Returns whether the kernel lists the [`children`] of processes, which depends on its configuration.
#[must_use]
pub fn lists_children() -> bool {
    Path::new("/proc/thread-self/children").exists()
}

/// The process ids of the children of a process, of all its threads. None if it is gone, or the kernel does not list them. A
/// child may be missing while another one exits (proc(5)): only [`all`] has every process. Blocks on `/proc`, for a time that
/// does not depend on the number of other processes.
#[must_use]
pub fn children(pid: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|list| parse_children(&list))
        .collect()
}

/// The process ids in a `/proc/<pid>/task/<tid>/children`. Pure.
fn parse_children(list: &str) -> Vec<i32> {
    list.split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

/// All visible processes. Blocks on `/proc`, for a time that grows with their number.
#[must_use]
pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter_map(|entry| Stat::of(entry.file_name().to_str()?.parse().ok()?))
        .collect()
}

/// Returns whether the process with this id belongs to the root user of the node itself, like this one: all
/// its user ids are 0, it is in no child pid namespace, it has the same root directory, and it is in the same
/// mount namespace or may have every capability that this process may have. A container's process is thus not
/// trusted, whatever its command line or environment contains, and neither is a process of a user, not even
/// of a setuid root program.
///
/// The mount namespace alone does not decide: a unit with `PrivateTmp=` gives each daemon a new one, and shims
/// stay in that of the daemon that started them. A container that shares the node's pid namespace, and has
/// changed its root to a mount of the node's, has fewer capabilities, unless it is privileged, which is to be
/// root on the node.
///
/// This does not read the memory of the process. Check it before reading any: a process can make a reader of
/// its memory block forever.
#[must_use]
pub fn is_own_root(pid: i32) -> bool {
    let proc = PathBuf::from(format!("/proc/{pid}"));
    let status = |proc: &Path| fs::read_to_string(proc.join("status")).unwrap_or_default();
    let theirs = status(&proc);
    is_root_here(&theirs)
        && is_same(&proc.join("root"), Path::new("/"))
        && (is_same(&proc.join("ns/mnt"), Path::new("/proc/self/ns/mnt"))
            || has_capabilities_of(&theirs, &status(Path::new("/proc/self"))))
}

/// Returns whether a `/proc/<pid>/status` belongs to a root process in the pid namespace of `/proc`. Pure.
fn is_root_here(status: &str) -> bool {
    words(status, "Uid:") == ["0"; 4] && words(status, "NSpid:").len() == 1
}

/// Returns whether a bounding set includes that of another process, by their `/proc/<pid>/status`. Pure.
fn has_capabilities_of(status: &str, other: &str) -> bool {
    let bounding = |status| u64::from_str_radix(words(status, "CapBnd:").first()?, 16).ok();
    bounding(status)
        .zip(bounding(other))
        .is_some_and(|(theirs, needed)| theirs & needed == needed)
}

/// The words after a name in a `/proc/<pid>/status`.
fn words<'a>(status: &'a str, name: &str) -> Vec<&'a str> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.map(|line| line.split_whitespace().collect())
        .unwrap_or_default()
}

fn is_same(one: &Path, other: &Path) -> bool {
    let place = |path| fs::metadata(path).map(|data| (data.dev(), data.ino())).ok();
    place(one).is_some_and(|found| place(other) == Some(found))
}

/// The fields of a `stat` line of proc(5), from the third on: the second one, the name, may contain spaces
/// and parentheses.
#[must_use]
pub fn stat_fields(stat: &str) -> Vec<&str> {
    stat.rsplit_once(')')
        .map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect())
}

#[cfg(test)]
mod tests;
