//! How many sandboxes and tasks of one owner are started at a time.
//!
//! All owners share the processors of the node and one containerd. An owner that starts many containers at once would have the start of
//! another owner wait behind all of them, and beyond a few for each processor none of them is ready earlier for it. So each owner has
//! so many places, and what finds none waits in the order of asking.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::id::Owner;

/// After so long a start that is still under way gives its place to the next one: it waits for something else than a processor.
const PERMIT_MAX_HOLD: Duration = Duration::from_secs(5);

/// The places of all owners.
#[derive(Debug)]
pub(super) struct StartLimiter(BTreeMap<Owner, Arc<Semaphore>>);

impl StartLimiter {
    /// So many places for each owner, at least one.
    pub(super) fn new(places: usize) -> Self {
        let places = places.clamp(1, Semaphore::MAX_PERMITS);
        Self(Owner::ALL.into_iter().map(|owner| (owner, Arc::new(Semaphore::new(places)))).collect())
    }

    /// Does this work of an owner's once there is a place for it. Cancel-safe if the work is.
    pub(super) async fn run<T>(&self, owner: Owner, work: impl Future<Output = T>) -> T {
        let place = match self.0.get(&owner) {
            // Nobody closes it.
            Some(places) => places.acquire().await.ok(),
            None => None,
        };
        let mut work = pin!(work);
        match timeout(PERMIT_MAX_HOLD, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                drop(place);
                work.await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn an_owner_waits_for_its_own_starts_and_for_nobody_elses() {
        let starts = StartLimiter::new(2);
        let mut first: Vec<_> = (0..2).map(|_| Box::pin(starts.run(Owner::Nomad, pending::<()>()))).collect();
        for start in &mut first {
            assert!(poll!(start).is_pending());
        }
        let mut third = Box::pin(starts.run(Owner::Nomad, async { 3 }));
        assert!(poll!(&mut third).is_pending());
        assert_eq!(starts.run(Owner::Kubernetes, async { 4 }).await, 4);
        // Whoever gives up gives its place up.
        first.pop();
        assert_eq!(third.await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_hangs_keeps_its_place_for_a_while_only() {
        let starts = StartLimiter::new(1);
        let mut hung = Box::pin(starts.run(Owner::Nomad, pending::<()>()));
        assert!(poll!(&mut hung).is_pending());
        let next = starts.run(Owner::Nomad, async { 2 });
        tokio::select! {
            () = &mut hung => unreachable!("it hangs"),
            done = next => assert_eq!(done, 2),
        }
        assert!(poll!(&mut hung).is_pending(), "it goes on without its place");
    }
}
