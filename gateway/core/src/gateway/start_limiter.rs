//! Limits how many sandboxes and tasks of one owner are started at a time.
//!
//! All owners share the processors of the node and one containerd. Without a limit, the start of a container
//! would wait behind all starts of another owner that starts many at once; and beyond a few starts per
//! processor, more parallelism makes none of them ready earlier. So each owner has a fixed number of permits,
//! and further starts wait in the order of the requests.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use crate::id::Owner;
use crate::operation::plain_step;

/// A start that takes longer gives its permit to the next one: it waits for something other than a processor.
const PERMIT_MAX_HOLD: Duration = Duration::from_secs(5);

/// The permits of all owners.
#[derive(Debug)]
pub(super) struct StartLimiter(BTreeMap<Owner, Arc<Semaphore>>);

/// One start that may begin.
#[derive(Debug)]
pub(super) struct StartPermit<'a>(Option<SemaphorePermit<'a>>);

impl StartLimiter {
    /// This many permits for each owner, at least one.
    pub(super) fn new(permits: usize) -> Self {
        let permits = permits.clamp(1, Semaphore::MAX_PERMITS);
        Self(
            Owner::ALL
                .into_iter()
                .map(|owner| (owner, Arc::new(Semaphore::new(permits))))
                .collect(),
        )
    }

    /// Runs the work of an owner as soon as it has a permit. Cancel-safe if the work is.
    pub(super) async fn run<T>(&self, owner: Owner, work: impl Future<Output = T>) -> T {
        self.admit(owner).await.run(work).await
    }

    /// Waits for a permit of an owner. Cancel-safe.
    pub(super) async fn admit(&self, owner: Owner) -> StartPermit<'_> {
        StartPermit(match self.0.get(&owner) {
            // The semaphore is never closed.
            Some(permits) => plain_step("wait_for_start_permit", permits.acquire())
                .await
                .ok(),
            None => None,
        })
    }
}

impl StartPermit<'_> {
    /// Runs the work of a start, and holds the permit during the first part of it. Cancel-safe if the work
    /// is.
    pub(super) async fn run<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        match timeout(PERMIT_MAX_HOLD, &mut work).await {
            Ok(done) => done,
            Err(_) => {
                drop(self.0);
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
    async fn start_limit_is_per_owner() {
        let starts = StartLimiter::new(2);
        let mut first: Vec<_> = (0..2)
            .map(|_| Box::pin(starts.run(Owner::Nomad, pending::<()>())))
            .collect();
        for start in &mut first {
            assert!(poll!(start).is_pending());
        }
        let mut third = Box::pin(starts.run(Owner::Nomad, async { 3 }));
        assert!(poll!(&mut third).is_pending());
        assert_eq!(starts.run(Owner::Kubernetes, async { 4 }).await, 4);
        // A cancelled start returns its permit.
        first.pop();
        assert_eq!(third.await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn hung_start_releases_its_permit_at_its_limit() {
        let starts = StartLimiter::new(1);
        let mut hung = Box::pin(starts.run(Owner::Nomad, pending::<()>()));
        assert!(poll!(&mut hung).is_pending());
        let next = starts.run(Owner::Nomad, async { 2 });
        tokio::select! {
            () = &mut hung => unreachable!("the start hangs"),
            done = next => assert_eq!(done, 2),
        }
        assert!(
            poll!(&mut hung).is_pending(),
            "it continues without its permit"
        );
    }
}
