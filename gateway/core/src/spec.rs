//! What a frontend asks for: sandboxes, tasks and processes, in words that belong to no protocol.
//!
//! None of these types is serialisable on purpose: what goes to disk is a versioned type of the backend.
//! An `Option` that is `None` means "not asked for: use the default".

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::id::{Owner, TaskId};

mod checkpoint;
mod claims;
mod cpus;
mod disk;
mod mount;
mod network;
mod resources;
mod selinux;
mod signal;
mod subnet;
mod throttle;
mod update;
mod users;

pub use checkpoint::CheckpointSpec;
pub use claims::{ComputeClaim, HOST_PORTS_MAX, HostPort, HostPorts, LeaseClaim, Reserved};
pub use cpus::CpuSet;
pub use disk::{DiskLimit, DiskPart, LimitedPlaces, Project, ProjectId, disk_parts};
pub use mount::{DeviceNode, MissingSource, Mount, MountSource, Propagation, is_volume_name};
pub use network::{
    Bandwidth, Dns, HostAddress, HostEntry, Link, MacAddress, PodNetwork, PortMapping, Protocol,
    SandboxNetwork, UtsMode,
};
pub use resources::{CgroupPlacement, HugepageLimit, Resources, is_number_list};
pub use selinux::{SelinuxLabel, SelinuxPart};
pub use signal::Signal;
pub use subnet::Subnet;
pub use throttle::{IoWeight, Throttle, Throttled};
pub use update::TaskUpdate;
pub use users::{IdMap, IdRange, UserNamespace};

/// What a sandbox and a task have in common: who made it, under which name, and what its frontend keeps with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Who asked for it.
    pub owner: Owner,
    /// The name under which creation is idempotent: unique per owner and kind while the object exists.
    pub name: String,
    /// Labels by which the frontend finds it again.
    pub labels: BTreeMap<String, String>,
    /// When its creation was asked for.
    pub created_at: SystemTime,
    /// Bytes that belong to the frontend (its own encoding of the request); kept verbatim and given back after a restart.
    /// Two requests under one name are the same request if these bytes are equal.
    pub record: Vec<u8>,
}

// === sandboxes ===

/// A sandbox to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Name, owner, labels, record.
    pub meta: Meta,
    /// Runtime handler by name; empty for the default.
    pub handler: String,
    /// Host name inside; empty with the host's network, where the host's own is kept.
    pub hostname: String,
    /// Network namespace.
    pub network: SandboxNetwork,
    /// The ports of the host that it claims, whoever makes them lead to it.
    pub host_ports: HostPorts,
    /// Namespace of the host name.
    pub uts: UtsMode,
    /// IPC namespace.
    pub ipc: IpcMode,
    /// Process namespace that tasks get unless they ask for another.
    pub pid: SandboxPid,
    /// `resolv.conf` of the tasks; `None` copies the host's.
    pub dns: Option<Dns>,
    /// Lines for `/etc/hosts` besides localhost and the sandbox's own.
    pub extra_hosts: Vec<HostEntry>,
    /// Kernel parameters of the sandbox's own namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size_bytes: u64,
    /// Directory below which tasks' logs go; empty if there is none.
    pub log_dir: PathBuf,
    /// Parent of the tasks' cgroups.
    pub cgroup: CgroupPlacement,
    /// Whether privileged tasks may run here.
    pub privileged: bool,
    /// Annotations for the runtime (and for a process of the sandbox, where there is one).
    pub annotations: BTreeMap<String, String>,
    /// SELinux label that tasks inherit.
    pub selinux: Option<SelinuxLabel>,
    /// The user namespace of its own that all its tasks and namespaces are in; `None` is the host's.
    pub users: Option<UserNamespace>,
}

/// Stands for the sandbox's id in values that a frontend fixes before there is one; the backend puts the id in its place.
pub const ID_PLACEHOLDER: &str = "{id}";

/// How the text of an error begins that is about the image of a volume: kubelets know it by that.
pub const IMAGE_VOLUME_FAILED: &str = "ImageVolumeMountFailed";

/// The size of `/dev/shm` where nobody asks for another: 64 MiB.
pub const DEFAULT_SHM_BYTES: u64 = 64 << 20;

/// IPC namespace of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpcMode {
    /// One that all tasks of the sandbox share.
    Shared,
    /// The host's.
    Host,
}

/// Process namespace of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxPid {
    /// Each task has its own: no process of the sandbox is needed.
    PerTask,
    /// One that tasks share; an infra process holds it.
    Shared,
    /// The host's.
    Host,
}

// === tasks ===

/// A task to make, inside a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// Name, owner, labels, record.
    pub meta: Meta,
    /// Image, by any reference or id under which the node has it.
    pub image: String,
    /// Replaces the image's entrypoint (and drops its command); empty keeps it.
    pub command: Vec<String>,
    /// Replaces the image's command; empty keeps it unless `command` is given.
    pub args: Vec<String>,
    /// Working directory; `None` keeps the image's.
    pub cwd: Option<PathBuf>,
    /// Environment over the image's; a later entry wins.
    pub env: Vec<EnvVar>,
    /// User and groups.
    pub user: UserSpec,
    /// Mounts in the order asked for.
    pub mounts: Vec<Mount>,
    /// Devices of the host.
    pub devices: Vec<DeviceNode>,
    /// Devices by their names in the Container Device Interface, `vendor/class=name`, in the order asked for.
    pub cdi_devices: Vec<String>,
    /// The leases of devices that it is made with.
    pub leases: Vec<LeaseClaim>,
    /// Confinement.
    pub security: Security,
    /// Limits of the process; those not named are the runtime's.
    pub rlimits: Vec<Rlimit>,
    /// Limits on block devices; of two for one device and use the later counts.
    pub throttles: Vec<Throttle>,
    /// Shares in the use of block devices; of two for one device the later counts.
    pub io_weights: Vec<IoWeight>,
    /// Priority of what it sends over the interfaces of the host, in a sandbox that has the host's network; `None` leaves it.
    pub net_priority: Option<u32>,
    /// Limits on what its directories take on disk; see [`disk_parts`].
    pub disk_limits: Vec<DiskLimit>,
    /// Limits of the cgroup.
    pub resources: Resources,
    /// What of the node's processors and memory is kept for it.
    pub compute: ComputeClaim,
    /// Where the cgroup goes; `None` follows the sandbox.
    pub cgroup: Option<CgroupPlacement>,
    /// Process namespace.
    pub pid: PidMode,
    /// Cgroup namespace; `None`: its own with cgroup v2 unless it is privileged, else the host's.
    pub cgroup_namespace: Option<CgroupNamespace>,
    /// Has a small process of the gateway's own before the command, which passes signals on and reaps what nobody else does. Needs a
    /// process namespace of its own.
    pub init: bool,
    /// Standard streams.
    pub stdio: Stdio,
    /// Sent first to stop it; `None` keeps the image's, or SIGTERM.
    pub stop_signal: Option<Signal>,
    /// Annotations of the runtime spec.
    pub annotations: BTreeMap<String, String>,
}

/// A variable of the environment. The value need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Name, without `=`.
    pub name: String,
    /// Value.
    pub value: Vec<u8>,
}

/// Who the main process runs as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserSpec {
    /// User; `None` keeps the image's.
    pub user: Option<UserRef>,
    /// Primary group; `None` takes the user's.
    pub gid: Option<u32>,
    /// Groups besides.
    pub supplemental: Vec<u32>,
    /// Groups besides, by name or number, looked up in the image's files.
    pub named: Vec<String>,
    /// Whether the groups that the image's files name are kept.
    pub policy: GroupPolicy,
}

/// A user, by number or as the image's own `USER` line would say it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserRef {
    /// By number.
    Uid(u32),
    /// `user`, `uid`, `user:group`, `uid:gid`, looked up in the image's files.
    Name(String),
}

/// What becomes of the groups that the image's `/etc/group` gives the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupPolicy {
    /// Kept, beside those asked for.
    #[default]
    Merge,
    /// Dropped.
    Strict,
}

/// Confinement of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// All capabilities, all devices, no masks, no profiles.
    pub privileged: bool,
    /// Changes to the default set.
    pub capabilities: CapabilityChanges,
    /// The root file system cannot be written.
    pub readonly_rootfs: bool,
    /// No privileges may be gained by exec.
    pub no_new_privileges: bool,
    /// System call filter.
    pub seccomp: SeccompProfile,
    /// AppArmor profile; `None` is the default where the kernel has AppArmor.
    pub apparmor: Option<AppArmorProfile>,
    /// SELinux label; `None` follows the sandbox.
    pub selinux: Option<SelinuxLabel>,
    /// Paths hidden, exactly as given.
    pub masked_paths: Vec<PathBuf>,
    /// Paths that cannot be written, exactly as given.
    pub readonly_paths: Vec<PathBuf>,
}

/// Changes to the default capability set; names with or without `CAP_`, or `ALL`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapabilityChanges {
    /// Added.
    pub add: Vec<String>,
    /// Dropped.
    pub drop: Vec<String>,
    /// Added, also to the ambient set.
    pub add_ambient: Vec<String>,
}

/// A system call filter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SeccompProfile {
    /// None.
    #[default]
    Unconfined,
    /// The gateway's default.
    RuntimeDefault,
    /// A profile file on the host.
    Localhost(PathBuf),
}

/// An AppArmor profile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AppArmorProfile {
    /// The gateway's default.
    RuntimeDefault,
    /// None.
    Unconfined,
    /// A profile that the host has loaded.
    Localhost(String),
}

/// A resource limit of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rlimit {
    /// Name, as `RLIMIT_NOFILE`.
    pub name: String,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// Process namespace of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PidMode {
    /// Its own.
    Private,
    /// The sandbox's shared one.
    Sandbox,
    /// The host's.
    Host,
    /// That of another running task of the same sandbox.
    Target(TaskId),
}

/// Cgroup namespace of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupNamespace {
    /// Its own: it sees its own group as the root.
    Private,
    /// The host's.
    Host,
}

/// Standard streams of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stdio {
    /// Standard input.
    pub stdin: Stdin,
    /// A terminal instead of pipes; standard error is then part of standard output.
    pub tty: bool,
    /// Where output goes.
    pub output: Output,
}

/// Standard input of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    /// `/dev/null`.
    #[default]
    Closed,
    /// Held open for whoever attaches.
    Open,
    /// Closed when the first who attached leaves.
    Once,
}

/// Where a task's output goes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Output {
    /// Nowhere.
    #[default]
    Discard,
    /// To whoever attaches, and nowhere else.
    Live,
    /// To a log file in the CRI format, kept by the logkeeper.
    Log(PathBuf),
    /// Into FIFOs that somebody else reads; they are handed to the runtime as they are.
    Fifos {
        /// For standard output.
        stdout: PathBuf,
        /// For standard error.
        stderr: PathBuf,
    },
}

// === processes inside a task ===

/// A further process inside a running task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecSpec {
    /// Command line, never empty.
    pub command: Vec<String>,
    /// A terminal instead of pipes.
    pub tty: bool,
    /// Width and height of the terminal from the beginning, in characters; `None` leaves it without a size until it gets one.
    pub size: Option<(u16, u16)>,
    /// Whether standard input is connected.
    pub stdin: bool,
    /// Environment over the main process's.
    pub env: Vec<EnvVar>,
    /// Working directory; `None` keeps the main process's.
    pub cwd: Option<PathBuf>,
    /// How long output may still come after the process itself has ended, while a child holds the pipe.
    pub drain: Duration,
}

#[cfg(test)]
mod tests;
