//! The contract between the gateway and the runtime that runs sandboxes and tasks.
//!
//! # Call order
//! [`Backend::recover`] is called once, before anything else. After that the gateway calls the methods for
//! one sandbox or one task strictly one at a time, except [`Backend::signal_task`], [`Backend::wait_end`],
//! [`Backend::wait_task`], [`Backend::wait_sandbox`], [`Backend::exec`], [`Backend::attach`],
//! [`Backend::resize_task`], [`Backend::dial`], [`Backend::reopen_log`] and the read-only methods, which may
//! overlap with any other call. A sandbox outlives its tasks: it is stopped only after no process of its
//! tasks runs, and removed after its tasks are removed.
//!
//! # Failure
//! A method that fails has undone its work, or leaves behind only what a later `remove` or `recover` cleans
//! up. If the process is killed at any point, `recover` finds everything it left behind. Stop, remove and
//! recover are idempotent: they succeed for an object that does not exist.
//!
//! # Cancellation
//! The gateway runs every method that changes state to completion and never drops its future while the
//! gateway lives. Read-only methods, the `wait_*` methods and [`ImageStore::pull`] are cancel-safe.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::error::{Error, Result};
use crate::id::{Owner, SandboxId, TaskId};
use crate::image::{ImageId, ImageStore};
use crate::spec::{
    CheckpointSpec, ComputeClaim, ExecSpec, HostPorts, LeaseClaim, ProjectId, Resources, SandboxSpec, Signal,
    Subnet, TaskSpec, TaskUpdate, Throttle,
};
use crate::state::Exit;
use crate::stats::{InterfaceStats, TaskMetrics, TaskStats, Usage};
use crate::stream::{AttachSpec, Attachment, Dialled};
use crate::table::{Sandbox, Task};

mod exec;

pub use exec::{ExecControl, ExecProcess};

/// Runs sandboxes and tasks.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// The health of the backend, from state it already holds; never blocks on the runtime it watches.
    fn status(&self) -> BackendStatus;

    /// The runtime handlers that specs may name; the default one comes first.
    fn handlers(&self) -> Vec<Handler>;

    /// Cleans up the incomplete objects of a predecessor and returns everything that exists, of every owner.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached; the gateway then calls it again.
    async fn recover(&self) -> Result<Recovered>;

    /// Waits for the outcome of a start that a predecessor began: `Some` if the process runs, `None` if it
    /// does not, in which case nothing of the start is left. Called once, after recovery, for each task in
    /// [`Recovered::pending_starts`]. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the task does not exist.
    async fn resolve_start(&self, id: TaskId) -> Result<Option<Started>>;

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
    /// sandbox has it now; those of [`Backend::create_sandbox`]. The sandbox stays stopped.
    async fn start_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails>;

    /// Waits until a ready sandbox fails on its own, for example because its own process exits, and returns
    /// the reason. Does not return for a sandbox without anything that can exit. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached: call it again. `NotFound` if the sandbox does not
    /// exist.
    async fn wait_sandbox(&self, id: SandboxId) -> Result<String>;

    /// Records, before its removal begins, that a sandbox is to be removed with all its tasks. From then on a
    /// recovery lists it in [`Recovered::removals`], unless it is started again. Idempotent; succeeds for a
    /// sandbox that does not exist.
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
    /// recorded later. [`Backend::wait_task`] returns the exit only after cleanup. May be called many times.
    ///
    /// # Errors
    /// Those of [`Backend::wait_task`].
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

    /// Removes an owner's volume with all its content. Idempotent: succeeds if the volume does not exist.
    ///
    /// # Errors
    /// `InvalidArgument` if `name` cannot be the name of a volume; `FailedPrecondition` while a task has the
    /// volume.
    async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()>;

    /// Writes the processes of a running task and the changes to its root file system into an archive. The
    /// task is frozen meanwhile, and thawed afterwards whether the checkpoint succeeded or not.
    ///
    /// # Errors
    /// `Unimplemented` if this node or the task's runtime does not support it; `AlreadyExists` if the
    /// archive's path exists; `DeadlineExceeded`. After an error there is no archive, and the task continues.
    async fn checkpoint_task(&self, id: TaskId, spec: &CheckpointSpec) -> Result<()>;

    /// Starts a further process in a running task. Waits for a limited time if the task is frozen.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task does not run; `InvalidArgument` if the command cannot be run;
    /// `Unavailable` if the task stays frozen for too long. Nothing is left behind.
    async fn exec(&self, id: TaskId, spec: &ExecSpec) -> Result<ExecProcess>;

    /// The reason why no process can be started in a task now, if the task is frozen; else `None`.
    fn exec_blocked(&self, id: TaskId) -> Option<Error>;

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

    /// Connects to a TCP port on the loopback address of a ready sandbox. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if the sandbox does not exist; `Unavailable` if no process listens on the port.
    async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled>;

    /// Reopens the task's log file: its output continues in a new file under the same path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task has no log; `Unavailable` if the logkeeper cannot be reached.
    async fn reopen_log(&self, id: TaskId) -> Result<()>;

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

    /// Waits until the backend's own background work that should not be interrupted, such as cleanup after an
    /// exit, is done. Called when no further request arrives. Cancel-safe: the work continues.
    async fn drain(&self);

    /// The images.
    fn images(&self) -> &dyn ImageStore;
}

/// The health and identity of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendStatus {
    /// Whether the runtime can be reached and serves requests.
    pub runtime: Condition,
    /// Whether sandboxes can be connected to a network.
    pub network: Condition,
    /// Whether there is space for records. Without it, tasks and sandboxes can still be stopped and removed.
    pub disk: Condition,
    /// Name and version of the runtime, for people.
    pub version: String,
    /// How cgroups are created.
    pub cgroup_driver: CgroupDriver,
    /// The network configuration as JSON, exactly as in its file; empty if there is none.
    pub network_config: String,
    /// The node's address on the gateway's own bridge, even if the bridge does not exist yet; `None` if there
    /// is no such network.
    pub bridge_address: Option<IpAddr>,
    /// Facts for people, by name.
    pub facts: BTreeMap<String, String>,
    /// Runtime programs whose versions have known vulnerabilities. For information: nothing depends on them.
    pub advisories: Vec<Advisory>,
}

/// Known vulnerabilities of a program, derived from its version alone: a distribution may have fixed them
/// without a change of the version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advisory {
    /// The program, as it names itself.
    pub program: String,
    /// Its version, as it reports it.
    pub version: String,
    /// The names of the vulnerabilities, as in `CVE-2019-5736`.
    pub ids: Vec<String>,
}

/// Whether a condition holds, and if not, why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It holds.
    True,
    /// It does not.
    False {
        /// One word in CamelCase.
        reason: String,
        /// For people: what is wrong and what to do.
        message: String,
    },
}

/// Who creates cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// systemd, over D-Bus.
    Systemd,
    /// The runtime, by creating directories.
    Cgroupfs,
}

/// A runtime handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// Name by which specs ask for it.
    pub name: String,
    /// Whether mounts can be recursively read-only.
    pub recursive_readonly_mounts: bool,
    /// Whether user namespaces are supported.
    pub user_namespaces: bool,
}

/// The result of creating a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxDetails {
    /// Its addresses, the primary one first; none with the host's network.
    pub ips: Vec<IpAddr>,
    /// Its network namespace, unless it is the host's.
    pub netns: Option<PathBuf>,
    /// Process id of the sandbox's own process, if it has one.
    pub pid: Option<u32>,
    /// What the frontend stored after creation with [`Backend::amend_sandbox`]; opaque bytes, as
    /// [`Meta::record`](crate::spec::Meta::record).
    pub note: Vec<u8>,
    /// The host ports that it was created with.
    pub host_ports: HostPorts,
}

/// The result of creating a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDetails {
    /// The image it was created from.
    pub image_id: ImageId,
    /// The image's name by digest, or its id if it has none.
    pub image_ref: String,
    /// The directories that its image declares as volumes.
    pub image_volumes: Vec<PathBuf>,
    /// The images mounted into it as volumes.
    pub volume_images: Vec<ImageId>,
    /// The user that its main process runs as.
    pub user: ResolvedUser,
    /// The first signal sent to stop it.
    pub stop_signal: Signal,
    /// The limits in force.
    pub resources: Resources,
    /// The block device limits in force.
    pub throttles: Vec<Throttle>,
    /// Its log file.
    pub log_path: Option<PathBuf>,
    /// The quota project of its root file system, or of its first limited volume if that has none; `None` if
    /// nothing is limited.
    pub project: Option<ProjectId>,
    /// The device leases that it was created with.
    pub leases: Vec<LeaseClaim>,
    /// The share of the node's processors and memory that is reserved for it.
    pub compute: ComputeClaim,
}

/// A user, by numeric ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedUser {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All supplementary groups.
    pub groups: Vec<u32>,
}

/// The result of starting a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Process id on the host.
    pub pid: u32,
    /// When it was started.
    pub at: SystemTime,
}

/// Everything that a backend recovered.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Tasks of these sandboxes.
    pub tasks: Vec<Task>,
    /// Tasks among `tasks` that a predecessor was starting and that the runtime may still start; their state
    /// is `Created` until [`Backend::resolve_start`] returns.
    pub pending_starts: Vec<TaskId>,
    /// Sandboxes whose removal a predecessor had begun; they are to be removed.
    pub removals: Vec<SandboxId>,
    /// Sandboxes that are not in `sandboxes` but hold resources: those whose creation never finished, until
    /// they are cleaned up, and those whose record cannot be read, for as long as they exist.
    pub remnants: Vec<Remnant>,
}

/// A sandbox that exists but cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remnant {
    /// Its id.
    pub id: SandboxId,
    /// Whose it is.
    pub owner: Owner,
    /// Its name; its id if the name is not known.
    pub name: String,
    /// The host ports that it may hold.
    pub host_ports: HostPorts,
}

/// Usage of a sandbox.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SandboxStats {
    /// Usage of its parent cgroup; empty if it has none of its own.
    pub usage: Usage,
    /// Number of processes in that cgroup and its descendants; [`Usage::pids`] counts their threads.
    pub processes: Option<u64>,
    /// Traffic of its interfaces; empty with the host's network.
    pub interfaces: Vec<InterfaceStats>,
}

/// Information about one object for people; each a name and a JSON text or plain text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspection {
    /// Process id of the main process.
    pub pid: Option<u32>,
    /// Runtime type.
    pub runtime_type: String,
    /// Snapshotter of the root file system.
    pub snapshotter: String,
    /// Key of that snapshot.
    pub snapshot_key: String,
    /// Further options passed to the runtime, as JSON; empty if there are none.
    pub runtime_options: String,
    /// The OCI runtime spec as JSON; empty if there is none.
    pub runtime_spec: String,
    /// The CNI result as JSON; empty if there is none.
    pub cni_result: String,
}
