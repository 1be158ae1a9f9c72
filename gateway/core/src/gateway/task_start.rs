//! Starting tasks.
//!
//! A start does not outlive its callers. An orchestrator whose call has ended believes that the start has
//! failed, and starts another instance beside it. So a start that nobody waits for any more is given up:
//!
//! ```text
//! waits for earlier operations, for a permit ─► backend works ─► program is executed ─► answer
//!   └── given up: the task stays created          └── given up:       └── killed: the task has exited
//!                                                     its start has failed
//! ```
//!
//! While that is under way the task is [`Unattended`](TaskState::Unattended), and not created: whoever looks
//! at it must not start another instance yet.

use std::pin::pin;
use std::time::SystemTime;

use super::start_limiter::StartPermit;
use super::{Callers, Gateway, Op, Scope, Shared};
use crate::backend::{Started, Withdrawal};
use crate::error::{Reason, Result};
use crate::id::TaskId;
use crate::operation::{OperationKind, step};
use crate::singleflight::Decision;
use crate::spec::Signal;
use crate::state::{Exit, TaskEvent, TaskState};
use crate::table::no_task;

impl Scope {
    /// Starts a created task; joins a start in flight. Cancel-safe: if the last caller goes away, the start
    /// is given up, and the task stays created, or has exited. A start that has to outlive its caller is for
    /// [`Scope::run_detached`].
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is not in the state `Created`; `Cancelled` if all earlier
    /// callers have gone away; those of [`TaskBackend::start_task`](crate::backend::TaskBackend::start_task),
    /// after which the task has exited with [`START_FAILED_CODE`](crate::state::START_FAILED_CODE).
    pub async fn start_task(&self, id: &str) -> Result<()> {
        let id = self.task(id)?.id;
        let work = |waiters| {
            let operation = self.begin_on_task(OperationKind::StartTask, id);
            let callers = self.gateway.callers(waiters);
            operation.run(start_task(self.gateway.clone(), id, callers))
        };
        self.gateway.shared.task_ops.run_watched(Op::Start(id), b"", || Decision::Begin, work).await
    }
}

impl Gateway {
    /// Has the backend start a task, and withdraws that if all callers go away meanwhile.
    async fn start_unless_withdrawn(
        &self,
        id: TaskId,
        permit: StartPermit<'_>,
        callers: &Callers,
    ) -> Result<Started> {
        let withdrawal = Withdrawal::default();
        let mut start = pin!(permit.run(self.shared.backend.start_task(id, &withdrawal)));
        tokio::select! {
            biased;
            started = &mut start => return started,
            () = callers.gone() => {}
        }
        tracing::info!(task.id = %id, "everybody who asked for the start of a task has gone away: it is given up");
        withdrawal.withdraw();
        // A refused event must not hide the result: a program that was executed has to be found and killed.
        if let Err(error) = self.apply_task(id, TaskEvent::StartWithdrawn) {
            tracing::error!(task.id = %id, error = error.report(), "a task whose start is given up is not shown as unattended");
        }
        start.await
    }

    /// Kills a task whose program was executed although nobody waits for its start any more. The caller holds
    /// the task's lock.
    async fn end_withdrawn(&self, id: TaskId) -> Result<()> {
        self.apply_task(id, TaskEvent::StopRequested)?;
        self.shared.backend.signal_task(id, Signal::KILL).await?;
        self.wait_exit_published(id).await
    }
}

async fn start_task(gateway: Gateway, id: TaskId, callers: Callers) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    let what = format!("start task {id}");
    let is_startable = |state: &TaskState| matches!(state, TaskState::Created | TaskState::Unattended);
    let was_startable = shared.table.task(id).is_some_and(|task| is_startable(&task.state));
    let _guard = callers.unless_gone(&what, gateway.lock_task(id)).await??;
    let task = shared.table.task(id).ok_or_else(|| no_task(id))?;
    if was_startable && task.state.was_started() {
        // The start that a predecessor began succeeded while this call waited: it is the one requested.
        return Ok(());
    }
    // A refused start changes no state.
    gateway.check_ready(task.sandbox)?;
    gateway.reclaim_leases(&task)?;
    gateway.reclaim_compute(&task)?;
    gateway.apply_task(id, TaskEvent::StartRequested)?;
    let permit = match callers.unless_gone(&what, shared.start_limiter.admit(task.meta.owner)).await {
        Ok(permit) => permit,
        Err(error) => {
            gateway.apply_task(id, TaskEvent::StartRefused)?;
            return Err(error);
        }
    };
    match gateway.start_unless_withdrawn(id, permit, &callers).await {
        Ok(started) => {
            gateway.apply_task(id, TaskEvent::Started { pid: started.pid, at: started.at })?;
            gateway.watch_exit(id);
            if !callers.are_gone() {
                return Ok(());
            }
            if let Err(error) = step("end_withdrawn_start", gateway.end_withdrawn(id)).await {
                // It counts as running, which its orchestrator sees.
                tracing::warn!(task.id = %id, error = error.report(), "cannot end a task that was started although nobody waits for it any more");
            }
            Err(Withdrawal::error().context(what))
        }
        Err(error) => {
            let event = if error.reason() == Some(Reason::NotBegun) {
                TaskEvent::StartRefused
            } else {
                TaskEvent::StartFailed(Exit::start_failed(SystemTime::now(), error.report()))
            };
            gateway.apply_task(id, event)?;
            Err(error.context(what))
        }
    }
}
