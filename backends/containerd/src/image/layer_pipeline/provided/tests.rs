//! Tests of which layers of an image are downloaded and unpacked, by what a remote snapshotter provides.

use switchyard_core::id::Owner;
use switchyard_core::image::{ImageReference, Right};
use switchyard_registry::{Client, Config, Credentials, Descriptor, Digest};
use tonic::Status;

use super::super::super::ContainerdImageStore;
use super::super::super::content::Labels;
use super::super::super::index::chain_ids;
use super::super::super::remote_layers::RemoteImage;
use super::super::super::test_store::{StoredImage, add_image, assign, store_over};
use super::super::UnpackPlan;
use super::*;
use crate::client::model::ModelContainerd;

const LAYERS: [&str; 4] = ["one", "two", "three", "four"];
/// The snapshotter of the handler with the same name.
const REMOTE: &str = "other";
/// Nobody listens there: what is not in the content store cannot be downloaded.
const NAME: &str = "127.0.0.1:1/app:1";

/// A node with a remote snapshotter.
struct RemoteNode {
    model: ModelContainerd,
    store: ContainerdImageStore,
    image: StoredImage,
}

impl RemoteNode {
    /// The snapshotter provides these layers, and the content store has none below the first that it does not provide.
    fn new(provided: &[usize]) -> Self {
        let model = ModelContainerd::default();
        let image = add_image(&model, &LAYERS);
        let store = store_over(&model);
        let first = (0..LAYERS.len())
            .find(|number| !provided.contains(number))
            .unwrap_or(LAYERS.len());
        for number in provided {
            let layer = image.layers[*number].to_string();
            model.store().provided.insert(layer);
        }
        for layer in &image.layers[..first] {
            model.store().blobs.remove(&layer.to_string());
            model.store().files.remove(&layer.to_string());
        }
        Self {
            model,
            store,
            image,
        }
    }

    fn layers(&self) -> Vec<Descriptor> {
        let described = LAYERS.iter().zip(&self.image.layers).map(|(text, digest)| {
            let size = u64::try_from(text.len()).unwrap();
            Descriptor::new("x", digest.clone(), size)
        });
        described.collect()
    }

    async fn pull(&self) -> Result<()> {
        let reference: ImageReference = NAME.parse().unwrap();
        let client = Client::new(Config {
            retries: 0,
            ..Config::default()
        });
        let pull = client.open(&reference, Credentials::Anonymous).await;
        let plan = UnpackPlan {
            snapshotter: REMOTE.into(),
            layers: self.layers(),
            diff_ids: self.image.layers.clone(),
            rebase: true,
            remote: RemoteImage::of(REMOTE, &reference, &self.image.manifest.digest),
            source: [1; 32],
            layer_sync: self.store.layer_sync.clone(),
        };
        let lease = self.store.leases.create("test").await?;
        let source = LayerSource::Registry(Downloads {
            pull: pull.unwrap(),
            at_once: 3,
            labels: Labels::new(),
            content_disk: None,
        });
        let layers = LayerPipeline::new(plan, self.store.pulls.inflight_layers(), lease, source)?;
        layers.download_and_unpack().await?;
        layers.release().await;
        Ok(())
    }

    /// The numbers of the layers that were unpacked.
    fn unpacked(&self) -> Vec<usize> {
        let number = |call: &String| {
            let is_it = |digest: &Digest| call.ends_with(&digest.to_string());
            self.image.layers.iter().position(is_it).unwrap()
        };
        let mut numbers: Vec<_> = self.model.calls("Diff/Apply").iter().map(number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The image has all its snapshots, with the labels by which the snapshotter finds its layers, and nothing else is there.
    #[track_caller]
    fn assert_whole(&self, context: &str) {
        let chain = chain_ids(&self.image.layers);
        let store = self.model.store();
        let mut names: Vec<_> = store.snapshots.keys().map(|(_, name)| name).collect();
        let mut expected: Vec<_> = chain.iter().collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected, "{context}");
        for (name, layer) in chain.iter().zip(&self.image.layers) {
            let info = &store.snapshots[&(REMOTE.to_owned(), name.clone())];
            let label = |key: &str| {
                let key = format!("containerd.io/snapshot/cri.{key}");
                info.labels.get(&key).cloned().unwrap_or_default()
            };
            assert_eq!(label("image-ref"), NAME, "{context}");
            assert_eq!(label("layer-digest"), layer.to_string(), "{context}");
            let manifest = self.image.manifest.digest.to_string();
            assert_eq!(label("manifest-digest"), manifest, "{context}");
            assert!(
                label("image-layers").starts_with(&layer.to_string()),
                "{context}"
            );
        }
    }
}

#[tokio::test]
async fn layers_that_a_snapshotter_provides_are_neither_downloaded_nor_unpacked() {
    let cases: [(&[usize], &[usize]); 7] = [
        (&[0, 1, 2, 3], &[]),
        (&[0, 1, 2], &[3]),
        (&[0], &[1, 2, 3]),
        (&[], &[0, 1, 2, 3]),
        (&[3], &[0, 1, 2]),
        (&[0, 2], &[1, 3]),
        (&[1, 2], &[0, 3]),
    ];
    for (provided, unpacked) in cases {
        let node = RemoteNode::new(provided);
        let context = format!("{provided:?}");
        node.pull()
            .await
            .unwrap_or_else(|error| panic!("{context}: {}", error.report()));
        assert_eq!(node.unpacked(), unpacked, "{context}");
        node.assert_whole(&context);
        // What is there already is not asked for again.
        let asked = node.model.calls("Snapshots/Prepare").len();
        assert_eq!(asked, LAYERS.len(), "{context}");
        node.pull()
            .await
            .unwrap_or_else(|error| panic!("{context}: {}", error.report()));
        let asked = node.model.calls("Snapshots/Prepare").len();
        assert_eq!(asked, LAYERS.len(), "{context}");
    }
}

#[tokio::test]
async fn failed_pull_leaves_no_prepared_snapshot() {
    // The layers that have to be downloaded cannot be.
    let node = RemoteNode::new(&[0, 1]);
    let missing = node.image.layers[2].to_string();
    node.model.store().blobs.remove(&missing);
    node.model.store().files.remove(&missing);
    node.pull().await.unwrap_err();
    let is_active = |key: &String| key.starts_with("extract");
    let left: Vec<_> = {
        let store = node.model.store();
        let keys = store.snapshots.keys().map(|(_, key)| key.clone());
        keys.filter(is_active).collect()
    };
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn snapshot_that_is_said_to_exist_and_does_not_is_told() {
    let node = RemoteNode::new(&[0]);
    let exists = Status::already_exists("target snapshot");
    node.model.refuse("Snapshots/Prepare", Some(exists));
    let error = node.pull().await.unwrap_err();
    assert!(
        error.report().contains("does not list it"),
        "{}",
        error.report()
    );
    let asked = node.model.calls("Snapshots/Prepare").len();
    assert_eq!(asked, usize::try_from(TRIES).unwrap());
}

#[tokio::test]
async fn image_whose_snapshots_are_gone_is_provided_again_without_its_layers() {
    let node = RemoteNode::new(&[0, 1, 2, 3]);
    let owner = (Owner::Kubernetes, Right::Open);
    assign(&node.store, &[NAME], &node.image, owner).await;
    for _ in 0..2 {
        let runnable = node.store.runnable(NAME, REMOTE, Owner::Kubernetes).await;
        runnable.unwrap_or_else(|error| panic!("{}", error.report()));
        node.assert_whole("after a creation");
        assert!(node.unpacked().is_empty());
        node.model.store().snapshots.clear();
    }
    // Another snapshotter needs them: the image has to be pulled.
    let error = node
        .store
        .runnable(NAME, "", Owner::Kubernetes)
        .await
        .unwrap_err();
    assert!(
        error.report().contains("pull the image again"),
        "{}",
        error.report()
    );
}
