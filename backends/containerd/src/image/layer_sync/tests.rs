//! Tests of syncing: a snapshot that has the name of a former one is another one.

use super::super::test_store::{BOOT, store_over};
use super::*;
use crate::client::model::ModelContainerd;

fn unsynced() -> HashMap<String, String> {
    HashMap::from([(UNSYNCED.to_owned(), BOOT.to_owned())])
}

/// Returns whether a snapshot has the label; `None` if there is no such snapshot.
fn is_unsynced(model: &ModelContainerd, name: &str) -> Option<bool> {
    let store = model.store();
    let found = store
        .snapshots
        .get(&("overlayfs".to_owned(), name.to_owned()))?;
    Some(found.labels.contains_key(UNSYNCED))
}

#[tokio::test]
async fn label_of_a_snapshot_that_was_unpacked_again_during_the_sync_stays() {
    let dir = tempfile::tempdir().unwrap();
    let model = ModelContainerd::default();
    for name in ["again", "synced", "removed"] {
        model
            .store()
            .add_snapshot("overlayfs", name, "", unsynced());
    }
    let sync = store_over(&model).layer_sync;
    // After the first look at the snapshots, and before the labels of the later ones are removed.
    let held = model.hold("Snapshots/Update synced");
    let names = ["synced", "again", "removed"].map(str::to_owned).to_vec();
    let syncing = sync.sync_snapshots("overlayfs", names, Some(dir.path().to_owned()));
    let changed = async {
        held.arrived(1).await;
        let mut store = model.store();
        store
            .snapshots
            .remove(&("overlayfs".to_owned(), "removed".to_owned()));
        store.add_snapshot("overlayfs", "again", "", unsynced());
        drop(store);
        drop(held);
    };
    let (synced, ()) = tokio::join!(syncing, changed);
    synced.unwrap();
    let found = ["again", "synced", "removed"].map(|name| is_unsynced(&model, name));
    assert_eq!(found, [Some(true), Some(false), None]);
}

#[tokio::test(start_paused = true)]
async fn snapshot_is_not_committed_while_the_label_of_its_namesake_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let model = ModelContainerd::default();
    model
        .store()
        .add_snapshot("overlayfs", "layer", "", unsynced());
    let sync = store_over(&model).layer_sync;
    let unpacked = UnpackedSnapshots::new(sync.clone(), "overlayfs");
    let held = model.hold("Snapshots/Update");
    let dir = Some(dir.path().to_owned());
    let syncing = tokio::spawn(async move {
        sync.sync_snapshots("overlayfs", vec!["layer".to_owned()], dir)
            .await
            .unwrap();
    });
    held.arrived(1).await;
    let mut commit = Box::pin(unpacked.lock("layer"));
    assert!(futures::poll!(&mut commit).is_pending());
    drop(held);
    commit.await;
    syncing.await.unwrap();
    assert_eq!(is_unsynced(&model, "layer"), Some(false));
}

#[tokio::test]
async fn syncs_share_one_thread_and_use_a_directory_that_exists() {
    let dir = tempfile::tempdir().unwrap();
    let model = ModelContainerd::default();
    let sync = store_over(&model).layer_sync;
    let permit = Arc::clone(&sync.syncing).acquire_owned().await.unwrap();
    let mut waiting = Box::pin(sync.sync_file_system("overlayfs", Some(dir.path().to_owned())));
    assert!(
        futures::poll!(&mut waiting).is_pending(),
        "another sync may hang"
    );
    drop(permit);
    waiting.await.unwrap();
    let gone = dir.path().join("gone");
    assert_eq!(open_all(&[gone.clone(), dir.path().to_owned()]).len(), 1);
    sync_dirs(Some(gone), Some(dir.path().to_owned())).unwrap();
}

#[test]
fn the_directory_is_that_of_the_new_layer() {
    let mount = |kind: &str, source: &str, options: &[&str]| Mount {
        r#type: kind.to_owned(),
        source: source.to_owned(),
        options: options.iter().map(|option| (*option).to_owned()).collect(),
        ..Default::default()
    };
    assert_eq!(
        writable_dir(&[mount("bind", "/s/1/fs", &["rw"])]),
        Some("/s/1/fs".into())
    );
    let overlay = mount(
        "overlay",
        "overlay",
        &["workdir=/s/2/work", "upperdir=/s/2/fs", "lowerdir=/s/1/fs"],
    );
    assert_eq!(writable_dir(&[overlay]), Some("/s/2/fs".into()));
    assert_eq!(writable_dir(&[mount("ext4", "/dev/dm-3", &[])]), None);
}
