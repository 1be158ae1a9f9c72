//! The sections `admin` and `audit` of the configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use serde::Deserialize;
use switchyard_tls::TlsConfig;

/// The admin HTTP server.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminConfig {
    /// The address of the TCP listener; port 0 selects a free port. The address in use is in
    /// `<run>/admin.addr`.
    pub listen: SocketAddr,
    /// Names and addresses of the node under which browsers ask for the status page, beside those of loopback.
    pub hosts: Vec<String>,
    /// A group, by name or number, whose members may read on the unix socket.
    pub socket_group: Option<String>,
    /// Maximum number of connections of each listener.
    pub max_connections: usize,
    /// The listeners that serve the metrics of containers, with the names of their pods and jobs.
    pub container_metrics: ContainerMetrics,
    /// The address of a listener for metrics and health alone; `None`: there is none. The address in use is
    /// in `<run>/metrics.addr`.
    pub metrics_listen: Option<SocketAddr>,
    /// The certificate chain of that listener in PEM, for HTTPS; with `metrics_tls_key`.
    pub metrics_tls_certificate: Option<PathBuf>,
    /// The private key of the certificate in PEM.
    pub metrics_tls_key: Option<PathBuf>,
    /// The authorities of which clients of that listener must have a certificate, in PEM.
    pub metrics_client_ca: Option<PathBuf>,
    /// A file with the bearer token that requests to that listener must present.
    pub metrics_bearer_token_file: Option<PathBuf>,
}

/// The listeners that serve the metrics of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContainerMetrics {
    /// Nowhere.
    Off,
    /// On the unix socket of the admin pages.
    Local,
    /// On all listeners of the admin pages.
    Network,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 9640)),
            hosts: Vec::new(),
            socket_group: None,
            max_connections: 256,
            container_metrics: ContainerMetrics::Local,
            metrics_listen: None,
            metrics_tls_certificate: None,
            metrics_tls_key: None,
            metrics_client_ca: None,
            metrics_bearer_token_file: None,
        }
    }
}

impl AdminConfig {
    /// The files with which the metrics listener serves HTTPS; `None` for plain HTTP.
    #[must_use]
    pub fn metrics_tls(&self) -> Option<TlsConfig> {
        let files = self
            .metrics_tls_certificate
            .clone()
            .zip(self.metrics_tls_key.clone());
        let client_ca = self.metrics_client_ca.clone();
        files.map(|(certificates, key)| TlsConfig {
            certificates,
            key,
            client_ca,
        })
    }
}

/// Target and content of the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditConfig {
    /// Target of the lines.
    pub to: AuditTarget,
    /// Its file, if it is written to one.
    pub file: PathBuf,
    /// True if commands that run to their end, as probes do, are recorded too.
    pub exec_sync: bool,
}

/// A target of the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AuditTarget {
    /// To systemd's journal, or to the daemon's log on a node without one.
    #[default]
    Journal,
    /// To a file.
    File,
    /// Nowhere.
    Off,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            to: AuditTarget::default(),
            file: "/var/log/switchyard/audit.log".into(),
            exec_sync: false,
        }
    }
}
