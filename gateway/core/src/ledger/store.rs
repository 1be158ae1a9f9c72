//! The persistent store of leases that no task uses yet: no other record contains them.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::error::Result;
use crate::id::{LeaseToken, Owner, SlotId};

/// A lease in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    /// Its token.
    pub token: LeaseToken,
    /// Its owner.
    pub owner: Owner,
    /// Its slots.
    pub slots: Vec<SlotId>,
}

/// Stores leases.
pub trait LeaseStore: Send + Sync + 'static {
    /// All stored leases.
    ///
    /// # Errors
    /// The store cannot be read; no device can be leased then. `FailedPrecondition` if it can never be read as it is,
    /// because it is damaged as a whole or of a later version; after any other error it is read again later.
    fn load(&self) -> BoxFuture<'_, Result<Vec<StoredLease>>>;

    /// Stores a lease; it survives a power failure when this returns. Idempotent. Not cancel-safe: run it to
    /// completion.
    ///
    /// # Errors
    /// The lease may or may not be stored: remove it.
    fn put<'a>(&'a self, lease: &'a StoredLease) -> BoxFuture<'a, Result<()>>;

    /// Removes leases from the store. Idempotent: succeeds for leases that are not stored. Not cancel-safe:
    /// run it to completion.
    ///
    /// # Errors
    /// The leases may still be stored; a later recovery finds them.
    fn remove<'a>(&'a self, tokens: &'a [LeaseToken]) -> BoxFuture<'a, Result<()>>;
}

/// A store in memory, lost when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryStore {
    leases: Mutex<BTreeMap<LeaseToken, StoredLease>>,
}

// === impl MemoryStore ===

impl LeaseStore for MemoryStore {
    fn load(&self) -> BoxFuture<'_, Result<Vec<StoredLease>>> {
        Box::pin(async move { Ok(self.leases.lock().values().cloned().collect()) })
    }

    fn put<'a>(&'a self, lease: &'a StoredLease) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.leases.lock().insert(lease.token, lease.clone());
            Ok(())
        })
    }

    fn remove<'a>(&'a self, tokens: &'a [LeaseToken]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut leases = self.leases.lock();
            tokens.iter().for_each(|token| drop(leases.remove(token)));
            Ok(())
        })
    }
}
