//! The part of the OCI runtime spec 1.0.2 that Switchyard writes, with the field names of the JSON format.
//!
//! Fields that are absent here are left to the runtime's default on purpose.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use switchyard_core::{Error, Result};

/// The `ociVersion` of every spec.
pub const VERSION: &str = "1.0.2";

/// A whole spec, `config.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    /// Version of the spec that is followed.
    pub oci_version: &'static str,
    /// The main process.
    pub process: Process,
    /// The root file system.
    pub root: Root,
    /// Mounts, in the order they are made.
    pub mounts: Vec<Mount>,
    /// Annotations for the runtime.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Programs of the host that the runtime runs at points of the container's lifecycle.
    #[serde(skip_serializing_if = "Hooks::is_empty")]
    pub hooks: Hooks,
    /// All that belongs to Linux alone.
    pub linux: Linux,
}

/// Programs of the host, by the point at which they are run, in order.
pub type Hooks = BTreeMap<String, Vec<Hook>>;

/// A program of the host that the runtime runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hook {
    /// The program.
    pub path: String,
    /// Its arguments, the name first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment, `NAME=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<String>,
    /// Time limit in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
}

/// A process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// True if it gets a terminal.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub terminal: bool,
    /// User and groups.
    pub user: User,
    /// Command line.
    pub args: Vec<String>,
    /// Environment, `NAME=value`.
    pub env: Vec<String>,
    /// Working directory, absolute.
    pub cwd: String,
    /// Capability sets.
    pub capabilities: Capabilities,
    /// Limits of the process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rlimits: Vec<Rlimit>,
    /// No privileges may be gained by exec.
    pub no_new_privileges: bool,
    /// AppArmor profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub apparmor_profile: Option<String>,
    /// Score adjustment for the kernel's out-of-memory killer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oom_score_adj: Option<i32>,
    /// SELinux label.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selinux_label: Option<String>,
}

/// User and groups of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct User {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups of the process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub additional_gids: Vec<u32>,
}

/// Capability sets, by name with `CAP_`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Capabilities {
    /// Upper bound of all that the process and its programs can gain.
    pub bounding: Vec<String>,
    /// Capabilities that the kernel checks.
    pub effective: Vec<String>,
    /// Capabilities that the process may make effective.
    pub permitted: Vec<String>,
    /// Capabilities kept over exec of a file that has them too; only as far as the ambient set needs it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub inheritable: Vec<String>,
    /// Capabilities kept over exec of any file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ambient: Vec<String>,
}

/// A limit of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rlimit {
    /// Name, as `RLIMIT_NOFILE`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Hard limit.
    pub hard: u64,
    /// Soft limit.
    pub soft: u64,
}

/// The root file system.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Root {
    /// Path, relative to the bundle.
    pub path: String,
    /// Cannot be written.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub readonly: bool,
}

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Absolute path inside.
    pub destination: String,
    /// Kind of file system, or `bind`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Source: a path of the host, or the name of a file system.
    pub source: String,
    /// Mount options.
    pub options: Vec<String>,
}

/// All that belongs to Linux alone.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Linux {
    /// Limits of the cgroup.
    pub resources: LinuxResources,
    /// Path of the cgroup.
    pub cgroups_path: String,
    /// Namespaces that are made or joined; the rest are the host's.
    pub namespaces: Vec<LinuxNamespace>,
    /// The mapping of user ids, for a user namespace of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub uid_mappings: Vec<LinuxIdMapping>,
    /// The mapping of group ids.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gid_mappings: Vec<LinuxIdMapping>,
    /// Device nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<LinuxDevice>,
    /// System call filter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp: Option<LinuxSeccomp>,
    /// Propagation of the root mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rootfs_propagation: Option<&'static str>,
    /// Paths hidden.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub masked_paths: Vec<String>,
    /// Paths that cannot be written.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub readonly_paths: Vec<String>,
    /// SELinux label of the mounts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_label: Option<String>,
    /// Classes of cache and memory bandwidth.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub intel_rdt: Option<Value>,
}

/// A range of ids and the range on the host that it is mapped to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LinuxIdMapping {
    /// The first one inside.
    #[serde(rename = "containerID")]
    pub container_id: u32,
    /// The first one on the host.
    #[serde(rename = "hostID")]
    pub host_id: u32,
    /// Number of ids.
    pub size: u32,
}

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinuxNamespace {
    /// Kind, as the spec spells it.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The one to join; a new one without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A device node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxDevice {
    /// Path inside.
    pub path: String,
    /// Path on the host, for which the specification has no place.
    #[serde(skip)]
    pub host_path: String,
    /// `c` or `b`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Permission bits.
    pub file_mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Limits of a cgroup. What is absent is not touched.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxResources {
    /// Access to devices, in the order the rules are applied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceRule>,
    /// Memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<LinuxMemory>,
    /// Processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<LinuxCpu>,
    /// Processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<LinuxPids>,
    /// Block devices.
    #[serde(rename = "blockIO", skip_serializing_if = "Option::is_none")]
    pub block_io: Option<LinuxBlockIo>,
    /// Network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<LinuxNetwork>,
    /// Huge pages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hugepage_limits: Vec<LinuxHugepageLimit>,
    /// Files of cgroup v2, verbatim.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub unified: BTreeMap<String, String>,
}

/// A rule of the device controller; what is absent stands for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceRule {
    /// Allow or deny.
    pub allow: bool,
    /// `c` or `b`.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Major number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub major: Option<i64>,
    /// Minor number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<i64>,
    /// Any of `r`, `w`, `m`.
    pub access: String,
}

/// Memory limits in bytes, -1 for none.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LinuxMemory {
    /// Hard limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<i64>,
    /// Soft limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reservation: Option<i64>,
    /// Memory plus swap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap: Option<i64>,
    /// Tendency of the kernel to swap, 0 to 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swappiness: Option<u64>,
}

/// Settings of network traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinuxNetwork {
    /// Priorities by interface.
    pub priorities: Vec<InterfacePriority>,
}

/// The priority of traffic over one interface of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct InterfacePriority {
    /// The interface.
    pub name: String,
    /// The priority.
    pub priority: u32,
}

/// Limits on block devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxBlockIo {
    /// The weight for all devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
    /// The weights for single devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weight_device: Vec<LinuxWeight>,
    /// Bytes read per second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle_read_bps_device: Vec<LinuxThrottle>,
    /// Bytes written per second.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttle_write_bps_device: Vec<LinuxThrottle>,
    /// Reads per second.
    #[serde(
        rename = "throttleReadIOPSDevice",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub throttle_read_iops_device: Vec<LinuxThrottle>,
    /// Writes per second.
    #[serde(
        rename = "throttleWriteIOPSDevice",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub throttle_write_iops_device: Vec<LinuxThrottle>,
}

/// The weight for one block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinuxWeight {
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// The weight.
    pub weight: u16,
}

/// The limit of one block device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinuxThrottle {
    /// Major number.
    pub major: i64,
    /// Minor number.
    pub minor: i64,
    /// Bytes or operations per second.
    pub rate: u64,
}

/// Processor limits.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LinuxCpu {
    /// Relative weight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shares: Option<u64>,
    /// Time per period in µs, -1 for no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<i64>,
    /// Period in µs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Memory nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mems: Option<String>,
}

/// Limit of the number of processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinuxPids {
    /// The number, -1 for no limit.
    pub limit: i64,
}

/// A limit on huge pages of one size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxHugepageLimit {
    /// Size as the kernel names it.
    pub page_size: String,
    /// Limit in bytes.
    pub limit: u64,
}

/// A system call filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxSeccomp {
    /// The action for system calls without a rule.
    pub default_action: String,
    /// The error number of the default action, EPERM if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_errno_ret: Option<u32>,
    /// Architectures that are filtered besides the native one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub architectures: Vec<String>,
    /// Flags of seccomp(2).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
    /// Rules.
    pub syscalls: Vec<LinuxSyscall>,
}

/// A rule of a filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxSyscall {
    /// Names of system calls; a runtime skips those that it does not know.
    pub names: Vec<String>,
    /// The action.
    pub action: String,
    /// The error number, where the action gives one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errno_ret: Option<u32>,
    /// Conditions, all of which must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<LinuxSeccompArg>,
}

/// A condition on an argument of a system call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LinuxSeccompArg {
    /// The index of the argument, from 0.
    pub index: u32,
    /// The value that it is compared with; for a masked comparison the mask.
    pub value: u64,
    /// For a masked comparison, the value that it is compared with.
    #[serde(default)]
    pub value_two: u64,
    /// The comparison operator.
    pub op: String,
}

/// The JSON of a part of a spec.
///
/// # Errors
/// `Internal`; that would be a bug.
pub(crate) fn to_value(part: &impl Serialize) -> Result<Value> {
    serde_json::to_value(part)
        .map_err(|error| Error::internal("the runtime spec cannot be written").with_source(error))
}
