//! The agent: keeps a session with one of the managers, and the certificate valid.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::certificates::ValidityPeriod;
use crate::connection::{Connection, Trust};
use crate::error::Error;
use crate::executor::Executor;
use crate::identity::Identity;
use crate::membership::Membership;
use crate::offer::DeviceCheck;
use crate::random;
use crate::renewal;
use crate::report::AgentReport;
use crate::session::assignments::Assignments;
use crate::session::pace::{Cause, Pace};
use crate::session::reports::Reports;
use crate::session::{self, SessionContext, SessionEnd, SessionObserver};
use crate::status::{Reaction, reaction_to};
use crate::store::Store;

/// Longest sleep before the agent reads the wall clock again, which may have been set meanwhile.
const CLOCK_PAUSE: Duration = Duration::from_secs(600);

/// The least time between a renewal and the next one that a manager asks for. A node whose certificates a manager
/// does not recognise is asked again and again.
const ASKED_PAUSE: Duration = Duration::from_secs(10);

/// A member of a cluster.
pub struct Agent {
    membership: Membership,
    executor: Arc<dyn Executor>,
    reports: Arc<Reports>,
    state: AgentState,
}

/// State shared by the agent's sessions and renewals.
struct AgentState {
    report: watch::Sender<AgentReport>,
}

/// Records the events of a session in the agent's report.
struct Observer<'a> {
    state: &'a AgentState,
    membership: &'a Membership,
    pace: &'a parking_lot::Mutex<Pace>,
    manager: &'a str,
}

impl std::fmt::Debug for Agent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Agent")
            .field("membership", &self.membership)
            .finish_non_exhaustive()
    }
}

// === impl Agent ===

impl Agent {
    /// The agent of a stored membership. Nothing runs yet.
    ///
    /// # Errors
    /// The managers cannot be read, or none is known.
    pub async fn new(
        store: Store,
        identity: Identity,
        executor: Arc<dyn Executor>,
        reports: Arc<Reports>,
    ) -> Result<Self, Error> {
        let report = AgentReport {
            cluster: identity.cluster().to_owned(),
            node: identity.node().to_owned(),
            certificate_begins: identity.validity().not_before,
            certificate_ends: identity.validity().not_after,
            manager: None,
            since: SystemTime::now(),
            sessions: 0,
            failures: 0,
            session_error: None,
            renewal_error: None,
            is_promoted: false,
            is_duplicate: false,
        };
        let membership = Membership::new(store, identity).await?;
        let state = AgentState {
            report: watch::Sender::new(report),
        };
        Ok(Self {
            membership,
            executor,
            reports,
            state,
        })
    }

    /// Receiver for the state of the membership and its changes.
    #[must_use]
    pub fn report(&self) -> watch::Receiver<AgentReport> {
        self.state.report.subscribe()
    }

    /// Has the executor take up the tasks of before the daemon's start. To be called once the gateway has recovered, before
    /// [`Agent::run`]. Cancel-safe.
    pub async fn recover(&self) {
        if let Some(kept) = self.membership.device_check().await {
            self.executor.resume_device_check(kept);
        }
        self.executor.recover().await;
    }

    /// Serves sessions and renews the certificate until `end`. The managers are not notified of the end: they
    /// mark the node down after three missed heartbeats, so that a short restart changes nothing.
    ///
    /// # Errors
    /// Only an operator can end the cause: the node was removed, or its certificate has expired.
    pub async fn run(&self, end: CancellationToken) -> Result<(), Error> {
        let concluded = self.executor.device_check();
        let result = tokio::select! {
            () = end.cancelled() => Ok(()),
            never = self.keep_device_check(concluded) => match never {},
            error = self.sessions() => Err(error),
            error = self.renewals() => Err(error),
        };
        self.state.change(|report| {
            report.manager = None;
            report.session_error = result.as_ref().err().map(Error::report);
        });
        result
    }

    /// Stores each conclusion about the managers' check of devices. A kill before it is stored costs one more task.
    async fn keep_device_check(
        &self,
        mut concluded: watch::Receiver<Option<DeviceCheck>>,
    ) -> Infallible {
        while concluded.changed().await.is_ok() {
            let check = *concluded.borrow_and_update();
            if let Some(check) = check {
                self.membership.concluded_device_check(check).await;
            }
        }
        pending().await
    }

    /// One session after the other.
    async fn sessions(&self) -> Error {
        let pace = parking_lot::Mutex::new(Pace::default());
        let mut assigned = Assignments::default();
        loop {
            let identity = self.membership.identity();
            if identity.validity().not_after <= SystemTime::now() {
                return Error::CertificateExpired {
                    node: identity.node().to_owned(),
                };
            }
            let manager = match self.membership.choose_manager() {
                Ok(manager) => manager,
                Err(error) => return error,
            };
            let until = pace.lock().duplicate_until();
            let end = tokio::select! {
                end = Box::pin(self.session(&identity, &manager, &pace, &mut assigned)) => end,
                never = self.state.forget_duplicate(until) => match never {},
            };
            let cause = match end {
                SessionEnd::Certificate => Cause::Certificate,
                SessionEnd::Failed(error) => {
                    let reaction = reaction_to(&error);
                    if reaction == Reaction::Removed {
                        return Error::Removed {
                            node: identity.node().to_owned(),
                        };
                    }
                    // Its weight is halved, so that the next session probably uses another one.
                    self.membership.judge_manager(&manager, false);
                    self.state.session_failed(&error);
                    Cause::Failed(reaction)
                }
            };
            let now = Instant::now();
            let pause = pace.lock().next(cause, now, random::number());
            let is_duplicate = pace.lock().is_duplicate(now);
            self.state.change(|report| {
                report.manager = None;
                report.is_duplicate = is_duplicate;
            });
            sleep(pause).await;
        }
    }

    async fn session(
        &self,
        identity: &Identity,
        manager: &str,
        pace: &parking_lot::Mutex<Pace>,
        assigned: &mut Assignments,
    ) -> SessionEnd {
        let connection = match Connection::open(manager, Trust::Manager(identity)).await {
            Ok(connection) => connection,
            Err(error) => return SessionEnd::Failed(error),
        };
        let observer = Observer {
            state: &self.state,
            membership: &self.membership,
            pace,
            manager,
        };
        let context = SessionContext {
            connection: &connection,
            membership: &self.membership,
            identity,
            executor: &self.executor,
            reports: &self.reports,
        };
        Box::pin(session::run(&context, assigned, &observer)).await
    }

    /// One renewal after the other.
    async fn renewals(&self) -> Error {
        let mut last: Option<Instant> = None;
        loop {
            let identity = self.membership.identity();
            let due = renewal::due(identity.validity(), random::number());
            tokio::select! {
                () = sleep_until_time(due) => {}
                () = self.asked(last) => {}
            }
            let mut failures = 0;
            while let Err(error) = self.renew().await {
                if reaction_to(&error) == Reaction::Removed {
                    return Error::Removed {
                        node: identity.node().to_owned(),
                    };
                }
                failures += 1;
                let left = identity
                    .validity()
                    .not_after
                    .duration_since(SystemTime::now());
                let pause = renewal::pause(failures, left.unwrap_or(Duration::ZERO));
                tracing::warn!(
                    error = error.report(),
                    seconds = pause.as_secs(),
                    "the certificate is not renewed yet"
                );
                self.state
                    .change(|report| report.renewal_error = Some(error.report()));
                sleep(pause).await;
            }
            last = Some(Instant::now());
            let ValidityPeriod {
                not_before,
                not_after,
            } = self.membership.identity().validity();
            self.state.change(|report| {
                report.certificate_begins = not_before;
                report.certificate_ends = not_after;
                report.renewal_error = None;
            });
            tracing::info!("the certificate of this node in the swarm is renewed");
        }
    }

    /// Waits until a manager asks for a renewal, and some time after the last one.
    async fn asked(&self, last: Option<Instant>) {
        self.membership.renewal_is_asked_for().await;
        if let Some(last) = last {
            sleep_until(last + ASKED_PAUSE).await;
        }
    }

    async fn renew(&self) -> Result<(), Error> {
        let identity = self.membership.identity();
        if self.state.report.borrow().is_promoted {
            // It would be a certificate of a manager.
            return Err(Error::ManagerRole {
                node: identity.node().to_owned(),
            });
        }
        let manager = self.membership.choose_manager()?;
        let renewed = renewal::renew(&identity, &manager).await;
        self.membership.judge_manager(&manager, renewed.is_ok());
        self.membership.renewed(renewed?).await
    }
}

/// Waits until the clock shows a time, also when it is set.
async fn sleep_until_time(time: SystemTime) {
    while let Ok(left) = time.duration_since(SystemTime::now()) {
        sleep(left.min(CLOCK_PAUSE)).await;
        if left.is_zero() {
            return;
        }
    }
}

// === impl AgentState ===

impl AgentState {
    fn change(&self, change: impl FnOnce(&mut AgentReport)) {
        self.report.send_if_modified(|report| {
            let before = report.clone();
            change(report);
            // `since` is the time since a session is open or missing, whichever manager it is with.
            if before.manager.is_some() != report.manager.is_some() {
                report.since = SystemTime::now();
            }
            before != *report
        });
    }

    /// Withdraws from the report at this time that another process has the same identity: a session that lasts shows that it
    /// is gone. Does not end. Cancel-safe.
    async fn forget_duplicate(&self, until: Option<Instant>) -> Infallible {
        if let Some(until) = until {
            sleep_until(until).await;
            self.change(|report| report.is_duplicate = false);
        }
        pending().await
    }

    /// Logs the first failure after a session as a warning; later ones appear in the report only.
    fn session_failed(&self, error: &Error) {
        let text = error.report();
        if self.report.borrow().session_error.is_none() {
            tracing::warn!(error = text, "the session with the swarm is over");
        } else {
            tracing::debug!(error = text, "no session with the swarm");
        }
        self.change(|report| {
            report.failures += 1;
            report.session_error = Some(text);
        });
    }
}

// === impl Observer ===

impl SessionObserver for Observer<'_> {
    fn opened(&self) {
        self.pace.lock().registered(Instant::now());
        self.membership.judge_manager(self.manager, true);
        tracing::info!(manager = self.manager, "a session with the swarm is open");
        self.state.change(|report| {
            report.manager = Some(self.manager.to_owned());
            report.sessions += 1;
            report.session_error = None;
        });
    }

    fn promoted(&self, is_promoted: bool) {
        let was_promoted = self.state.report.borrow().is_promoted;
        self.state.change(|report| report.is_promoted = is_promoted);
        if is_promoted && !was_promoted {
            for problem in self.state.report.borrow().problems() {
                tracing::error!("{problem}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;
    use crate::report::sample;

    #[tokio::test(start_paused = true)]
    async fn another_process_with_the_same_identity_is_forgotten_during_a_session() {
        let report = AgentReport {
            is_duplicate: true,
            ..sample()
        };
        let state = AgentState {
            report: watch::Sender::new(report),
        };
        let until = Instant::now() + Duration::from_secs(200);
        for (seconds, expected) in [(199, true), (2, false)] {
            let session = timeout(
                Duration::from_secs(seconds),
                state.forget_duplicate(Some(until)),
            );
            assert!(session.await.is_err(), "it does not end by itself");
            assert_eq!(state.report.borrow().is_duplicate, expected, "{seconds}");
        }
    }
}
