//! Tasks: created in ready sandboxes, started, changed, stopped and removed.

use std::sync::Arc;
use std::time::Duration;

use super::claims::Claims;
use super::context::Context;
use super::devices::{BoundClaims, DeviceLeases};
use super::image::Images;
use super::op::Op;
use super::start_limiter::StartLimiter;
use crate::error::{Error, Result};
use crate::id::{SandboxId, TaskId};
use crate::keyed_lock::KeyedLock;
use crate::object::{Task, TaskDetails};
use crate::operation::{OperationKind, step};
use crate::singleflight::{Decision, Singleflight};
use crate::spec::{LeaseClaim, TaskSpec, TaskUpdate, Throttle};
use crate::state::{Exit, TaskEvent, TaskState};
use crate::stop_request::StopReason;
use crate::table::{Counts, no_task};

mod checkpoint;
mod lost;
mod outage;
mod scoped;
mod start;
mod stop;
mod unended;
mod watch;

pub use scoped::ScopedTasks;
pub use unended::UnendedTask;

use lost::LostTasks;
use unended::UnendedTasks;

/// The tasks of all owners: operations on one run in order.
#[derive(Debug)]
pub struct Tasks {
    context: Arc<Context>,
    claims: Arc<Claims>,
    devices: Arc<DeviceLeases>,
    images: Arc<Images>,
    start_limiter: Arc<StartLimiter>,
    new_tasks: Singleflight<NewTask, Arc<Task>>,
    task_ops: Singleflight<Op<TaskId>, ()>,
    /// Serialises starts, updates, checkpoints and removals of one task.
    task_locks: KeyedLock<TaskId>,
    lost_tasks: LostTasks,
    unended_tasks: UnendedTasks,
}

/// The components that tasks use.
#[derive(Debug)]
pub(super) struct TaskParts {
    pub(super) claims: Arc<Claims>,
    pub(super) devices: Arc<DeviceLeases>,
    pub(super) images: Arc<Images>,
    pub(super) start_limiter: Arc<StartLimiter>,
}

/// The name of a task being created, and the sandbox it is created in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NewTask {
    name: String,
    sandbox: SandboxId,
}

impl std::fmt::Display for NewTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {}", self.name)
    }
}

// === impl Tasks ===

impl Tasks {
    /// Without operations.
    pub(super) fn new(context: Arc<Context>, parts: TaskParts) -> Self {
        let TaskParts {
            claims,
            devices,
            images,
            start_limiter,
        } = parts;
        let new_tasks = Singleflight::new(context.operations.clone());
        let task_ops = Singleflight::new(context.operations.clone());
        Self {
            context,
            claims,
            devices,
            images,
            start_limiter,
            new_tasks,
            task_ops,
            task_locks: KeyedLock::default(),
            lost_tasks: LostTasks::default(),
            unended_tasks: UnendedTasks::default(),
        }
    }

    /// The number of tasks by owner and state.
    #[must_use]
    pub fn count(&self) -> Counts {
        self.context.table.count_tasks()
    }

    /// Waits for the creations of tasks in a sandbox that are in flight now. Cancel-safe.
    pub(super) async fn wait_creations_in(&self, sandbox: SandboxId) {
        self.new_tasks
            .wait_matching(|key| key.sandbox == sandbox)
            .await;
    }

    /// Removes a task, with SIGKILL first if it runs; joins a removal in flight.
    pub(super) async fn remove(self: &Arc<Self>, id: TaskId) -> Result<()> {
        let work = || {
            let operation = self.context.begin_on_task(OperationKind::RemoveTask, id);
            operation.run(remove_task(Arc::clone(self), id))
        };
        self.task_ops
            .run(Op::Remove(id), b"", || Decision::Begin, work)
            .await
    }

    /// Applies an event to a task and returns the task before and after. Releases the reservation of a task
    /// that has exited.
    fn apply(&self, id: TaskId, event: TaskEvent) -> Result<(Arc<Task>, Arc<Task>)> {
        let (before, after) = self.context.table.apply_task(id, event)?;
        self.claims.follow_state(id, &before.state, &after.state);
        Ok((before, after))
    }

    /// Releases everything that was claimed for a task that could not be created.
    fn release_claims(&self, id: TaskId, leases: &[LeaseClaim]) {
        self.devices.unbind(leases);
        self.claims.release_compute(id);
    }

    /// Waits for the exit of a task.
    async fn wait_exit(&self, id: TaskId) -> Result<Exit> {
        let mut view = self
            .context
            .table
            .watch_task(id)
            .ok_or_else(|| no_task(id))?;
        let ended = |task: &Arc<Task>| {
            matches!(
                task.state,
                TaskState::Exited { .. } | TaskState::Removing { .. }
            )
        };
        let task = view.wait_for(ended).await.map_err(|_| no_task(id))?.clone();
        match &task.state {
            TaskState::Exited { exit, .. }
            | TaskState::Removing {
                exit: Some(exit), ..
            } => Ok(exit.clone()),
            TaskState::Removing { exit: None, .. }
            | TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Running { .. }
            | TaskState::Stopping { .. } => Err(no_task(id)),
        }
    }
}

async fn make_task(
    tasks: Arc<Tasks>,
    id: TaskId,
    sandbox: SandboxId,
    mut spec: TaskSpec,
) -> Result<Arc<Task>> {
    let context = &tasks.context;
    // Before leases are bound, so that the ledger checks the provider's devices like those that the task
    // names itself.
    step(
        "ask_device_plugins",
        tasks.devices.add_provided_devices(&mut spec),
    )
    .await?;
    tasks.claims.claim_compute(
        id,
        (spec.meta.owner, sandbox),
        &spec.resources,
        spec.compute,
    )?;
    let BoundClaims { claims, fresh } = tasks
        .devices
        .bind(sandbox, &spec)
        .inspect_err(|_| tasks.release_claims(id, &[]))?;
    spec.leases.clone_from(&claims);
    let _images = tasks.images.use_in_creation(id, &spec);
    let details = match context.backend.create_task(id, sandbox, &spec).await {
        Ok(details) => details,
        Err(error) => {
            tasks.release_claims(id, &fresh);
            return Err(error);
        }
    };
    let task = Task {
        id,
        sandbox,
        meta: Arc::new(spec.meta),
        details,
        state: TaskState::Created,
    };
    match context.table.insert_task(task) {
        Ok(task) => {
            tasks.devices.forget_stored(&claims).await;
            Ok(task)
        }
        Err(refused) => {
            tasks.release_claims(id, &fresh);
            // The sandbox was stopped meanwhile.
            if let Err(error) = context.backend.remove_task(id).await {
                tracing::warn!(task = %id, error = error.report(), "cannot remove a task whose sandbox was stopped meanwhile: retrying");
                tasks.discard(id);
            }
            Err(refused)
        }
    }
}

async fn update_task(
    tasks: Arc<Tasks>,
    id: TaskId,
    make: impl FnOnce(&TaskDetails) -> TaskUpdate + Send,
) -> Result<()> {
    let context = &tasks.context;
    let _guard = tasks.lock(id).await?;
    let task = context.table.task(id).ok_or_else(|| no_task(id))?;
    match task.state {
        TaskState::Created | TaskState::Running { .. } | TaskState::Stopping { .. } => {}
        TaskState::Starting
        | TaskState::Unattended
        | TaskState::Exited { .. }
        | TaskState::Removing { .. } => {
            let state = task.state.as_str();
            return Err(Error::failed_precondition(format!(
                "task {id} is {state}: its limits are fixed"
            )));
        }
    }
    let TaskUpdate {
        resources,
        annotations,
        throttles,
        compute,
    } = make(&task.details);
    let update = TaskUpdate {
        resources: task.details.resources.merged(&resources),
        annotations,
        throttles: Throttle::merged(&task.details.throttles, &throttles),
        compute,
    };
    tasks.claims.change_compute(
        &task,
        &update.resources,
        compute.unwrap_or(task.details.compute),
    )?;
    let updated = match context.backend.update_task(id, &update).await {
        Ok(details) => context.table.set_details(id, details),
        Err(error) => Err(error),
    };
    tasks.claims.sync_compute(id);
    updated
}

async fn remove_task(tasks: Arc<Tasks>, id: TaskId) -> Result<()> {
    let context = &tasks.context;
    let _guard = loop {
        tasks
            .end(id, None, Duration::ZERO, StopReason::Requested)
            .await?;
        let guard = tasks.lock(id).await?;
        match context.table.task(id) {
            None => return Ok(()),
            // A start came first: what it has started is ended too. No task is started twice.
            Some(task) if task.state.may_run() => {}
            Some(_) => break guard,
        }
    };
    tasks.apply(id, TaskEvent::RemoveRequested)?;
    tasks.devices.store_orphaned(id).await;
    match step("remove_objects", context.backend.remove_task(id)).await {
        Ok(()) => {
            context.table.remove_task(id);
            tasks.claims.release_compute(id);
            Ok(())
        }
        Err(error) => {
            tasks.apply(id, TaskEvent::RemoveFailed)?;
            Err(error.context(format!("remove task {id}")))
        }
    }
}
