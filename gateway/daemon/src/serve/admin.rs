//! The admin listeners: the TCP address, the unix socket, and the listener for metrics and health alone, which beyond
//! loopback has TLS and clients that are known.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use switchyard_config::Config;
use switchyard_operator::admin::{self, AdminPages, Hosts, Reach};
use switchyard_operator::node::Node;
use switchyard_operator::page::StatusPage;
use switchyard_socket::listener::{GuardedListener, SocketFile, own_connections};
use switchyard_telemetry::LogLevel;
use tokio::net::{TcpListener, TcpSocket};

use super::listener_store::{InheritedListeners, StoredSocket};
use super::{Daemon, ServeError};
use crate::credentials::MetricsCredentials;
use crate::reload::Reloader;
use crate::run_file::RunFile;
use crate::self_check::Question;

/// Maximum number of connections to an address that wait to be accepted.
const BACKLOG: u32 = 1024;

/// The listeners. Connections queue until they are served.
pub(super) struct AdminListeners {
    network: BoundListener,
    local: GuardedListener,
    /// `None` if none is configured.
    metrics: Option<BoundListener>,
}

/// A listener with its address.
struct BoundListener {
    listener: TcpListener,
    address: SocketAddr,
}

// === impl AdminListeners ===

impl AdminListeners {
    /// Listens where the configuration says.
    pub(super) fn bind(
        config: &Config,
        inherited: &mut InheritedListeners,
    ) -> Result<Self, ServeError> {
        let admin = &config.admin;
        let address = admin.listen;
        let network = listen(address).map_err(|source| ServeError::Admin { address, source })?;
        let local = GuardedListener::inherit_or_bind(
            &config.paths.admin_socket(),
            admin.socket_group.as_deref(),
            inherited.remove(StoredSocket::Admin),
        )?;
        let metrics = admin.metrics_listen.map(|address| {
            listen(address).map_err(|source| ServeError::MetricsListener { address, source })
        });
        Ok(Self {
            network,
            local,
            metrics: metrics.transpose()?,
        })
    }

    /// The listener of the unix socket.
    pub(super) fn local(&self) -> (StoredSocket, &GuardedListener) {
        (StoredSocket::Admin, &self.local)
    }

    /// The file of the unix socket.
    pub(super) fn socket_file(&self) -> Arc<SocketFile> {
        self.local.file()
    }
}

// === impl Daemon ===

impl Daemon {
    /// The pages of all listeners.
    pub(super) fn pages(&self, node: Node, reloader: Reloader, log_level: LogLevel) -> AdminPages {
        AdminPages::new(
            Arc::new(node),
            Arc::clone(&self.metrics),
            Arc::new(reloader),
            log_level,
            self.history.clone(),
            self.config.admin.container_metrics,
            StatusPage::new(&self.config.admin, &self.config.paths.state),
        )
    }

    /// Serves the pages; returns the paths of the files with the addresses, and the question of the self-check.
    pub(super) fn serve_admin(
        &self,
        listeners: AdminListeners,
        pages: &AdminPages,
        credentials: &MetricsCredentials,
    ) -> (Vec<PathBuf>, Question) {
        let AdminListeners {
            network,
            local,
            metrics,
        } = listeners;
        let mut files = vec![self.serve_network(network, pages)];
        let question = self.serve_local(local, pages);
        if let Some(metrics) = metrics {
            files.push(self.serve_metrics(metrics, pages, credentials));
        }
        (files, question)
    }

    fn serve_network(&self, bound: BoundListener, pages: &AdminPages) -> PathBuf {
        let BoundListener { listener, address } = bound;
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(
                bound = %address,
                "admin pages are served on a non-loopback address without authentication: admin.metrics_listen has some"
            );
        }
        pages.set_address(address);
        let hosts = Hosts::of(address, &self.config.admin.hosts);
        // Pages are short: open requests are aborted at the end, so that probes notice it at once.
        let serve = admin::serve(
            listener,
            pages.router(Reach::Network),
            hosts,
            self.admin_limits(),
        );
        self.spawn("admin http", serve);
        tracing::info!(bound = %address, "admin pages are served");
        self.write_address("admin.addr", address)
    }

    fn serve_local(&self, listener: GuardedListener, pages: &AdminPages) -> Question {
        let (connector, own) = own_connections();
        let router = pages.router(Reach::Local);
        let serve = admin::serve_also(listener, own, router, Hosts::Any, self.admin_limits());
        self.spawn("admin socket", serve);
        Question::page("admin", connector, "/livez")
    }

    fn serve_metrics(
        &self,
        bound: BoundListener,
        pages: &AdminPages,
        credentials: &MetricsCredentials,
    ) -> PathBuf {
        let BoundListener { listener, address } = bound;
        let MetricsCredentials { certificate, token } = credentials.clone();
        let router = pages.metrics_router(token);
        let limits = self.admin_limits();
        let hosts = Hosts::of(address, &self.config.admin.hosts);
        tracing::info!(bound = %address, tls = certificate.is_some(), "metrics are served");
        match certificate {
            Some(certificate) => self.spawn(
                "metrics https",
                admin::serve_tls(listener, certificate, router, hosts, limits),
            ),
            None => self.spawn(
                "metrics http",
                admin::serve(listener, router, hosts, limits),
            ),
        }
        self.write_address("metrics.addr", address)
    }

    fn admin_limits(&self) -> admin::Limits {
        admin::Limits::from(&self.config.admin)
    }

    /// Writes an address to a file of this name; returns its path.
    fn write_address(&self, name: &str, bound: SocketAddr) -> PathBuf {
        let path = self.config.paths.run.join(name);
        let without = "clients that do not know the address cannot find it";
        let file = RunFile::new(path.clone(), format!("{bound}\n"), without);
        self.write_file(file.with_address());
        path
    }
}

/// Listens on an address, with a large backlog: a connection that is dropped for a full backlog costs its
/// client a second.
fn listen(address: SocketAddr) -> io::Result<BoundListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()
    } else {
        TcpSocket::new_v6()
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let listener = socket.listen(BACKLOG)?;
    let address = listener.local_addr()?;
    Ok(BoundListener { listener, address })
}
