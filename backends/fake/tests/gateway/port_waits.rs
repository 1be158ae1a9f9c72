//! Host ports of a sandbox whose network is released behind the answer to its stop: who waits for them, and for how long.

use switchyard_contract::refused;
use switchyard_core::ErrorKind;
use switchyard_core::id::Owner;
use switchyard_core::state::SandboxState;
use switchyard_fake::Method;

use crate::node::{FakeNode, until};
use crate::ports::{nomad, spec};

#[tokio::test]
async fn stop_during_a_start_that_waits_for_ports_is_not_answered_before_the_start_is_over() {
    let node = FakeNode::new().await;
    let pod = || spec(Owner::Kubernetes, "pod", &[80]);
    let id = node.scope.sandboxes().create(pod()).await.unwrap().id;
    node.scope.sandboxes().stop(&id.to_string()).await.unwrap();
    let web = spec(Owner::Nomad, "web", &[80]);
    let web = nomad(&node).sandboxes().create(web).await.unwrap().id;
    let left = node.fake.hold(Method::NetworkReleased);
    nomad(&node)
        .sandboxes()
        .stop(&web.to_string())
        .await
        .unwrap();
    let scope = node.scope.clone();
    let start = tokio::spawn(async move { scope.sandboxes().start(id, pod()).await });
    let state = || node.scope.sandboxes().by_id(id).unwrap().state.clone();
    until(|| state() == SandboxState::Starting).await;
    let scope = node.scope.clone();
    let stop = tokio::spawn(async move { scope.sandboxes().stop(&id.to_string()).await });
    until(|| state() == SandboxState::Stopping).await;
    assert!(!start.is_finished() && !stop.is_finished());
    left.release();
    assert_eq!(refused(start.await.unwrap()), ErrorKind::FailedPrecondition);
    stop.await.unwrap().unwrap();
    assert_eq!(state(), SandboxState::Stopped);
    until(|| node.gateway.claims().report().ports.is_empty()).await;
}

#[tokio::test]
async fn start_that_is_refused_leaves_the_ports_of_a_network_that_is_being_released() {
    let node = FakeNode::new().await;
    let pod = || spec(Owner::Kubernetes, "pod", &[80]);
    let id = node.scope.sandboxes().create(pod()).await.unwrap().id;
    let other = spec(Owner::Nomad, "other", &[90]);
    nomad(&node).sandboxes().create(other).await.unwrap();
    let left = node.fake.hold(Method::NetworkReleased);
    node.scope.sandboxes().stop(&id.to_string()).await.unwrap();
    let holds = || {
        let held = node.gateway.claims().report().ports;
        held.iter().any(|(holder, _)| *holder == id)
    };
    // Another port is held by one that runs.
    let more = spec(Owner::Kubernetes, "pod", &[80, 90]);
    assert_eq!(
        refused(node.scope.sandboxes().start(id, more).await),
        ErrorKind::FailedPrecondition
    );
    assert!(holds(), "its plugins still run");
    // It is being removed.
    let snapshots = node.fake.hold(Method::RemoveSandbox);
    let scope = node.scope.clone();
    let removal = tokio::spawn(async move { scope.sandboxes().remove(&id.to_string()).await });
    snapshots.arrived(1).await;
    assert_eq!(
        refused(node.scope.sandboxes().start(id, pod()).await),
        ErrorKind::FailedPrecondition
    );
    assert!(holds(), "its plugins still run");
    left.release();
    until(|| !holds()).await;
    snapshots.release();
    removal.await.unwrap().unwrap();
}
