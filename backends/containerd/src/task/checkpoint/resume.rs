//! Has a task go on that stands still for a checkpoint, whatever has become of that.
//!
//! ```text
//!  shim asked ─► it moves, or is resumed ─────────────────────────────────────────────────► nothing holds it
//!     └─ no answer for as long as a shim may take ─► criu is ended ─► thawed ─► asked again ───────┘
//!                                                                                  └─ no answer either: asked again later
//! ```
//!
//! A shim that makes a checkpoint answers nothing else about that task, so a dump that never ends would be a standstill that never
//! ends. So would be one that froze what another is just putting into the task, for its shim waits for that.

use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::types::v1::Status;
use switchyard_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use super::super::TaskEntry;
use super::criu::end_dump;
use crate::backend::Inner;
use crate::fs::blocking;

/// Between two tries.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

impl Inner {
    /// Has a task go on that stands still. Its processes do within little more than what a shim may take, even if the shim never answers.
    /// Idempotent.
    ///
    /// # Errors
    /// What the shim says, or that it says nothing: then it takes the task for one that stands still, and is to be told again.
    pub(super) async fn resume_task(&self, entry: &TaskEntry) -> Result<()> {
        let mut outcome = self.retry_resume(entry).await;
        if let Err(error) = &outcome {
            let why = error.report();
            tracing::warn!(task.id = %entry.id, error = why, "what makes a checkpoint of a task is ended, for its shim does not have it go on");
            outcome = self.end_dump(entry).await;
            self.set_frozen(entry, false).await?;
            if outcome.is_ok() {
                outcome = self.retry_resume(entry).await;
            }
        }
        // criu tells the kernel to hold it too, and the shim knows nothing of that.
        self.set_frozen(entry, false).await?;
        outcome?;
        entry.thaw();
        Ok(())
    }

    async fn end_dump(&self, entry: &TaskEntry) -> Result<()> {
        let found = || Error::internal(format!("the shim of task {} is not found", entry.id));
        let shim = entry.shim_pid().ok_or_else(found)?;
        let dir = entry.dirs.checkpoint();
        blocking(move || end_dump(shim, &dir)).await
    }

    /// Tells it, again and again, for as long as a shim may take.
    async fn retry_resume(&self, entry: &TaskEntry) -> Result<()> {
        let limit = self.settings.containerd.shim_timeout();
        let mut last = Error::deadline(format!("the shim of task {} says nothing for {limit:?}", entry.id));
        let telling = async {
            while let Err(error) = self.ensure_running(entry).await {
                tracing::debug!(task.id = %entry.id, error = error.report(), "a task is told to go on again");
                last = error;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        };
        timeout(limit, telling).await.map_err(|_| last)
    }

    /// One that moves, or has ended: done.
    async fn ensure_running(&self, entry: &TaskEntry) -> Result<()> {
        if !entry.runs() {
            return Ok(());
        }
        match self.status_by_shim(entry).await? {
            Status::Paused | Status::Pausing => self.resume(entry).await,
            Status::Created | Status::Running | Status::Stopped => Ok(()),
            // What containerd says when the shim has not answered it in time.
            Status::Unknown => {
                Err(Error::unavailable(format!("the shim of task {} does not say how it is", entry.id)))
            }
        }
    }

    async fn status_by_shim(&self, entry: &TaskEntry) -> Result<Status> {
        let id = entry.id.to_string();
        let request = api::GetRequest { container_id: id.clone(), exec_id: String::new() };
        match self
            .call_with_shim_timeout(&id, &format!("look up task {id}"), self.client.tasks().get(request))
            .await
        {
            Ok(answer) => Ok(answer.process.unwrap_or_default().status()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Status::Stopped),
            Err(error) => Err(error),
        }
    }

    /// What moves already, because it was thawed, or criu was ended when it had let go of it, runtimes do not resume, and its shim would take it for one
    /// that stands still for ever: so it is held once more.
    async fn resume(&self, entry: &TaskEntry) -> Result<()> {
        let id = entry.id.to_string();
        if self.is_frozen(entry).await? == Some(false) && self.status_by_shim(entry).await? == Status::Paused
        {
            self.set_frozen(entry, true).await?;
        }
        let request = api::ResumeTaskRequest { container_id: id.clone() };
        let what = format!("have task {id} go on");
        self.call_with_shim_timeout(&id, &what, self.client.tasks().resume(request)).await.map(drop)
    }

    /// Whether the kernel has been told to hold it; `None` if there is nobody to tell.
    async fn is_frozen(&self, entry: &TaskEntry) -> Result<Option<bool>> {
        let Some(group) = self.cgroup_location(&entry.record()) else { return Ok(None) };
        let cgroups = Arc::clone(&self.cgroups);
        blocking(move || cgroups.is_frozen(&group).map_err(Error::from)).await
    }

    /// Has the kernel hold it, or let go of it.
    async fn set_frozen(&self, entry: &TaskEntry, still: bool) -> Result<()> {
        let Some(group) = self.cgroup_location(&entry.record()) else { return Ok(()) };
        let cgroups = Arc::clone(&self.cgroups);
        blocking(move || cgroups.freeze(&group, still).map_err(Error::from)).await
    }
}
