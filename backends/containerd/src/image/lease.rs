//! Leases: what a pull has made is held until an image holds it.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use containerd_client::services::v1 as api;
use switchyard_core::Result;
use tokio_util::task::TaskTracker;

use crate::client::{Client, QUICK, call, gone_is_done};

/// All leases of this gateway begin so; what a killed predecessor left is found by it.
pub(crate) fn prefix(client: &Client) -> String {
    format!("switchyard-{}-", client.instance())
}

/// After this long containerd forgets a lease that nobody deleted.
const LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// A lease, deleted when it is dropped (in the background) or [`Lease::release`]d.
pub(crate) struct Lease {
    id: Option<String>,
    client: Client,
    tracker: TaskTracker,
}

impl Lease {
    /// Takes a lease; `tracker` owns its deletion should it be dropped.
    pub(crate) async fn take(client: &Client, what: &str, tracker: &TaskTracker) -> Result<Self> {
        let mut random = [0; 8];
        getrandom_fill(&mut random);
        let id = format!("{}{what}-{}", prefix(client), hex::encode(random));
        let expiry = prost_types::Timestamp::from(SystemTime::now() + LIFETIME).to_string();
        let labels = HashMap::from([("containerd.io/gc.expire".to_owned(), expiry)]);
        let request = api::CreateRequest { id: id.clone(), labels };
        let what = format!("create lease {id}");
        // From here on the guard stands, so that a lease made by a call that we did not see the end of goes as well.
        let lease = Self { id: Some(id), client: client.clone(), tracker: tracker.clone() };
        call(&what, QUICK, client.leases().create(request)).await?;
        Ok(lease)
    }

    /// A client whose calls are held by this lease.
    pub(crate) fn client(&self) -> Result<Client> {
        self.client.leased(self.id.as_deref().unwrap_or_default())
    }

    /// Gives the lease back, and hears of it if that fails.
    pub(crate) async fn release(mut self) -> Result<()> {
        match self.id.take() {
            Some(id) => delete(&self.client, &id).await,
            None => Ok(()),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let client = self.client.clone();
        self.tracker.spawn(async move {
            if let Err(error) = delete(&client, &id).await {
                tracing::warn!(lease = id, error = error.report(), "a lease is left to its expiry");
            }
        });
    }
}

/// Deletes a lease; one that is gone is deleted.
pub(crate) async fn delete(client: &Client, id: &str) -> Result<()> {
    let request = api::DeleteRequest { id: id.to_owned(), sync: false };
    gone_is_done(call(&format!("delete lease {id}"), QUICK, client.leases().delete(request)).await)
}

/// Random bytes for names.
pub(crate) fn getrandom_fill(bytes: &mut [u8]) {
    getrandom::fill(bytes).expect("the kernel's random source is always there");
}
