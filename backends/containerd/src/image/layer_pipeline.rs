//! Downloading and unpacking the layers of an image. A layer is downloaded and unpacked once, however many
//! concurrent pulls need it.
//!
//! ```text
//!  download 0 ─ download 1 ─ download 2 …       a few at a time, in order, shared by digest
//!      │            │            │
//!  snapshot 0 ◄ snapshot 1 ◄ snapshot 2 …       each waits for the one below, shared by chain id
//! ```
//!
//! A remote snapshotter is asked first which layers it provides ([`provided`]).
//!
//! A pull may build on work of another pull. So each result comes with the lease that protects it, and a pull
//! keeps that lease as long as it builds on the result. If the work fails, or its pull is given up, each pull
//! that has joined it does the work again itself: with its own credentials, from its own registry. Joining
//! does not bypass the access control of a registry: a pull asks only for layers in a manifest that the
//! registry has given to that pull, and content that the content store has is available to all by its digest.

use std::fs::File;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::{BoxFuture, FutureExt, Shared, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};
use parking_lot::Mutex;
use switchyard_core::operation;
use switchyard_core::trace::{Span, traced};
use switchyard_core::{Error, Result};
use switchyard_registry::{Descriptor, Digest, Pull};
use tokio::sync::{Semaphore, oneshot};
use tokio_util::task::AbortOnDropHandle;

use super::blob::BlobRepairs;
use super::content::{self, Labels, add_labels};
use super::content_disk::ContentDisk;
use super::index::chain_ids;
use super::layer_sync::{LayerSync, UnpackedSnapshots};
use super::lease::Lease;
use super::progress::ByteCounters;
use super::remote_layers::RemoteImage;
use super::shared_futures::SharedFutures;
use super::unpack::{ActiveSnapshot, UnpackTarget, exists};
use crate::client::Client;

mod provided;
mod repair;

/// Maximum number of layers of one image that are unpacked concurrently, if the snapshotter can rebase
/// detached layers.
const UNPACK_AT_ONCE: usize = 3;

/// The downloads and unpackings in flight, of all images. The key of an unpacking is (snapshotter, chain id).
#[derive(Default)]
pub(crate) struct InflightLayers {
    downloads: SharedFutures<Digest, LayerOutcome>,
    snapshots: SharedFutures<(String, String), LayerOutcome>,
    counters: ByteCounters,
    repairs: BlobRepairs,
}

impl InflightLayers {
    /// The counters of downloaded bytes.
    pub(crate) const fn counters(&self) -> &ByteCounters {
        &self.counters
    }

    /// The checks and replacements of blobs.
    pub(crate) const fn repairs(&self) -> &BlobRepairs {
        &self.repairs
    }
}

impl std::fmt::Debug for InflightLayers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InflightLayers").finish_non_exhaustive()
    }
}

/// The outcome of shared work on a layer.
#[derive(Clone)]
struct LayerOutcome {
    /// Protects the result from garbage collection. It also identifies the pull that did the work.
    lease: Arc<Lease>,
    source: Source,
    result: Result<(), LayerFailure>,
}

/// A hash of the repository and the credentials that layers are pulled with: what fails for one pull fails
/// for all pulls with the same source.
pub(crate) type Source = [u8; 32];

#[derive(Debug, Clone)]
enum LayerFailure {
    Failed(Error),
    /// The pull that led the work was given up.
    Abandoned,
}

impl From<Error> for LayerFailure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// The layers of an image, and how they are to be unpacked.
pub(crate) struct UnpackPlan {
    pub(crate) snapshotter: String,
    pub(crate) layers: Vec<Descriptor>,
    pub(crate) diff_ids: Vec<Digest>,
    /// True if the snapshotter can commit a detached layer on top of a parent.
    pub(crate) rebase: bool,
    /// Image whose layers the snapshotter can provide itself; `None` if it cannot.
    pub(crate) remote: Option<RemoteImage>,
    pub(crate) source: Source,
    /// Syncs the snapshots to disk.
    pub(crate) layer_sync: LayerSync,
}

/// Parameters of the download of layers: the source, the concurrency, and the labels.
pub(crate) struct Downloads {
    pub(crate) pull: Pull,
    pub(crate) at_once: usize,
    pub(crate) labels: Labels,
    /// Its free space is checked for the layers that a remote snapshotter does not provide; `None` for no check.
    pub(crate) content_disk: Option<Arc<ContentDisk>>,
}

/// The source of the content of layers.
pub(crate) enum LayerSource {
    /// A registry, from which they are downloaded.
    Registry(Downloads),
    /// A file, from which they were written already: each begins at one of the offsets.
    Archive {
        /// The file.
        file: Arc<File>,
        /// The offset of each layer.
        offsets: Vec<u64>,
    },
    /// The content store has them.
    Stored,
}

/// The downloading and unpacking of one image's layers.
pub(crate) struct LayerPipeline {
    plan: UnpackPlan,
    chain: Vec<String>,
    inflight: Arc<InflightLayers>,
    /// Makes its calls under `lease`.
    client: Client,
    lease: Arc<Lease>,
    source: LayerSource,
    /// Leases of other pulls, which protect results that this image builds on.
    joined_leases: Mutex<Vec<Arc<Lease>>>,
    /// The result of each layer's download.
    downloaded: Vec<DownloadResult>,
    download_notifiers: Mutex<Vec<DownloadNotifier>>,
    /// The first layer that the remote snapshotter does not provide, prepared to be unpacked.
    prepared: Mutex<Option<(usize, ActiveSnapshot)>>,
    unpacking: Semaphore,
    unpacked: Arc<UnpackedSnapshots>,
}

type DownloadResult = Shared<BoxFuture<'static, Result<(), LayerFailure>>>;
type DownloadNotifier = oneshot::Sender<Result<(), LayerFailure>>;

impl LayerPipeline {
    /// # Errors
    /// `InvalidArgument` if the image's configuration and manifest differ in the number of layers.
    pub(crate) fn new(
        plan: UnpackPlan,
        inflight: &Arc<InflightLayers>,
        lease: Lease,
        source: LayerSource,
    ) -> Result<Arc<Self>> {
        let named = plan.diff_ids.len();
        let listed = plan.layers.len();
        if named != listed {
            return Err(Error::invalid(
                "image",
                format!("its configuration names {named} layers and its manifest {listed}"),
            ));
        }
        let (download_notifiers, downloaded) =
            plan.layers.iter().map(|_| download_channel()).unzip();
        Ok(Arc::new(Self {
            chain: chain_ids(&plan.diff_ids),
            unpacked: UnpackedSnapshots::new(plan.layer_sync.clone(), &plan.snapshotter),
            plan,
            inflight: Arc::clone(inflight),
            client: lease.client()?,
            lease: Arc::new(lease),
            source,
            joined_leases: Mutex::default(),
            downloaded,
            download_notifiers: Mutex::new(download_notifiers),
            prepared: Mutex::default(),
            unpacking: Semaphore::new(UNPACK_AT_ONCE),
        }))
    }

    /// Downloads and unpacks all layers. Blobs that exist are used as they are, unless they turn out to be
    /// damaged; so are snapshots, unless a power cut may have emptied them. Cancel-safe: work is dropped unless
    /// another pull has joined it.
    ///
    /// # Errors
    /// `FailedPrecondition` if a layer is damaged and there is nothing to replace it from, or if a snapshot
    /// that a power cut may have emptied cannot be removed.
    pub(crate) async fn download_and_unpack(self: &Arc<Self>) -> Result<()> {
        self.plan
            .layer_sync
            .clear_chain(&self.plan.snapshotter, &self.chain)
            .await?;
        let top = async {
            match self.chain.len().checked_sub(1) {
                Some(top) => self.ensure_snapshot(top).await,
                None => Ok(()),
            }
        };
        let work = async {
            self.provide_layers().await?;
            try_join(self.download_all(), top).await.map(drop)
        };
        let done = work.await;
        self.discard_prepared().await;
        done
    }

    /// Releases the leases. To be called once an image record protects the image.
    pub(crate) async fn release(self: Arc<Self>) {
        // Work that another pull has joined still refers to this pipeline. The leases are then deleted when
        // the last reference is dropped.
        let Some(layers) = Arc::into_inner(self) else {
            return;
        };
        let mut leases = layers.joined_leases.into_inner();
        leases.push(layers.lease);
        for lease in leases {
            if let Some(lease) = Arc::into_inner(lease) {
                lease.release().await;
            }
        }
    }

    async fn download_all(self: &Arc<Self>) -> Result<()> {
        let notifiers = std::mem::take(&mut *self.download_notifiers.lock());
        // The layers of an archive are written by the import already, and only checked here, one by one.
        let at_once = match &self.source {
            LayerSource::Registry(downloads) => downloads.at_once,
            LayerSource::Archive { .. } | LayerSource::Stored => 1,
        };
        stream::iter(notifiers.into_iter().enumerate())
            .map(Ok)
            .try_for_each_concurrent(at_once, async |(number, notifier)| {
                let result = match &self.source {
                    LayerSource::Registry(downloads) => {
                        self.download_unless_provided(number, downloads).await
                    }
                    LayerSource::Archive { .. } => self.repair_known_damage(number).await,
                    // There is nothing to replace it by, and its snapshot may exist.
                    LayerSource::Stored => Ok(()),
                };
                // Nobody waits for the download if the snapshot exists already.
                let _ = notifier.send(result.clone().map_err(LayerFailure::Failed));
                result
            })
            .await
    }

    /// Downloads the layer `number`, or joins its download by another pull and adds the labels of this one.
    async fn download(self: &Arc<Self>, number: usize, downloads: &Downloads) -> Result<()> {
        let layer = &self.plan.layers[number];
        let received = self.inflight.counters.of(&layer.digest);
        let start = || {
            let layers = Arc::clone(self);
            let labels = downloads.labels.clone();
            let fetched = async move {
                let layer = &layers.plan.layers[number];
                let describe = |span: &mut Span| {
                    span.set_with("switchyard.layer", || layer.digest.to_string());
                    span.set(
                        "switchyard.layer.bytes",
                        i64::try_from(layer.size).unwrap_or(i64::MAX),
                    );
                };
                Ok(traced("download_layer", describe, layers.fetch(number, labels)).await?)
            };
            fetched.boxed()
        };
        let own = self
            .join_or_start(&self.inflight.downloads, layer.digest.clone(), start)
            .await?;
        received.store(layer.size, Ordering::Relaxed);
        if !own {
            add_labels(&self.client, &layer.digest, downloads.labels.clone()).await?;
        }
        self.repair_known_damage(number).await
    }

    /// Writes the layer `number` into the content store from where it comes.
    async fn fetch(&self, number: usize, labels: Labels) -> Result<()> {
        let layer = &self.plan.layers[number];
        match &self.source {
            LayerSource::Registry(downloads) => {
                let received = self.inflight.counters.of(&layer.digest);
                content::fetch(&self.client, &downloads.pull, layer, labels, &received).await
            }
            LayerSource::Archive { file, offsets } => {
                content::write_from_file(&self.client, file, offsets[number], layer, labels).await
            }
            LayerSource::Stored => Ok(()),
        }
    }

    async fn unpack_on(&self, parent: &str, number: usize, target: &UnpackTarget) -> Result<()> {
        let seen = self.inflight.repairs.replaced();
        match target.unpack_on(parent).await {
            Ok(()) => Ok(()),
            Err(error) => {
                self.repair_after(error, number, seen).await?;
                target.unpack_on(parent).await
            }
        }
    }

    /// Waits until a layer is in the content store.
    async fn wait_downloaded(&self, number: usize) -> Result<(), LayerFailure> {
        self.downloaded[number].clone().await
    }

    /// Makes sure that the snapshot of the layer `number`, on top of those below, exists.
    fn ensure_snapshot(self: &Arc<Self>, number: usize) -> BoxFuture<'static, Result<()>> {
        let layers = Arc::clone(self);
        async move {
            let key = (
                layers.plan.snapshotter.clone(),
                layers.chain[number].clone(),
            );
            // Boxed because it recurses: a snapshot needs that of the layer below.
            let start = || Arc::clone(&layers).make_snapshot(number).boxed();
            layers
                .join_or_start(&layers.inflight.snapshots, key, start)
                .await
                .map(drop)
        }
        .boxed()
    }

    /// The snapshot of the layer `number`.
    fn target(&self, number: usize) -> UnpackTarget {
        let remote = self.plan.remote.as_ref();
        UnpackTarget {
            client: self.client.clone(),
            snapshotter: self.plan.snapshotter.clone(),
            name: self.chain[number].clone(),
            layer: self.plan.layers[number].clone(),
            diff_id: self.plan.diff_ids[number].clone(),
            labels: remote
                .map_or_else(Labels::new, |image| image.labels(&self.plan.layers, number)),
            unpacked: Arc::clone(&self.unpacked),
        }
    }

    /// Creates the snapshot of the layer `number`, unless it exists.
    async fn make_snapshot(self: Arc<Self>, number: usize) -> Result<(), LayerFailure> {
        let target = self.target(number);
        if exists(&target.client, &target.snapshotter, &target.name).await? {
            return Ok(());
        }
        if self.plan.remote.is_some() {
            return self.make_remote_snapshot(number, &target).await;
        }
        let Some(below) = number.checked_sub(1) else {
            self.wait_downloaded(number).await?;
            return Ok(self.unpack_on("", number, &target).await?);
        };
        let parent = async {
            self.ensure_snapshot(below)
                .await
                .map_err(LayerFailure::from)
        };
        let below = &self.chain[below];
        if !self.plan.rebase {
            parent.await?;
            self.wait_downloaded(number).await?;
            return Ok(self.unpack_on(below, number, &target).await?);
        }
        // Unpacked while the layers below are; only the commit has to wait for the parent.
        let (detached, ()) = try_join(self.unpack_detached(number, &target), parent).await?;
        match detached {
            Some(extract) => Ok(target.commit_rebased(extract, below).await?),
            None => Ok(self.unpack_on(below, number, &target).await?),
        }
    }

    async fn unpack_detached(
        &self,
        number: usize,
        target: &UnpackTarget,
    ) -> Result<Option<ActiveSnapshot>, LayerFailure> {
        self.wait_downloaded(number).await?;
        let _permit = self.unpacking.acquire().await;
        let seen = self.inflight.repairs.replaced();
        match target.unpack_detached().await {
            Ok(detached) => Ok(detached),
            Err(error) => {
                self.repair_after(error, number, seen).await?;
                Ok(target.unpack_detached().await?)
            }
        }
    }

    /// Joins the work in flight for `key`, or starts it. Returns whether the result is from this pull's own
    /// work.
    ///
    /// When joined work of another pull fails, this pull tries again. The number of tries is bounded by the
    /// number of pulls: each try is led by one pull, and a pull whose own try fails returns the error instead
    /// of leading another.
    async fn join_or_start<K: Eq + Hash + Clone>(
        &self,
        inflight: &SharedFutures<K, LayerOutcome>,
        key: K,
        start: impl Fn() -> BoxFuture<'static, Result<(), LayerFailure>>,
    ) -> Result<bool> {
        loop {
            let done = inflight
                .join(key.clone(), || self.spawn_work(start()))
                .await;
            let own = Arc::ptr_eq(&done.lease, &self.lease);
            match done.result {
                Ok(()) => {
                    if !own {
                        self.joined_leases.lock().push(done.lease);
                    }
                    return Ok(own);
                }
                Err(LayerFailure::Failed(error)) if own || done.source == self.plan.source => {
                    return Err(error);
                }
                Err(LayerFailure::Abandoned) if own => {
                    return Err(Error::internal("a download was aborted"));
                }
                Err(LayerFailure::Failed(error)) => {
                    tracing::debug!(
                        error = error.report(),
                        "joined work of another pull on a layer has failed: doing it again"
                    );
                }
                Err(LayerFailure::Abandoned) => {}
            }
        }
    }

    /// Starts work in a Tokio task, which is aborted when the last future that waits for it is dropped.
    fn spawn_work(
        &self,
        work: BoxFuture<'static, Result<(), LayerFailure>>,
    ) -> BoxFuture<'static, LayerOutcome> {
        let lease = Arc::clone(&self.lease);
        let source = self.plan.source;
        let task = AbortOnDropHandle::new(tokio::spawn(operation::inherit(work)));
        async move {
            let result = task.await.unwrap_or_else(|fault| {
                Err(LayerFailure::Failed(
                    Error::internal("the work on a layer panicked or was aborted")
                        .with_source(fault),
                ))
            });
            LayerOutcome {
                lease,
                source,
                result,
            }
        }
        .boxed()
    }
}

/// A channel for the result of a download. Dropping the sender makes the result [`LayerFailure::Abandoned`].
fn download_channel() -> (DownloadNotifier, DownloadResult) {
    let (notifier, result) = oneshot::channel();
    (
        notifier,
        async move { result.await.unwrap_or(Err(LayerFailure::Abandoned)) }
            .boxed()
            .shared(),
    )
}

#[cfg(test)]
mod tests;
