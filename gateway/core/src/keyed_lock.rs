//! Turns: changing operations on one object come one after the other, those on different objects at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Gives out turns by key. A key that nobody waits for takes no memory for long.
#[derive(Debug)]
pub struct KeyedLock<K> {
    locks: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self { locks: Mutex::default() }
    }
}

/// A turn; the next one begins when it is dropped.
#[derive(Debug)]
pub struct KeyedLockGuard {
    _permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> KeyedLock<K> {
    /// Waits for a turn, in the order of asking. Cancel-safe.
    pub async fn lock(&self, key: K) -> KeyedLockGuard {
        let queue = {
            let mut queues = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|_, queue| queue.strong_count() > 0);
            let slot = queues.entry(key).or_default();
            slot.upgrade().unwrap_or_else(|| {
                let queue = Arc::new(Semaphore::new(1));
                *slot = Arc::downgrade(&queue);
                queue
            })
        };
        // The permit keeps the queue alive. Nobody closes it.
        KeyedLockGuard { _permit: queue.acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_turn_on_one_key_waits_and_one_on_another_does_not() {
        let turns = KeyedLock::default();
        let first = turns.lock(1).await;
        let mut second = Box::pin(turns.lock(1));
        assert!(futures::poll!(&mut second).is_pending());
        turns.lock(2).await;
        drop(first);
        second.await;
    }
}
