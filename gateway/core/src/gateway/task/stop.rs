//! The end of tasks: stop signals, SIGKILL, and the exits that follow.

use std::sync::Arc;
use std::time::Duration;

use super::Tasks;
use crate::error::{ErrorKind, Result};
use crate::gateway::op::{Op, ignore_not_found};
use crate::id::TaskId;
use crate::object::Task;
use crate::singleflight::Decision;
use crate::spec::Signal;
use crate::state::{TaskEvent, TaskState};
use crate::stop_request::{StopReason, StopRequest};

impl Tasks {
    /// Kills a task. Returns when no process of it runs; [`Tasks::wait_exit_published`] waits for the exit
    /// event.
    pub(in crate::gateway) async fn kill(self: &Arc<Self>, id: TaskId) -> Result<()> {
        if !self
            .send_kill(id, None, Duration::ZERO, StopReason::Requested)
            .await?
        {
            return Ok(());
        }
        let ended = async {
            // The task's watcher retries when the backend is available again, and then publishes the exit.
            if self.context.backend.wait_end(id).await.is_err() {
                drop(self.wait_exit(id).await);
            }
        };
        self.within_kill_limit(id, ended).await
    }

    /// Waits until the exit of a killed task is published.
    pub(in crate::gateway) async fn wait_exit_published(&self, id: TaskId) -> Result<()> {
        match self.context.table.task(id) {
            Some(task) if task.state.may_run() => {}
            Some(_) | None => return Ok(()),
        }
        // `NotFound`: it was removed meanwhile.
        self.within_kill_limit(id, async { drop(self.wait_exit(id).await) })
            .await
    }

    pub(super) async fn end(
        self: &Arc<Self>,
        id: TaskId,
        signal: Option<Signal>,
        grace: Duration,
        reason: StopReason,
    ) -> Result<()> {
        if self.send_kill(id, signal, grace, reason).await? {
            self.wait_exit_published(id).await
        } else {
            Ok(())
        }
    }

    /// Asks a task to stop, and sends SIGKILL if it still runs after `grace`. Returns false if it does not
    /// run any more.
    async fn send_kill(
        self: &Arc<Self>,
        id: TaskId,
        signal: Option<Signal>,
        grace: Duration,
        reason: StopReason,
    ) -> Result<bool> {
        let context = &self.context;
        let Some(task) = self.settled_task(id).await? else {
            return Ok(false);
        };
        if !task.state.may_run() {
            return Ok(false);
        }
        // Before any signal: the exit may follow at once.
        context.table.note_stop(id, StopRequest::current(reason));
        if grace > Duration::ZERO {
            // `grace` runs from the request: the backend may delay the signal.
            let stop = async {
                self.send_stop_signal(id, signal.unwrap_or(task.details.stop_signal))
                    .await?;
                // `NotFound`: it was removed meanwhile.
                drop(self.wait_exit(id).await);
                Ok(())
            };
            if let Ok(ended) = tokio::time::timeout(grace, stop).await {
                return ended.map(|()| false);
            }
        }
        // A task that was started can only run, have exited, or be removed: in all of these states it can be
        // stopped.
        match self.apply(id, TaskEvent::StopRequested) {
            Ok((_, after)) if !after.state.may_run() => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        context.backend.signal_task(id, Signal::KILL).await?;
        Ok(true)
    }

    /// A task of which no start is in progress; `None` if it does not exist.
    async fn settled_task(&self, id: TaskId) -> Result<Option<Arc<Task>>> {
        let context = &self.context;
        self.unless_outage(id, self.task_ops.wait_finished(&Op::Start(id)))
            .await?;
        let Some(task) = context.table.task(id) else {
            return Ok(None);
        };
        match task.state {
            TaskState::Created | TaskState::Starting | TaskState::Unattended => {}
            TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => return Ok(Some(task)),
        }
        // A start may have begun since, and the runtime may still finish one that a predecessor began. Both
        // hold the lock until the outcome is known.
        let _guard = self.lock(id).await?;
        Ok(context.table.task(id))
    }

    /// Sends a task its stop signal once: concurrent callers share one send, later callers send none.
    async fn send_stop_signal(self: &Arc<Self>, id: TaskId, signal: Signal) -> Result<()> {
        let tasks = Arc::clone(self);
        let work = move || async move {
            tasks.context.backend.signal_task(id, signal).await?;
            match tasks.apply(id, TaskEvent::StopRequested) {
                // It exited or was removed meanwhile.
                Err(error) if error.kind() != ErrorKind::FailedPrecondition => {
                    ignore_not_found(Err(error))
                }
                Ok(_) | Err(_) => Ok(()),
            }
        };
        let decide = || match self.context.table.task(id) {
            Some(task) if matches!(task.state, TaskState::Running { .. }) => Decision::Begin,
            Some(_) | None => Decision::Answer(Ok(())),
        };
        self.task_ops.run(Op::Stop(id), b"", decide, work).await
    }
}
