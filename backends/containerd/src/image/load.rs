//! Loading images from archives into the content store, under a lease.
//!
//! The names in an archive are not trustworthy, and image names are shared by all owners on the node. So a
//! loaded image is named by its digest, in a domain that no registry has, and only the owner that loaded it
//! may use it.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use switchyard_core::image::{ImageId, LoadRequest, Right};
use switchyard_core::{Error, Result, threads};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_registry::{Descriptor, Digest, ImageConfig};
use tokio_util::sync::CancellationToken;

use super::ContainerdImageStore;
use super::content::{self, Labels};
use super::index::chain_ids;
use super::layer_pipeline::{LayerPipeline, LayerSource, UnpackPlan};
use super::lease::Lease;
use super::name::Naming;
use super::platform::check_platform;
use super::remote_layers::RemoteImage;
use crate::client::Client;

pub(crate) mod archive;
mod decompress;

use archive::{Archive, ArchiveImage};
use decompress::decompressed;

/// Maximum number of images that are loaded concurrently.
pub(super) const MAX_CONCURRENT_LOADS: usize = 4;

/// The name of loaded images, before the digest.
const LOADED_NAME_PREFIX: &str = "loaded.switchyard.io/image";

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

impl ContainerdImageStore {
    /// Loads an image from an archive. Cancel-safe: the thread that reads the archive stops soon after.
    pub(super) async fn load_from(&self, request: LoadRequest) -> Result<ImageId> {
        let LoadRequest {
            archive,
            reference,
            handler,
            owner,
        } = request;
        let permit = Arc::clone(&self.load_permits).acquire_owned().await;
        let permit = Arc::new(
            permit.map_err(|closed| Error::internal("wait for other loads").with_source(closed))?,
        );
        let stop = CancellationToken::new();
        let _stop_on_drop = stop.clone().drop_guard();
        // The thread reads and hashes the whole image, so it holds the permit too: another load starts only
        // after the thread has ended, even if this future is dropped before.
        let thread_permit = Arc::clone(&permit);
        let policy = self.policy();
        let limits = policy.limits;
        let scratch = self.scratch.clone();
        let image = threads::bulk(move || {
            let _permit = thread_permit;
            let archive = decompressed(archive, &scratch, &stop)?;
            Archive::open(archive, stop)?.image(&reference, &limits)
        })
        .await?;
        let config = ImageConfig::parse("config", &image.config)
            .map_err(super::shared_types::from_registry)?;
        check_platform(LOADED_NAME_PREFIX, &config.platform, None).await?;
        let snapshotter = policy.snapshotters.of(&handler).to_owned();
        let plan = self.unpack_plan_of(&image, config.rootfs.diff_ids, snapshotter);
        limits
            .check_layers("the image", &plan.layers)
            .map_err(super::shared_types::from_registry)?;
        if policy.check_free_space {
            self.content_disk.check(&self.client, &plan.layers).await?;
        }
        let lease = self.leases.create("load").await?;
        reach(CrashPoint::PullLeased);
        let client = lease.client()?;
        for layer in &image.layers {
            content::write_from_file(
                &client,
                &image.file,
                layer.at,
                &layer.descriptor,
                Labels::new(),
            )
            .await?;
        }
        let manifest = self
            .write_documents((&client, &lease), &image.config, &plan)
            .await?;
        let offsets = image.layers.iter().map(|layer| layer.at).collect();
        let source = LayerSource::Archive {
            file: Arc::clone(&image.file),
            offsets,
        };
        let layers = LayerPipeline::new(plan, self.pulls.inflight_layers(), lease, source)?;
        layers.download_and_unpack().await?;
        self.infos.check_all_again();
        // If another owner has loaded the same image before, the two share the record.
        // Before it is named: as soon as it has a name, others may remove it.
        let info = self.infos.load(&client, &manifest.digest).await?;
        let names = vec![format!("{LOADED_NAME_PREFIX}@{}", manifest.digest)];
        let naming = Naming {
            client,
            names,
            target: manifest,
            owner,
            right: Right::Private,
        };
        naming
            .assign(&self.record_lock, &self.leases, Arc::clone(&layers))
            .await?;
        layers.release().await;
        reach(CrashPoint::PullReleased);
        Ok(info.id.clone())
    }

    /// Plans how the layers of an archive's image are unpacked.
    fn unpack_plan_of(
        &self,
        image: &ArchiveImage,
        diff_ids: Vec<Digest>,
        snapshotter: String,
    ) -> UnpackPlan {
        UnpackPlan {
            rebase: self.containerd_features.supports_rebase(&snapshotter),
            snapshotter,
            layers: image
                .layers
                .iter()
                .map(|layer| layer.descriptor.clone())
                .collect(),
            diff_ids,
            // The image is in no registry.
            remote: None,
            source: [0; 32],
            layer_sync: self.layer_sync.clone(),
        }
    }

    /// Writes the configuration and the manifest, with the labels by which containerd's garbage collection
    /// follows references between them.
    async fn write_documents(
        &self,
        to: (&Client, &Lease),
        config: &Bytes,
        plan: &UnpackPlan,
    ) -> Result<Descriptor> {
        let repairs = self.pulls.inflight_layers().repairs();
        let blob = descriptor(CONFIG, config);
        let mut labels = Labels::new();
        if let Some(top) = chain_ids(&plan.diff_ids).pop() {
            labels.insert(
                format!("containerd.io/gc.ref.snapshot.{}", plan.snapshotter),
                top,
            );
        }
        repairs
            .store_document(to, "config", &blob, config.clone(), labels)
            .await?;
        reach(CrashPoint::ConfigWritten);
        let listed = |blob: &Descriptor| json!({ "mediaType": blob.media_type, "digest": blob.digest.to_string(), "size": blob.size });
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": listed(&blob),
            "layers": plan.layers.iter().map(listed).collect::<Vec<_>>(),
        });
        let manifest = Bytes::from(manifest.to_string());
        let mut labels = Labels::from([(
            "containerd.io/gc.ref.content.config".to_owned(),
            blob.digest.to_string(),
        )]);
        for (number, layer) in plan.layers.iter().enumerate() {
            labels.insert(
                format!("containerd.io/gc.ref.content.l.{number}"),
                layer.digest.to_string(),
            );
        }
        let blob = descriptor(MANIFEST, &manifest);
        repairs
            .store_document(to, "manifest", &blob, manifest, labels)
            .await?;
        reach(CrashPoint::ManifestWritten);
        Ok(blob)
    }
}

/// Returns what a remote snapshotter needs to provide the layers of an image with this name and manifest; `None` if it cannot, as
/// those of an image that was loaded.
pub(super) fn remote_image(
    snapshotter: &str,
    name: &str,
    manifest: &Digest,
) -> Option<RemoteImage> {
    if name.starts_with(LOADED_NAME_PREFIX) {
        return None;
    }
    RemoteImage::of(snapshotter, &name.parse().ok()?, manifest)
}

fn descriptor(media_type: &str, bytes: &Bytes) -> Descriptor {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    Descriptor::new(media_type, Digest::sha256(bytes), size)
}
