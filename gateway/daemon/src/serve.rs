//! `switchyard serve`: starts the parts of the daemon in order, and stops them.
//!
//! Start: directories → locks → sockets (calls queue) → admin HTTP (alive, not ready) → backend → managed
//! containerd and logkeeper → frontends (requests wait, queries of the daemon's status are answered) →
//! recovery → ready. Stop: no new requests → running operations end, then the watches, then the backend's
//! cleanup, all by one deadline → sockets are removed. What is still at work then ends with the process, as at a kill.
//! Containers, containerd, the logkeeper and CNI plugins keep running.

use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use switchyard_config::{Config, Loaded};
use switchyard_core::backoff::Backoff;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_logkeeper::Client;
use switchyard_operator::admin::{self, AdminPages, Hosts, Reach};
use switchyard_operator::history::History;
use switchyard_operator::metrics::Metrics;
use switchyard_operator::page::StatusPage;
use switchyard_operator_api::VERSION;
use switchyard_socket::listener::{GuardedListener, ListenError, SocketFile, own_connections};
use switchyard_steps::{Step, reach};
use switchyard_streaming::{BindError, Sessions};
use switchyard_telemetry::LogLevel;
use switchyard_telemetry::{TraceSettings, TraceSettingsError};
use tokio::net::{TcpListener, TcpSocket};
use tokio_util::task::TaskTracker;

use crate::capacity;
use crate::credentials::{CredentialError, Credentials, MetricsCredentials, Stamps};
use crate::device_parts::{DeviceContext, DeviceParts};
use crate::lock::{DirLocks, LockError};
use crate::managed::{State, make_dir};
use crate::node::Node;
use crate::reload::{ReloadedParts, Reloader};
use crate::self_check::{Question, SelfCheck};
use crate::service_manager;
use crate::shutdown::Shutdown;
use crate::streaming;
use crate::wiring::{self, ConnectedBackend, LiveSettings, Wiring};

mod frontends;
mod metrics_listener;
mod processes;

use frontends::{FrontendSockets, enabled_frontends};
use processes::{NeededProcesses, ProcessStates};

/// How long running operations may take when the daemon stops.
const DRAIN: Duration = Duration::from_secs(10);

/// How long servers may take to close their connections after that.
const CLOSE: Duration = Duration::from_secs(2);

/// How many connections to the admin address may wait to be accepted.
const BACKLOG: u32 = 1024;

/// How long recovery waits for the logkeeper before it continues without it.
const LOGKEEPER_LIMIT: Duration = Duration::from_secs(10);

/// The first and the longest pause between attempts to recover.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// How often a recovery that is not done is logged.
const SLOW_RECOVERY: Duration = Duration::from_secs(60);

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The directories cannot be used, or another daemon uses them.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A socket cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin address cannot be served.
    #[error("cannot listen on {address}: choose another address in admin.listen")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The streaming server cannot be set up.
    #[error("cannot serve exec, attach and port-forward: see [cri.streaming] of the configuration")]
    Streaming(#[source] BindError),
    /// The metrics address cannot be served.
    #[error("cannot listen on {address}: choose another address in admin.metrics_listen")]
    MetricsListener {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The certificate or the token of the metrics address is unusable.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// Traces cannot be exported.
    #[error(transparent)]
    Traces(#[from] TraceSettingsError),
    /// A metric has a name that Prometheus does not allow.
    #[error("cannot set up metrics")]
    Metrics(#[source] prometheus::Error),
    /// Signals cannot be received.
    #[error("cannot receive signals")]
    Signals(#[source] io::Error),
    /// The backend's settings are invalid.
    #[error("cannot set up the backend")]
    Backend(#[source] switchyard_core::Error),
    /// A part failed.
    #[error("{0}")]
    Part(String),
}

/// When the daemon started, and how long it waited for the locks of its directories.
#[derive(Debug, Clone, Copy)]
struct StartTimes {
    at: Instant,
    locked: Duration,
}

/// The daemon while it runs.
struct Daemon {
    config: Arc<Config>,
    shutdown: Shutdown,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
    node: Arc<Node>,
    history: History,
}

/// Raises the soft limit on open files to the hard limit: each running container with a log needs a few.
fn raise_file_limit() {
    if let Err(error) = switchyard_linux::raise_open_files_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}

/// The parts of a starting daemon, for the admin server.
fn node(config: &Config, processes: &NeededProcesses) -> Node {
    let (containerd, logkeeper) = processes.states();
    Node::new(
        containerd,
        logkeeper,
        Client::new(config.logkeeper_socket()),
        wiring::owners(),
        &enabled_frontends(config),
        processes.restarters(),
        config.swarm.enabled,
    )
}

/// Runs the daemon until `shutdown`, which also ends it at SIGTERM and SIGINT. `exe` is our own binary, and
/// `log_level` the level of its log. Without `traces` nothing is traced. `locks` receives the locks of its directories.
///
/// When it returns, operations that did not end in time may still be at work on the runtime. They must not be dropped,
/// which would kill CNI plugins half-way, but end with the process, as at a kill. Until then `locks` must be kept.
///
/// # Errors
/// [`ServeError`]; processes that it started keep running.
pub async fn run(
    loaded: Loaded,
    wiring: Wiring,
    exe: &Path,
    log_level: LogLevel,
    traces: Option<TraceSettings>,
    shutdown: Shutdown,
    locks: &mut DirLocks,
) -> Result<(), ServeError> {
    let begin = Instant::now();
    let Loaded { sources, effective, files, .. } = loaded;
    let config = Arc::new(effective.config.clone());
    let (reloader, reloads) = Reloader::new(sources, effective);
    tracing::info!(version = VERSION, pid = std::process::id(), ?files, "switchyard starts");
    raise_file_limit();
    lock_directories(&config, locks)?;
    let begin = StartTimes { at: begin, locked: begin.elapsed() };
    let hangup = reloader.clone();
    shutdown.on_signals(move || hangup.request()).map_err(ServeError::Signals)?;

    let metrics = Arc::new(Metrics::new().map_err(ServeError::Metrics)?);
    let processes = NeededProcesses::new(&config);
    let history = History::start(&config.audit, &metrics, wiring::owners()).with_traces(traces.as_ref())?;
    let daemon = Daemon {
        config: Arc::clone(&config),
        shutdown,
        tasks: TaskTracker::new(),
        metrics,
        node: Arc::new(node(&config, &processes)),
        history,
    };

    // Before the files are read, so that a change meanwhile is noticed later.
    let stamps = Stamps::of(&config);
    // The sockets come first, so that no client is refused while the daemon starts.
    let frontend_sockets = FrontendSockets::bind(&config)?;
    let streaming = if config.cri.enabled { Some(streaming::bind(&config).await?) } else { None };
    let credentials = Credentials {
        streaming: streaming.as_ref().and_then(switchyard_streaming::Server::certificate),
        metrics: MetricsCredentials::read(&config)?,
    };
    let pages = daemon.pages(reloader, log_level.clone());
    let (address_file, admin_socket, admin_question) = daemon.serve_admin(&pages)?;
    let metrics_file = daemon.serve_metrics(&pages, &credentials.metrics)?;
    let sockets = frontend_sockets.files().chain([admin_socket]).collect::<Vec<_>>();
    // The backend comes before the managed containerd, because a starting containerd ends shims that wait for
    // FIFOs that the backend opens.
    let ConnectedBackend { backend, reconfigure } =
        (wiring.backend)(&config, daemon.metrics.backend_observer()).map_err(ServeError::Backend)?;
    let states = processes.states();
    daemon.keep_running(processes, exe);
    let limits = Limits { capacity: capacity::of_node(), ..config.gateway_limits() };
    let operations = daemon.history.operations.clone();
    let gateway = Gateway::with_leases(backend, limits, wiring::leases(&config), operations);
    daemon.spawn("events", daemon.history.events.clone().record(gateway.subscribe()));
    let devices = daemon.start_devices(&gateway);
    let settings = LiveSettings::of(&config);
    daemon.node.set_gateway(gateway.clone());
    let sessions = streaming.map(|streaming| daemon.serve_streaming(streaming));
    let mut questions = daemon.serve_frontends(frontend_sockets, &wiring, &settings, &gateway, sessions);
    service_manager::ready("Recovering");
    daemon.spawn("temporary log level", log_level.clone().follow());
    let parts = ReloadedParts {
        gateway: gateway.clone(),
        backend: reconfigure,
        settings,
        devices,
        credentials,
        log_level,
        history: daemon.history.clone(),
    };
    daemon.spawn("reload", reloads.run(parts, stamps));
    questions.push(admin_question);
    daemon.spawn(
        "watchdog",
        service_manager::feed_watchdog(SelfCheck::new(questions), daemon.shutdown.clone()),
    );
    daemon.spawn("recovery", recover(gateway.clone(), Arc::clone(&daemon.node), states, begin));

    daemon.shutdown.ended().await;
    daemon.drain(&gateway).await;
    daemon.history.flush().await;
    // Servers that were aborted may hold their listeners a little longer.
    sockets.iter().for_each(|socket| socket.remove());
    [Some(address_file), metrics_file].iter().flatten().for_each(|file| remove(file));
    tracing::info!("switchyard has ended; containers keep running");
    daemon.shutdown.fault().map_or(Ok(()), |why| Err(ServeError::Part(why.to_owned())))
}

fn lock_directories(config: &Config, locks: &mut DirLocks) -> Result<(), ServeError> {
    let paths = &config.paths;
    for (path, mode) in [(&paths.state, 0o700), (&paths.run, 0o711)] {
        make_dir(path, mode).map_err(|source| LockError::at(path, path.clone(), source))?;
    }
    Ok(locks.acquire([&paths.state, &paths.run])?)
}

impl Daemon {
    /// Runs a part until it ends, at the latest when the daemon ends; if it panics, the daemon ends with an
    /// error.
    fn spawn(&self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            let stopped = shutdown.clone();
            tokio::select! {
                () = stopped.ended() => {}
                end = AssertUnwindSafe(part).catch_unwind() => {
                    if end.is_err() {
                        shutdown.fail(format!("{name} panicked; the log says where"));
                    }
                }
            }
        });
    }

    /// The pages of all admin listeners.
    fn pages(&self, reloader: Reloader, log_level: LogLevel) -> AdminPages {
        AdminPages::new(
            Arc::clone(&self.node) as _,
            Arc::clone(&self.metrics),
            Arc::new(reloader),
            log_level,
            self.history.clone(),
            self.config.admin.container_metrics,
            StatusPage::new(&self.config.admin, &self.config.paths.state),
        )
    }

    /// Serves the admin pages; returns the paths of the file with the address and of the socket, and
    /// the question of the self-check.
    fn serve_admin(&self, pages: &AdminPages) -> Result<(PathBuf, Arc<SocketFile>, Question), ServeError> {
        let address = self.config.admin.listen;
        let fail = |source| ServeError::Admin { address, source };
        let tcp = listen(address).map_err(fail)?;
        let bound = tcp.local_addr().map_err(fail)?;
        if !bound.ip().to_canonical().is_loopback() {
            tracing::warn!(
                %bound,
                "admin pages are served on a non-loopback address without authentication: admin.metrics_listen has some"
            );
        }
        let group = self.config.admin.socket_group.as_deref();
        let unix = GuardedListener::bind(&self.config.paths.admin_socket(), group)?;
        let socket = unix.file();
        let limits = admin::Limits::from(&self.config.admin);
        pages.set_address(bound);
        // Pages are short: open requests are aborted at the end, so that probes notice it at once.
        let network = admin::serve(
            tcp,
            pages.router(Reach::Network),
            Hosts::of(bound, &self.config.admin.hosts),
            limits,
        );
        let (connector, own) = own_connections();
        let local = admin::serve_also(unix, own, pages.router(Reach::Local), Hosts::Any, limits);
        self.spawn("admin http", network);
        self.spawn("admin socket", local);
        let file = self.write_address("admin.addr", bound);
        tracing::info!(%bound, "admin pages are served");
        Ok((file, socket, Question::page("admin", connector, "/livez")))
    }

    /// Writes an address to a file of this name; returns its path.
    fn write_address(&self, name: &str, bound: SocketAddr) -> PathBuf {
        let file = self.config.paths.run.join(name);
        if let Err(error) = write_whole(&file, &format!("{bound}\n")) {
            // Not fatal: clients may know the address, and the daemon must also serve while the disk is full.
            tracing::error!(path = %file.display(), %error, "cannot write the file with an address");
        }
        file
    }

    /// Starts the parts that find and offer devices.
    fn start_devices(&self, gateway: &Gateway) -> DeviceParts {
        let context = DeviceContext {
            gateway,
            metrics: &self.metrics,
            node: &self.node,
            shutdown: &self.shutdown,
            tasks: &self.tasks,
        };
        DeviceParts::start(&self.config.devices, &context)
    }

    /// Serves streaming sessions; when the daemon ends, they get a short time to end.
    fn serve_streaming(&self, server: switchyard_streaming::Server) -> Sessions {
        let sessions = server.sessions();
        let address = server.address();
        let shutdown = self.shutdown.clone();
        tracing::info!(%address, "exec, attach and port-forward are served");
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(%address, "streams are served on a non-loopback address: anyone who sees a URL can use it once");
        }
        self.node.set_streaming(address, sessions.clone());
        let stop = shutdown.token().clone();
        self.tasks.spawn(async move {
            let served = AssertUnwindSafe(server.run(stop)).catch_unwind().await;
            if served.is_err() {
                shutdown.fail("the streaming server panicked; the log says where");
            }
        });
        sessions
    }

    async fn drain(&self, gateway: &Gateway) {
        service_manager::stopping();
        tracing::info!(limit = ?DRAIN, "draining");
        if let Err(error) = gateway.shut_down(DRAIN).await {
            tracing::warn!(error = error.report(), "not all operations ended within the deadline");
        }
        self.tasks.close();
        // Streams of events never end by themselves, so this often runs into its timeout.
        if tokio::time::timeout(CLOSE, self.tasks.wait()).await.is_err() {
            tracing::debug!(left = self.tasks.len(), "connections are cut off");
        }
    }
}

/// Listens on an address, with a large backlog: a connection that is dropped for a full backlog costs its
/// client a second.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

const fn is_up(state: &State) -> bool {
    matches!(state, State::Up { .. })
}

/// Runs the recovery of the predecessor's objects, and repeats it until it succeeds. Cancel-safe.
async fn recover(
    gateway: Gateway,
    node: Arc<Node>,
    (containerd, logkeeper): ProcessStates,
    begin: StartTimes,
) {
    let processes = async {
        if let Some(mut containerd) = containerd {
            // The sender exists as long as the daemon.
            let _ = containerd.wait_for(is_up).await;
        }
        let mut logkeeper = logkeeper;
        let waited = tokio::time::timeout(LOGKEEPER_LIMIT, logkeeper.wait_for(is_up)).await;
        if waited.is_err() {
            tracing::warn!("recovering without the logkeeper, which does not answer");
        }
    };
    processes.await;
    let processes = begin.at.elapsed();
    let mut backoff = Backoff::new(RETRY.0, RETRY.1);
    let mut last_logged = String::new();
    while let Err(error) = reported_if_slow(gateway.recover()).await {
        let report = error.report();
        node.set_recovery_fault(&report);
        if last_logged != report {
            tracing::warn!(error = report, "recovery failed; trying again until it succeeds");
            service_manager::status(&format!("Recovery failed: {error}"));
            last_logged = report;
        }
        backoff.wait().await;
    }
    let sandboxes = gateway.count_sandboxes();
    let tasks = gateway.count_tasks();
    let sum = |counts: switchyard_core::table::Counts| counts.values().sum::<u64>();
    tracing::info!(
        sandboxes = sum(sandboxes),
        tasks = sum(tasks),
        locked_after = ?begin.locked,
        processes_after = ?processes,
        served_after = ?begin.at.elapsed(),
        "recovered; requests are served"
    );
    service_manager::status("Serving");
}

/// Waits for an attempt to recover, and logs that it takes long: a disk that hangs holds it up for ever.
async fn reported_if_slow<T>(attempt: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let mut attempt = pin!(attempt);
    loop {
        tokio::select! {
            done = &mut attempt => return done,
            () = tokio::time::sleep(SLOW_RECOVERY) => tracing::warn!(
                after = ?begun.elapsed(),
                "recovery is not done, and no request is served before it is: does a disk hang, or does containerd answer slowly?"
            ),
        }
    }
}

fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let written = fs::write(&new, text).and_then(|()| {
        reach(Step::AddressDrafted);
        fs::rename(&new, path)
    });
    if written.is_err() {
        remove(&new);
    }
    reach(Step::AddressWritten);
    written
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove a file"),
    }
}
