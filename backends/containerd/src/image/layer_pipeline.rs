//! The layers of one image on their way: each is downloaded and unpacked once, however many images have it.
//!
//! ```text
//!  download 0 ─ download 1 ─ download 2 …       a few at a time, in order, shared by digest
//!      │            │            │
//!  snapshot 0 ◄ snapshot 1 ◄ snapshot 2 …       each waits for the one below, shared by chain id
//! ```
//!
//! What one pull has begun another one may go on with, so each result comes with the lease that holds it, and lives as long as
//! anybody who builds on it. If it fails, or is given up, whoever joined it does it again on its own account: with its own
//! credentials, from its own registry. To join is no way around a registry's permission: nobody asks for a layer who has not
//! been given a manifest that names it, and what the node has by digest it has for all.

use std::hash::Hash;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use futures::future::{BoxFuture, FutureExt, Shared, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};
use switchyard_core::{Error, Result};
use switchyard_registry::{Descriptor, Digest, Pull};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::content::{self, Labels, add_labels};
use super::layer_sync::{LayerSync, UnpackedSnapshots};
use super::lease::Lease;
use super::progress::ByteCounters;
use super::singleflight::Singleflight;
use super::unpack::{ActiveSnapshot, UnpackTarget, chain_ids, exists};
use crate::client::Client;

/// Layers that one image unpacks at once, where the snapshotter lets them be put together afterwards.
const UNPACK_AT_ONCE: usize = 3;

/// The downloads and the unpackings in flight, of all images.
#[derive(Default)]
pub(crate) struct InflightLayers {
    downloads: Singleflight<Digest, LayerOutcome>,
    snapshots: Singleflight<(String, String), LayerOutcome>,
    counters: ByteCounters,
}

impl InflightLayers {
    /// What counts the bytes of the downloads.
    pub(crate) const fn counters(&self) -> &ByteCounters {
        &self.counters
    }
}

impl std::fmt::Debug for InflightLayers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shares").finish_non_exhaustive()
    }
}

/// How a piece of work ended that several may have waited for.
#[derive(Clone)]
struct LayerOutcome {
    /// Holds what was made. It also tells who did the work.
    lease: Arc<Lease>,
    source: Source,
    result: Result<(), LayerFailure>,
}

/// Where layers come from and by whose right: what fails for one fails for all of the same source.
pub(crate) type Source = [u8; 32];

#[derive(Debug, Clone)]
enum LayerFailure {
    Failed(Error),
    /// The pull that the work was begun for is no more.
    Abandoned,
}

impl From<Error> for LayerFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The layers of an image, with what they unpack to and where.
pub(crate) struct UnpackPlan {
    pub(crate) snapshotter: String,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) diff_ids: Vec<Digest>,
    /// Whether the snapshotter takes layers that were unpacked apart from each other.
    pub(crate) rebase: bool,
    pub(crate) source: Source,
    /// Sees to it that they get to disk.
    pub(crate) layer_sync: LayerSync,
}

/// Where layers are downloaded from.
pub(crate) struct Downloads {
    pub(crate) pull: Pull,
    pub(crate) at_once: usize,
    pub(crate) labels: Labels,
}

/// An image's layers in the making.
pub(crate) struct LayerPipeline {
    plan: UnpackPlan,
    chain: Vec<String>,
    inflight: Arc<InflightLayers>,
    /// Its calls are held by the lease.
    client: Client,
    lease: Arc<Lease>,
    /// Leases of others, who made what this image builds on.
    joined_leases: Mutex<Vec<Arc<Lease>>>,
    /// The ends of the downloads.
    downloaded: Vec<DownloadResult>,
    download_notifiers: Mutex<Vec<DownloadNotifier>>,
    unpacking: Semaphore,
    unpacked: Arc<UnpackedSnapshots>,
}

type DownloadResult = Shared<BoxFuture<'static, Result<(), LayerFailure>>>;
type DownloadNotifier = oneshot::Sender<Result<(), LayerFailure>>;

impl LayerPipeline {
    /// # Errors
    /// `InvalidArgument` if the image's configuration does not fit its manifest.
    pub(crate) fn new(plan: UnpackPlan, shares: &Arc<InflightLayers>, lease: Lease) -> Result<Arc<Self>> {
        let named = plan.diff_ids.len();
        let listed = plan.layers.len();
        if named != listed {
            return Err(Error::invalid(
                "image",
                format!("its configuration names {named} layers and its manifest {listed}"),
            ));
        }
        let (announce, fetched) = plan.layers.iter().map(|_| download_channel()).unzip();
        Ok(Arc::new(Self {
            chain: chain_ids(&plan.diff_ids),
            unpacked: UnpackedSnapshots::new(plan.layer_sync.clone(), &plan.snapshotter),
            plan,
            inflight: Arc::clone(shares),
            client: lease.client()?,
            lease: Arc::new(lease),
            joined_leases: Mutex::default(),
            downloaded: fetched,
            download_notifiers: Mutex::new(announce),
            unpacking: Semaphore::new(UNPACK_AT_ONCE),
        }))
    }

    /// Downloads and unpacks all layers; without `downloads` they are in the content store already. What is there is not made
    /// again. Dropping this gives up what nobody else waits for.
    pub(crate) async fn download_and_unpack(self: &Arc<Self>, downloads: Option<&Downloads>) -> Result<()> {
        let top = async {
            match self.chain.len().checked_sub(1) {
                Some(top) => self.ensure_snapshot(top).await,
                None => Ok(()),
            }
        };
        try_join(self.download_all(downloads), top).await.map(drop)
    }

    /// Gives up the leases, once something else holds the image.
    pub(crate) async fn release(self: Arc<Self>) {
        // Those who still build on it keep its lease, and the last of them deletes it.
        let Some(layers) = Arc::into_inner(self) else { return };
        let mut leases = layers.joined_leases.into_inner().unwrap_or_else(PoisonError::into_inner);
        leases.push(layers.lease);
        for lease in leases {
            if let Some(lease) = Arc::into_inner(lease) {
                lease.release().await;
            }
        }
    }

    async fn download_all(self: &Arc<Self>, downloads: Option<&Downloads>) -> Result<()> {
        let announce =
            std::mem::take(&mut *self.download_notifiers.lock().unwrap_or_else(PoisonError::into_inner));
        let at_once = downloads.map_or(1, |downloads| downloads.at_once);
        stream::iter(announce.into_iter().enumerate())
            .map(Ok)
            .try_for_each_concurrent(at_once, async |(number, announce)| {
                let fetched = match downloads {
                    Some(downloads) => self.download(number, downloads).await,
                    None => Ok(()),
                };
                // Nobody listens if the snapshot is there already.
                let _ = announce.send(fetched.clone().map_err(LayerFailure::Failed));
                fetched
            })
            .await
    }

    async fn download(&self, number: usize, downloads: &Downloads) -> Result<()> {
        let layer = &self.plan.layers[number];
        let here = self.inflight.counters.of(&layer.digest);
        let start = || {
            let client = self.client.clone();
            let pull = downloads.pull.clone();
            let layer = layer.clone();
            let labels = downloads.labels.clone();
            let here = Arc::clone(&here);
            async move { Ok(content::fetch(&client, &pull, &layer, labels, &here).await?) }.boxed()
        };
        let own = self.join_or_start(&self.inflight.downloads, layer.digest.clone(), start).await?;
        here.store(layer.size, Ordering::Relaxed);
        if !own {
            add_labels(&self.client, &layer.digest, downloads.labels.clone()).await?;
        }
        Ok(())
    }

    /// Waits until a layer is in the content store.
    async fn wait_downloaded(&self, number: usize) -> Result<(), LayerFailure> {
        self.downloaded[number].clone().await
    }

    /// Sees to it that the snapshot of a layer, on top of those below, is there.
    fn ensure_snapshot(self: &Arc<Self>, number: usize) -> BoxFuture<'static, Result<()>> {
        let layers = Arc::clone(self);
        async move {
            let key = (layers.plan.snapshotter.clone(), layers.chain[number].clone());
            let start = || Arc::clone(&layers).make_snapshot(number).boxed();
            layers.join_or_start(&layers.inflight.snapshots, key, start).await.map(drop)
        }
        .boxed()
    }

    async fn make_snapshot(self: Arc<Self>, number: usize) -> Result<(), LayerFailure> {
        let target = UnpackTarget {
            client: self.client.clone(),
            snapshotter: self.plan.snapshotter.clone(),
            name: self.chain[number].clone(),
            layer: self.plan.layers[number].clone(),
            diff_id: self.plan.diff_ids[number].clone(),
            unpacked: Arc::clone(&self.unpacked),
        };
        if exists(&target.client, &target.snapshotter, &target.name).await? {
            return Ok(());
        }
        let Some(below) = number.checked_sub(1) else {
            self.wait_downloaded(number).await?;
            return Ok(target.unpack_on("").await?);
        };
        let parent = async { self.ensure_snapshot(below).await.map_err(LayerFailure::from) };
        if !self.plan.rebase {
            parent.await?;
            self.wait_downloaded(number).await?;
            return Ok(target.unpack_on(&self.chain[below]).await?);
        }
        let (detached, ()) = try_join(self.unpack_detached(number, &target), parent).await?;
        match detached {
            Some(extract) => Ok(target.commit_rebased(extract, &self.chain[below]).await?),
            None => Ok(target.unpack_on(&self.chain[below]).await?),
        }
    }

    async fn unpack_detached(
        &self,
        number: usize,
        target: &UnpackTarget,
    ) -> Result<Option<ActiveSnapshot>, LayerFailure> {
        self.wait_downloaded(number).await?;
        let _permit = self.unpacking.acquire().await;
        Ok(target.unpack_detached().await?)
    }

    /// Waits for work that may be in flight for others already; whether it was our own. It has the bound that everybody who
    /// joins a failure of others leads the next try or joins one, and no pull leads twice.
    async fn join_or_start<K: Eq + Hash + Clone>(
        &self,
        inflight: &Singleflight<K, LayerOutcome>,
        key: K,
        start: impl Fn() -> BoxFuture<'static, Result<(), LayerFailure>>,
    ) -> Result<bool> {
        loop {
            let done = inflight.join(key.clone(), || self.spawn_work(start())).await;
            let own = Arc::ptr_eq(&done.lease, &self.lease);
            match done.result {
                Ok(()) => {
                    if !own {
                        self.joined_leases.lock().unwrap_or_else(PoisonError::into_inner).push(done.lease);
                    }
                    return Ok(own);
                }
                Err(LayerFailure::Failed(error)) if own || done.source == self.plan.source => {
                    return Err(error);
                }
                Err(LayerFailure::Abandoned) if own => return Err(Error::internal("a download broke off")),
                Err(LayerFailure::Failed(error)) => {
                    tracing::debug!(
                        error = error.report(),
                        "what another pull began has failed: doing it anew"
                    );
                }
                Err(LayerFailure::Abandoned) => {}
            }
        }
    }

    /// Starts work in a task of its own, which ends with the last who waits for it.
    fn spawn_work(
        &self,
        work: BoxFuture<'static, Result<(), LayerFailure>>,
    ) -> BoxFuture<'static, LayerOutcome> {
        let lease = Arc::clone(&self.lease);
        let source = self.plan.source;
        let task = AbortOnDropHandle::new(tokio::spawn(work));
        async move {
            let result = task.await.unwrap_or_else(|fault| {
                Err(LayerFailure::Failed(Error::internal("work on a layer broke off").with_source(fault)))
            });
            LayerOutcome { lease, source, result }
        }
        .boxed()
    }
}

fn download_channel() -> (DownloadNotifier, DownloadResult) {
    let (announce, heard) = oneshot::channel();
    (announce, async move { heard.await.unwrap_or(Err(LayerFailure::Abandoned)) }.boxed().shared())
}
