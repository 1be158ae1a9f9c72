//! Restarts of containerd and the logkeeper on request, which put an upgraded program in place while containers
//! run.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use switchyard_config as config;
use switchyard_config::Sources;
use switchyard_linux::process::ProcessId;
use switchyard_linux::services::NodeService;
use switchyard_linux::{WorkLost, blocking, report};
use switchyard_operator::control::{Reporter, RestartError, RestartableProcess};
use switchyard_operator::status::{Condition, Part};
use switchyard_operator_api::RestartReport;
use tokio::process::Command;
use tokio::sync::watch;

use super::State;
use crate::daemon_record::PublishedRecord;

#[cfg(test)]
mod tests;

/// Limit for a restart until the answer; the process may still come up after it.
const LIMIT: Duration = Duration::from_secs(25);

/// Limit for the next process to keep the listeners of the daemon, once it serves; together with [`LIMIT`] shorter than that
/// of a page.
const KEEP_LIMIT: Duration = Duration::from_secs(3);

// A request has a number, and a process serves those that were made before it was started:
//
//     Restarter ── number of the latest request ──► RestartRequests, which the supervisor holds
//         ◄── up to which number the process that serves has been started after the request ──
//
// So a request is answered by a process that was started for it, also if it comes while no process is known yet.

/// A process that can be restarted, and how.
#[derive(Debug, Clone)]
pub struct Restarter {
    name: &'static str,
    state: watch::Receiver<State>,
    means: Means,
    /// Place of the listeners of the daemon; `None` if the process keeps none.
    kept: Option<watch::Receiver<KeptListeners>>,
}

/// The place of the listeners of the daemon that its successor can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeptListeners {
    /// In no process but the daemon, or not known.
    #[default]
    Nowhere,
    /// In the process with this id.
    In(u32),
    /// The process that serves is of a version that keeps none.
    Unsupported,
}

/// The component that starts the process again.
#[derive(Debug, Clone)]
enum Means {
    /// Our supervisor.
    Supervisor(Supervisor),
    /// The service manager, if the process belongs to one of its services.
    ServiceManager(RestartableService),
}

/// A service whose process the service manager starts.
#[derive(Debug, Clone)]
struct RestartableService {
    start: ServiceStart,
    /// The process that a request ends; 0 if none does.
    ending: Arc<AtomicI32>,
}

/// Input of the next process of a service at its start: the record of this daemon, and the configuration, which need
/// not be valid if the record is there.
#[derive(Debug, Clone)]
pub struct ServiceStart {
    record: PublishedRecord,
    sources: Sources,
}

/// The requests for restarts that a supervisor serves.
#[derive(Debug, Clone)]
struct Supervisor {
    /// The number of the latest request.
    latest: Arc<watch::Sender<u64>>,
    served: watch::Receiver<Served>,
}

/// The requests that the latest serving process was started for.
#[derive(Debug, Clone, Copy, Default)]
struct Served {
    /// The number of the latest of them.
    request: u64,
    /// The process that was ended before it.
    before: Option<ProcessId>,
    after: Option<ProcessId>,
}

/// The requests for restarts, for a supervisor.
#[derive(Debug)]
pub struct RestartRequests(Option<Requests>);

#[derive(Debug)]
struct Requests {
    latest: watch::Receiver<u64>,
    served: watch::Sender<Served>,
    /// The latest request before the start of the process that the supervisor has now.
    started_after: u64,
    /// The process that the supervisor had before.
    before: Option<ProcessId>,
}

/// A process that a supervisor restarts, and the requests for that supervisor.
#[must_use]
pub fn supervised(
    name: &'static str,
    state: watch::Receiver<State>,
) -> (Restarter, RestartRequests) {
    let (latest, requests) = watch::channel(0);
    let (served, reports) = watch::channel(Served::default());
    let supervisor = Supervisor {
        latest: Arc::new(latest),
        served: reports,
    };
    let requests = Requests {
        latest: requests,
        served,
        started_after: 0,
        before: None,
    };
    (
        Restarter {
            name,
            state,
            means: Means::Supervisor(supervisor),
            kept: None,
        },
        RestartRequests(Some(requests)),
    )
}

// === impl Restarter ===

impl Restarter {
    /// A process that the service manager restarts, and the input of the next one.
    #[must_use]
    pub fn service(name: &'static str, state: watch::Receiver<State>, start: ServiceStart) -> Self {
        Self {
            name,
            state,
            means: Means::ServiceManager(RestartableService {
                start,
                ending: Arc::default(),
            }),
            kept: None,
        }
    }

    /// The same process, which keeps the listeners of the daemon: a restart lasts until the next one has them.
    #[must_use]
    pub fn with_listeners(self, kept: watch::Receiver<KeptListeners>) -> Self {
        Self {
            kept: Some(kept),
            ..self
        }
    }

    /// Returns whether a request has ended this process of a service. A second query about it returns false.
    #[must_use]
    pub fn take_requested_end(&self, process: ProcessId) -> bool {
        match &self.means {
            Means::Supervisor(_) => false,
            Means::ServiceManager(RestartableService { ending, .. }) => ending
                .compare_exchange(process.pid, 0, Ordering::AcqRel, Ordering::Acquire)
                .is_ok(),
        }
    }

    /// The process that runs, if it is known.
    #[must_use]
    pub fn process(&self) -> Option<ProcessId> {
        match &*self.state.borrow() {
            State::Up { process, .. } | State::Hanging { process, .. } => Some(*process),
            State::Starting | State::Down(_) => None,
        }
    }

    /// Ends the process and waits for the next one to serve, and to keep the listeners of the daemon if it does so. If the
    /// caller is dropped, the restart continues.
    ///
    /// # Errors
    /// [`RestartError`]; containers keep running in any case.
    async fn end_and_await_next(&self) -> Result<RestartReport, RestartError> {
        let restarted = async {
            match &self.means {
                Means::Supervisor(supervisor) => supervisor.restart().await,
                Means::ServiceManager(RestartableService { start, ending }) => {
                    let before = self.process().ok_or(RestartError::Absent(self.name))?;
                    let service = service_of(before.pid)
                        .await?
                        .ok_or(RestartError::External {
                            name: self.name,
                            pid: before.pid,
                        })?;
                    start.check(self.name).await?;
                    ending.store(before.pid, Ordering::Release);
                    if let Err(error) = restart_service(&service).await {
                        ending.store(0, Ordering::Release);
                        return Err(error);
                    }
                    Ok((Some(before), self.serves_instead_of(before).await?))
                }
            }
        };
        let limited = tokio::time::timeout(LIMIT, restarted).await;
        let (before, after) = limited.map_err(|_elapsed| RestartError::Deadline {
            limit: LIMIT,
            name: self.name,
            state: describe(&self.state.borrow()),
        })??;
        self.wait_for_listeners(after).await?;
        let report = RestartReport {
            part: self.name.to_owned(),
            before: before.map(|process| process.pid),
            after: after.pid,
        };
        tracing::info!(
            part = self.name,
            before = report.before,
            after = report.after,
            "restarted on request"
        );
        Ok(report)
    }

    /// Waits until this process keeps the listeners of the daemon, unless it keeps none: until then, clients of a daemon
    /// that is killed are refused.
    async fn wait_for_listeners(&self, process: ProcessId) -> Result<(), RestartError> {
        let Some(mut kept) = self.kept.clone() else {
            return Ok(());
        };
        // That of the process before, perhaps. Each try to store them publishes its outcome.
        let may_be_former = *kept.borrow_and_update() == KeptListeners::Unsupported;
        let is_done = |kept: &KeptListeners| match kept {
            KeptListeners::Nowhere => false,
            KeptListeners::In(pid) => i32::try_from(*pid) == Ok(process.pid),
            KeptListeners::Unsupported => true,
        };
        let waited = tokio::time::timeout(KEEP_LIMIT, async {
            if may_be_former {
                kept.changed().await?;
            }
            kept.wait_for(is_done).await.map(drop)
        });
        match waited.await.map(|kept| kept.is_ok()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(RestartError::Stopping),
            Err(_elapsed) => Err(RestartError::Listeners {
                name: self.name,
                pid: process.pid,
                limit: KEEP_LIMIT,
            }),
        }
    }

    /// Waits until another process than this one serves.
    async fn serves_instead_of(&self, before: ProcessId) -> Result<ProcessId, RestartError> {
        let mut state = self.state.clone();
        let is_next =
            |state: &State| matches!(state, State::Up { process, .. } if *process != before);
        let next = state
            .wait_for(is_next)
            .await
            .map_err(|_closed| RestartError::Stopping)?;
        match &*next {
            State::Up { process, .. } => Ok(*process),
            State::Starting | State::Hanging { .. } | State::Down(_) => Err(RestartError::Stopping),
        }
    }
}

impl Reporter for Restarter {
    fn parts(&self) -> Vec<Part> {
        vec![Part::needed(self.name, self.state.borrow().condition())]
    }
}

impl RestartableProcess for Restarter {
    fn name(&self) -> &'static str {
        self.name
    }

    fn pid(&self) -> Option<i32> {
        self.process().map(|process| process.pid)
    }

    fn version(&self) -> Option<String> {
        match &*self.state.borrow() {
            State::Up { version, .. } => version_in(version).map(str::to_owned),
            State::Starting | State::Hanging { .. } | State::Down(_) => None,
        }
    }

    fn is_configuration_current(&self) -> Option<bool> {
        match &*self.state.borrow() {
            State::Up {
                is_configuration_current,
                ..
            } => *is_configuration_current,
            State::Starting | State::Hanging { .. } | State::Down(_) => None,
        }
    }

    fn restart(&self) -> BoxFuture<'_, Result<RestartReport, RestartError>> {
        Box::pin(self.end_and_await_next())
    }
}

// === impl ServiceStart ===

impl ServiceStart {
    /// The record of this daemon, and these sources of the configuration.
    #[must_use]
    pub const fn new(record: PublishedRecord, sources: Sources) -> Self {
        Self { record, sources }
    }

    /// Checks, before the present process is ended, that the next one will start.
    async fn check(&self, name: &'static str) -> Result<(), RestartError> {
        let start = self.clone();
        let checked = blocking("the check of the configuration", move || {
            Ok::<_, WorkLost>(start.refusal())
        });
        match checked.await {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(RestartError::Configuration { name, why }),
            Err(lost) => Err(RestartError::Configuration {
                name,
                why: report(&lost),
            }),
        }
    }

    /// Reason why the process would not start. Blocks.
    fn refusal(&self) -> Option<String> {
        if self.record.is_in_place() {
            return None;
        }
        config::load_for_start(&self.sources)
            .err()
            .map(|error| report(&error))
    }
}

// === impl Supervisor ===

impl Supervisor {
    /// Requests a restart, and waits for a process that was started after that to serve; returns the one before it, and it.
    async fn restart(&self) -> Result<(Option<ProcessId>, ProcessId), RestartError> {
        if self.latest.is_closed() {
            return Err(RestartError::Stopping);
        }
        let mut number = 0;
        self.latest.send_modify(|latest| {
            *latest += 1;
            number = *latest;
        });
        let mut served = self.served.clone();
        let report = served.wait_for(|served| served.request >= number).await;
        let Served {
            request: _,
            before,
            after,
        } = *report.map_err(|_closed| RestartError::Stopping)?;
        Ok((before, after.ok_or(RestartError::Stopping)?))
    }
}

// === impl RestartRequests ===

impl RestartRequests {
    /// For a supervisor that nobody asks.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Waits for a request that the present process was not started for. Cancel-safe.
    pub(super) async fn next(&mut self) {
        if let Some(Requests {
            latest,
            started_after,
            ..
        }) = &mut self.0
            && latest
                .wait_for(|latest| latest > started_after)
                .await
                .is_ok()
        {
            return;
        }
        std::future::pending().await
    }

    /// A process is about to be started: it serves the requests so far.
    pub(super) fn starting(&mut self) {
        if let Some(requests) = &mut self.0 {
            requests.started_after = *requests.latest.borrow_and_update();
        }
    }

    /// A process serves, which was adopted or started: those who asked for it before its start are answered.
    pub(super) fn serves(&mut self, process: ProcessId) {
        if let Some(Requests {
            served,
            started_after,
            before,
            ..
        }) = &mut self.0
        {
            served.send_replace(Served {
                request: *started_after,
                before: *before,
                after: Some(process),
            });
            *before = Some(process);
        }
    }
}

/// The version in the description of a process: `containerd 1.7.2`, `logkeeper 0.1.0 protocol 1`; `None` for a logkeeper
/// that reports none: `logkeeper protocol 1`. Pure.
fn version_in(description: &str) -> Option<&str> {
    let version = description.split_whitespace().nth(1);
    version.filter(|word| *word != "protocol")
}

fn describe(state: &State) -> String {
    match state.condition() {
        Condition::Up(detail) | Condition::Down(detail) => detail,
    }
}

async fn restart_service(service: &NodeService) -> Result<(), RestartError> {
    let words = service.command("restart");
    let command = words.join(" ");
    let [program, first, second] = words;
    let ended = Command::new(program)
        .args([first, second])
        // Of this daemon's own service.
        .env_remove("RC_SERVICE")
        .env_remove("RC_SVCNAME")
        // systemd goes on without its command; rc-service itself has stopped the service, and has to start it.
        .kill_on_drop(matches!(service, NodeService::Systemd(_)))
        .output()
        .await;
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(RestartError::Refused { command, text })
        }
        Err(source) => Err(RestartError::ServiceManager { command, source }),
    }
}

/// The service that a process belongs to.
async fn service_of(pid: i32) -> Result<Option<NodeService>, RestartError> {
    let looked = blocking("the look for a service", move || {
        Ok::<_, WorkLost>(NodeService::of(pid))
    });
    looked.await.map_err(|_lost| RestartError::Stopping)
}
