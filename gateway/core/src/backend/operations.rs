//! What a backend does, in groups. The call order, and what holds for failures and cancellation, are in the
//! documentation of the parent module.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::{ExecProcess, Inspection, NamedVolume, SandboxDetails, SandboxStats, Started, TaskDetails};
use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId, TaskId};
use crate::spec::{CheckpointSpec, ExecSpec, SandboxSpec, Signal, Subnet, TaskSpec, TaskUpdate};
use crate::state::Exit;
use crate::stats::{InterfaceStats, TaskMetrics, TaskStats};
use crate::stream::{AttachSpec, Attachment, Dialled};

/// The sandboxes of a backend.
#[async_trait]
pub trait SandboxBackend: Send + Sync {
    /// Creates a sandbox and makes it ready, with its network set up.
    ///
    /// # Errors
    /// `InvalidArgument` for a spec that can never work; `Unavailable` if the runtime or the network cannot
    /// be reached. Nothing is left behind.
    async fn create_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails>;

    /// Waits until a sandbox whose creation or restart failed holds no network resource of the node any more,
    /// such as host port rules. Returns at once if it holds none. Does not return while the sandbox's record
    /// cannot be read. Cancel-safe.
    async fn wait_network_released(&self, id: SandboxId);

    /// Stops the sandbox's own process and releases its network and namespaces. Precondition: no process of
    /// its tasks runs. The cleanup of its tasks may still be in progress. Idempotent.
    ///
    /// # Errors
    /// The sandbox can be stopped again.
    async fn stop_sandbox(&self, id: SandboxId) -> Result<()>;

    /// Makes a stopped sandbox ready again, with the addresses it had before; `spec` is the spec it was
    /// created from.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if one of its addresses is not available, for example because another
    /// sandbox has it now; those of [`SandboxBackend::create_sandbox`]. The sandbox stays stopped.
    async fn start_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails>;

    /// Waits until a ready sandbox fails on its own, for example because its own process exits, and returns
    /// the reason. Does not return for a sandbox without anything that can exit. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the sandbox does not
    /// exist.
    async fn wait_sandbox(&self, id: SandboxId) -> Result<String>;

    /// Records, before its removal begins, that a sandbox is to be removed with all its tasks. From then on a
    /// recovery lists it in [`Recovered::removals`](super::Recovered::removals), unless it is started
    /// again. Idempotent; succeeds for a sandbox that does not exist.
    ///
    /// # Errors
    /// The intent is not recorded; the removal itself can still proceed.
    async fn begin_removal(&self, id: SandboxId) -> Result<()>;

    /// Removes a stopped sandbox whose tasks have been removed. Idempotent.
    ///
    /// # Errors
    /// The sandbox can be removed again.
    async fn remove_sandbox(&self, id: SandboxId) -> Result<()>;

    /// Stores the frontend's note about a ready sandbox; it replaces the previous note.
    ///
    /// # Errors
    /// `NotFound`; the previous note is kept.
    async fn amend_sandbox(&self, id: SandboxId, note: &[u8]) -> Result<()>;

    /// Stores the address ranges that an owner's sandboxes get their addresses from; they replace the owner's
    /// previous ranges. Networks that take their ranges from outside use them for sandboxes created from now
    /// on, also after a restart. Idempotent.
    ///
    /// # Errors
    /// The previous ranges are kept.
    async fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> Result<()>;

    /// Connects to a TCP port on the loopback address of a ready sandbox. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if the sandbox does not exist; `Unavailable` if no process listens on the port.
    async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled>;
}

/// The tasks of a backend.
#[async_trait]
pub trait TaskBackend: Send + Sync {
    /// Waits for the outcome of a start that a predecessor began: `Some` if the process runs, `None` if it
    /// does not, in which case nothing of the start is left. Called once, after recovery, for each task in
    /// [`Recovered::pending_starts`](super::Recovered::pending_starts). Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the task does not exist.
    async fn resolve_start(&self, id: TaskId) -> Result<Option<Started>>;

    /// Creates a task that can then be started.
    ///
    /// # Errors
    /// `NotFound` if the node does not have the image; `InvalidArgument` for a spec that can never work.
    /// Nothing is left behind.
    async fn create_task(&self, id: TaskId, sandbox: SandboxId, spec: &TaskSpec) -> Result<TaskDetails>;

    /// Starts a created task; its main process runs when this returns.
    ///
    /// # Errors
    /// The task has not run and will not run; the failure is recorded, so that `recover` returns the task as
    /// [`TaskState::Exited`](crate::state::TaskState::Exited).
    async fn start_task(&self, id: TaskId) -> Result<Started>;

    /// Sends a signal to the main process; [`Signal::KILL`] goes to all processes of the task. Succeeds if
    /// the task does not run. Signals other than [`Signal::KILL`] may be delayed for a moment if the process
    /// was just started and would lose them.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached.
    async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()>;

    /// Waits until no process of a started task runs any more and its exit is recorded, or persisted to be
    /// recorded later. [`TaskBackend::wait_task`] returns the exit only after cleanup. May be called many
    /// times.
    ///
    /// # Errors
    /// Those of [`TaskBackend::wait_task`].
    async fn wait_end(&self, id: TaskId) -> Result<()>;

    /// Waits for the exit of a started task, records it and cleans up: when this returns, the output of the
    /// task is in its log, as far as it could be read. An exit that cannot be recorded is returned
    /// nevertheless and recorded later. May be called many times; returns at once after the exit.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the task does not exist.
    async fn wait_task(&self, id: TaskId) -> Result<Exit>;

    /// Removes a task that does not run. Idempotent.
    ///
    /// # Errors
    /// The task can be removed again.
    async fn remove_task(&self, id: TaskId) -> Result<()>;

    /// Sets exactly these limits on a task, now (if it runs) and for its next start, and adds these
    /// annotations. Returns the details with the limits in force afterwards: a limit that the node does not
    /// support is not among them.
    ///
    /// # Errors
    /// The old limits are still in force and recorded.
    async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails>;

    /// Attaches to the streams of a running task's main process, for any number of clients. A slow client
    /// blocks neither the task, nor its log, nor another client: it misses output.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task does not run, or its output goes exclusively to another reader;
    /// `Unavailable` if the logkeeper cannot be reached.
    async fn attach(&self, id: TaskId, spec: AttachSpec) -> Result<Attachment>;

    /// Sets the size of a running task's terminal, in characters. Succeeds without effect if it has no
    /// terminal.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if the runtime cannot be reached.
    async fn resize_task(&self, id: TaskId, width: u16, height: u16) -> Result<()>;

    /// Reopens the task's log file: its output continues in a new file under the same path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task has no log; `Unavailable` if the logkeeper cannot be reached.
    async fn reopen_log(&self, id: TaskId) -> Result<()>;
}

/// Further processes in running tasks.
#[async_trait]
pub trait ExecBackend: Send + Sync {
    /// Starts a further process in a running task. Waits for a limited time if the task is frozen.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task does not run; `InvalidArgument` if the command cannot be run;
    /// `Unavailable` if the task stays frozen for too long. Nothing is left behind.
    async fn exec(&self, id: TaskId, spec: &ExecSpec) -> Result<ExecProcess>;

    /// The reason why no process can be started in a task now, if the task is frozen; else `None`.
    fn exec_blocked(&self, id: TaskId) -> Option<Error>;
}

/// Checkpoints of running tasks.
#[async_trait]
pub trait CheckpointBackend: Send + Sync {
    /// Writes the processes of a running task and the changes to its root file system into an archive. The
    /// task is frozen meanwhile, and thawed afterwards whether the checkpoint succeeded or not.
    ///
    /// # Errors
    /// `Unimplemented` if this node or the task's runtime does not support it; `AlreadyExists` if the
    /// archive's path exists; `DeadlineExceeded`. After an error there is no archive, and the task continues.
    async fn checkpoint_task(&self, id: TaskId, spec: &CheckpointSpec) -> Result<()>;
}

/// Measurements and inspection, for metrics and operators.
#[async_trait]
pub trait StatsBackend: Send + Sync {
    /// Usage of these tasks, in one pass; tasks that do not exist any more are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>>;

    /// All metrics of these tasks, in one pass; tasks that do not run are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    async fn task_metrics(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>>;

    /// Traffic of the interfaces of these sandboxes, in one pass; sandboxes that do not exist any more or use
    /// the host's network are left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    async fn sandbox_traffic(&self, ids: &[SandboxId]) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>>;

    /// Usage of a sandbox: of its parent cgroup, and its interfaces.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats>;

    /// Information about a task for operators that is not part of the task model.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    async fn inspect_task(&self, id: TaskId) -> Result<Inspection>;

    /// Information about a sandbox for operators that is not part of the task model.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection>;
}

/// Named volumes.
#[async_trait]
pub trait VolumeBackend: Send + Sync {
    /// Removes an owner's volume with all its content. Idempotent: succeeds if the volume does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` if `name` cannot be the name of a volume; `FailedPrecondition` while a task has the
    /// volume.
    async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()>;

    /// The volumes of all owners, ordered by owner and name.
    ///
    /// # Errors
    /// `Internal` if they cannot be listed.
    async fn volumes(&self) -> Result<Vec<NamedVolume>>;
}
