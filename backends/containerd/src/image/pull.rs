//! Pulls of images. Concurrent requests with the same reference, snapshotter, owner and credentials share one
//! pull, which works under a lease and writes the documents first, then the layers, and the image records last.
//! Other pulls share the layers that they have in common ([`super::layer_pipeline`]).

use std::sync::Arc;

use futures::future::FutureExt;
use sha2::{Digest as _, Sha256};
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, ImageId, ImageReference, PullProgress, Right};
use switchyard_core::operation::{self, step};
use switchyard_core::{ErrorKind, Reason, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_registry::{self as registry, Descriptor, Digest, Platforms};

use super::content::Labels;
use super::content_disk::ContentDisk;
use super::index::{chain_ids, child_label};
use super::infos::InfoCache;
use super::layer_pipeline::{
    Downloads, InflightLayers, LayerPipeline, LayerSource, Source, UnpackPlan,
};
use super::lease::{Lease, Leases};
use super::name::Naming;
use super::platform::check_platform;
use super::progress::{Progress, RunningPulls};
use super::record_lock::RecordLock;
use super::remote_layers::RemoteImage;
use super::shared_futures::SharedFutures;
use super::shared_types::from_registry;
use crate::client::Client;

/// The pulls in flight. A pull is dropped when nobody waits for it any more.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    inflight: SharedFutures<[u8; 32], Result<ImageId>>,
    running: RunningPulls,
    inflight_layers: Arc<InflightLayers>,
}

/// An image to pull, with everything that the pull needs.
pub(crate) struct PullJob {
    pub(crate) client: Client,
    pub(crate) registry: registry::Client,
    pub(crate) infos: Arc<InfoCache>,
    pub(crate) leases: Leases,
    pub(crate) record_lock: RecordLock,
    pub(crate) downloads: usize,
    /// Its free space is checked before anything is downloaded; `None` if the check is switched off.
    pub(crate) content_disk: Option<Arc<ContentDisk>>,
    pub(crate) reference: ImageReference,
    pub(crate) credentials: Credentials,
    pub(crate) snapshotter: String,
    /// True if the snapshotter can commit a detached layer on top of a parent.
    pub(crate) rebase: bool,
    pub(crate) layer_sync: super::layer_sync::LayerSync,
    pub(crate) inflight_layers: Arc<InflightLayers>,
    /// The owner that pulls, and the right to the image that a successful pull proves.
    pub(crate) owner: Owner,
    pub(crate) right: Right,
    /// Updated while the pull runs.
    pub(crate) progress: Arc<Progress>,
}

impl Pulls {
    /// Pulls an image, or joins the same pull if it is in flight. Cancel-safe: when the last caller has given
    /// up, the pull is dropped.
    pub(crate) async fn join(&self, job: PullJob) -> Result<ImageId> {
        let key = key(
            &job.reference,
            &job.snapshotter,
            job.owner,
            &job.credentials,
        );
        let start = || {
            self.running.track(key, &job.progress);
            // The work is polled by any of the callers that wait for it.
            operation::inherit(job.run()).boxed()
        };
        self.inflight.join(key, start).await
    }

    /// The progress of the pull with this key; `None` if there is none, or its layers are not known yet.
    pub(crate) fn progress(&self, key: &[u8; 32]) -> Option<PullProgress> {
        self.running.read(key)
    }

    /// The layers in flight, which pulls share with loads and with unpackings of images that exist already.
    pub(crate) fn inflight_layers(&self) -> &Arc<InflightLayers> {
        &self.inflight_layers
    }
}

/// Maximum number of tries of a pull whose dependencies were garbage-collected meanwhile.
pub(super) const ATTEMPTS: u32 = 3;

/// The key of a pull: requests with the same key share one pull.
pub(crate) fn key(
    reference: &ImageReference,
    snapshotter: &str,
    owner: Owner,
    credentials: &Credentials,
) -> [u8; 32] {
    fingerprint(
        credentials,
        &[&reference.to_string(), snapshotter, owner.as_str()],
    )
}

/// A hash of these parts and of the credentials, from which the credentials cannot be read.
fn fingerprint(credentials: &Credentials, parts: &[&str]) -> [u8; 32] {
    let credentials = match credentials {
        Credentials::Anonymous => ["anonymous", "", ""],
        Credentials::Basic { username, password } => ["basic", username, password],
        Credentials::IdentityToken(token) => ["identity", token, ""],
        Credentials::RegistryToken(token) => ["registry", token, ""],
    };
    let mut hash = Sha256::new();
    for part in credentials.iter().chain(parts) {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

impl PullJob {
    /// Identifies the repository and the credentials that the layers are pulled with.
    fn source(&self) -> Source {
        fingerprint(&self.credentials, &[&self.reference.name()])
    }

    /// The label of the pull's lease: a later pull of the same continues what is under it, with whatever credentials.
    fn lease_label(&self) -> String {
        let reference = self.reference.to_string();
        let parts = [reference.as_str(), self.snapshotter.as_str()];
        hex::encode(fingerprint(&Credentials::Anonymous, &parts))
    }

    async fn run(self) -> Result<ImageId> {
        let mut attempt = 1;
        loop {
            match self.attempt().await {
                Err(error)
                    if error.kind() == ErrorKind::NotFound
                        && attempt < ATTEMPTS
                        // From containerd, and not from the registry.
                        && error.reason() == Some(Reason::Runtime) =>
                {
                    tracing::info!(image = %self.reference, error = error.report(), "something that a pull builds on was removed meanwhile: pulling again");
                    attempt += 1;
                }
                other => {
                    return other
                        .map_err(|error| error.context(format!("pull {}", self.reference)));
                }
            }
        }
    }

    async fn attempt(&self) -> Result<ImageId> {
        let (pull, target, image) = step("resolve_image", self.resolve()).await?;
        let remote = RemoteImage::of(&self.snapshotter, &self.reference, &image.descriptor.digest);
        if remote.is_none() {
            let unpackable = image.manifest.check_unpackable();
            unpackable.map_err(from_registry)?;
        }
        // Which layers a remote snapshotter provides is not known yet.
        let (before, later) = match (&self.content_disk, &remote) {
            (Some(disk), None) => (Some(disk), None),
            (disk, _) => (None, disk.clone()),
        };
        if let Some(disk) = before {
            disk.check(&self.client, &image.manifest.layers).await?;
        }
        self.leases.end_expired().await;
        let lease = self.leases.create_for_pull(&self.lease_label()).await?;
        reach(CrashPoint::PullLeased);
        let client = lease.client()?;
        let fetched = async { pull.config(&image.manifest).await.map_err(from_registry) };
        let (config, config_bytes) = step("fetch_image_config", fetched).await?;
        let name = self.reference.to_string();
        check_platform(&name, &config.platform, image.promised()).await?;
        self.write_documents(
            (&client, &lease),
            &image,
            config_bytes,
            &config.rootfs.diff_ids,
        )
        .await?;

        let plan = UnpackPlan {
            snapshotter: self.snapshotter.clone(),
            layers: image.manifest.layers.clone(),
            diff_ids: config.rootfs.diff_ids.clone(),
            rebase: self.rebase,
            remote,
            source: self.source(),
            layer_sync: self.layer_sync.clone(),
        };
        self.progress
            .set_layers(&plan.layers, self.inflight_layers.counters());
        let labels = Labels::from([self.origin()]);
        let downloads = Downloads {
            pull,
            at_once: self.downloads,
            labels,
            content_disk: later,
        };
        let layers = LayerPipeline::new(
            plan,
            &self.inflight_layers,
            lease,
            LayerSource::Registry(downloads),
        )?;
        step("pull_layers", layers.download_and_unpack()).await?;

        self.infos.check_all_again();
        // Before it is named: as soon as it has a name, others may remove it.
        let info = self.infos.load(&client, &target.digest).await?;
        self.name_image(&client, &target, Arc::clone(&layers))
            .await?;
        // From now on the image records protect everything from garbage collection.
        layers.release().await;
        self.leases.end_kept_of(&self.lease_label()).await;
        reach(CrashPoint::PullReleased);
        Ok(info.id.clone())
    }

    /// Asks the registry for the manifest: the pull, what the reference names, and the image for this machine.
    async fn resolve(&self) -> Result<(registry::Pull, Descriptor, registry::Image)> {
        let opened = self
            .registry
            .open(&self.reference, to_registry(&self.credentials))
            .await;
        let pull = opened.map_err(from_registry)?;
        let resolved = pull.resolve().await.map_err(from_registry)?;
        let target = resolved.descriptor.clone();
        let image = pull.image(resolved, &Platforms::of_this_machine()).await;
        Ok((pull, target, image.map_err(from_registry)?))
    }

    /// The label that names the repository that a blob came from. containerd uses it when it pushes the blob.
    fn origin(&self) -> (String, String) {
        let key = format!(
            "containerd.io/distribution.source.{}",
            self.reference.registry()
        );
        (key, self.reference.repository().to_owned())
    }

    /// Writes the indexes, the manifest and the configuration, with the labels by which containerd's garbage
    /// collection follows references between them. The layers and the snapshot that labels refer to need not
    /// exist yet.
    async fn write_documents(
        &self,
        to: (&Client, &Lease),
        image: &registry::Image,
        config: bytes::Bytes,
        diff_ids: &[Digest],
    ) -> Result<()> {
        let source = self.origin();
        let mut labels = Labels::from([source.clone()]);
        if let Some(top) = chain_ids(diff_ids).pop() {
            labels.insert(
                format!("containerd.io/gc.ref.snapshot.{}", self.snapshotter),
                top,
            );
        }
        let repairs = self.inflight_layers.repairs();
        repairs
            .store_document(to, "config", &image.manifest.config, config, labels)
            .await?;
        reach(CrashPoint::ConfigWritten);

        let mut labels = Labels::from([source.clone()]);
        labels.insert(
            "containerd.io/gc.ref.content.config".to_owned(),
            image.manifest.config.digest.to_string(),
        );
        for (number, layer) in image.manifest.layers.iter().enumerate() {
            labels.insert(
                format!("containerd.io/gc.ref.content.l.{number}"),
                layer.digest.to_string(),
            );
        }
        repairs
            .store_document(
                to,
                "manifest",
                &image.descriptor,
                image.bytes.clone(),
                labels,
            )
            .await?;
        reach(CrashPoint::ManifestWritten);

        let mut child = &image.descriptor;
        for index in image.indexes.iter().rev() {
            let mut labels = Labels::from([source.clone()]);
            labels.insert(child_label(&child.digest), child.digest.to_string());
            repairs
                .store_document(to, "index", &index.descriptor, index.bytes.clone(), labels)
                .await?;
            reach(CrashPoint::IndexWritten);
            child = &index.descriptor;
        }
        Ok(())
    }

    /// Creates the image records: one for the name that was asked for, and one by digest, which stays valid
    /// when the tag moves. `layers` protect the image until then.
    async fn name_image(
        &self,
        client: &Client,
        target: &Descriptor,
        layers: Arc<LayerPipeline>,
    ) -> Result<()> {
        let by_digest = self.reference.repo_digest(&target.digest);
        let asked = self
            .reference
            .repo_tag()
            .unwrap_or_else(|| by_digest.clone());
        let mut names = vec![by_digest];
        if self.reference.digest().is_none() && !names.contains(&asked) {
            names.push(asked);
        }
        let naming = Naming {
            client: client.clone(),
            names,
            target: target.clone(),
            owner: self.owner,
            right: self.right,
        };
        naming.assign(&self.record_lock, &self.leases, layers).await
    }
}

fn to_registry(credentials: &Credentials) -> registry::Credentials {
    match credentials.clone() {
        Credentials::Anonymous => registry::Credentials::Anonymous,
        Credentials::Basic { username, password } => {
            registry::Credentials::Basic { username, password }
        }
        Credentials::IdentityToken(token) => registry::Credentials::IdentityToken(token),
        Credentials::RegistryToken(token) => registry::Credentials::RegistryToken(token),
    }
}
