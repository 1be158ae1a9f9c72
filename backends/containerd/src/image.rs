//! The image store: containerd's image records, and the pulls and loads that create them.
//!
//! All images in the containerd namespace are listed, including those that `ctr images import` has brought.
//!
//! Longer than 500 lines because one image store implements all calls of its trait.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use containerd_client::services::v1 as api;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use switchyard_core::backend::Condition;
use switchyard_core::id::Owner;
use switchyard_core::image::{
    Image, ImageId, ImageLease, ImageReference, ImageStore, InUse, LoadRequest, PullProgress,
    PullRequest,
};
use switchyard_core::reload::Reloadable;
use switchyard_core::stats::DiskUsage;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_registry::{self as registry, Digest};
use tokio::sync::Semaphore;

use crate::client::features::ContainerdFeatures;
use crate::client::{Client, QUICK, call};

pub(crate) mod blob;
pub(crate) mod content;
mod content_disk;
mod detached;
mod holders;
pub(crate) mod index;
mod infos;
mod kept_leases;
mod layer_pipeline;
pub(crate) mod layer_sync;
pub(crate) mod layer_usage;
pub(crate) mod lease;
pub(crate) mod load;
pub(crate) mod lost_layers;
mod name;
mod platform;
mod progress;
mod pull;
pub(crate) mod reader;
pub(crate) mod record_lock;
mod remote_layers;
mod removal;
mod runnable_cache;
mod shared_futures;
mod shared_types;
pub(crate) mod snapshots;
#[cfg(test)]
mod test_store;
pub(crate) mod unpack;
pub(crate) mod usage;

use blob::BlobRepairs;
pub(crate) use content_disk::reported_root;
pub(crate) use index::ImageInfo;
use index::{DamagedRecord, ImageRecord, ImageRecords};
use infos::{InfoCache, KnownContents, RecordContent};
use layer_pipeline::{LayerPipeline, LayerSource, UnpackPlan};
use lost_layers::ChainState;
use pull::Pulls;
use remote_layers::RemoteImage;
use runnable_cache::{FoundRunnable, RunnableKey};
use shared_types::from_registry;
pub(crate) use shared_types::rfc3339;
pub(crate) use shared_types::{ImagePolicy, RunnableImage, Snapshotters};
use snapshots::AwaySnapshotters;

/// The label, key and value, by which containerd's own CRI plugin marks images that must not be removed. It
/// is read here so that both agree.
const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

/// The images of one containerd namespace.
pub(crate) struct ContainerdImageStore {
    client: Client,
    policy: Reloadable<ImagePolicy>,
    containerd_features: ContainerdFeatures,
    content_disk: Arc<content_disk::ContentDisk>,
    infos: Arc<InfoCache>,
    /// The names of the damaged images that were found when the records were last read.
    damaged: Mutex<Vec<String>>,
    record_lock: record_lock::RecordLock,
    runnable_cache: runnable_cache::RunnableCache,
    pulls: Pulls,
    leases: lease::Leases,
    layer_sync: layer_sync::LayerSync,
    usage: usage::UsageCache,
    snapshotters: AwaySnapshotters,
    /// Limits the number of concurrent loads.
    load_permits: Arc<Semaphore>,
    /// The directory on whose disk loads decompress archives.
    scratch: PathBuf,
}

/// The answer to which image a reference means.
enum LookedUp {
    /// The image is known, and its root file system is there.
    Cached(RunnableImage),
    /// The root file system may have to be unpacked.
    Found(FoundRunnable),
}

impl std::fmt::Debug for ContainerdImageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContainerdImageStore")
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl ContainerdImageStore {
    pub(crate) fn new(
        client: Client,
        containerd_features: ContainerdFeatures,
        policy: ImagePolicy,
        leases: lease::Leases,
        layer_sync: layer_sync::LayerSync,
        scratch: PathBuf,
    ) -> Self {
        Self {
            layer_sync,
            scratch,
            client,
            policy: policy.into(),
            containerd_features,
            content_disk: Arc::default(),
            infos: Arc::default(),
            damaged: Mutex::default(),
            record_lock: record_lock::RecordLock::default(),
            runnable_cache: runnable_cache::RunnableCache::default(),
            pulls: Pulls::default(),
            leases,
            usage: usage::UsageCache::default(),
            snapshotters: AwaySnapshotters::default(),
            load_permits: Arc::new(Semaphore::new(load::MAX_CONCURRENT_LOADS)),
        }
    }

    /// Replaces the configuration of images, for pulls, loads and tasks from now on.
    pub(crate) fn reconfigure(&self, policy: ImagePolicy) {
        let configured = policy.snapshotters.clone();
        self.policy.set(policy);
        self.snapshotters
            .retain(&configured.all().into_iter().collect::<Vec<_>>());
        self.runnable_cache.invalidate();
    }

    /// The configuration of images that is in force.
    pub(crate) fn policy(&self) -> Arc<ImagePolicy> {
        self.policy.get()
    }

    /// All image records but those of artifacts and of images for other platforms. What is damaged of one
    /// image keeps nobody from the others.
    async fn records(&self) -> Result<ImageRecords> {
        self.records_with(&mut self.infos.nothing_known()).await
    }

    /// As [`ContainerdImageStore::records`]; what is known of their content is not read again.
    async fn records_with(&self, known: &mut KnownContents) -> Result<ImageRecords> {
        let request = api::ListImagesRequest {
            filters: Vec::new(),
        };
        let listed = call("list images", QUICK, self.client.images().list(request))
            .await?
            .images;
        let mut records = ImageRecords::default();
        let mut targets = BTreeSet::new();
        for image in listed {
            let Some(target) = image
                .target
                .and_then(|target| target.digest.parse::<Digest>().ok())
            else {
                continue;
            };
            targets.insert(target.clone());
            let name = image.name;
            let info = match self.infos.look_known(&self.client, &target, known).await? {
                RecordContent::Image(info) => info,
                RecordContent::Damaged(fault) => {
                    records.damaged.push(DamagedRecord {
                        name,
                        target,
                        fault,
                    });
                    continue;
                }
                RecordContent::Foreign(error) => {
                    tracing::debug!(
                        image = name,
                        error = error.report(),
                        "ignoring an image record that is no image for this platform, or is incomplete"
                    );
                    continue;
                }
            };
            let pinned = image
                .labels
                .get(PINNED.0)
                .is_some_and(|value| value == PINNED.1);
            let holders = holders::parse(&image.labels, &target);
            let released = holders::was_released(&image.labels, &target);
            let stored_at = image
                .created_at
                .and_then(|at| SystemTime::try_from(at).ok());
            let reference = name.parse().ok();
            records.usable.push(ImageRecord {
                name,
                reference,
                target,
                pinned,
                info,
                holders,
                released,
                stored_at,
            });
        }
        self.infos.retain(&targets);
        let layers = || records.usable.iter().flat_map(|record| &record.info.layers);
        self.repairs()
            .retain(|digest| layers().any(|layer| layer.digest == *digest));
        *self.damaged.lock() = records
            .damaged
            .iter()
            .map(|record| record.name.clone())
            .collect();
        Ok(records)
    }

    fn repairs(&self) -> &BlobRepairs {
        self.pulls.inflight_layers().repairs()
    }

    /// The names of the damaged images that are known.
    pub(crate) fn damaged(&self) -> Vec<String> {
        self.damaged.lock().clone()
    }

    /// The image that a task of this runtime handler and owner is created from, unpacked for the handler's
    /// snapshotter.
    ///
    /// # Errors
    /// `NotFound` if the node does not have it, or only another owner's credentials give access to it;
    /// `InvalidArgument` if it has more layers or a larger configuration than the limits allow, however it
    /// got into containerd.
    pub(crate) async fn runnable(
        &self,
        reference: &str,
        handler: &str,
        owner: Owner,
    ) -> Result<RunnableImage> {
        let policy = self.policy.get();
        let snapshotter = policy.snapshotters.of(handler);
        let key = RunnableKey::new(reference, snapshotter, owner);
        let found = match self.look_up(&key, policy.limits).await? {
            LookedUp::Cached(runnable) => return Ok(runnable),
            LookedUp::Found(found) => found,
        };
        let info = &found.runnable.info;
        let chain = index::chain_ids(&info.config.rootfs.diff_ids);
        if self.layer_sync.chain_state(snapshotter, &chain).await? != ChainState::Whole {
            let remote = load::remote_image(snapshotter, &found.runnable.name, &info.manifest);
            self.unpack_local(info, snapshotter, remote.as_ref())
                .await?;
        }
        self.runnable_cache.insert(key, &found);
        Ok(found.runnable)
    }

    /// Finds the image that a reference means, and checks the owner's right to it and its size. Under the lock
    /// of the records: a removal by another owner is over before this, or sees that the caller needs the
    /// image.
    async fn look_up(&self, key: &RunnableKey, limits: registry::Limits) -> Result<LookedUp> {
        let RunnableKey {
            reference,
            snapshotter: _,
            owner,
        } = key;
        let _lock = self
            .record_lock
            .look_up(&format!("look up image {reference}"))
            .await?;
        let generation = self.runnable_cache.generation();
        if let Some(known) = self.runnable_cache.get_if_valid(&self.client, key).await? {
            return Ok(LookedUp::Cached(known));
        }
        let ImageRecords {
            usable: records,
            damaged,
        } = self.records().await?;
        let record =
            index::find(&records, reference)?.ok_or_else(|| {
                match index::find_damaged(&damaged, reference) {
                    Some(found) => {
                        let what =
                            format!("image {reference:?} is damaged on this node: pull it again");
                        Error::not_found(what).with_source(found.fault.clone())
                    }
                    None => Error::not_found(format!(
                        "image {reference:?} is not on this node: pull it first"
                    )),
                }
            })?;
        let image = self.describe(&records, &record.info.id)?;
        if !image.is_open_to(*owner) {
            return Err(Error::not_found(format!(
                "image {reference:?} was pulled with credentials that are not {owner}'s: pull it with your own first"
            )));
        }
        let info = Arc::clone(&record.info);
        // The limit on an image's size is not checked here: using the image takes no more space than it has
        // already.
        let limits = registry::Limits {
            image_bytes: None,
            ..limits
        };
        let within = limits.check_layers(&record.name, &info.layers);
        within
            .and_then(|()| {
                limits.check_config(&format!("config of {}", record.name), info.config_bytes)
            })
            .map_err(from_registry)?;
        let image_ref = records
            .iter()
            .filter(|other| other.info.id == info.id)
            .find_map(|other| Some(other.reference.as_ref()?.repo_digest(&other.target)))
            .unwrap_or_else(|| info.id.to_string());
        let top = info.top();
        let runnable = RunnableImage {
            info,
            image_ref,
            name: record.name.clone(),
            top,
        };
        Ok(LookedUp::Found(FoundRunnable {
            runnable,
            target: record.target.clone(),
            generation,
        }))
    }

    /// Unpacks an image whose content is in the content store already: imported, or pulled for another
    /// snapshotter. Starts again if a snapshot that it builds on was garbage-collected meanwhile.
    async fn unpack_local(
        &self,
        info: &ImageInfo,
        snapshotter: &str,
        remote: Option<&RemoteImage>,
    ) -> Result<()> {
        for _ in 1..pull::ATTEMPTS {
            match self.unpack_leased(info, snapshotter, remote).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    tracing::info!(image = %info.id, error = error.report(), "a snapshot was removed while an image was unpacked: unpacking again");
                }
                other => return other,
            }
        }
        self.unpack_leased(info, snapshotter, remote).await
    }

    async fn unpack_leased(
        &self,
        info: &ImageInfo,
        snapshotter: &str,
        remote: Option<&RemoteImage>,
    ) -> Result<()> {
        let lease = self.leases.create("unpack").await?;
        reach(CrashPoint::UnpackLeased);
        let client = lease.client()?;
        let label = (
            format!("containerd.io/gc.ref.snapshot.{snapshotter}"),
            info.top().unwrap_or_default(),
        );
        content::add_labels(
            &client,
            &info.config_digest,
            std::iter::once(label).collect(),
        )
        .await?;
        let plan = UnpackPlan {
            snapshotter: snapshotter.to_owned(),
            layers: info.layers.clone(),
            diff_ids: info.config.rootfs.diff_ids.clone(),
            rebase: self.containerd_features.supports_rebase(snapshotter),
            remote: remote.cloned(),
            source: [0; 32],
            layer_sync: self.layer_sync.clone(),
        };
        let source = LayerSource::Stored;
        let layers = LayerPipeline::new(plan, self.pulls.inflight_layers(), lease, source)?;
        layers.download_and_unpack().await?;
        layers.release().await;
        Ok(())
    }

    /// The image with this id, from its records and the configured pins.
    fn describe(&self, records: &[ImageRecord], id: &ImageId) -> Result<Image> {
        let names: Vec<ImageRecord> = records
            .iter()
            .filter(|record| record.info.id == *id)
            .cloned()
            .collect();
        let mut image = index::images(&names)
            .pop()
            .ok_or_else(|| Error::not_found(format!("image {id} was removed meanwhile")))?;
        image.pinned |= self.pinned(records).contains(id);
        Ok(image)
    }

    /// The ids of the images that the configuration pins.
    fn pinned(&self, records: &[ImageRecord]) -> BTreeSet<ImageId> {
        let named = |reference: &String| match index::find(records, reference) {
            Ok(found) => found.map(|record| record.info.id.clone()),
            // An ambiguous beginning of an id pins no image.
            Err(_) => None,
        };
        self.policy.get().pins.iter().filter_map(named).collect()
    }

    /// The images that have layers, by the snapshot of the top layer.
    ///
    /// # Errors
    /// `Unavailable` if the store cannot be read.
    pub(crate) async fn by_top_layer(&self) -> Result<BTreeMap<String, BTreeSet<ImageId>>> {
        let records = self.records().await?;
        Ok(index::by_top_layer(&records.usable))
    }

    /// Creates leases, and keeps those of predecessors.
    pub(crate) const fn leases(&self) -> &lease::Leases {
        &self.leases
    }

    /// Syncs layers, and removes lost ones.
    pub(crate) const fn layer_sync(&self) -> &layer_sync::LayerSync {
        &self.layer_sync
    }

    /// Reports whether all configured snapshotters can be used, and answer.
    pub(crate) fn snapshotter_condition(&self) -> Condition {
        let policy = self.policy.get();
        let fault = |name| Some((name, self.containerd_features.snapshotter_fault(name)?));
        let unusable = policy.snapshotters.all().into_iter().filter_map(fault);
        self.snapshotters.condition(unusable.collect())
    }

    /// Returns the snapshotters that do not answer.
    pub(crate) const fn snapshotters(&self) -> &AwaySnapshotters {
        &self.snapshotters
    }
}

impl ImageStore for ContainerdImageStore {
    fn pull<'a>(&'a self, request: &'a PullRequest) -> BoxFuture<'a, Result<ImageId>> {
        Box::pin(async move {
            let reference = request.reference.parse::<ImageReference>()?;
            let policy = self.policy.get();
            let snapshotter = policy.snapshotters.of(&request.handler).to_owned();
            let rebase = self.containerd_features.supports_rebase(&snapshotter);
            let job = pull::PullJob {
                client: self.client.clone(),
                registry: policy.registry.clone(),
                infos: Arc::clone(&self.infos),
                leases: self.leases.clone(),
                record_lock: self.record_lock.clone(),
                downloads: policy.downloads,
                content_disk: policy
                    .check_free_space
                    .then(|| Arc::clone(&self.content_disk)),
                reference,
                credentials: request.credentials.clone(),
                snapshotter,
                rebase,
                layer_sync: self.layer_sync.clone(),
                inflight_layers: Arc::clone(self.pulls.inflight_layers()),
                owner: request.owner,
                right: request.right(),
                progress: Arc::default(),
            };
            self.pulls.join(job).await
        })
    }

    fn load(&self, request: LoadRequest) -> BoxFuture<'_, Result<ImageId>> {
        Box::pin(self.load_from(request))
    }

    fn progress(&self, request: &PullRequest) -> Option<PullProgress> {
        let reference = request.reference.parse::<ImageReference>().ok()?;
        let policy = self.policy.get();
        let snapshotter = policy.snapshotters.of(&request.handler);
        self.pulls.progress(&pull::key(
            &reference,
            snapshotter,
            request.owner,
            &request.credentials,
        ))
    }

    fn config<'a>(&'a self, id: &'a ImageId) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let digest: Digest = id
                .as_str()
                .parse()
                .map_err(|fault| Error::not_found(format!("image {id}")).with_source(fault))?;
            // An id is the digest of the configuration.
            let bytes = blob::read(&self.client, &digest).await?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    fn get<'a>(&'a self, reference: &'a str) -> BoxFuture<'a, Result<Option<Image>>> {
        Box::pin(async move {
            let records = self.records().await?.usable;
            let Some(found) = index::find(&records, reference)? else {
                return Ok(None);
            };
            if self.repairs().has_damaged(&found.info.layers) {
                // It is said to be absent, so that it is pulled again, which replaces what is damaged.
                return Ok(None);
            }
            self.describe(&records, &found.info.id).map(Some)
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Image>>> {
        Box::pin(async move {
            let records = self.records().await?.usable;
            let mut images = index::images(&records);
            let pinned = self.pinned(&records);
            images
                .iter_mut()
                .for_each(|image| image.pinned |= pinned.contains(&image.id));
            Ok(images)
        })
    }

    fn remove<'a>(
        &'a self,
        reference: &'a str,
        owner: Owner,
        in_use: &'a InUse<'a>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.remove_image(reference, owner, in_use))
    }

    fn leases(&self) -> BoxFuture<'_, Result<Vec<ImageLease>>> {
        Box::pin(self.leases.list())
    }

    fn usage(&self) -> BoxFuture<'_, Result<Vec<DiskUsage>>> {
        Box::pin(async move {
            self.usage
                .read(
                    &self.client,
                    &self.policy.get().snapshotters,
                    &self.snapshotters,
                )
                .await
        })
    }
}
