//! Requests of a frontend: sandboxes, tasks and processes, independent of any protocol.
//!
//! These types are deliberately not serialisable: records on disk have their own versioned types in the
//! backend. An `Option` that is `None` means "not requested: use the default".

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::id::{Owner, TaskId};

mod cgroup_names;
mod checkpoint;
mod claims;
mod cluster_bridge;
mod command;
mod cpus;
mod disk;
mod forwarding;
mod limits;
mod mount;
mod network;
mod network_name;
mod resources;
mod selinux;
mod signal;
mod subnet;
mod throttle;
mod update;
mod users;

pub use cgroup_names::{CgroupFile, HugepageSize};
pub use checkpoint::CheckpointSpec;
pub use claims::{ComputeClaim, HOST_PORTS_MAX, HostPort, HostPorts, LeaseClaim, Reserved};
pub use cluster_bridge::{BridgeAddresses, ClusterBridge, Ipv6BridgeAddresses};
pub use command::command_line;
pub use cpus::CpuSet;
pub use disk::{DiskLimit, DiskPart, LimitedPlaces, Project, ProjectId, disk_parts};
pub use forwarding::not_forwarded;
pub use limits::{
    CpuList, CpuPeriod, CpuQuota, CpuShares, InvalidLimit, MemoryLimit, OomScoreAdj, PidsLimit,
    Swappiness,
};
pub use mount::{
    DeviceNode, MissingSource, Mount, MountSource, Propagation, Relabel, is_volume_name, rooted,
};
pub use network::{
    Bandwidth, Dns, HostAddress, HostEntry, Link, MacAddress, PodNetwork, PortMapping, Protocol,
    SandboxNetwork, UtsMode,
};
pub use network_name::NetworkName;
pub use resources::{CgroupPlacement, HugepageLimit, Resources};
pub use selinux::{SelinuxLabel, SelinuxPart};
pub use signal::Signal;
pub use subnet::Subnet;
pub use throttle::{IoWeight, Throttle, Throttled};
pub use update::TaskUpdate;
pub use users::{IdMap, IdRange, UserNamespace};

/// Common data of sandboxes and tasks: owner, name, and the frontend's own data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The owner that requested it.
    pub owner: Owner,
    /// The name, under which creation is idempotent: unique per owner and kind while the object exists.
    pub name: String,
    /// Labels by which the frontend selects it.
    pub labels: BTreeMap<String, String>,
    /// Time at which its creation was requested.
    pub created_at: SystemTime,
    /// Opaque bytes of the frontend (its own encoding of the request); stored verbatim and returned after a
    /// restart. Two requests under one name are the same request if these bytes are equal.
    pub record: Vec<u8>,
}

// === sandboxes ===

/// A sandbox to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSpec {
    /// Name, owner, labels, record.
    pub meta: Meta,
    /// Runtime handler by name; empty for the default.
    pub handler: String,
    /// Host name inside; empty with the host's network, where the host's name is kept.
    pub hostname: String,
    /// Network namespace.
    pub network: SandboxNetwork,
    /// The host ports that it claims, whether the gateway maps them or something else does.
    pub host_ports: HostPorts,
    /// UTS namespace.
    pub uts: UtsMode,
    /// IPC namespace.
    pub ipc: IpcMode,
    /// PID namespace that tasks get by default.
    pub pid: SandboxPid,
    /// Content of the tasks' `resolv.conf`; `None` copies the host's.
    pub dns: Option<Dns>,
    /// Further lines for `/etc/hosts`, after those of localhost and the sandbox itself.
    pub extra_hosts: Vec<HostEntry>,
    /// Kernel parameters of the sandbox's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Size of `/dev/shm` in bytes.
    pub shm_size_bytes: u64,
    /// Directory for the tasks' logs; empty if there is none.
    pub log_dir: PathBuf,
    /// Parent cgroup of the tasks.
    pub cgroup: CgroupPlacement,
    /// True if privileged tasks are allowed.
    pub privileged: bool,
    /// Annotations for the runtime, also applied to the sandbox's own process if it has one.
    pub annotations: BTreeMap<String, String>,
    /// SELinux label that tasks inherit.
    pub selinux: Option<SelinuxLabel>,
    /// The user namespace of all its tasks and namespaces; `None` is the host's.
    pub users: Option<UserNamespace>,
}

/// Placeholder for the sandbox's id in values that a frontend sets before the id exists; the backend replaces
/// it.
pub const ID_PLACEHOLDER: &str = "{id}";

/// The default size of `/dev/shm`: 64 MiB.
pub const DEFAULT_SHM_BYTES: u64 = 64 << 20;

/// IPC namespace of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpcMode {
    /// One that all tasks of the sandbox share.
    Shared,
    /// The host's.
    Host,
}

/// PID namespace of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxPid {
    /// Each task has its own; the sandbox needs no process of its own.
    PerTask,
    /// One that all tasks share; an infra process holds it.
    Shared,
    /// The host's.
    Host,
}

// === tasks ===

/// A task to create in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSpec {
    /// Name, owner, labels, record.
    pub meta: Meta,
    /// Image, by any reference or id known to the node.
    pub image: String,
    /// Replaces the image's entrypoint (and drops its command); empty keeps it. See [`command_line`].
    pub command: Vec<String>,
    /// Replaces the image's command; empty keeps it unless `command` is given.
    pub args: Vec<String>,
    /// Working directory; `None` keeps the image's.
    pub cwd: Option<PathBuf>,
    /// Environment variables, applied over the image's; a later entry wins.
    pub env: Vec<EnvVar>,
    /// Names of variables that it does not have although the image or a default does, unless `env` has them.
    pub unset_env: Vec<String>,
    /// User and groups.
    pub user: UserSpec,
    /// Mounts, in the requested order.
    pub mounts: Vec<Mount>,
    /// Host devices.
    pub devices: Vec<DeviceNode>,
    /// Devices by CDI name, `vendor/class=name`, in the requested order.
    pub cdi_devices: Vec<String>,
    /// The device leases that it is created with.
    pub leases: Vec<LeaseClaim>,
    /// Confinement.
    pub security: Security,
    /// Rlimits of the process; others are left to the runtime.
    pub rlimits: Vec<Rlimit>,
    /// Limits on block devices; a later entry for the same device and kind replaces an earlier one.
    pub throttles: Vec<Throttle>,
    /// I/O weights on block devices; a later entry for the same device replaces an earlier one.
    pub io_weights: Vec<IoWeight>,
    /// Priority of its outgoing traffic on host interfaces, for a sandbox with the host's network; `None`
    /// leaves it unset.
    pub net_priority: Option<u32>,
    /// Limits on the disk usage of its directories; see [`disk_parts`].
    pub disk_limits: Vec<DiskLimit>,
    /// Cgroup limits.
    pub resources: Resources,
    /// The reservation of the node's processors and memory.
    pub compute: ComputeClaim,
    /// Placement of its cgroup; `None` follows the sandbox.
    pub cgroup: Option<CgroupPlacement>,
    /// PID namespace.
    pub pid: PidMode,
    /// Cgroup namespace; `None`: its own with cgroup v2 unless privileged, otherwise the host's.
    pub cgroup_namespace: Option<CgroupNamespace>,
    /// Runs the command under a small init process of the gateway, which forwards signals and reaps orphaned
    /// processes. Requires a PID namespace of its own.
    pub init: bool,
    /// Standard streams.
    pub stdio: Stdio,
    /// The first signal sent to stop it; `None` takes the image's, or SIGTERM.
    pub stop_signal: Option<Signal>,
    /// Annotations of the runtime spec.
    pub annotations: BTreeMap<String, String>,
}

/// An environment variable. The value need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvVar {
    /// Name, without `=`.
    pub name: String,
    /// Value.
    pub value: Vec<u8>,
}

/// The user that the main process runs as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UserSpec {
    /// User; `None` keeps the image's.
    pub user: Option<UserRef>,
    /// Primary group; `None` takes the user's.
    pub gid: Option<u32>,
    /// Supplementary groups.
    pub supplemental: Vec<u32>,
    /// Supplementary groups by name or number, resolved with the image's files.
    pub named: Vec<String>,
    /// Policy for the user's groups in the image's files.
    pub policy: GroupPolicy,
}

/// A user, by number or in the syntax of an image's `USER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UserRef {
    /// By number.
    Uid(u32),
    /// `user`, `uid`, `user:group` or `uid:gid`, resolved with the image's files.
    Name(String),
}

/// The policy for the groups that the image's `/etc/group` gives the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupPolicy {
    /// Added to the requested ones.
    #[default]
    Merge,
    /// Dropped.
    Strict,
}

/// Security settings of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Security {
    /// All capabilities, all devices, no masked or read-only paths, no profiles.
    pub privileged: bool,
    /// Changes to the default set.
    pub capabilities: CapabilityChanges,
    /// True if the root file system is read-only.
    pub readonly_rootfs: bool,
    /// True if exec can gain no privileges.
    pub no_new_privileges: bool,
    /// System call filter.
    pub seccomp: SeccompProfile,
    /// AppArmor profile; `None` is the default profile if the kernel has AppArmor.
    pub apparmor: Option<AppArmorProfile>,
    /// SELinux label; `None` follows the sandbox.
    pub selinux: Option<SelinuxLabel>,
    /// Masked paths, exactly these.
    pub masked_paths: Vec<PathBuf>,
    /// Read-only paths, exactly these.
    pub readonly_paths: Vec<PathBuf>,
}

/// Changes to the default capability set; names with or without `CAP_`, or `ALL`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CapabilityChanges {
    /// Added.
    pub add: Vec<String>,
    /// Dropped.
    pub drop: Vec<String>,
    /// Added, and also to the ambient set.
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
    /// A profile loaded on the host.
    Localhost(String),
}

/// A resource limit of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rlimit {
    /// Name, for example `RLIMIT_NOFILE`.
    pub name: String,
    /// Soft limit.
    pub soft: u64,
    /// Hard limit.
    pub hard: u64,
}

/// PID namespace of a task.
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
    /// Its own, with its own cgroup as the root.
    Private,
    /// The host's.
    Host,
}

/// Standard streams of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Stdio {
    /// Standard input.
    pub stdin: Stdin,
    /// A terminal instead of pipes; standard error is then merged into standard output.
    pub tty: bool,
    /// Destination of its output.
    pub output: Output,
}

/// Standard input of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stdin {
    /// `/dev/null`.
    #[default]
    Closed,
    /// Held open for clients that attach.
    Open,
    /// Closed when the first client that attached disconnects.
    Once,
}

/// The destination of a task's output.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Output {
    /// Discarded.
    #[default]
    Discard,
    /// Only to clients that attach.
    Live,
    /// To a log file in the CRI format, written by the logkeeper.
    Log(PathBuf),
    /// Into FIFOs of another reader; passed to the runtime as they are.
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
    /// Initial width and height of the terminal, in characters; `None` leaves the size unset.
    pub size: Option<(u16, u16)>,
    /// True if standard input is connected.
    pub stdin: bool,
    /// Environment variables, applied over the main process's.
    pub env: Vec<EnvVar>,
    /// Working directory; `None` keeps the main process's.
    pub cwd: Option<PathBuf>,
    /// Limit for output after the process has exited, while a child keeps the pipe open.
    pub drain: Duration,
}

#[cfg(test)]
mod tests;
