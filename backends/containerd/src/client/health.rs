//! Health checks of containerd and the logkeeper: background tasks that query them periodically, and readers
//! that never wait.

use std::future::Future;
use std::mem;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use containerd_client::services::v1 as api;
use switchyard_core::backend::Condition;
use switchyard_core::logged_texts::LoggedTexts;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::report;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status};

use crate::base::error::{from_status, timed_out};
use crate::client::Client;
use crate::client::contact::Contact;

/// The interval between two checks while the service answers.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// The interval between two checks while containerd does not answer.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// The interval between two checks while the logkeeper does not answer.
const LOGKEEPER_RECONNECT_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum silence of a logkeeper. One that is silent for less is busy, as on a node under load: its callers
/// keep waiting.
pub(crate) const LOGKEEPER_SILENCE: Duration = Duration::from_secs(30);
/// Time for which a logkeeper that is gone is expected back, as one that is restarted: its callers wait.
const LOGKEEPER_RETURN: Duration = Duration::from_secs(2);

/// Into how many parts the time for an answer is divided. A pause of this daemon or of the node costs one of them: what
/// was answered meanwhile is read in the next.
const LOOKS: u32 = 5;

/// The most reasons of one outage that are logged.
const REASONS_MAX: usize = 16;

/// The result of a check of containerd.
#[derive(Debug)]
struct Check {
    contact: Contact,
    /// True if it is down because it has not answered in time.
    is_late: bool,
}

/// Contact with the logkeeper.
#[derive(Debug, Clone, PartialEq, Eq)]
enum LogkeeperContact {
    /// It answers, or was not checked yet.
    Up,
    /// It is late for its checks.
    Busy,
    /// It is gone, for less than [`LOGKEEPER_RETURN`], and has answered within [`LOGKEEPER_SILENCE`].
    Returning,
    /// It is gone for longer, or has not answered for [`LOGKEEPER_SILENCE`].
    Down { reason: String },
}

/// The times that a check of the logkeeper is judged by.
#[derive(Debug, Clone, Copy)]
struct ContactTimes {
    /// Since its latest answer.
    silence: Duration,
    /// Since the first of the latest checks at which it was not there.
    gone: Duration,
}

/// The latest results of the health checks. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    contact: watch::Sender<Contact>,
    logkeeper: watch::Sender<LogkeeperContact>,
    /// Limit for each service to answer.
    answer_timeout: Duration,
    /// Notified to check containerd at once, when a failed call puts the latest result in doubt.
    recheck: Arc<Notify>,
    /// Number of times that contact with containerd was lost.
    losses: Arc<AtomicU64>,
}

impl Health {
    /// Without results yet: containerd counts as down.
    pub(crate) fn new(answer_timeout: Duration) -> Self {
        let reason = "containerd has not been checked yet".to_owned();
        Self {
            contact: watch::Sender::new(Contact::Down { reason }),
            logkeeper: watch::Sender::new(LogkeeperContact::Up),
            answer_timeout,
            recheck: Arc::default(),
            losses: Arc::default(),
        }
    }

    /// The latest result for containerd, and later ones.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    /// Checks that the logkeeper is reachable, by its latest check; it may be busy, or about to return.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn check_logkeeper(&self) -> Result<()> {
        self.logkeeper.borrow().error().map_or(Ok(()), Err)
    }

    /// Waits until the logkeeper is neither busy nor about to return, which it is for [`LOGKEEPER_SILENCE`] at most.
    /// Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` with the reason if it is down.
    pub(crate) async fn wait_logkeeper(&self) -> Result<()> {
        let mut view = self.logkeeper.subscribe();
        // Fails only when the sender is dropped, which `self` holds.
        let _ = view.wait_for(|contact| !contact.is_passing()).await;
        self.check_logkeeper()
    }

    /// Checks that containerd answers, by its latest check.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn check_containerd(&self) -> Result<()> {
        match &*self.contact.borrow() {
            Contact::Up { .. } => Ok(()),
            Contact::Down { reason } => Err(Error::unavailable(reason.clone())),
        }
    }

    /// Returns how often contact with containerd was lost, also if it was there again at the next check.
    pub(crate) fn losses(&self) -> u64 {
        self.losses.load(Ordering::Relaxed)
    }

    pub(crate) fn current(&self) -> Contact {
        self.contact.borrow().clone()
    }

    /// The results as a condition of the backend.
    pub(crate) fn condition(&self) -> Condition {
        match self.current() {
            Contact::Up { .. } => match &*self.logkeeper.borrow() {
                LogkeeperContact::Up | LogkeeperContact::Busy | LogkeeperContact::Returning => {
                    Condition::True
                }
                // Without the logkeeper no task with a log can be started.
                LogkeeperContact::Down { reason } => Condition::False {
                    reason: "LogkeeperUnavailable".to_owned(),
                    message: format!("logkeeper: {reason}"),
                },
            },
            Contact::Down { reason } => Condition::False {
                reason: "ContainerdUnavailable".to_owned(),
                message: reason,
            },
        }
    }

    /// Waits until containerd answers, for at most `limit`.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) async fn wait_up(&self, limit: Duration) -> Result<()> {
        let mut view = self.contact.subscribe();
        let up = view.wait_for(|contact| matches!(contact, Contact::Up { .. }));
        match tokio::time::timeout(limit, up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(match self.current() {
                Contact::Down { reason } => Error::unavailable(reason),
                Contact::Up { .. } => Error::unavailable("containerd stopped answering again"),
            }),
        }
    }

    /// Waits until containerd answers, after a call to it failed for want of an answer. Cancel-safe.
    pub(crate) async fn wait_regained(&self) {
        self.recheck.notify_one();
        // Gives the requested check time to replace an outdated result.
        tokio::time::sleep(RECONNECT_INTERVAL).await;
        let mut view = self.contact.subscribe();
        // Fails only when the sender is dropped, which `self` holds.
        let _ = view
            .wait_for(|contact| matches!(contact, Contact::Up { .. }))
            .await;
    }

    /// Checks containerd now, whatever the latest result is; the result is not stored.
    pub(crate) async fn query_now(&self, client: &Client) -> Contact {
        check_containerd(&client.without_health_check(), self.answer_timeout)
            .await
            .contact
    }

    /// Checks containerd periodically until `stop`. A containerd that is late for the check, and answers other calls
    /// from its database meanwhile, is busy and not down: the latest result stays.
    pub(crate) async fn watch(self, client: Client, stop: CancellationToken) {
        let mut was_busy = false;
        let mut logged = LoggedTexts::at_most(REASONS_MAX);
        let mut connections = 0;
        loop {
            let answers = client.answers();
            let Check { contact, is_late } = check_containerd(&client, self.answer_timeout).await;
            let is_busy = is_late && client.answers() != answers;
            if !is_busy {
                let before = mem::replace(&mut connections, client.connections());
                self.note(contact, connections != before, &mut logged);
            } else if !was_busy {
                tracing::warn!(limit = ?self.answer_timeout, "containerd answers other calls, but not its health check in time: it is busy");
            }
            was_busy = is_busy;
            let is_up = matches!(*self.contact.borrow(), Contact::Up { .. });
            let pause = if is_up {
                CHECK_INTERVAL
            } else {
                RECONNECT_INTERVAL
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.recheck.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Publishes a result, and logs a change. Of an outage each reason is logged once: containerd is checked many times a
    /// second meanwhile, and may fail in several ways in turn. `is_reconnected` says that the connection is another one
    /// than at the check before: between two that succeed it was lost, as by a quick restart.
    fn note(&self, contact: Contact, is_reconnected: bool, logged: &mut LoggedTexts) {
        let was_up = matches!(*self.contact.borrow(), Contact::Up { .. });
        let is_up = matches!(contact, Contact::Up { .. });
        if was_up && (!is_up || is_reconnected) {
            self.losses.fetch_add(1, Ordering::Relaxed);
        }
        if was_up && is_up && is_reconnected {
            tracing::info!("the connection to containerd was lost, and made again");
        }
        let has_changed = *self.contact.borrow() != contact;
        if !has_changed {
            return;
        }
        match &contact {
            Contact::Up { version } => {
                logged.clear();
                tracing::info!(version, "containerd answers");
            }
            Contact::Down { reason } if logged.is_new(reason) => {
                tracing::warn!(reason, "containerd does not answer");
            }
            Contact::Down { reason } => {
                tracing::debug!(reason, "containerd still does not answer");
            }
        }
        self.contact.send_replace(contact);
    }
}

impl Health {
    /// Checks the logkeeper at this socket periodically until `stop`.
    pub(crate) async fn watch_logkeeper(self, socket: PathBuf, stop: CancellationToken) {
        let client = switchyard_logkeeper::Client::with_limit(socket, self.answer_timeout);
        let mut answered = Instant::now();
        let mut gone = None;
        loop {
            let answer = client.hello().await;
            let now = Instant::now();
            if answer.is_ok() {
                answered = now;
            }
            if matches!(answer, Err(switchyard_logkeeper::Error::Unavailable { .. })) {
                gone.get_or_insert(now);
            } else {
                gone = None;
            }
            let times = ContactTimes {
                silence: now - answered,
                gone: gone.map_or(Duration::ZERO, |since| now - since),
            };
            let contact = LogkeeperContact::of(answer.err().as_ref(), times);
            let pause = if contact == LogkeeperContact::Up {
                CHECK_INTERVAL
            } else {
                LOGKEEPER_RECONNECT_INTERVAL
            };
            self.logkeeper.send_if_modified(|known| {
                let changed = *known != contact;
                contact.log_after(known);
                *known = contact;
                changed
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

// === impl LogkeeperContact ===

impl LogkeeperContact {
    /// Evaluates a check that ended so. Pure.
    fn of(fault: Option<&switchyard_logkeeper::Error>, times: ContactTimes) -> Self {
        let ContactTimes { silence, gone } = times;
        match fault {
            None => Self::Up,
            Some(switchyard_logkeeper::Error::Deadline { .. }) if silence < LOGKEEPER_SILENCE => {
                Self::Busy
            }
            // One that fails and returns again and again does not answer either.
            Some(switchyard_logkeeper::Error::Unavailable { .. })
                if gone < LOGKEEPER_RETURN && silence < LOGKEEPER_SILENCE =>
            {
                Self::Returning
            }
            Some(fault) => Self::Down {
                reason: report(fault),
            },
        }
    }

    /// Returns whether this does not last: those who need the logkeeper wait.
    const fn is_passing(&self) -> bool {
        matches!(self, Self::Busy | Self::Returning)
    }

    fn error(&self) -> Option<Error> {
        match self {
            Self::Up | Self::Busy | Self::Returning => None,
            Self::Down { reason } => Some(Error::unavailable(format!("logkeeper: {reason}"))),
        }
    }

    /// Logs a change from what was known.
    fn log_after(&self, known: &Self) {
        match (self, known) {
            (Self::Up, Self::Busy | Self::Returning | Self::Down { .. }) => {
                tracing::info!("the logkeeper answers again")
            }
            (Self::Busy, Self::Up) => {
                tracing::warn!("the logkeeper is late for its check: starts wait for it");
            }
            (Self::Returning, Self::Up | Self::Busy) => {
                tracing::warn!("the logkeeper is gone: starts wait for its return");
            }
            (Self::Down { reason }, Self::Up | Self::Busy | Self::Returning) => {
                tracing::warn!(reason, "the logkeeper does not answer");
            }
            (Self::Up, Self::Up)
            | (Self::Busy | Self::Returning, _)
            | (Self::Down { .. }, Self::Down { .. }) => {}
        }
    }
}

/// Queries containerd's version, and one record: a containerd whose database hangs counts as down.
async fn check_containerd(client: &Client, limit: Duration) -> Check {
    let asked = async {
        let version = ask("get its version", limit, client.version().version(()))
            .await?
            .version;
        let request = api::GetNamespaceRequest {
            name: client.namespace().to_owned(),
        };
        match ask("read its database", limit, client.namespaces().get(request)).await {
            // The namespace is created with the first object in it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => drop(other?),
        }
        Ok::<_, Error>(version)
    };
    match asked.await {
        Ok(version) => Check {
            contact: Contact::Up { version },
            is_late: false,
        },
        Err(error) => {
            // The same for each check that fails for the same reason: each reason is logged once.
            let reason = format!("{}: {}", client.address().display(), error.report());
            let is_late = error.kind() == ErrorKind::DeadlineExceeded;
            Check {
                contact: Contact::Down { reason },
                is_late,
            }
        }
    }
}

/// As [`call`](crate::client::call), but the time is counted in [`LOOKS`].
async fn ask<T>(
    what: &str,
    limit: Duration,
    asked: impl Future<Output = std::result::Result<Response<T>, Status>>,
) -> Result<T> {
    let mut asked = pin!(asked);
    for _ in 0..LOOKS {
        if let Ok(answer) = tokio::time::timeout(limit / LOOKS, &mut asked).await {
            return answer
                .map(Response::into_inner)
                .map_err(|status| from_status(what, status));
        }
    }
    Err(timed_out(what, limit))
}

#[cfg(test)]
mod tests;
