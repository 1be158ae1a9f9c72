//! A port that is forwarded to a sandbox, while a program of the node listens on it; and what refusals of ports say.

use switchyard_core::backend::OccupiedPort;
use switchyard_core::event::EventKind;
use switchyard_core::gateway::PortConflict;
use switchyard_core::id::Owner;
use switchyard_core::ledger::ListeningProcess;
use switchyard_core::names::Names;
use switchyard_core::spec::{
    HostPort, HostPorts, PodNetwork, PortMapping, Protocol, SandboxNetwork, SandboxSpec,
};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_fake::Method;

use crate::node::{FakeNode, limits};

/// A port of TCP, on all addresses.
fn port(number: u16) -> HostPort {
    HostPort {
        protocol: Protocol::Tcp,
        port: number,
        ip: None,
    }
}

/// A sandbox that claims these ports, and to which they are forwarded.
fn forwarding(owner: Owner, name: &str, ports: &[u16]) -> SandboxSpec {
    let mapping = |number: &u16| PortMapping {
        protocol: Protocol::Tcp,
        container_port: 80,
        host_port: *number,
        host_ip: None,
    };
    let network = PodNetwork {
        ports: ports.iter().map(mapping).collect(),
        ..PodNetwork::default()
    };
    SandboxSpec {
        network: SandboxNetwork::Pod(network),
        host_ports: HostPorts {
            group: format!("group of {name}"),
            ports: ports.iter().copied().map(port).collect(),
        },
        ..switchyard_contract::specs::sandbox(owner, name)
    }
}

/// A node on which sshd listens.
async fn node() -> FakeNode {
    let node = FakeNode::new().await;
    node.fake.set_listeners(vec![OccupiedPort {
        port: port(22),
        process: Some(ListeningProcess {
            name: "sshd".to_owned(),
            pid: 812,
        }),
    }]);
    node
}

async fn create(node: &FakeNode, spec: SandboxSpec) -> Result<()> {
    let scope = node.gateway.scope(spec.meta.owner);
    scope.sandboxes().create(spec).await.map(drop)
}

#[tokio::test]
async fn port_of_a_listening_program_is_refused_but_to_a_pod() {
    let text = "host port 22/tcp is in use by the process \"sshd\" of the node (pid 812), which listens on it: stop that, or publish another port";
    for (owner, policy, is_refused) in [
        (Owner::Nomad, PortConflict::Warn, true),
        (Owner::Swarm, PortConflict::Warn, true),
        (Owner::Host, PortConflict::Warn, true),
        (Owner::Kubernetes, PortConflict::Warn, false),
        (Owner::Kubernetes, PortConflict::Refuse, true),
    ] {
        let node = node().await;
        let mut limits = limits();
        limits.port_conflict = policy;
        node.gateway.set_limits(limits);
        let mut events = node.gateway.subscribe();
        let created = create(&node, forwarding(owner, "web", &[80, 22])).await;
        let event = events.next().await.unwrap().unwrap();
        assert_eq!(event.owner, owner);
        let is_told = if is_refused {
            matches!(&event.kind, EventKind::Refused(refusal) if refusal.to_string() == text)
        } else {
            matches!(&event.kind, EventKind::Conflict(conflict) if conflict.to_string() == text)
        };
        assert!(is_told, "{owner}, {policy:?}: {event:?}");
        let refused = created.err().map(|error| (error.kind(), error.report()));
        let expected = is_refused.then(|| (ErrorKind::FailedPrecondition, text.to_owned()));
        assert_eq!(refused, expected, "{owner}, {policy:?}");
        // What was refused claims nothing.
        let held = node.gateway.claims().report().ports.len();
        assert_eq!(held, usize::from(!is_refused), "{owner}, {policy:?}");
        // Ports on which nobody listens.
        create(&node, forwarding(owner, "other", &[81]))
            .await
            .unwrap();
    }
}

/// The sandboxes of the fake have an address of IPv4 alone.
#[tokio::test]
async fn port_that_leads_to_no_address_of_a_pod_is_an_event() {
    for (host_ip, is_told) in [
        ("fd00::2", true),
        ("::", true),
        ("::1", true),
        ("192.0.2.1", false),
        ("0.0.0.0", false),
        ("::ffff:192.0.2.1", false),
        ("127.0.0.1", false),
        ("", false),
    ] {
        let node = FakeNode::new().await;
        let mut spec = forwarding(Owner::Kubernetes, "pod", &[80]);
        if let SandboxNetwork::Pod(network) = &mut spec.network {
            network.ports[0].host_ip = host_ip.parse().ok();
        }
        let mut events = node.gateway.subscribe();
        let scope = node.gateway.scope(Owner::Kubernetes);
        let id = scope.sandboxes().create(spec.clone()).await.unwrap().id;
        scope.sandboxes().stop(&id.to_string()).await.unwrap();
        scope.sandboxes().start(id, spec).await.unwrap();
        scope.sandboxes().remove(&id.to_string()).await.unwrap();
        let mut told = Vec::new();
        loop {
            let kind = events.next().await.unwrap().unwrap().kind;
            if let EventKind::Conflict(conflict) = &kind {
                told.push(conflict.to_string());
            }
            if matches!(kind, EventKind::SandboxRemoved(_)) {
                break;
            }
        }
        // Once for each start.
        assert_eq!(
            told.len(),
            if is_told { 2 } else { 0 },
            "{host_ip}: {told:?}"
        );
        assert!(
            told.iter()
                .all(|text| text.contains(host_ip) && text.contains("cannot be forwarded: ")),
            "{told:?}"
        );
    }
}

#[tokio::test]
async fn rollback_of_a_failed_start_leaves_the_ports_to_a_start_that_looks_for_listeners() {
    let node = FakeNode::new().await;
    let pod = || forwarding(Owner::Kubernetes, "pod", &[80]);
    let scope = node.gateway.scope(Owner::Kubernetes);
    let id = scope.sandboxes().create(pod()).await.unwrap().id;
    scope.sandboxes().stop(&id.to_string()).await.unwrap();
    let left = node.fake.hold(Method::NetworkReleased);
    node.fake
        .fail_next(Method::StartSandbox, Error::internal("no"));
    scope.sandboxes().start(id, pod()).await.unwrap_err();
    let looking = node.fake.hold_next(Method::FindListener);
    let meanwhile = async {
        looking.arrived(1).await;
        left.release();
        // The rollback would have released the ports by now.
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
        let web = create(&node, forwarding(Owner::Nomad, "web", &[80])).await;
        looking.release();
        web.unwrap_err()
    };
    let sandboxes = scope.sandboxes();
    let (started, refused) = tokio::join!(sandboxes.start(id, pod()), meanwhile);
    started.unwrap();
    let text = refused.report();
    assert!(text.contains("is held by pod of kubernetes"), "{text}");
}

#[tokio::test]
async fn port_that_is_not_forwarded_is_left_to_the_processes_of_the_sandbox() {
    for network in [
        SandboxNetwork::Host,
        SandboxNetwork::Joined("/run/netns/group".into()),
        SandboxNetwork::Isolated,
        SandboxNetwork::Pod(PodNetwork::default()),
    ] {
        let node = node().await;
        let spec = SandboxSpec {
            network,
            ..forwarding(Owner::Nomad, "web", &[22])
        };
        create(&node, spec).await.unwrap();
    }
}

#[tokio::test]
async fn process_that_cannot_be_seen_is_reported_as_such() {
    let node = FakeNode::new().await;
    node.fake.set_listeners(vec![OccupiedPort {
        port: port(22),
        process: None,
    }]);
    let error = create(&node, forwarding(Owner::Nomad, "web", &[22]))
        .await
        .unwrap_err();
    assert!(error.report().contains("that cannot be seen"), "{error}");
}

#[tokio::test]
async fn task_that_publishes_the_port_of_another_one_of_its_group_is_refused() {
    let node = FakeNode::new().await;
    let member = |member: &str, start: &str| {
        let spec = forwarding(Owner::Nomad, &format!("alloc/{member}/{start}"), &[80]);
        let ports = HostPorts::new("alloc".to_owned(), [port(80)], "ports").unwrap();
        SandboxSpec {
            host_ports: ports.forwarded_to(member),
            ..spec
        }
    };
    create(&node, member("web", "1")).await.unwrap();
    let error = create(&node, member("db", "2")).await.unwrap_err();
    assert!(
        error.report().contains("is held by alloc/web/1 of nomad"),
        "{error}"
    );
    // A task that is started again need not wait for its predecessor's end.
    create(&node, member("web", "3")).await.unwrap();
}

#[tokio::test]
async fn refusal_names_the_holder_as_people_know_it() {
    let node = FakeNode::new().await;
    node.gateway.set_names(|meta| match meta.owner {
        Owner::Swarm => Names::new("shop.1"),
        Owner::Kubernetes | Owner::Nomad | Owner::Host => Names::new(&meta.name),
    });
    for (owner, expected) in [
        (Owner::Swarm, "shop.1 [holder-swarm] of swarm"),
        (Owner::Nomad, "holder-nomad of nomad"),
        (Owner::Kubernetes, "holder-kubernetes of kubernetes"),
        (Owner::Host, "holder-host of host"),
    ] {
        let name = format!("holder-{owner}");
        create(&node, forwarding(owner, &name, &[80]))
            .await
            .unwrap();
        let error: Error = create(&node, forwarding(Owner::Nomad, "refused", &[80]))
            .await
            .unwrap_err();
        let text = error.report();
        assert!(text.contains(&format!("is held by {expected}")), "{text}");
        let scope = node.gateway.scope(owner);
        let held = scope.sandboxes().named(&name).unwrap().unwrap();
        scope
            .sandboxes()
            .remove(&held.id.to_string())
            .await
            .unwrap();
    }
}
