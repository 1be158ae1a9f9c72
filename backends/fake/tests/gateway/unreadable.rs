//! An object that the backend cannot read keeps its name and what it holds, until a version that reads it runs.

use std::sync::Arc;

use switchyard_contract::specs;
use switchyard_core::backend::{Backend, HeldClaims, ObjectFacts, Unreadable, UnreadableKind};
use switchyard_core::device::{Device, DeviceGroup, Health, Inventory, node};
use switchyard_core::id::{LeaseToken, Owner, SandboxId, SlotId, TaskId};
use switchyard_core::spec::{
    ComputeClaim, CpuList, HostPort, HostPorts, LeaseClaim, Protocol, Reserved, Resources,
    SandboxSpec, TaskSpec,
};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_fake::{BUSYBOX, Fake};
use tokio::sync::watch;

use crate::node::{ENDLESS, FakeNode};

const HELD: &str = "acme-0";
const FREE: &str = "acme-1";

fn slot(id: &str) -> SlotId {
    id.parse().unwrap()
}

/// A recovered node with two devices.
async fn node_with(fake: Fake, unreadable: Vec<Unreadable>) -> FakeNode {
    fake.set_unreadable(unreadable);
    let node = FakeNode::unrecovered(fake);
    let devices = [HELD, FREE].map(|id| Device::new(id, node_of(id))).to_vec();
    let group = DeviceGroup {
        devices,
        ..DeviceGroup::new("acme", "tpu", "v2")
    };
    let (_, inventories) = watch::channel(Some(Arc::new(Inventory::of([group]))));
    node.gateway.devices().watch(inventories);
    node.gateway.recover().await.unwrap();
    node.gateway.scope(Owner::Nomad).devices().scanned().await;
    node
}

fn node_of(id: &str) -> switchyard_core::spec::DeviceNode {
    node(format!("/dev/{id}").into(), "rw")
}

fn ports(number: u16) -> HostPorts {
    HostPorts {
        group: String::new(),
        ports: vec![HostPort {
            protocol: Protocol::Tcp,
            port: number,
            ip: None,
        }],
    }
}

/// A sandbox of Kubernetes with port 80.
fn sandbox() -> Unreadable {
    Unreadable {
        id: SandboxId::from_bytes([1; 32]).to_string(),
        kind: UnreadableKind::Sandbox,
        owner: Some(Owner::Kubernetes),
        name: "web".to_owned(),
        sandbox: None,
        reason: "of version 9".to_owned(),
        claims: HeldClaims {
            host_ports: ports(80),
            is_complete: true,
            ..HeldClaims::default()
        },
        facts: ObjectFacts::default(),
    }
}

/// A task in that sandbox with a device and two processors.
fn task() -> Unreadable {
    let lease = LeaseClaim {
        slots: vec![slot(HELD)],
        ..LeaseClaim::new(LeaseToken::from_bytes([7; 16]))
    };
    Unreadable {
        id: TaskId::from_bytes([2; 32]).to_string(),
        kind: UnreadableKind::Task,
        name: "main".to_owned(),
        sandbox: Some(SandboxId::from_bytes([1; 32])),
        claims: HeldClaims {
            leases: vec![lease],
            exclusive_cpus: "2-3".parse().ok(),
            reserved: Reserved {
                cpu_milli: 2000,
                memory_bytes: 0,
            },
            is_complete: true,
            ..HeldClaims::default()
        },
        ..sandbox()
    }
}

/// The same, of which nothing but the kind is known.
fn unidentified() -> Unreadable {
    Unreadable {
        id: "of another form".to_owned(),
        kind: UnreadableKind::Unknown,
        owner: None,
        name: String::new(),
        sandbox: None,
        reason: "of version 9".to_owned(),
        claims: HeldClaims::default(),
        facts: ObjectFacts::default(),
    }
}

async fn make_sandbox(node: &FakeNode, spec: SandboxSpec) -> Result<SandboxId> {
    let scope = node.gateway.scope(spec.meta.owner);
    Ok(scope.sandboxes().create(spec).await?.id)
}

/// A task of Nomad with these processors, which are its own.
async fn make_pinned(node: &FakeNode, sandbox: SandboxId, cpus: &str) -> Result<TaskId> {
    let spec = TaskSpec {
        resources: Resources {
            cpuset_cpus: CpuList::new(cpus).ok(),
            ..Resources::default()
        },
        compute: ComputeClaim {
            exclusive_cpus: true,
            ..ComputeClaim::default()
        },
        ..specs::task(Owner::Nomad, &format!("on {cpus}"), BUSYBOX, ENDLESS)
    };
    let scope = node.gateway.scope(Owner::Nomad);
    let task = scope.tasks().create(&sandbox.to_string(), spec).await?;
    Ok(task.id)
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T>, words: &[&str]) {
    let error: Error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition, "{error:?}");
    let text = error.report();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn nothing_that_it_holds_is_given_out_until_it_can_be_read_again() {
    let fake = Fake::with_local_busybox().await;
    let node = node_with(fake, vec![sandbox(), task()]).await;
    let recipe = ["01010101", "cannot read", "docs/alerts.md"];
    let pod = specs::sandbox(Owner::Kubernetes, "web");
    assert_refused(make_sandbox(&node, pod.clone()).await, &recipe);
    let with_port = SandboxSpec {
        host_ports: ports(80),
        ..specs::sandbox(Owner::Nomad, "other")
    };
    let held = ["80/tcp", "web of kubernetes"];
    assert_refused(make_sandbox(&node, with_port.clone()).await, &held);
    let own = make_sandbox(&node, specs::sandbox(Owner::Nomad, "own"))
        .await
        .unwrap();
    let held = ["the set 2 of processors", "main of kubernetes"];
    assert_refused(make_pinned(&node, own, "1-2").await, &held);
    make_pinned(&node, own, "0").await.unwrap();
    let nomad = node.gateway.scope(Owner::Nomad);
    let leased = nomad.devices().lease(&[slot(HELD)]).await;
    assert_refused(leased, &["main of kubernetes"]);
    nomad.devices().lease(&[slot(FREE)]).await.unwrap();
    // The same name is another object if another owner asks.
    let same = specs::sandbox(Owner::Swarm, "web");
    make_sandbox(&node, same).await.unwrap();
    assert_eq!(node.gateway.unreadable().len(), 2);

    let fake = node.fake.reopen();
    drop(node);
    let node = node_with(fake, Vec::new()).await;
    make_sandbox(&node, pod).await.unwrap();
    make_sandbox(&node, with_port).await.unwrap();
    let nomad = node.gateway.scope(Owner::Nomad);
    nomad.devices().lease(&[slot(HELD)]).await.unwrap();
}

#[tokio::test]
async fn one_that_cannot_be_identified_may_hold_any_device_and_processor() {
    let fake = Fake::with_local_busybox().await;
    let node = node_with(fake, vec![unidentified()]).await;
    let nomad = node.gateway.scope(Owner::Nomad);
    let leased = nomad.devices().lease(&[slot(FREE)]).await;
    assert_refused(leased, &["cannot be read", "switchyard status"]);
    let mut view = nomad.devices().subscribe();
    let seen = view
        .wait_for(|seen| {
            seen.as_ref().is_some_and(|seen| {
                let devices = seen.groups.iter().flat_map(|group| &group.devices);
                let text = |health: &Health| format!("{health:?}");
                devices
                    .map(|device| text(&device.health))
                    .all(|health| health.contains("cannot be read"))
            })
        })
        .await;
    drop(seen.unwrap());
    assert!(node.gateway.devices().is_withheld());
    let own = make_sandbox(&node, specs::sandbox(Owner::Nomad, "own"))
        .await
        .unwrap();
    assert_refused(make_pinned(&node, own, "0").await, &["cannot be read"]);
    // All else is made as ever.
    let spec = specs::task(Owner::Nomad, "plain", BUSYBOX, ENDLESS);
    let plain = nomad.tasks().create(&own.to_string(), spec).await.unwrap();
    nomad.tasks().start(&plain.id.to_string()).await.unwrap();
}

#[tokio::test]
async fn image_of_one_is_removed_for_no_owner_until_it_can_be_read_again() {
    let fake = Fake::with_local_busybox().await;
    let image = fake.images().get(BUSYBOX).await.unwrap().unwrap().id;
    let held = Unreadable {
        claims: HeldClaims {
            images: [image.clone()].into(),
            ..task().claims
        },
        ..task()
    };
    let node = node_with(fake, vec![held]).await;
    for owner in [Owner::Host, Owner::Kubernetes] {
        let scope = node.gateway.scope(owner);
        let words = [image.as_str(), "02020202", "docs/alerts.md"];
        assert_refused(scope.images().remove(BUSYBOX).await, &words);
        // Collectors leave it alone.
        let listed = scope.images().list().await.unwrap();
        assert!(listed.iter().all(|image| image.pinned), "{listed:?}");
        assert!(listed[0].holders.contains_key(&Owner::Host), "{listed:?}");
    }

    let fake = node.fake.reopen();
    drop(node);
    let node = node_with(fake, Vec::new()).await;
    let host = node.gateway.scope(Owner::Host);
    host.images().remove(BUSYBOX).await.unwrap();
    assert_eq!(host.images().list().await.unwrap(), []);
}

#[tokio::test]
async fn a_sandbox_with_a_task_that_cannot_be_read_is_not_stopped() {
    let fake = FakeNode::new().await.fake;
    let node = FakeNode::over(fake).await;
    let own = make_sandbox(&node, specs::sandbox(Owner::Kubernetes, "pod"))
        .await
        .unwrap();
    let fake = node.fake.reopen();
    drop(node);
    let held = Unreadable {
        sandbox: Some(own),
        ..task()
    };
    let node = node_with(fake, vec![held]).await;
    let id = own.to_string();
    assert_refused(node.scope.sandboxes().stop(&id).await, &["02020202"]);
    assert_refused(node.scope.sandboxes().remove(&id).await, &["02020202"]);
    assert!(node.scope.sandboxes().by_id(own).unwrap().state.is_ready());
    let again = specs::task(Owner::Kubernetes, "main", BUSYBOX, ENDLESS);
    assert_refused(node.scope.tasks().create(&id, again).await, &["02020202"]);
    let rivals = |name: &str| name.starts_with("mai");
    let refused = node.scope.sandboxes().check_rivals("main-2", rivals);
    assert_refused(refused, &["main-2", "02020202"]);
    let another = specs::task(Owner::Kubernetes, "side", BUSYBOX, ENDLESS);
    node.scope.tasks().create(&id, another).await.unwrap();
}

#[tokio::test]
async fn a_task_in_the_same_sandbox_keeps_the_device_that_it_shares_with_one() {
    for by_name in [false, true] {
        let node = node_with(Fake::with_local_busybox().await, Vec::new()).await;
        let own = make_sandbox(&node, specs::sandbox(Owner::Nomad, "own"))
            .await
            .unwrap();
        let nomad = node.gateway.scope(Owner::Nomad);
        let mut spec = specs::task(Owner::Nomad, "side", BUSYBOX, ENDLESS);
        if by_name {
            spec.devices = vec![node_of(HELD)];
        } else {
            let leased = nomad.devices().lease(&[slot(HELD)]).await.unwrap();
            spec.leases = vec![LeaseClaim::new(leased.token)];
        }
        let id = own.to_string();
        let side = nomad.tasks().create(&id, spec.clone()).await.unwrap();
        assert_eq!(side.details.leases.len(), 1);
        let held = Unreadable {
            owner: Some(Owner::Nomad),
            sandbox: Some(own),
            claims: HeldClaims {
                leases: side.details.leases.clone(),
                is_complete: true,
                ..HeldClaims::default()
            },
            ..task()
        };

        let fake = node.fake.reopen();
        drop(node);
        let node = node_with(fake, vec![held]).await;
        let nomad = node.gateway.scope(Owner::Nomad);
        nomad.tasks().remove(&side.id.to_string()).await.unwrap();
        let swarm = node.gateway.scope(Owner::Swarm);
        let leased = swarm.devices().lease(&[slot(HELD)]).await;
        assert_refused(leased, &["own of nomad"]);
        let again = nomad.tasks().create(&id, spec).await.unwrap();
        assert_eq!(again.details.leases, side.details.leases, "{by_name}");
    }
}
