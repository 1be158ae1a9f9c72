//! An image store over the model of containerd, for tests.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::json;
use switchyard_core::backend::unobserved;
use switchyard_core::id::Owner;
use switchyard_core::image::{ImageId, Right};
use switchyard_registry::{self as registry, Descriptor, Digest};
use tokio_util::task::TaskTracker;

use super::layer_sync::LayerSync;
use super::lease::Leases;
use super::name::Naming;
use super::{ContainerdImageStore, ImagePolicy, Snapshotters};
use crate::cleanup::CleanupQueue;
use crate::client::features::ContainerdFeatures;
use crate::client::model::ModelContainerd;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The id of the boot in which tests run.
pub(super) const BOOT: &str = "now";

/// A store on this containerd, with the snapshotters `overlayfs` and, for the handler `other`, `other`.
pub(super) fn store_over(model: &ModelContainerd) -> ContainerdImageStore {
    let client = model.client();
    let tracker = TaskTracker::new();
    let cleanup = Arc::new(CleanupQueue::new(unobserved()));
    let leases = Leases::new(client.clone(), tracker.clone(), cleanup);
    let layer_sync = LayerSync::new(client.clone(), BOOT, tracker);
    let policy = ImagePolicy {
        registry: registry::Client::new(registry::Config::default()),
        snapshotters: Snapshotters {
            default: "overlayfs".into(),
            by_handler: BTreeMap::from([("other".into(), "other".into())]),
        },
        downloads: 3,
        pins: Vec::new(),
        limits: registry::Limits::default(),
        check_free_space: false,
    };
    ContainerdImageStore::new(
        client,
        ContainerdFeatures::default(),
        policy,
        leases,
        layer_sync,
        std::env::temp_dir(),
    )
}

/// An image whose content is stored.
#[derive(Debug)]
pub(super) struct StoredImage {
    pub(super) id: ImageId,
    pub(super) manifest: Descriptor,
    pub(super) config: Digest,
    /// The digests of its layers, which are its diff ids too.
    pub(super) layers: Vec<Digest>,
}

/// Stores the content of an image with these layers, without a name.
pub(super) fn add_image(model: &ModelContainerd, layers: &[&str]) -> StoredImage {
    let mut store = model.store();
    let layers: Vec<Digest> = layers
        .iter()
        .map(|layer| store.add_blob((*layer).to_owned()))
        .collect();
    let config =
        json!({ "os": "linux", "rootfs": { "type": "layers", "diff_ids": layers } }).to_string();
    let config_size = config.len();
    let config = store.add_blob(config);
    let of_layers: Vec<_> = layers
        .iter()
        .map(|layer| json!({ "mediaType": LAYER, "digest": layer, "size": store.files[&layer.to_string()].len() }))
        .collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": { "mediaType": CONFIG, "digest": config, "size": config_size },
        "layers": of_layers,
    })
    .to_string();
    let size = u64::try_from(manifest.len()).unwrap();
    let manifest = Descriptor::new(MANIFEST, store.add_blob(manifest), size);
    let references = std::iter::once(&config).chain(&layers).enumerate();
    let references = references.map(|(number, digest)| {
        (
            format!("containerd.io/gc.ref.content.{number}"),
            digest.to_string(),
        )
    });
    store
        .blobs
        .insert(manifest.digest.to_string(), references.collect());
    StoredImage {
        id: ImageId::new(config.to_string()),
        manifest,
        config,
        layers,
    }
}

/// Gives an image these names, as a pull does.
pub(super) async fn assign(
    store: &ContainerdImageStore,
    names: &[&str],
    image: &StoredImage,
    holder: (Owner, Right),
) {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let (owner, right) = holder;
    let lease = store.leases.create("test").await.unwrap();
    let naming = Naming {
        client: store.client.clone(),
        names,
        target: image.manifest.clone(),
        owner,
        right,
    };
    naming
        .assign(&store.record_lock, &store.leases, lease)
        .await
        .unwrap();
}
