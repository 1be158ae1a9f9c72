//! The operations of a backend, in groups. The call order, and the rules for failures and cancellation, are
//! in the documentation of the parent module.
//!
//! The methods return boxed futures and are not declared by `async_trait`: its bounds on lifetimes keep the
//! compiler from remembering which futures are `Send`, which took it 9 of 30 s for `backends/containerd` (ADR
//! 55).

use std::collections::BTreeMap;

use futures::future::BoxFuture;

use super::{
    Blocker, ExecPlace, ExecProcess, Inspection, NamedVolume, OccupiedPort, SandboxStats, Started,
    Withdrawal,
};
use crate::error::Result;
use crate::id::{Owner, SandboxId, TaskId};
use crate::object::{SandboxDetails, TaskDetails};
use crate::spec::{
    CheckpointSpec, ExecSpec, HostPort, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate,
};
use crate::state::Exit;
use crate::stats::{InterfaceStats, TaskMetrics, TaskStats};
use crate::stream::{AttachSpec, Attachment, Dialled};

/// The sandboxes of a backend.
pub trait SandboxBackend: Send + Sync {
    /// Creates a sandbox and makes it ready, with its network set up.
    ///
    /// # Errors
    /// `InvalidArgument` for a spec that can never work; `Unavailable` if the runtime or the network cannot
    /// be reached. Nothing is left behind.
    fn create_sandbox<'a>(
        &'a self,
        id: SandboxId,
        spec: &'a SandboxSpec,
    ) -> BoxFuture<'a, Result<SandboxDetails>>;

    /// The first of these ports on which a program of the node listens at this moment, so that it would lose its
    /// connections to a sandbox to which the port is forwarded. Cancel-safe.
    ///
    /// # Errors
    /// The node cannot be asked.
    fn find_listener<'a>(
        &'a self,
        ports: &'a [HostPort],
    ) -> BoxFuture<'a, Result<Option<OccupiedPort>>>;

    /// Waits until a sandbox whose creation or restart failed, or that is stopped, holds no network resource of the node any
    /// more, such as host port rules. Returns at once if it holds none. Does not return while the sandbox's record
    /// cannot be read. Cancel-safe.
    fn wait_network_released(&self, id: SandboxId) -> BoxFuture<'_, ()>;

    /// Stops the sandbox's own process and releases its network and namespaces; the network perhaps behind the answer, see
    /// [`SandboxBackend::wait_network_released`]. A start and a removal wait for that. Precondition: no process of its tasks
    /// runs. The cleanup of its tasks may still be in progress. Idempotent.
    ///
    /// # Errors
    /// The sandbox can be stopped again.
    fn stop_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<()>>;

    /// Makes a stopped sandbox ready again, with the addresses it had before; `spec` is the spec it was
    /// created from.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if one of its addresses is not available, for example because another
    /// sandbox has it now; those of [`SandboxBackend::create_sandbox`]. The sandbox stays stopped.
    fn start_sandbox<'a>(
        &'a self,
        id: SandboxId,
        spec: &'a SandboxSpec,
    ) -> BoxFuture<'a, Result<SandboxDetails>>;

    /// Waits until a ready sandbox fails on its own, for example because its own process exits, and returns
    /// the reason. Does not return for a sandbox without anything that can exit. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the sandbox does not
    /// exist.
    fn wait_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<String>>;

    /// Records, before its removal begins, that a sandbox is to be removed with all its tasks. From then on a
    /// recovery lists it in [`Recovered::removals`](super::Recovered::removals), unless it is started
    /// again. Idempotent; succeeds for a sandbox that does not exist.
    ///
    /// # Errors
    /// The intent is not recorded; the removal itself can still proceed.
    fn begin_removal(&self, id: SandboxId) -> BoxFuture<'_, Result<()>>;

    /// Removes a stopped sandbox whose tasks have been removed. Idempotent.
    ///
    /// # Errors
    /// The sandbox can be removed again.
    fn remove_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<()>>;

    /// Stores the frontend's note about a ready sandbox; it replaces the previous note.
    ///
    /// # Errors
    /// `NotFound`; the previous note is kept.
    fn amend_sandbox<'a>(&'a self, id: SandboxId, note: &'a [u8]) -> BoxFuture<'a, Result<()>>;

    /// Stores the address ranges that an owner's sandboxes get their addresses from; they replace the owner's
    /// previous ranges. Networks that take their ranges from outside use them for sandboxes created from now
    /// on, also after a restart. Idempotent.
    ///
    /// # Errors
    /// The previous ranges are kept.
    fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> BoxFuture<'_, Result<()>>;

    /// Connects to a TCP port on the loopback address of a ready sandbox. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if the sandbox does not exist; `Unavailable` if no process listens on the port.
    fn dial(&self, id: SandboxId, port: u16) -> BoxFuture<'_, Result<Dialled>>;
}

/// The tasks of a backend.
pub trait TaskBackend: Send + Sync {
    /// Waits for the outcome of a start that a predecessor began: `Some` if the process runs, `None` if it
    /// does not, in which case nothing of the start is left. Called once, after recovery, for each task that
    /// was recovered as [`TaskState::Unattended`](crate::state::TaskState::Unattended). Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the task does not exist.
    fn resolve_start(&self, id: TaskId) -> BoxFuture<'_, Result<Option<Started>>>;

    /// Creates a task that can then be started.
    ///
    /// # Errors
    /// `NotFound` if the node does not have the image; `InvalidArgument` for a spec that can never work.
    /// Nothing is left behind.
    fn create_task<'a>(
        &'a self,
        id: TaskId,
        sandbox: SandboxId,
        spec: &'a TaskSpec,
    ) -> BoxFuture<'a, Result<TaskDetails>>;

    /// Starts a created task; its main process runs when this returns. A start that is withdrawn before the
    /// program is executed fails with [`Withdrawal::check`]; later a withdrawal has no effect.
    ///
    /// # Errors
    /// The task has not run and will not run; the failure is recorded, so that `recover` returns the task as
    /// [`TaskState::Exited`](crate::state::TaskState::Exited). With [`Reason::NotBegun`](crate::error::Reason::NotBegun)
    /// nothing was done, and the task can be started later.
    fn start_task<'a>(
        &'a self,
        id: TaskId,
        withdrawal: &'a Withdrawal,
    ) -> BoxFuture<'a, Result<Started>>;

    /// Sends a signal to the main process; [`Signal::KILL`] goes to all processes of the task. Succeeds if
    /// the task does not run. Signals other than [`Signal::KILL`] may be delayed for a moment if the process
    /// was just started and would lose them.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached.
    fn signal_task(&self, id: TaskId, signal: Signal) -> BoxFuture<'_, Result<()>>;

    /// Waits until no process of a started task runs any more and its exit is persisted, or will be
    /// persisted later. [`TaskBackend::wait_task`] returns the exit only after cleanup. May be called many
    /// times.
    ///
    /// # Errors
    /// Those of [`TaskBackend::wait_task`].
    fn wait_end(&self, id: TaskId) -> BoxFuture<'_, Result<()>>;

    /// Waits for the exit of a started task, persists it and cleans up: when this returns, the output of the
    /// task is in its log, as far as it could be read. An exit that cannot be persisted is returned
    /// nevertheless and persisted later. May be called many times; returns at once after the exit.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the task does not exist.
    fn wait_task(&self, id: TaskId) -> BoxFuture<'_, Result<Exit>>;

    /// Removes a task that does not run. Idempotent.
    ///
    /// # Errors
    /// The task can be removed again.
    fn remove_task(&self, id: TaskId) -> BoxFuture<'_, Result<()>>;

    /// Sets exactly these limits on a task, now (if it runs) and for its next start, and adds these
    /// annotations. Returns the details with the limits in force afterwards: a limit that the node does not
    /// support is not among them.
    ///
    /// # Errors
    /// The old limits are still in force and recorded.
    fn update_task<'a>(
        &'a self,
        id: TaskId,
        update: &'a TaskUpdate,
    ) -> BoxFuture<'a, Result<TaskDetails>>;

    /// Attaches to the streams of a running task's main process, for any number of clients. A slow client
    /// blocks neither the task, nor its log, nor another client: it misses output.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task does not run, or its output goes exclusively to another reader;
    /// `Unavailable` if the logkeeper cannot be reached.
    fn attach(&self, id: TaskId, spec: AttachSpec) -> BoxFuture<'_, Result<Attachment>>;

    /// Sets the size of a running task's terminal, in characters. Succeeds without effect if it has no
    /// terminal.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if the runtime cannot be reached.
    fn resize_task(&self, id: TaskId, width: u16, height: u16) -> BoxFuture<'_, Result<()>>;

    /// Reopens the task's log file: its output continues in a new file under the same path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task has no log; `Unavailable` if the logkeeper cannot be reached.
    fn reopen_log(&self, id: TaskId) -> BoxFuture<'_, Result<()>>;
}

/// Further processes in running tasks.
pub trait ExecBackend: Send + Sync {
    /// Starts a further process in a running task. Waits for a limited time if the task is frozen, or many others are
    /// being started. The place is held until the process is deleted, or nothing is left of one that was not started.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task does not run; `InvalidArgument` if the command cannot be run;
    /// `Unavailable` if the task stays frozen for too long, or the process was not started in time. Nothing is left behind.
    fn exec<'a>(
        &'a self,
        id: TaskId,
        spec: &'a ExecSpec,
        place: ExecPlace,
    ) -> BoxFuture<'a, Result<ExecProcess>>;
}

/// Checkpoints of running tasks.
pub trait CheckpointBackend: Send + Sync {
    /// Writes the processes of a running task and the changes to its root file system into an archive. The
    /// task is frozen meanwhile, and thawed afterwards whether the checkpoint succeeded or not.
    ///
    /// # Errors
    /// `Unimplemented` if this node or the task's runtime does not support it; `AlreadyExists` if the
    /// archive's path exists; `DeadlineExceeded`. After an error there is no archive, and the task continues.
    fn checkpoint_task<'a>(
        &'a self,
        id: TaskId,
        spec: &'a CheckpointSpec,
    ) -> BoxFuture<'a, Result<()>>;
}

/// Measurements and inspection, for metrics and operators.
pub trait StatsBackend: Send + Sync {
    /// Usage of these tasks, in one pass; tasks that do not exist any more are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    fn task_stats<'a>(
        &'a self,
        ids: &'a [TaskId],
    ) -> BoxFuture<'a, Result<BTreeMap<TaskId, TaskStats>>>;

    /// All metrics of these tasks, in one pass; tasks that do not run are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    fn task_metrics<'a>(
        &'a self,
        ids: &'a [TaskId],
    ) -> BoxFuture<'a, Result<BTreeMap<TaskId, TaskMetrics>>>;

    /// Traffic of the interfaces of these sandboxes, in one pass; sandboxes that do not exist any more or use
    /// the host's network are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    fn sandbox_traffic<'a>(
        &'a self,
        ids: &'a [SandboxId],
    ) -> BoxFuture<'a, Result<BTreeMap<SandboxId, Vec<InterfaceStats>>>>;

    /// Usage of a sandbox: of its parent cgroup, and its interfaces.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    fn sandbox_stats(&self, id: SandboxId) -> BoxFuture<'_, Result<SandboxStats>>;

    /// Information about a task for operators that is not part of the task model.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    fn inspect_task(&self, id: TaskId) -> BoxFuture<'_, Result<Inspection>>;

    /// Information about a sandbox for operators that is not part of the task model.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    fn inspect_sandbox(&self, id: SandboxId) -> BoxFuture<'_, Result<Inspection>>;

    /// The processes that hold up a task, a few at most, those in an uninterruptible wait first: what is left of the task itself,
    /// and the programs that start and end it as far as they are in such a wait. Returns within a few seconds, whatever
    /// hangs. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    fn task_blockers(&self, id: TaskId) -> BoxFuture<'_, Result<Vec<Blocker>>>;

    /// The programs that start and end a sandbox, as far as they are in an uninterruptible wait, in the same way. It need not
    /// be complete.
    fn sandbox_blockers(&self, id: SandboxId) -> BoxFuture<'_, Vec<Blocker>>;

    /// The process of the runtime that stores images, if it is in an uninterruptible wait, in the same way.
    fn image_blockers(&self) -> BoxFuture<'_, Vec<Blocker>>;
}

/// Named volumes.
pub trait VolumeBackend: Send + Sync {
    /// Removes an owner's volume with all its content. Idempotent: succeeds if the volume does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` if `name` cannot be the name of a volume; `FailedPrecondition` while a task has the
    /// volume.
    fn remove_volume<'a>(&'a self, owner: Owner, name: &'a str) -> BoxFuture<'a, Result<()>>;

    /// The volumes of all owners, ordered by owner and name.
    ///
    /// # Errors
    /// `Internal` if they cannot be listed.
    fn volumes(&self) -> BoxFuture<'_, Result<Vec<NamedVolume>>>;
}
