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
use std::sync::Arc;
use std::time::SystemTime;

use super::Tasks;
use crate::backend::{Started, Withdrawal};
use crate::error::{Reason, Result};
use crate::gateway::callers::Callers;
use crate::gateway::start_limiter::StartPermit;
use crate::id::TaskId;
use crate::operation::step;
use crate::spec::Signal;
use crate::state::{Exit, TaskEvent, TaskState};
use crate::stop_request::{StopReason, StopRequest};
use crate::table::no_task;

impl Tasks {
    /// Has the backend start a task, and withdraws that if all callers go away meanwhile.
    async fn start_unless_withdrawn(
        &self,
        id: TaskId,
        permit: StartPermit<'_>,
        callers: &Callers,
    ) -> Result<Started> {
        let withdrawal = Withdrawal::default();
        let mut start = pin!(permit.run(self.context.backend.start_task(id, &withdrawal)));
        tokio::select! {
            biased;
            started = &mut start => return started,
            () = callers.gone() => {}
        }
        tracing::info!(task = %id, "everybody who asked for the start of a task has gone away: it is given up");
        withdrawal.withdraw();
        // A refused event must not hide the result: a program that was executed has to be found and killed.
        if let Err(error) = self.apply(id, TaskEvent::StartWithdrawn) {
            tracing::error!(task = %id, error = error.report(), "a task whose start is given up is not shown as unattended");
        }
        start.await
    }

    /// Kills a task whose program was executed although nobody waits for its start any more. The caller holds
    /// the task's lock.
    async fn end_withdrawn(self: &Arc<Self>, id: TaskId) -> Result<()> {
        let request = StopRequest::current(StopReason::StartWithdrawn);
        self.context.table.note_stop(id, request);
        self.apply(id, TaskEvent::StopRequested)?;
        self.context.backend.signal_task(id, Signal::KILL).await?;
        self.wait_exit_published(id).await
    }
}

pub(super) async fn start_task(tasks: Arc<Tasks>, id: TaskId, callers: Callers) -> Result<()> {
    let context = &tasks.context;
    let what = format!("start task {id}");
    let is_startable =
        |state: &TaskState| matches!(state, TaskState::Created | TaskState::Unattended);
    let was_startable = context
        .table
        .task(id)
        .is_some_and(|task| is_startable(&task.state));
    let _guard = callers.unless_gone(&what, tasks.lock(id)).await??;
    let task = context.table.task(id).ok_or_else(|| no_task(id))?;
    if was_startable && task.state.was_started() {
        // The start that a predecessor began succeeded while this call waited: it is the one requested.
        return Ok(());
    }
    // A refused start changes no state.
    tasks.context.check_ready(task.sandbox)?;
    tasks.devices.reclaim_leases(&task)?;
    tasks.claims.reclaim_compute(&task)?;
    tasks.apply(id, TaskEvent::StartRequested)?;
    let permit = match callers
        .unless_gone(&what, tasks.start_limiter.admit(task.meta.owner))
        .await
    {
        Ok(permit) => permit,
        Err(error) => {
            tasks.apply(id, TaskEvent::StartRefused)?;
            return Err(error);
        }
    };
    match tasks.start_unless_withdrawn(id, permit, &callers).await {
        Ok(started) => {
            tasks.apply(
                id,
                TaskEvent::Started {
                    pid: started.pid,
                    at: started.at,
                },
            )?;
            tasks.watch_exit(id);
            if !callers.are_gone() {
                return Ok(());
            }
            if let Err(error) = step("end_withdrawn_start", tasks.end_withdrawn(id)).await {
                // It counts as running, which its orchestrator sees.
                tracing::warn!(task = %id, error = error.report(), "cannot end a task that was started although nobody waits for it any more");
            }
            Err(Withdrawal::error().context(what))
        }
        Err(error) => {
            let event = if error.reason() == Some(Reason::NotBegun) {
                TaskEvent::StartRefused
            } else {
                TaskEvent::StartFailed(Exit::start_failed(SystemTime::now(), error.report()))
            };
            tasks.apply(id, event)?;
            Err(error.context(what))
        }
    }
}
