//! The whole configuration, and the sections that no other crate has a type for.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use switchyard_tls::TlsConfig;
use url::Url;

use super::devices::{DevicesConfig, LedgerConfig};
use super::swarm::SwarmConfig;
use crate::{
    AdminConfig, AdvisoriesConfig, AuditConfig, CgroupConfig, Containerd, ContainerdMode,
    ImagesConfig, LogConfig, NetworkConfig, PodNetworkChoice, RecoveryConfig, RegistryConfig,
    UnsetSeccomp,
};

/// The documented defaults, as `switchyard config default` prints them.
pub const DOCUMENTED: &str = include_str!("../../../config.toml");

/// The version of the configuration format that this build reads.
pub const VERSION: u32 = 1;

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The version of the file format; every file states it.
    pub version: u32,
    /// The directories.
    pub paths: PathsConfig,
    /// The daemon's log.
    pub log: LogConfig,
    /// The admin HTTP server.
    pub admin: AdminConfig,
    /// The CRI server.
    pub cri: CriConfig,
    /// The server for the launchers of Nomad agents.
    pub nomad: NomadConfig,
    /// This node as a worker of a Docker swarm.
    pub swarm: SwarmConfig,
    /// The containerd that runs containers.
    pub containerd: Containerd,
    /// Container networks.
    pub network: NetworkConfig,
    /// The devices of the node.
    pub devices: DevicesConfig,
    /// The accounting of processors and memory.
    pub ledger: LedgerConfig,
    /// Pinned images, and limits of images.
    pub images: ImagesConfig,
    /// Commands in containers.
    pub exec: ExecConfig,
    /// Image registries.
    pub registry: RegistryConfig,
    /// Cgroups.
    pub cgroup: CgroupConfig,
    /// Timeouts of recovery.
    pub recovery: RecoveryConfig,
    /// The process that writes container logs.
    pub logkeeper: LogkeeperConfig,
    /// Processes that the daemon starts itself.
    pub managed: ManagedConfig,
    /// The advisories by which versions with known vulnerabilities are reported.
    pub advisories: AdvisoriesConfig,
    /// The log of operations that change something.
    pub audit: AuditConfig,
}

/// The directories.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PathsConfig {
    /// Persistent data; mode 0700.
    pub state: PathBuf,
    /// Sockets and data of the current boot; mode 0711. It should be on tmpfs.
    pub run: PathBuf,
}

/// The CRI server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CriConfig {
    /// True if CRI is served.
    pub enabled: bool,
    /// The socket; `None` is `<run>/cri.sock`.
    pub socket: Option<PathBuf>,
    /// A group, by name or number, that may use the socket besides root.
    pub socket_group: Option<String>,
    /// The network of new pods.
    pub network: PodNetworkChoice,
    /// The name of the runtime that clients get.
    pub runtime_name: String,
    /// Lets every process of a pod with a network of its own bind ports below 1024.
    pub unprivileged_ports: bool,
    /// Lets every process of such a pod send pings.
    pub unprivileged_icmp: bool,
    /// The seccomp profile of containers that request none.
    pub unset_seccomp: UnsetSeccomp,
    /// Seconds for which ExecSync waits for the end of output after its command has exited; 0: no limit.
    pub exec_drain_seconds: u64,
    /// Connections that are served at once, half of them for one process. More are closed.
    pub max_connections: usize,
    /// Concurrent calls on one connection. A client queues further calls.
    pub max_streams: u32,
    /// The server of exec, attach and port-forward.
    pub streaming: StreamingConfig,
}

/// Commands in containers, of all clients.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ExecConfig {
    /// Maximum output that is buffered for answers, by all commands together, in bytes.
    pub max_output_bytes: usize,
    /// Concurrent commands in one container.
    pub max_per_container: usize,
}

/// The server for exec, attach and port-forward.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StreamingConfig {
    /// The address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// The beginning of the URLs; `None` derives it from `listen`.
    pub url: Option<String>,
    /// Certificate chain in PEM, for HTTPS; with `tls_key`.
    pub tls_certificate: Option<PathBuf>,
    /// The private key of the certificate in PEM.
    pub tls_key: Option<PathBuf>,
    /// A session without data for this long is ended, in seconds.
    pub idle_timeout_seconds: u64,
}

/// The server for the launchers, which Nomad agents start as their plugins.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NomadConfig {
    /// True if Nomad is served.
    pub enabled: bool,
    /// The socket; `None` is `<run>/nomad.sock`.
    pub socket: Option<PathBuf>,
    /// A group, by name or number, that may use the socket besides root.
    pub socket_group: Option<String>,
    /// Connections that are served at once, half of them for one process. More are closed.
    pub max_connections: usize,
}

/// Processes that the daemon starts itself: containerd and the logkeeper in mode `managed`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ManagedConfig {
    /// The OOM score adjustment of the managed containerd, as far as the daemon may set it.
    pub oom_score: i32,
    /// Seconds for a process to answer after its start before it is started again.
    pub start_timeout_seconds: u64,
    /// A running process that does not answer for this long is killed and started again, in seconds; 0:
    /// never.
    pub hang_timeout_seconds: u64,
}

/// The process that writes container logs.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogkeeperConfig {
    /// Selects whether the daemon starts it.
    pub mode: ContainerdMode,
    /// Its socket; `None` is `<run>/logkeeper/logkeeper.sock`.
    pub socket: Option<PathBuf>,
    /// Its spool directory, if managed; `None` is `<run>/logkeeper/state`. It must be on tmpfs.
    pub state_dir: Option<PathBuf>,
    /// True if it confines itself.
    pub sandbox: bool,
}

// === defaults ===

impl Default for Config {
    fn default() -> Self {
        Self {
            version: VERSION,
            paths: PathsConfig::default(),
            log: LogConfig::default(),
            admin: AdminConfig::default(),
            cri: CriConfig::default(),
            nomad: NomadConfig::default(),
            swarm: SwarmConfig::default(),
            containerd: Containerd::default(),
            network: NetworkConfig::default(),
            devices: DevicesConfig::default(),
            ledger: LedgerConfig::default(),
            images: ImagesConfig::default(),
            exec: ExecConfig::default(),
            registry: RegistryConfig::default(),
            cgroup: CgroupConfig::default(),
            recovery: RecoveryConfig::default(),
            logkeeper: LogkeeperConfig::default(),
            managed: ManagedConfig::default(),
            advisories: AdvisoriesConfig::default(),
            audit: AuditConfig::default(),
        }
    }
}

impl Default for PathsConfig {
    fn default() -> Self {
        Self {
            state: "/var/lib/switchyard".into(),
            run: "/run/switchyard".into(),
        }
    }
}

impl Default for CriConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            socket: None,
            socket_group: None,
            network: PodNetworkChoice::default(),
            runtime_name: switchyard_cri::DEFAULT_RUNTIME_NAME.to_owned(),
            unprivileged_ports: true,
            unprivileged_icmp: true,
            unset_seccomp: UnsetSeccomp::Unconfined,
            exec_drain_seconds: 15,
            max_connections: 1024,
            max_streams: 10_000,
            streaming: StreamingConfig::default(),
        }
    }
}

impl Default for ExecConfig {
    fn default() -> Self {
        let limits = switchyard_core::gateway::Limits::default();
        Self {
            max_output_bytes: limits.exec_output_bytes,
            max_per_container: limits.exec_per_task,
        }
    }
}

impl Default for StreamingConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            url: None,
            tls_certificate: None,
            tls_key: None,
            idle_timeout_seconds: 4 * 60 * 60,
        }
    }
}

impl Default for NomadConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            socket: None,
            socket_group: None,
            max_connections: 1024,
        }
    }
}

impl Default for ManagedConfig {
    fn default() -> Self {
        Self {
            oom_score: -999,
            start_timeout_seconds: 30,
            hang_timeout_seconds: 60,
        }
    }
}

impl Default for LogkeeperConfig {
    fn default() -> Self {
        Self {
            mode: ContainerdMode::Managed,
            socket: None,
            state_dir: None,
            sandbox: true,
        }
    }
}

// === paths that follow from others ===

impl Config {
    /// The groups of the sockets that are served, each with the key that names it.
    #[must_use]
    pub fn socket_groups(&self) -> Vec<(&'static str, &str)> {
        let groups = [
            ("admin.socket_group", true, &self.admin.socket_group),
            ("cri.socket_group", self.cri.enabled, &self.cri.socket_group),
            (
                "nomad.socket_group",
                self.nomad.enabled,
                &self.nomad.socket_group,
            ),
        ];
        groups
            .into_iter()
            .filter(|(_, is_served, _)| *is_served)
            .filter_map(|(key, _, group)| Some((key, group.as_deref()?)))
            .collect()
    }

    /// The CRI socket.
    #[must_use]
    pub fn cri_socket(&self) -> PathBuf {
        self.cri
            .socket
            .clone()
            .unwrap_or_else(|| self.paths.run.join("cri.sock"))
    }

    /// The socket for the launchers of Nomad agents.
    #[must_use]
    pub fn nomad_socket(&self) -> PathBuf {
        self.nomad
            .socket
            .clone()
            .unwrap_or_else(|| nomad_socket(&self.paths.run))
    }

    /// The containerd socket.
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        match self.containerd.mode {
            ContainerdMode::Managed => self.paths.run.join("containerd/containerd.sock"),
            ContainerdMode::External => self.containerd.address.clone(),
        }
    }

    /// The logkeeper's socket.
    #[must_use]
    pub fn logkeeper_socket(&self) -> PathBuf {
        self.logkeeper
            .socket
            .clone()
            .unwrap_or_else(|| self.paths.run.join("logkeeper/logkeeper.sock"))
    }

    /// The logkeeper's spool directory.
    #[must_use]
    pub fn logkeeper_state(&self) -> PathBuf {
        self.logkeeper
            .state_dir
            .clone()
            .unwrap_or_else(|| self.paths.run.join("logkeeper/state"))
    }
}

impl StreamingConfig {
    /// The base of the URLs that clients get; `None` for the address of the listener. Validation has refused a text that is no URL.
    #[must_use]
    pub fn base_url(&self) -> Option<Url> {
        self.url.as_deref().and_then(streaming_url)
    }

    /// The files of the certificate; `None` for plain HTTP.
    #[must_use]
    pub fn tls(&self) -> Option<TlsConfig> {
        let files = self.tls_certificate.clone().zip(self.tls_key.clone());
        files.map(|(certificates, key)| TlsConfig {
            certificates,
            key,
            client_ca: None,
        })
    }
}

impl PathsConfig {
    /// The socket the command line uses.
    #[must_use]
    pub fn admin_socket(&self) -> PathBuf {
        admin_socket(&self.run)
    }
}

impl ManagedConfig {
    /// Returns the limit for a process to answer after its start.
    #[must_use]
    pub const fn start_timeout(&self) -> Duration {
        Duration::from_secs(self.start_timeout_seconds)
    }

    /// Returns the limit for which a running process may fail to answer; `None` for no limit.
    #[must_use]
    pub const fn hang_timeout(&self) -> Option<Duration> {
        if self.hang_timeout_seconds == 0 {
            None
        } else {
            Some(Duration::from_secs(self.hang_timeout_seconds))
        }
    }
}

/// The socket for the launchers of Nomad agents, for a run directory.
#[must_use]
pub fn nomad_socket(run: &Path) -> PathBuf {
    run.join("nomad.sock")
}

/// The socket the command line uses, for a run directory.
#[must_use]
pub fn admin_socket(run: &Path) -> PathBuf {
    run.join("admin.sock")
}

/// The base of streaming URLs.
pub(super) fn streaming_url(text: &str) -> Option<Url> {
    let url = Url::parse(text).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}
