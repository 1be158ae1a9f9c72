//! The contract between the gateway and the runtime that runs sandboxes and tasks.
//!
//! # Call order
//! [`Backend::recover`] is called once, before anything else. After that the gateway calls the methods for
//! one sandbox or one task strictly one at a time, except [`TaskBackend::signal_task`],
//! [`TaskBackend::wait_end`], [`TaskBackend::wait_task`], [`SandboxBackend::wait_sandbox`],
//! [`ExecBackend::exec`], [`TaskBackend::attach`], [`TaskBackend::resize_task`], [`SandboxBackend::dial`],
//! [`TaskBackend::reopen_log`] and the read-only methods, which may overlap with any other call. A sandbox
//! outlives its tasks: it is stopped only after no process of its tasks runs, and removed after its tasks
//! are removed.
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
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use switchyard_linux::FileSystemSpace;

use crate::error::Result;
use crate::id::{Owner, SandboxId, TaskId};
use crate::image::ImageStore;
use crate::keyed_lock::LockInUse;
use crate::ledger::ListeningProcess;
use crate::object::{Sandbox, Task};
use crate::spec::{HostPort, HostPorts};
use crate::stats::{InterfaceStats, Usage};

mod blocker;
mod exec;
mod observer;
mod operations;
mod trouble;
mod unreadable;
mod withdrawal;

pub use blocker::Blocker;
pub use exec::{CUT_PATIENCE, ExecControl, ExecPlace, ExecProcess, cut_by};
pub use observer::{
    BackendObserver, PluginResult, PluginRun, RecoveryResult, RuntimeCall, unobserved,
};
pub use operations::{
    CheckpointBackend, ExecBackend, SandboxBackend, StatsBackend, TaskBackend, VolumeBackend,
};
pub use trouble::{Trouble, Troubles};
pub use unreadable::{
    CheckRequest, ClaimHolder, HeldClaims, ObjectFacts, Unreadable, UnreadableKind,
};
pub use withdrawal::Withdrawal;

/// The longest that a start waits for what a stopped sandbox still has of the network: ports of the node, or addresses. Plugins release them
/// within a second unless they hang.
pub const RELEASE_LIMIT: Duration = Duration::from_secs(20);

/// Runs sandboxes and tasks.
pub trait Backend:
    SandboxBackend
    + TaskBackend
    + ExecBackend
    + CheckpointBackend
    + StatsBackend
    + VolumeBackend
    + Send
    + Sync
    + 'static
{
    /// The health of the backend, from state it already holds; never blocks on the runtime it watches, nor on a file
    /// system. Of the node's network it is what [`Backend::fresh_status`] found last.
    fn status(&self) -> BackendStatus;

    /// The locks of sandboxes and tasks that are held at this moment. Does not block.
    fn locks_in_use(&self) -> Vec<LockInUse>;

    /// As [`Backend::status`], after a look at what others configure: the node's network. Returns within a few seconds,
    /// whether the look has ended or not. Cancel-safe.
    fn fresh_status(&self) -> BoxFuture<'_, BackendStatus>;

    /// The runtime handlers that specs may name; the default one comes first.
    fn handlers(&self) -> Vec<Handler>;

    /// Cleans up the incomplete objects of a predecessor and returns everything that exists, of every owner.
    ///
    /// # Errors
    /// `Unavailable` if the runtime cannot be reached; the gateway then calls it again.
    fn recover(&self) -> BoxFuture<'_, Result<Recovered>>;

    /// Waits until the backend's own background work that should not be interrupted, such as cleanup after an
    /// exit, is done. Called when no further request arrives. Cancel-safe: the work continues.
    fn drain(&self) -> BoxFuture<'_, ()>;

    /// The images.
    fn images(&self) -> &dyn ImageStore;
}

/// The health and identity of a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackendStatus {
    /// True if the runtime can be reached and serves requests.
    pub runtime: Condition,
    /// Number of times that contact with the runtime was lost since the start, also for so short a time that nobody who asks for
    /// `runtime` now and then sees it.
    pub contact_losses: u64,
    /// True if sandboxes can be connected to a network.
    pub network: Condition,
    /// True if there is space for records, and disks can be written. Without space, tasks and sandboxes can
    /// still be stopped and removed; if a disk is read-only or fails, the runtime is not ready either.
    pub disk: Condition,
    /// True if all snapshotters can be used and answer, into which layers of images are unpacked. Without one
    /// of them, the handlers that use it have no images; all others work. Without that of the default handler
    /// the runtime is not ready either.
    pub snapshotters: Condition,
    /// Name and version of the runtime, for people.
    pub version: String,
    /// The program that creates cgroups.
    pub cgroup_driver: CgroupDriver,
    /// The network configuration as JSON, exactly as in its file; empty if there is none.
    pub network_config: String,
    /// The node's address on the gateway's own bridge, even if the bridge does not exist yet; `None` if there
    /// is no such network.
    pub bridge_address: Option<IpAddr>,
    /// Facts for people, by name.
    pub facts: BTreeMap<String, String>,
    /// Objects in a condition that the backend cannot end by itself.
    pub troubles: Troubles,
    /// Runtime programs whose versions have known vulnerabilities. For information: nothing depends on them.
    pub advisories: Vec<Advisory>,
    /// The disks that the backend uses, as far as they answered when they were looked at last.
    pub disks: Vec<WatchedDisk>,
}

/// A disk that is watched. Several may be the same one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchedDisk {
    /// The data on it, in one word of a closed set.
    pub of: &'static str,
    /// Its space.
    pub space: FileSystemSpace,
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

/// A condition of the backend, with the reason if it does not hold.
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

/// The program that creates cgroups.
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
    /// True if mounts can be recursively read-only.
    pub recursive_readonly_mounts: bool,
    /// True if user namespaces are supported.
    pub user_namespaces: bool,
}

/// A named volume of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedVolume {
    /// Its owner.
    pub owner: Owner,
    /// Its name among the owner's volumes.
    pub name: String,
    /// Time of its creation; `None` if the file system does not record it.
    pub created_at: Option<SystemTime>,
    /// The tasks that have it, which may have ended.
    pub tasks: Vec<TaskId>,
}

/// The result of starting a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Process id on the host.
    pub pid: u32,
    /// Time of its start.
    pub at: SystemTime,
}

/// Everything that a backend recovered.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// Sandboxes.
    pub sandboxes: Vec<Sandbox>,
    /// Tasks of these sandboxes. One that a predecessor was starting and that the runtime may still start is
    /// [`TaskState::Unattended`](crate::state::TaskState::Unattended), until [`TaskBackend::resolve_start`]
    /// returns.
    pub tasks: Vec<Task>,
    /// Sandboxes whose removal a predecessor had begun; they are to be removed.
    pub removals: Vec<SandboxId>,
    /// Sandboxes whose creation never finished, or stopped ones whose network a predecessor was still releasing: they hold
    /// resources until that is done.
    pub remnants: Vec<Remnant>,
    /// Those of the tasks whose exit no predecessor has persisted: they ended while no daemon ran.
    pub found_exits: Vec<TaskId>,
    /// Objects that cannot be read, which are in no other list. A task of such a sandbox is one too.
    pub unreadable: Vec<Unreadable>,
}

/// A sandbox that exists but cannot be used, or that is stopped, and that holds something until it is cleaned up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remnant {
    /// Its id.
    pub id: SandboxId,
    /// Its owner.
    pub owner: Owner,
    /// Its name.
    pub name: String,
    /// The host ports that it may hold.
    pub host_ports: HostPorts,
}

/// A port that is wanted, and on which a program of the node listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OccupiedPort {
    /// The port, as it is wanted.
    pub port: HostPort,
    /// The process that listens; `None` if it cannot be seen.
    pub process: Option<ListeningProcess>,
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
    /// The OCI runtime spec as JSON; empty if there is none. That of a sandbox without a process has only what
    /// its tasks join.
    pub runtime_spec: String,
    /// The CNI result as JSON; empty if there is none.
    pub cni_result: String,
    /// True for a sandbox whose own or joined network namespace does not exist any more.
    pub netns_closed: bool,
}
