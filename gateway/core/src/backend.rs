//! The contract between the gateway and whatever runs containers.
//!
//! # Call order
//! [`Backend::recover`] is called once, before anything else. The gateway then calls the methods on one sandbox or task one at a
//! time, except [`Backend::signal_task`], [`Backend::wait_end`], [`Backend::wait_task`], [`Backend::wait_sandbox`], [`Backend::exec`],
//! [`Backend::attach`], [`Backend::resize_task`], [`Backend::dial`], [`Backend::reopen_log`] and the readers, which may overlap with anything. A sandbox outlives its tasks: it is stopped when none of
//! their processes runs any more, and removed after they are.
//!
//! # Failure
//! A method that fails has undone what it did, or has left behind only what a later `remove` or `recover` cleans up. A process
//! killed at any point leaves only what `recover` finds. Stop, remove and recover are idempotent: what is not there is done.
//!
//! # Cancellation
//! The gateway runs the changing methods to their end; it never drops their futures while it lives. Readers, the waits and
//! [`ImageStore::pull`] are cancel-safe.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

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
use crate::stream::{AttachSpec, Attachment, Dialled, Sink, Source};
use crate::table::{Sandbox, Task};

/// Runs sandboxes and tasks.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// How the backend is, from what it knows already; never blocks on what it watches.
    fn status(&self) -> BackendStatus;

    /// The runtime handlers that specs may name, the default one first.
    fn handlers(&self) -> Vec<Handler>;

    /// Cleans up what a predecessor left half-made and gives back all that exists, of every owner.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached; the gateway then tries again.
    async fn recover(&self) -> Result<Recovered>;

    /// Waits until the start that a predecessor was at has come to something: the process that runs, or none, and then nothing is left
    /// of it. Called once, after recovery, for each task that is among [`Recovered::unsettled`]. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the runtime is away: call it again. `NotFound` if there is no such task.
    async fn resolve_start(&self, id: TaskId) -> Result<Option<Started>>;

    /// Makes a sandbox ready, its network up.
    ///
    /// # Errors
    /// `InvalidArgument` for what can never work; `Unavailable` if the runtime or the network is away. Nothing is left behind.
    async fn create_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails>;

    /// Waits until a sandbox that could not be made, or not be made ready again, has nothing of the node's network any more, as rules for
    /// ports of the host; at once if it has nothing. One that cannot be read keeps its caller waiting. Cancel-safe.
    async fn wait_network_released(&self, id: SandboxId);

    /// Ends a sandbox's own process and releases its network and namespaces. No process of its tasks runs any more; clearing up
    /// after them may go on meanwhile. Idempotent.
    ///
    /// # Errors
    /// The sandbox can be stopped again.
    async fn stop_sandbox(&self, id: SandboxId) -> Result<()>;

    /// Makes a stopped sandbox ready again, with the addresses it had; `spec` is what it was made from.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if one of its addresses cannot be had, as when another sandbox has it by now; those of
    /// [`Backend::create_sandbox`]. The sandbox is stopped as before.
    async fn start_sandbox(&self, id: SandboxId, spec: &SandboxSpec) -> Result<SandboxDetails>;

    /// Waits until a ready sandbox breaks by itself, as when its own process has ended, and says why. A sandbox that has nothing
    /// that could end keeps its caller waiting. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if contact is lost: call it again. `NotFound` if there is no such sandbox.
    async fn wait_sandbox(&self, id: SandboxId) -> Result<String>;

    /// Puts on record that a sandbox is to go with all that is in it, before its removal begins: from now on a recovery gives it among
    /// [`Recovered::removals`], unless it is started again. Idempotent; what does not exist has gone.
    ///
    /// # Errors
    /// It is not on record; the removal can go on all the same.
    async fn begin_removal(&self, id: SandboxId) -> Result<()>;

    /// Removes what is left of a stopped sandbox whose tasks are gone. Idempotent.
    ///
    /// # Errors
    /// The sandbox can be removed again.
    async fn remove_sandbox(&self, id: SandboxId) -> Result<()>;

    /// Keeps what the frontend puts down about a ready sandbox, in place of what it put down before.
    ///
    /// # Errors
    /// `NotFound`; what was put down before is kept.
    async fn amend_sandbox(&self, id: SandboxId, note: &[u8]) -> Result<()>;

    /// Keeps the ranges that an owner wants the addresses of its sandboxes from, in place of those it named before. Networks that take
    /// their ranges from outside use them for sandboxes that are made from now on, also after a restart. Idempotent.
    ///
    /// # Errors
    /// Those named before are kept.
    async fn set_ranges(&self, owner: Owner, ranges: Vec<Subnet>) -> Result<()>;

    /// Makes a task, ready to be started.
    ///
    /// # Errors
    /// `NotFound` if the image is not here, `InvalidArgument` for what can never work. Nothing is left behind.
    async fn create_task(&self, id: TaskId, sandbox: SandboxId, spec: &TaskSpec) -> Result<TaskDetails>;

    /// Starts a created task; its main process runs when this returns.
    ///
    /// # Errors
    /// The task has not run and will not; the failure is recorded, so that `recover` gives it as [`TaskState::Exited`](crate::state::TaskState::Exited).
    async fn start_task(&self, id: TaskId) -> Result<Started>;

    /// Sends a signal to the main process, or to all processes of the task with [`Signal::KILL`]. A task that does not run: done.
    /// Other signals than [`Signal::KILL`] may be held back for a moment from a process that was just started and would lose them.
    ///
    /// # Errors
    /// `Unavailable` if the runtime is away.
    async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()>;

    /// Waits until no process of a started task runs any more and its end is on record, or kept for that. [`Backend::wait_task`] tells
    /// that end when it has been cleared up after as well. May be called many times.
    ///
    /// # Errors
    /// Those of [`Backend::wait_task`].
    async fn wait_end(&self, id: TaskId) -> Result<()>;

    /// Waits for the end of a started task, records it and clears up after it: what the task wrote is in its log then, as far as that
    /// can be had. An end that cannot be recorded is told all the same, and recorded later. May be called many times; answers at once
    /// after the end.
    ///
    /// # Errors
    /// `Unavailable` if contact is lost: call it again. `NotFound` if there is no such task.
    async fn wait_task(&self, id: TaskId) -> Result<Exit>;

    /// Removes a task that does not run (any more). Idempotent.
    ///
    /// # Errors
    /// The task can be removed again.
    async fn remove_task(&self, id: TaskId) -> Result<()>;

    /// Sets a task's limits to exactly these, now (if it runs) and for its next start, and adds these annotations. Gives the details
    /// with the limits that are in force then: what the node cannot do is not among them.
    ///
    /// # Errors
    /// The old limits are still in force and on record.
    async fn update_task(&self, id: TaskId, update: &TaskUpdate) -> Result<TaskDetails>;

    /// Removes an owner's volume of this name, with all that is in it. Idempotent: one that is not there is removed.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no name of a volume; `FailedPrecondition` while a task has it.
    async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()>;

    /// Puts a running task's processes and what it has changed of its files into an archive. It stands still meanwhile, and goes on
    /// afterwards, whatever came of it.
    ///
    /// # Errors
    /// `Unimplemented` if this node or the task's runtime cannot; `AlreadyExists` if something has the archive's name;
    /// `DeadlineExceeded`. There is no archive then, and the task goes on.
    async fn checkpoint_task(&self, id: TaskId, spec: &CheckpointSpec) -> Result<()>;

    /// Starts a further process in a running task. In one that stands still it waits a while.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task does not run; `InvalidArgument` if the command cannot be run; `Unavailable` if the task stands
    /// still for too long. Nothing is left behind.
    async fn exec(&self, id: TaskId, spec: &ExecSpec) -> Result<ExecProcess>;

    /// Why no process can be started in a task at this moment, if it stands still.
    fn exec_blocked(&self, id: TaskId) -> Option<Error>;

    /// Joins the streams of a running task's main process. Any number of clients may; one that is slow holds up neither the task nor
    /// its log nor another client: it misses output.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task does not run, or its output goes to somebody else alone; `Unavailable` if the logkeeper is away.
    async fn attach(&self, id: TaskId, spec: AttachSpec) -> Result<Attachment>;

    /// Sets the size of a running task's terminal, in characters; without a terminal: done.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable` if the runtime is away.
    async fn resize_task(&self, id: TaskId, width: u16, height: u16) -> Result<()>;

    /// Connects to whoever listens on a TCP port at the loopback address of a ready sandbox. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound` if there is no such sandbox; `Unavailable` if nobody listens.
    async fn dial(&self, id: SandboxId, port: u16) -> Result<Dialled>;

    /// Makes the task's output go on in a new file under the same path.
    ///
    /// # Errors
    /// `FailedPrecondition` if the task has no log; `Unavailable` if the logkeeper is away.
    async fn reopen_log(&self, id: TaskId) -> Result<()>;

    /// Usage of these tasks, in one pass; a task that is gone is left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    async fn task_stats(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskStats>>;

    /// All that can be told of these tasks, in one pass; one that does not run is left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    async fn task_metrics(&self, ids: &[TaskId]) -> Result<BTreeMap<TaskId, TaskMetrics>>;

    /// Traffic of the interfaces of these sandboxes, in one pass; one that is gone or has the host's network is left out.
    ///
    /// # Errors
    /// `Unavailable` if nothing can be read at all.
    async fn sandbox_traffic(&self, ids: &[SandboxId]) -> Result<BTreeMap<SandboxId, Vec<InterfaceStats>>>;

    /// Usage of a sandbox: of its cgroup parent, and its interfaces.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    async fn sandbox_stats(&self, id: SandboxId) -> Result<SandboxStats>;

    /// What an operator may want to see of a task beyond the model.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    async fn inspect_task(&self, id: TaskId) -> Result<Inspection>;

    /// What an operator may want to see of a sandbox beyond the model.
    ///
    /// # Errors
    /// `NotFound` if it is gone.
    async fn inspect_sandbox(&self, id: SandboxId) -> Result<Inspection>;

    /// Returns when what the backend does of itself and should not be cut off amid is done, as the clearing up after an end. Called when
    /// nothing is asked of it any more. Cancel-safe: it goes on.
    async fn drain(&self);

    /// The images.
    fn images(&self) -> &dyn ImageStore;
}

/// How a backend is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendStatus {
    /// The runtime can be reached and serves.
    pub runtime: Condition,
    /// Sandboxes can be connected.
    pub network: Condition,
    /// There is space for what has to be put down. Without it things are still ended and removed.
    pub disk: Condition,
    /// Name and version of what is behind, for people.
    pub version: String,
    /// How cgroups are made.
    pub cgroup_driver: CgroupDriver,
    /// The configuration of the network as JSON, as its file has it; empty if there is none.
    pub network_config: String,
    /// The node's address on the gateway's own bridge, whether the bridge is there yet or not; `None` if there is no such network.
    pub bridge_address: Option<IpAddr>,
    /// Facts for people, by name.
    pub facts: BTreeMap<String, String>,
    /// Programs behind the backend whose versions have known vulnerabilities. Nothing is decided by them.
    pub advisories: Vec<Advisory>,
}

/// Known vulnerabilities of a program, judged by its version alone: whoever packaged it may have fixed them under the same number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advisory {
    /// The program, as it names itself.
    pub program: String,
    /// Its version, as it tells it.
    pub version: String,
    /// The names of the vulnerabilities, as in `CVE-2019-5736`.
    pub ids: Vec<String>,
}

/// Whether something holds, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// It holds.
    True,
    /// It does not.
    False {
        /// One word in camel case.
        reason: String,
        /// For people: what is wrong and what to do.
        message: String,
    },
}

/// Who makes cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// systemd, by its bus.
    Systemd,
    /// The runtime, by making directories.
    Cgroupfs,
}

/// A runtime handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handler {
    /// Name by which specs ask for it.
    pub name: String,
    /// Whether mounts can be read-only all the way down.
    pub recursive_readonly_mounts: bool,
    /// Whether user namespaces can be made.
    pub user_namespaces: bool,
}

/// What a sandbox got.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxDetails {
    /// Its addresses, the primary one first; none with the host's network.
    pub ips: Vec<IpAddr>,
    /// Its network namespace, unless it is the host's.
    pub netns: Option<PathBuf>,
    /// Its own process, where it has one.
    pub pid: Option<u32>,
    /// What its frontend put down after it was made; the frontend's own, as [`Meta::record`](crate::spec::Meta::record) is.
    pub note: Vec<u8>,
    /// The ports of the host that it was made with.
    pub host_ports: HostPorts,
}

/// What a task got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDetails {
    /// The image it was made from.
    pub image_id: ImageId,
    /// The image's name by digest, or its id if it has none.
    pub image_ref: String,
    /// The directories that its image declares as volumes.
    pub image_volumes: Vec<PathBuf>,
    /// The images that it has as volumes.
    pub volume_images: Vec<ImageId>,
    /// Who its main process runs as.
    pub user: ResolvedUser,
    /// What is sent first to stop it.
    pub stop_signal: Signal,
    /// Its limits, as they are in force.
    pub resources: Resources,
    /// Its limits on block devices, as they are in force.
    pub throttles: Vec<Throttle>,
    /// Its log file.
    pub log_path: Option<PathBuf>,
    /// What its root file system is counted as on disk, or else the first of its volumes that is limited; `None` if nothing is.
    pub project: Option<ProjectId>,
    /// The leases of devices that it was made with.
    pub leases: Vec<LeaseClaim>,
    /// What of the node's processors and memory is kept for it.
    pub compute: ComputeClaim,
}

/// A user, by numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedUser {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups besides.
    pub groups: Vec<u32>,
}

/// A task that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Process id on the host.
    pub pid: u32,
    /// Since when.
    pub at: SystemTime,
}

/// All that a backend holds.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Tasks of these sandboxes.
    pub tasks: Vec<Task>,
    /// Those of them that a predecessor was starting, and the runtime may still be at; they count as created until that is known.
    pub pending_starts: Vec<TaskId>,
    /// Those sandboxes whose removal a predecessor had begun; they are to be removed.
    pub removals: Vec<SandboxId>,
    /// Sandboxes that are not among these, and hold something: those that were never finished, until they are cleared away, and those that
    /// cannot be read, for as long as they are there.
    pub remnants: Vec<Remnant>,
}

/// A sandbox that is there and cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remnant {
    /// Its id.
    pub id: SandboxId,
    /// Whose it is.
    pub owner: Owner,
    /// Its name; its id again if that is not known.
    pub name: String,
    /// The ports of the host that it may have.
    pub host_ports: HostPorts,
}

/// Usage of a sandbox.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SandboxStats {
    /// Of its cgroup parent; empty if it has none of its own.
    pub usage: Usage,
    /// Processes in that group and those inside; [`Usage::pids`] counts their threads.
    pub processes: Option<u64>,
    /// Traffic of its interfaces; empty with the host's network.
    pub interfaces: Vec<InterfaceStats>,
}

/// Facts for people about one object, each a name and a JSON text or plain text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inspection {
    /// Process id of the main process.
    pub pid: Option<u32>,
    /// Runtime type.
    pub runtime_type: String,
    /// Snapshotter of the root file system.
    pub snapshotter: String,
    /// Key of its snapshot.
    pub snapshot_key: String,
    /// What the runtime is told besides, as JSON; empty if nothing.
    pub runtime_options: String,
    /// The OCI runtime spec as JSON; empty if there is none.
    pub runtime_spec: String,
    /// The result of CNI as JSON; empty if there is none.
    pub cni_result: String,
}

/// A further process in a task, with its streams.
///
/// Dropping it kills the process and frees what it holds.
pub struct ExecProcess {
    /// Its standard input, if asked for; shutting it down or dropping it ends the input. With a terminal only shutting it down does, as
    /// if Ctrl-D were typed again and again, until the process is deleted.
    pub stdin: Option<Sink>,
    /// Its standard output, or its terminal.
    pub stdout: Option<Source>,
    /// Its standard error; none with a terminal.
    pub stderr: Option<Source>,
    /// Control over it.
    pub control: Box<dyn ExecControl>,
}

impl fmt::Debug for ExecProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecProcess").finish_non_exhaustive()
    }
}

/// Control over a further process in a task. Dropping it kills the process.
#[async_trait]
pub trait ExecControl: Send + Sync {
    /// Waits for its end: its exit code. May be called again; cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if contact is lost.
    async fn wait(&self) -> Result<i32>;

    /// Sends a signal; a process that has ended: done.
    ///
    /// # Errors
    /// `Unavailable` if the runtime is away.
    async fn signal(&self, signal: Signal) -> Result<()>;

    /// Sets the size of its terminal, in characters; without a terminal: done.
    ///
    /// # Errors
    /// `Unavailable` if the runtime is away.
    async fn resize(&self, width: u16, height: u16) -> Result<()>;

    /// Ends the output of a process that has ended, should children of it keep it open for this long while nothing waits to be read.
    /// Returns when that is done, and never if the output ends by itself. Cancel-safe.
    async fn cut_output(&self, after: Duration);

    /// Frees what the runtime holds of it; it has ended before. Idempotent.
    ///
    /// # Errors
    /// `Unavailable` if the runtime is away.
    async fn delete(&self) -> Result<()>;
}
