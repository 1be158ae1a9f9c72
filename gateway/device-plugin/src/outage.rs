//! Keeps the log short while no kubelet runs: each resource notices it, and one of them logs it.

use parking_lot::{Mutex, MutexGuard};

/// The messages logged since the kubelet last followed a resource.
#[derive(Debug, Default)]
pub(crate) struct Outage(Mutex<Logged>);

#[derive(Debug, Default)]
struct Logged {
    /// The end of a connection.
    end: bool,
    /// The last failure of a registration; empty if none.
    failure: String,
}

// === impl Outage ===

impl Outage {
    /// Returns whether the end of a connection is the first one of this outage.
    pub(crate) fn is_first_end(&self) -> bool {
        !std::mem::replace(&mut self.lock().end, true)
    }

    /// Returns whether a failure differs from the last one of this outage.
    pub(crate) fn is_new_failure(&self, report: &str) -> bool {
        let mut logged = self.lock();
        let is_new = logged.failure != report;
        if is_new {
            report.clone_into(&mut logged.failure);
        }
        is_new
    }

    /// The kubelet follows a resource.
    pub(crate) fn end(&self) {
        *self.lock() = Logged::default();
    }

    fn lock(&self) -> MutexGuard<'_, Logged> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_logged_once_until_a_resource_is_registered() {
        let outage = Outage::default();
        for _ in 0..2 {
            assert!(outage.is_first_end() && outage.is_new_failure("refused"));
            assert!(!outage.is_first_end() && !outage.is_new_failure("refused"));
            assert!(outage.is_new_failure("no answer"), "another cause is news");
            outage.end();
        }
    }
}
