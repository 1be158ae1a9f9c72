//! The configuration of the backend: the sections `[containerd]`, `[network]`, `[devices]`,
//! `[images]`, `[registry]`, `[cgroup]`, `[recovery]` and `[advisories]`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use switchyard_registry::Limits;

use crate::reserved::is_reserved;

use crate::advisories::PROGRAMS;

/// `[containerd]`: which containerd, and how containers are made with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainerdConfig {
    /// Who starts containerd.
    pub mode: ContainerdMode,
    /// Where the node's own containerd listens (`external`).
    pub address: PathBuf,
    /// The program to start (`managed`); a name is looked up in `PATH`.
    pub binary: String,
    /// The containerd namespace for everything; cAdvisor reads `k8s.io` only.
    pub namespace: String,
    /// Snapshotter of handlers that name none.
    pub snapshotter: String,
    /// The handler used where none is asked for.
    pub default_runtime: String,
    /// Which sandboxes have a process of their own.
    pub infra: InfraMode,
    /// Whether containers have SELinux labels, on a node with SELinux.
    pub selinux: bool,
    /// Layers downloaded at once, for each image.
    pub max_concurrent_downloads: usize,
    /// How long containerd may take to say that it is there before requests are refused with that reason, in seconds.
    pub answer_timeout_seconds: u64,
    /// How long a shim may take to pass on a signal, a command or new limits, or to tell of an end, in seconds.
    pub shim_timeout_seconds: u64,
    /// Runtime handlers by name.
    pub runtimes: BTreeMap<String, Runtime>,
}

/// Which sandboxes have a process of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InfraMode {
    /// Those that need one: to hold a shared process namespace, or because their handler makes a container of them.
    Needed,
    /// All: cAdvisor tells the traffic of a pod only where it finds a process of the sandbox.
    Always,
}

/// Who starts containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerdMode {
    /// The daemon: a private one.
    Managed,
    /// The node.
    External,
}

/// `[containerd.runtimes.<name>]`: a runtime handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Runtime {
    /// containerd's name for the shim.
    #[serde(rename = "type")]
    pub type_: String,
    /// The OCI runtime that a runc-like shim runs; a name is looked up in containerd's `PATH`.
    pub binary: String,
    /// Snapshotter; empty for `[containerd] snapshotter`.
    pub snapshotter: String,
    /// What a sandbox of this handler is.
    pub sandbox: SandboxKind,
    /// Privileged tasks get no devices but those they name.
    pub privileged_without_host_devices: bool,
    /// Annotations of changed limits that the shim is given: whole keys, or beginnings with `*` after them.
    pub update_annotations: Vec<String>,
}

/// What a sandbox of a handler is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SandboxKind {
    /// Pinned namespaces, and a process only where the pod shares a process namespace.
    Namespaces,
    /// A container of its own that the runtime turns into a sandbox (Kata, gVisor).
    Container,
}

/// `[network]`: how sandboxes are connected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// CNI configuration; the first file by name is used.
    pub conf_dir: PathBuf,
    /// Where CNI plugins are, in order.
    pub bin_dirs: Vec<PathBuf>,
    /// How long one plugin may take, in seconds.
    pub plugin_timeout_seconds: u64,
    /// The gateway's own network.
    pub bridge: BridgeConfig,
}

/// `[network.bridge]`: the gateway's own network, for sandboxes that want one without the node's having any.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BridgeConfig {
    /// The bridge, which is made when the first sandbox wants it, and the name of the network.
    pub name: String,
    /// Where its addresses are from: a range of IPv4, one of IPv6, or both.
    pub subnets: Vec<String>,
    /// The largest packet, in bytes; 0 for the kernel's default.
    pub mtu: u32,
    /// Where it is kept which addresses are in use. Gateways that have a bridge in common have this in common.
    pub addresses_dir: PathBuf,
}

/// `[devices]`: where devices are described.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DevicesConfig {
    /// Directories with vendors' files of the Container Device Interface; a later one wins.
    pub cdi_spec_dirs: Vec<PathBuf>,
}

/// The keys that a refusal of an image by its size names.
pub const IMAGE_LIMITS: [&str; 4] = Limits::KEYS;

/// `[images]`: images that stay, and what an image may have at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ImagesConfig {
    /// References of images that must not be removed to free space.
    pub pinned: Vec<String>,
    /// The most volumes that an image may declare: each is a mount of every container of it.
    pub max_volumes: usize,
    /// Layers of an image.
    pub max_layers: usize,
    /// The largest configuration of an image, in bytes.
    pub max_config_bytes: u64,
    /// The largest manifest or index, in bytes.
    pub max_manifest_bytes: u64,
    /// The sum of an image's layers as they are in the registry, in bytes; 0 for no limit.
    pub max_image_bytes: u64,
    /// Whether a pull or a load is refused when there is less space than its layers have.
    pub check_free_space: bool,
    /// The largest `/etc/passwd` or `/etc/group` of an image that is read, in bytes.
    pub max_account_file_bytes: u64,
}

/// `[registry]`: how images are found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryConfig {
    /// Directories with a `<host>/hosts.toml` for each registry, as containerd's `certs.d`; the first that has one counts.
    pub config_dirs: Vec<PathBuf>,
    /// A download with no byte for this long is broken off and tried again, in seconds.
    pub idle_timeout_seconds: u64,
    /// Whether a registry that is asked with TLS may redirect what is asked for by digest to plain HTTP.
    pub allow_http_redirects: bool,
}

/// `[recovery]`: how long a start after a kill waits for what, and how often what nobody accounts for is looked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RecoveryConfig {
    /// How long a request that comes before recovery is done waits for it, in seconds.
    pub wait_seconds: u64,
    /// How long containerd may work on a start that a killed daemon was at before it is ended, in seconds.
    pub settle_seconds: u64,
    /// What seems left over must seem so for this long before it is cleared away, in milliseconds.
    pub grace_milliseconds: u64,
    /// Between two looks for what containerd has forgotten, in seconds.
    pub look_seconds: u64,
}

/// `[cgroup]`: how cgroups are made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CgroupConfig {
    /// Who makes them.
    pub driver: CgroupDriverChoice,
    /// Parent of cgroups for which nobody named one; with systemd a slice.
    pub default_parent: String,
}

/// Who makes cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriverChoice {
    /// systemd where it runs with cgroup v2, else cgroupfs.
    Auto,
    /// systemd.
    Systemd,
    /// The OCI runtime, by making directories.
    Cgroupfs,
}

/// `[advisories]`: which versions with known vulnerabilities are reported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AdvisoriesConfig {
    /// Programs and versions that are not, as in `runc 1.1.5+ds1`.
    pub ignore: Vec<String>,
}

impl AdvisoriesConfig {
    /// Checks that each names a program and a version.
    ///
    /// # Errors
    /// Which does not.
    pub fn check(&self) -> Result<(), String> {
        let is_wrong = |entry: &&String| {
            !entry.split_once(' ').is_some_and(|(program, version)| {
                PROGRAMS.contains(&program) && !version.is_empty() && !version.contains(char::is_whitespace)
            })
        };
        self.ignore.iter().find(is_wrong).map_or(Ok(()), |entry| {
            let programs = PROGRAMS.join(", ");
            Err(format!(
                "{entry:?} is no program and version, as in \"runc 1.1.5+ds1\"; the programs are {programs}"
            ))
        })
    }
}

/// All that the backend needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `[containerd]`.
    pub containerd: ContainerdConfig,
    /// `[network]`.
    pub network: NetworkConfig,
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
    /// The socket at which containerd answers.
    pub address: PathBuf,
    /// The gateway's state directory, which outlives a reboot.
    pub state: PathBuf,
    /// The gateway's run directory, which does not.
    pub run: PathBuf,
    /// The logkeeper's socket.
    pub logkeeper: PathBuf,
}

impl ContainerdConfig {
    /// How long containerd may take to say that it is there.
    pub(crate) fn answer_timeout(&self) -> Duration {
        Duration::from_secs(self.answer_timeout_seconds.max(1))
    }

    /// How long a shim may take to pass something on.
    pub(crate) fn shim_timeout(&self) -> Duration {
        Duration::from_secs(self.shim_timeout_seconds.max(1))
    }
}

impl Default for ContainerdConfig {
    fn default() -> Self {
        let runc = Runtime::default();
        let crun = Runtime { binary: "crun".into(), ..Runtime::default() };
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
    /// Checks what the types cannot say; the key that is wrong, and why.
    ///
    /// # Errors
    /// For an annotation that can never be given.
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
                    "{pattern:?} is neither a key nor the beginning of keys with \"*\" after it, or it is one that containerd, shims and \
                     OCI runtimes reserve"
                ),
            )),
        }
    }
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            conf_dir: "/etc/cni/net.d".into(),
            bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            plugin_timeout_seconds: 60,
            bridge: BridgeConfig::default(),
        }
    }
}

impl Default for BridgeConfig {
    fn default() -> Self {
        Self {
            name: "switchyard0".into(),
            subnets: vec!["172.26.80.0/20".into()],
            mtu: 0,
            addresses_dir: "/var/lib/cni/networks".into(),
        }
    }
}

impl Default for DevicesConfig {
    fn default() -> Self {
        Self { cdi_spec_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()] }
    }
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            config_dirs: vec!["/etc/switchyard/certs.d".into(), "/etc/containerd/certs.d".into()],
            idle_timeout_seconds: 60,
            allow_http_redirects: false,
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
        Self { wait_seconds: 10, settle_seconds: 30, grace_milliseconds: 3000, look_seconds: 180 }
    }
}

impl RecoveryConfig {
    /// How long a request that comes before recovery is done waits for it.
    #[must_use]
    pub const fn wait(&self) -> Duration {
        Duration::from_secs(self.wait_seconds)
    }

    /// How long containerd may work on a start that a killed daemon was at.
    pub(crate) const fn predecessor_call_timeout(&self) -> Duration {
        Duration::from_secs(self.settle_seconds)
    }

    /// How long what seems left over must seem so.
    pub(crate) const fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_milliseconds)
    }

    /// Between two looks for what containerd has forgotten; never without a pause.
    pub(crate) fn scan_interval(&self) -> Duration {
        Duration::from_secs(self.look_seconds.max(1))
    }
}

impl Default for CgroupConfig {
    fn default() -> Self {
        Self { driver: CgroupDriverChoice::Auto, default_parent: "switchyard".into() }
    }
}
