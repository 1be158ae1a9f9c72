//! `switchyard serve`: brings the parts up in order, and down again.
//!
//! Up: directories → locks → sockets (calls queue) → admin HTTP (alive, not ready) → backend → managed containerd and logkeeper →
//! frontends (requests wait, questions about the daemon are answered) → recovery → ready. Down: no new requests → operations in flight end,
//! then the watches, then what the backend clears up, all to one deadline → sockets are removed. Containers, containerd and the logkeeper
//! go on running.

use std::fs;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use switchyard_core::gateway::{Gateway, Limits, NamedDevices};
use switchyard_core::ledger;
use switchyard_logkeeper::Client;
use switchyard_steps::{Step, reach};
use switchyard_streaming::{BindError, Sessions};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::admin::{self, AdminPages, Hosts, Reach};
use crate::capacity;
use crate::config::{Config, ContainerdMode, Loaded, NamedDevicePolicy, Overcommit};
use crate::counting_backend::CountingBackend;
use crate::listener::{GuardedListener, ListenError, SocketFile};
use crate::lock::{DirLock, LockError};
use crate::managed::{self, Program, State, make_dir};
use crate::metrics::{Metrics, VERSION};
use crate::node::Node;
use crate::service_manager;
use crate::shutdown::Shutdown;
use crate::streaming;
use crate::wiring::{self, Wiring};

mod frontends;

use frontends::{FrontendSockets, enabled_frontends};

/// How long operations in flight may take at the end.
const DRAIN: Duration = Duration::from_secs(10);

/// How long servers may take to close their connections after that.
const CLOSE: Duration = Duration::from_secs(2);

/// How many connections to the admin address may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Between two looks at a logkeeper that somebody else runs.
const POLL: Duration = Duration::from_secs(2);

/// How long recovery waits for the logkeeper before it goes on without it.
const LOGKEEPER_LIMIT: Duration = Duration::from_secs(10);

/// Waits between attempts to recover: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Why the daemon did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A directory or file of its own cannot be made.
    #[error("cannot make {}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// Another daemon has the directories.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// A socket cannot be served.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin address cannot be served.
    #[error("cannot listen on {address}: choose another one in admin.listen")]
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
    /// A metric has a name that Prometheus does not allow.
    #[error("cannot set up metrics")]
    Metrics(#[source] prometheus::Error),
    /// Signals cannot be received.
    #[error("cannot listen to signals")]
    Signals(#[source] io::Error),
    /// The backend's settings cannot work.
    #[error("cannot set up the backend")]
    Backend(#[source] switchyard_core::Error),
    /// A part could not go on.
    #[error("{0}")]
    Part(String),
}

/// When the daemon began, and how long it took to get its directories.
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
}

/// Lets the daemon have as many files open as it may: each running container with a log takes a few.
fn raise_file_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(fault) = raised {
        tracing::warn!(error = %fault, "the limit on open files stays as it is");
    }
}

/// Runs the daemon until `shutdown`, which also ends it at SIGTERM and SIGINT. `exe` is our own binary.
///
/// # Errors
/// [`ServeError`]; what it started stays running all the same.
pub async fn run(loaded: Loaded, wiring: Wiring, exe: &Path, shutdown: Shutdown) -> Result<(), ServeError> {
    let begin = Instant::now();
    let files = loaded.files;
    let config = Arc::new(loaded.config);
    tracing::info!(version = VERSION, pid = std::process::id(), ?files, "switchyard starts");
    raise_file_limit();
    let _locks = lock_directories(&config)?;
    let begin = StartTimes { at: begin, locked: begin.elapsed() };
    shutdown.on_signals().map_err(ServeError::Signals)?;

    let metrics = Arc::new(Metrics::new().map_err(ServeError::Metrics)?);
    let (containerd, containerd_state) = watch::channel(State::Starting);
    let (logkeeper, logkeeper_state) = watch::channel(State::Starting);
    let managed = config.containerd.mode == ContainerdMode::Managed;
    let node = Node::new(
        managed.then(|| containerd_state.clone()),
        logkeeper_state.clone(),
        Client::new(config.logkeeper_socket()),
        &enabled_frontends(&config),
    );
    let daemon = Daemon {
        config: Arc::clone(&config),
        shutdown,
        tasks: TaskTracker::new(),
        metrics,
        node: Arc::new(node),
    };

    // First of all, so that nobody finds the door of a daemon that is starting shut.
    let doors = FrontendSockets::bind(&config)?;
    let streaming = if config.cri.enabled { Some(streaming::bind(&config).await?) } else { None };
    let (address_file, admin_socket) = daemon.serve_admin().await?;
    let sockets = doors.files().chain([admin_socket]).collect::<Vec<_>>();
    // Before a containerd of our own is started, which ends shims that wait for what the backend holds open.
    let backend = (wiring.backend)(&config).map_err(ServeError::Backend)?;
    if managed {
        daemon.supervise(managed::containerd::program(&config, exe), containerd);
    }
    match config.logkeeper.mode {
        ContainerdMode::Managed => daemon.supervise(managed::logkeeper::program(&config, exe), logkeeper),
        ContainerdMode::External => {
            daemon.spawn("logkeeper watch", watch_logkeeper(Arc::clone(&config), logkeeper))
        }
    }
    let backend = CountingBackend::new(backend, Arc::clone(&daemon.metrics));
    let gateway = Gateway::with_leases(Arc::new(backend), limits(&config), wiring::leases(&config));
    daemon.watch_devices(&gateway);
    daemon.node.set_gateway(gateway.clone());
    let sessions = streaming.map(|streaming| daemon.serve_streaming(streaming));
    daemon.serve_frontends(doors, &wiring, &gateway, sessions);
    service_manager::ready("Recovering");
    daemon.spawn("watchdog", service_manager::feed_watchdog(daemon.shutdown.clone()));
    let processes = (managed.then_some(containerd_state), logkeeper_state);
    daemon.spawn("recovery", recover(gateway.clone(), processes, begin));

    daemon.shutdown.ended().await;
    daemon.drain(&gateway).await;
    // What is cut off may hold its listener for a while yet.
    sockets.iter().for_each(|socket| socket.remove());
    remove(&address_file);
    tracing::info!("switchyard has ended; containers go on running");
    daemon.shutdown.fault().map_or(Ok(()), |why| Err(ServeError::Part(why.to_owned())))
}

fn lock_directories(config: &Config) -> Result<[DirLock; 2], ServeError> {
    let paths = &config.paths;
    for (path, mode) in [(&paths.state, 0o700), (&paths.run, 0o711)] {
        make_dir(path, mode).map_err(|source| ServeError::File { path: path.clone(), source })?;
    }
    Ok([DirLock::acquire(&paths.state)?, DirLock::acquire(&paths.run)?])
}

impl Daemon {
    /// Runs a part until it ends, at the latest with the daemon; if it panics, the daemon ends with it.
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

    /// Keeps a managed process running.
    fn supervise(&self, program: Program, state: watch::Sender<State>) {
        let stop = self.shutdown.token().clone();
        self.spawn(program.name, managed::supervise(program, state, stop));
    }

    /// Serves the admin pages; gives the file that names the address, and the socket's.
    async fn serve_admin(&self) -> Result<(PathBuf, Arc<SocketFile>), ServeError> {
        let pages = AdminPages::new(Arc::clone(&self.node) as _, Arc::clone(&self.metrics));
        let address = self.config.admin.listen;
        let fail = |source| ServeError::Admin { address, source };
        let tcp = listen(address).map_err(fail)?;
        let bound = tcp.local_addr().map_err(fail)?;
        if !bound.ip().is_loopback() {
            tracing::warn!(%bound, "admin pages are served beyond loopback, and ask for no password");
        }
        let unix = GuardedListener::bind(&self.config.paths.admin_socket(), None)?;
        let socket = unix.file();
        let limits = self.config.admin.limits();
        // Pages are short: what is in flight at the end is cut off, so that probes see the end at once.
        let network = admin::serve(tcp, pages.router(Reach::Network), Hosts::of(bound), limits);
        let local = admin::serve(unix, pages.router(Reach::Local), Hosts::Any, limits);
        self.spawn("admin http", network);
        self.spawn("admin socket", local);
        let file = self.config.paths.run.join("admin.addr");
        if let Err(error) = write_whole(&file, &format!("{bound}\n")) {
            // Whoever looks for the daemon finds the socket, and a full disk is a reason to serve rather than not to.
            tracing::error!(path = %file.display(), %error, "the admin address cannot be written down");
        }
        tracing::info!(%bound, "admin pages are served");
        Ok((file, socket))
    }

    /// Serves streaming sessions; they end with the daemon, after a moment.
    fn serve_streaming(&self, server: switchyard_streaming::Server) -> Sessions {
        let sessions = server.sessions();
        let address = server.address();
        let shutdown = self.shutdown.clone();
        tracing::info!(%address, "exec, attach and port-forward are served");
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "streams are served beyond loopback: whoever sees a URL can use it once");
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
            tracing::warn!(error = error.report(), "not everything ended in time");
        }
        self.tasks.close();
        // Streams of events have no end of their own, so that this often runs into its limit.
        if tokio::time::timeout(CLOSE, self.tasks.wait()).await.is_err() {
            tracing::debug!(left = self.tasks.len(), "connections are cut off");
        }
    }
}

/// Listens on an address. Connections wait for their turn rather than being lost, which costs their clients a second.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

fn limits(config: &Config) -> Limits {
    Limits {
        kill: Duration::from_secs(config.containerd.shim_timeout_seconds),
        exec_output_bytes: config.exec.max_output_bytes,
        exec_per_task: config.exec.max_per_container,
        lease: config.devices.lease(),
        restart_grace: config.devices.restart_grace(),
        named_devices: match config.devices.named {
            NamedDevicePolicy::Refuse => NamedDevices::Refuse,
            NamedDevicePolicy::Warn => NamedDevices::Warn,
        },
        capacity: capacity::of_node(),
        overcommit: match config.ledger.overcommit {
            Overcommit::Off => ledger::Overcommit::Off,
            Overcommit::Warn => ledger::Overcommit::Warn,
            Overcommit::Enforce => ledger::Overcommit::Enforce,
        },
        ..Limits::default()
    }
}

const fn is_up(state: &State) -> bool {
    matches!(state, State::Up { .. })
}

/// Recovers what a predecessor left, for as long as it takes. Cancel-safe.
async fn recover(
    gateway: Gateway,
    (containerd, logkeeper): (Option<watch::Receiver<State>>, watch::Receiver<State>),
    begin: StartTimes,
) {
    let processes = async {
        if let Some(mut containerd) = containerd {
            // The sender lives as long as the daemon.
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
    let (mut wait, longest) = RETRY;
    let mut told = String::new();
    while let Err(error) = gateway.recover().await {
        let report = error.report();
        if told != report {
            tracing::warn!(error = report, "recovery failed, and is tried until it succeeds");
            service_manager::status(&format!("Recovery failed: {error}"));
            told = report;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(longest);
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

/// Looks at a logkeeper that somebody else runs. Cancel-safe.
async fn watch_logkeeper(config: Arc<Config>, state: watch::Sender<State>) {
    let socket = config.logkeeper_socket();
    loop {
        let now = managed::logkeeper::probe_state(&socket).await;
        state.send_if_modified(|before| {
            let changed = *before != now;
            *before = now;
            changed
        });
        tokio::time::sleep(POLL).await;
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
