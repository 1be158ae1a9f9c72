//! Sessions: the launchers that are connected to the daemon.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::{Error, Result};
use switchyard_linux::process::ProcessId;
use tonic::metadata::MetadataMap;

use crate::plugin_config::PluginConfig;

/// The metadata key with the session of a call.
pub(crate) const SESSION_KEY: &str = "switchyard-session";

/// The metadata key with the process that made a call, as reported by the launcher's socket.
pub(crate) const CALLER_KEY: &str = "switchyard-caller";

/// A connected launcher. Tasks outlive sessions.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// Its id, unique among the sessions of this daemon.
    pub(crate) id: String,
    /// The name of the driver in jobs.
    pub(crate) driver: String,
    /// The configuration from the agent's `plugin` block.
    pub(crate) config: Arc<PluginConfig>,
    /// The node's processors, as reported by the agent.
    pub(crate) processors: Processors,
    /// The version of the launcher.
    pub(crate) version: String,
}

/// The processors of the node, as counted by an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Processors {
    /// The number of cores; 0 if the agent did not report it.
    pub(crate) cores: u32,
    /// The sum of their speeds, MHz.
    pub(crate) total_mhz: u64,
}

/// The open sessions.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions {
    open: Arc<Mutex<BTreeMap<String, Arc<Session>>>>,
}

/// Keeps a session open until it is dropped.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    sessions: Sessions,
    id: String,
}

/// The process that made a call; `None` if the launcher could not determine it.
pub(crate) fn caller(metadata: &MetadataMap) -> Option<ProcessId> {
    metadata.get(CALLER_KEY)?.to_str().ok()?.parse().ok()
}

// === impl Sessions ===

impl Sessions {
    /// Opens a session, until the returned guard is dropped.
    pub(crate) fn open(&self, session: Session) -> SessionGuard {
        let id = session.id.clone();
        self.lock().insert(id.clone(), Arc::new(session));
        SessionGuard {
            sessions: self.clone(),
            id,
        }
    }

    /// The session of a call.
    ///
    /// # Errors
    /// `FailedPrecondition` if the call names no open session.
    pub(crate) fn for_call(&self, metadata: &MetadataMap) -> Result<Arc<Session>> {
        let named = metadata.get(SESSION_KEY).and_then(|id| id.to_str().ok());
        let session = named.and_then(|id| self.lock().get(id).cloned());
        session.ok_or_else(|| {
            let named = named.unwrap_or("none");
            Error::failed_precondition(format!(
                "the call names no open session ({named}): the launcher opens one first"
            ))
        })
    }

    /// The number of open sessions.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// The open sessions.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Session>>> {
        self.open.lock()
    }
}

// === impl SessionGuard ===

impl Drop for SessionGuard {
    fn drop(&mut self) {
        let ended = self.sessions.lock().remove(&self.id);
        if let Some(session) = ended {
            tracing::info!(
                session = self.id,
                driver = session.driver,
                "the session of a launcher has ended"
            );
        }
    }
}
