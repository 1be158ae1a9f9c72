//! Deduplication of concurrent work: the first caller starts it, and the others wait for the same result.

use std::collections::HashMap;
use std::hash::Hash;

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use parking_lot::Mutex;

/// A handle to work in flight. Clones wait for the same result.
pub(crate) type SharedWork<V> = Shared<BoxFuture<'static, V>>;

/// The work in flight, by key. Work is dropped when the last handle to it is dropped.
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
    /// Joins the work in flight for this key, or starts it with `start`. Dropping the last handle drops the
    /// work.
    pub(crate) fn join(&self, key: K, start: impl FnOnce() -> BoxFuture<'static, V>) -> SharedWork<V> {
        let mut inflight = self.inflight.lock();
        inflight.retain(|_, weak| weak.upgrade().is_some_and(|work| work.peek().is_none()));
        if let Some(work) = inflight.get(&key).and_then(WeakShared::upgrade) {
            return work;
        }
        let work = start().shared();
        if let Some(weak) = work.downgrade() {
            inflight.insert(key, weak);
        }
        work
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
        let work = Singleflight::default();
        let begun = Arc::new(AtomicUsize::new(0));
        let (done, wait) = oneshot::channel::<u32>();
        let mut wait = Some(wait);
        let mut join = |key: &'static str| {
            let begun = Arc::clone(&begun);
            let wait = wait.take();
            work.join(key, || {
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
        let work = Singleflight::<&str, ()>::default();
        let (held, mut gone) = oneshot::channel::<()>();
        let start = || {
            async move {
                let _held = held;
                std::future::pending::<()>().await;
            }
            .boxed()
        };
        let one = work.join("layer", start);
        let two = work.join("layer", || async {}.boxed());
        drop(one);
        assert!(gone.try_recv().is_err_and(|fault| fault == oneshot::error::TryRecvError::Empty));
        drop(two);
        assert!(gone.try_recv().is_err_and(|fault| fault == oneshot::error::TryRecvError::Closed));
    }
}
