//! Leases: what a pull has made is held until an image holds it.

use std::collections::HashMap;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use switchyard_core::Result;
use tokio_util::task::TaskTracker;

use crate::cleanup::{Cleanup, CleanupQueue};
use crate::client::{Client, QUICK, call, ignore_not_found};

/// All leases of this gateway begin so; what a killed predecessor left is found by it.
pub(crate) fn prefix(client: &Client) -> String {
    format!("switchyard-{}-", client.instance())
}

/// Takes leases, and sees to it that they are given back.
#[derive(Debug, Clone)]
pub(crate) struct Leases {
    client: Client,
    tracker: TaskTracker,
    cleanup: Arc<CleanupQueue>,
}

/// A lease, deleted when it is dropped (in the background) or [`Lease::release`]d.
///
/// It does not expire: containerd tells that by the clock of the node, and one that was set right by some years would take from a
/// pull what it has made so far. One that cannot be deleted is a leftover of this daemon, or one that the next start finds.
pub(crate) struct Lease {
    id: Option<String>,
    leases: Leases,
}

// === impl Leases ===

impl Leases {
    /// `tracker` owns the deletion of those that are dropped; `leftovers` keeps those that could not be deleted.
    pub(crate) fn new(client: Client, tracker: TaskTracker, leftovers: Arc<CleanupQueue>) -> Self {
        Self { client, tracker, cleanup: leftovers }
    }

    /// Takes a lease. Cancel-safe: it is deleted then.
    ///
    /// # Errors
    /// containerd's, with nothing left of it in the end.
    pub(crate) async fn create(&self, what: &str) -> Result<Lease> {
        let mut random = [0; 8];
        getrandom_fill(&mut random);
        let id = format!("{}{what}-{}", prefix(&self.client), hex::encode(random));
        let request = api::CreateRequest { id: id.clone(), labels: HashMap::new() };
        let what = format!("create lease {id}");
        // From here on the guard stands, so that a lease made by a call that we did not see the end of goes as well.
        let lease = Lease { id: Some(id), leases: self.clone() };
        call(&what, QUICK, self.client.leases().create(request)).await?;
        Ok(lease)
    }

    /// Deletes a lease, now or later.
    async fn delete_or_queue(&self, id: String) {
        if let Err(error) = delete(&self.client, &id).await {
            tracing::warn!(lease = id, error = error.report(), "a lease is given back later");
            self.cleanup.enqueue(Cleanup::Lease(id));
        }
    }
}

// === impl Lease ===

impl Lease {
    /// A client whose calls are held by this lease.
    pub(crate) fn client(&self) -> Result<Client> {
        self.leases.client.leased(self.id.as_deref().unwrap_or_default())
    }

    /// Gives the lease back. If containerd cannot be told now, it is told later. Cancel-safe: once begun it is done.
    pub(crate) async fn release(mut self) {
        if let Some(id) = &self.id {
            self.leases.delete_or_queue(id.clone()).await;
            self.id = None;
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let of = self.leases.clone();
        self.leases.tracker.spawn(async move { of.delete_or_queue(id).await });
    }
}

/// Deletes a lease; one that is gone is deleted.
pub(crate) async fn delete(client: &Client, id: &str) -> Result<()> {
    let request = api::DeleteRequest { id: id.to_owned(), sync: false };
    ignore_not_found(call(&format!("delete lease {id}"), QUICK, client.leases().delete(request)).await)
}

/// Random bytes for names.
pub(crate) fn getrandom_fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel's random source is always there");
}
