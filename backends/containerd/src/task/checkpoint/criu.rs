//! Kills the processes that make an abandoned checkpoint: the runtime that the shim has started for it, and
//! the criu that the runtime has started.
//!
//! These are descendants of the task's shim that are the node's own root processes
//! ([`switchyard_linux::process::is_own_root`]), and that name the checkpoint's directory in their command line or
//! have a file in it open, and all descendants of these. A runtime whose criu has exited exits too, and so
//! the shim can answer again. When criu dies, the kernel lets the processes of the task continue; a process
//! that criu was just inspecting may end.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use switchyard_core::{Error, Result};
use switchyard_linux::process::{ProcessId, Stat};

use crate::base::pace::Pace;

/// Limit for them to exit after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// The shortest pause between two scans of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Kills the processes below a shim that make the checkpoint in this directory, until there are none.
/// Idempotent. Blocks for 5 s at most.
///
/// # Errors
/// `Internal` if one cannot be signalled; `DeadlineExceeded` if one does not exit.
pub(super) fn end_dump(shim: i32, dir: &Path) -> Result<()> {
    let until = Instant::now() + KILL_TIMEOUT;
    let mut pace = Pace::default();
    loop {
        let began = Instant::now();
        let found = dumping(&switchyard_linux::process::all(), shim, |process| {
            concerns(process, dir)
        });
        pace.ran(began.elapsed(), Instant::now());
        if found.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(Error::deadline(format!(
                "processes {found:?}, which make a checkpoint, have not exited after SIGKILL"
            )));
        }
        for process in found {
            tracing::warn!(pid = process.pid, dir = %dir.display(), "killing a process that makes a checkpoint and does not finish");
            process.signal(Signal::SIGKILL).map_err(|fault| {
                Error::internal(format!("send SIGKILL to process {}", process.pid))
                    .with_source(fault)
            })?;
        }
        let now = Instant::now();
        let pause = POLL_INTERVAL.max(pace.wait(now));
        std::thread::sleep(pause.min(until.saturating_duration_since(now)));
    }
}

/// The descendants of a shim that concern a checkpoint, and all their descendants. Pure but for `concerns`.
fn dumping(all: &[Stat], shim: i32, concerns: impl Fn(ProcessId) -> bool) -> Vec<ProcessId> {
    let below = |roots: BTreeSet<i32>| {
        let mut pids = roots;
        loop {
            let before = pids.len();
            pids.extend(
                all.iter()
                    .filter(|stat| pids.contains(&stat.parent))
                    .map(|stat| stat.id.pid)
                    .collect::<Vec<_>>(),
            );
            if pids.len() == before {
                return pids;
            }
        }
    };
    let in_reach = below(BTreeSet::from([shim]));
    let alive = |stat: &&Stat| !stat.ended && stat.id.pid != shim;
    let first = all
        .iter()
        .filter(alive)
        .filter(|stat| in_reach.contains(&stat.id.pid) && concerns(stat.id));
    let doomed = below(first.map(|stat| stat.id.pid).collect());
    all.iter()
        .filter(alive)
        .filter(|stat| doomed.contains(&stat.id.pid))
        .map(|stat| stat.id)
        .collect()
}

/// Returns whether one of the node's own root processes names this directory, or a path in it, in its command
/// line, or has one open.
fn concerns(process: ProcessId, dir: &Path) -> bool {
    let ours = process.pid.cast_unsigned() == std::process::id();
    if ours || !switchyard_linux::process::is_own_root(process.pid) {
        return false;
    }
    let proc = PathBuf::from(format!("/proc/{}", process.pid));
    let command = fs::read(proc.join("cmdline")).unwrap_or_default();
    let named = command
        .split(|byte| *byte == 0)
        .any(|word| Path::new(OsStr::from_bytes(word)).starts_with(dir));
    let open = || {
        let files = fs::read_dir(proc.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        files
            .filter_map(|file| fs::read_link(file.path()).ok())
            .any(|file| file.starts_with(dir))
    };
    // Checked last: if the process is alive, everything that was read is its own.
    (named || open()) && process.is_alive()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn stat(pid: i32, parent: i32) -> Stat {
        Stat {
            id: ProcessId { pid, started: 1 },
            parent,
            ended: false,
            status: None,
        }
    }

    #[test]
    fn what_a_dump_has_started_goes_with_it_and_nothing_else_does() {
        // A shim with a container, a runtime with criu and its child, and a criu whose runtime has exited.
        let all = [
            stat(10, 1),
            stat(11, 10),
            stat(12, 11),
            stat(20, 10),
            stat(21, 20),
            stat(22, 21),
            stat(30, 10),
            stat(40, 1),
        ];
        let found = |concerned: &[i32]| {
            let found = dumping(&all, 10, |process| concerned.contains(&process.pid));
            found.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(found(&[20, 30]), [20, 21, 22, 30]);
        assert!(
            found(&[10, 40]).is_empty(),
            "the shim itself, and what is not below it"
        );
        assert!(found(&[]).is_empty());
    }

    #[test]
    fn one_that_has_a_file_of_the_checkpoint_open_or_in_its_command_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let shim = i32::try_from(std::process::id()).unwrap();
        let mine = dir.path().join("checkpoint");
        fs::create_dir(&mine).unwrap();
        fs::write(dir.path().join("checkpoints"), "").unwrap();
        let image = mine.join("image").display().to_string();
        let sleep = |arguments: &[&str]| {
            let mut command = Command::new("sh");
            command
                .args(["-c", "sleep 1000 & wait"])
                .args(arguments)
                .spawn()
                .unwrap()
        };
        let mut named = sleep(&["--image-path", &image]);
        let mut other = sleep(&[&dir.path().join("checkpoints").display().to_string()]);
        let log = fs::File::create(mine.join("dump.log")).unwrap();
        let mut open = Command::new("sleep")
            .arg("1000")
            .stdout(log)
            .spawn()
            .unwrap();
        end_dump(shim, &mine).unwrap();
        assert_eq!(named.wait().unwrap().code(), None);
        assert_eq!(open.wait().unwrap().code(), None);
        assert!(other.try_wait().unwrap().is_none());
        let below = dumping(&switchyard_linux::process::all(), shim, |process| {
            process.pid.cast_unsigned() == other.id()
        });
        for process in below {
            process.signal(Signal::SIGKILL).unwrap();
        }
        other.wait().unwrap();
    }
}
