//! Snapshotters that do not answer, and the keys of short-lived snapshots.

use tonic::Status;

use super::*;
use crate::client::model::ModelContainerd;

#[tokio::test(start_paused = true)]
async fn snapshotter_that_hangs_or_is_missing_is_told_by_name_and_containerd_is_not_blamed() {
    let model = ModelContainerd::default();
    model
        .store()
        .snapshotters
        .extend(["hangs", "refuses"].map(str::to_owned));
    let client = model.client();
    let away = AwaySnapshotters::default();
    let held = model.hold("Snapshots/List hangs");
    model.refuse(
        "Snapshots/List refuses",
        Some(Status::unavailable("dial unix /run/x.sock: refused")),
    );
    let ask = async |name: &str| away.ask(&client, name, list(&client, name)).await;
    for name in ["hangs", "refuses", "missing"] {
        assert!(ask(name).await.unwrap().is_err(), "{name}");
        assert!(away.is_away(name), "{name}");
    }
    assert!(ask("overlayfs").await.unwrap().is_ok());
    let Condition::False { message, .. } = away.condition(BTreeMap::new()) else {
        panic!("three are away")
    };
    for name in ["hangs: ", "refuses: ", "missing: "] {
        assert!(message.contains(name), "{message}");
    }
    assert!(!message.contains("overlayfs"), "{message}");

    // What containerd says of one that it cannot use takes the place of the error of a call.
    let unusable = BTreeMap::from([("missing", "missing cannot be used".to_owned())]);
    let Condition::False { reason, message } = away.condition(unusable) else {
        panic!("one cannot be used")
    };
    assert_eq!(reason, SNAPSHOTTER_UNUSABLE);
    assert!(message.starts_with("missing cannot be used; "), "{message}");
    assert!(
        message.contains("hangs: ") && !message.contains("missing: "),
        "{message}"
    );

    drop(held);
    model.refuse("Snapshots/List refuses", None);
    model.store().snapshotters.insert("missing".into());
    for name in ["hangs", "refuses", "missing"] {
        assert!(ask(name).await.unwrap().is_ok(), "{name}");
    }
    assert_eq!(away.condition(BTreeMap::new()), Condition::True);
}

#[tokio::test(start_paused = true)]
async fn containerd_that_is_away_is_an_error() {
    let model = ModelContainerd::default();
    let client = model.client();
    let away = AwaySnapshotters::default();
    for call in ["Snapshots/List", "Version/Version"] {
        model.refuse(call, Some(Status::unavailable("connection closed")));
    }
    let error = away
        .ask(&client, "overlayfs", list(&client, "overlayfs"))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert_eq!(away.condition(BTreeMap::new()), Condition::True);
}

#[tokio::test]
async fn own_keys_are_told_from_those_of_predecessors() {
    let model = ModelContainerd::default();
    let predecessor = model.client();
    let client = model.client();
    for prefix in [view_prefix(&client), extract_prefix(&client)] {
        assert!(!is_stale(&client, &new_key(&client, &prefix)));
        assert!(is_stale(
            &client,
            &format!("{} sha256:x", new_key(&predecessor, &prefix))
        ));
        assert!(
            is_stale(&client, &format!("{prefix}0123456789abcdef")),
            "of an earlier version"
        );
    }
    assert!(!is_stale(&client, "sha256:x"));
    assert!(!is_stale(&client, "extract-switchyard-other-x"));
}
