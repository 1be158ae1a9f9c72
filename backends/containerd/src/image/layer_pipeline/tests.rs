//! Layers that are damaged in the store, and snapshots that are missing or lost.

use std::collections::HashMap;
use std::io::Write;

use switchyard_core::ErrorKind;
use switchyard_core::id::Owner;
use switchyard_core::image::{ImageStore, Right};
use tonic::Status;

use super::super::ContainerdImageStore;
use super::super::snapshots::UNSYNCED;
use super::super::test_store::{BOOT, StoredImage, add_image, assign, store_over};
use super::*;
use crate::client::model::ModelContainerd;

const NAME: &str = "registry.test/app:1";
const LAYERS: [&str; 3] = ["one", "two", "three"];

/// A store whose image has [`LAYERS`] and is not unpacked.
struct Packed {
    model: ModelContainerd,
    store: ContainerdImageStore,
    image: StoredImage,
    chain: Vec<String>,
}

impl Packed {
    async fn new() -> Self {
        let model = ModelContainerd::default();
        let image = add_image(&model, &LAYERS);
        let store = store_over(&model);
        assign(&store, &[NAME], &image, (Owner::Kubernetes, Right::Open)).await;
        let chain = chain_ids(&image.layers);
        Self {
            model,
            store,
            image,
            chain,
        }
    }

    /// Unpacks the image as a pull does whose source has all layers.
    async fn pull(&self) -> Result<()> {
        let mut file = tempfile::tempfile().unwrap();
        let mut offsets = Vec::new();
        let mut layers = Vec::new();
        for (layer, digest) in LAYERS.iter().zip(&self.image.layers) {
            offsets.push(layers.iter().map(|layer: &Descriptor| layer.size).sum());
            file.write_all(layer.as_bytes()).unwrap();
            layers.push(Descriptor::new(
                "x",
                digest.clone(),
                u64::try_from(layer.len()).unwrap(),
            ));
        }
        let plan = UnpackPlan {
            snapshotter: "overlayfs".into(),
            layers,
            diff_ids: self.image.layers.clone(),
            rebase: false,
            remote: None,
            source: [1; 32],
            layer_sync: self.store.layer_sync.clone(),
        };
        let lease = self.store.leases.create("test").await?;
        let source = LayerSource::Archive {
            file: Arc::new(file),
            offsets,
        };
        let layers = LayerPipeline::new(plan, self.store.pulls.inflight_layers(), lease, source)?;
        layers.download_and_unpack().await?;
        layers.release().await;
        Ok(())
    }

    async fn create(&self) -> Result<()> {
        self.store
            .runnable(NAME, "", Owner::Kubernetes)
            .await
            .map(drop)
    }

    fn snapshots(&self) -> Vec<String> {
        let store = self.model.store();
        self.chain
            .iter()
            .filter(|name| {
                store
                    .snapshots
                    .contains_key(&("overlayfs".to_owned(), (*name).clone()))
            })
            .cloned()
            .collect()
    }

    fn add_snapshots(&self, boots: [&str; 3]) {
        let mut parent = "";
        for (name, boot) in self.chain.iter().zip(boots) {
            let labels = HashMap::from([(UNSYNCED.to_owned(), boot.to_owned())]);
            self.model
                .store()
                .add_snapshot("overlayfs", name, parent, labels);
            parent = name;
        }
    }

    /// Returns whether a power cut may have emptied a snapshot.
    fn has_lost(&self) -> bool {
        let store = self.model.store();
        let label = |name: &String| {
            store.snapshots[&("overlayfs".to_owned(), name.clone())]
                .labels
                .get(UNSYNCED)
                .cloned()
        };
        self.chain
            .iter()
            .any(|name| label(name).is_some_and(|boot| boot == "before"))
    }

    #[track_caller]
    fn assert_whole(&self) {
        assert_eq!(self.snapshots(), self.chain);
        let store = self.model.store();
        for (layer, digest) in LAYERS.iter().zip(&self.image.layers) {
            assert_eq!(store.files[&digest.to_string()], layer.as_bytes());
        }
        let active: Vec<_> = store
            .snapshots
            .keys()
            .filter(|(_, key)| key.starts_with("extract"))
            .collect();
        assert!(active.is_empty(), "{active:?}");
    }
}

#[tokio::test]
async fn damaged_layer_is_replaced_by_the_next_pull_once() {
    for file in [Some("tw"), Some("\0\0\0"), None] {
        for damaged in 0..LAYERS.len() {
            let packed = Packed::new().await;
            let digest = packed.image.layers[damaged].to_string();
            match file {
                Some(text) => drop(packed.model.store().files.insert(digest, text.into())),
                None => drop(packed.model.store().files.remove(&digest)),
            }
            packed
                .pull()
                .await
                .unwrap_or_else(|error| panic!("{file:?} {damaged}: {}", error.report()));
            packed.assert_whole();
            assert_eq!(
                packed.model.calls("Content/Delete").len(),
                1,
                "{file:?} {damaged}"
            );
            packed.create().await.unwrap();
        }
    }
}

#[tokio::test]
async fn layer_known_to_be_damaged_is_replaced_by_a_load_that_has_nothing_to_unpack() {
    let packed = Packed::new().await;
    packed.pull().await.unwrap();
    let layer = &packed.image.layers[1];
    packed
        .model
        .store()
        .files
        .insert(layer.to_string(), "tw".into());
    packed
        .store
        .repairs()
        .mark_damaged(layer, Error::internal("unexpected EOF"));
    assert_eq!(packed.store.get(NAME).await.unwrap(), None);
    packed.create().await.unwrap();
    packed.pull().await.unwrap();
    packed.assert_whole();
    assert!(packed.store.get(NAME).await.unwrap().is_some());
    assert_eq!(packed.model.calls("Content/Delete").len(), 1);
}

#[tokio::test]
async fn image_whose_layer_nobody_can_replace_is_absent_until_it_is_pulled() {
    let packed = Packed::new().await;
    assert!(packed.store.get(NAME).await.unwrap().is_some());
    packed
        .model
        .store()
        .files
        .insert(packed.image.layers[1].to_string(), "tw".into());
    for _ in 0..2 {
        let error = packed.create().await.unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::FailedPrecondition,
            "{}",
            error.report()
        );
        assert!(
            error.report().contains("pull the image again"),
            "{}",
            error.report()
        );
    }
    assert!(
        packed.model.calls("Content/Delete").is_empty(),
        "there is nothing to replace it by"
    );
    assert_eq!(
        packed.store.get(NAME).await.unwrap(),
        None,
        "a kubelet pulls it then"
    );
    assert_eq!(
        packed.store.list().await.unwrap().len(),
        1,
        "and removes it to free space"
    );
    packed.pull().await.unwrap();
    packed.assert_whole();
    assert!(packed.store.get(NAME).await.unwrap().is_some());
    packed.create().await.unwrap();
}

#[tokio::test]
async fn sixteen_creates_and_pulls_at_once_replace_a_damaged_layer_once() {
    let packed = Arc::new(Packed::new().await);
    packed
        .model
        .store()
        .files
        .insert(packed.image.layers[0].to_string(), "".into());
    let pulls = |number: u32| number.is_multiple_of(2);
    let work = |number: u32| {
        let packed = Arc::clone(&packed);
        tokio::spawn(async move {
            if pulls(number) {
                packed.pull().await
            } else {
                packed.create().await
            }
        })
    };
    let work: Vec<_> = (0..16).map(|number| (number, work(number))).collect();
    for (number, done) in work {
        let done = done.await.unwrap();
        // A creation that came before the pulls has nothing to replace the layer by.
        assert!(done.is_ok() || !pulls(number), "{done:?}");
    }
    packed.assert_whole();
    assert_eq!(packed.model.calls("Content/Delete").len(), 1);
    packed.create().await.unwrap();
}

#[tokio::test]
async fn missing_snapshot_is_unpacked_anew_and_an_intact_layer_is_not_replaced() {
    let packed = Packed::new().await;
    packed.create().await.unwrap();
    packed
        .model
        .store()
        .snapshots
        .remove(&("overlayfs".to_owned(), packed.chain[2].clone()));
    packed.create().await.unwrap();
    packed.assert_whole();

    packed.model.store().snapshots.clear();
    packed
        .model
        .refuse("Diff/Apply", Some(Status::unknown("mount: no such device")));
    let error = packed.pull().await.unwrap_err();
    assert!(
        error.report().contains("no such device"),
        "{}",
        error.report()
    );
    assert!(packed.model.calls("Content/Delete").is_empty());
    let applied = packed.model.calls("Diff/Apply").len();
    assert_eq!(applied, 5, "three, one and one");
}

#[tokio::test]
async fn lost_layer_is_not_used_until_it_can_be_removed() {
    for boots in [
        ["before", BOOT, BOOT],
        ["", "before", ""],
        ["", "", "before"],
    ] {
        let packed = Packed::new().await;
        packed.add_snapshots(boots);
        packed.model.refuse(
            "Snapshots/Remove",
            Some(Status::unknown("no space left on device")),
        );
        for answer in [
            packed.create().await,
            packed.pull().await,
            packed.create().await,
        ] {
            let error = answer.unwrap_err();
            assert_eq!(
                error.kind(),
                ErrorKind::FailedPrecondition,
                "{}",
                error.report()
            );
            let told = error.report();
            assert!(
                told.contains("power cut") && told.contains("no space left"),
                "{told}"
            );
        }
        packed.model.refuse("Snapshots/Remove", None);
        packed
            .create()
            .await
            .unwrap_or_else(|error| panic!("{boots:?}: {}", error.report()));
        packed.assert_whole();
        assert!(!packed.has_lost(), "{boots:?}");
    }
}

#[tokio::test]
async fn lost_layer_under_a_snapshot_of_others_is_not_used_while_that_is_there() {
    let packed = Packed::new().await;
    packed.add_snapshots(["before", "", ""]);
    packed
        .model
        .store()
        .add_active("overlayfs", "of another client", &packed.chain[2]);
    let error = packed.create().await.unwrap_err();
    assert!(
        error.report().contains("may be in use"),
        "{}",
        error.report()
    );
    packed
        .model
        .store()
        .snapshots
        .remove(&("overlayfs".to_owned(), "of another client".to_owned()));
    let creations = futures::future::join_all((0..16).map(|_| packed.create())).await;
    assert!(creations.iter().all(Result::is_ok), "{creations:?}");
    packed.assert_whole();
    assert!(!packed.has_lost());
    assert_eq!(
        packed.model.calls("Snapshots/Remove").len(),
        3,
        "a layer unpacked again is not removed"
    );
}
