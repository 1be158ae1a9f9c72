//! A host port is assigned to one pod at a time, from before its sandbox is created until its network is
//! released. Who waits for that is in `port_waits`.

use switchyard_contract::refused;
use switchyard_core::backend::Backend;
use switchyard_core::event::EventKind;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::spec::{HostPort, HostPorts, Protocol, SandboxSpec};
use switchyard_core::state::SandboxState;
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::Method;

use crate::node::{FakeNode, until};

pub(crate) fn spec(owner: Owner, name: &str, ports: &[u16]) -> SandboxSpec {
    let ports = ports
        .iter()
        .map(|port| HostPort {
            protocol: Protocol::Tcp,
            port: *port,
            ip: None,
        })
        .collect();
    let host_ports = HostPorts {
        group: format!("group of {name}"),
        ports,
    };
    SandboxSpec {
        host_ports,
        ..switchyard_contract::specs::sandbox(owner, name)
    }
}

pub(crate) fn nomad(node: &FakeNode) -> Scope {
    node.gateway.scope(Owner::Nomad)
}

fn refusals(node: &FakeNode) -> u64 {
    node.gateway.claims().report().refusals.values().sum()
}

#[tokio::test]
async fn port_of_another_owner_is_rejected_by_name_before_creation() {
    let node = FakeNode::new().await;
    let mut events = node.gateway.subscribe();
    nomad(&node)
        .sandboxes()
        .create(spec(Owner::Nomad, "web", &[80]))
        .await
        .unwrap();
    let error = node
        .scope
        .sandboxes()
        .create(spec(Owner::Kubernetes, "pod", &[81, 80]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let text = error.report();
    assert!(
        text.contains("80/tcp") && text.contains("web of nomad"),
        "{text}"
    );
    assert_eq!(node.fake.count(Method::CreateSandbox), 1);
    assert_eq!(refusals(&node), 1);
    assert!(matches!(
        events.next().await.unwrap().unwrap().kind,
        EventKind::SandboxReady(_)
    ));
    let event = events.next().await.unwrap().unwrap();
    assert_eq!(event.owner, Owner::Kubernetes);
    assert!(matches!(event.kind, EventKind::Refused(refusal) if refusal.to_string() == text));
    // A refused request claims nothing.
    nomad(&node)
        .sandboxes()
        .create(spec(Owner::Nomad, "other", &[81]))
        .await
        .unwrap();
}

#[tokio::test]
async fn port_is_free_after_sandbox_stop_and_restart_fails_if_taken() {
    let node = FakeNode::new().await;
    let pod = node
        .scope
        .sandboxes()
        .create(spec(Owner::Kubernetes, "pod", &[80]))
        .await
        .unwrap();
    let hold = node.fake.hold(Method::StopSandbox);
    let id = pod.id.to_string();
    let stopping = tokio::spawn({
        let scope = node.scope.clone();
        let id = id.clone();
        async move { scope.sandboxes().stop(&id).await }
    });
    hold.arrived(1).await;
    let web = spec(Owner::Nomad, "web", &[80]);
    assert_eq!(
        refused(nomad(&node).sandboxes().create(web.clone()).await),
        ErrorKind::FailedPrecondition
    );
    hold.release();
    stopping.await.unwrap().unwrap();
    let web = nomad(&node).sandboxes().create(web).await.unwrap();
    let again = spec(Owner::Kubernetes, "pod", &[80]);
    assert_eq!(
        refused(node.scope.sandboxes().start(pod.id, again.clone()).await),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(
        node.scope.sandboxes().find(&id).unwrap().state,
        SandboxState::Stopped
    );
    nomad(&node)
        .sandboxes()
        .remove(&web.id.to_string())
        .await
        .unwrap();
    node.scope.sandboxes().start(pod.id, again).await.unwrap();
    let web = spec(Owner::Nomad, "web", &[80]);
    assert_eq!(
        refused(nomad(&node).sandboxes().create(web).await),
        ErrorKind::FailedPrecondition
    );
    node.agrees().await;
}

/// The clock stands still: who asks for ports of one whose creation failed waits for them.
#[tokio::test(start_paused = true)]
async fn failed_sandbox_create_holds_ports_until_rolled_back() {
    let node = FakeNode::new().await;
    let web = || spec(Owner::Nomad, "web", &[80]);
    node.fake
        .fail_next(Method::CreateSandbox, Error::internal("no"));
    assert_eq!(
        refused(
            node.scope
                .sandboxes()
                .create(spec(Owner::Kubernetes, "pod", &[80]))
                .await
        ),
        ErrorKind::Internal
    );
    let made = nomad(&node)
        .sandboxes()
        .create(web())
        .await
        .expect("nothing was left");
    nomad(&node)
        .sandboxes()
        .remove(&made.id.to_string())
        .await
        .unwrap();

    let left = node.fake.hold(Method::NetworkReleased);
    node.fake
        .fail_next(Method::CreateSandbox, Error::internal("no"));
    assert_eq!(
        refused(
            node.scope
                .sandboxes()
                .create(spec(Owner::Kubernetes, "pod", &[80]))
                .await
        ),
        ErrorKind::Internal
    );
    assert_eq!(
        refused(nomad(&node).sandboxes().create(web()).await),
        ErrorKind::FailedPrecondition
    );
    left.release();
    until(|| node.gateway.claims().report().ports.is_empty()).await;
    nomad(&node).sandboxes().create(web()).await.unwrap();
}

/// The clock stands still: who asks for ports of a stopped sandbox waits for them.
#[tokio::test(start_paused = true)]
async fn failed_start_rollback_keeps_ports_of_the_next_start() {
    let node = FakeNode::new().await;
    let pod = || spec(Owner::Kubernetes, "pod", &[80]);
    let web = || spec(Owner::Nomad, "web", &[80]);
    let id = node.scope.sandboxes().create(pod()).await.unwrap().id;
    node.scope.sandboxes().stop(&id.to_string()).await.unwrap();
    let left = node.fake.hold(Method::NetworkReleased);
    node.fake
        .fail_next(Method::StartSandbox, Error::internal("no"));
    assert_eq!(
        refused(node.scope.sandboxes().start(id, pod()).await),
        ErrorKind::Internal
    );
    assert_eq!(
        refused(nomad(&node).sandboxes().create(web()).await),
        ErrorKind::FailedPrecondition
    );
    left.arrived(1).await;
    node.scope.sandboxes().start(id, pod()).await.unwrap();
    left.release();
    // A caller that waits for the rollback would have been answered by now.
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        refused(nomad(&node).sandboxes().create(web()).await),
        ErrorKind::FailedPrecondition
    );

    // Without a second start, the ports are free when the rollback is complete.
    node.scope.sandboxes().stop(&id.to_string()).await.unwrap();
    let left = node.fake.hold(Method::NetworkReleased);
    node.fake
        .fail_next(Method::StartSandbox, Error::internal("no"));
    assert_eq!(
        refused(node.scope.sandboxes().start(id, pod()).await),
        ErrorKind::Internal
    );
    left.release();
    until(|| node.gateway.claims().report().ports.is_empty()).await;
    nomad(&node).sandboxes().create(web()).await.unwrap();
}

#[tokio::test]
async fn ports_of_a_stopped_sandbox_are_waited_for_while_its_network_is_released() {
    let node = FakeNode::new().await;
    let pod = || spec(Owner::Kubernetes, "pod", &[80, 81]);
    let id = node.scope.sandboxes().create(pod()).await.unwrap().id;
    let left = node.fake.hold(Method::NetworkReleased);
    node.scope.sandboxes().stop(&id.to_string()).await.unwrap();
    assert_eq!(
        node.scope.sandboxes().find(&id.to_string()).unwrap().state,
        SandboxState::Stopped
    );
    assert!(!node.gateway.claims().report().ports.is_empty());
    let scope = nomad(&node);
    let sandboxes = scope.sandboxes();
    let release = async {
        // Whoever does not wait would have been answered by now.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        left.release();
    };
    let (web, dns, ()) = tokio::join!(
        sandboxes.create(spec(Owner::Nomad, "web", &[80])),
        sandboxes.create(spec(Owner::Nomad, "dns", &[81])),
        release
    );
    web.unwrap();
    dns.unwrap();
    // The sandbox has them no more, and is refused.
    assert_eq!(
        refused(node.scope.sandboxes().start(id, pod()).await),
        ErrorKind::FailedPrecondition
    );
}

/// A removal that takes long, as that of a large snapshot, holds no port: neither for who asks before it begins, nor for who
/// asks behind that, nor if nobody asks.
#[tokio::test]
async fn ports_of_a_sandbox_that_is_being_removed_are_free_when_its_network_is_released() {
    for (before, behind) in [(true, false), (false, true), (true, true), (false, false)] {
        let node = FakeNode::new().await;
        let pod = spec(Owner::Kubernetes, "pod", &[80, 81]);
        let id = node.scope.sandboxes().create(pod).await.unwrap().id;
        let left = node.fake.hold(Method::NetworkReleased);
        let snapshots = node.fake.hold(Method::RemoveSandbox);
        node.scope.sandboxes().stop(&id.to_string()).await.unwrap();
        let ask = |is_asked: bool, port: u16| {
            let scope = nomad(&node);
            tokio::spawn(async move {
                if is_asked {
                    let web = spec(Owner::Nomad, &format!("web-{port}"), &[port]);
                    scope.sandboxes().create(web).await.unwrap();
                }
            })
        };
        let first = ask(before, 80);
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let scope = node.scope.clone();
        let removal = tokio::spawn(async move { scope.sandboxes().remove(&id.to_string()).await });
        snapshots.arrived(1).await;
        let second = ask(behind, 81);
        // Whoever does not wait would have been answered by now.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        left.release();
        first.await.unwrap();
        second.await.unwrap();
        let held = usize::from(before) + usize::from(behind);
        until(|| node.gateway.claims().report().ports.len() == held).await;
        let sandbox = node.scope.sandboxes().find(&id.to_string()).unwrap();
        assert_eq!(sandbox.state, SandboxState::Removing, "{before} {behind}");
        snapshots.release();
        removal.await.unwrap().unwrap();
    }
}

/// The clock stands still: nobody waits for real time.
#[tokio::test(start_paused = true)]
async fn ports_whose_network_is_not_released_in_time_are_refused_with_their_holder() {
    let node = FakeNode::new().await;
    let pod = spec(Owner::Kubernetes, "pod", &[80]);
    let id = node.scope.sandboxes().create(pod.clone()).await.unwrap().id;
    let left = node.fake.hold(Method::NetworkReleased);
    node.scope.sandboxes().stop(&id.to_string()).await.unwrap();
    let web = || spec(Owner::Nomad, "web", &[80]);
    let error = nomad(&node).sandboxes().create(web()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let text = error.report();
    let why = format!(
        "the network of sandbox {id}, which is stopped or was never completed, was not released within 20s"
    );
    assert!(
        text.contains("pod of kubernetes") && text.contains(&why),
        "{text}"
    );
    // A start of the same sandbox has them, and keeps them when the network is released.
    node.scope.sandboxes().start(id, pod).await.unwrap();
    left.release();
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(
        refused(nomad(&node).sandboxes().create(web()).await),
        ErrorKind::FailedPrecondition
    );
}

#[tokio::test]
async fn sandbox_with_failed_stop_keeps_its_ports() {
    let node = FakeNode::new().await;
    let pod = node
        .scope
        .sandboxes()
        .create(spec(Owner::Kubernetes, "pod", &[80]))
        .await
        .unwrap();
    node.fake
        .fail_next(Method::StopSandbox, Error::internal("no"));
    assert_eq!(
        refused(node.scope.sandboxes().stop(&pod.id.to_string()).await),
        ErrorKind::Internal
    );
    let web = || spec(Owner::Nomad, "web", &[80]);
    assert_eq!(
        refused(nomad(&node).sandboxes().create(web()).await),
        ErrorKind::FailedPrecondition
    );
    node.scope
        .sandboxes()
        .remove(&pod.id.to_string())
        .await
        .unwrap();
    nomad(&node).sandboxes().create(web()).await.unwrap();
}

#[tokio::test]
async fn recovered_running_sandbox_holds_ports_and_stopped_one_does_not() {
    let node = FakeNode::new().await;
    node.scope
        .sandboxes()
        .create(spec(Owner::Kubernetes, "ready", &[80]))
        .await
        .unwrap();
    let stopped = node
        .scope
        .sandboxes()
        .create(spec(Owner::Kubernetes, "stopped", &[81]))
        .await
        .unwrap();
    node.scope
        .sandboxes()
        .stop(&stopped.id.to_string())
        .await
        .unwrap();
    let node = node.killed().await;
    assert_eq!(node.gateway.claims().report().ports.len(), 1);
    assert_eq!(
        refused(
            nomad(&node)
                .sandboxes()
                .create(spec(Owner::Nomad, "a", &[80]))
                .await
        ),
        ErrorKind::FailedPrecondition
    );
    nomad(&node)
        .sandboxes()
        .create(spec(Owner::Nomad, "b", &[81]))
        .await
        .unwrap();
    assert!(node.fake.recover().await.unwrap().remnants.is_empty());
}

#[tokio::test]
async fn attempts_of_a_pod_share_ports() {
    let node = FakeNode::new().await;
    let attempt = |name: &str| {
        let spec = spec(Owner::Kubernetes, name, &[80]);
        SandboxSpec {
            host_ports: HostPorts {
                group: "uid".to_owned(),
                ..spec.host_ports.clone()
            },
            ..spec
        }
    };
    let first = node
        .scope
        .sandboxes()
        .create(attempt("pod_0"))
        .await
        .unwrap();
    node.scope
        .sandboxes()
        .create(attempt("pod_1"))
        .await
        .unwrap();
    node.scope
        .sandboxes()
        .remove(&first.id.to_string())
        .await
        .unwrap();
    assert_eq!(
        refused(
            nomad(&node)
                .sandboxes()
                .create(spec(Owner::Nomad, "web", &[80]))
                .await
        ),
        ErrorKind::FailedPrecondition
    );
}
