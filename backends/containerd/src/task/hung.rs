//! A task whose main process has ended, and of whose end nobody tells: its shim hangs.
//!
//! ```text
//! main process ended ─► nobody told for shim_timeout ─► shim asked once more ─► it answers: that is the end
//!                                                              │ it does not, and containerd does
//!                                                              ▼
//!     a container that it serves runs, or it has taken note of the end ─► left alone, told, looked at again later
//!     else: the exit code is read from each dead process ─► all are put on record ─► the shim is killed
//! ```
//!
//! A shim is the parent of all containers of its pod: to kill it is to end them. So it is never killed while the main process of one of
//! them runs. Once none does it serves nobody, and what it hides is an end.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use switchyard_core::ErrorKind;
use switchyard_core::state::Exit;
use tonic::{Response, Status};

use super::TaskEntry;
use super::process::process_ended;
use crate::backend::Inner;
use crate::client::call;
use crate::health::Contact;
use crate::recover::shims::{ShimChild, ShimProcess};
use crate::recover::{ProcessExit, ProcessState};
use crate::steps::Step;

/// The tasks whose shims are known not to answer.
#[derive(Debug, Default)]
pub(crate) struct UnresponsiveShims {
    tasks: Mutex<BTreeSet<String>>,
}

impl UnresponsiveShims {
    fn tasks(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a task's shim does not answer, and tells of it once.
    pub(crate) fn note(&self, id: &str) {
        if self.tasks().insert(id.to_owned()) {
            tracing::warn!(
                task.id = id,
                "a shim does not answer: its containers run on, and it is left alone while one of them does"
            );
        }
    }

    /// Notes that it answers, or that nobody asks any more.
    pub(crate) fn clear(&self, id: &str) {
        if self.tasks().remove(id) {
            tracing::info!(task.id = id, "a shim that did not answer does, or has gone");
        }
    }

    /// The tasks, for people; `None` if there are none.
    pub(crate) fn summary(&self) -> Option<String> {
        let tasks = self.tasks();
        (!tasks.is_empty()).then(|| tasks.iter().cloned().collect::<Vec<_>>().join(", "))
    }
}

impl Inner {
    /// Calls a task's shim through containerd, for as long as a shim may take, and notes whether it answers.
    pub(crate) async fn call_with_shim_timeout<T>(
        &self,
        id: &str,
        what: &str,
        request: impl Future<Output = Result<Response<T>, Status>>,
    ) -> switchyard_core::Result<T> {
        let answer = call(what, self.settings.containerd.shim_timeout(), request).await;
        match &answer {
            Ok(_) => self.unresponsive_shims.clear(id),
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                // Where containerd hangs, nothing is known of the shim.
                if matches!(self.health.current(), Contact::Up { .. }) {
                    self.unresponsive_shims.note(id);
                }
            }
            Err(_) => {}
        }
        answer
    }

    /// Waits until a task's main process has ended and nobody has told of it for as long as a shim may take. For ever where the process
    /// cannot be seen. Cancel-safe.
    pub(super) async fn exit_overdue(&self, entry: &TaskEntry) {
        let seen = match entry.main_pidfd() {
            Some(main) => process_ended(main).await.is_ok(),
            None => false,
        };
        if !seen {
            std::future::pending().await
        }
        tokio::time::sleep(self.settings.containerd.shim_timeout()).await;
    }

    /// Sees to a task of whose end nobody tells. The end, if it is known now; else it may be told when its shim is gone.
    pub(super) async fn recover_missed_exit(
        &self,
        entry: &TaskEntry,
    ) -> switchyard_core::Result<Option<Exit>> {
        let id = entry.id.to_string();
        let limit = self.settings.containerd.shim_timeout();
        match tokio::time::timeout(limit, self.process_state(&id)).await {
            Ok(Ok(ProcessState::Stopped(end))) => return Ok(Some(self.exit_from_end(entry, end))),
            Ok(Ok(ProcessState::None)) => {
                return Ok(Some(Exit::lost(entry.not_before_start(SystemTime::now()))));
            }
            Ok(
                Ok(ProcessState::Created | ProcessState::Running { .. } | ProcessState::Unanswered { .. })
                | Err(_),
            )
            | Err(_) => {}
        }
        // Should it be containerd that hangs, nothing is known of the shim.
        if !matches!(self.health.query_now(&self.client).await, Contact::Up { .. }) {
            return Ok(None);
        }
        // A parent that takes note of a child's end may be slow, but does not hang.
        let shims = self.find_shims().await?;
        let code =
            |shim: &ShimProcess, task: &TaskEntry| shim.exit_code_of(i32::try_from(task.main_pid()?).ok()?);
        let Some(shim) =
            shims.iter().find(|shim| code(shim, entry).is_some() && !self.is_needed(shim, entry))
        else {
            self.unresponsive_shims.note(&id);
            return Ok(None);
        };
        // Nobody can tell of an end any more once the shim is gone, so all are put on record before.
        let unrecorded = |task: &Arc<TaskEntry>| task.id != entry.id && !task.is_exit_persisted();
        let others: Vec<_> = self.tasks().values().filter(|task| unrecorded(task)).cloned().collect();
        let all = std::iter::once(entry).chain(others.iter().map(AsRef::as_ref));
        for (task, code) in all.filter_map(|task| Some((task, code(shim, task)?))) {
            self.persist_exit(task, ProcessExit { code, at: Some(SystemTime::now()) }).await?;
        }
        if self.is_needed(shim, entry) {
            // It has gone on meanwhile.
            return Ok(entry.persisted_exit.get().cloned());
        }
        tracing::warn!(
            task.id = id,
            pid = shim.process.pid,
            "killing a shim that does not answer: all that it served has ended"
        );
        shim.kill()?;
        switchyard_steps::reach(Step::HungShimKilled);
        Ok(entry.persisted_exit.get().cloned())
    }

    /// Whether a shim serves a container that runs, beside a task that has ended.
    fn is_needed(&self, shim: &ShimProcess, entry: &TaskEntry) -> bool {
        let infra = self.sandbox(entry.sandbox).ok().and_then(|sandbox| sandbox.pid);
        serves(&shim.read_children(), &entry.cgroup_mark(), infra.and_then(|pid| i32::try_from(pid).ok()))
    }
}

/// Whether the shim of a task that has ended serves a container that runs, by its children. What is left of the task itself, whose cgroup
/// bears this mark, goes with the shim, and the process of a sandbox is worth nothing without one. Pure.
fn serves(children: &[ShimChild], mark: &str, infra: Option<i32>) -> bool {
    children.iter().any(|child| child.runs && !child.cgroup_text.contains(mark) && Some(child.pid) != infra)
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
        assert!(!serves(&[child(1, false, "aa"), child(3, false, "bb")], "aa", None));
    }

    #[test]
    fn a_silent_shim_is_told_until_it_answers() {
        let silent = UnresponsiveShims::default();
        assert_eq!(silent.summary(), None);
        silent.note("b");
        silent.note("a");
        silent.note("b");
        assert_eq!(silent.summary().as_deref(), Some("a, b"));
        silent.clear("b");
        silent.clear("c");
        assert_eq!(silent.summary().as_deref(), Some("a"));
    }
}
