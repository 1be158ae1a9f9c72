//! Sandboxes whose creation or restart failed, or that are stopped, and whose network is not released yet: their
//! rules for host ports are still in force.

use std::collections::BTreeSet;

use switchyard_core::id::SandboxId;
use tokio::sync::watch;

/// Sandboxes that still have a network although, for clients, they do not exist or are stopped.
#[derive(Debug, Default)]
pub(crate) struct Unreleased {
    ids: watch::Sender<BTreeSet<SandboxId>>,
}

// === impl Unreleased ===

impl Unreleased {
    /// The network of a sandbox could not be released, or is released behind the answer to a stop.
    pub(crate) fn add(&self, id: SandboxId) {
        self.ids.send_if_modified(|ids| ids.insert(id));
    }

    /// The network of a sandbox is released.
    pub(crate) fn remove(&self, id: SandboxId) {
        self.ids.send_if_modified(|ids| ids.remove(&id));
    }

    pub(crate) fn clear(&self) {
        self.ids.send_modify(BTreeSet::clear);
    }

    /// Waits until the network of a sandbox is released; returns at once if the sandbox is not among these.
    /// Cancel-safe.
    pub(crate) async fn released(&self, id: SandboxId) {
        // Fails only when the sender is dropped, which `self` holds.
        let _ = self
            .ids
            .subscribe()
            .wait_for(|ids| !ids.contains(&id))
            .await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn one_that_could_not_be_undone_is_waited_for_and_another_is_not() {
        let unreleased = Unreleased::default();
        let id = SandboxId::random();
        unreleased.add(id);
        unreleased.released(SandboxId::random()).await;
        let mut waiting = Box::pin(unreleased.released(id));
        assert!(waiting.as_mut().now_or_never().is_none());
        unreleased.remove(id);
        waiting.await;
    }
}
