//! Which resources a kubelet that starts is registered with first: those of which its pods may have devices.
//!
//! A kubelet admits the pods that it knows within milliseconds of making its socket, and rejects those whose containers have ended and whose
//! resource is not registered by then. It takes registrations side by side, so that each one takes its time from all others: resources
//! that no pod waits for are registered when the others are through.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// How long the resources that no pod waits for may be held up, from when the kubelet was seen. Registrations take some milliseconds: a
/// kubelet in which one takes so long is busy with something else, or has a fault.
const PATIENCE: Duration = Duration::from_secs(2);

/// The resources that one kubelet is registered with before all others, as far as they are not yet. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Urgent {
    pending: Arc<watch::Sender<BTreeSet<String>>>,
    until: Instant,
}

// === impl Urgent ===

impl Urgent {
    /// These resources are to be registered with a kubelet that was seen just now.
    pub(crate) fn new(resources: BTreeSet<String>) -> Self {
        Self { pending: Arc::new(watch::Sender::new(resources)), until: Instant::now() + PATIENCE }
    }

    /// Returns when a resource may be registered: at once if it is one of these, otherwise when none of these is pending. Cancel-safe.
    pub(crate) async fn wait_turn(&self, resource: &str) {
        let mut pending = self.pending.subscribe();
        let may_go = |pending: &BTreeSet<String>| pending.is_empty() || pending.contains(resource);
        // The sender lives as long as we do.
        let _ = timeout_at(self.until, pending.wait_for(may_go)).await;
    }

    /// The kubelet follows a resource, or has refused it: it holds up no other any more. Idempotent.
    pub(crate) fn finish(&self, resource: &str) {
        self.pending.send_if_modified(|pending| pending.remove(resource));
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn urgent(resources: &[&str]) -> Urgent {
        Urgent::new(resources.iter().map(|resource| (*resource).to_owned()).collect())
    }

    #[tokio::test(start_paused = true)]
    async fn a_resource_waits_for_all_that_are_urgent_and_those_for_none() {
        let urgent = urgent(&["a", "b"]);
        let is_its_turn = |resource: &'static str| urgent.wait_turn(resource).now_or_never().is_some();
        assert!(is_its_turn("a") && is_its_turn("b") && !is_its_turn("c"));
        urgent.finish("a");
        urgent.finish("c");
        assert!(is_its_turn("b") && !is_its_turn("c"));
        urgent.finish("b");
        assert!(is_its_turn("a") && is_its_turn("c"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_registration_that_hangs_holds_the_others_up_once_and_not_for_long() {
        let urgent = urgent(&["a"]);
        let began = Instant::now();
        urgent.wait_turn("b").await;
        assert_eq!(began.elapsed(), PATIENCE);
        urgent.wait_turn("b").await;
        assert_eq!(began.elapsed(), PATIENCE);
    }

    #[test]
    fn nothing_waits_where_nothing_is_urgent() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let _entered = runtime.enter();
        assert!(urgent(&[]).wait_turn("a").now_or_never().is_some());
    }
}
