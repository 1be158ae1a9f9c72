//! What a spec is made of: the image's wishes, the sandbox's and the node's facts, and a view of the node's files.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use switchyard_core::spec::{MissingSource, SelinuxLabel, Signal, TaskSpec, UserNamespace};

use crate::user::ResolvedUser;

/// All that the spec of a task depends on.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Id of the task.
    pub id: &'a str,
    /// What was asked for.
    pub task: &'a TaskSpec,
    /// What the image says.
    pub image: &'a ImageConfig,
    /// What the sandbox provides.
    pub sandbox: &'a SandboxFacts,
    /// What the node can do.
    pub host: &'a Host,
    /// Files, mounts and devices of the node.
    pub fs: &'a dyn HostFs,
    /// The user, looked up in the image.
    pub user: &'a ResolvedUser,
    /// Directories for the volumes that the image asks for; a mount of the task at the same place wins.
    pub volumes: &'a [ImageVolume],
    /// Where the cgroup goes, as [`crate::cgroups_path::cgroups_path`] says it.
    pub cgroups_path: &'a str,
    /// The process namespace of the task that `PidMode::Target` names.
    pub target_pid: Option<&'a Path>,
    /// Whether the runtime handler knows the mount option `rro`.
    pub recursive_readonly: bool,
    /// Where the files of those of the task's mounts are put that no path of the host has as the task is to see them, by the number of
    /// the mount: of images, and id-mapped ones.
    pub staged: &'a BTreeMap<usize, PathBuf>,
    /// The program on the host that goes before the command of a task that asks for an init process; it is linked statically.
    pub init: &'a Path,
    /// Where vendors' files about devices are; a later directory wins.
    pub cdi_dirs: &'a [PathBuf],
}

impl fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input")
            .field("id", &self.id)
            .field("cgroups_path", &self.cgroups_path)
            .finish_non_exhaustive()
    }
}

/// The part of an image's configuration that says how to run it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ImageConfig {
    /// First part of the command line.
    pub entrypoint: Vec<String>,
    /// Second part of the command line.
    pub cmd: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// Working directory; empty for the root.
    pub cwd: String,
    /// User, as `USER` spells it.
    pub user: String,
    /// Paths that want a directory of their own.
    pub volumes: Vec<PathBuf>,
    /// Sent first to stop it.
    pub stop_signal: Option<Signal>,
}

/// A directory made for a volume of the image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageVolume {
    /// Absolute path inside.
    pub destination: PathBuf,
    /// The directory on the host.
    pub source: PathBuf,
}

/// A namespace of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// The host's own.
    Host,
    /// The one that is found at this path.
    Path(PathBuf),
}

/// What a sandbox provides to its tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxFacts {
    /// Network namespace.
    pub network: Namespace,
    /// IPC namespace.
    pub ipc: Namespace,
    /// UTS namespace.
    pub uts: Namespace,
    /// The process namespace that tasks may share; `None` if there is none.
    pub pid: Option<Namespace>,
    /// Host name, for the environment.
    pub hostname: String,
    /// File for `/etc/hostname`.
    pub hostname_file: Option<PathBuf>,
    /// File for `/etc/hosts`.
    pub hosts_file: Option<PathBuf>,
    /// File for `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
    /// Directory for `/dev/shm`: the sandbox's own, or the host's.
    pub shm: Option<PathBuf>,
    /// Whether privileged tasks may run.
    pub privileged: bool,
    /// Label that tasks inherit.
    pub selinux: Option<SelinuxLabel>,
    /// The user namespace that all its other namespaces belong to; `None` for the host's.
    pub users: Option<SandboxUsers>,
}

/// The user namespace of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxUsers {
    /// Where it is found.
    pub path: PathBuf,
    /// What its ids are on the host.
    pub map: UserNamespace,
}

/// Version of the cgroup hierarchy that has the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller, also where a version 2 tree without controllers stands beside them.
    V1,
    /// The unified hierarchy.
    V2,
}

/// Who makes cgroups for the runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The runtime itself, in the file system.
    Fs,
    /// systemd, as slices and scopes.
    Systemd,
}

/// Architecture of the processor, as far as filters of system calls differ by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// x86 with 64 bits, which also runs x86 and x32 programs.
    X86_64,
    /// ARM with 64 bits, which may also run 32-bit programs.
    Aarch64,
    /// Another one, filtered by its native calls alone.
    Other,
}

impl Arch {
    /// The one that this program was built for.
    #[must_use]
    pub const fn native() -> Self {
        if cfg!(target_arch = "x86_64") {
            Self::X86_64
        } else if cfg!(target_arch = "aarch64") {
            Self::Aarch64
        } else {
            Self::Other
        }
    }
}

/// Labels of an SELinux policy for confined tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelinuxDefaults {
    /// Of a process, four parts joined by `:`.
    pub process: String,
    /// Of its files, four parts joined by `:`.
    pub file: String,
}

impl Default for SelinuxDefaults {
    fn default() -> Self {
        Self {
            process: "system_u:system_r:container_t:s0".to_owned(),
            file: "system_u:object_r:container_file_t:s0".to_owned(),
        }
    }
}

/// What a node can do, and what the process that starts runtimes may give away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Architecture.
    pub arch: Arch,
    /// Kernel version, major and minor.
    pub kernel: (u32, u32),
    /// Which cgroups it has.
    pub cgroup: CgroupVersion,
    /// Who makes them.
    pub cgroup_driver: CgroupDriver,
    /// Bounding set of this process, by name with `CAP_`.
    pub capabilities: Vec<String>,
    /// Score adjustment of this process; without `CAP_SYS_RESOURCE` nobody goes below.
    pub oom_score_adj: i32,
    /// Hard limits of this process by name (`RLIMIT_NOFILE`); without `CAP_SYS_RESOURCE` nobody goes above.
    /// One that is missing here has no limit.
    pub hard_rlimits: BTreeMap<String, u64>,
    /// The AppArmor profile that stands for the default; `None` where the kernel has no AppArmor.
    pub apparmor: Option<String>,
    /// Labels of the policy; `None` where SELinux is off.
    pub selinux: Option<SelinuxDefaults>,
    /// Whether the kernel filters system calls.
    pub seccomp: bool,
    /// Sizes of huge pages that a controller can limit, as `2MB`; empty without the controller.
    pub hugepage_sizes: Vec<String>,
    /// Whether swap is accounted to cgroups.
    pub swap_accounting: bool,
    /// Whether the kernel weighs the use of block devices by cgroup.
    pub io_weights: bool,
    /// Whether control groups have priorities for the interfaces of the host.
    pub net_priorities: bool,
}

impl Host {
    /// Whether this process may raise limits and lower scores.
    #[must_use]
    pub fn has_sys_resource(&self) -> bool {
        self.capabilities.iter().any(|name| name == "CAP_SYS_RESOURCE")
    }
}

/// What a mount of the host tells others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostPropagation {
    /// Nothing comes or goes.
    Private,
    /// It receives.
    Slave,
    /// It sends and receives.
    Shared,
}

/// A device node of the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Whether it is a block device; a character device if not.
    pub block: bool,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// What a path of the host is, seen as a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostNode {
    /// A device.
    Device(DeviceInfo),
    /// A directory, with the devices in it and below, by path.
    Directory(Vec<(PathBuf, DeviceInfo)>),
    /// Anything else.
    Other,
}

/// Files, mounts and devices of the node. Each call is short and may block on the file system.
pub trait HostFs: Send + Sync {
    /// The source of a bind mount with its symbolic links followed; made first if it is missing and `missing` says so.
    ///
    /// # Errors
    /// What the file system says.
    fn source(&self, path: &Path, missing: MissingSource) -> io::Result<PathBuf>;

    /// Propagation of the mount that `path` is on. `path` has no symbolic links.
    ///
    /// # Errors
    /// What the file system says.
    fn propagation(&self, path: &Path) -> io::Result<HostPropagation>;

    /// What is at `path`, symbolic links followed.
    ///
    /// # Errors
    /// What the file system says.
    fn node(&self, path: &Path) -> io::Result<HostNode>;

    /// All devices of the host that a privileged task gets, by path.
    ///
    /// # Errors
    /// What the file system says.
    fn all_devices(&self) -> io::Result<Vec<(PathBuf, DeviceInfo)>>;

    /// The text of a file of at most `limit` bytes.
    ///
    /// # Errors
    /// What the file system says; also for a file that is larger or not regular.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;

    /// The files in a directory, by path, in any order.
    ///
    /// # Errors
    /// What the file system says.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>>;
}
