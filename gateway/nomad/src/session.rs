//! Sessions: what the daemon knows of the launchers that agents have started.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use switchyard_core::{Error, Result};
use switchyard_process::ProcessId;
use tonic::metadata::MetadataMap;

use crate::plugin_config::PluginConfig;

/// The key under which the metadata of a call name its session.
pub(crate) const SESSION_KEY: &str = "switchyard-session";

/// The key under which the metadata of a call name the process that made it, as the launcher's socket tells it.
pub(crate) const CALLER_KEY: &str = "switchyard-caller";

/// One launcher, for as long as it lives. Tasks outlive it.
#[derive(Debug, Clone)]
pub(crate) struct Session {
    /// Its name among the sessions of this daemon.
    pub(crate) id: String,
    /// The name of the driver in jobs.
    pub(crate) driver: String,
    /// What the agent's `plugin` block says.
    pub(crate) config: Arc<PluginConfig>,
    /// What the agent said of the node's processors.
    pub(crate) processors: Processors,
}

/// The processors of the node, as an agent counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Processors {
    /// How many cores there are; 0 if the agent did not say.
    pub(crate) cores: u32,
    /// Their speeds together, MHz.
    pub(crate) total_mhz: u64,
}

/// The sessions there are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions {
    open: Arc<Mutex<BTreeMap<String, Arc<Session>>>>,
}

/// Keeps a session open.
#[derive(Debug)]
pub(crate) struct SessionGuard {
    sessions: Sessions,
    id: String,
}

/// The process that made a call; `None` if the launcher could not tell.
pub(crate) fn caller(metadata: &MetadataMap) -> Option<ProcessId> {
    metadata.get(CALLER_KEY)?.to_str().ok()?.parse().ok()
}

// === impl Sessions ===

impl Sessions {
    /// Opens a session until what is given back is dropped.
    pub(crate) fn open(&self, session: Session) -> SessionGuard {
        let id = session.id.clone();
        self.lock().insert(id.clone(), Arc::new(session));
        SessionGuard { sessions: self.clone(), id }
    }

    /// The session that a call belongs to.
    ///
    /// # Errors
    /// `FailedPrecondition` if it names none that is open.
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

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Those that are open now.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Session>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Held ===

impl Drop for SessionGuard {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.id);
    }
}
