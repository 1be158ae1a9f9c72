//! The sandboxes that this daemon knows.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::id::SandboxId;
use switchyard_core::{Error, Result};

use super::{SandboxChange, SandboxEntry};

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

    /// The sandboxes that are stopped, and whose network is still to be released.
    pub(crate) fn ending(&self) -> Vec<SandboxId> {
        let entries = self.lock();
        let ending = entries
            .iter()
            .filter(|(_, entry)| entry.lifecycle.is_ending());
        ending.map(|(id, _)| *id).collect()
    }

    /// Changes a sandbox as it is now: it may have changed since whoever calls this has read it. Does nothing for one that the
    /// table does not have.
    pub(crate) fn change(&self, id: SandboxId, change: SandboxChange) {
        let mut entries = self.lock();
        let changed = entries.get(&id).map(|now| now.changed(change));
        if let Some(changed) = changed {
            entries.insert(id, Arc::new(changed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::base::layout::Layout;
    use crate::sandbox::SandboxLifecycle as State;

    #[test]
    fn change_is_one_of_the_sandbox_as_it_is_now() {
        use SandboxChange::{InfraEnded, InfraStarted, Released, RemovalRecorded};
        let record = include_str!("../record/golden/sandbox.json");
        for (meanwhile, change, expected) in [
            // A stop that is answered, whose network is released before its removal is on record.
            (Released, RemovalRecorded, State::Dismantled),
            // A stop that is repeated after the release of the first.
            (Released, InfraEnded, State::Stopped),
            (RemovalRecorded, Released, State::Dismantled),
            (RemovalRecorded, InfraEnded, State::Dismantling),
            (
                InfraStarted(7),
                RemovalRecorded,
                State::Removing { infra: Some(7) },
            ),
        ] {
            let table = SandboxTable::default();
            let id = SandboxId::random();
            let dirs = Layout::new(Path::new("/state"), Path::new("/run")).sandbox(id);
            let record = serde_json::from_str(record).expect("it is a record");
            let entry = SandboxEntry::new(record, dirs);
            table.lock().insert(id, Arc::new(entry));
            let read = table.get(id).expect("it is there");
            table.change(id, meanwhile);
            table.change(id, change);
            let now = table.get(id).expect("it is there");
            assert_eq!(now.lifecycle, expected, "{meanwhile:?} {change:?}");
            assert_eq!(read.lifecycle, State::NEW, "it is what was read");
            table.lock().remove(&id);
            table.change(id, change);
            table.get(id).expect_err("a change does not bring it back");
        }
    }
}
