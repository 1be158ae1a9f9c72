//! The containers that a predecessor call may concern.

use std::collections::HashSet;

use parking_lot::{Mutex, MutexGuard};

/// The ids of the containers for which a predecessor call may still be running.
#[derive(Debug, Default)]
pub(crate) struct PredecessorCallIds {
    ids: Mutex<HashSet<String>>,
}

impl PredecessorCallIds {
    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ids.lock()
    }

    pub(crate) fn insert(&self, id: String) {
        self.ids().insert(id);
    }

    pub(crate) fn remove(&self, id: &str) {
        self.ids().remove(id);
    }

    pub(crate) fn contains(&self, id: &str) -> bool {
        self.ids().contains(id)
    }

    pub(crate) fn clear(&self) {
        self.ids().clear();
    }

    pub(crate) fn current(&self) -> HashSet<String> {
        self.ids().clone()
    }
}
