//! Predecessor calls: calls that a killed predecessor left running in containerd. The daemon waits for them
//! before it touches their containers.
//!
//! The logkeeper holds the connection of the predecessor open, so that containerd carries on with the calls.
//! Which containers they may concern is known from what the predecessor left: a start that was begun and not
//! finished.

use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_client::services::v1 as api;
use switchyard_core::backend::Started;
use switchyard_core::id::TaskId;
use switchyard_core::{Error, ErrorKind, Result};

use super::inventory::process_state_of;
use crate::backend::Inner;
use crate::call_outcome::{CallOutcome, CallTimeouts, Durations, Observation, call_outcome};
use crate::client::{QUICK, call};
use crate::container_id::ContainerId;
use crate::process_state::ProcessState;
use crate::steps::Step;
use crate::task::TaskEntry;
use crate::task::stage::clear_stage;

/// Pause between two observations of a container whose bundle can be seen.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The same where bundles cannot be seen: each observation scans all processes.
const PROC_SCAN_INTERVAL: Duration = Duration::from_millis(100);

impl Inner {
    /// Waits until the predecessor call about this container has finished. Returns at once if there is none.
    ///
    /// If the outcome has to be cleaned up, each later call of this method returns it again at once, also in
    /// the next daemon, until [`Inner::predecessor_call_done`] is called: a kill during the cleanup does not
    /// start the wait anew. Cancel-safe.
    pub(crate) async fn await_predecessor_call(&self, id: &ContainerId) -> Result<CallOutcome> {
        if !self.predecessor_calls().contains(&**id) {
            return Ok(CallOutcome::NoEffect);
        }
        let timeouts = CallTimeouts {
            grace: self.settings.recovery.grace(),
            limit: self.settings.recovery.predecessor_call_timeout(),
        };
        let mut wait = self.load_or_begin_wait(id).await?;
        let mut last = None;
        let mut since = Instant::now();
        loop {
            let process = self.process_state(id).await?;
            let observation = Observation { process, active: self.observe_activity(id, process).await? };
            if last != Some(observation) {
                (last, since) = (Some(observation), Instant::now());
                if observation.nothing_seen() != wait.quiet.is_some() {
                    wait.quiet = observation.nothing_seen().then_some(since);
                    self.save_wait(id, wait).await?;
                }
            }
            let durations = Durations {
                unchanged: since.elapsed(),
                quiet: wait.quiet.map_or(Duration::ZERO, |quiet| quiet.elapsed()),
                waited: wait.began.elapsed(),
            };
            if let Some(outcome) = call_outcome(observation, durations, timeouts) {
                tracing::debug!(%id, ?outcome, ?durations, "a predecessor call has finished");
                if outcome.needs_no_cleanup() {
                    self.predecessor_call_done(id).await?;
                }
                return Ok(outcome);
            }
            tokio::time::sleep(if self.bundles().is_some() { POLL_INTERVAL } else { PROC_SCAN_INTERVAL })
                .await;
        }
    }

    /// Whether containerd works on a container. With a managed containerd the bundle tells. With an external
    /// one only processes that work on the container do, and their absence proves nothing.
    async fn observe_activity(&self, id: &ContainerId, process: ProcessState) -> Result<Option<bool>> {
        match (self.has_bundle(id), process) {
            (Some(has_bundle), _) => Ok(Some(has_bundle)),
            (None, ProcessState::None) => Ok(self.has_activity(id).await?.then_some(true)),
            (
                None,
                ProcessState::Created
                | ProcessState::Running { .. }
                | ProcessState::Stopped(_)
                | ProcessState::Unanswered { .. },
            ) => Ok(None),
        }
    }

    /// Forgets the predecessor call about a container, in memory and on disk. Idempotent.
    pub(crate) async fn predecessor_call_done(&self, id: &str) -> Result<()> {
        if self.predecessor_calls().contains(id) {
            self.remove_wait(id).await?;
            self.predecessor_calls().remove(id);
        }
        Ok(())
    }

    /// The state of a container's process, as containerd reports it now.
    pub(crate) async fn process_state(&self, id: &str) -> Result<ProcessState> {
        let request = api::GetRequest { container_id: id.to_owned(), exec_id: String::new() };
        match call(&format!("look up task {id}"), QUICK, self.client.task_queries().get(request)).await {
            Ok(answer) => Ok(answer.process.as_ref().map_or(ProcessState::None, process_state_of)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(ProcessState::None),
            Err(error) => Err(error),
        }
    }

    /// Finishes a start that a predecessor was killed in: a started process is adopted, anything less is
    /// undone.
    ///
    /// # Errors
    /// If the predecessor call cannot be observed, or the start cannot be undone.
    pub(crate) async fn finish_predecessor_start(self: &Arc<Self>, id: TaskId) -> Result<Option<Started>> {
        let entry = self.task(id)?;
        let guard = entry.lock_process().await;
        match self.await_predecessor_call(&id.into()).await? {
            CallOutcome::Started { pid } if !entry.dirs.discarded().exists() => {
                let started = Started { pid, at: std::time::SystemTime::now() };
                crate::task::mark_started(&entry, started).await?;
                self.adopt(&entry, started);
                self.resume_log(&entry).await;
                Ok(Some(started))
            }
            CallOutcome::NoEffect
            | CallOutcome::Incomplete
            | CallOutcome::Stuck
            | CallOutcome::Started { .. } => {
                let inner = Arc::clone(self);
                let undo = self.exit_cleanups.spawn(async move {
                    let _guard = guard;
                    inner.discard_start(&entry).await
                });
                undo.await.map_err(|fault| {
                    Error::internal(format!("undoing the start of task {id} panicked or was aborted"))
                        .with_source(fault)
                })??;
                Ok(None)
            }
        }
    }

    /// Undoes a predecessor's start of a task, so that the task can be started again. The caller holds the
    /// process lock.
    async fn discard_start(&self, entry: &TaskEntry) -> Result<()> {
        // The marker file comes first: if this daemon is killed during the undo, the next one must not take a
        // process that is being terminated for a started one.
        let id = entry.id.to_string();
        let discarded = entry.dirs.discarded();
        crate::fs::create_private_dir(&entry.dirs.run).await?;
        tokio::fs::write(&discarded, [])
            .await
            .map_err(|fault| crate::fs::io_error("write", &discarded, fault))?;
        switchyard_steps::reach(Step::StartDiscarded);
        self.end_task_process(entry, true).await?;
        entry.set_ended();
        self.wait_containerd_cleanup(&id).await?;
        // A failure is not queued for a retry: by then the task may run again, and its start has the
        // logkeeper open the same log.
        if let Err(error) = self.finish_log(entry).await {
            tracing::warn!(
                task.id = id,
                error = error.report(),
                "cannot close the log of an undone start: it stays open"
            );
        }
        clear_stage(&entry.dirs.stage).await?;
        crate::fs::remove_tree(&entry.dirs.run).await
    }
}
