//! Usage beside a snapshotter that does not answer.

use switchyard_core::image::ImageStore;
use tonic::Status;

use super::super::test_store::store_over;
use crate::client::model::ModelContainerd;

fn model() -> ModelContainerd {
    let model = ModelContainerd::default();
    model.store().add_blob("five!");
    model
        .store()
        .add_snapshot("overlayfs", "layer", "", std::collections::HashMap::new());
    model
}

#[tokio::test(start_paused = true)]
async fn snapshotter_that_is_away_is_left_out_and_asked_again_after_a_while() {
    let model = model();
    let store = store_over(&model);
    let used = async || {
        store.usage.invalidate();
        let usage = ImageStore::usage(&store).await.unwrap();
        usage.iter().map(|disk| disk.used_bytes).collect::<Vec<_>>()
    };
    let asked = || model.calls("Snapshots/List other").len();
    assert_eq!(used().await, [6], "containerd lacks the other one");
    assert_eq!((used().await, asked()), (vec![6], 1));
    model.store().snapshotters.insert("other".into());
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    assert_eq!(used().await, [6, 0]);
    let held = model.hold("Snapshots/List other");
    assert_eq!(used().await, [6], "it hangs");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn snapshots_that_are_measured_slowly_are_told_and_one_that_hangs_is_not_waited_for() {
    let model = model();
    model.store().snapshotters.insert("other".into());
    model.store().add_snapshot(
        "overlayfs",
        "second",
        "layer",
        std::collections::HashMap::new(),
    );
    let store = store_over(&model);
    let held = ["layer", "second"].map(|name| model.hold(&format!("Snapshots/Usage {name}")));
    let slowly = async {
        for held in held {
            held.arrived(1).await;
            tokio::time::sleep(std::time::Duration::from_secs(6)).await;
        }
    };
    let (usage, ()) = tokio::join!(ImageStore::usage(&store), slowly);
    let usage = usage.unwrap();
    assert_eq!((usage[0].used_bytes, usage[0].inodes_used), (7, Some(2)));

    let _hangs = model.hold("Snapshots/Usage second");
    store.usage.invalidate();
    let usage = ImageStore::usage(&store).await.unwrap();
    assert_eq!((usage[0].used_bytes, usage[0].inodes_used), (5, None));
    assert!(store.snapshotters.is_away("overlayfs"));
}

#[tokio::test]
async fn content_is_told_without_the_default_snapshotter_and_beside_a_damaged_snapshot() {
    let model = model();
    model.store().snapshotters.insert("other".into());
    model.refuse(
        "Snapshots/Usage layer",
        Some(Status::unknown("input/output error")),
    );
    let store = store_over(&model);
    let usage = ImageStore::usage(&store).await.unwrap();
    assert_eq!((usage[0].used_bytes, usage[0].inodes_used), (5, Some(0)));
    model.refuse(
        "Snapshots/List overlayfs",
        Some(Status::unavailable("dial unix: refused")),
    );
    store.usage.invalidate();
    let usage = ImageStore::usage(&store).await.unwrap();
    assert_eq!(usage.len(), 2);
    assert_eq!((usage[0].used_bytes, usage[0].inodes_used), (5, None));
    model.refuse(
        "Version/Version",
        Some(Status::unavailable("connection closed")),
    );
    store.usage.invalidate();
    tokio::time::pause();
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    let error = ImageStore::usage(&store).await.unwrap_err();
    assert_eq!(error.kind(), switchyard_core::ErrorKind::Unavailable);
}
