//! What becomes of a task that was started: waited for, signalled, stopped, destroyed, taken up again.

use std::time::Duration;

use switchyard_core::image::ImageId;
use switchyard_core::keyed_lock::KeyedLockGuard;
use switchyard_core::spec::Signal;
use switchyard_core::state::{ExitCause, TaskState};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use crate::identity::task_key;
use crate::plugin_config::GcConfig;
use crate::status::unknown_task;
use crate::to_proto;

impl Driver {
    /// Takes up a task after a restart of whoever: it is known or it is not. It is not touched. Idempotent.
    ///
    /// # Errors
    /// `NotFound` if it is gone, or its end is not known: the agent starts it anew then.
    pub(super) fn recover(&self, id: &str) -> Result<nomad::RecoverTaskResponse> {
        let task = self.task(id)?;
        match &task.state {
            TaskState::Exited { exit, .. } if exit.cause == ExitCause::Lost => {
                Err(Error::not_found("it ended while nobody looked, as by a restart of the node")
                    .context(unknown_task(id).to_string()))
            }
            TaskState::Removing { .. } => Err(unknown_task(id)),
            // An agent has a handle of what has begun: this is what is left of it, and no wait for it would ever end.
            TaskState::Created => Err(Error::not_found("it has not begun since the node was started")
                .context(unknown_task(id).to_string())),
            TaskState::Starting
            | TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Exited { .. } => Ok(nomad::RecoverTaskResponse {}),
        }
    }

    /// Waits for the end of a task. Any number of callers; answers at once after the end. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    pub(super) async fn wait(&self, id: &str) -> Result<nomad::WaitTaskResponse> {
        let task = self.task(id)?.id.to_string();
        match self.shared.scope.wait_task(&task).await {
            Ok(exit) => Ok(to_proto::ended(&exit)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(error.context(unknown_task(id).to_string()))
            }
            Err(error) => Err(error),
        }
    }

    /// Stops a task: this signal, or else its own, and SIGKILL after `grace`. Returns when it has ended; one that is gone is stopped.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no signal; those of [`Scope::stop_task`](switchyard_core::gateway::Scope::stop_task).
    pub(super) async fn stop(
        &self,
        id: &str,
        signal: &str,
        grace: Duration,
    ) -> Result<nomad::StopTaskResponse> {
        let scope = &self.shared.scope;
        if let Some(task) = scope.task_named(id)? {
            let signal = if signal.is_empty() { None } else { Some(parse_signal(signal)?) };
            scope.stop_task_by(&task.id.to_string(), signal, grace).await?;
        }
        Ok(nomad::StopTaskResponse {})
    }

    /// Sends a signal to the main process of a task.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for what is no signal; `FailedPrecondition` if it does not run.
    pub(super) async fn signal(&self, id: &str, signal: &str) -> Result<nomad::SignalTaskResponse> {
        let task = self.task(id)?;
        let signal = parse_signal(signal)?;
        self.shared.scope.signal_task(&task.id.to_string(), signal).await?;
        Ok(nomad::SignalTaskResponse {})
    }

    /// Takes a task away with all that was made for it, after whatever is being done in its place. Idempotent. Cancel-safe: the work
    /// goes on.
    ///
    /// # Errors
    /// `FailedPrecondition` if it runs, without `force`; those of the removal, after which it can be destroyed again.
    pub(super) async fn destroy(
        &self,
        id: String,
        force: bool,
        gc: GcConfig,
    ) -> Result<nomad::DestroyTaskResponse> {
        let driver = self.clone();
        let what = format!("destruction of task {id}");
        let work = async move {
            let turn = driver.shared.task_locks.lock(task_key(&id).to_owned()).await;
            driver.remove_locked(&id, force, &gc, turn).await
        };
        self.shared.scope.run_detached(what, work).await?;
        Ok(nomad::DestroyTaskResponse {})
    }

    /// Takes away a task that no agent has named, unless one has since, with all that was made for it. In the caller's own time.
    ///
    /// # Errors
    /// Those of [`Driver::destroy`].
    pub(crate) async fn remove_dangling(&self, id: &str, gc: &GcConfig) -> Result<()> {
        let turn = self.shared.task_locks.lock(task_key(id).to_owned()).await;
        if self.shared.references.knows_task(id) {
            Ok(())
        } else {
            self.remove_locked(id, true, gc, turn).await
        }
    }

    /// As [`Driver::destroy`], in the caller's own time, and its turn at the place of the task.
    async fn remove_locked(&self, id: &str, force: bool, gc: &GcConfig, _turn: KeyedLockGuard) -> Result<()> {
        let scope = &self.shared.scope;
        let task = scope.task_named(id)?;
        if let Some(task) = &task
            && !force
            && task.state.may_run()
        {
            let text = "must call StopTask for the given task before Destroy or set force to true";
            return Err(Error::failed_precondition(format!("{text}: {id:?} runs")));
        }
        // Who is refused goes on knowing it; who is not does not ask again, whatever comes of it.
        self.shared.references.forget(id);
        let Some(sandbox) = scope.sandbox_named(id)? else { return Ok(()) };
        let sandbox = sandbox.id.to_string();
        if !gc.container {
            return scope.stop_sandbox(&sandbox).await;
        }
        scope.remove_sandbox(&sandbox).await?;
        if let Some(task) = task.filter(|_| gc.image) {
            let used = std::iter::once(&task.details.image_id).chain(&task.details.volume_images);
            used.for_each(|image: &ImageId| self.shared.image_gc.schedule(image, gc.image_delay));
        }
        Ok(())
    }
}

/// The signal of this name, with or without `SIG`, or number.
fn parse_signal(text: &str) -> Result<Signal> {
    Signal::parse(text).ok_or_else(|| {
        let message =
            format!("failed to parse signal: {text:?} is neither the name of a signal nor its number");
        Error::new(ErrorKind::InvalidArgument, message)
    })
}
