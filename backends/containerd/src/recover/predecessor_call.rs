//! What a killed predecessor had asked of containerd, and containerd still works on: it is waited for before anything is done to it.
//!
//! The predecessor's connection is held by the logkeeper, so that containerd carries on. Which containers it may be at is known by
//! what the predecessor left: a start that was begun and not finished.

use std::sync::Arc;
use std::time::{Duration, Instant};

use containerd_client::services::v1 as api;
use switchyard_core::backend::Started;
use switchyard_core::id::TaskId;
use switchyard_core::{Error, ErrorKind, Result};

use super::decide::{CallOutcome, CallTimeouts, Durations, Observation, ProcessState, call_outcome};
use super::inventory::process_state_of;
use crate::backend::Inner;
use crate::client::{QUICK, call};
use crate::container_id::ContainerId;
use crate::steps::Step;
use crate::task::TaskEntry;
use crate::task::stage::clear_stage;

/// Between two looks at a bundle.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Between two looks at all processes, where bundles cannot be seen.
const PROC_SCAN_INTERVAL: Duration = Duration::from_millis(100);

impl Inner {
    /// Waits until containerd has done with what a predecessor asked of it about this container; a process may have come of it.
    /// Returns at once for any other container. What is left of it has to be ended, and is told as that again until
    /// [`Inner::has_settled`] is called: a kill amid the ending does not begin the wait anew. Cancel-safe.
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
                tracing::debug!(%id, ?outcome, ?durations, "a predecessor's call has settled");
                if outcome.needs_no_cleanup() {
                    self.predecessor_call_done(id).await?;
                }
                return Ok(outcome);
            }
            tokio::time::sleep(if self.bundles().is_some() { POLL_INTERVAL } else { PROC_SCAN_INTERVAL })
                .await;
        }
    }

    /// Whether containerd is at work on a container: beside one of our own its bundle tells. Beside one of others only what is seen at
    /// work does, and that nobody is means nothing.
    async fn observe_activity(&self, id: &ContainerId, process: ProcessState) -> Result<Option<bool>> {
        match (self.has_bundle(id), process) {
            (Some(known), _) => Ok(Some(known)),
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

    /// Nothing is waited for any more about a container: a later call about it is waited for anew. Idempotent.
    pub(crate) async fn predecessor_call_done(&self, id: &str) -> Result<()> {
        if self.predecessor_calls().contains(id) {
            self.remove_wait(id).await?;
            self.predecessor_calls().remove(id);
        }
        Ok(())
    }

    /// What containerd says of a container's process now.
    pub(crate) async fn process_state(&self, id: &str) -> Result<ProcessState> {
        let request = api::GetRequest { container_id: id.to_owned(), exec_id: String::new() };
        match call(&format!("look up task {id}"), QUICK, self.client.task_queries().get(request)).await {
            Ok(answer) => Ok(answer.process.as_ref().map_or(ProcessState::None, process_state_of)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(ProcessState::None),
            Err(error) => Err(error),
        }
    }

    /// Sees to a start that a predecessor was cut off from: what came to run is adopted, anything less is cleared away.
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
                let ending = self.exit_cleanups.spawn(async move {
                    let _turn = guard;
                    inner.discard_start(&entry).await
                });
                ending.await.map_err(|fault| {
                    Error::internal(format!("the ending of task {id} broke off")).with_source(fault)
                })??;
                Ok(None)
            }
        }
    }

    /// Ends what a predecessor was starting, so that it can be started anew. Whoever calls this has the turn of the task.
    async fn discard_start(&self, entry: &TaskEntry) -> Result<()> {
        // Should we be killed amid the ending, the next of us must not take what is half ended for what was started.
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
        // Not kept for later: by then it may run, and its start has the logkeeper take the same log up again.
        if let Err(error) = self.finish_log(entry).await {
            tracing::warn!(task.id = id, error = error.report(), "the log of an undone start stays open");
        }
        clear_stage(&entry.dirs.stage).await?;
        crate::fs::remove_tree(&entry.dirs.run).await
    }
}
