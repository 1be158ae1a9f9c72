//! What a frontend asks for: sandboxes, tasks and processes, in words that belong to no protocol.
//!
//! None of these types is serialisable on purpose: what goes to disk is a versioned type of the backend.
//! An `Option` that is `None` means "not asked for: use the default".

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::id::{Owner, TaskId};

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

/// Where the cgroup of an object goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupPlacement {
    /// Below this parent, in a group named after the id. An empty path is the gateway's own default parent.
    Parent(PathBuf),
    /// Exactly this group, which somebody else made and removes.
    Leaf(PathBuf),
}

impl Default for CgroupPlacement {
    fn default() -> Self {
        Self::Parent(PathBuf::new())
    }
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
}

/// The size of `/dev/shm` where nobody asks for another: 64 MiB.
pub const DEFAULT_SHM_BYTES: u64 = 64 << 20;

/// How a sandbox is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxNetwork {
    /// The host's own namespace, also for UTS.
    Host,
    /// A namespace of its own, connected by CNI.
    Pod(PodNetwork),
    /// A namespace of its own with loopback only.
    Isolated,
    /// A namespace that somebody else made and connects.
    Joined(PathBuf),
}

/// What CNI is told about a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PodNetwork {
    /// Ports of the host that lead here.
    pub ports: Vec<PortMapping>,
    /// Rate limits.
    pub bandwidth: Option<Bandwidth>,
    /// `CNI_ARGS` pairs, in order.
    pub args: Vec<(String, String)>,
    /// Capability arguments of the frontend's own, by capability name.
    pub capabilities: BTreeMap<String, BTreeMap<String, String>>,
}

/// A port of the host that leads into a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port inside.
    pub container_port: u16,
    /// Port outside, never 0.
    pub host_port: u16,
    /// Address outside; `None` for all.
    pub host_ip: Option<IpAddr>,
}

/// A transport protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Rate limits of a sandbox's interface; `None` is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bandwidth {
    /// Towards the sandbox, bits per second.
    pub ingress_bits: Option<u64>,
    /// From the sandbox, bits per second.
    pub egress_bits: Option<u64>,
}

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

/// Resolver configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dns {
    /// Name servers, by address.
    pub servers: Vec<String>,
    /// Search domains.
    pub searches: Vec<String>,
    /// Options.
    pub options: Vec<String>,
}

/// A line of `/etc/hosts`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostEntry {
    /// The address.
    pub ip: IpAddr,
    /// Names for it.
    pub names: Vec<String>,
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
    /// Confinement.
    pub security: Security,
    /// Limits of the process; those not named are the runtime's.
    pub rlimits: Vec<Rlimit>,
    /// Limits of the cgroup.
    pub resources: Resources,
    /// Where the cgroup goes; `None` follows the sandbox.
    pub cgroup: Option<CgroupPlacement>,
    /// Process namespace.
    pub pid: PidMode,
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

/// Something of the host that appears inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path inside.
    pub destination: PathBuf,
    /// What appears there.
    pub source: MountSource,
    /// No writing through it.
    pub readonly: bool,
    /// Nor through anything mounted below it. Needs `readonly` and private propagation.
    pub recursive_readonly: bool,
    /// Whether mounts made later go across.
    pub propagation: Propagation,
    /// Give the source the task's SELinux label.
    pub selinux_relabel: bool,
    /// Further mount options.
    pub options: Vec<String>,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A path of the host; symbolic links in it are followed.
    Host {
        /// Absolute path.
        path: PathBuf,
        /// What to do where nothing is there.
        missing: MissingSource,
    },
    /// A tmpfs of this size in bytes (0: the kernel's default) and mode.
    Tmpfs {
        /// Size limit.
        size_bytes: u64,
        /// Permission bits.
        mode: u32,
    },
}

/// What to do about a host path that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingSource {
    /// Make a directory.
    CreateDir,
    /// Refuse.
    Fail,
}

/// Mount propagation, as seen from inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    /// None.
    #[default]
    Private,
    /// From the host to the task.
    HostToTask,
    /// Both ways.
    Bidirectional,
}

/// A device of the host, or a directory of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path on the host.
    pub host_path: PathBuf,
    /// Path inside.
    pub container_path: PathBuf,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
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

/// An SELinux label; empty parts are the policy's defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelinuxLabel {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub type_: String,
    /// Level.
    pub level: String,
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

/// Limits of a cgroup. `None`: not asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Resources {
    /// Relative weight, 2 to 262144.
    pub cpu_shares: Option<u64>,
    /// CPU time per period in µs; negative for no limit.
    pub cpu_quota_us: Option<i64>,
    /// Length of the period in µs.
    pub cpu_period_us: Option<u64>,
    /// CPUs, as `0-2,7`.
    pub cpuset_cpus: Option<String>,
    /// Memory nodes, as `0`.
    pub cpuset_mems: Option<String>,
    /// Hard limit in bytes; -1 for none.
    pub memory_limit_bytes: Option<i64>,
    /// Memory plus swap in bytes; -1 for none. `None` with a memory limit means no swap.
    pub memory_swap_limit_bytes: Option<i64>,
    /// Soft limit in bytes.
    pub memory_reservation_bytes: Option<i64>,
    /// Number of processes; -1 for no limit.
    pub pids_limit: Option<i64>,
    /// Huge page limits.
    pub hugepages: Vec<HugepageLimit>,
    /// Score adjustment of the main process, -1000 to 1000.
    pub oom_score_adj: Option<i32>,
    /// Files of cgroup v2, verbatim.
    pub unified: BTreeMap<String, String>,
}

/// A limit on huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HugepageLimit {
    /// Size as the kernel names it: `2MB`, `1GB`.
    pub page_size: String,
    /// Limit in bytes.
    pub limit_bytes: u64,
}

impl Resources {
    /// These limits changed by `update`: what `update` does not name stays.
    #[must_use]
    pub fn merged(&self, update: &Self) -> Self {
        let Self {
            cpu_shares,
            cpu_quota_us,
            cpu_period_us,
            cpuset_cpus,
            cpuset_mems,
            memory_limit_bytes,
            memory_swap_limit_bytes,
            memory_reservation_bytes,
            pids_limit,
            hugepages,
            oom_score_adj,
            unified,
        } = update.clone();
        let mut merged_unified = self.unified.clone();
        merged_unified.extend(unified);
        let mut merged_hugepages = self.hugepages.clone();
        for limit in hugepages {
            merged_hugepages.retain(|old| old.page_size != limit.page_size);
            merged_hugepages.push(limit);
        }
        Self {
            cpu_shares: cpu_shares.or(self.cpu_shares),
            cpu_quota_us: cpu_quota_us.or(self.cpu_quota_us),
            cpu_period_us: cpu_period_us.or(self.cpu_period_us),
            cpuset_cpus: cpuset_cpus.or_else(|| self.cpuset_cpus.clone()),
            cpuset_mems: cpuset_mems.or_else(|| self.cpuset_mems.clone()),
            memory_limit_bytes: memory_limit_bytes.or(self.memory_limit_bytes),
            memory_swap_limit_bytes: memory_swap_limit_bytes.or(self.memory_swap_limit_bytes),
            memory_reservation_bytes: memory_reservation_bytes.or(self.memory_reservation_bytes),
            pids_limit: pids_limit.or(self.pids_limit),
            hugepages: merged_hugepages,
            oom_score_adj: oom_score_adj.or(self.oom_score_adj),
            unified: merged_unified,
        }
    }
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

/// A Linux signal number, 1 to 64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Signal(u8);

impl Signal {
    /// Ends a process that listens.
    pub const TERM: Self = Self(15);
    /// Ends any process.
    pub const KILL: Self = Self(9);

    /// The signal with this number, if there is one.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 1 && number <= 64 { Some(Self(number)) } else { None }
    }

    /// Its number on Linux.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The signal of this name (`SIGTERM`, `TERM`, `RTMIN+3`) or number, as an image's `STOPSIGNAL` spells it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_uppercase();
        if let Ok(number) = text.parse::<u8>() {
            return Self::new(number);
        }
        let name = text.strip_prefix("SIG").unwrap_or(&text);
        if let Some(offset) = name.strip_prefix("RTMIN") {
            let offset = if offset.is_empty() { 0 } else { offset.strip_prefix('+')?.parse::<u8>().ok()? };
            return if offset <= 30 { Self::new(34 + offset) } else { None };
        }
        if let Some(offset) = name.strip_prefix("RTMAX") {
            let offset = if offset.is_empty() { 0 } else { offset.strip_prefix('-')?.parse::<u8>().ok()? };
            return if offset <= 30 { Self::new(64 - offset) } else { None };
        }
        let alias = match name {
            "IOT" => "ABRT",
            "CLD" => "CHLD",
            "POLL" => "IO",
            other => other,
        };
        let index = SIGNAL_NAMES.iter().position(|known| *known == alias)?;
        Self::new(u8::try_from(index + 1).ok()?)
    }
}

/// Names of the signals 1 to 31, in order (x86 and ARM numbering).
const SIGNAL_NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

// === processes inside a task ===

/// A further process inside a running task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecSpec {
    /// Command line, never empty.
    pub command: Vec<String>,
    /// A terminal instead of pipes.
    pub tty: bool,
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
