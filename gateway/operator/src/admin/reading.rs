//! One reading of the running containers for all who ask within seconds.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use switchyard_core::id::Owner;
use switchyard_core::{Error, Result};
use tokio::time::{Instant, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::container_metrics::ContainerReading;
use crate::node::Node;

/// For how long a reading is served, from its beginning; and how long it may take, so that there is never a
/// second one at the same time.
const READING_AGE: Duration = Duration::from_secs(5);

/// The latest reading of the node, which clones share.
#[derive(Clone, Default)]
pub(super) struct LatestReading {
    latest: Arc<Mutex<Option<Reading>>>,
    /// The owners whose containers the latest scrape could not have; `None` for all.
    unread: Arc<Mutex<BTreeSet<Option<Owner>>>>,
}

/// A reading that may be under way.
struct Reading {
    begun: Instant,
    result: Shared<BoxFuture<'static, Result<Arc<ContainerReading>>>>,
    /// Continues it if nobody waits for it.
    going_on: Option<AbortOnDropHandle<()>>,
}

// === impl LatestReading ===

impl LatestReading {
    /// A reading that began within [`READING_AGE`]. It can be dropped at any time; others wait
    /// for the same reading. One in which an owner is missing is not kept for later scrapes.
    ///
    /// # Errors
    /// Those of [`Node::read_containers`]. A failure is not kept either.
    pub(super) async fn get(&self, node: &Node) -> Result<Arc<ContainerReading>> {
        let reading = self.current(node);
        reading.await
    }

    /// Notes whether a scrape got the containers of an owner, or of all. Returns whether a failure is to be logged: once as long
    /// as it lasts, however often they are scraped.
    pub(super) fn note(&self, owner: Option<Owner>, is_read: bool) -> bool {
        let mut unread = self.unread.lock();
        if is_read {
            unread.remove(&owner);
            return false;
        }
        unread.insert(owner)
    }

    /// Passes such a reading to `keep` if it succeeds: within `limit`, or later, after this has returned.
    pub(super) async fn pass_to(
        &self,
        node: &Node,
        limit: Duration,
        keep: impl Fn(&ContainerReading) + Send + 'static,
    ) {
        let reading = self.current(node);
        let pass = |result: Result<Arc<ContainerReading>>| match result {
            Ok(reading) => keep(&reading),
            Err(error) => tracing::debug!(error = error.report(), "what tasks use cannot be read"),
        };
        if let Ok(result) = timeout(limit, reading.clone()).await {
            pass(result);
            return;
        }
        let going_on = async move {
            if let Ok(reading) = reading.await {
                keep(&reading);
            }
        };
        if let Some(latest) = &mut *self.latest.lock() {
            latest.going_on = Some(AbortOnDropHandle::new(tokio::spawn(going_on)));
        }
    }

    fn current(&self, node: &Node) -> Shared<BoxFuture<'static, Result<Arc<ContainerReading>>>> {
        let mut latest = self.latest.lock();
        if let Some(reading) = &*latest
            && reading.begun.elapsed() < READING_AGE
            && !reading.has_failures()
        {
            return reading.result.clone();
        }
        let read = node.read_containers(READING_AGE);
        // Others share the reading and its deadline: it continues when the caller disconnects.
        let reading = AbortOnDropHandle::new(tokio::spawn(async { read.await.map(Arc::new) }));
        let result = async {
            reading.await.unwrap_or_else(|fault| {
                Err(Error::internal("the reading of the containers panicked").with_source(fault))
            })
        };
        let result = result.boxed().shared();
        *latest = Some(Reading {
            begun: Instant::now(),
            result: result.clone(),
            going_on: None,
        });
        result
    }
}

// === impl Reading ===

impl Reading {
    /// Returns whether it has ended and something could not be read.
    fn has_failures(&self) -> bool {
        match self.result.peek() {
            Some(Ok(reading)) => !reading.failures.is_empty(),
            Some(Err(_)) => true,
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_logged_once_for_each_owner_as_long_as_it_lasts() {
        let readings = LatestReading::default();
        let nomad = Some(Owner::Nomad);
        assert!(readings.note(nomad, false) && readings.note(None, false));
        assert!(!readings.note(nomad, false));
        assert!(!readings.note(nomad, true) && readings.note(nomad, false));
    }
}
