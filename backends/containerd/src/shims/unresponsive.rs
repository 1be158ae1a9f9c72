//! The tasks whose shims do not answer.

use std::collections::BTreeSet;

use parking_lot::{Mutex, MutexGuard};

/// The tasks whose shims are known to be unresponsive: within `containerd.shim_timeout_seconds` they did not
/// answer, or did not report the end of a process.
#[derive(Debug, Default)]
pub(crate) struct UnresponsiveShims {
    tasks: Mutex<BTreeSet<String>>,
}

impl UnresponsiveShims {
    fn tasks(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.tasks.lock()
    }

    /// Records that a task's shim does not answer, and logs that once.
    pub(crate) fn note(&self, id: &str) {
        if self.tasks().insert(id.to_owned()) {
            tracing::warn!(
                task = id,
                "a shim does not answer: its containers run on, and it is not killed while one of them runs"
            );
        }
    }

    /// Records that a task's shim answers, or that nobody calls it any more.
    pub(crate) fn clear(&self, id: &str) {
        if self.tasks().remove(id) {
            tracing::info!(
                task = id,
                "a shim that did not answer answers again, or has exited"
            );
        }
    }

    /// The ids of the tasks.
    pub(crate) fn list(&self) -> Vec<String> {
        self.tasks().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unresponsive_shim_is_listed_until_it_answers() {
        let shims = UnresponsiveShims::default();
        assert!(shims.list().is_empty());
        shims.note("b");
        shims.note("a");
        shims.note("b");
        assert_eq!(shims.list(), ["a", "b"]);
        shims.clear("b");
        shims.clear("c");
        assert_eq!(shims.list(), ["a"]);
    }
}
