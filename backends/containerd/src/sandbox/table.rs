//! The sandboxes that this daemon knows.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};

use super::SandboxEntry;

/// The sandboxes that this daemon knows, by id.
#[derive(Debug, Default)]
pub(crate) struct SandboxTable {
    entries: Mutex<HashMap<SandboxId, Arc<SandboxEntry>>>,
}

impl SandboxTable {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, Arc<SandboxEntry>>> {
        self.entries.lock()
    }

    /// # Errors
    /// `NotFound` if the table has no such sandbox.
    pub(crate) fn get(&self, id: SandboxId) -> Result<Arc<SandboxEntry>> {
        let found = self.lock().get(&id).cloned();
        found.ok_or_else(|| Error::not_found(format!("sandbox {id} does not exist")))
    }
}
