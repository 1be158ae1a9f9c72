//! Creating, stopping, changing and removing tasks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::lease::BoundClaims;
use super::{Gateway, NewTask, Op, Scope, Shared, ignore_not_found};
use crate::error::{Error, ErrorKind, Result};
use crate::id::{SandboxId, TaskId};
use crate::object::{Task, TaskDetails};
use crate::operation::{Caller, OperationKind, Subject, step};
use crate::singleflight::Decision;
use crate::spec::{PidMode, Signal, TaskSpec, TaskUpdate, Throttle};
use crate::state::{Exit, TaskEvent, TaskState};
use crate::table::{no_sandbox, no_task, sandbox_not_ready};
use crate::trace;

impl Scope {
    /// Creates a task in a ready sandbox. Idempotent by name, as [`Scope::create_sandbox`]. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if the sandbox or the image does not exist; `FailedPrecondition` if the sandbox is not
    /// ready; `AlreadyExists` if the name is held by a task with another configuration; those of
    /// [`TaskBackend::create_task`](crate::backend::TaskBackend::create_task).
    pub async fn create_task(&self, sandbox: &str, spec: TaskSpec) -> Result<Arc<Task>> {
        let shared = self.gateway.ready()?;
        let sandbox = self.sandbox(sandbox)?;
        if spec.meta.owner != self.owner {
            return Err(Error::internal(format!(
                "a task of {} was asked for by {}",
                spec.meta.owner, self.owner
            )));
        }
        let key = NewTask { name: format!("{}/{}", self.owner, spec.meta.name), sandbox: sandbox.id };
        let request = spec.meta.record.clone();
        let decide = || match shared.table.task_named(self.owner, &spec.meta.name) {
            Some(held) if matches!(held.state, TaskState::Removing { .. }) => {
                Decision::Answer(Err(Error::already_exists(format!(
                    "task name {:?} is held by {}, which is being removed",
                    spec.meta.name, held.id
                ))))
            }
            Some(held) if held.meta.record == request && held.sandbox == sandbox.id => {
                Decision::Answer(Ok(held))
            }
            Some(held) => Decision::Answer(Err(Error::already_exists(format!(
                "task name {:?} is held by {} with another configuration",
                spec.meta.name, held.id
            )))),
            None => match self.check_admission(sandbox.id, spec.pid) {
                Ok(()) => Decision::Begin,
                Err(error) => Decision::Answer(Err(error)),
            },
        };
        let work = || {
            let id = TaskId::random();
            let meta = Arc::new(spec.meta.clone());
            let subject = Subject::new_task(id, meta, sandbox.id, Some(&sandbox));
            let operation = self.begin(OperationKind::CreateTask, subject);
            operation.run(make_task(self.gateway.clone(), id, sandbox.id, spec.clone()))
        };
        shared.new_tasks.run(key, &request, decide, work).await
    }

    /// Whether a task can be created in this sandbox now.
    fn check_admission(&self, sandbox: SandboxId, pid: PidMode) -> Result<()> {
        self.gateway.check_ready(sandbox)?;
        let PidMode::Target(target) = pid else { return Ok(()) };
        let task = self.running_task(&target.to_string())?;
        if task.sandbox == sandbox {
            Ok(())
        } else {
            Err(Error::invalid("pid namespace target", format!("task {target} is in another sandbox")))
        }
    }

    /// Stops a task: sends its stop signal, and SIGKILL when `grace` has passed since the call. Returns after
    /// its exit. Idempotent: succeeds for a task that does not exist or does not run. A second call during a
    /// stop sends no second stop signal, but applies its own `grace`. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `DeadlineExceeded` if no exit is seen after SIGKILL; `Unavailable` if the runtime cannot be reached.
    pub async fn stop_task(&self, id: &str, grace: Duration) -> Result<()> {
        self.stop_task_by(id, None, grace).await
    }

    /// As [`Scope::stop_task`], with `signal` in place of the task's own stop signal.
    ///
    /// # Errors
    /// Those of [`Scope::stop_task`].
    pub async fn stop_task_by(&self, id: &str, signal: Option<Signal>, grace: Duration) -> Result<()> {
        let task = match self.task(id) {
            Ok(task) => task,
            Err(error) => return ignore_not_found(Err(error)),
        };
        let gateway = self.gateway.clone();
        if matches!(task.state, TaskState::Exited { .. } | TaskState::Removing { .. }) {
            return Ok(());
        }
        let operation = self.begin_on_task(OperationKind::StopTask, task.id);
        let work =
            operation.run(async move { ignore_not_found(gateway.end_task(task.id, signal, grace).await) });
        self.gateway.run_detached(format!("stop of task {id}"), work).await
    }

    /// Sends a signal to the main process of a running task.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; `Unavailable` if the runtime cannot be reached.
    pub async fn signal_task(&self, id: &str, signal: Signal) -> Result<()> {
        let task = self.running_task(id)?;
        let argument = signal.number().to_string();
        let subject = self.gateway.task_subject(task.id).with_argument(&argument);
        let operation = self.begin(OperationKind::SignalTask, subject);
        operation.run(self.gateway.shared.backend.signal_task(task.id, signal)).await
    }

    /// Waits for the exit of a task. Cancel-safe; any number of callers may wait.
    ///
    /// # Errors
    /// `NotFound` if it does not exist or is removed before it exits.
    pub async fn wait_task(&self, id: &str) -> Result<Exit> {
        let task = self.task(id)?;
        self.gateway.wait_exit(task.id).await
    }

    /// Removes a task, with SIGKILL first if it runs. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of [`TaskBackend::remove_task`](crate::backend::TaskBackend::remove_task); it can be removed
    /// again.
    pub async fn remove_task(&self, id: &str) -> Result<()> {
        match self.task(id) {
            Ok(task) => self.gateway.remove_task(task.id).await,
            Err(error) => ignore_not_found(Err(error)),
        }
    }

    /// Changes a task's limits and annotations; those that `update` does not name stay. Cancel-safe: the work
    /// continues.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it has exited; those of
    /// [`TaskBackend::update_task`](crate::backend::TaskBackend::update_task), after which the old limits
    /// are in force.
    pub async fn update_task(&self, id: &str, update: impl Into<TaskUpdate> + Send) -> Result<()> {
        let update = update.into();
        self.update_task_from(id, |_| update).await
    }

    /// As [`Scope::update_task`], for an update that is made from what the task has: no other change of the
    /// task comes between `make` and the update.
    ///
    /// # Errors
    /// Those of [`Scope::update_task`].
    pub async fn update_task_from(
        &self,
        id: &str,
        make: impl FnOnce(&TaskDetails) -> TaskUpdate + Send + 'static,
    ) -> Result<()> {
        let id = self.task(id)?.id;
        let gateway = self.gateway.clone();
        let operation = self.begin_on_task(OperationKind::UpdateTask, id);
        let work = operation.run(update_task(gateway, id, make));
        self.gateway.run_detached(format!("update of task {id}"), work).await
    }

    /// Reopens the log of a running task: its output continues in a new file.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run or has no log; `Unavailable` if the logkeeper
    /// cannot be reached.
    pub async fn reopen_log(&self, id: &str) -> Result<()> {
        let task = self.running_task(id)?;
        self.gateway.shared.backend.reopen_log(task.id).await
    }
}

impl Gateway {
    /// Kills a task. Returns when no process of it runs; [`Gateway::wait_exit_published`] waits for the exit
    /// event.
    pub(super) async fn kill_task(&self, id: TaskId) -> Result<()> {
        if !self.send_kill(id, None, Duration::ZERO).await? {
            return Ok(());
        }
        let ended = async {
            // The task's watcher retries when the backend is available again, and then publishes the exit.
            if self.shared.backend.wait_end(id).await.is_err() {
                drop(self.wait_exit(id).await);
            }
        };
        self.within_kill_limit(id, ended).await
    }

    /// Waits until the exit of a killed task is published.
    pub(super) async fn wait_exit_published(&self, id: TaskId) -> Result<()> {
        match self.shared.table.task(id) {
            Some(task) if task.state.may_run() => {}
            Some(_) | None => return Ok(()),
        }
        // `NotFound`: it was removed meanwhile.
        self.within_kill_limit(id, async { drop(self.wait_exit(id).await) }).await
    }

    pub(super) async fn remove_task(&self, id: TaskId) -> Result<()> {
        let work = || {
            let operation = self.begin_on_task(OperationKind::RemoveTask, id);
            operation.run(remove_task(self.clone(), id))
        };
        self.shared.task_ops.run(Op::Remove(id), b"", || Decision::Begin, work).await
    }

    async fn end_task(&self, id: TaskId, signal: Option<Signal>, grace: Duration) -> Result<()> {
        if self.send_kill(id, signal, grace).await? { self.wait_exit_published(id).await } else { Ok(()) }
    }

    /// Asks a task to stop, and sends SIGKILL if it still runs after `grace`. Returns false if it does not
    /// run any more.
    async fn send_kill(&self, id: TaskId, signal: Option<Signal>, grace: Duration) -> Result<bool> {
        let shared: &Shared = &self.shared;
        let Some(task) = self.settled_task(id).await? else { return Ok(false) };
        if !task.state.may_run() {
            return Ok(false);
        }
        if grace > Duration::ZERO {
            // `grace` runs from the request: the backend may delay the signal.
            let stop = async {
                self.send_stop_signal(id, signal.unwrap_or(task.details.stop_signal)).await?;
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
        match self.apply_task(id, TaskEvent::StopRequested) {
            Ok((_, after)) if !after.state.may_run() => return Ok(false),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        }
        shared.backend.signal_task(id, Signal::KILL).await?;
        Ok(true)
    }

    /// A task of which no start is in progress; `None` if it does not exist.
    async fn settled_task(&self, id: TaskId) -> Result<Option<Arc<Task>>> {
        let shared: &Shared = &self.shared;
        self.unless_outage(id, shared.task_ops.wait_finished(&Op::Start(id))).await?;
        let Some(task) = shared.table.task(id) else { return Ok(None) };
        match task.state {
            TaskState::Created | TaskState::Starting | TaskState::Unattended => {}
            TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => return Ok(Some(task)),
        }
        // A start may have begun since, and the runtime may still finish one that a predecessor began. Both
        // hold the lock until the outcome is known.
        let _guard = self.lock_task(id).await?;
        Ok(shared.table.task(id))
    }

    /// Sends a task its stop signal once: concurrent callers share one send, later callers send none.
    async fn send_stop_signal(&self, id: TaskId, signal: Signal) -> Result<()> {
        let gateway = self.clone();
        let work = move || async move {
            gateway.shared.backend.signal_task(id, signal).await?;
            match gateway.apply_task(id, TaskEvent::StopRequested) {
                // It exited or was removed meanwhile.
                Err(error) if error.kind() != ErrorKind::FailedPrecondition => ignore_not_found(Err(error)),
                Ok(_) | Err(_) => Ok(()),
            }
        };
        let decide = || match self.shared.table.task(id) {
            Some(task) if matches!(task.state, TaskState::Running { .. }) => Decision::Begin,
            Some(_) | None => Decision::Answer(Ok(())),
        };
        self.shared.task_ops.run(Op::Stop(id), b"", decide, work).await
    }

    /// Runs work that continues if the caller goes away.
    pub(super) async fn run_detached<T: Send + 'static>(
        &self,
        what: String,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.shared
            .operations
            .spawn(trace::inherit(Caller::inherit(work)))
            .await
            .unwrap_or_else(|fault| Err(Error::internal(format!("{what} broke off")).with_source(fault)))
    }

    /// Whether tasks can be created and started in a sandbox.
    pub(super) fn check_ready(&self, id: SandboxId) -> Result<()> {
        match self.shared.table.sandbox(id) {
            Some(sandbox) if sandbox.state.is_ready() => Ok(()),
            Some(sandbox) => Err(sandbox_not_ready(id, &sandbox.state)),
            None => Err(no_sandbox(id)),
        }
    }

    /// Waits for the exit of a task.
    async fn wait_exit(&self, id: TaskId) -> Result<Exit> {
        let mut view = self.shared.table.watch_task(id).ok_or_else(|| no_task(id))?;
        let ended =
            |task: &Arc<Task>| matches!(task.state, TaskState::Exited { .. } | TaskState::Removing { .. });
        let task = view.wait_for(ended).await.map_err(|_| no_task(id))?.clone();
        match &task.state {
            TaskState::Exited { exit, .. } | TaskState::Removing { exit: Some(exit), .. } => Ok(exit.clone()),
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
    gateway: Gateway,
    id: TaskId,
    sandbox: SandboxId,
    mut spec: TaskSpec,
) -> Result<Arc<Task>> {
    let shared: &Shared = &gateway.shared;
    // Before leases are bound, so that the ledger checks the provider's devices like those that the task
    // names itself.
    step("ask_device_plugins", gateway.add_provided_devices(&mut spec)).await?;
    gateway.claim_compute(id, (spec.meta.owner, sandbox), &spec.resources, spec.compute)?;
    let BoundClaims { claims, fresh } =
        gateway.bind(sandbox, &spec).inspect_err(|_| gateway.release_claims(id, &[]))?;
    spec.leases.clone_from(&claims);
    let _images = shared.images_in_creation.add(id, &spec);
    let details = match shared.backend.create_task(id, sandbox, &spec).await {
        Ok(details) => details,
        Err(error) => {
            gateway.release_claims(id, &fresh);
            return Err(error);
        }
    };
    let task = Task { id, sandbox, meta: Arc::new(spec.meta), details, state: TaskState::Created };
    match shared.table.insert_task(task) {
        Ok(task) => {
            gateway.forget_stored(&claims).await;
            Ok(task)
        }
        Err(refused) => {
            gateway.release_claims(id, &fresh);
            // The sandbox was stopped meanwhile.
            if let Err(error) = shared.backend.remove_task(id).await {
                tracing::warn!(task.id = %id, error = error.report(), "cannot remove a task whose sandbox was stopped meanwhile: retrying");
                gateway.discard_task(id);
            }
            Err(refused)
        }
    }
}

async fn update_task(
    gateway: Gateway,
    id: TaskId,
    make: impl FnOnce(&TaskDetails) -> TaskUpdate + Send,
) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    let _guard = gateway.lock_task(id).await?;
    let task = shared.table.task(id).ok_or_else(|| no_task(id))?;
    match task.state {
        TaskState::Created | TaskState::Running { .. } | TaskState::Stopping { .. } => {}
        TaskState::Starting
        | TaskState::Unattended
        | TaskState::Exited { .. }
        | TaskState::Removing { .. } => {
            let state = task.state.as_str();
            return Err(Error::failed_precondition(format!("task {id} is {state}: its limits are fixed")));
        }
    }
    let TaskUpdate { resources, annotations, throttles, compute } = make(&task.details);
    let update = TaskUpdate {
        resources: task.details.resources.merged(&resources),
        annotations,
        throttles: Throttle::merged(&task.details.throttles, &throttles),
        compute,
    };
    gateway.change_compute(&task, &update.resources, compute.unwrap_or(task.details.compute))?;
    let updated = match shared.backend.update_task(id, &update).await {
        Ok(details) => shared.table.set_details(id, details),
        Err(error) => Err(error),
    };
    gateway.sync_compute(id);
    updated
}

async fn remove_task(gateway: Gateway, id: TaskId) -> Result<()> {
    let shared: &Shared = &gateway.shared;
    let _guard = loop {
        gateway.end_task(id, None, Duration::ZERO).await?;
        let guard = gateway.lock_task(id).await?;
        match shared.table.task(id) {
            None => return Ok(()),
            // A start came first: what it has started is ended too. No task is started twice.
            Some(task) if task.state.may_run() => {}
            Some(_) => break guard,
        }
    };
    gateway.apply_task(id, TaskEvent::RemoveRequested)?;
    gateway.store_orphaned(id).await;
    match step("remove_objects", shared.backend.remove_task(id)).await {
        Ok(()) => {
            shared.table.remove_task(id);
            gateway.ledger().compute.release(id);
            Ok(())
        }
        Err(error) => {
            gateway.apply_task(id, TaskEvent::RemoveFailed)?;
            Err(error.context(format!("remove task {id}")))
        }
    }
}
