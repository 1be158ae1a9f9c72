//! Tasks whose main process has exited, and whose exit is not observed because their shim hangs.
//!
//! ```text
//! main process exits ─► no exit within shim_timeout ─► shim queried again ─► it answers: that is the exit
//!                                                             │ it does not answer, but containerd does
//!                                                             ▼
//!     a container of the shim runs, or the process was reaped ─► shim left alone, logged, checked later
//!     else: exit status read from each zombie ─► all of them persisted ─► shim killed, unless it has
//!           started another process meanwhile
//! ```
//!
//! A shim is the parent of all containers of its pod: killing it ends them. So it is never killed while the
//! main process of one of them runs. Once none runs, it serves no container and only withholds an exit.

use std::sync::Arc;
use std::time::SystemTime;

use switchyard_core::state::Exit;

use super::TaskEntry;
use super::process::process_ended;
use crate::base::crash_points::CrashPoint;
use crate::base::fs::blocking;
use crate::client::contact::Contact;
use crate::client::process_state::{ProcessExit, ProcessState};
use crate::shims::processes::{ShimChild, ShimProcess};
use crate::task::exit::Exits;

impl Exits {
    /// Returns once a task's main process has exited and its exit was not observed within the shim timeout.
    /// Never returns if the process is not visible. Cancel-safe.
    pub(super) async fn exit_overdue(&self, entry: &TaskEntry) {
        let seen = match entry.main_pidfd() {
            Some(main) => process_ended(main).await.is_ok(),
            None => false,
        };
        if !seen {
            std::future::pending().await
        }
        tokio::time::sleep(self.context.settings().containerd.shim_timeout()).await;
    }

    /// Observes an exit that the shim of its task does not report to containerd. Returns `None` if it cannot:
    /// the exit may be observed once the shim is gone.
    pub(super) async fn observe_overdue_exit(
        &self,
        entry: &TaskEntry,
    ) -> switchyard_core::Result<Option<Exit>> {
        let id = entry.id.to_string();
        let limit = self.context.settings().containerd.shim_timeout();
        match tokio::time::timeout(limit, self.client.process_state(&id)).await {
            Ok(Ok(ProcessState::Stopped(end))) => {
                return Ok(Some(self.exit_of_process(entry, end).await));
            }
            Ok(Ok(ProcessState::None)) => {
                return Ok(Some(Exit::lost(entry.not_before_start(SystemTime::now()))));
            }
            Ok(
                Ok(
                    ProcessState::Created
                    | ProcessState::Running { .. }
                    | ProcessState::Unanswered { .. },
                )
                | Err(_),
            )
            | Err(_) => {}
        }
        // If containerd itself hangs, nothing is known of the shim.
        if !matches!(
            self.health.query_now(&self.client).await,
            Contact::Up { .. }
        ) {
            return Ok(None);
        }
        // A shim that has reaped its child may be slow, but does not hang: only one whose child is a zombie
        // is killed.
        let shims = self.shims.find_shims().await?;
        let code = |shim: &ShimProcess, task: &TaskEntry| {
            shim.exit_code_of(i32::try_from(task.main_pid()?).ok()?)
        };
        let Some(shim) = shims
            .into_iter()
            .find(|shim| code(shim, entry).is_some() && !self.is_needed(shim, entry))
        else {
            self.shims.unresponsive.note(&id);
            return Ok(None);
        };
        // The exit statuses are lost with the shim, so all of them are persisted before it is killed.
        let unpersisted =
            |task: &Arc<TaskEntry>| task.id != entry.id && task.persisted_exit().is_none();
        let others: Vec<_> = self
            .table
            .lock()
            .values()
            .filter(|task| unpersisted(task))
            .cloned()
            .collect();
        let all = std::iter::once(entry).chain(others.iter().map(AsRef::as_ref));
        for (task, code) in all.filter_map(|task| Some((task, code(&shim, task)?))) {
            let process = ProcessExit {
                code,
                at: Some(SystemTime::now()),
            };
            let exit = self.exit_of_process(task, process).await;
            self.persist_exit(task, exit).await?;
        }
        self.kill_unused_shim(shim, entry).await?;
        Ok(entry.persisted_exit())
    }

    /// Kills the shim of a task that has exited, unless it works again meanwhile: persisting exits takes as long as
    /// containerd does, and the shim may have created a container since it was scanned.
    async fn kill_unused_shim(
        &self,
        shim: ShimProcess,
        entry: &TaskEntry,
    ) -> switchyard_core::Result<()> {
        // Nothing is created in the pod between the check and the kill. Who has the lock for long waits for the shim, and
        // so for this: a creation is repeated when its shim is gone.
        let limit = self.context.settings().containerd.shim_timeout();
        let _pod = tokio::time::timeout(limit, self.lock_pod(entry)).await.ok();
        if self.is_needed(&shim, entry) {
            return Ok(());
        }
        let pid = shim.process.pid;
        let killed = blocking(move || {
            if shim.has_started_since_scan() {
                return Ok(false);
            }
            shim.kill().map(|()| true)
        });
        if killed.await? {
            switchyard_crash_points::reach(CrashPoint::HungShimKilled);
            tracing::warn!(
                task = %entry.id,
                pid,
                "killed a shim that did not answer: all its containers have exited"
            );
        }
        Ok(())
    }

    /// Returns whether a shim serves a running container besides a task that has exited.
    fn is_needed(&self, shim: &ShimProcess, entry: &TaskEntry) -> bool {
        let infra = self
            .sandboxes
            .table
            .get(entry.sandbox)
            .ok()
            .and_then(|sandbox| sandbox.infra_pid());
        serves(
            &shim.read_children(),
            &entry.cgroup_mark(),
            infra.and_then(|pid| i32::try_from(pid).ok()),
        )
    }
}

/// Returns whether the shim of a task that has exited serves a running container, judged by its children.
/// Other processes of the task itself, whose cgroup path contains `mark`, end with the shim, and the infra
/// process of a sandbox is of no use without a shim: neither counts. Pure.
fn serves(children: &[ShimChild], mark: &str, infra: Option<i32>) -> bool {
    children
        .iter()
        .any(|child| child.runs && !child.cgroup_text.contains(mark) && Some(child.pid) != infra)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shim_serves_somebody_while_a_process_of_another_container_runs() {
        let child = |pid, runs, id: &str| ShimChild {
            pid,
            runs,
            cgroup_text: format!("4:memory:/pods/{id}\n0::/\n"),
        };
        let own = [child(1, false, "aa"), child(2, true, "aa")];
        assert!(!serves(&own, "aa", None));
        assert!(!serves(&[], "aa", None));
        let other = [child(1, false, "aa"), child(3, true, "bb")];
        assert!(serves(&other, "aa", None));
        assert!(!serves(&other, "aa", Some(3)), "the process of the sandbox");
        assert!(!serves(
            &[child(1, false, "aa"), child(3, false, "bb")],
            "aa",
            None
        ));
    }
}
