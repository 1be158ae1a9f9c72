//! Work that several may want at once: one does it, and the others wait for the same.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};

/// A piece of work that somebody waits for. Clones wait for the same.
pub(crate) type SharedWork<V> = Shared<BoxFuture<'static, V>>;

/// The work in flight, by what it is about. It lives as long as anybody waits for it.
#[derive(Debug)]
pub(crate) struct Singleflight<K, V> {
    inflight: Mutex<HashMap<K, WeakShared<BoxFuture<'static, V>>>>,
}

impl<K, V> Default for Singleflight<K, V> {
    fn default() -> Self {
        Self { inflight: Mutex::default() }
    }
}

impl<K: Eq + Hash, V: Clone> Singleflight<K, V> {
    /// The work in flight under this key, or else what `start` begins. Dropping the last handle drops the work.
    pub(crate) fn join(&self, key: K, start: impl FnOnce() -> BoxFuture<'static, V>) -> SharedWork<V> {
        let mut flying = self.inflight.lock().unwrap_or_else(PoisonError::into_inner);
        flying.retain(|_, weak| weak.upgrade().is_some_and(|flight| flight.peek().is_none()));
        if let Some(flight) = flying.get(&key).and_then(WeakShared::upgrade) {
            return flight;
        }
        let flight = start().shared();
        if let Some(weak) = flight.downgrade() {
            flying.insert(key, weak);
        }
        flight
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn those_who_ask_meanwhile_share_the_work_and_later_ones_begin_anew() {
        let flights = Singleflight::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let (done, wait) = oneshot::channel::<u32>();
        let mut wait = Some(wait);
        let mut join = |key: &'static str| {
            let begun = Arc::clone(&begun);
            let wait = wait.take();
            flights.join(key, || {
                async move {
                    begun.fetch_add(1, Ordering::SeqCst);
                    match wait {
                        Some(wait) => wait.await.unwrap_or(0),
                        None => 2,
                    }
                }
                .boxed()
            })
        };
        let one = join("layer");
        let two = join("layer");
        assert_eq!(join("other").await, 2);
        done.send(1).expect("it is waited for");
        assert_eq!((one.await, two.await), (1, 1));
        assert_eq!(join("layer").await, 2);
        assert_eq!(begun.load(Ordering::SeqCst), 3);
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_dropped() {
        let flights = Singleflight::<&str, ()>::default();
        let (held, mut gone) = oneshot::channel::<()>();
        let start = || {
            async move {
                let _held = held;
                std::future::pending::<()>().await;
            }
            .boxed()
        };
        let one = flights.join("layer", start);
        let two = flights.join("layer", || async {}.boxed());
        drop(one);
        assert!(gone.try_recv().is_err_and(|fault| fault == oneshot::error::TryRecvError::Empty));
        drop(two);
        assert!(gone.try_recv().is_err_and(|fault| fault == oneshot::error::TryRecvError::Closed));
    }
}
