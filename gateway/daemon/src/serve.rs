//! `switchyard serve`: starts the parts of the daemon in order, and stops them.
//!
//! Start: directories → locks → defaults of the node's networks → record of the daemon → sockets, those of the predecessor if
//! it has left some (calls queue) → backend → admin HTTP (alive, not ready) → managed containerd and logkeeper → frontends (requests wait,
//! queries of the daemon's status are answered) → recovery → ready. Stop: no new requests → running operations end, then
//! the watches, then the backend's cleanup, all by one deadline → sockets that the logkeeper does not keep are removed.
//! What is still at work then ends with the process, as at a kill. Containers, containerd, the logkeeper and CNI plugins
//! keep running.

use std::fs;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use switchyard_config::{Config, Loaded};
use switchyard_core::backend::{Backend, BackendObserver};
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_linux::files::if_present;
use switchyard_linux::host_features::HostFeatures;
use switchyard_logkeeper::Client;
use switchyard_operator::history::History;
use switchyard_operator::metrics::Metrics;
use switchyard_operator::node::{Node, NodeSources};
use switchyard_operator_api::VERSION;
use switchyard_socket::listener::SocketFile;
use switchyard_telemetry::LogLevel;
use switchyard_telemetry::TraceSettings;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::capacity;
use crate::credentials::{Credentials, MetricsCredentials, Stamps};
use crate::daemon_record::PublishedRecord;
use crate::device_parts::{DeviceContext, DeviceParts};
use crate::lock::{DirLocks, LockError};
use crate::managed::restart::KeptListeners;
use crate::managed::{State, make_dir};
use crate::network_defaults;
use crate::reload::{ReloadedParts, Reloader};
use crate::reports::DeviceReport;
use crate::run_file::RunFile;
use crate::self_check::{Question, SelfCheck};
use crate::service_manager;
use crate::shutdown::Shutdown;
use crate::streaming;
use crate::wiring::{self, ConnectedBackend, LiveSettings};

mod admin;
mod drain;
mod error;
mod frontends;
mod listener_store;
mod processes;
mod recovery;

use admin::AdminListeners;
use drain::drain;
pub use error::{Outlook, ServeError};
use frontends::{FrontendSockets, Frontends};
use listener_store::{InheritedListeners, ListenerKeeper, SharedListeners};
use processes::NeededProcesses;

/// Time to record the events of the daemon's last moments, most of which are recorded as they happen.
const LATE_EVENTS: Duration = Duration::from_millis(50);

/// The time of the daemon's start, and its wait for the locks of its directories.
#[derive(Debug, Clone, Copy)]
struct StartTimes {
    at: Instant,
    locked: Duration,
}

impl StartTimes {
    /// The times of a start that began at `at` and has the locks now.
    fn locked_now(at: Instant) -> Self {
        Self {
            at,
            locked: at.elapsed(),
        }
    }
}

/// All listeners. Connections queue until they are served.
struct Listeners {
    frontends: FrontendSockets,
    /// For streams of CRI; `None` if that is not enabled.
    streaming: Option<switchyard_streaming::Server>,
    admin: AdminListeners,
}

/// The daemon while it runs.
struct Daemon {
    config: Arc<Config>,
    shutdown: Shutdown,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
    history: History,
}

/// Raises the soft limit on open files to the hard limit: each running container with a log needs a few.
fn raise_file_limit() {
    if let Err(error) = switchyard_linux::raise_open_files_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files");
    }
}

/// Runs the daemon until `shutdown`, which also ends it at SIGTERM and SIGINT. `connect` creates the backend, which reports
/// its work to the observer: [`wiring::containerd`]. `exe` is our own binary, and `log_level` the level of its log. Without `traces` nothing is traced. `locks` receives the locks of its directories.
///
/// When it returns, operations that did not end in time may still be at work on the runtime. They must not be dropped,
/// which would kill CNI plugins half-way, but end with the process, as at a kill. Until then `locks` must be kept.
///
/// # Errors
/// [`ServeError`]; processes that it started keep running.
pub async fn run(
    mut loaded: Loaded,
    connect: impl FnOnce(&Config, Arc<dyn BackendObserver>) -> switchyard_core::Result<ConnectedBackend>,
    exe: &Path,
    log_level: LogLevel,
    traces: Option<TraceSettings>,
    shutdown: Shutdown,
    locks: &mut DirLocks,
) -> Result<(), ServeError> {
    let begin = Instant::now();
    tracing::info!(
        version = VERSION,
        pid = std::process::id(),
        files = ?loaded.files,
        "switchyard starts"
    );
    raise_file_limit();
    take_directories(&loaded.effective.config, locks)?;
    network_defaults::settle(&mut loaded.effective)?;
    let config = Arc::new(loaded.effective.config.clone());
    let (reloader, reloads) = Reloader::new(loaded);
    let begin = StartTimes::locked_now(begin);
    follow_signals(&shutdown, &reloader)?;

    let daemon = Daemon::new(Arc::clone(&config), shutdown, traces.as_ref())?;
    let record = daemon.publish_record();
    let (kept, places) = watch::channel(KeptListeners::default());
    let processes = NeededProcesses::new(&config, record, reloads.sources(), places);
    // Before the files are read, so that a change meanwhile is noticed later.
    let stamps = Stamps::of(&config);
    // The sockets come first, so that no client is refused while the daemon starts.
    let listeners = Listeners::bind(&config).await?;
    let socket_files = listeners.socket_files();
    let shared = listeners.shared()?;
    let credentials = listeners.credentials(&config)?;
    // The backend comes before the managed containerd, because a starting containerd ends shims that wait for
    // FIFOs that the backend opens.
    let ConnectedBackend {
        backend,
        reconfigure,
        features,
    } = connect(&config, daemon.metrics.backend_observer()).map_err(ServeError::Backend)?;
    let gateway = daemon.gateway(backend);
    let settings = LiveSettings::of(&config);
    let Listeners {
        frontends,
        streaming,
        admin,
    } = listeners;
    let frontends = daemon.frontends(frontends, streaming, &settings, &gateway);
    let device_report = Arc::new(DeviceReport::default());
    let (recovery_errors, recovery_error) = watch::channel(None);
    let node = daemon.node(
        &gateway,
        recovery_error,
        &processes,
        &device_report,
        &frontends,
        features,
    );
    let pages = daemon.pages(node, reloader, log_level.clone());
    let (address_files, admin_question) = daemon.serve_admin(admin, &pages, &credentials.metrics);

    let states = processes.states();
    daemon.keep_running(processes, exe);
    let recording = daemon.record_events(&gateway, &states);
    let devices = daemon.start_devices(&gateway, &device_report);
    let mut questions = daemon.serve_frontends(frontends, &gateway);
    questions.push(admin_question);
    // Not sooner, so that a start that fails leaves what its predecessor has put to its end.
    daemon.keep_listeners(shared, states.1.clone(), kept);
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
    daemon.feed_watchdog(questions);
    daemon.start_recovery(gateway.clone(), recovery_errors, states, begin);

    daemon.shutdown.ended().await;
    daemon.end(&gateway, recording).await;
    // Servers that were aborted may hold their listeners a little longer.
    socket_files.iter().for_each(|socket| socket.remove());
    address_files.iter().for_each(|file| remove(file));
    tracing::info!("switchyard has ended; containers keep running");
    daemon.outcome()
}

/// Ends the daemon at SIGTERM and SIGINT, and reloads at SIGHUP.
fn follow_signals(shutdown: &Shutdown, reloader: &Reloader) -> Result<(), ServeError> {
    let reloader = reloader.clone();
    shutdown
        .on_signals(move || reloader.request())
        .map_err(ServeError::Signals)
}

/// Makes the directories and locks them.
fn take_directories(config: &Config, locks: &mut DirLocks) -> Result<(), ServeError> {
    let paths = &config.paths;
    for (path, mode) in [(&paths.state, 0o700), (&paths.run, 0o711)] {
        make_dir(path, mode).map_err(|source| LockError::at(path, path.clone(), source))?;
    }
    Ok(locks.acquire([&paths.state, &paths.run])?)
}

// === impl Listeners ===

impl Listeners {
    async fn bind(config: &Config) -> Result<Self, ServeError> {
        let mut inherited = InheritedListeners::take(&config.logkeeper_socket()).await;
        let frontends = FrontendSockets::bind(config, &mut inherited)?;
        let streaming = match config.cri.enabled {
            true => Some(
                streaming::bind(config)
                    .await
                    .map_err(ServeError::Streaming)?,
            ),
            false => None,
        };
        let admin = AdminListeners::bind(config, &mut inherited)?;
        inherited.discard();
        Ok(Self {
            frontends,
            streaming,
            admin,
        })
    }

    fn socket_files(&self) -> Vec<Arc<SocketFile>> {
        self.frontends
            .files()
            .chain([self.admin.socket_file()])
            .collect()
    }

    /// Duplicates of those that the successor can take.
    fn shared(&self) -> Result<SharedListeners, ServeError> {
        let listeners = self.frontends.listeners().chain([self.admin.local()]);
        Ok(SharedListeners::of(listeners)?)
    }

    /// The certificates and the token of those that have some.
    fn credentials(&self, config: &Config) -> Result<Credentials, ServeError> {
        let streaming = self
            .streaming
            .as_ref()
            .and_then(switchyard_streaming::Server::certificate);
        Ok(Credentials {
            streaming,
            metrics: MetricsCredentials::read(config)?,
        })
    }
}

// === impl Daemon ===

impl Daemon {
    /// Makes what all parts report to.
    fn new(
        config: Arc<Config>,
        shutdown: Shutdown,
        traces: Option<&TraceSettings>,
    ) -> Result<Self, ServeError> {
        let metrics = Arc::new(Metrics::new().map_err(ServeError::Metrics)?);
        let history = History::start(
            &config.audit,
            &metrics,
            wiring::owners(),
            &config.paths.state,
        )
        .with_traces(traces)?;
        Ok(Self {
            config,
            shutdown,
            tasks: TaskTracker::new(),
            metrics,
            history,
        })
    }

    /// Makes the gateway over a backend. It serves requests once it has recovered.
    fn gateway(&self, backend: Arc<dyn Backend>) -> Gateway {
        let limits = Limits {
            capacity: capacity::of_node(),
            ..self.config.gateway_limits()
        };
        let operations = self.history.operations.clone();
        let leases = wiring::leases(&self.config);
        let gateway = Gateway::with_leases(backend, limits, leases, operations);
        gateway.set_names(wiring::names_of_sandbox);
        gateway
    }

    fn frontends(
        &self,
        sockets: FrontendSockets,
        streaming: Option<switchyard_streaming::Server>,
        settings: &LiveSettings,
        gateway: &Gateway,
    ) -> Frontends {
        Frontends::new(
            &self.config,
            settings,
            sockets,
            streaming,
            gateway,
            &self.history.operations,
        )
    }

    /// Tries what the kernel and the node offer, and adds what the backend has tried.
    fn features(&self, of_backend: HostFeatures) -> HostFeatures {
        let mut features = HostFeatures::find(&self.config.paths.run);
        features.extend(of_backend);
        for (feature, reason) in features.missing() {
            tracing::info!(feature, reason, "the node lacks a feature");
        }
        features
    }

    /// Collects what operators look at and change.
    fn node(
        &self,
        gateway: &Gateway,
        recovery_error: watch::Receiver<Option<String>>,
        processes: &NeededProcesses,
        devices: &Arc<DeviceReport>,
        frontends: &Frontends,
        of_backend: HostFeatures,
    ) -> Node {
        Node::new(NodeSources {
            gateway: gateway.clone(),
            owners: wiring::owners(),
            logs: Client::new(self.config.logkeeper_socket()),
            recovery_error,
            processes: processes.restarters(),
            reporters: [vec![Arc::clone(devices) as _], frontends.reporters()].concat(),
            plugins: Arc::clone(devices) as _,
            swarm: frontends.swarm(),
            features: self.features(of_backend),
        })
    }

    /// Runs a part until it ends, at the latest when the daemon ends; if it panics, the daemon ends with an
    /// error.
    fn spawn(&self, name: &'static str, part: impl Future<Output = ()> + Send + 'static) {
        let stopped = self.shutdown.clone();
        let part = guarded(self.shutdown.clone(), name, part);
        self.tasks.spawn(async move {
            tokio::select! {
                () = stopped.ended() => {}
                () = part => {}
            }
        });
    }

    /// Writes a file of the start, now or when that is possible: a daemon starts on a full disk too.
    fn write_file(&self, file: RunFile) {
        if let Err(error) = file.write() {
            tracing::warn!(path = %file.path().display(), %error, without = file.without(), "cannot write a file of the start: trying again until it is written");
            self.spawn("files of the start", file.write_later());
        }
    }

    /// Writes down where this daemon and its logkeeper serve.
    fn publish_record(&self) -> PublishedRecord {
        let record = PublishedRecord::of(&self.config);
        if let Some(file) = record.file() {
            self.write_file(file);
        }
        record
    }

    /// Keeps the listeners in the logkeeper, whose state this is; `kept` reports whether they are there.
    fn keep_listeners(
        &self,
        shared: SharedListeners,
        state: watch::Receiver<State>,
        kept: watch::Sender<KeptListeners>,
    ) {
        let keeper = ListenerKeeper {
            socket: self.config.logkeeper_socket(),
            state,
            kept,
        };
        self.spawn("listener store", shared.keep(keeper));
    }

    /// Starts the parts that find and offer devices.
    fn start_devices(&self, gateway: &Gateway, report: &Arc<DeviceReport>) -> DeviceParts {
        let context = DeviceContext {
            gateway,
            metrics: &self.metrics,
            report,
            shutdown: &self.shutdown,
            tasks: &self.tasks,
        };
        DeviceParts::start(&self.config.devices, &context)
    }

    /// Notifies the service manager while all servers answer these questions.
    fn feed_watchdog(&self, questions: Vec<Question>) {
        let check = SelfCheck::new(questions);
        self.spawn(
            "watchdog",
            service_manager::feed_watchdog(check, self.shutdown.clone()),
        );
    }

    /// Returns the failure of the part that ended the daemon, if one did.
    fn outcome(&self) -> Result<(), ServeError> {
        self.shutdown
            .fault()
            .map_or(Ok(()), |why| Err(ServeError::Part(why.to_owned())))
    }

    /// Waits for what is in flight, for a bounded time.
    async fn end(&self, gateway: &Gateway, recording: AbortOnDropHandle<()>) {
        service_manager::stopping();
        drain(gateway, &self.tasks).await;
        // It has no end of its own: the gateway lives on.
        sleep(LATE_EVENTS).await;
        drop(recording);
        let why = self.shutdown.fault().unwrap_or("it was asked to end");
        self.history.events.note_end(why);
        self.history.flush().await;
    }
}

/// Runs a part until it ends; if it panics, the daemon ends with an error.
fn guarded(
    shutdown: Shutdown,
    name: &'static str,
    part: impl Future<Output = ()>,
) -> impl Future<Output = ()> {
    AssertUnwindSafe(part).catch_unwind().map(move |end| {
        if end.is_err() {
            shutdown.fail(format!("{name} panicked; the log says where"));
        }
    })
}

fn remove(path: &Path) {
    if let Err(error) = if_present(fs::remove_file(path)) {
        tracing::warn!(path = %path.display(), %error, "cannot remove a file");
    }
}
