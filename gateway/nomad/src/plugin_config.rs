//! What an agent's `plugin` block says: the options of Nomad's docker driver that mean something here.

use std::time::Duration;

mod decode;

pub(crate) use decode::{LABEL_NAMES, matches};

/// The configuration of a driver session. The defaults are those of Nomad's docker driver, but for what is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginConfig {
    /// Tasks may be privileged.
    pub allow_privileged: bool,
    /// Capabilities that tasks may add, without `CAP_`; `ALL` allows every one.
    pub allow_caps: Vec<String>,
    /// Tasks may have devices of the host that no agent gives them, by path or by name in the Container Device Interface.
    pub allow_devices: bool,
    /// Which `security_opt` tasks may have: globs over `key=value`. Those that only confine a task further need no leave.
    pub allow_security_opt: Vec<String>,
    /// Runtime handlers that tasks may name; empty allows all that the node has. (Docker's: runc and nvidia.)
    pub allow_runtimes: Vec<String>,
    /// The runtime handler of tasks that Nomad gave GPUs of NVIDIA; empty if they get them by name in the Container Device Interface.
    /// (Docker's: nvidia.)
    pub nvidia_runtime: String,
    /// Namespaces of the host that tasks may have without being privileged.
    pub allowed_modes: AllowedModes,
    /// Where credentials come from when a task brings none.
    pub auth: AuthConfig,
    /// Volumes from outside the directory of the task.
    pub volumes: VolumesConfig,
    /// What becomes of what tasks leave.
    pub gc: GcConfig,
    /// The agent collects no output of tasks.
    pub disable_log_collection: bool,
    /// How long a pull may take in all, where the task says nothing.
    pub image_pull_timeout: Duration,
    /// How long a pull may go without progress.
    pub pull_activity_timeout: Duration,
    /// Which of Nomad's facts become labels: globs over `job_name`, `task_name` and so on.
    pub extra_labels: Vec<String>,
    /// The most processes of a task; `None` for as many as it likes.
    pub pids_limit: Option<i64>,
    /// Score adjustment of tasks that name none.
    pub oom_score_adj: i32,
    /// The driver makes the networks of groups, instead of the agent. (Docker's: true.)
    pub must_create_network: bool,
}

/// Namespaces of the host that tasks may have.
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
    /// Values of `network_mode`; the other ones need no leave. (Docker's driver has no such list, and lets all have the host's.)
    pub network: Vec<String>,
    /// Values of `cgroupns`; as `network`.
    pub cgroupns: Vec<String>,
}

/// Where credentials come from.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuthConfig {
    /// A `config.json` of Docker; empty for none.
    pub config: String,
    /// The end of the name of a program `docker-credential-…`; empty for none.
    pub helper: String,
}

/// Volumes from outside the directory of the task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VolumesConfig {
    /// Paths of the host, and named volumes, may be mounted.
    pub enabled: bool,
    /// The label that binds get; empty for none.
    pub selinuxlabel: String,
}

/// What becomes of what tasks leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcConfig {
    /// Images that no task uses any more are let go.
    pub image: bool,
    /// How long after.
    pub image_delay: Duration,
    /// Tasks that have ended are removed; else they are kept for a look, and only a start under their name takes their place.
    pub container: bool,
    /// Tasks that no agent knows.
    pub dangling: DanglingConfig,
}

/// Tasks that no agent knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DanglingConfig {
    /// They are looked for.
    pub enabled: bool,
    /// They are told of, and left alone.
    pub dry_run: bool,
    /// Between two looks.
    pub period: Duration,
    /// How old they are at least.
    pub creation_grace: Duration,
}

/// The capabilities that Nomad's docker driver lets tasks have: docker's default but `NET_RAW`.
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
            oom_score_adj: 0,
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
        Self { enabled: true, dry_run: false, period: minutes(5), creation_grace: minutes(5) }
    }
}

#[cfg(test)]
mod tests;
