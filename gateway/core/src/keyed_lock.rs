//! Locks by key: operations that change one object run one after the other, those on different objects
//! concurrently.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A lock per key, granted in the order of the calls. An entry is freed soon after no caller uses its key.
#[derive(Debug)]
pub struct KeyedLock<K> {
    locks: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self {
            locks: Mutex::default(),
        }
    }
}

/// Holds the lock of one key until it is dropped.
#[derive(Debug)]
pub struct KeyedLockGuard {
    _permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> KeyedLock<K> {
    /// Waits for the lock of `key`, in the order of the calls. Cancel-safe.
    pub async fn lock(&self, key: K) -> KeyedLockGuard {
        let queue = {
            let mut queues = self.locks.lock();
            queues.retain(|_, queue| queue.strong_count() > 0);
            let slot = queues.entry(key).or_default();
            slot.upgrade().unwrap_or_else(|| {
                let queue = Arc::new(Semaphore::new(1));
                *slot = Arc::downgrade(&queue);
                queue
            })
        };
        // The permit keeps the semaphore alive. The semaphore is never closed.
        KeyedLockGuard {
            _permit: queue.acquire_owned().await.ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_locks_of_the_same_key_wait() {
        let turns = KeyedLock::default();
        let first = turns.lock(1).await;
        let mut second = Box::pin(turns.lock(1));
        assert!(futures::poll!(&mut second).is_pending());
        turns.lock(2).await;
        drop(first);
        second.await;
    }
}
