//! Host ports of a sandbox whose network is released behind the answer to its stop: who waits for them, and for how long.

use std::time::Duration;

use switchyard_contract::refused;
use switchyard_core::id::Owner;
use switchyard_core::spec::{HostPort, HostPorts, Protocol, SandboxSpec};
use switchyard_core::state::SandboxState;
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::Method;
use tokio::time::Instant;

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

fn port(protocol: Protocol, ip: Option<[u8; 4]>) -> HostPort {
    HostPort {
        protocol,
        port: 80,
        ip: ip.map(Into::into),
    }
}

/// An attempt of one pod, which may have the ports of the others.
fn attempt(number: u8, port: HostPort) -> SandboxSpec {
    let host_ports = HostPorts {
        group: "pod".to_owned(),
        ports: vec![port],
    };
    SandboxSpec {
        host_ports,
        ..spec(Owner::Kubernetes, &format!("pod-{number}"), &[])
    }
}

/// The clock stands still but for what is waited for: nothing else here takes time.
#[tokio::test(start_paused = true)]
async fn attempt_of_a_pod_waits_for_those_before_it_that_have_its_ports_but_not_for_ever() {
    let tcp = port(Protocol::Tcp, None);
    let udp = port(Protocol::Udp, None);
    let one = port(Protocol::Tcp, Some([10, 0, 0, 1]));
    let other = port(Protocol::Tcp, Some([10, 0, 0, 2]));
    for (held, asked, is_stopped, waits) in [
        (tcp, tcp, true, true),
        (udp, udp, true, true),
        (tcp, one, true, true),
        (one, tcp, true, true),
        (tcp, udp, true, false),
        (one, other, true, false),
        // Both run: what the pod does with its ports is its own business.
        (tcp, tcp, false, false),
    ] {
        let node = FakeNode::new().await;
        let sandboxes = node.scope.sandboxes();
        let first = sandboxes.create(attempt(0, held)).await.unwrap().id;
        let left = node.fake.hold(Method::NetworkReleased);
        if is_stopped {
            sandboxes.stop(&first.to_string()).await.unwrap();
        }
        let began = Instant::now();
        sandboxes.create(attempt(1, asked)).await.unwrap();
        let has_waited = began.elapsed() >= Duration::from_secs(20);
        assert_eq!(has_waited, waits, "{held} {asked} {is_stopped}");
        left.release();
    }
}

#[tokio::test]
async fn attempt_of_a_pod_is_made_as_soon_as_plugins_are_done_with_the_one_before() {
    let node = FakeNode::new().await;
    let sandboxes = node.scope.sandboxes();
    let tcp = port(Protocol::Tcp, None);
    let first = sandboxes.create(attempt(0, tcp)).await.unwrap().id;
    let left = node.fake.hold(Method::NetworkReleased);
    sandboxes.stop(&first.to_string()).await.unwrap();
    let release = async {
        // Whoever does not wait would have been created by now.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert_eq!(node.fake.count(Method::CreateSandbox), 1);
        left.release();
    };
    let (second, ()) = tokio::join!(sandboxes.create(attempt(1, tcp)), release);
    let second = second.unwrap().id;
    let held = node.gateway.claims().report().ports;
    let held: Vec<_> = held.into_iter().map(|(id, _)| id).collect();
    assert_eq!(held, [second], "the first one has them no more");
}

/// As when the daemon was killed amid the creation, or containerd ended: the client repeats its request, and another attempt of the same pod
/// may have the port, too.
#[tokio::test]
async fn ports_of_a_sandbox_that_was_never_completed_are_waited_for_while_its_network_is_released()
{
    for (asks, owner, name, group) in [
        ("the same again", Owner::Kubernetes, "pod", "uid"),
        ("another attempt", Owner::Kubernetes, "pod_1", "uid"),
        ("another pod", Owner::Kubernetes, "web", "other"),
        ("another owner", Owner::Nomad, "web", ""),
    ] {
        let node = FakeNode::new().await;
        let of_group = |owner: Owner, name: &str, group: &str| {
            let spec = spec(owner, name, &[80]);
            let host_ports = HostPorts {
                group: group.to_owned(),
                ..spec.host_ports.clone()
            };
            SandboxSpec { host_ports, ..spec }
        };
        let left = node.fake.hold(Method::NetworkReleased);
        node.fake
            .fail_next(Method::CreateSandbox, Error::internal("no"));
        let cut_off = of_group(Owner::Kubernetes, "pod", "uid");
        let error = refused(node.scope.sandboxes().create(cut_off).await);
        assert_eq!(error, ErrorKind::Internal, "{asks}");
        let scope = if owner == Owner::Nomad {
            nomad(&node)
        } else {
            node.scope.clone()
        };
        let wanted = of_group(owner, name, group);
        let made = tokio::spawn(async move { scope.sandboxes().create(wanted).await });
        // Whoever does not wait would have been answered by now.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        assert!(!made.is_finished(), "{asks}");
        left.release();
        let made = made.await.unwrap();
        assert!(made.is_ok(), "{asks}: {made:?}");
        let held = node.gateway.claims().report().ports;
        assert_eq!(held.len(), 1, "{asks}: {held:?}");
    }
}
