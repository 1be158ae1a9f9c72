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

use super::decide::{Lasted, Patience, Process, Settled, Sight, settled};
use super::inventory::process_of;
use crate::backend::Inner;
use crate::client::{QUICK, call};
use crate::container_id::ContainerId;
use crate::steps::Step;
use crate::task::TaskEntry;
use crate::task::stage::clear_stage;

/// Between two looks at a bundle.
const LOOK: Duration = Duration::from_millis(20);
/// Between two looks at all processes, where bundles cannot be seen.
const LOOK_AROUND: Duration = Duration::from_millis(100);

impl Inner {
    /// Waits until containerd has done with what a predecessor asked of it about this container; a process may have come of it.
    /// Returns at once for any other container. What is left of it has to be ended, and is told as that again until
    /// [`Inner::has_settled`] is called: a kill amid the ending does not begin the wait anew. Cancel-safe.
    pub(crate) async fn settle(&self, id: &ContainerId) -> Result<Settled> {
        if !self.inherited().contains(&**id) {
            return Ok(Settled::Nothing);
        }
        let patience =
            Patience { grace: self.settings.recovery.grace(), limit: self.settings.recovery.settle() };
        let mut wait = self.waited_since(id).await?;
        let mut last = None;
        let mut since = Instant::now();
        loop {
            let process = self.process_now(id).await?;
            let sight = Sight { process, work: self.sees_work(id, process).await? };
            if last != Some(sight) {
                (last, since) = (Some(sight), Instant::now());
                if sight.is_nothing() != wait.quiet.is_some() {
                    wait.quiet = sight.is_nothing().then_some(since);
                    self.note_wait(id, wait).await?;
                }
            }
            let lasted = Lasted {
                seen: since.elapsed(),
                quiet: wait.quiet.map_or(Duration::ZERO, |quiet| quiet.elapsed()),
                looked: wait.began.elapsed(),
            };
            if let Some(settled) = settled(sight, lasted, patience) {
                tracing::debug!(%id, ?settled, ?lasted, "a predecessor's call has settled");
                if settled.is_done() {
                    self.has_settled(id).await?;
                }
                return Ok(settled);
            }
            tokio::time::sleep(if self.bundles().is_some() { LOOK } else { LOOK_AROUND }).await;
        }
    }

    /// Whether containerd is at work on a container: beside one of our own its bundle tells. Beside one of others only what is seen at
    /// work does, and that nobody is means nothing.
    async fn sees_work(&self, id: &ContainerId, process: Process) -> Result<Option<bool>> {
        match (self.has_bundle(id), process) {
            (Some(known), _) => Ok(Some(known)),
            (None, Process::None) => Ok(self.is_worked_on(id).await?.then_some(true)),
            (
                None,
                Process::Created | Process::Running { .. } | Process::Stopped(_) | Process::Unanswered { .. },
            ) => Ok(None),
        }
    }

    /// Nothing is waited for any more about a container: a later call about it is waited for anew. Idempotent.
    pub(crate) async fn has_settled(&self, id: &str) -> Result<()> {
        if self.inherited().contains(id) {
            self.wait_is_over(id).await?;
            self.inherited().remove(id);
        }
        Ok(())
    }

    /// What containerd says of a container's process now.
    pub(crate) async fn process_now(&self, id: &str) -> Result<Process> {
        let request = api::GetRequest { container_id: id.to_owned(), exec_id: String::new() };
        match call(&format!("look up task {id}"), QUICK, self.client.waits().get(request)).await {
            Ok(answer) => Ok(answer.process.as_ref().map_or(Process::None, process_of)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Process::None),
            Err(error) => Err(error),
        }
    }

    /// Sees to a start that a predecessor was cut off from: what came to run is adopted, anything less is cleared away.
    pub(crate) async fn settle_task(self: &Arc<Self>, id: TaskId) -> Result<Option<Started>> {
        let entry = self.task(id)?;
        let turn = entry.take_turn().await;
        match self.settle(&id.into()).await? {
            Settled::Runs { pid } if !entry.dirs.discarded().exists() => {
                let started = Started { pid, at: std::time::SystemTime::now() };
                crate::task::mark_started(&entry, started).await?;
                self.adopt(&entry, started);
                self.resume_log(&entry).await;
                Ok(Some(started))
            }
            Settled::Nothing | Settled::Remnant | Settled::Forsaken | Settled::Runs { .. } => {
                let inner = Arc::clone(self);
                let ending = self.endings.spawn(async move {
                    let _turn = turn;
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
        crate::text::make_dir(&entry.dirs.run).await?;
        tokio::fs::write(&discarded, [])
            .await
            .map_err(|fault| crate::text::io_error("write", &discarded, fault))?;
        switchyard_steps::reach(Step::StartDiscarded);
        self.end_task_process(entry, true).await?;
        entry.set_ended();
        self.cleared_up(&id).await?;
        // Not kept for later: by then it may run, and its start has the logkeeper take the same log up again.
        if let Err(error) = self.finish_log(entry).await {
            tracing::warn!(task.id = id, error = error.report(), "the log of an undone start stays open");
        }
        clear_stage(&entry.dirs.stage).await?;
        crate::text::remove_tree(&entry.dirs.run).await
    }
}
