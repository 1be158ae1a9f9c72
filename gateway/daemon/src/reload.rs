//! Reloads the configuration while the daemon runs: after SIGHUP, and for `switchyard config reload`.
//!
//! A reload takes effect as a whole or not at all: whatever can fail (reading and checking the files, reading
//! the credentials, the backend's own checks) comes before the first change. Requests that arrive while a
//! reload runs are all answered by the one that follows it, so that a client always learns of files that are
//! at least as new as its request.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use switchyard_config as config;
use switchyard_config::{Config, ConfigError, Effective, Loaded, Sources};
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::gateway::Gateway;
use switchyard_core::operation::{Caller, OperationKind, Subject};
use switchyard_core::threads;
use switchyard_linux::report;
use switchyard_operator::control::{ConfigControl, ReloadFailure};
use switchyard_operator::history::History;
use switchyard_operator::metrics::ReloadCounts;
use switchyard_operator_api::text::rfc3339;
use switchyard_operator_api::{
    Change, ConfigView, Effect, Overridden, RefusedReloadView, ReloadReport,
};
use switchyard_telemetry::LogLevel;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::credentials::{CredentialError, Credentials, NewCredentials, Stamps};
use crate::device_parts::DeviceParts;
use crate::service_manager;
use crate::wiring::{LiveSettings, ReconfigureBackend};
use futures::future::BoxFuture;

/// Maximum number of requests that wait for a reload.
const WAITING_MAX: usize = 16;

/// Interval at which the files of certificates and tokens are checked for changes.
const FOLLOW: Duration = Duration::from_secs(5);

/// Limit for reading the files.
const READ_LIMIT: Duration = Duration::from_secs(10);

/// The reason why the configuration was not reloaded.
#[derive(Debug, thiserror::Error)]
#[error("the configuration was not reloaded and stays as it was")]
pub struct ReloadError {
    /// The reason.
    #[source]
    pub reason: RefusalReason,
}

/// The reason why a reload was refused. Each has a text of its own, with the position in the files if they
/// are wrong.
#[derive(Debug, thiserror::Error)]
pub enum RefusalReason {
    /// The files are invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A certificate or a token is unusable.
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    /// The backend does not accept the settings.
    #[error(transparent)]
    Backend(switchyard_core::Error),
    /// The files could not be read in time, or a former attempt still hangs.
    #[error(transparent)]
    Hung(switchyard_core::Error),
    /// The daemon stops.
    #[error("the daemon is stopping; the next one starts with the configuration as it is then")]
    Stopping,
}

/// The handle with which a reload is requested. Clones share it.
#[derive(Debug, Clone)]
pub struct Reloader {
    requests: mpsc::Sender<Request>,
    state: Arc<RwLock<ConfigState>>,
}

/// The requests, for the task that reloads.
#[derive(Debug)]
pub struct ReloadQueue {
    requests: mpsc::Receiver<Request>,
    state: Arc<RwLock<ConfigState>>,
    sources: Sources,
}

/// The parts whose settings a reload replaces.
pub(crate) struct ReloadedParts {
    pub(crate) gateway: Gateway,
    pub(crate) backend: ReconfigureBackend,
    pub(crate) settings: LiveSettings,
    pub(crate) devices: DeviceParts,
    pub(crate) credentials: Credentials,
    pub(crate) log_level: LogLevel,
    pub(crate) history: History,
}

type Verdict = Result<Arc<ReloadReport>, Arc<ReloadError>>;

/// A request for a reload.
#[derive(Debug)]
struct Request {
    /// The receiver of the verdict; a signal has none.
    answer: Option<oneshot::Sender<Verdict>>,
    caller: Option<Caller>,
}

#[derive(Debug)]
struct ConfigState {
    effective: Arc<Effective>,
    loaded_at: SystemTime,
    pending: Vec<Change>,
    /// Texts about what the start ignored, until a reload, which ignores nothing.
    ignored: Vec<String>,
    refused: Option<RefusedReloadView>,
    counts: [u64; 2],
}

/// The content of the files, read and checked.
struct Prepared {
    loaded: Loaded,
    effective: Effective,
    changes: Vec<Change>,
    credentials: NewCredentials,
    stamps: Stamps,
}

// === impl ReloadError ===

impl<T: Into<RefusalReason>> From<T> for ReloadError {
    fn from(reason: T) -> Self {
        Self {
            reason: reason.into(),
        }
    }
}

impl ReloadError {
    /// Returns whether the files have to be changed before the next attempt.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        match self.reason {
            RefusalReason::Config(_)
            | RefusalReason::Credentials(_)
            | RefusalReason::Backend(_) => true,
            RefusalReason::Hung(_) | RefusalReason::Stopping => false,
        }
    }
}

// === impl Reloader ===

impl Reloader {
    /// The handle to reloads of this configuration, which is in force, and the requests for the task that
    /// reloads it.
    #[must_use]
    pub fn new(loaded: Loaded) -> (Self, ReloadQueue) {
        let Loaded {
            sources,
            effective,
            ignored,
            ..
        } = loaded;
        let (sender, requests) = mpsc::channel(WAITING_MAX);
        let state = Arc::new(RwLock::new(ConfigState {
            effective: Arc::new(effective),
            loaded_at: SystemTime::now(),
            pending: Vec::new(),
            ignored,
            refused: None,
            counts: [0; 2],
        }));
        let handle = Self {
            requests: sender,
            state: Arc::clone(&state),
        };
        (
            handle,
            ReloadQueue {
                requests,
                state,
                sources,
            },
        )
    }

    /// Reloads the configuration and returns the verdict. If the caller is dropped, the reload continues.
    ///
    /// # Errors
    /// [`ReloadError`]; the former configuration is in force then.
    async fn verdict(&self) -> Verdict {
        let stopping = || {
            Arc::new(ReloadError {
                reason: RefusalReason::Stopping,
            })
        };
        let (answer, verdict) = oneshot::channel();
        let request = Request {
            answer: Some(answer),
            caller: Caller::current(),
        };
        self.requests.send(request).await.map_err(|_| stopping())?;
        verdict.await.map_err(|_| stopping())?
    }

    /// Requests a reload whose verdict is only logged. Does not block.
    pub fn request(&self) {
        // A full queue has requests that are not served yet: they read the same files.
        let _ = self.requests.try_send(Request {
            answer: None,
            caller: None,
        });
    }
}

impl ConfigControl for Reloader {
    fn view(&self) -> ConfigView {
        let state = self.state.read();
        ConfigView {
            loaded_at: rfc3339(state.loaded_at),
            pending: state.pending.clone(),
            refused: state.refused.clone(),
            ignored: state.ignored.clone(),
        }
    }

    fn counts(&self) -> ReloadCounts {
        let state = self.state.read();
        let [applied, refused] = state.counts;
        ReloadCounts {
            applied,
            refused,
            is_last_applied: state.refused.is_none(),
            loaded_at: state.loaded_at,
            pending: state.pending.len(),
            ignored: state.ignored.len(),
        }
    }

    fn dump(&self, with_origins: bool) -> String {
        let effective = Arc::clone(&self.state.read().effective);
        effective.dump(with_origins)
    }

    fn reload(&self) -> BoxFuture<'_, Result<Arc<ReloadReport>, ReloadFailure>> {
        Box::pin(async {
            let verdict = self.verdict().await;
            verdict.map_err(|error| ReloadFailure {
                is_refusal: error.is_refusal(),
                text: report(&*error),
            })
        })
    }
}

// === impl ReloadQueue ===

impl ReloadQueue {
    /// The sources that the daemon was started with.
    pub(crate) const fn sources(&self) -> &Sources {
        &self.sources
    }

    /// Reloads the configuration of these parts on each request, and puts credentials in force when their
    /// files change, for ever. `seen` are the stamps of the files when they were last read.
    pub(crate) async fn run(mut self, parts: ReloadedParts, mut seen: Stamps) {
        let files = BlockingPool::new(threads::FILES_POOL, READ_LIMIT);
        loop {
            tokio::select! {
                first = self.requests.recv() => match first {
                    Some(first) => self.serve(first, &files, &parts, &mut seen).await,
                    None => return,
                },
                () = sleep(FOLLOW) => self.follow(&files, &parts, &mut seen).await,
            }
        }
    }

    /// Reloads the configuration once, for a request and all that wait behind it.
    async fn serve(
        &mut self,
        first: Request,
        files: &BlockingPool,
        parts: &ReloadedParts,
        seen: &mut Stamps,
    ) {
        let caller = first.caller.clone();
        let mut requests = vec![first];
        while requests.len() < WAITING_MAX
            && let Ok(next) = self.requests.try_recv()
        {
            requests.push(next);
        }
        let reloading = service_manager::reloading();
        let operations = &parts.history.operations;
        let operation = operations.begin(
            OperationKind::ReloadConfig,
            None,
            caller,
            Subject::default(),
        );
        let reload = self.reload(files, parts, seen);
        let verdict = operation.run_with(reload, |error| core_error(error)).await;
        self.record(&verdict);
        drop(reloading);
        for answer in requests.into_iter().filter_map(|request| request.answer) {
            // The client may be gone.
            let _ = answer.send(verdict.clone());
        }
    }

    /// Reads the files of the credentials again if one of them has changed.
    async fn follow(&self, files: &BlockingPool, parts: &ReloadedParts, seen: &mut Stamps) {
        let present = Arc::clone(&self.state.read().effective);
        let known = seen.clone();
        let changed = files.run("the certificates and tokens".to_owned(), move || {
            let stamps = Stamps::of(&present.config);
            Ok((stamps != known).then(|| (stamps, NewCredentials::read(&present.config))))
        });
        match changed.await {
            Ok(None) => {}
            Ok(Some((stamps, read))) => {
                // A file that is unusable is read again when it has changed again.
                *seen = stamps;
                match read {
                    Ok(new) => {
                        parts.credentials.replace(new);
                        tracing::info!(
                            "certificates and tokens were read again, since their files have changed"
                        );
                    }
                    Err(error) => tracing::error!(
                        error = report(&error),
                        "the changed files of certificates and tokens cannot be used: the former ones stay in force"
                    ),
                }
            }
            Err(error) => tracing::debug!(
                error = error.report(),
                "certificates and tokens cannot be read"
            ),
        }
    }

    async fn reload(
        &self,
        files: &BlockingPool,
        parts: &ReloadedParts,
        seen: &mut Stamps,
    ) -> Verdict {
        let present = Arc::clone(&self.state.read().effective);
        let sources = self.sources.clone();
        let read = files
            .run("the configuration".to_owned(), move || {
                Ok(prepare(&sources, &present))
            })
            .await
            .map_err(RefusalReason::Hung);
        let Prepared {
            loaded,
            effective,
            changes,
            credentials,
            stamps,
        } = read
            .and_then(|prepared| prepared)
            .map_err(|reason| Arc::new(ReloadError { reason }))?;
        parts
            .apply(&effective.config, credentials)
            .map_err(|reason| Arc::new(ReloadError { reason }))?;
        *seen = stamps;
        let (applied, pending): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .partition(|change| change.effect == Effect::Reload);
        let mut state = self.state.write();
        state.effective = Arc::new(effective);
        state.loaded_at = SystemTime::now();
        state.pending.clone_from(&pending);
        state.ignored.clear();
        drop(state);
        Ok(Arc::new(ReloadReport {
            files: loaded
                .files
                .iter()
                .map(|file| file.display().to_string())
                .collect(),
            applied,
            pending,
            overridden: loaded.overridden,
            warnings: loaded.warnings,
        }))
    }

    /// Counts and logs a verdict.
    fn record(&self, verdict: &Verdict) {
        let refused = verdict.as_ref().err().map(|error| report(error));
        match verdict {
            Ok(done) => log(done),
            Err(error) => {
                tracing::error!(
                    error = report(&error.reason),
                    "the configuration was not reloaded and stays as it was"
                );
            }
        }
        let mut state = self.state.write();
        state.counts[usize::from(refused.is_some())] += 1;
        state.refused = refused.map(|why| RefusedReloadView {
            at: rfc3339(SystemTime::now()),
            why,
        });
    }
}

/// The error as an operation reports it.
fn core_error(error: &ReloadError) -> switchyard_core::Error {
    switchyard_core::Error::failed_precondition(report(error))
}

fn log(done: &ReloadReport) {
    let keys = |changes: &[Change]| {
        changes
            .iter()
            .map(|change| change.key.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    tracing::info!(
        applied = keys(&done.applied),
        "the configuration was reloaded"
    );
    if !done.pending.is_empty() {
        tracing::warn!(
            keys = keys(&done.pending),
            "changes of the configuration take effect later: `switchyard status` says when"
        );
    }
    for Overridden { key, location, by } in &done.overridden {
        tracing::warn!(
            key,
            location,
            by,
            "a value of the configuration is overridden and has no effect"
        );
    }
    for warning in &done.warnings {
        tracing::warn!("configuration: {warning}");
    }
}

/// Reads and checks whatever may be wrong. Blocks on the file system.
fn prepare(sources: &Sources, present: &Effective) -> Result<Prepared, RefusalReason> {
    let loaded = config::load(sources)?;
    let config::Reload { effective, changes } = present.reload(&loaded.effective)?;
    let stamps = Stamps::of(&effective.config);
    // The files may have new content under their old names.
    let credentials = NewCredentials::read(&effective.config)?;
    Ok(Prepared {
        loaded,
        effective,
        changes,
        credentials,
        stamps,
    })
}

// === impl ReloadedParts ===

impl ReloadedParts {
    /// Puts a configuration in force. Only the first step can fail.
    fn apply(&self, config: &Config, credentials: NewCredentials) -> Result<(), RefusalReason> {
        (self.backend)(config).map_err(RefusalReason::Backend)?;
        if let Err(error) = self.log_level.configure(&config.log.level) {
            // The level was checked with the configuration.
            tracing::error!(%error, "the log level cannot be changed");
        }
        self.history.audit.reconfigure(&config.audit);
        self.gateway.set_limits(config.gateway_limits());
        self.settings.reconfigure(config);
        self.devices.reconfigure(&config.devices);
        self.credentials.replace(credentials);
        Ok(())
    }
}
