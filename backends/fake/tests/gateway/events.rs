//! Events are sent in the order of the changes, and a subscriber that is too slow gets an error.

use switchyard_core::event::{CAPACITY, EventKind, Lagged};
use switchyard_core::id::Owner;
use switchyard_core::state::ExitCause;

use crate::node::{ENDLESS, FakeNode, sandbox_spec};

#[tokio::test]
async fn lifecycle_events_come_in_order() {
    let node = FakeNode::new().await;
    let mut own = node.scope.subscribe();
    let mut all = node.gateway.subscribe();
    let task = node.running(ENDLESS).await;
    let id = task.id;
    let sandbox = task.sandbox;
    node.fake.exit(id, 3).unwrap();
    let exit = node.scope.tasks().wait(&id.to_string()).await.unwrap();
    node.scope.tasks().remove(&id.to_string()).await.unwrap();
    node.scope
        .sandboxes()
        .stop(&sandbox.to_string())
        .await
        .unwrap();
    node.scope
        .sandboxes()
        .remove(&sandbox.to_string())
        .await
        .unwrap();
    let expected = [
        EventKind::SandboxReady(sandbox),
        EventKind::TaskCreated(id),
        EventKind::TaskStarted(id),
        EventKind::TaskExited(id, exit),
        EventKind::TaskRemoved(id),
        EventKind::SandboxStopped(sandbox),
        EventKind::SandboxRemoved(sandbox),
    ];
    for kind in expected {
        for events in [&mut own, &mut all] {
            let event = events.next().await.unwrap().unwrap();
            assert_eq!((event.owner, &event.kind), (Owner::Kubernetes, &kind));
        }
    }
}

#[tokio::test]
async fn task_that_never_ran_exits_without_a_start_event() {
    let node = FakeNode::new().await;
    let task = node.task(&["/no/such/server"]).await;
    let mut events = node.scope.subscribe();
    node.scope
        .tasks()
        .start(&task.id.to_string())
        .await
        .unwrap_err();
    let event = events.next().await.unwrap().unwrap();
    let EventKind::TaskExited(id, exit) = event.kind else {
        panic!("{event:?}")
    };
    assert_eq!(id, task.id);
    assert!(matches!(exit.cause, ExitCause::StartFailed(_)), "{exit:?}");
}

#[tokio::test]
async fn slow_subscriber_is_told_the_number_of_missed_events() {
    let node = FakeNode::new().await;
    let mut slow = node.scope.subscribe();
    // Each sandbox has three events: ready, stopped, removed.
    let lives = CAPACITY.div_ceil(3) + 1;
    for _ in 0..lives {
        let id = node
            .scope
            .sandboxes()
            .create(sandbox_spec("pod"))
            .await
            .unwrap()
            .id
            .to_string();
        node.scope.sandboxes().remove(&id).await.unwrap();
    }
    let missed = u64::try_from(lives * 3 - CAPACITY).unwrap();
    assert_eq!(slow.next().await, Err(Lagged { missed }));
    for _ in 0..CAPACITY {
        assert!(matches!(slow.next().await, Ok(Some(_))));
    }
}
