//! The inputs of a spec: the image's configuration, facts of the sandbox and the node, and what was found of the
//! node's files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use switchyard_core::spec::{OomScoreAdj, SelinuxLabel, Signal, TaskSpec, UserNamespace};

use crate::gathered::Gathered;
pub use crate::host_fs::{DeviceInfo, HostNode, HostPropagation};
use crate::resolved::{ImageVolume, ResolvedMount};
use crate::user::ResolvedUser;

/// All that the spec of a task depends on.
#[derive(Clone, Copy)]
pub struct Input<'a> {
    /// Id of the task.
    pub id: &'a str,
    /// The requested task. Its mounts are in `mounts`, with their sources.
    pub task: &'a TaskSpec,
    /// The mounts that the task requests.
    pub mounts: &'a [ResolvedMount],
    /// The image's configuration.
    pub image: &'a ImageConfig,
    /// The facts of the sandbox.
    pub sandbox: &'a SandboxFacts,
    /// The abilities of the node.
    pub host: &'a Host,
    /// The gathered facts of files, mounts and devices of the node.
    pub found: &'a Gathered,
    /// The user, looked up in the image.
    pub user: &'a ResolvedUser,
    /// Directories for the volumes that the image declares; a mount of the task at the same destination takes
    /// precedence.
    pub volumes: &'a [ImageVolume],
    /// The directory in which mounts of the task are staged before the runtime creates the container.
    pub stage: &'a Path,
    /// The location of the cgroup, from [`crate::cgroups_path::cgroups_path`].
    pub cgroups_path: &'a str,
    /// The process namespace of the task that `PidMode::Target` names.
    pub target_pid: Option<&'a Path>,
    /// True if the runtime handler knows the mount option `rro`.
    pub recursive_readonly: bool,
    /// The statically linked program on the host that runs before the command of a task that requests an init
    /// process.
    pub init: &'a Path,
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
    /// User, in the syntax of `USER`.
    pub user: String,
    /// Paths of the declared volumes.
    pub volumes: Vec<PathBuf>,
    /// The signal that is sent first to stop a task.
    pub stop_signal: Option<Signal>,
}

/// A namespace of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Namespace {
    /// The host's own.
    Host,
    /// The one at this path.
    Path(PathBuf),
}

/// The facts of a sandbox on which the specs of its tasks depend.
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
    /// True if privileged tasks may run.
    pub privileged: bool,
    /// True if other sandboxes may be in its network namespace, whose tasks may be privileged.
    pub network_shared: bool,
    /// Label that tasks inherit.
    pub selinux: Option<SelinuxLabel>,
    /// The user namespace that all its other namespaces belong to; `None` for the host's.
    pub users: Option<SandboxUsers>,
}

/// The user namespace of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxUsers {
    /// The path of the namespace file.
    pub path: PathBuf,
    /// Its id maps.
    pub map: UserNamespace,
}

/// Version of the cgroup hierarchy that has the controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupVersion {
    /// One hierarchy per controller; also the hybrid layout, with a version 2 tree without controllers
    /// besides.
    V1,
    /// The unified hierarchy.
    V2,
}

/// The runtime's way of creating cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The runtime itself, in the file system.
    Fs,
    /// systemd, as slices and scopes.
    Systemd,
}

/// Architecture of the processor, as far as seccomp filters depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arch {
    /// x86 with 64 bits, which also runs x86 and x32 programs.
    X86_64,
    /// ARM with 64 bits, which may also run 32-bit programs.
    Aarch64,
    /// Another one, for which only native system calls are filtered.
    Other,
}

impl Arch {
    /// The architecture that this program was built for.
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
    /// Label of a process, four parts joined by `:`.
    pub process: String,
    /// Label of its files, four parts joined by `:`.
    pub file: String,
    /// Label of files that tasks of all sandboxes may read and execute.
    pub readonly_file: String,
}

impl Default for SelinuxDefaults {
    fn default() -> Self {
        Self {
            process: "system_u:system_r:container_t:s0".to_owned(),
            file: "system_u:object_r:container_file_t:s0".to_owned(),
            readonly_file: "system_u:object_r:container_ro_file_t:s0".to_owned(),
        }
    }
}

impl SelinuxDefaults {
    /// The labels that a policy names for containers, in the text of its file `contexts/lxc_contexts`; those of
    /// container-selinux for what it does not name. Without `has_levels` they have no level.
    #[must_use]
    pub fn of_policy(lxc_contexts: &str, has_levels: bool) -> Self {
        let Self {
            process,
            file,
            readonly_file,
        } = Self::default();
        let named = |key: &str, default: String| {
            let lines = lxc_contexts.lines().filter_map(|line| line.split_once('='));
            let value = lines
                .filter(|(name, _)| name.trim() == key)
                .map(|(_, value)| value.trim().trim_matches('"'))
                .find(|value| is_label(value));
            let label = value.map_or(default, str::to_owned);
            if has_levels {
                label
            } else {
                let parts: Vec<&str> = label.splitn(4, ':').take(3).collect();
                parts.join(":")
            }
        };
        Self {
            process: named("process", process),
            file: named("file", file),
            readonly_file: named("ro_file", readonly_file),
        }
    }

    /// The sensitivity at which containers run, for example `s0`; `None` if the policy has no levels.
    #[must_use]
    pub fn sensitivity(&self) -> Option<&str> {
        let level = self.process.splitn(4, ':').nth(3)?;
        let low = level.split_once('-').map_or(level, |(low, _)| low);
        Some(
            low.split_once(':')
                .map_or(low, |(sensitivity, _)| sensitivity),
        )
    }
}

/// Returns whether a text is a label with or without a level.
fn is_label(text: &str) -> bool {
    let mut parts = text.splitn(4, ':').map(str::to_owned);
    let label = SelinuxLabel {
        user: parts.next().unwrap_or_default(),
        role: parts.next().unwrap_or_default(),
        type_: parts.next().unwrap_or_default(),
        level: parts.next().unwrap_or_default(),
    };
    !label.type_.is_empty() && label.check("label").is_ok()
}

/// The features of a node, and the privileges that the process that starts runtimes can pass on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Architecture.
    pub arch: Arch,
    /// Kernel version, major and minor.
    pub kernel: (u32, u32),
    /// Its cgroup version.
    pub cgroup: CgroupVersion,
    /// The driver that creates cgroups.
    pub cgroup_driver: CgroupDriver,
    /// Bounding set of this process, by name with `CAP_`.
    pub capabilities: Vec<String>,
    /// True if this process is in another user namespace than the kernel's first one: its capabilities are not those of the node.
    pub in_user_namespace: bool,
    /// The OOM score adjustment of this process; without `CAP_SYS_RESOURCE` tasks cannot have a lower one.
    pub oom_score_adj: OomScoreAdj,
    /// Hard limits of this process by name (`RLIMIT_NOFILE`); without `CAP_SYS_RESOURCE` tasks cannot have
    /// higher ones. A missing name has no limit.
    pub hard_rlimits: BTreeMap<String, u64>,
    /// The name of the default AppArmor profile; `None` where none can be used.
    pub apparmor: Option<String>,
    /// The reason why no AppArmor profile can be used on this node although the kernel has AppArmor; `None` otherwise.
    pub apparmor_fault: Option<String>,
    /// Labels of the policy; `None` where SELinux is off.
    pub selinux: Option<SelinuxDefaults>,
    /// True if the kernel supports seccomp filters.
    pub seccomp: bool,
    /// Sizes of huge pages that a controller can limit, as `2MB`; empty without the controller.
    pub hugepage_sizes: Vec<String>,
    /// True if swap is accounted to cgroups.
    pub swap_accounting: bool,
    /// True if the kernel supports I/O weights of cgroups.
    pub io_weights: bool,
    /// True if cgroups have network priorities for the interfaces of the host.
    pub net_priorities: bool,
}

impl Host {
    /// Returns whether this process may raise limits and lower scores. The kernel asks for the capability in its first user
    /// namespace, whatever this process has in its own.
    #[must_use]
    pub fn has_sys_resource(&self) -> bool {
        let mut names = self.capabilities.iter();
        !self.in_user_namespace && names.any(|name| name == "CAP_SYS_RESOURCE")
    }

    /// The SELinux label of files that tasks of all sandboxes may read and execute; `None` where SELinux is off.
    #[must_use]
    pub fn readonly_label(&self) -> Option<&str> {
        let labels = self.selinux.as_ref()?;
        Some(&labels.readonly_file)
    }
}
