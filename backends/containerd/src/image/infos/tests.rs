//! Tests of the cache of images' content, and of what damage of one image means for the others.

use bytes::Bytes;
use containerd_client::types;
use serde_json::json;
use switchyard_core::ErrorKind;
use switchyard_core::id::Owner;
use switchyard_core::image::{ImageStore, Right};
use tonic::Status;

use super::super::ContainerdImageStore;
use super::super::content::Labels;
use super::super::index::tests::named;
use super::super::test_store::{StoredImage, add_image, assign, store_over};
use super::*;
use crate::client::model::ModelContainerd;

/// An image whose documents have this size in bytes.
fn of_bytes(bytes: u64) -> Arc<ImageInfo> {
    let info = Arc::unwrap_or_clone(named("a:1", 'a', '1').info);
    Arc::new(ImageInfo {
        config_bytes: bytes,
        manifest_bytes: 0,
        ..info
    })
}

fn cached(cache: &InfoCache, target: &Digest) -> bool {
    cache.infos().by_target.contains_key(target)
}

#[test]
fn what_is_remembered_of_images_is_bounded_in_bytes_and_the_largest_go_first() {
    const MIB: u64 = 1 << 20;
    let cache = InfoCache::default();
    let insert = |name: &str, bytes| {
        let target = Digest::sha256(name.as_bytes());
        cache.infos().insert(&target, &of_bytes(bytes));
        target
    };
    let small: Vec<Digest> = (0..1000)
        .map(|number| insert(&format!("small{number}"), 5000))
        .collect();
    let large: Vec<Digest> = (0..50)
        .map(|number| insert(&format!("large{number}"), 4 * MIB))
        .collect();
    assert!(cache.infos().bytes <= CACHE_BYTES);
    assert!(small.iter().all(|target| cached(&cache, target)));
    assert_eq!(
        large.iter().filter(|target| cached(&cache, target)).count(),
        2
    );
    // An image that is larger than the limit evicts no smaller one.
    let huge = insert("huge", u64::MAX);
    assert!(!cached(&cache, &huge) && cached(&cache, &small[0]));
    cache.retain(&BTreeSet::from([small[0].clone(), small[1].clone()]));
    assert_eq!(cache.infos().bytes, 10_000);
    insert("small0", 5000);
    assert_eq!(cache.infos().bytes, 10_000, "it is there already");
}

const A: &str = "registry.test/a:1";
const B: &str = "registry.test/b:1";

/// The images `A` and `B`, and a store that has read neither.
async fn two_images() -> (ModelContainerd, ContainerdImageStore, StoredImage) {
    let model = ModelContainerd::default();
    let images = [add_image(&model, &["a"]), add_image(&model, &["b"])];
    let store = store_over(&model);
    for (name, image) in [A, B].into_iter().zip(&images) {
        assign(&store, &[name], image, (Owner::Kubernetes, Right::Open)).await;
    }
    let [a, _] = images;
    (model, store, a)
}

/// The others are listed, found, used and removed; the damaged image is absent, and can be removed by its
/// name.
async fn assert_costs_one_image(
    model: &ModelContainerd,
    store: &ContainerdImageStore,
    damage: &str,
) {
    let listed = store.list().await.unwrap();
    let names: Vec<_> = listed.iter().flat_map(|image| &image.repo_tags).collect();
    assert_eq!(names, [B], "{damage}");
    assert!(store.get(B).await.unwrap().is_some(), "{damage}");
    assert_eq!(
        store.get(A).await.unwrap(),
        None,
        "{damage}: a kubelet pulls it again"
    );
    assert_eq!(store.damaged(), [A], "{damage}");
    store
        .runnable(B, "", Owner::Kubernetes)
        .await
        .unwrap_or_else(|error| panic!("{}", error.report()));
    let error = store
        .runnable(A, "", Owner::Kubernetes)
        .await
        .expect_err("it is damaged");
    assert!(
        error.kind() == ErrorKind::NotFound && error.report().contains("damaged"),
        "{}",
        error.report()
    );
    store
        .remove(A, Owner::Kubernetes, &|_, _| Ok(false))
        .await
        .unwrap();
    assert_eq!(
        model.store().images.keys().collect::<Vec<_>>(),
        [B],
        "{damage}"
    );
    assert_eq!(store.list().await.unwrap().len(), 1);
    assert!(store.damaged().is_empty(), "{damage}");
    store
        .remove(B, Owner::Kubernetes, &|_, _| Ok(false))
        .await
        .unwrap();
    assert!(model.store().images.is_empty(), "{damage}");
}

#[tokio::test]
async fn damaged_document_costs_the_image_that_has_it() {
    for of_config in [false, true] {
        for file in [
            "emptied",
            "filled with zeros",
            "removed",
            "unreadable",
            "deleted",
        ] {
            let damage = format!("{file}, of the configuration: {of_config}");
            let (model, store, image) = two_images().await;
            let digest = if of_config {
                &image.config
            } else {
                &image.manifest.digest
            }
            .to_string();
            let length = model.store().files[&digest].len();
            match file {
                "emptied" => drop(model.store().files.insert(digest, Bytes::new())),
                "filled with zeros" => {
                    drop(model.store().files.insert(digest, vec![0; length].into()))
                }
                "removed" => drop(model.store().files.remove(&digest)),
                "deleted" => drop(model.store().blobs.remove(&digest)),
                _ => {
                    let status = Status::unknown("read /blob: input/output error");
                    model.refuse(&format!("Content/Read {digest}"), Some(status));
                }
            }
            assert_costs_one_image(&model, &store, &damage).await;
        }
    }
}

/// It was published that way: a pull brings the same, so that it is no damage that a pull mends.
#[tokio::test(start_paused = true)]
async fn document_that_no_parser_accepts_is_ignored_and_not_damaged() {
    let (model, store, _) = two_images().await;
    let text = r#"{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","layers":null}"#;
    let digest = model.store().add_blob(text);
    let target = types::Descriptor {
        digest: digest.to_string(),
        ..Default::default()
    };
    model.store().images.get_mut(A).unwrap().target = Some(target);
    for _ in 0..4 {
        let listed = store.list().await.unwrap();
        assert_eq!(
            listed
                .iter()
                .flat_map(|image| &image.repo_tags)
                .collect::<Vec<_>>(),
            [B]
        );
        assert_eq!(store.get(A).await.unwrap(), None);
        assert!(store.damaged().is_empty());
    }
    let error = store
        .runnable(A, "", Owner::Kubernetes)
        .await
        .expect_err("it is no image");
    assert!(
        error.kind() == ErrorKind::NotFound && !error.report().contains("damaged"),
        "{}",
        error.report()
    );
    store
        .remove(A, Owner::Kubernetes, &|_, _| Ok(false))
        .await
        .unwrap();
    assert!(
        model.store().images.contains_key(A),
        "it is another client's"
    );
    let reads = || model.calls(&format!("Content/Read {digest}")).len();
    assert_eq!(reads(), 1, "it is known for a while");
    tokio::time::sleep(UNUSABLE_AGE).await;
    store.list().await.unwrap();
    assert_eq!(reads(), 2);
}

/// Gives the image the target of an index that names its manifest, with these labels.
fn put_index_over(model: &ModelContainerd, image: &StoredImage, labels: Labels) {
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [{
            "mediaType": image.manifest.media_type,
            "digest": image.manifest.digest,
            "size": image.manifest.size,
        }],
    });
    let mut store = model.store();
    let digest = store.add_blob(index.to_string()).to_string();
    store.blobs.insert(digest.clone(), labels);
    let target = types::Descriptor {
        digest,
        ..Default::default()
    };
    store.images.get_mut(A).unwrap().target = Some(target);
}

#[tokio::test]
async fn manifest_that_a_pull_stored_below_an_index_is_damaged_if_it_is_missing() {
    let (model, store, image) = two_images().await;
    let digest = image.manifest.digest.to_string();
    put_index_over(
        &model,
        &image,
        Labels::from([(child_label(&image.manifest.digest), digest.clone())]),
    );
    assert_eq!(store.list().await.unwrap().len(), 2, "it is whole");
    let store = store_over(&model);
    model.store().blobs.remove(&digest);
    assert_costs_one_image(&model, &store, "manifest below an index deleted").await;
}

#[tokio::test]
async fn index_of_another_client_without_the_image_for_this_platform_is_ignored() {
    let (model, store, image) = two_images().await;
    let digest = image.manifest.digest.to_string();
    // containerd's own client labels an index with all that it names, stored or not.
    put_index_over(
        &model,
        &image,
        Labels::from([(
            "containerd.io/gc.ref.content.m.0".to_owned(),
            digest.clone(),
        )]),
    );
    model.store().blobs.remove(&digest);
    assert_eq!(store.list().await.unwrap().len(), 1);
    assert!(store.damaged().is_empty());
    store
        .remove(A, Owner::Kubernetes, &|_, _| Ok(false))
        .await
        .unwrap();
    assert!(model.store().images.contains_key(A));
}

#[tokio::test]
async fn containerd_that_does_not_answer_is_an_error_and_no_damage() {
    let (model, store, image) = two_images().await;
    model.refuse(
        &format!("Content/Read {}", image.config),
        Some(Status::unavailable("away")),
    );
    assert_eq!(
        store.list().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
    let removed = store.remove(A, Owner::Kubernetes, &|_, _| Ok(false)).await;
    assert_eq!(removed.unwrap_err().kind(), ErrorKind::Unavailable);
    model.refuse(&format!("Content/Read {}", image.config), None);
    assert_eq!(store.list().await.unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn damage_is_read_again_after_a_while_and_after_each_pull() {
    let (model, store, image) = two_images().await;
    let digest = image.manifest.digest.to_string();
    let file = model.store().files.remove(&digest).unwrap();
    let reads = || model.calls(&format!("Content/Read {digest}")).len();
    for _ in 0..16 {
        assert_eq!(store.get(A).await.unwrap(), None);
    }
    assert_eq!(reads(), 1);
    store.infos.check_all_again();
    assert_eq!(store.get(A).await.unwrap(), None);
    assert_eq!(reads(), 2);
    model.store().files.insert(digest.clone(), file);
    assert_eq!(store.get(A).await.unwrap(), None);
    tokio::time::sleep(UNUSABLE_AGE).await;
    assert!(store.get(A).await.unwrap().is_some());
}
