//! Tasks, as seen by one owner.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::checkpoint::checkpoint_task;
use super::start::start_task;
use super::{NewTask, Tasks, make_task, update_task};
use crate::backend::{Blocker, Inspection, UnreadableKind};
use crate::error::{Error, Result};
use crate::gateway::access::OwnerAccess;
use crate::gateway::op::{Op, ignore_not_found};
use crate::id::{SandboxId, TaskId};
use crate::object::{Task, TaskDetails};
use crate::operation::{OperationKind, Subject};
use crate::singleflight::Decision;
use crate::spec::{CheckpointSpec, PidMode, Signal, TaskSpec, TaskUpdate};
use crate::state::{Exit, TaskState};
use crate::stats::{TaskMetrics, TaskStats};
use crate::stop_request::{StopReason, StopRequest};
use crate::stream::{AttachSpec, Attachment};

/// The tasks of one owner.
#[derive(Debug, Clone, Copy)]
pub struct ScopedTasks<'s> {
    access: &'s OwnerAccess,
    tasks: &'s Arc<Tasks>,
}

// === impl ScopedTasks ===

impl<'s> ScopedTasks<'s> {
    pub(in crate::gateway) const fn new(access: &'s OwnerAccess, tasks: &'s Arc<Tasks>) -> Self {
        Self { access, tasks }
    }

    /// This owner's tasks.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn list(self) -> Result<Vec<Arc<Task>>> {
        Ok(self.access.ready()?.table.tasks(self.access.owner()))
    }

    /// The task with this id, or the only one whose id has this prefix.
    ///
    /// # Errors
    /// `NotFound` if there is none, also for a text that cannot be an id; `InvalidArgument` if the prefix is
    /// ambiguous.
    pub fn find(self, id: &str) -> Result<Arc<Task>> {
        self.access.task(id)
    }

    /// The task with this name, if it exists.
    ///
    /// # Errors
    /// `Unavailable` before recovery.
    pub fn named(self, name: &str) -> Result<Option<Arc<Task>>> {
        Ok(self
            .access
            .ready()?
            .table
            .task_named(self.access.owner(), name))
    }

    /// The task with this id, if it runs.
    ///
    /// # Errors
    /// As for [`ScopedTasks::find`]; `FailedPrecondition` if it does not run.
    pub fn require_running(self, id: &str) -> Result<Arc<Task>> {
        self.access.running_task(id)
    }

    /// Creates a task in a ready sandbox. Idempotent by name, as [`ScopedSandboxes::create`](crate::gateway::ScopedSandboxes::create). Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if the sandbox or the image does not exist; `FailedPrecondition` if the sandbox is not
    /// ready, or the name is held by a task that cannot be read; `AlreadyExists` if it is held by a task with
    /// another configuration; those of
    /// [`TaskBackend::create_task`](crate::backend::TaskBackend::create_task).
    pub async fn create(self, sandbox: &str, spec: TaskSpec) -> Result<Arc<Task>> {
        let context = self.access.ready()?;
        let sandbox = self.access.sandbox(sandbox)?;
        if spec.meta.owner != self.access.owner() {
            return Err(Error::internal(format!(
                "a task of {} was asked for by {}",
                spec.meta.owner,
                self.access.owner()
            )));
        }
        let key = NewTask {
            name: format!("{}/{}", self.access.owner(), spec.meta.name),
            sandbox: sandbox.id,
        };
        let request = spec.meta.record.clone();
        let decide = || match context
            .table
            .task_named(self.access.owner(), &spec.meta.name)
        {
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
            None => match context
                .check_name(UnreadableKind::Task, self.access.owner(), &spec.meta.name)
                .and_then(|()| self.check_admission(sandbox.id, spec.pid))
            {
                Ok(()) => Decision::Begin,
                Err(error) => Decision::Answer(Err(error)),
            },
        };
        let work = || {
            let id = TaskId::random();
            let meta = Arc::new(spec.meta.clone());
            let subject = Subject::new_task(id, meta, sandbox.id, Some(&sandbox));
            let operation = self.access.begin(OperationKind::CreateTask, subject);
            operation.run(make_task(
                Arc::clone(self.tasks),
                id,
                sandbox.id,
                spec.clone(),
            ))
        };
        self.tasks.new_tasks.run(key, &request, decide, work).await
    }

    /// Starts a created task; joins a start in flight. Cancel-safe: if the last caller goes away, the start
    /// is given up, and the task stays created, or has exited. A start that has to outlive its caller is for
    /// [`Scope::run_detached`](crate::gateway::Scope::run_detached).
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is not in the state `Created`; `Cancelled` if all earlier
    /// callers have gone away; those of [`TaskBackend::start_task`](crate::backend::TaskBackend::start_task),
    /// after which the task has exited with [`START_FAILED_CODE`](crate::state::START_FAILED_CODE).
    pub async fn start(self, id: &str) -> Result<()> {
        let id = self.access.task(id)?.id;
        let work = |waiters| {
            let operation = self.access.begin_on_task(OperationKind::StartTask, id);
            let callers = self.access.context().callers(waiters);
            operation.run(start_task(Arc::clone(self.tasks), id, callers))
        };
        self.tasks
            .task_ops
            .run_watched(Op::Start(id), b"", || Decision::Begin, work)
            .await
    }

    /// Stops a task: sends its stop signal, and SIGKILL when `grace` has passed since the call. Returns after
    /// its exit. Idempotent: succeeds for a task that does not exist or does not run. A second call during a
    /// stop sends no second stop signal, but applies its own `grace`. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `DeadlineExceeded` if no exit is seen after SIGKILL; `Unavailable` if the runtime cannot be reached;
    /// `FailedPrecondition` if it cannot be read.
    pub async fn stop(self, id: &str, grace: Duration) -> Result<()> {
        self.stop_by(id, None, grace).await
    }

    /// As [`ScopedTasks::stop`], with `signal` in place of the task's own stop signal.
    ///
    /// # Errors
    /// Those of [`ScopedTasks::stop`].
    pub async fn stop_by(self, id: &str, signal: Option<Signal>, grace: Duration) -> Result<()> {
        self.stop_for(id, signal, grace, StopReason::Requested)
            .await
    }

    /// As [`ScopedTasks::stop_by`], for a reason that the event of the exit names.
    ///
    /// # Errors
    /// Those of [`ScopedTasks::stop`].
    pub async fn stop_for(
        self,
        id: &str,
        signal: Option<Signal>,
        grace: Duration,
        reason: StopReason,
    ) -> Result<()> {
        let task = match self.access.task(id) {
            Ok(task) => task,
            Err(error) => return ignore_not_found(Err(error)),
        };
        let tasks = Arc::clone(self.tasks);
        if matches!(
            task.state,
            TaskState::Exited { .. } | TaskState::Removing { .. }
        ) {
            return Ok(());
        }
        let operation = self.access.begin_on_task(OperationKind::StopTask, task.id);
        let work = operation
            .run(async move { ignore_not_found(tasks.end(task.id, signal, grace, reason).await) });
        self.access
            .context()
            .run_detached(format!("stop of task {id}"), work)
            .await
    }

    /// Sends a signal to the main process of a running task.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; `Unavailable` if the runtime cannot be reached.
    pub async fn signal(self, id: &str, signal: Signal) -> Result<()> {
        let task = self.access.running_task(id)?;
        let argument = signal.number().to_string();
        let subject = self
            .access
            .context()
            .task_subject(task.id)
            .with_argument(&argument);
        let operation = self.access.begin(OperationKind::SignalTask, subject);
        let context = self.access.context();
        let send = async {
            let request = StopRequest::current(StopReason::Requested);
            context.table.note_signal(task.id, signal, request);
            context.backend.signal_task(task.id, signal).await
        };
        operation.run(send).await
    }

    /// Waits for the exit of a task. Cancel-safe; any number of callers may wait.
    ///
    /// # Errors
    /// `NotFound` if it does not exist or is removed before it exits.
    pub async fn wait(self, id: &str) -> Result<Exit> {
        let task = self.access.task(id)?;
        self.tasks.wait_exit(task.id).await
    }

    /// Removes a task, with SIGKILL first if it runs. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `FailedPrecondition` if it cannot be read; those of
    /// [`TaskBackend::remove_task`](crate::backend::TaskBackend::remove_task); it can be removed again.
    pub async fn remove(self, id: &str) -> Result<()> {
        match self.access.task(id) {
            Ok(task) => self.tasks.remove(task.id).await,
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
    pub async fn update(self, id: &str, update: impl Into<TaskUpdate> + Send) -> Result<()> {
        let update = update.into();
        self.update_from(id, |_| update).await
    }

    /// As [`ScopedTasks::update`], for an update that is made from what the task has: no other change of the
    /// task comes between `make` and the update.
    ///
    /// # Errors
    /// Those of [`ScopedTasks::update`].
    pub async fn update_from(
        self,
        id: &str,
        make: impl FnOnce(&TaskDetails) -> TaskUpdate + Send + 'static,
    ) -> Result<()> {
        let id = self.access.task(id)?.id;
        let tasks = Arc::clone(self.tasks);
        let operation = self.access.begin_on_task(OperationKind::UpdateTask, id);
        let work = operation.run(update_task(tasks, id, make));
        self.access
            .context()
            .run_detached(format!("update of task {id}"), work)
            .await
    }

    /// Reopens the log of a running task: its output continues in a new file.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run or has no log; `Unavailable` if the logkeeper
    /// cannot be reached.
    pub async fn reopen_log(self, id: &str) -> Result<()> {
        let task = self.access.running_task(id)?;
        self.access.context().backend.reopen_log(task.id).await
    }

    /// Writes the processes of a running task and the changes to its files into an archive. The task is
    /// frozen meanwhile and thawed afterwards; other operations that change the task wait. Not idempotent: a
    /// second checkpoint needs a path of its own. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; those of
    /// [`CheckpointBackend::checkpoint_task`](crate::backend::CheckpointBackend::checkpoint_task).
    pub async fn checkpoint(self, id: &str, spec: CheckpointSpec) -> Result<()> {
        let id = self.access.running_task(id)?.id;
        let tasks = Arc::clone(self.tasks);
        let operation = self.access.begin_on_task(OperationKind::Checkpoint, id);
        let work = operation.run(checkpoint_task(tasks, id, spec));
        self.access
            .context()
            .run_detached(format!("checkpoint of task {id}"), work)
            .await
    }

    /// Attaches to the streams of a running task. Dropping the returned value does not affect the task.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; those of
    /// [`TaskBackend::attach`](crate::backend::TaskBackend::attach).
    pub async fn attach(self, id: &str, spec: AttachSpec) -> Result<Attachment> {
        let task = self.access.running_task(id)?;
        let operation = self.access.begin_on_task(OperationKind::Attach, task.id);
        operation
            .run(self.access.context().backend.attach(task.id, spec))
            .await
    }

    /// Sets the size of a running task's terminal, in characters.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; `Unavailable` if the runtime cannot be reached.
    pub async fn resize(self, id: &str, width: u16, height: u16) -> Result<()> {
        let task = self.access.running_task(id)?;
        self.access
            .context()
            .backend
            .resize_task(task.id, width, height)
            .await
    }

    /// Usage of these tasks; those that do not exist any more are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read.
    pub async fn stats(self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>> {
        let ids = self.own_tasks(ids)?;
        self.access.context().backend.task_stats(&ids).await
    }

    /// All metrics of these tasks; those that do not run are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read.
    pub async fn metrics(self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>> {
        let ids = self.own_tasks(ids)?;
        self.access.context().backend.task_metrics(&ids).await
    }

    /// Information about a task for people.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if they cannot be read.
    pub async fn inspect(self, id: TaskId) -> Result<Inspection> {
        let id = self.access.task(&id.to_string())?.id;
        self.access.context().backend.inspect_task(id).await
    }

    /// As [`ScopedTasks::inspect`], for somebody who is then shown what the task may keep secret: an operation, so
    /// that it is recorded.
    ///
    /// # Errors
    /// Those of [`ScopedTasks::inspect`].
    pub async fn show_secrets(self, id: TaskId) -> Result<Inspection> {
        let id = self.access.task(&id.to_string())?.id;
        let operation = self.access.begin_on_task(OperationKind::ShowSecrets, id);
        operation
            .run(self.access.context().backend.inspect_task(id))
            .await
    }

    /// The processes that hold up a task: see [`StatsBackend::task_blockers`](crate::backend::StatsBackend::task_blockers).
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` before recovery.
    pub async fn blockers(self, id: TaskId) -> Result<Vec<Blocker>> {
        self.access.task_by_id(id)?;
        self.access.context().backend.task_blockers(id).await
    }

    fn own_tasks(self, ids: &[TaskId]) -> Result<Vec<TaskId>> {
        let table = &self.access.ready()?.table;
        Ok(ids
            .iter()
            .copied()
            .filter(|id| {
                table
                    .task(*id)
                    .is_some_and(|task| task.meta.owner == self.access.owner())
            })
            .collect())
    }

    /// Checks that a task can be created in this sandbox now.
    fn check_admission(self, sandbox: SandboxId, pid: PidMode) -> Result<()> {
        self.access.context().check_ready(sandbox)?;
        let PidMode::Target(target) = pid else {
            return Ok(());
        };
        let task = self.access.running_task(&target.to_string())?;
        if task.sandbox == sandbox {
            Ok(())
        } else {
            Err(Error::invalid(
                "pid namespace target",
                format!("task {target} is in another sandbox"),
            ))
        }
    }
}
