//! Which sandboxes could not be made, or not be made ready again, and are still connected: they have rules for ports of the host.

use std::collections::BTreeSet;

use switchyard_core::id::SandboxId;
use tokio::sync::watch;

/// Sandboxes of which nobody knows but this backend, or that are stopped as far as others know, and that still have a network.
#[derive(Debug, Default)]
pub(crate) struct Unreleased {
    ids: watch::Sender<BTreeSet<SandboxId>>,
}

// === impl Unreleased ===

impl Unreleased {
    /// What a sandbox has of the network could not be taken away.
    pub(crate) fn add(&self, id: SandboxId) {
        self.ids.send_if_modified(|ids| ids.insert(id));
    }

    /// What a sandbox had of the network is gone.
    pub(crate) fn remove(&self, id: SandboxId) {
        self.ids.send_if_modified(|ids| ids.remove(&id));
    }

    pub(crate) fn clear(&self) {
        self.ids.send_modify(BTreeSet::clear);
    }

    /// Waits until a sandbox is not among these. Cancel-safe.
    pub(crate) async fn released(&self, id: SandboxId) {
        // The sender lives as long as this.
        let _ = self.ids.subscribe().wait_for(|ids| !ids.contains(&id)).await;
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
