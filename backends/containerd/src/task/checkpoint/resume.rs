//! Resumes a task that is frozen for a checkpoint, whatever has become of the checkpoint.
//!
//! ```text
//! shim asked ─► task runs, or is resumed ────────────────────────────────────────────────► thawed
//!   └─ no answer within the shim timeout ─► criu killed ─► cgroup thawed ─► asked again ───┘
//!                                                                              └─ no answer: retried later
//! ```
//!
//! A shim that makes a checkpoint answers no other call about that task, so a dump that never ends would
//! freeze the task for ever. So would a dump that froze a process while another call was starting it, because
//! the shim waits for that start.

use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::types::v1::Status;
use switchyard_core::{Error, ErrorKind, Result};
use tokio::time::timeout;

use super::super::TaskEntry;
use super::criu::end_dump;
use crate::base::fs::blocking;
use crate::task::checkpoint::Checkpoints;

/// The pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

impl Checkpoints {
    /// Resumes a frozen task. Its processes run within little more than the shim timeout, even if the shim
    /// never answers. Idempotent.
    ///
    /// # Errors
    /// The error of the shim, or `DeadlineExceeded` if it does not answer: it still takes the task for paused
    /// then, and has to be called again.
    pub(super) async fn resume_task(&self, entry: &TaskEntry) -> Result<()> {
        let mut outcome = self.retry_resume(entry).await;
        if let Err(error) = &outcome {
            let why = error.report();
            tracing::warn!(task = %entry.id, error = why, "the shim of a task does not resume it: killing the processes that make its checkpoint");
            outcome = self.end_dump(entry).await;
            self.task_cgroups.set_frozen(entry, false).await?;
            if outcome.is_ok() {
                outcome = self.retry_resume(entry).await;
            }
        }
        // criu freezes the cgroup too, which the shim does not know.
        self.task_cgroups.set_frozen(entry, false).await?;
        outcome?;
        entry.exec_permits.thaw();
        Ok(())
    }

    async fn end_dump(&self, entry: &TaskEntry) -> Result<()> {
        let found = || Error::internal(format!("cannot find the shim of task {}", entry.id));
        let shim = entry.shim_pid().ok_or_else(found)?;
        let dir = entry.dirs.checkpoint();
        blocking(move || end_dump(shim, &dir)).await
    }

    /// Asks the shim to resume the task, repeatedly, within the shim timeout.
    async fn retry_resume(&self, entry: &TaskEntry) -> Result<()> {
        let limit = self.context.settings().containerd.shim_timeout();
        let mut last = Error::deadline(format!(
            "the shim of task {} has not answered within {limit:?} (containerd.shim_timeout_seconds)",
            entry.id
        ));
        let attempts = async {
            while let Err(error) = self.ensure_running(entry).await {
                tracing::debug!(task = %entry.id, error = error.report(), "cannot resume a task: retrying");
                last = error;
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        };
        timeout(limit, attempts).await.map_err(|_| last)
    }

    /// Resumes the task, unless it runs or has exited.
    async fn ensure_running(&self, entry: &TaskEntry) -> Result<()> {
        if !entry.runs() {
            return Ok(());
        }
        match self.status_by_shim(entry).await? {
            Status::Paused | Status::Pausing => self.resume(entry).await,
            Status::Created | Status::Running | Status::Stopped => Ok(()),
            // The status that containerd reports if the shim has not answered it in time.
            Status::Unknown => Err(Error::unavailable(format!(
                "the shim of task {} does not report its status",
                entry.id
            ))),
        }
    }

    async fn status_by_shim(&self, entry: &TaskEntry) -> Result<Status> {
        let id = entry.id.to_string();
        let request = api::GetRequest {
            container_id: id.clone(),
            exec_id: String::new(),
        };
        match self
            .shims
            .call_with_shim_timeout(
                &id,
                &format!("look up task {id}"),
                self.client.tasks().get(request),
            )
            .await
        {
            Ok(answer) => Ok(answer.process.unwrap_or_default().status()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Status::Stopped),
            Err(error) => Err(error),
        }
    }

    /// Asks the shim to resume the task. The cgroup may be thawed already: by this daemon, or because criu
    /// was killed after it had thawed the cgroup. Runtimes do not resume such a task, and its shim would take
    /// it for paused for ever. So its cgroup is frozen once more before.
    async fn resume(&self, entry: &TaskEntry) -> Result<()> {
        let id = entry.id.to_string();
        if self.task_cgroups.is_frozen(entry).await? == Some(false)
            && self.status_by_shim(entry).await? == Status::Paused
        {
            self.task_cgroups.set_frozen(entry, true).await?;
        }
        let request = api::ResumeTaskRequest {
            container_id: id.clone(),
        };
        let what = format!("resume task {id}");
        self.shims
            .call_with_shim_timeout(&id, &what, self.client.tasks().resume(request))
            .await
            .map(drop)
    }
}
