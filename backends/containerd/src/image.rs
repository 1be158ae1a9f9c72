//! The image store: containerd's image records, and the pulls and loads that create them.
//!
//! All images in the containerd namespace are listed, including those that `ctr images import` has brought.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use containerd_client::services::v1 as api;
use containerd_client::types;
use futures::future::BoxFuture;
use switchyard_core::id::Owner;
use switchyard_core::image::{Image, ImageId, ImageStore, LoadRequest, PullProgress, PullRequest};
use switchyard_core::reload::Reloadable;
use switchyard_core::stats::DiskUsage;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_registry::{self as registry, Digest, Reference};
use switchyard_steps::{Step, reach};
use tokio::sync::Semaphore;

use crate::client::features::ContainerdFeatures;
use crate::client::{Client, QUICK, call, ignore_not_found};

pub(crate) mod content;
mod content_disk;
mod detached;
mod holders;
pub(crate) mod index;
mod layer_pipeline;
pub(crate) mod layer_sync;
pub(crate) mod layer_usage;
pub(crate) mod lease;
pub(crate) mod load;
mod name;
mod progress;
mod pull;
pub(crate) mod reader;
mod runnable_cache;
mod shared_types;
mod singleflight;
pub(crate) mod unpack;
pub(crate) mod usage;

pub(crate) use content_disk::reported_root;
pub(crate) use index::ImageInfo;
use index::{ImageRecord, InfoCache};
use pull::Pulls;
use shared_types::from_registry;
pub(crate) use shared_types::rfc3339;
pub(crate) use shared_types::{ImagePolicy, RunnableImage, Snapshotters};

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
    runnable_cache: runnable_cache::RunnableCache,
    pulls: Pulls,
    leases: lease::Leases,
    layer_sync: layer_sync::LayerSync,
    usage: usage::UsageCache,
    /// Limits the number of concurrent loads.
    load_permits: Arc<Semaphore>,
}

impl std::fmt::Debug for ContainerdImageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ContainerdImageStore").field("client", &self.client).finish_non_exhaustive()
    }
}

impl ContainerdImageStore {
    pub(crate) fn new(
        client: Client,
        containerd_features: ContainerdFeatures,
        policy: ImagePolicy,
        leases: lease::Leases,
        layer_sync: layer_sync::LayerSync,
    ) -> Self {
        Self {
            layer_sync,
            client,
            policy: policy.into(),
            containerd_features,
            content_disk: Arc::default(),
            infos: Arc::default(),
            runnable_cache: runnable_cache::RunnableCache::default(),
            pulls: Pulls::default(),
            leases,
            usage: usage::UsageCache::default(),
            load_permits: Arc::new(Semaphore::new(load::MAX_CONCURRENT_LOADS)),
        }
    }

    /// Replaces the configuration of images, for pulls, loads and tasks from now on.
    pub(crate) fn reconfigure(&self, policy: ImagePolicy) {
        self.policy.set(policy);
        self.runnable_cache.invalidate();
    }

    /// The configuration of images that is in force.
    pub(crate) fn policy(&self) -> Arc<ImagePolicy> {
        self.policy.get()
    }

    /// All image records whose content is an image for this machine's platform.
    async fn records(&self) -> Result<Vec<ImageRecord>> {
        let request = api::ListImagesRequest { filters: Vec::new() };
        let listed = call("list images", QUICK, self.client.images().list(request)).await?.images;
        let mut records = Vec::with_capacity(listed.len());
        for image in listed {
            let Some(target) = image.target.and_then(|target| target.digest.parse::<Digest>().ok()) else {
                continue;
            };
            match self.infos.load(&self.client, &target).await {
                Ok(info) => {
                    let pinned = image.labels.get(PINNED.0).is_some_and(|value| value == PINNED.1);
                    let holders = holders::parse(&image.labels, &target);
                    let released = holders::was_released(&image.labels, &target);
                    let stored_at = image.created_at.and_then(|at| SystemTime::try_from(at).ok());
                    let name = image.name;
                    records.push(ImageRecord { name, target, pinned, info, holders, released, stored_at });
                }
                // The errors passed over: an image for other platforms, an artifact, or content that was
                // removed.
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!(
                        image = image.name,
                        error = error.report(),
                        "ignoring an image record that is no image for this platform, or is incomplete"
                    );
                }
            }
        }
        self.infos.retain(&records.iter().map(|record| record.target.clone()).collect());
        Ok(records)
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
        let key = runnable_cache::RunnableKey::new(reference, snapshotter, owner);
        let generation = self.runnable_cache.generation();
        if let Some(known) = self.runnable_cache.get_if_valid(&self.client, &key).await? {
            return Ok(known);
        }
        let records = self.records().await?;
        let record = index::find(&records, reference)?.ok_or_else(|| {
            Error::not_found(format!("image {reference:?} is not on this node: pull it first"))
        })?;
        let image = self.describe(&records, &record.info.id)?;
        if !image.is_open_to(owner) {
            return Err(Error::not_found(format!(
                "image {reference:?} was pulled with credentials that are not {owner}'s: pull it with your own first"
            )));
        }
        let info = Arc::clone(&record.info);
        // The limit on an image's size is not checked here: using the image takes no more space than it has
        // already.
        let limits = registry::Limits { image_bytes: None, ..policy.limits };
        let within = limits.check_layers(&record.name, &info.layers);
        within
            .and_then(|()| limits.check_config(&format!("config of {}", record.name), info.config_bytes))
            .map_err(from_registry)?;
        let image_ref = records
            .iter()
            .filter(|other| other.info.id == info.id)
            .find_map(|other| Some(other.name.parse::<Reference>().ok()?.repo_digest(&other.target)))
            .unwrap_or_else(|| info.id.to_string());
        let top = info.top();
        if let Some(top) = &top
            && !unpack::exists(&self.client, snapshotter, top).await?
        {
            self.unpack_local(&info, snapshotter).await?;
        }
        let runnable = RunnableImage { info, image_ref, name: record.name.clone(), top };
        self.runnable_cache.insert(key, record, &runnable, generation);
        Ok(runnable)
    }

    /// Unpacks an image whose content is in the content store already: imported, or pulled for another
    /// snapshotter. Starts again if a snapshot that it builds on was garbage-collected meanwhile.
    async fn unpack_local(&self, info: &ImageInfo, snapshotter: &str) -> Result<()> {
        for _ in 1..pull::ATTEMPTS {
            match self.unpack_leased(info, snapshotter).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    tracing::info!(image = %info.id, error = error.report(), "a snapshot was removed while an image was unpacked: unpacking again");
                }
                other => return other,
            }
        }
        self.unpack_leased(info, snapshotter).await
    }

    async fn unpack_leased(&self, info: &ImageInfo, snapshotter: &str) -> Result<()> {
        let lease = self.leases.create("unpack").await?;
        reach(Step::UnpackLeased);
        let client = lease.client()?;
        let label = (format!("containerd.io/gc.ref.snapshot.{snapshotter}"), info.top().unwrap_or_default());
        content::add_labels(&client, &info.config_digest, std::iter::once(label).collect()).await?;
        let plan = layer_pipeline::UnpackPlan {
            snapshotter: snapshotter.to_owned(),
            layers: info.layers.clone(),
            diff_ids: info.config.rootfs.diff_ids.clone(),
            rebase: self.containerd_features.supports_rebase(snapshotter),
            source: [0; 32],
            layer_sync: self.layer_sync.clone(),
        };
        let layers = layer_pipeline::LayerPipeline::new(plan, self.pulls.inflight_layers(), lease)?;
        layers.download_and_unpack(None).await?;
        layers.release().await;
        Ok(())
    }

    /// The image with this id, from its records and the configured pins.
    fn describe(&self, records: &[ImageRecord], id: &ImageId) -> Result<Image> {
        let names: Vec<ImageRecord> =
            records.iter().filter(|record| record.info.id == *id).cloned().collect();
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

    /// Removes the label of a holder from an image record and keeps the record. A single update, so that a
    /// kill leaves no record that gives access to more owners than before.
    async fn release_hold(&self, record: &ImageRecord, owner: Owner) -> Result<()> {
        let labels = holders::release_labels(&record.holders, owner, &record.target);
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let image = api::Image {
            name: record.name.clone(),
            labels,
            // The mask leaves the target as it is, but containerd 1.7 and later crash on a request without
            // one.
            target: Some(types::Descriptor { digest: record.target.to_string(), ..Default::default() }),
            ..Default::default()
        };
        let mask = prost_types::FieldMask { paths };
        let request =
            api::UpdateImageRequest { image: Some(image), update_mask: Some(mask), ..Default::default() };
        let what = format!("remove the holder of image {}", record.name);
        ignore_not_found(call(&what, QUICK, self.client.images().update(request)).await)?;
        reach(Step::ImageLetGo);
        Ok(())
    }

    /// Syncs, in the background, snapshots that a predecessor has unpacked in this boot and not synced.
    pub(crate) fn sync_unsynced(&self, snapshotter: &str, names: Vec<String>) {
        self.layer_sync.spawn_sync(snapshotter, names, None);
    }
}

impl ImageStore for ContainerdImageStore {
    fn pull<'a>(&'a self, request: &'a PullRequest) -> BoxFuture<'a, Result<ImageId>> {
        Box::pin(async move {
            let reference = request
                .reference
                .parse::<Reference>()
                .map_err(|fault| Error::invalid("image", "is not an image reference").with_source(fault))?;
            let policy = self.policy.get();
            let snapshotter = policy.snapshotters.of(&request.handler).to_owned();
            let rebase = self.containerd_features.supports_rebase(&snapshotter);
            let job = pull::PullJob {
                client: self.client.clone(),
                registry: policy.registry.clone(),
                infos: Arc::clone(&self.infos),
                leases: self.leases.clone(),
                downloads: policy.downloads,
                content_disk: policy.check_free_space.then(|| Arc::clone(&self.content_disk)),
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
        let reference = request.reference.parse::<Reference>().ok()?;
        let policy = self.policy.get();
        let snapshotter = policy.snapshotters.of(&request.handler);
        self.pulls.progress(&pull::key(&reference, snapshotter, request.owner, &request.credentials))
    }

    fn config<'a>(&'a self, id: &'a ImageId) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let digest: Digest = id
                .as_str()
                .parse()
                .map_err(|fault| Error::not_found(format!("image {id}")).with_source(fault))?;
            // An id is the digest of the configuration.
            let bytes = content::read(&self.client, &digest).await?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    fn get<'a>(&'a self, reference: &'a str) -> BoxFuture<'a, Result<Option<Image>>> {
        Box::pin(async move {
            let records = self.records().await?;
            let Some(found) = index::find(&records, reference)? else { return Ok(None) };
            self.describe(&records, &found.info.id).map(Some)
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<Image>>> {
        Box::pin(async move {
            let records = self.records().await?;
            let mut images = index::images(&records);
            let pinned = self.pinned(&records);
            images.iter_mut().for_each(|image| image.pinned |= pinned.contains(&image.id));
            Ok(images)
        })
    }

    fn remove<'a>(&'a self, reference: &'a str, owner: Owner, in_use: bool) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let records = self.records().await?;
            let Some(found) = index::find(&records, reference)? else { return Ok(()) };
            // The last deletion waits for containerd's garbage collection, so that the space is free when this
            // returns. The name that was asked for is deleted last, so that the same request finishes a removal
            // that was cut off.
            let names = records
                .iter()
                .filter(|record| record.info.id == found.info.id && record.name != found.name)
                .chain([found])
                .collect::<Vec<_>>();
            // What is cached of this image may depend on the access right that is removed here.
            let _guard = self.runnable_cache.invalidate_around();
            let mut deleted = Vec::new();
            let mut released = Vec::new();
            for record in names {
                match holders::removal_action(&record.holders, owner, in_use) {
                    holders::RemovalAction::Delete => deleted.push(record.name.as_str()),
                    holders::RemovalAction::Release => released.push(record),
                    holders::RemovalAction::Keep => {}
                }
            }
            for record in released {
                self.release_hold(record, owner).await?;
            }
            for (number, name) in deleted.iter().enumerate() {
                let request = api::DeleteImageRequest {
                    name: (*name).to_owned(),
                    sync: number + 1 == deleted.len(),
                    ..Default::default()
                };
                ignore_not_found(
                    call(&format!("remove image {name}"), QUICK * 4, self.client.images().delete(request))
                        .await,
                )?;
                reach(Step::ImageUnnamed);
            }
            self.usage.invalidate();
            Ok(())
        })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Vec<DiskUsage>>> {
        Box::pin(async move { self.usage.read(&self.client, &self.policy.get().snapshotters).await })
    }
}
