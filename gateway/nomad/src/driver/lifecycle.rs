//! Operations on started tasks: recover, wait, inspect, signal, stop and destroy.

use std::time::Duration;

use switchyard_core::backoff::Backoff;
use switchyard_core::spec::Signal;
use switchyard_core::state::{ExitCause, TaskState};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use crate::identity::task_key;
use crate::plugin_config::GcConfig;
use crate::reconcile::Removal;
use crate::status::unknown_task;
use crate::to_proto;

/// Limit for which the destruction of a task waits for containerd to return.
const RETURN_LIMIT: Duration = Duration::from_secs(5);
/// The pauses between the tries meanwhile.
const RETURN_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));

impl Driver {
    /// Answers whether a task can be recovered after a restart of the agent or the daemon. Does not change
    /// it. Idempotent. A task that cannot be read can: an agent that is refused gives it up, and once it can be read, nobody
    /// would want it.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, or its exit is not known: the agent then starts it again. `FailedPrecondition` if
    /// only its sandbox is there, and cannot be read: then that start is refused too.
    pub(super) fn recover(&self, id: &str) -> Result<nomad::RecoverTaskResponse> {
        if let Some(held) = self.unreadable_task(id)? {
            tracing::warn!(
                name = id,
                error = held.defect().report(),
                "a task cannot be read: its agent is answered as if it ran"
            );
            return Ok(nomad::RecoverTaskResponse {});
        }
        // Before the look at the task, whose state may not show it yet: after its end there is no task.
        if self.shared.references.is_being_removed(id) || self.has_unfinished_removal(id)? {
            return Err(unknown_task(id));
        }
        let task = self.task(id)?;
        match &task.state {
            TaskState::Exited { exit, .. } if exit.cause == ExitCause::Lost => {
                Err(Error::not_found(
                    "its exit was not observed, for example because the node was restarted",
                )
                .context(unknown_task(id).to_string()))
            }
            TaskState::Removing { .. } => Err(unknown_task(id)),
            // The agent has a handle, so it believes that the task runs; this task never will, and waiting
            // for its exit would never end. Of a start without an answer no agent has a handle.
            TaskState::Created | TaskState::Unattended => Err(Error::not_found(
                "it has not been started since the node was booted",
            )
            .context(unknown_task(id).to_string())),
            TaskState::Starting
            | TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Exited { .. } => Ok(nomad::RecoverTaskResponse {}),
        }
    }

    /// Waits for the exit of a task. Any number of callers; returns at once after the exit. Cancel-safe. Does not return if
    /// the task cannot be read: its exit is observed by a daemon that reads it.
    ///
    /// # Errors
    /// `NotFound` if it does not exist.
    pub(super) async fn wait(&self, id: &str) -> Result<nomad::WaitTaskResponse> {
        if self.unreadable_task(id)?.is_some() {
            return std::future::pending().await;
        }
        let task = self.task(id)?.id.to_string();
        match self.shared.scope.tasks().wait(&task).await {
            Ok(exit) => Ok(to_proto::ended(&exit)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(error.context(unknown_task(id).to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// The status of a task. One that cannot be read runs, as far as an agent is concerned.
    ///
    /// # Errors
    /// `NotFound`.
    pub(super) fn inspect(&self, id: &str) -> Result<nomad::InspectTaskResponse> {
        if let Some(held) = self.unreadable_task(id)? {
            return Ok(to_proto::inspected_unreadable(&held));
        }
        let task = self.task(id)?;
        let sandbox = self.sandbox_of(&task);
        Ok(to_proto::inspected(sandbox.as_deref(), &task))
    }

    /// Stops a task: sends `signal`, or else its own stop signal, and SIGKILL after `grace`. Returns after
    /// its exit; succeeds if it does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown signal; `FailedPrecondition` if the task cannot be read; those of
    /// [`ScopedTasks::stop`](switchyard_core::gateway::ScopedTasks::stop).
    pub(super) async fn stop(
        &self,
        id: &str,
        signal: &str,
        grace: Duration,
    ) -> Result<nomad::StopTaskResponse> {
        if let Some(task) = self.find_task(id)? {
            let signal = if signal.is_empty() {
                None
            } else {
                Some(parse_signal(signal)?)
            };
            self.shared
                .scope
                .tasks()
                .stop_by(&task.id.to_string(), signal, grace)
                .await?;
        }
        Ok(nomad::StopTaskResponse {})
    }

    /// Sends a signal to the main process of a task.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for an unknown signal; `FailedPrecondition` if it does not run.
    pub(super) async fn signal(&self, id: &str, signal: &str) -> Result<nomad::SignalTaskResponse> {
        let task = self.task(id)?;
        let signal = parse_signal(signal)?;
        self.shared
            .scope
            .tasks()
            .signal(&task.id.to_string(), signal)
            .await?;
        Ok(nomad::SignalTaskResponse {})
    }

    /// Removes a task with everything that was created for it, after the operation in progress on it.
    /// Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `FailedPrecondition` if it cannot be read, or runs and `force` is not set; those of the removal, which is then
    /// completed in the background: agents do not repeat it.
    pub(super) async fn destroy(
        &self,
        id: String,
        force: bool,
        gc: GcConfig,
    ) -> Result<nomad::DestroyTaskResponse> {
        let driver = self.clone();
        let what = format!("destruction of task {id}");
        let work = async move {
            let _guard = driver
                .shared
                .task_locks
                .lock(task_key(&id).to_owned())
                .await;
            let task = driver.find_task(&id)?;
            if !force && task.is_some_and(|task| task.state.may_run()) {
                let text =
                    "must call StopTask for the given task before Destroy or set force to true";
                return Err(Error::failed_precondition(format!("{text}: {id:?} runs")));
            }
            // After a refusal the agent still references the task; otherwise it does not ask again, whatever
            // the outcome.
            let removal = driver.shared.references.begin_removal(&id);
            driver.remove_for_good(&removal, &gc).await
        };
        self.shared.scope.run_detached(what, work).await?;
        Ok(nomad::DestroyTaskResponse {})
    }

    /// As [`Driver::remove`]. While containerd is down, its return is waited for, so that what the task holds is free
    /// when the agent gives it to another one; after that, the removal is completed in the background.
    async fn remove_for_good(&self, removal: &Removal<'_>, gc: &GcConfig) -> Result<()> {
        let mut backoff = Backoff::new(RETURN_PAUSES.0, RETURN_PAUSES.1);
        let patience = tokio::time::sleep(RETURN_LIMIT);
        let ended = self.shared.scope.ended();
        tokio::pin!(patience, ended);
        let failed = loop {
            match self.remove(removal, gc).await {
                Err(error) if error.kind() == ErrorKind::Unavailable => {
                    tokio::select! {
                        () = backoff.wait() => {}
                        () = &mut patience => break error,
                        () = &mut ended => break error,
                    }
                }
                Err(error) => break error,
                Ok(()) => return Ok(()),
            }
        };
        if let Some(sandbox) = self.shared.scope.sandboxes().named(removal.id())? {
            self.dispose_later(&sandbox, gc.into(), &failed);
        }
        Err(failed)
    }

    /// Removes a task that no agent has named, unless one has named it since, with everything that was
    /// created for it; returns whether it is gone. If the caller goes away, the removal does not begin, or continues:
    /// until its end the task cannot be recovered.
    ///
    /// # Errors
    /// Those of [`Driver::destroy`].
    pub(crate) async fn remove_dangling(&self, id: &str, gc: &GcConfig) -> Result<bool> {
        let guard = self.shared.task_locks.lock(task_key(id).to_owned()).await;
        let driver = self.clone();
        let what = format!("removal of task {id}");
        let id = id.to_owned();
        let gc = gc.clone();
        let work = async move {
            let _guard = guard;
            let Some(removal) = driver.shared.references.begin_removal_of_unknown(&id) else {
                tracing::info!(
                    name = id,
                    "an agent references the task again: not removing it"
                );
                return Ok(false);
            };
            driver.remove(&removal, &gc).await.map(|()| true)
        };
        self.shared.scope.run_detached(what, work).await
    }

    /// Removes a task within the caller's future, which holds the lock of the task key.
    async fn remove(&self, removal: &Removal<'_>, gc: &GcConfig) -> Result<()> {
        match self.shared.scope.sandboxes().named(removal.id())? {
            Some(sandbox) => self.dispose(&sandbox, gc.into()).await,
            None => Ok(()),
        }
    }
}

/// The signal with this name, with or without `SIG`, or number.
fn parse_signal(text: &str) -> Result<Signal> {
    Signal::parse(text).ok_or_else(|| {
        let message = format!(
            "failed to parse signal: {text:?} is neither the name of a signal nor its number"
        );
        Error::new(ErrorKind::InvalidArgument, message)
    })
}
