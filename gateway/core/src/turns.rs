//! Turns: changing operations on one object come one after the other, those on different objects at the same time.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Gives out turns by key. A key that nobody waits for takes no memory for long.
#[derive(Debug)]
pub struct Turns<K> {
    queues: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K> Default for Turns<K> {
    fn default() -> Self {
        Self { queues: Mutex::default() }
    }
}

/// A turn; the next one begins when it is dropped.
#[derive(Debug)]
pub struct Turn {
    _permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> Turns<K> {
    /// Waits for a turn, in the order of asking. Cancel-safe.
    pub async fn take(&self, key: K) -> Turn {
        let queue = {
            let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
            queues.retain(|_, queue| queue.strong_count() > 0);
            let slot = queues.entry(key).or_default();
            slot.upgrade().unwrap_or_else(|| {
                let queue = Arc::new(Semaphore::new(1));
                *slot = Arc::downgrade(&queue);
                queue
            })
        };
        // The permit keeps the queue alive. Nobody closes it.
        Turn { _permit: queue.acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_second_turn_on_one_key_waits_and_one_on_another_does_not() {
        let turns = Turns::default();
        let first = turns.take(1).await;
        let mut second = Box::pin(turns.take(1));
        assert!(futures::poll!(&mut second).is_pending());
        turns.take(2).await;
        drop(first);
        second.await;
    }
}
