//! The persistent store of leases that no task uses yet: no other record contains them.

use std::collections::BTreeMap;

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::error::Result;
use crate::id::{LeaseToken, Owner};

/// A lease in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    /// Its token.
    pub token: LeaseToken,
    /// Its owner.
    pub owner: Owner,
    /// Its slots.
    pub slots: Vec<String>,
}

/// Stores leases.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// All stored leases.
    ///
    /// # Errors
    /// The store cannot be read; no device can be leased then.
    async fn load(&self) -> Result<Vec<StoredLease>>;

    /// Stores a lease; it survives a power failure when this returns. Idempotent. Not cancel-safe: run it to
    /// completion.
    ///
    /// # Errors
    /// The lease may or may not be stored: remove it.
    async fn put(&self, lease: &StoredLease) -> Result<()>;

    /// Removes leases from the store. Idempotent: succeeds for leases that are not stored. Not cancel-safe:
    /// run it to completion.
    ///
    /// # Errors
    /// The leases may still be stored; a later recovery finds them.
    async fn remove(&self, tokens: &[LeaseToken]) -> Result<()>;
}

/// A store in memory, lost when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    leases: Mutex<BTreeMap<LeaseToken, StoredLease>>,
}

// === impl MemoryStore ===

#[async_trait]
impl LeaseStore for MemoryStore {
    async fn load(&self) -> Result<Vec<StoredLease>> {
        Ok(self.leases.lock().values().cloned().collect())
    }

    async fn put(&self, lease: &StoredLease) -> Result<()> {
        self.leases.lock().insert(lease.token, lease.clone());
        Ok(())
    }

    async fn remove(&self, tokens: &[LeaseToken]) -> Result<()> {
        let mut leases = self.leases.lock();
        tokens.iter().for_each(|token| drop(leases.remove(token)));
        Ok(())
    }
}
