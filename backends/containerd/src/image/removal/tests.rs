//! Removals beside each other and beside pulls and look-ups, in a forced order: time is paused, so a sleep
//! ends only when nothing else can continue.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::image::{ImageId, ImageStore, Right};

use super::super::test_store::{StoredImage, add_image, assign, store_over};
use super::*;
use crate::client::model::ModelContainerd;

const NAME: &str = "registry.test/app:1";
const BY_DIGEST: &str = "registry.test/app@sha256:0";

const K: Owner = Owner::Kubernetes;
const N: Owner = Owner::Nomad;

struct HeldImage {
    model: ModelContainerd,
    store: Arc<ContainerdImageStore>,
    image: Arc<StoredImage>,
}

fn unused(_: &ImageId, _: &dyn Fn(&str) -> bool) -> Result<bool> {
    Ok(false)
}

/// Lets everything continue that can.
async fn settle() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

impl HeldImage {
    /// A node whose image these owners hold.
    async fn held_by(holders: &[(Owner, Right)]) -> Self {
        let model = ModelContainerd::default();
        let store = Arc::new(store_over(&model));
        let image = Arc::new(add_image(&model, &[]));
        let node = Self {
            model,
            store,
            image,
        };
        for (owner, right) in holders {
            node.pull(*owner, *right).await.unwrap();
        }
        node
    }

    fn pull(&self, owner: Owner, right: Right) -> tokio::task::JoinHandle<()> {
        let store = Arc::clone(&self.store);
        let image = Arc::clone(&self.image);
        tokio::spawn(
            async move { assign(&store, &[BY_DIGEST, NAME], &image, (owner, right)).await },
        )
    }

    fn remove(&self, owner: Owner) -> tokio::task::JoinHandle<()> {
        let store = Arc::clone(&self.store);
        tokio::spawn(async move { store.remove(NAME, owner, &unused).await.unwrap() })
    }

    async fn holders(&self) -> Option<Vec<Owner>> {
        let image = self.store.get(NAME).await.unwrap()?;
        Some(image.holders.into_keys().collect())
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_owners_that_let_go_at_once_the_second_removes_the_image() {
    let node = HeldImage::held_by(&[(K, Right::Private), (N, Right::Private)]).await;
    let held = node.model.hold("Images/Update");
    let removals = [node.remove(K), node.remove(N)];
    held.arrived(1).await;
    settle().await;
    drop(held);
    for removal in removals {
        removal.await.unwrap();
    }
    assert!(
        node.model.store().images.is_empty(),
        "{:#?}",
        node.model.store().images
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_pulled_beside_its_removal_is_there_afterwards() {
    let node = HeldImage::held_by(&[(K, Right::Open)]).await;
    let held = node.model.hold("Images/Delete");
    let removal = node.remove(K);
    held.arrived(1).await;
    let pull = node.pull(N, Right::Open);
    settle().await;
    assert!(!pull.is_finished(), "the removal is not over");
    drop(held);
    removal.await.unwrap();
    pull.await.unwrap();
    assert_eq!(node.holders().await, Some(vec![N]));
    assert_eq!(node.model.store().images.len(), 2, "both names");
}

#[tokio::test(start_paused = true)]
async fn right_of_a_pull_outlives_an_earlier_removal_by_the_same_owner() {
    let node = HeldImage::held_by(&[(K, Right::Private), (N, Right::Private)]).await;
    // The removal has read the records under the lock, and has not decided yet.
    let before_the_lock = node.model.hold_answer("Images/List");
    let removal = node.remove(K);
    before_the_lock.arrived(1).await;
    let held = node.model.hold_answer("Images/List");
    drop(before_the_lock);
    held.arrived(1).await;
    let pull = node.pull(K, Right::Private);
    settle().await;
    drop(held);
    removal.await.unwrap();
    pull.await.unwrap();
    assert_eq!(node.holders().await, Some(vec![K, N]));
}

#[tokio::test(start_paused = true)]
async fn look_up_waits_for_a_removal_and_pulls_do_not_wait_for_its_garbage_collection() {
    let node = HeldImage::held_by(&[(K, Right::Open)]).await;
    let held = node.model.hold("Images/Delete");
    let removal = node.remove(K);
    held.arrived(1).await;
    let store = Arc::clone(&node.store);
    let task = tokio::spawn(async move { store.runnable(NAME, "", N).await });
    settle().await;
    drop(held);
    let error = task.await.unwrap().expect_err("it is removed");
    assert_eq!(error.kind(), ErrorKind::NotFound, "{}", error.report());
    removal.await.unwrap();

    node.pull(K, Right::Open).await.unwrap();
    let collection = node.model.hold_answer(&format!("Images/Delete {NAME}"));
    let removal = node.remove(K);
    collection.arrived(1).await;
    node.pull(N, Right::Open).await.unwrap();
    assert!(!removal.is_finished(), "it waits until the space is free");
    drop(collection);
    removal.await.unwrap();
    assert_eq!(node.holders().await, Some(vec![N]));
}

#[tokio::test(start_paused = true)]
async fn name_that_another_client_moves_meanwhile_is_kept() {
    let node = HeldImage::held_by(&[(K, Right::Open)]).await;
    let other = add_image(&node.model, &["other"]);
    let held = node.model.hold(&format!("Images/Delete {NAME}"));
    let removal = node.remove(K);
    held.arrived(1).await;
    let digest = other.manifest.digest.to_string();
    let target = types::Descriptor {
        digest: digest.clone(),
        ..Default::default()
    };
    node.model.store().images.get_mut(NAME).unwrap().target = Some(target);
    drop(held);
    removal.await.unwrap();
    let image = node
        .store
        .get(NAME)
        .await
        .unwrap()
        .expect("it is another image's name");
    assert_eq!(image.id, other.id);
    assert_eq!(node.model.store().images.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sixteen_at_once_leave_no_private_image_open_and_none_behind() {
    let node = HeldImage::held_by(&Owner::ALL.map(|owner| (owner, Right::Private))).await;
    // As many removals as can have read the records when the first of them decides.
    let held = node.model.hold_answer("Images/List");
    let mut changes = Vec::new();
    for round in 0..4 {
        for owner in Owner::ALL {
            changes.push(if round % 2 == 0 {
                node.remove(owner)
            } else {
                node.pull(owner, Right::Private)
            });
        }
    }
    settle().await;
    drop(held);
    for change in changes {
        change.await.unwrap();
    }
    for owner in Owner::ALL {
        node.remove(owner).await.unwrap();
    }
    let store = node.model.store();
    assert!(store.images.is_empty(), "{:#?}", store.images);
    let target = &node.image.manifest.digest;
    for image in &store.image_history {
        let open = holders::parse(&image.labels, target).is_empty()
            && !holders::was_released(&image.labels, target);
        assert!(!open, "{image:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn pull_that_is_given_up_gives_all_its_names_or_none() {
    let node = HeldImage::held_by(&[]).await;
    let held = node.model.hold(&format!("Images/Create {BY_DIGEST}"));
    let pull = node.pull(K, Right::Open);
    held.arrived(1).await;
    pull.abort();
    assert!(pull.await.unwrap_err().is_cancelled());
    let removal = node.remove(K);
    settle().await;
    assert!(!removal.is_finished(), "the names are being given");
    assert_eq!(
        node.model.store().leases.len(),
        1,
        "the content is protected until then"
    );
    drop(held);
    removal.await.unwrap();
    settle().await;
    let store = node.model.store();
    assert!(store.images.is_empty(), "{:#?}", store.images);
    assert_eq!(store.image_history.len(), 2, "both names were given");
    assert!(store.leases.is_empty(), "{:?}", store.leases);
}

#[tokio::test(start_paused = true)]
async fn damage_is_read_anew_before_names_of_others_are_deleted() {
    let node = HeldImage::held_by(&[(K, Right::Open), (N, Right::Open)]).await;
    let digest = node.image.manifest.digest.to_string();
    let file = node.model.store().files.remove(&digest).unwrap();
    assert!(node.store.list().await.unwrap().is_empty());
    // An operator puts the file back: until the damage is read again, the image counts as damaged.
    node.model.store().files.insert(digest.clone(), file);
    assert!(node.store.list().await.unwrap().is_empty());
    node.remove(K).await.unwrap();
    assert_eq!(node.holders().await, Some(vec![N]));

    // A pull ends while the removal waits for the lock.
    let node = HeldImage::held_by(&[(K, Right::Open), (N, Right::Open)]).await;
    let file = node.model.store().files.remove(&digest).unwrap();
    let lock = node.store.record_lock.change("test").await.unwrap();
    let removal = node.remove(K);
    settle().await;
    node.model.store().files.insert(digest, file);
    node.store.infos.check_all_again();
    drop(lock);
    removal.await.unwrap();
    assert_eq!(node.holders().await, Some(vec![N]));
}

#[tokio::test(start_paused = true)]
async fn content_is_read_before_the_lock_is_taken() {
    let node = HeldImage::held_by(&[(K, Right::Open)]).await;
    let foreign = node.model.store().add_blob("{}").to_string();
    let damaged = Digest::sha256(b"missing").to_string();
    for digest in [&foreign, &damaged] {
        let target = Some(types::Descriptor {
            digest: digest.clone(),
            ..Default::default()
        });
        let image = api::Image {
            name: digest.clone(),
            target,
            ..Default::default()
        };
        node.model.store().images.insert(digest.clone(), image);
    }
    let lock = node.store.record_lock.change("test").await.unwrap();
    let removal = node.remove(K);
    settle().await;
    let reads = || node.model.calls("Content/Read").len();
    assert_eq!(reads(), 4, "manifest, configuration, and the two others");
    // Longer than damage is known.
    tokio::time::sleep(Duration::from_secs(100)).await;
    drop(lock);
    removal.await.unwrap();
    assert_eq!(reads(), 4);
    let left: Vec<_> = node.model.store().images.keys().cloned().collect();
    assert!(
        left.len() == 2 && left.contains(&foreign) && left.contains(&damaged),
        "{left:?}"
    );
}

#[test]
fn task_that_is_being_created_keeps_the_image_under_any_of_its_names() {
    let usable = vec![
        index::tests::named(NAME, 'a', '1'),
        index::tests::named("registry.test/other:1", 'a', '1'),
        index::tests::named("registry.test/another:1", 'b', '2'),
    ];
    let records = ImageRecords {
        usable,
        damaged: Vec::new(),
    };
    let removed = |creating: &str| {
        let in_use = |_: &ImageId, is_named: &dyn Fn(&str) -> bool| -> Result<bool> {
            Ok(is_named(creating))
        };
        plan(&records, NAME, K, &in_use).unwrap().deleted.len()
    };
    assert_eq!(removed("registry.test/other:1"), 0);
    assert_eq!(removed(records.usable[0].info.id.as_str()), 0);
    assert_eq!(removed("registry.test/another:1"), 2);
    assert_eq!(removed("registry.test/absent:1"), 2);
    let refused = |_: &ImageId, _: &dyn Fn(&str) -> bool| -> Result<bool> {
        Err(switchyard_core::Error::failed_precondition("held"))
    };
    let error = plan(&records, NAME, K, &refused).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
}
