//! Futures by key that concurrent callers share: the first caller makes one, the others wait for its result, and
//! it is dropped with the last of them.
//!
//! It is no [`Singleflight`](switchyard_core::singleflight), whose work is spawned, continues without callers,
//! compares requests and decides under its lock. A pull has to end with its callers, so that here the map holds
//! weak handles, and nothing removes an entry but the next caller.

use std::collections::HashMap;
use std::hash::Hash;

use futures::future::{BoxFuture, FutureExt, Shared, WeakShared};
use parking_lot::Mutex;

/// A handle to a shared future. Clones wait for the same result.
pub(crate) type SharedFuture<V> = Shared<BoxFuture<'static, V>>;

/// Futures in flight, by key. A future is dropped when the last handle to it is dropped.
#[derive(Debug)]
pub(crate) struct SharedFutures<K, V> {
    inflight: Mutex<HashMap<K, WeakShared<BoxFuture<'static, V>>>>,
}

impl<K, V> Default for SharedFutures<K, V> {
    fn default() -> Self {
        Self {
            inflight: Mutex::default(),
        }
    }
}

impl<K: Eq + Hash, V: Clone> SharedFutures<K, V> {
    /// Joins the future in flight for this key, or makes one with `start`.
    pub(crate) fn join(
        &self,
        key: K,
        start: impl FnOnce() -> BoxFuture<'static, V>,
    ) -> SharedFuture<V> {
        // A handle of this list may become the last one, whose drop runs the destructors of the work. The list
        // is dropped after the guard, since it is declared before it.
        let mut looked_at = Vec::new();
        let mut inflight = self.inflight.lock();
        inflight.retain(|_, weak| {
            let Some(work) = weak.upgrade() else {
                return false;
            };
            let is_running = work.peek().is_none();
            looked_at.push(work);
            is_running
        });
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
        let work = SharedFutures::default();
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

    /// Work that takes the lock of its list when it is dropped.
    struct Relock(Arc<SharedFutures<&'static str, ()>>);

    impl Drop for Relock {
        fn drop(&mut self) {
            assert!(
                self.0.inflight.try_lock().is_some(),
                "it is dropped under the lock"
            );
        }
    }

    #[test]
    fn work_is_never_dropped_under_the_lock() {
        let work = Arc::new(SharedFutures::default());
        let relock = Relock(Arc::clone(&work));
        let one = work.join("layer", || {
            async move {
                let _held = relock;
                std::future::pending::<()>().await;
            }
            .boxed()
        });
        // The only caller of the first work goes while the list is looked through.
        let other = work.join("other", move || {
            drop(one);
            async {}.boxed()
        });
        drop(other);
        assert_eq!(Arc::strong_count(&work), 1, "the first work is dropped");
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_dropped() {
        let work = SharedFutures::<&str, ()>::default();
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
        assert!(
            gone.try_recv()
                .is_err_and(|fault| fault == oneshot::error::TryRecvError::Empty)
        );
        drop(two);
        assert!(
            gone.try_recv()
                .is_err_and(|fault| fault == oneshot::error::TryRecvError::Closed)
        );
    }
}
