//! The containers for which this daemon has a create in progress.

use std::collections::HashSet;

use parking_lot::{Mutex, MutexGuard};

/// The containers whose tasks are being created: a shim that containerd does not know yet may belong to one
/// of them.
#[derive(Debug, Default)]
pub(crate) struct CreatesInFlight {
    ids: Mutex<HashSet<String>>,
}

/// Marks, until it is dropped, that the task of a container is being created.
#[derive(Debug)]
pub(crate) struct CreateGuard<'m> {
    creates: &'m CreatesInFlight,
    id: String,
}

impl CreatesInFlight {
    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ids.lock()
    }

    pub(crate) fn begin(&self, id: &str) -> CreateGuard<'_> {
        self.ids().insert(id.to_owned());
        CreateGuard {
            creates: self,
            id: id.to_owned(),
        }
    }

    pub(crate) fn current(&self) -> HashSet<String> {
        self.ids().clone()
    }
}

impl Drop for CreateGuard<'_> {
    fn drop(&mut self) {
        self.creates.ids().remove(&self.id);
    }
}
