//! Where leases are kept that nothing has been made with yet: no object bears them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;

use crate::error::Result;
use crate::id::{LeaseToken, Owner};

/// A lease as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    /// Its token.
    pub token: LeaseToken,
    /// Whose it is.
    pub owner: Owner,
    /// The slots that it is of.
    pub slots: Vec<String>,
}

/// Keeps leases.
#[async_trait]
pub trait LeaseStore: Send + Sync + 'static {
    /// All that are kept.
    ///
    /// # Errors
    /// They cannot be read; nothing can be leased then.
    async fn load(&self) -> Result<Vec<StoredLease>>;

    /// Keeps a lease; it outlives a power cut when this returns. Idempotent. Not cancel-safe: run it to its end.
    ///
    /// # Errors
    /// It may be kept or not: remove it.
    async fn put(&self, lease: &StoredLease) -> Result<()>;

    /// Keeps these leases no more. Idempotent; those that are not kept are removed. Not cancel-safe: run it to its end.
    ///
    /// # Errors
    /// They may be kept still; a later recovery finds them.
    async fn remove(&self, tokens: &[LeaseToken]) -> Result<()>;
}

/// Keeps leases for as long as it lives itself.
#[derive(Debug, Default)]
pub struct MemoryStore {
    leases: Mutex<BTreeMap<LeaseToken, StoredLease>>,
}

// === impl MemoryStore ===

#[async_trait]
impl LeaseStore for MemoryStore {
    async fn load(&self) -> Result<Vec<StoredLease>> {
        Ok(self.leases.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect())
    }

    async fn put(&self, lease: &StoredLease) -> Result<()> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner).insert(lease.token, lease.clone());
        Ok(())
    }

    async fn remove(&self, tokens: &[LeaseToken]) -> Result<()> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.iter().for_each(|token| drop(leases.remove(token)));
        Ok(())
    }
}
