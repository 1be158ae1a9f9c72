//! Ends the process of any container, whoever has started it.

use containerd_client::services::v1 as api;
use switchyard_core::spec::Signal;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_crash_points::{CrashPoint, reach};

use crate::base::container_id::ContainerId;
use crate::client::{SLOW, call, ignore_not_found};
use crate::predecessor_calls::outcome::CallOutcome;
use crate::processes::Processes;

impl Processes {
    /// Kills and deletes the containerd task of a container, and waits until its bundle is removed. Waits for
    /// a predecessor call on the container first. `true` if there was a task to delete. Idempotent.
    pub(crate) async fn end_process(&self, id: &ContainerId) -> Result<bool> {
        let outcome = self.predecessor_calls.await_predecessor_call(id).await?;
        let deleted = self.delete_process(id).await?;
        self.unprotect_exit(id).await?;
        match outcome {
            // The predecessor call has been waited for already and does not return: containerd will not
            // remove the bundle.
            CallOutcome::Stuck => self.shims.clear_bundle(id).await?,
            CallOutcome::NoEffect | CallOutcome::Incomplete | CallOutcome::Started { .. } => {
                self.shims.await_bundle_removal(id).await?
            }
        }
        self.predecessor_calls.predecessor_call_done(id).await?;
        Ok(deleted)
    }

    /// Deletes a containerd task, and kills it first if it runs. `true` if containerd had it.
    async fn delete_process(&self, id: &str) -> Result<bool> {
        let what = format!("end task {id}");
        let delete = || api::DeleteTaskRequest {
            container_id: id.to_owned(),
        };
        match call(&what, SLOW, self.client.tasks().delete(delete())).await {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            // The task is running, or created and not started.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::FailedPrecondition | ErrorKind::Internal
                ) =>
            {
                tracing::debug!(
                    object = id,
                    error = error.report(),
                    "killing before deleting"
                );
            }
            Err(error) => return Err(error),
        }
        let kill = api::KillRequest {
            container_id: id.to_owned(),
            signal: u32::from(Signal::KILL.number()),
            all: true,
            ..Default::default()
        };
        ignore_not_found(call(&what, SLOW, self.client.tasks().kill(kill)).await)?;
        let wait = api::WaitRequest {
            container_id: id.to_owned(),
            exec_id: String::new(),
        };
        match call(&what, SLOW, self.client.task_queries().wait(wait)).await {
            Err(error) if error.kind() == ErrorKind::DeadlineExceeded => {
                return Err(Error::deadline(format!(
                    "task {id} still runs {SLOW:?} after SIGKILL"
                )));
            }
            other => ignore_not_found(other)?,
        }
        reach(CrashPoint::ProcessKilled);
        ignore_not_found(call(&what, SLOW, self.client.tasks().delete(delete())).await)?;
        Ok(true)
    }
}
