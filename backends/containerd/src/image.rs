//! The image store: containerd's image records, and the pulls that make them.
//!
//! Images have no owner: whatever is in the namespace is listed, also what `ctr images import` brought.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use containerd_client::services::v1 as api;
use containerd_client::types;
use switchyard_core::id::Owner;
use switchyard_core::image::{Image, ImageId, ImageStore, LoadRequest, PullProgress, PullRequest};
use switchyard_core::stats::DiskUsage;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_registry::{self as registry, Digest, Reference};
use switchyard_steps::{Step, reach};
use tokio::sync::Semaphore;

use crate::client::{Client, QUICK, call, ignore_not_found};
use crate::containerd_features::ContainerdFeatures;

pub(crate) mod content;
mod content_disk;
mod detached;
mod holders;
pub(crate) mod index;
mod layer_pipeline;
pub(crate) mod layer_sync;
pub(crate) mod lease;
pub(crate) mod load;
mod name;
mod progress;
mod pull;
mod runnable_cache;
mod singleflight;
pub(crate) mod unpack;
pub(crate) mod usage;

pub(crate) use index::ImageInfo;
use index::{ImageRecord, InfoCache};
use pull::Pulls;

/// The label by which containerd's own CRI marks images that must stay; read, so that both agree.
const PINNED: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

/// The images of one containerd namespace.
pub(crate) struct ContainerdImageStore {
    client: Client,
    registry: registry::Client,
    snapshotters: Snapshotters,
    containerd_features: ContainerdFeatures,
    downloads: usize,
    /// References of images that stay.
    pins: Vec<String>,
    limits: registry::Limits,
    /// Looked at before each pull and load; `None` if the operator does not want it.
    content_disk: Option<Arc<content_disk::ContentDisk>>,
    infos: Arc<InfoCache>,
    runnable_cache: runnable_cache::RunnableCache,
    pulls: Pulls,
    leases: lease::Leases,
    layer_sync: layer_sync::LayerSync,
    usage: usage::UsageCache,
    /// Turns of those who load.
    load_permits: Arc<Semaphore>,
}

/// Which snapshotter serves which runtime handler.
#[derive(Debug, Clone)]
pub(crate) struct Snapshotters {
    pub(crate) default: String,
    pub(crate) by_handler: BTreeMap<String, String>,
}

impl Snapshotters {
    pub(crate) fn of(&self, handler: &str) -> &str {
        self.by_handler.get(handler).map_or(&self.default, String::as_str)
    }

    pub(crate) fn all(&self) -> BTreeSet<&str> {
        std::iter::once(self.default.as_str()).chain(self.by_handler.values().map(String::as_str)).collect()
    }
}

/// What an operator decides about images.
#[derive(Debug)]
pub(crate) struct ImagePolicy {
    /// How many layers of one pull come at once.
    pub(crate) downloads: usize,
    /// Names of images that stay.
    pub(crate) pins: Vec<String>,
    /// What an image may have at most.
    pub(crate) limits: registry::Limits,
    /// Whether a pull or a load is refused when there is less space than its layers have.
    pub(crate) check_free_space: bool,
}

/// An image that a task can be made from.
#[derive(Debug, Clone)]
pub(crate) struct RunnableImage {
    pub(crate) info: Arc<ImageInfo>,
    /// The image's name by digest, or its id if it has none.
    pub(crate) image_ref: String,
    /// The name of the image record.
    pub(crate) name: String,
    /// The snapshot of all its layers; `None` for an image without layers.
    pub(crate) top: Option<String>,
}

impl ContainerdImageStore {
    pub(crate) fn new(
        client: Client,
        registry: registry::Client,
        snapshotters: Snapshotters,
        abilities: ContainerdFeatures,
        policy: ImagePolicy,
        leases: lease::Leases,
        flush: layer_sync::LayerSync,
    ) -> Self {
        Self {
            layer_sync: flush,
            client,
            registry,
            snapshotters,
            containerd_features: abilities,
            downloads: policy.downloads.max(1),
            pins: policy.pins,
            limits: policy.limits,
            content_disk: policy.check_free_space.then(Arc::default),
            infos: Arc::default(),
            runnable_cache: runnable_cache::RunnableCache::default(),
            pulls: Pulls::default(),
            leases,
            usage: usage::UsageCache::default(),
            load_permits: Arc::new(Semaphore::new(load::MAX_CONCURRENT_LOADS)),
        }
    }

    /// All image records that lead to an image for this machine.
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
                    let left = holders::was_released(&image.labels, &target);
                    records.push(ImageRecord {
                        name: image.name,
                        target,
                        pinned,
                        info,
                        holders,
                        released: left,
                    });
                }
                // An image for other machines, an artifact, or one whose content somebody has removed.
                Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument) => {
                    return Err(error);
                }
                Err(error) => {
                    tracing::debug!(
                        image = image.name,
                        error = error.report(),
                        "an image record is passed over"
                    );
                }
            }
        }
        self.infos.retain(&records.iter().map(|record| record.target.clone()).collect());
        Ok(records)
    }

    /// The image that a task of this handler and owner is made from, unpacked for its snapshotter.
    ///
    /// # Errors
    /// `NotFound` if the node does not have it, or has it by another owner's right alone; `InvalidArgument` if it has more layers or
    /// a larger configuration than an image may have, however it came here.
    pub(crate) async fn runnable(
        &self,
        reference: &str,
        handler: &str,
        owner: Owner,
    ) -> Result<RunnableImage> {
        let snapshotter = self.snapshotters.of(handler);
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
        // Its bytes take no more by being used.
        let limits = registry::Limits { image_bytes: None, ..self.limits };
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

    /// Unpacks an image whose content is here already: imported, or pulled for another snapshotter. Begins anew if a snapshot
    /// that it built on was collected meanwhile.
    async fn unpack_local(&self, info: &ImageInfo, snapshotter: &str) -> Result<()> {
        for _ in 1..pull::ATTEMPTS {
            match self.unpack_leased(info, snapshotter).await {
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    tracing::info!(image = %info.id, error = error.report(), "unpacking again");
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

    /// The image of this id, as its records and the configuration have it.
    fn describe(&self, records: &[ImageRecord], id: &ImageId) -> Result<Image> {
        let names: Vec<ImageRecord> =
            records.iter().filter(|record| record.info.id == *id).cloned().collect();
        let mut image =
            index::images(&names).pop().ok_or_else(|| Error::not_found(format!("image {id} has gone")))?;
        image.pinned |= self.pinned(records).contains(id);
        Ok(image)
    }

    /// The images that the configuration pins.
    fn pinned(&self, records: &[ImageRecord]) -> BTreeSet<ImageId> {
        let named = |reference: &String| match index::find(records, reference) {
            Ok(found) => found.map(|record| record.info.id.clone()),
            // The beginning of more than one id names none of them.
            Err(_) => None,
        };
        self.pins.iter().filter_map(named).collect()
    }

    /// Takes the label of a holder off a record, which stays. One write: a kill leaves no record that is open to more than before.
    async fn release_hold(&self, record: &ImageRecord, owner: Owner) -> Result<()> {
        let labels = holders::release_labels(&record.holders, owner, &record.target);
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let image = api::Image {
            name: record.name.clone(),
            labels,
            // The mask leaves it as it is, but containerd 1.7 and later die of a record without one.
            target: Some(types::Descriptor { digest: record.target.to_string(), ..Default::default() }),
            ..Default::default()
        };
        let mask = prost_types::FieldMask { paths };
        let request =
            api::UpdateImageRequest { image: Some(image), update_mask: Some(mask), ..Default::default() };
        let what = format!("let go of image {}", record.name);
        ignore_not_found(call(&what, QUICK, self.client.images().update(request)).await)?;
        reach(Step::ImageLetGo);
        Ok(())
    }

    /// Syncs what a predecessor has unpacked in this boot and did not come to sync.
    pub(crate) fn sync_unsynced(&self, snapshotter: &str, names: Vec<String>) {
        self.layer_sync.spawn_sync(snapshotter, names, None);
    }

    pub(crate) fn snapshotters(&self) -> &Snapshotters {
        &self.snapshotters
    }
}

#[async_trait]
impl ImageStore for ContainerdImageStore {
    async fn pull(&self, request: &PullRequest) -> Result<ImageId> {
        let reference = request
            .reference
            .parse::<Reference>()
            .map_err(|fault| Error::invalid("image", "is not an image reference").with_source(fault))?;
        let snapshotter = self.snapshotters.of(&request.handler).to_owned();
        let rebase = self.containerd_features.supports_rebase(&snapshotter);
        let job = pull::PullJob {
            client: self.client.clone(),
            registry: self.registry.clone(),
            infos: Arc::clone(&self.infos),
            leases: self.leases.clone(),
            downloads: self.downloads,
            content_disk: self.content_disk.clone(),
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
    }

    async fn load(&self, request: LoadRequest) -> Result<ImageId> {
        self.load_from(request).await
    }

    fn progress(&self, request: &PullRequest) -> Option<PullProgress> {
        let reference = request.reference.parse::<Reference>().ok()?;
        let snapshotter = self.snapshotters.of(&request.handler);
        self.pulls.progress(&pull::key(&reference, snapshotter, request.owner, &request.credentials))
    }

    async fn config(&self, id: &ImageId) -> Result<String> {
        let digest: Digest = id
            .as_str()
            .parse()
            .map_err(|fault| Error::not_found(format!("image {id}")).with_source(fault))?;
        // An id is the digest of the configuration.
        let bytes = content::read(&self.client, &digest).await?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    async fn get(&self, reference: &str) -> Result<Option<Image>> {
        let records = self.records().await?;
        let Some(found) = index::find(&records, reference)? else { return Ok(None) };
        self.describe(&records, &found.info.id).map(Some)
    }

    async fn list(&self) -> Result<Vec<Image>> {
        let records = self.records().await?;
        let mut images = index::images(&records);
        let pinned = self.pinned(&records);
        images.iter_mut().for_each(|image| image.pinned |= pinned.contains(&image.id));
        Ok(images)
    }

    async fn remove(&self, reference: &str, owner: Owner, in_use: bool) -> Result<()> {
        let records = self.records().await?;
        let Some(found) = index::find(&records, reference)? else { return Ok(()) };
        // The last removal waits for containerd's garbage collection, so that the space is free when this returns.
        // The name that was asked for goes last, so that a removal that was cut off is finished when it is asked for again.
        let names = records
            .iter()
            .filter(|record| record.info.id == found.info.id && record.name != found.name)
            .chain([found])
            .collect::<Vec<_>>();
        // What is remembered of this image may rest on the right that goes with it.
        let _forgotten = self.runnable_cache.invalidate_around();
        let mut going = Vec::new();
        let mut let_go = Vec::new();
        for record in names {
            match holders::removal_action(&record.holders, owner, in_use) {
                holders::RemovalAction::Delete => going.push(record.name.as_str()),
                holders::RemovalAction::Release => let_go.push(record),
                holders::RemovalAction::Keep => {}
            }
        }
        for record in let_go {
            self.release_hold(record, owner).await?;
        }
        let names = going;
        for (number, name) in names.iter().enumerate() {
            let request = api::DeleteImageRequest {
                name: (*name).to_owned(),
                sync: number + 1 == names.len(),
                ..Default::default()
            };
            ignore_not_found(
                call(&format!("remove image {name}"), QUICK * 4, self.client.images().delete(request)).await,
            )?;
            reach(Step::ImageUnnamed);
        }
        self.usage.invalidate();
        Ok(())
    }

    async fn usage(&self) -> Result<Vec<DiskUsage>> {
        self.usage.read(&self.client, &self.snapshotters).await
    }
}

/// What a registry's error means to the gateway.
pub(crate) fn from_registry(error: registry::Error) -> Error {
    use registry::Error as E;
    let kind = match &error {
        E::InvalidReference { .. } => ErrorKind::InvalidArgument,
        E::InvalidConfig { .. } => ErrorKind::FailedPrecondition,
        E::NotFound { .. } | E::NoMatchingPlatform { .. } => ErrorKind::NotFound,
        E::Unauthorized { .. } | E::Denied { .. } => ErrorKind::Unauthenticated,
        E::Unavailable { .. } | E::RateLimited { .. } => ErrorKind::Unavailable,
        E::UnsupportedMediaType { .. } | E::TooLarge { .. } => ErrorKind::InvalidArgument,
        E::Protocol { .. } | E::DigestMismatch { .. } | E::SizeMismatch { .. } => ErrorKind::Internal,
    };
    Error::new(kind, "registry").with_source(error)
}

/// A time, for labels.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    prost_types::Timestamp::from(time).to_string()
}

/// How old a measurement of disk usage may be.
pub(crate) const USAGE_AGE: Duration = Duration::from_secs(10);
