//! Leases: they protect what a pull has written from containerd's garbage collection until an image record
//! refers to it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

use containerd_client::services::v1 as api;
use futures::future::BoxFuture;
use switchyard_core::Result;
use switchyard_core::image::ImageLease;
use switchyard_crash_points::{CrashPoint, reach};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use super::kept_leases::{KeptLeases, PULL, resumable_pull};
use crate::base::random::fill_random;
use crate::cleanup::{Cleanup, CleanupQueue};
use crate::client::{COLLECTION, Client, QUICK, call, ignore_not_found};

/// The label of a lease with the time at which containerd ends it.
const EXPIRES: &str = "containerd.io/gc.expire";

/// The prefix of the ids of this gateway's leases. Recovery finds the leases of killed predecessors by it.
pub(crate) fn prefix(client: &Client) -> String {
    format!("switchyard-{}-", client.instance())
}

/// Creates leases, and makes sure that they are deleted.
#[derive(Debug, Clone)]
pub(crate) struct Leases {
    client: Client,
    tracker: TaskTracker,
    cleanup: Arc<CleanupQueue>,
    kept: KeptLeases,
}

/// A lease, deleted when it is dropped (in the background) or [`Lease::release`]d.
///
/// It does not expire: containerd would decide that by the node's clock, and when a clock that is wrong by
/// years is corrected, a running pull would lose what it has written so far. A lease that cannot be deleted
/// goes to the cleanup queue, and if the daemon is killed, the recovery of the next one finds it, and deletes it or keeps
/// it for the same pull.
pub(crate) struct Lease {
    id: Option<String>,
    leases: Leases,
}

// === impl Leases ===

impl Leases {
    /// `tracker` runs the deletion of leases that are dropped; `cleanup` gets those that could not be
    /// deleted.
    pub(crate) fn new(client: Client, tracker: TaskTracker, cleanup: Arc<CleanupQueue>) -> Self {
        Self {
            client,
            tracker,
            cleanup,
            kept: KeptLeases::default(),
        }
    }

    /// Creates a lease. Cancel-safe: the lease is then deleted.
    ///
    /// # Errors
    /// containerd's error; a lease that exists all the same is deleted.
    pub(crate) async fn create(&self, what: &str) -> Result<Lease> {
        self.create_labelled(what, HashMap::new()).await
    }

    /// Creates the lease of a pull, by whose name the next daemon keeps it if this one is killed. Cancel-safe, as
    /// [`Leases::create`].
    ///
    /// # Errors
    /// As [`Leases::create`].
    pub(crate) async fn create_for_pull(&self, pull: &str) -> Result<Lease> {
        let labels = HashMap::from([(PULL.to_owned(), pull.to_owned())]);
        self.create_labelled("pull", labels).await
    }

    async fn create_labelled(&self, what: &str, labels: HashMap<String, String>) -> Result<Lease> {
        let mut random = [0; 8];
        fill_random(&mut random);
        let id = format!("{}{what}-{}", prefix(&self.client), hex::encode(random));
        let request = api::CreateRequest {
            id: id.clone(),
            labels,
        };
        let what = format!("create lease {id}");
        // The guard exists before the call, so that a lease is also deleted if the call creates it without
        // being answered.
        let lease = Lease {
            id: Some(id),
            leases: self.clone(),
        };
        call(&what, QUICK, self.client.leases().create(request)).await?;
        Ok(lease)
    }

    /// The leases of the namespace, also those of others.
    ///
    /// # Errors
    /// containerd's error.
    pub(super) async fn list(&self) -> Result<Vec<ImageLease>> {
        let request = api::ListRequest {
            filters: Vec::new(),
        };
        let listed = call("list leases", QUICK, self.client.leases().list(request)).await?;
        let prefix = prefix(&self.client);
        let described = |lease: api::Lease| ImageLease {
            is_own: lease.id.starts_with(&prefix),
            created_at: lease
                .created_at
                .and_then(|at| SystemTime::try_from(at).ok()),
            ends_at: lease.labels.get(EXPIRES).cloned(),
            id: lease.id,
        };
        Ok(listed.leases.into_iter().map(described).collect())
    }

    /// Runs work that is completed although nobody waits for it any more.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tracker.spawn(work)
    }

    /// Has containerd collect garbage, and waits for it: what no image and no lease refers to is gone
    /// afterwards. containerd does that at the deletion of a lease.
    pub(crate) async fn collect_garbage(&self) -> Result<()> {
        let mut lease = self.create("collect").await?;
        reach(CrashPoint::CollectionLeased);
        let id = lease.id.clone().unwrap_or_default();
        let request = api::DeleteRequest { id, sync: true };
        ignore_not_found(
            call(
                "collect garbage",
                COLLECTION,
                self.client.leases().delete(request),
            )
            .await,
        )?;
        lease.id = None;
        Ok(())
    }

    /// Keeps the lease of a predecessor, if it is that of a pull which may be continued at this time, in seconds since
    /// 1970; returns whether it does. Idempotent.
    pub(crate) fn keep(&self, lease: &api::Lease, now: i64) -> bool {
        let pull = resumable_pull(lease, now);
        if let Some(pull) = pull {
            self.kept.keep(lease.id.clone(), pull.to_owned());
        }
        pull.is_some()
    }

    /// Ends the kept leases of a pull that is complete.
    pub(super) async fn end_kept_of(&self, pull: &str) {
        self.end_kept(self.kept.take_of(pull)).await;
    }

    /// Ends the kept leases whose time is over.
    pub(super) async fn end_expired(&self) {
        self.end_kept(self.kept.take_expired()).await;
    }

    /// Ends all kept leases.
    pub(super) async fn end_all_kept(&self) {
        self.end_kept(self.kept.take_all()).await;
    }

    async fn end_kept(&self, ids: Vec<String>) {
        for id in ids {
            self.delete_or_queue(id).await;
        }
    }

    /// Deletes a lease, or puts it on the cleanup queue.
    async fn delete_or_queue(&self, id: String) {
        if let Err(error) = delete(&self.client, &id).await {
            tracing::warn!(
                lease = id,
                error = error.report(),
                "cannot delete a lease: trying again later"
            );
            self.cleanup.enqueue(LeaseCleanup::new(&self.client, id));
        }
    }
}

// === impl Lease ===

impl Lease {
    /// Returns the leases in which it was created.
    pub(crate) const fn leases(&self) -> &Leases {
        &self.leases
    }

    /// A client that makes its calls under this lease.
    pub(crate) fn client(&self) -> Result<Client> {
        self.leases
            .client
            .leased(self.id.as_deref().unwrap_or_default())
    }

    /// Protects these blobs, with all that their labels refer to. Blobs that the store does not have are no
    /// error.
    pub(crate) async fn protect_content(&self, digests: &[&str]) -> Result<()> {
        let id = self.id.as_deref().unwrap_or_default();
        for digest in digests {
            let resource = api::Resource {
                id: (*digest).to_owned(),
                r#type: "content".to_owned(),
            };
            let request = api::AddResourceRequest {
                id: id.to_owned(),
                resource: Some(resource),
            };
            let what = format!("add blob {digest} to lease {id}");
            ignore_not_found(
                call(
                    &what,
                    QUICK,
                    self.leases.client.leases().add_resource(request),
                )
                .await,
            )?;
        }
        Ok(())
    }

    /// Deletes the lease, or puts it on the cleanup queue if that fails. Cancel-safe: the lease is then
    /// deleted in the background.
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
        let leases = self.leases.clone();
        self.leases
            .tracker
            .spawn(async move { leases.delete_or_queue(id).await });
    }
}

/// Deletes a lease. Idempotent.
pub(crate) async fn delete(client: &Client, id: &str) -> Result<()> {
    let request = api::DeleteRequest {
        id: id.to_owned(),
        sync: false,
    };
    ignore_not_found(
        call(
            &format!("delete lease {id}"),
            QUICK,
            client.leases().delete(request),
        )
        .await,
    )
}

/// The references of the unfinished downloads under a lease.
pub(crate) async fn downloads(client: &Client, id: &str) -> Result<Vec<String>> {
    let request = api::ListResourcesRequest { id: id.to_owned() };
    let what = format!("list what lease {id} holds");
    let listed = call(&what, QUICK, client.leases().list_resources(request)).await?;
    let downloads = listed
        .resources
        .into_iter()
        .filter(|resource| resource.r#type == "ingests");
    Ok(downloads.map(|resource| resource.id).collect())
}

/// Deletes a lease that nobody needs any more.
#[derive(Debug)]
pub(crate) struct LeaseCleanup {
    client: Client,
    id: String,
}

impl LeaseCleanup {
    pub(crate) fn new(client: &Client, id: String) -> Self {
        Self {
            client: client.clone(),
            id,
        }
    }
}

impl Cleanup for LeaseCleanup {
    fn description(&self) -> String {
        format!("lease {}", self.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { delete(&self.client, &self.id).await })
    }
}
