//! Events are sent in the order of the changes, and a subscriber that is too slow gets an error.

use std::time::Duration;

use switchyard_core::event::{CAPACITY, EventKind, Lagged, Subscription, TaskEnd};
use switchyard_core::id::Owner;
use switchyard_core::operation::{Caller, OperationKind};
use switchyard_core::spec::Signal;
use switchyard_core::state::ExitCause;
use switchyard_core::stop_request::StopReason;

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
        EventKind::TaskExited(id, exit, TaskEnd::default()),
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
    let EventKind::TaskExited(id, exit, _) = event.kind else {
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

/// The circumstances of the next exit.
async fn next_end(events: &mut Subscription) -> TaskEnd {
    loop {
        let event = events.next().await.unwrap().unwrap();
        if let EventKind::TaskExited(_, _, end) = event.kind {
            return end;
        }
    }
}

#[tokio::test]
async fn exit_names_the_first_request_to_stop_with_its_caller() {
    let node = FakeNode::new().await;
    let caller = Caller {
        listener: "cri",
        uid: Some(0),
        pid: Some(7),
    };
    let task = node.running(ENDLESS).await;
    let mut events = node.scope.subscribe();
    let id = task.id.to_string();
    let removal = node.scope.tasks().remove(&id);
    caller.clone().scope(removal).await.unwrap();
    let stop = next_end(&mut events).await.stop.unwrap();
    assert_eq!(stop.reason, StopReason::Requested);
    assert_eq!(stop.operation, Some(OperationKind::RemoveTask));
    assert_eq!(stop.caller, Some(caller));
}

#[tokio::test]
async fn exit_names_a_failed_health_check_and_the_stop_of_the_sandbox() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let mut events = node.scope.subscribe();
    let id = task.id.to_string();
    let grace = Duration::from_millis(1);
    let stop = node
        .scope
        .tasks()
        .stop_for(&id, None, grace, StopReason::Unhealthy);
    stop.await.unwrap();
    let stop = next_end(&mut events).await.stop.unwrap();
    assert_eq!(stop.reason, StopReason::Unhealthy);
    assert_eq!(stop.operation, Some(OperationKind::StopTask));
    assert_eq!(stop.caller, None);

    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let mut events = node.scope.subscribe();
    let sandbox = task.sandbox.to_string();
    node.scope.sandboxes().stop(&sandbox).await.unwrap();
    let stop = next_end(&mut events).await.stop.unwrap();
    assert_eq!(stop.operation, Some(OperationKind::StopSandbox));
}

#[tokio::test]
async fn exit_by_the_signal_of_a_client_names_it_and_another_exit_does_not() {
    for (signal, is_named) in [(Signal::KILL, true), (Signal::TERM, false)] {
        let node = FakeNode::new().await;
        // It ignores the second one.
        let task = node.running(&["ignore-term"]).await;
        let mut events = node.scope.subscribe();
        let id = task.id.to_string();
        node.scope.tasks().signal(&id, signal).await.unwrap();
        if !is_named {
            node.fake.exit(task.id, 3).unwrap();
        }
        let stop = next_end(&mut events).await.stop;
        let operation = stop.and_then(|stop| stop.operation);
        let expected = is_named.then_some(OperationKind::SignalTask);
        assert_eq!(operation, expected, "{signal:?}");
    }
}
