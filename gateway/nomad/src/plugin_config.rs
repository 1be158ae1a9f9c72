//! The configuration in an agent's `plugin` block: the applicable options of Nomad's docker driver.

use std::time::Duration;

use switchyard_core::spec::{OomScoreAdj, PidsLimit};
use switchyard_docker_options::local_volume::KINDS;

mod decode;

pub(crate) use decode::{LABEL_NAMES, matches};

/// The configuration of a driver session. The defaults are those of Nomad's docker driver, except where
/// noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginConfig {
    /// True if tasks may be privileged.
    pub allow_privileged: bool,
    /// Capabilities that tasks may add, without `CAP_`; `ALL` allows all.
    pub allow_caps: Vec<String>,
    /// True if tasks may have host devices that no agent assigned to them, by path or by CDI name.
    pub allow_devices: bool,
    /// The `security_opt` that tasks may have: globs over `key=value`. Options that only confine a task
    /// further are always allowed.
    pub allow_security_opt: Vec<String>,
    /// Runtime handlers that tasks may name; empty allows all of the node. (Docker's default: runc and
    /// nvidia.)
    pub allow_runtimes: Vec<String>,
    /// The runtime handler of tasks to which Nomad assigned NVIDIA GPUs; empty if they get them by CDI name.
    /// (Docker's default: nvidia.)
    pub nvidia_runtime: String,
    /// Host namespaces that tasks may have without being privileged.
    pub allowed_modes: AllowedModes,
    /// Sources of credentials for tasks that have none.
    pub auth: AuthConfig,
    /// Volumes from outside the task's directory.
    pub volumes: VolumesConfig,
    /// Garbage collection.
    pub gc: GcConfig,
    /// True if the agent collects no output of tasks.
    pub disable_log_collection: bool,
    /// The total timeout of a pull, if the task sets none.
    pub image_pull_timeout: Duration,
    /// The timeout of a pull without progress.
    pub pull_activity_timeout: Duration,
    /// Nomad facts that become labels: globs over `job_name`, `task_name` and so on.
    pub extra_labels: Vec<String>,
    /// The maximum number of processes of a task; `None` for no limit.
    pub pids_limit: Option<PidsLimit>,
    /// OOM score adjustment of tasks that set none.
    pub oom_score_adj: OomScoreAdj,
    /// True if the driver creates the networks of groups, instead of the agent. (Docker's default: true.)
    pub must_create_network: bool,
}

/// Host namespaces that tasks may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowedModes {
    /// Values of `pid_mode`.
    pub pid: Vec<String>,
    /// Values of `ipc_mode`.
    pub ipc: Vec<String>,
    /// Values of `userns_mode`.
    pub userns: Vec<String>,
    /// Values of `uts_mode`.
    pub uts: Vec<String>,
    /// Values of `network_mode`; other modes are always allowed. (Docker's driver has no such list, and
    /// allows the host's network to all.)
    pub network: Vec<String>,
    /// Values of `cgroupns`; as `network`.
    pub cgroupns: Vec<String>,
}

/// Sources of credentials.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthConfig {
    /// Path of a Docker `config.json`; empty for none.
    pub config: String,
    /// Suffix of the name of a program `docker-credential-…`; empty for none.
    pub helper: String,
}

/// Volumes from outside the task's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumesConfig {
    /// True if host paths and named volumes may be mounted.
    pub enabled: bool,
    /// The SELinux label for bind mounts; empty for none.
    pub selinuxlabel: String,
    /// The kinds of file systems that options of a volume's driver may mount.
    pub driver_options: Vec<String>,
}

/// Garbage collection of tasks and images.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcConfig {
    /// True if images that no task uses any more are released.
    pub image: bool,
    /// Delay after the end of the last task.
    pub image_delay: Duration,
    /// True if exited tasks are removed; otherwise they are kept for inspection until a start under their
    /// name replaces them.
    pub container: bool,
    /// Tasks that no agent references.
    pub dangling: DanglingConfig,
}

/// Garbage collection of tasks that no agent references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DanglingConfig {
    /// True if they are searched for.
    pub enabled: bool,
    /// True if they are only logged and not removed.
    pub dry_run: bool,
    /// The interval of the search.
    pub period: Duration,
    /// Their minimum age.
    pub creation_grace: Duration,
}

/// The capabilities that Nomad's docker driver allows: Docker's defaults except `NET_RAW`.
pub(crate) const DEFAULT_CAPS: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

// === impl VolumesConfig ===

impl Default for VolumesConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            selinuxlabel: String::new(),
            driver_options: KINDS.map(str::to_owned).to_vec(),
        }
    }
}

// === impl PluginConfig ===

impl Default for PluginConfig {
    fn default() -> Self {
        Self {
            allow_privileged: false,
            allow_caps: DEFAULT_CAPS.map(str::to_owned).to_vec(),
            allow_devices: true,
            allow_security_opt: vec!["*".to_owned()],
            allow_runtimes: Vec::new(),
            nvidia_runtime: String::new(),
            allowed_modes: AllowedModes::default(),
            auth: AuthConfig::default(),
            volumes: VolumesConfig::default(),
            gc: GcConfig::default(),
            disable_log_collection: false,
            image_pull_timeout: Duration::from_secs(5 * 60),
            pull_activity_timeout: Duration::from_secs(2 * 60),
            extra_labels: Vec::new(),
            pids_limit: None,
            oom_score_adj: OomScoreAdj::default(),
            must_create_network: false,
        }
    }
}

// === impl AllowedModes ===

impl Default for AllowedModes {
    fn default() -> Self {
        let host = || vec!["host".to_owned()];
        Self {
            pid: Vec::new(),
            ipc: Vec::new(),
            userns: Vec::new(),
            uts: Vec::new(),
            network: host(),
            cgroupns: host(),
        }
    }
}

// === impl GcConfig ===

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            image: true,
            image_delay: Duration::from_secs(3 * 60),
            container: true,
            dangling: DanglingConfig::default(),
        }
    }
}

// === impl DanglingConfig ===

impl Default for DanglingConfig {
    fn default() -> Self {
        let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
        Self {
            enabled: true,
            dry_run: false,
            period: minutes(5),
            creation_grace: minutes(5),
        }
    }
}

#[cfg(test)]
mod tests;
