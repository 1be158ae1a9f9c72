//! Locks by key: operations that change one object run one after the other, those on different objects
//! concurrently.

use std::collections::HashMap;
use std::fmt::Display;
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

/// A key whose lock is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockInUse {
    /// The name of the lock.
    pub lock: &'static str,
    /// The key.
    pub key: String,
    /// Number of callers that wait for it.
    pub waiting: usize,
}

impl LockInUse {
    /// A lock that is a semaphore with one permit, if it is in use: those who hold it or wait for it share it with its owner.
    #[must_use]
    pub fn of_semaphore(
        lock: &'static str,
        key: &impl Display,
        semaphore: &Arc<Semaphore>,
    ) -> Option<Self> {
        // Neither its owner nor the one that holds it waits.
        let waiting = Arc::strong_count(semaphore).checked_sub(2)?;
        Some(Self {
            lock,
            key: key.to_string(),
            waiting,
        })
    }
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

    /// The keys in use at this moment; `lock` names this lock.
    #[must_use]
    pub fn in_use(&self, lock: &'static str) -> Vec<LockInUse>
    where
        K: Display,
    {
        let queues = self.locks.lock();
        // One caller holds the lock of a key in use, and the others wait.
        let used = queues.iter().filter_map(|(key, queue)| {
            Some(LockInUse {
                lock,
                key: key.to_string(),
                waiting: queue.strong_count().checked_sub(1)?,
            })
        });
        used.collect()
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
        let held = LockInUse {
            lock: "turns",
            key: "1".to_owned(),
            waiting: 1,
        };
        assert_eq!(turns.in_use("turns"), [held]);
        drop(first);
        second.await;
        assert!(turns.in_use("turns").is_empty());
    }

    #[tokio::test]
    async fn semaphore_is_in_use_while_its_permit_is_held() {
        let semaphore = Arc::new(Semaphore::new(1));
        let waiting = || {
            let found = LockInUse::of_semaphore("limits", &1, &semaphore);
            found.map(|found| found.waiting)
        };
        assert_eq!(waiting(), None);
        let held = Arc::clone(&semaphore).acquire_owned().await.unwrap();
        assert_eq!(waiting(), Some(0));
        let mut next = Box::pin(Arc::clone(&semaphore).acquire_owned());
        assert!(futures::poll!(&mut next).is_pending());
        assert_eq!(waiting(), Some(1));
        drop((held, next));
        assert_eq!(waiting(), None);
    }
}
