//! Are containerd and the logkeeper there, and what are they: watches that ask now and then, and readers that never wait.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1 as api;
use switchyard_core::backend::Condition;
use switchyard_core::{Error, ErrorKind, Result};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::client::{Client, call};

/// Between two looks while all is well.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Between two looks while containerd is away.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(50);
/// Between two looks while the logkeeper is away.
const LOGKEEPER_RECONNECT_INTERVAL: Duration = Duration::from_millis(250);

/// What is known of containerd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Contact {
    /// It answers.
    Up {
        /// Its version.
        version: String,
    },
    /// It does not.
    Down {
        /// Why, for people.
        reason: String,
    },
}

/// The latest contacts.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    contact: watch::Sender<Contact>,
    /// Why the logkeeper does not answer; `None` if it does, or has not been asked yet.
    logkeeper_error: watch::Sender<Option<String>>,
    /// How long each may take to answer.
    answer_timeout: Duration,
    /// Somebody has reason to doubt the latest contact.
    recheck: Arc<Notify>,
}

impl Health {
    /// Nothing is known yet.
    pub(crate) fn new(patience: Duration) -> Self {
        let reason = "containerd has not been asked yet".to_owned();
        Self {
            contact: watch::Sender::new(Contact::Down { reason }),
            logkeeper_error: watch::Sender::new(None),
            answer_timeout: patience,
            recheck: Arc::default(),
        }
    }

    /// What is known of containerd, now and later.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Contact> {
        self.contact.subscribe()
    }

    /// Whether the logkeeper answers, as far as is known.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn check_logkeeper(&self) -> Result<()> {
        match &*self.logkeeper_error.borrow() {
            None => Ok(()),
            Some(reason) => Err(Error::unavailable(format!("logkeeper: {reason}"))),
        }
    }

    /// Whether containerd answers, as far as is known.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(crate) fn check_containerd(&self) -> Result<()> {
        match &*self.contact.borrow() {
            Contact::Up { .. } => Ok(()),
            Contact::Down { reason } => Err(Error::unavailable(reason.clone())),
        }
    }

    pub(crate) fn current(&self) -> Contact {
        self.contact.borrow().clone()
    }

    /// As a condition of the backend.
    pub(crate) fn condition(&self) -> Condition {
        match self.current() {
            Contact::Up { .. } => match &*self.logkeeper_error.borrow() {
                None => Condition::True,
                // Nothing whose output is logged can be started.
                Some(reason) => Condition::False {
                    reason: "LogkeeperUnavailable".to_owned(),
                    message: format!("logkeeper: {reason}"),
                },
            },
            Contact::Down { reason } => {
                Condition::False { reason: "ContainerdUnavailable".to_owned(), message: reason }
            }
        }
    }

    /// Waits until containerd answers.
    pub(crate) async fn wait_up(&self, limit: Duration) -> Result<()> {
        let mut view = self.contact.subscribe();
        let up = view.wait_for(|contact| matches!(contact, Contact::Up { .. }));
        match tokio::time::timeout(limit, up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(match self.current() {
                Contact::Down { reason } => Error::unavailable(reason),
                Contact::Up { .. } => Error::unavailable("containerd went away again"),
            }),
        }
    }

    /// Returns once containerd can be asked again, after a call to it broke off. Cancel-safe.
    pub(crate) async fn wait_regained(&self) {
        self.recheck.notify_one();
        // The look that was asked for takes about as long; should containerd be back before it, nothing is lost.
        tokio::time::sleep(RECONNECT_INTERVAL).await;
        let mut view = self.contact.subscribe();
        // The sender is ours too, so there is no end but an answer.
        let _ = view.wait_for(|contact| matches!(contact, Contact::Up { .. })).await;
    }

    /// Asks containerd now, whatever is known of it.
    pub(crate) async fn query_now(&self, client: &Client) -> Contact {
        query_contact(&client.without_health_check(), self.answer_timeout).await
    }

    /// Asks containerd until `stop`.
    pub(crate) async fn watch(self, client: Client, stop: CancellationToken) {
        loop {
            let contact = query_contact(&client, self.answer_timeout).await;
            let up = matches!(contact, Contact::Up { .. });
            self.contact.send_if_modified(|known| {
                let changed = *known != contact;
                if changed {
                    log_contact(&contact);
                    *known = contact;
                }
                changed
            });
            let pause = if up { CHECK_INTERVAL } else { RECONNECT_INTERVAL };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.recheck.notified() => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

impl Health {
    /// Greets the logkeeper on this socket until `stop`.
    pub(crate) async fn watch_logkeeper(self, socket: PathBuf, stop: CancellationToken) {
        let client = switchyard_logkeeper::Client::with_limit(socket, self.answer_timeout);
        loop {
            let fault = client.hello().await.err().map(|fault| report(&fault));
            let pause = if fault.is_none() { CHECK_INTERVAL } else { LOGKEEPER_RECONNECT_INTERVAL };
            self.logkeeper_error.send_if_modified(|known| {
                let changed = *known != fault;
                match (&fault, known.is_some()) {
                    (Some(reason), false) => tracing::warn!(reason, "the logkeeper does not answer"),
                    (None, true) => tracing::info!("the logkeeper answers again"),
                    (Some(_), true) | (None, false) => {}
                }
                *known = fault;
                changed
            });
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

/// An error with its causes, as one line.
fn report(fault: &switchyard_logkeeper::Error) -> String {
    let mut text = fault.to_string();
    let mut next = std::error::Error::source(fault);
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

fn log_contact(contact: &Contact) {
    match contact {
        Contact::Up { version } => tracing::info!(version, "containerd answers"),
        Contact::Down { reason } => tracing::warn!(reason, "containerd does not answer"),
    }
}

/// Asks containerd for its version, and for one record: one that answers while its database hangs is as good as away.
async fn query_contact(client: &Client, patience: Duration) -> Contact {
    let asked = async {
        let version = call("say its version", patience, client.version().version(())).await?.version;
        let request = api::GetNamespaceRequest { name: client.namespace().to_owned() };
        match call("look into its database", patience, client.namespaces().get(request)).await {
            // It is made with the first object in it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            other => drop(other?),
        }
        Ok::<_, Error>(version)
    };
    match asked.await {
        Ok(version) => Contact::Up { version },
        // The text must not change from one look to the next, or each would be news.
        Err(error) => Contact::Down { reason: format!("{}: {}", client.address().display(), error.report()) },
    }
}
