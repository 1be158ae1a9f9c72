//! The order in which resources are registered with a kubelet that has just started.
//!
//! A kubelet admits the pods that it knows within milliseconds after it has created its socket, and rejects a pod
//! if a resource of one of its containers is not registered by then. It skips containers that run, but not init
//! containers that have ended (kubernetes#118559, #124345; some releases of 1.25 to 1.27 skip none). After a
//! restart of a container it has two records of it, and kubelets before kubernetes#135485 look at either of them.
//! It serves registrations concurrently, so that each registration delays all others. Resources are therefore
//! registered in four groups: those with a device that waits for a task, those with a device of a task that has
//! ended, those whose devices all have running tasks only, and those that no task has. A group begins when the
//! group before it is registered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::gateway::ResourceUse;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

/// The longest time for which more urgent registrations delay the others, counted from when the kubelet was
/// seen. A registration takes some milliseconds: a kubelet that needs longer than this for one is busy with
/// something else, or is faulty.
const PATIENCE: Duration = Duration::from_secs(2);

/// The resources in use that one kubelet has not been registered with yet. Clones share their state.
#[derive(Debug, Clone)]
pub(crate) struct Urgent {
    pending: Arc<watch::Sender<BTreeMap<String, ResourceUse>>>,
    until: Instant,
}

// === impl Urgent ===

impl Urgent {
    /// These resources are in use while a kubelet has just created its socket.
    pub(crate) fn new(in_use: BTreeMap<String, ResourceUse>) -> Self {
        Self {
            pending: Arc::new(watch::Sender::new(in_use)),
            until: Instant::now() + PATIENCE,
        }
    }

    /// Returns when a resource may be registered: when no resource of a more urgent group is pending.
    /// Cancel-safe.
    pub(crate) async fn wait_turn(&self, resource: &str) {
        let mut pending = self.pending.subscribe();
        let may_go = |pending: &BTreeMap<String, ResourceUse>| {
            let most_urgent = pending.values().min();
            most_urgent.is_none() || pending.get(resource) == most_urgent
        };
        // The sender lives as long as `self`.
        let _ = timeout_at(self.until, pending.wait_for(may_go)).await;
    }

    /// The kubelet follows a resource, or has refused it: the resource delays no other any more. Idempotent.
    pub(crate) fn finish(&self, resource: &str) {
        self.pending
            .send_if_modified(|pending| pending.remove(resource).is_some());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn urgent(in_use: &[(&str, ResourceUse)]) -> Urgent {
        Urgent::new(
            in_use
                .iter()
                .map(|(resource, how)| ((*resource).to_owned(), *how))
                .collect(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_resource_waits_for_all_that_are_more_urgent() {
        let urgent = urgent(&[
            ("a", ResourceUse::Waiting),
            ("b", ResourceUse::Waiting),
            ("c", ResourceUse::Ended),
            ("d", ResourceUse::Running),
        ]);
        let may_go = |of: &[&str]| {
            let now = ["a", "b", "c", "d", "e"]
                .map(|resource| urgent.wait_turn(resource).now_or_never().is_some());
            now == ["a", "b", "c", "d", "e"].map(|resource| of.contains(&resource))
        };
        assert!(may_go(&["a", "b"]));
        urgent.finish("a");
        urgent.finish("e");
        assert!(may_go(&["b"]));
        urgent.finish("b");
        assert!(may_go(&["c"]));
        urgent.finish("c");
        assert!(may_go(&["d"]));
        urgent.finish("d");
        assert!(may_go(&["a", "b", "c", "d", "e"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_registration_that_hangs_holds_the_others_up_once_and_not_for_long() {
        let urgent = urgent(&[("a", ResourceUse::Waiting)]);
        let began = Instant::now();
        urgent.wait_turn("b").await;
        assert_eq!(began.elapsed(), PATIENCE);
        urgent.wait_turn("b").await;
        assert_eq!(began.elapsed(), PATIENCE);
    }

    #[test]
    fn nothing_waits_where_nothing_is_urgent() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        assert!(urgent(&[]).wait_turn("a").now_or_never().is_some());
    }
}
