//! Delays signals that a newly started main process would lose, until it can receive them.
//!
//! ```text
//! runtime waits ─► Start is answered ─► program is executed ─► program installs its signal handlers
//!      └── runc handles a SIGTERM itself, ──┘ └── the kernel drops a signal for which the first process ──┘
//!          and the container exits with 2         of a namespace has no handler
//! ```
//!
//! `Start` may be answered at any of these points; on a busy machine the program is often not executed by
//! then. A stop signal that is sent too early would end the container with an exit status that its program
//! did not return, or would be lost, and the stop would take its whole grace period. So the signal is delayed
//! while that is the case, but for a short time only: most programs install their handlers at once, and many
//! never do.

use std::time::Duration;

use containerd_client::services::v1 as api;
use switchyard_core::id::TaskId;
use switchyard_core::spec::Signal;
use switchyard_core::{ErrorKind, Result};
use tokio::time::Instant;

use super::process::Sent;
use super::{LifecycleEvent, TaskEntry};
use crate::client::ignore_not_found;
use crate::task::Tasks;

/// Limit after its start for a process to install its signal handlers. The start of an interpreter on a busy
/// machine takes part of that.
const STARTUP_GRACE: Duration = Duration::from_secs(2);
/// The interval at which the process is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The name of runc's init in a container, until it executes the container's program, which has a name of its
/// own.
const RUNC_INIT: &str = "runc:[2:INIT]";

impl Tasks {
    /// Sends a signal to a task. A signal that a newly started task would lose is delayed until the task can
    /// receive it, for a bounded time.
    pub(crate) async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()> {
        let Ok(entry) = self.table.get(id) else {
            return Ok(());
        };
        if signal == Signal::KILL {
            entry.apply(LifecycleEvent::Killed);
        }
        entry.wait_signalable(signal).await;
        // Without a process namespace of its own a task's children outlive its main process.
        let all = signal == Signal::KILL && entry.record().shares_pid;
        if !all && entry.signal_process(signal) == Sent::Done {
            return Ok(());
        }
        let request = api::KillRequest {
            container_id: id.to_string(),
            exec_id: String::new(),
            signal: u32::from(signal.number()),
            all,
        };
        let what = format!("signal task {id}");
        let asked = self
            .shims
            .call_with_shim_timeout(&id.to_string(), &what, self.client.tasks().kill(request))
            .await;
        match ignore_not_found(asked) {
            Err(error) if signal == Signal::KILL && error.kind() == ErrorKind::DeadlineExceeded => {
                tracing::warn!(task = %id, error = error.report(), "a shim does not deliver a SIGKILL: its task is killed without it");
                self.kill_without_shim(&entry).await
            }
            asked => asked,
        }
    }

    /// Kills the main process of a task and all others in its cgroup, which a shim that hangs does not do.
    async fn kill_without_shim(&self, entry: &TaskEntry) -> Result<()> {
        // Without a handle of the main process its cgroup has it all the same.
        let _ = entry.signal_process(Signal::KILL);
        self.task_cgroups.kill(entry).await
    }
}

impl TaskEntry {
    /// Waits until the main process would receive a signal, if it was started within `STARTUP_GRACE`.
    /// Cancel-safe.
    pub(super) async fn wait_signalable(&self, signal: Signal) {
        let Some(known) = self.known_start() else {
            return;
        };
        let limit = known.since + STARTUP_GRACE;
        while Instant::now() < limit && self.would_lose(signal) {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns whether its main process, if a handle is held and it runs, would lose a signal now.
    fn would_lose(&self, signal: Signal) -> bool {
        let Some(process) = self.process() else {
            return false;
        };
        // Checked last: if the process still runs, the status that was read is its own.
        process
            .status()
            .is_some_and(|status| loses(&status, signal))
            && process.runs()
    }
}

/// Returns whether a process loses a signal from outside its namespace, by its `/proc/<pid>/status`. Pure.
fn loses(status: &str, signal: Signal) -> bool {
    // SIGKILL, SIGCONT and SIGSTOP take effect whatever the process has set up.
    if [9, 18, 19].contains(&signal.number()) {
        return false;
    }
    let field = |name: &str| {
        status
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .map(str::trim)
    };
    if field("Name:") == Some(RUNC_INIT) {
        return true;
    }
    let first = field("NSpid:").is_some_and(|pids| {
        let mut pids = pids.split_ascii_whitespace();
        // The first pid is that of the host's namespace, and pid 1 there is no container.
        pids.next().is_some() && pids.next_back() == Some("1")
    });
    let set = |name| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok());
    // A blocked signal stays pending, and an ignored one is ignored on purpose.
    let known = ["SigCgt:", "SigBlk:", "SigIgn:"].map(set);
    let bit = 1 << (signal.number() - 1);
    first
        && known
            .iter()
            .all(|mask| mask.is_some_and(|mask| mask & bit == 0))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// A status with these fields.
    fn status(name: &str, pids: &str, masks: [&str; 3]) -> String {
        let [blocked, ignored, caught] = masks;
        format!(
            "Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nNSpid:\t{pids}\nSigPnd:\t0000000000000000\n\
             SigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\nThreads:\t1\n"
        )
    }

    const NONE: &str = "0000000000000000";
    const ALL: &str = "fffffffd7fc1feff";
    const TERM: &str = "0000000000004000";

    #[track_caller]
    fn check(text: &str, signal: Signal, lost: bool) {
        assert_eq!(loses(text, signal), lost, "{signal:?} to\n{text}");
    }

    #[test]
    fn runc_loses_a_signal_until_it_is_the_program() {
        for pids in ["4711\t1", "4711\t23", "4711"] {
            check(
                &status(RUNC_INIT, pids, [NONE, NONE, ALL]),
                Signal::TERM,
                true,
            );
            check(
                &status("server", pids, [NONE, NONE, ALL]),
                Signal::TERM,
                false,
            );
        }
    }

    #[test]
    fn the_first_process_of_a_namespace_loses_what_it_does_not_listen_to() {
        check(
            &status("sh", "4711\t1", [NONE, NONE, NONE]),
            Signal::TERM,
            true,
        );
        check(
            &status("sh", "4711\t12\t1", [NONE, NONE, NONE]),
            Signal::TERM,
            true,
        );
        check(
            &status("sh", "4711\t1", [NONE, NONE, TERM]),
            Signal::TERM,
            false,
        );
        check(
            &status("tini", "4711\t1", [TERM, NONE, NONE]),
            Signal::TERM,
            false,
        );
        check(
            &status("nohup", "4711\t1", [NONE, TERM, NONE]),
            Signal::TERM,
            false,
        );
        let user1 = Signal::new(10).unwrap();
        let last = Signal::new(64).unwrap();
        check(&status("sh", "4711\t1", [NONE, NONE, TERM]), user1, true);
        check(
            &status("sh", "4711\t1", [NONE, NONE, "8000000000000000"]),
            last,
            false,
        );
        check(
            &status("sh", "4711\t1", [NONE, NONE, "7fffffffffffffff"]),
            last,
            true,
        );
    }

    #[test]
    fn any_other_process_is_ended_by_what_it_does_not_listen_to() {
        for pids in ["4711\t23", "4711", "1"] {
            check(&status("sh", pids, [NONE, NONE, NONE]), Signal::TERM, false);
        }
    }

    #[test]
    fn what_the_kernel_obeys_is_not_lost() {
        for signal in [
            Signal::KILL,
            Signal::new(18).unwrap(),
            Signal::new(19).unwrap(),
        ] {
            check(
                &status(RUNC_INIT, "4711\t1", [NONE, NONE, ALL]),
                signal,
                false,
            );
        }
    }

    #[test]
    fn a_status_that_tells_nothing_holds_up_no_signal() {
        check("", Signal::TERM, false);
        check(
            "Name:\tsh\nNSpid:\t4711\t1\nSigCgt:\tnothing\n",
            Signal::TERM,
            false,
        );
    }

    #[test]
    fn the_kernel_tells_what_a_process_listens_to() {
        let shell = |script| {
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let seen = |child: &mut Child| {
            // The script prints a word once it has set its traps, and then waits for the end of its input.
            std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 3]).unwrap();
            let text = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
            drop(child.stdin.take());
            child.wait().unwrap();
            // As if it were the first process of a namespace.
            text.lines()
                .map(|line| {
                    if line.starts_with("NSpid:") {
                        "NSpid:\t4711\t1"
                    } else {
                        line
                    }
                })
                .collect::<Vec<_>>()
                .join("\n")
        };
        check(
            &seen(&mut shell("trap : TERM; echo on; read -r word")),
            Signal::TERM,
            false,
        );
        check(
            &seen(&mut shell("trap '' TERM; echo on; read -r word")),
            Signal::TERM,
            false,
        );
        check(
            &seen(&mut shell("echo on; read -r word")),
            Signal::TERM,
            true,
        );
    }
}
