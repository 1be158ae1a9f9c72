//! The configuration of the backend: the sections `[containerd]`, `[network]`, `[devices]`,
//! `[images]`, `[registry]`, `[cgroup]`, `[recovery]` and `[advisories]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use switchyard_core::backend::CheckRequest;
use switchyard_registry::Limits;

use crate::base::reserved::is_reserved;

mod network;
mod registry;
mod snapshotters;

pub use network::{
    BridgeDriverChoice, IsolationChoice, NetworkDefaults, PinChoice, PodNetworkChoice, PodsConfig,
};
pub use registry::{RegistryConfig, RegistryHost};
pub(crate) use snapshotters::OF_CONTAINERD;
pub use snapshotters::{ProxyPlugin, ProxyPluginType};

/// The shim of runc and of runtimes with the same options. Its tasks' processes are ordinary processes of the
/// node.
pub(crate) const RUNC_TYPE: &str = "io.containerd.runc.v2";

/// `[containerd]`: which containerd is used, and how containers are created with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerdConfig {
    /// The mode in which containerd runs: started by the daemon, or external.
    pub mode: ContainerdMode,
    /// The socket of the node's own containerd (`external`).
    pub address: PathBuf,
    /// The containerd program to start (`managed`); a name without a path is looked up in `PATH`.
    pub binary: String,
    /// The containerd namespace of all objects; cAdvisor reads `k8s.io` only.
    pub namespace: String,
    /// The snapshotter of handlers that name none.
    pub snapshotter: String,
    /// The handler that is used if a client names none.
    pub default_runtime: String,
    /// Selects the sandboxes that have an infra process.
    pub infra: InfraMode,
    /// True if containers get SELinux labels on a node with SELinux.
    pub selinux: bool,
    /// Maximum number of layers of one image that are downloaded at once.
    pub max_concurrent_downloads: usize,
    /// Limit in seconds for containerd to answer a health check; after that it counts as down, and requests
    /// are refused.
    pub answer_timeout_seconds: u64,
    /// Limit in seconds for a shim to deliver a signal, to start an exec, to apply new limits or to report an
    /// exit.
    pub shim_timeout_seconds: u64,
    /// Plugins of a managed containerd that are processes of their own, by name.
    pub proxy_plugins: BTreeMap<String, ProxyPlugin>,
    /// Runtime handlers by name.
    pub runtimes: BTreeMap<String, Runtime>,
}

/// The sandboxes that have an infra process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InfraMode {
    /// Those that need one: to hold a shared process namespace, or because their handler runs the sandbox as
    /// a container.
    Needed,
    /// All: cAdvisor reports the traffic of a pod only if it finds a process of the sandbox.
    Always,
}

/// The starter of containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerdMode {
    /// The daemon starts a private one.
    Managed,
    /// The node's own containerd is used.
    External,
}

/// `[containerd.runtimes.<name>]`: a runtime handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// The runtime type, containerd's name of the shim.
    #[serde(rename = "type")]
    pub type_: String,
    /// The OCI runtime that a runc-like shim runs; a name without a path is looked up in containerd's `PATH`.
    pub binary: String,
    /// The snapshotter; empty for `[containerd] snapshotter`.
    pub snapshotter: String,
    /// The kind of this handler's sandboxes.
    pub sandbox: SandboxKind,
    /// Privileged tasks get only the devices that they name, not all of the host.
    pub privileged_without_host_devices: bool,
    /// Annotations of an update of limits that are passed to the shim: whole keys, or prefixes followed by
    /// `*`.
    pub update_annotations: Vec<String>,
}

/// The kind of a handler's sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxKind {
    /// Pinned namespaces, with an infra process only if the pod shares a process namespace.
    Namespaces,
    /// A container that the runtime turns into a sandbox (Kata, gVisor).
    Container,
}

/// `[network]`: how sandboxes are connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// The directory of CNI configurations; the first file by name is used.
    pub conf_dir: PathBuf,
    /// The directories of CNI plugins, in search order.
    pub bin_dirs: Vec<PathBuf>,
    /// Limit for one plugin, in seconds.
    pub plugin_timeout_seconds: u64,
    /// True if plugins of CNI 1.1 are asked at each start to remove what is left of attachments that are not the daemon's.
    pub gc: bool,
    /// Policy for a pod with a host port on which a program of the node listens.
    pub port_conflict: PortConflictPolicy,
    /// The DNS servers of containers with another network than the node's whose client names none; empty for those of
    /// the node that they can ask.
    pub dns: Vec<String>,
    /// Choice of the gateway's bridges that reach each other; `None` until [`NetworkConfig::settle`] if no source says so.
    pub isolation: Option<IsolationChoice>,
    /// Pairs of these bridges that reach each other all the same.
    pub isolation_allow: Vec<(String, String)>,
    /// True if other machines reach containers by their addresses, without a published port; `None` in the same way.
    pub direct_routing: Option<bool>,
    /// The gateway's own bridge network.
    pub bridge: BridgeConfig,
    /// The bridge network of pods.
    pub pods: PodsConfig,
}

/// Policy for a pod with a host port on which a program of the node listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PortConflictPolicy {
    /// It is created, with a warning in the log and an event.
    #[default]
    Warn,
    /// It is refused.
    Refuse,
}

/// `[network.bridge]`: the gateway's own network, for sandboxes that need one that does not depend on the
/// node's CNI configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BridgeConfig {
    /// The name of the network and of its bridge, which is created for the first sandbox that uses it.
    pub name: String,
    /// The ranges of its addresses: one of IPv4, one of IPv6, or both.
    pub subnets: Vec<String>,
    /// The MTU in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// The directory in which `host-local` stores which addresses are in use. Gateways that share a bridge
    /// must share this directory.
    pub addresses_dir: PathBuf,
    /// Choice of who attaches new sandboxes to it; `None` until [`NetworkConfig::settle`] if no source says so.
    pub driver: Option<BridgeDriverChoice>,
    /// Choice of the sandboxes on the gateway's bridges that send with their own addresses alone.
    pub pin: PinChoice,
    /// True if a bridge that the daemon makes itself may have a range of IPv6 that is not among `subnets`.
    pub ipv6: bool,
}

/// `[devices]`: where the descriptions of devices are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DevicesConfig {
    /// The directories of Container Device Interface (CDI) specs; a later one takes precedence.
    pub cdi_spec_dirs: Vec<PathBuf>,
}

/// The configuration keys that an error names when an image exceeds a limit.
pub const IMAGE_LIMITS: [&str; 4] = Limits::KEYS;

/// `[images]`: pinned images, and the limits of images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImagesConfig {
    /// References of images that must not be removed to free disk space.
    pub pinned: Vec<String>,
    /// The most volumes that an image may declare: each is a mount in every container of the image.
    pub max_volumes: usize,
    /// The most layers of an image.
    pub max_layers: usize,
    /// The largest image configuration, in bytes.
    pub max_config_bytes: u64,
    /// The largest manifest or index, in bytes.
    pub max_manifest_bytes: u64,
    /// The largest total size of an image's layers as they are in the registry (compressed), in bytes; 0 for
    /// no limit.
    pub max_image_bytes: u64,
    /// True if a pull or a load is refused if there is less free disk space than the size of its layers.
    pub check_free_space: bool,
    /// The largest `/etc/passwd` or `/etc/group` of an image that is read, in bytes.
    pub max_account_file_bytes: u64,
}

/// `[recovery]`: timeouts of recovery after a kill, and the interval of scans for orphans.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// Seconds for which a request that arrives before recovery is done waits for it.
    pub wait_seconds: u64,
    /// Milliseconds for which an object must look like an orphan before it is removed.
    pub grace_milliseconds: u64,
    /// The interval between two scans for orphans, in seconds.
    pub look_seconds: u64,
}

/// `[cgroup]`: how cgroups are created.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CgroupConfig {
    /// The program that creates them.
    pub driver: CgroupDriverChoice,
    /// The parent of cgroups if the client names none; with systemd it is a slice.
    pub default_parent: String,
}

impl CgroupConfig {
    /// Checks the parent.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let parent = Path::new("/").join(&self.default_parent);
        let checked =
            switchyard_runtime_spec::text::absolute("the path below the root cgroup", &parent);
        checked
            .map(drop)
            .map_err(|error| ("default_parent", error.to_string()))
    }
}

/// The program that creates cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriverChoice {
    /// systemd if it runs with cgroup v2, else cgroupfs.
    Auto,
    /// systemd.
    Systemd,
    /// The OCI runtime, by making directories.
    Cgroupfs,
}

/// The programs with advisories.
pub(crate) const PROGRAMS: [&str; 3] = ["containerd", "crun", "runc"];

/// `[advisories]`: which program versions with known vulnerabilities are not reported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdvisoriesConfig {
    /// Programs and versions that are not reported, as in `runc 1.1.5+ds1`.
    pub ignore: Vec<String>,
}

impl AdvisoriesConfig {
    /// Checks that each entry names a program and a version.
    ///
    /// # Errors
    /// A message that names the first wrong entry.
    pub fn check(&self) -> Result<(), String> {
        let is_wrong = |entry: &&String| {
            !entry.split_once(' ').is_some_and(|(program, version)| {
                PROGRAMS.contains(&program)
                    && !version.is_empty()
                    && !version.contains(char::is_whitespace)
            })
        };
        self.ignore.iter().find(is_wrong).map_or(Ok(()), |entry| {
            let programs = PROGRAMS.join(", ");
            Err(format!(
                "{entry:?} is not a program and version, as in \"runc 1.1.5+ds1\"; the programs are {programs}"
            ))
        })
    }
}

/// The settings of the backend.
#[derive(Debug, Clone)]
pub struct Settings {
    /// `[containerd]`.
    pub containerd: ContainerdConfig,
    /// `[network]`.
    pub network: NetworkConfig,
    /// `cri.network`.
    pub pod_network: PodNetworkChoice,
    /// `[devices]`.
    pub devices: DevicesConfig,
    /// `[images]`.
    pub images: ImagesConfig,
    /// `[registry]`.
    pub registry: RegistryConfig,
    /// `[cgroup]`.
    pub cgroup: CgroupConfig,
    /// `[recovery]`.
    pub recovery: RecoveryConfig,
    /// `[advisories]`.
    pub advisories: AdvisoriesConfig,
    /// The socket of containerd.
    pub address: PathBuf,
    /// The gateway's state directory, which outlives a reboot.
    pub state: PathBuf,
    /// The gateway's run directory, which does not outlive a reboot.
    pub run: PathBuf,
    /// The logkeeper's socket.
    pub logkeeper: PathBuf,
    /// The check of requests that frontends have stored. Recovery leaves an object alone whose request it refuses.
    pub check_request: CheckRequest,
}

impl ContainerdConfig {
    /// Returns the limit for containerd to answer a health check; at least a second.
    pub(crate) fn answer_timeout(&self) -> Duration {
        Duration::from_secs(self.answer_timeout_seconds.max(1))
    }

    /// Returns the limit for a shim to answer a call; at least a second.
    pub(crate) fn shim_timeout(&self) -> Duration {
        Duration::from_secs(self.shim_timeout_seconds.max(1))
    }
}

impl Default for ContainerdConfig {
    fn default() -> Self {
        let runc = Runtime::default();
        let crun = Runtime {
            binary: "crun".into(),
            ..Runtime::default()
        };
        Self {
            mode: ContainerdMode::Managed,
            address: "/run/containerd/containerd.sock".into(),
            binary: "containerd".into(),
            namespace: "k8s.io".into(),
            snapshotter: "overlayfs".into(),
            default_runtime: "runc".into(),
            infra: InfraMode::Needed,
            selinux: false,
            max_concurrent_downloads: 3,
            answer_timeout_seconds: 5,
            shim_timeout_seconds: 30,
            proxy_plugins: BTreeMap::new(),
            runtimes: BTreeMap::from([("runc".into(), runc), ("crun".into(), crun)]),
        }
    }
}

impl Default for Runtime {
    fn default() -> Self {
        Self {
            type_: "io.containerd.runc.v2".into(),
            binary: "runc".into(),
            snapshotter: String::new(),
            sandbox: SandboxKind::Namespaces,
            privileged_without_host_devices: false,
            update_annotations: Vec::new(),
        }
    }
}

impl Runtime {
    /// Checks the values beyond their types.
    ///
    /// # Errors
    /// The wrong key and the reason, for a pattern that can never match an annotation that is passed on.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let is_none = |pattern: &&String| {
            let key = pattern.strip_suffix('*').unwrap_or(pattern);
            pattern.is_empty() || key.contains('*') || is_reserved(key)
        };
        match self.update_annotations.iter().find(is_none) {
            None => Ok(()),
            Some(pattern) => Err((
                "update_annotations",
                format!(
                    "{pattern:?} is neither a key nor a prefix of keys followed by \"*\", or it is one that containerd, shims and OCI \
                     runtimes reserve"
                ),
            )),
        }
    }
}

/// Default directories of plugins: those of network add-ons, the packages of Debian, SUSE and Arch, those of Fedora, RHEL and Alpine, and
/// of what is installed beside packages.
const CNI_BIN_DIRS: [&str; 5] = [
    "/opt/cni/bin",
    "/usr/lib/cni",
    "/usr/libexec/cni",
    "/usr/local/lib/cni",
    "/usr/local/libexec/cni",
];

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            conf_dir: "/etc/cni/net.d".into(),
            bin_dirs: CNI_BIN_DIRS.map(PathBuf::from).into(),
            plugin_timeout_seconds: 60,
            gc: false,
            port_conflict: PortConflictPolicy::default(),
            dns: Vec::new(),
            isolation: None,
            isolation_allow: Vec::new(),
            direct_routing: None,
            bridge: BridgeConfig::default(),
            pods: PodsConfig::default(),
        }
    }
}

impl Default for DevicesConfig {
    fn default() -> Self {
        Self {
            cdi_spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
        }
    }
}

impl Default for ImagesConfig {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            pinned: Vec::new(),
            max_volumes: 64,
            max_layers: limits.layers,
            max_config_bytes: limits.config_bytes,
            max_manifest_bytes: limits.manifest_bytes,
            max_image_bytes: limits.image_bytes.unwrap_or(0),
            check_free_space: true,
            max_account_file_bytes: switchyard_runtime_spec::user::MAX_FILE_BYTES,
        }
    }
}

impl ImagesConfig {
    /// The limits of images.
    pub(crate) fn limits(&self) -> Limits {
        Limits {
            manifest_bytes: self.max_manifest_bytes,
            config_bytes: self.max_config_bytes,
            layers: self.max_layers,
            image_bytes: Some(self.max_image_bytes).filter(|bytes| *bytes > 0),
        }
    }
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        Self {
            wait_seconds: 10,
            grace_milliseconds: 3000,
            look_seconds: 180,
        }
    }
}

impl RecoveryConfig {
    /// Returns the time for which a request that arrives before recovery is done waits for it.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds)
    }

    /// Returns the time for which an object must look like an orphan before it is removed.
    pub(crate) const fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_milliseconds)
    }

    /// The interval between two scans for orphans; at least a second.
    pub(crate) fn scan_interval(&self) -> Duration {
        Duration::from_secs(self.look_seconds.max(1))
    }
}

impl Default for CgroupConfig {
    fn default() -> Self {
        Self {
            driver: CgroupDriverChoice::Auto,
            default_parent: "switchyard".into(),
        }
    }
}
