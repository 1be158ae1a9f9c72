//! Is containerd there, and what is it: a watch that asks now and then, and readers that never wait.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use switchyard_core::backend::Condition;
use switchyard_core::{Error, Result};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, call};

/// Between two looks while all is well.
const PERIOD: Duration = Duration::from_secs(2);
/// Between two looks while containerd is away.
const SEARCH: Duration = Duration::from_millis(50);
/// How long containerd may take to say its version.
const PATIENCE: Duration = Duration::from_secs(3);
/// How long an OCI runtime may take to say what it can do.
const PROBE: Duration = Duration::from_secs(5);

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

/// The latest contact.
#[derive(Debug, Clone)]
pub(crate) struct Health {
    contact: watch::Sender<Contact>,
}

impl Health {
    /// Nothing is known yet.
    pub(crate) fn new() -> Self {
        let reason = "containerd has not been asked yet".to_owned();
        Self { contact: watch::Sender::new(Contact::Down { reason }) }
    }

    pub(crate) fn now(&self) -> Contact {
        self.contact.borrow().clone()
    }

    /// As a condition of the backend.
    pub(crate) fn condition(&self) -> Condition {
        match self.now() {
            Contact::Up { .. } => Condition::True,
            Contact::Down { reason } => {
                Condition::False { reason: "ContainerdUnavailable".to_owned(), message: reason }
            }
        }
    }

    /// Waits until containerd answers.
    pub(crate) async fn up(&self, limit: Duration) -> Result<()> {
        let mut view = self.contact.subscribe();
        let up = view.wait_for(|contact| matches!(contact, Contact::Up { .. }));
        match tokio::time::timeout(limit, up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(match self.now() {
                Contact::Down { reason } => Error::unavailable(reason),
                Contact::Up { .. } => Error::unavailable("containerd went away again"),
            }),
        }
    }

    /// Asks containerd until `stop`.
    pub(crate) async fn watch(self, client: Client, stop: CancellationToken) {
        loop {
            let contact = look(&client).await;
            let up = matches!(contact, Contact::Up { .. });
            self.contact.send_if_modified(|known| {
                let changed = *known != contact;
                if changed {
                    tell(&contact);
                    *known = contact;
                }
                changed
            });
            let pause = if up { PERIOD } else { SEARCH };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }
}

fn tell(contact: &Contact) {
    match contact {
        Contact::Up { version } => tracing::info!(version, "containerd answers"),
        Contact::Down { reason } => tracing::warn!(reason, "containerd does not answer"),
    }
}

async fn look(client: &Client) -> Contact {
    match call("say its version", PATIENCE, client.version().version(())).await {
        Ok(answer) => Contact::Up { version: answer.version },
        // The text must not change from one look to the next, or each would be news.
        Err(error) => Contact::Down { reason: format!("{}: {}", client.address().display(), error.report()) },
    }
}

/// What the OCI runtimes can do, asked once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Probes {
    recursive_readonly: Arc<Mutex<BTreeMap<String, bool>>>,
}

impl Probes {
    /// Whether the runtime of this name makes mounts read-only all the way down.
    pub(crate) fn recursive_readonly(&self, binary: &str) -> bool {
        let known = self.recursive_readonly.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(binary).copied().unwrap_or(false)
    }

    /// Asks these runtimes. One that cannot say what it can do is taken to be able to do nothing special.
    pub(crate) async fn ask(&self, binaries: impl IntoIterator<Item = String>) {
        for binary in binaries {
            let can = match features(&binary).await {
                Ok(features) => features["mountOptions"]
                    .as_array()
                    .is_some_and(|options| options.iter().any(|option| option == "rro")),
                Err(error) => {
                    tracing::debug!(
                        binary,
                        error = error.report(),
                        "an OCI runtime does not say what it can do"
                    );
                    false
                }
            };
            self.recursive_readonly.lock().unwrap_or_else(PoisonError::into_inner).insert(binary, can);
        }
    }
}

async fn features(binary: &str) -> Result<serde_json::Value> {
    let failed = |what: &str| Error::unimplemented(format!("{binary} features: {what}"));
    let mut command = tokio::process::Command::new(binary);
    command.arg("features").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(PROBE, command.output())
        .await
        .map_err(|_| failed("no answer in time"))?
        .map_err(|fault| failed("cannot be run").with_source(fault))?;
    serde_json::from_slice(&output.stdout).map_err(|fault| failed("no answer").with_source(fault))
}
