//! The `config` of a task: the options of Nomad's docker driver, under the same names. Empty or `None`: not
//! set.

use std::collections::BTreeMap;
use std::time::Duration;

use switchyard_core::image::Credentials;
use switchyard_core::spec::{CpuPeriod, OomScoreAdj, PidsLimit};
use switchyard_docker_options::local_volume::LocalVolume;

mod decode;
mod volume;

pub(crate) use volume::{TmpfsEntry, Volume, propagation, relabel};

/// The options of a task.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct TaskOptions {
    // Image.
    pub(crate) image: String,
    pub(crate) load: String,
    pub(crate) force_pull: bool,
    pub(crate) image_pull_timeout: Option<Duration>,
    pub(crate) auth: Option<Credentials>,
    pub(crate) auth_soft_fail: bool,
    // Process.
    pub(crate) entrypoint: Vec<String>,
    pub(crate) command: String,
    pub(crate) args: Vec<String>,
    pub(crate) work_dir: String,
    pub(crate) init: bool,
    pub(crate) interactive: bool,
    pub(crate) tty: bool,
    pub(crate) hostname: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) group_add: Vec<String>,
    pub(crate) runtime: String,
    // Security.
    pub(crate) privileged: bool,
    pub(crate) cap_add: Vec<String>,
    pub(crate) cap_drop: Vec<String>,
    pub(crate) security_opt: Vec<String>,
    pub(crate) readonly_rootfs: bool,
    pub(crate) pid_mode: String,
    pub(crate) ipc_mode: String,
    pub(crate) uts_mode: String,
    pub(crate) userns_mode: String,
    pub(crate) cgroupns: String,
    // Network.
    pub(crate) network_mode: String,
    pub(crate) ports: Vec<String>,
    /// Container ports by label.
    pub(crate) port_map: BTreeMap<String, String>,
    pub(crate) ipv4_address: String,
    pub(crate) mac_address: String,
    pub(crate) extra_hosts: Vec<String>,
    pub(crate) dns_servers: Vec<String>,
    pub(crate) dns_search_domains: Vec<String>,
    pub(crate) dns_options: Vec<String>,
    // Storage.
    pub(crate) volumes: Vec<Volume>,
    pub(crate) volume_driver: String,
    pub(crate) mounts: Vec<MountOptions>,
    pub(crate) tmpfs: Vec<TmpfsEntry>,
    pub(crate) shm_size_bytes: u64,
    /// The maximum size of the root file system.
    pub(crate) storage_bytes: Option<u64>,
    pub(crate) devices: Vec<DeviceOptions>,
    // Resources.
    pub(crate) cpu_hard_limit: bool,
    pub(crate) cpu_cfs_period: Option<CpuPeriod>,
    pub(crate) memory_hard_limit_mb: u64,
    pub(crate) pids_limit: Option<PidsLimit>,
    pub(crate) oom_score_adj: Option<OomScoreAdj>,
    pub(crate) ulimit: BTreeMap<String, String>,
    pub(crate) sysctl: BTreeMap<String, String>,
    /// Output is discarded: the logging driver `none`.
    pub(crate) discards_output: bool,
    /// Warnings for the author of the job.
    pub(crate) warnings: Vec<String>,
}

/// A `mount` block of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountOptions {
    /// Its path in the configuration.
    pub(crate) field: String,
    /// Path in the task.
    pub(crate) target: String,
    /// Read-only.
    pub(crate) readonly: bool,
    /// Kind of the mount's source.
    pub(crate) kind: MountKind,
}

/// The kind of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MountKind {
    /// A host path, or a path in the task's directory.
    Bind {
        /// The path.
        source: String,
        /// In Docker's notation; empty for the default.
        propagation: String,
    },
    /// A named volume.
    Volume {
        /// The name.
        name: String,
        /// True if a new one is initialised with the image's content.
        copied: bool,
    },
    /// A volume with options of its driver: the file system that they are for, mounted for the task.
    FileSystem(LocalVolume),
    /// A tmpfs.
    Tmpfs {
        /// 0 for the kernel's default.
        size_bytes: u64,
        /// 0 for 1777.
        mode: u32,
    },
}

/// A `devices` block of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceOptions {
    /// Its path in the configuration.
    pub(crate) field: String,
    /// Host path, or CDI name.
    pub(crate) host_path: String,
    /// Path in the task; empty for the same.
    pub(crate) container_path: String,
    /// Empty for `rwm`.
    pub(crate) cgroup_permissions: String,
}

#[cfg(test)]
mod tests;
