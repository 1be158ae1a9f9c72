//! Tests of the list of resources in use: a kubelet that starts is registered with these first.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::device::{Device, DeviceGroup, Inventory, node};
use switchyard_core::gateway::{Limits, ResourceUse, Scope};
use switchyard_core::id::LeaseToken;
use switchyard_core::spec::{HostPorts, LeaseClaim, SandboxSpec, TaskSpec};
use switchyard_fake::Fake;
use tokio::sync::watch;

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec};

const RESOURCE: &str = "acme.com/tpu";

/// The label with the name that all attempts of a container have.
const LABEL: &str = "container";

/// A node with one device, which pods can have.
async fn node_with_a_device(limits: Limits) -> FakeNode {
    let fake_node = FakeNode::within(Fake::with_local_busybox().await, limits);
    let device = Device::new("acme-0", node("/dev/acme0".into(), "rw"));
    let group = DeviceGroup {
        devices: vec![device],
        ..DeviceGroup::new("acme", "tpu", "v2")
    };
    let group = DeviceGroup {
        resource: RESOURCE.to_owned(),
        ..group
    };
    let (_hardware, inventories) = watch::channel(Some(Arc::new(Inventory::of([group]))));
    fake_node.gateway.devices().watch(inventories);
    fake_node.gateway.recover().await.unwrap();
    fake_node
        .scope
        .devices()
        .subscribe()
        .wait_for(Option::is_some)
        .await
        .unwrap();
    fake_node
}

/// A running container with this lease.
async fn run(scope: &Scope, sandbox: &str, name: &str, token: LeaseToken) -> String {
    let leases = vec![LeaseClaim::new(token)];
    let spec = TaskSpec {
        leases,
        ..task_spec(name, ENDLESS)
    };
    let task = scope
        .tasks()
        .create(sandbox, spec)
        .await
        .unwrap()
        .id
        .to_string();
    scope.tasks().start(&task).await.unwrap();
    task
}

#[tokio::test(start_paused = true)]
async fn resource_is_waiting_while_its_container_exited_or_is_pending() {
    let fake_node = node_with_a_device(Limits::default()).await;
    let scope = &fake_node.scope;
    let slot = ["acme-0".parse().unwrap()];
    let leased = scope.devices().lease(&slot).await.unwrap();
    let sandbox = scope
        .sandboxes()
        .create(sandbox_spec("pod"))
        .await
        .unwrap()
        .id
        .to_string();
    let init = run(scope, &sandbox, "init", leased.token).await;
    scope.tasks().stop(&init, Duration::ZERO).await.unwrap();
    run(scope, &sandbox, "main", leased.token).await;
    assert_eq!(
        scope.devices().resources_in_use(LABEL)[RESOURCE],
        ResourceUse::Waiting,
        "a kubelet checks init containers"
    );
    scope.tasks().remove(&init).await.unwrap();
    assert_eq!(
        scope.devices().resources_in_use(LABEL)[RESOURCE],
        ResourceUse::Running
    );
    scope.devices().lease(&slot).await.unwrap();
    assert_eq!(
        scope.devices().resources_in_use(LABEL)[RESOURCE],
        ResourceUse::Waiting,
        "its successor is admitted"
    );
}

/// A running attempt of a container with this lease.
async fn run_attempt(
    scope: &Scope,
    sandbox: &str,
    name: &str,
    attempt: u32,
    token: LeaseToken,
) -> String {
    let leases = vec![LeaseClaim::new(token)];
    let mut spec = TaskSpec {
        leases,
        ..task_spec(&format!("{name}_{attempt}_{sandbox}"), ENDLESS)
    };
    spec.meta.labels.insert(LABEL.to_owned(), name.to_owned());
    let task = scope
        .tasks()
        .create(sandbox, spec)
        .await
        .unwrap()
        .id
        .to_string();
    scope.tasks().start(&task).await.unwrap();
    task
}

/// A sandbox of a pod with this uid.
async fn sandbox_of(scope: &Scope, uid: &str, attempt: u32) -> String {
    let host_ports = HostPorts {
        group: uid.to_owned(),
        ports: Vec::new(),
    };
    let spec = SandboxSpec {
        host_ports,
        ..sandbox_spec(&format!("{uid}_{attempt}"))
    };
    scope.sandboxes().create(spec).await.unwrap().id.to_string()
}

#[tokio::test(start_paused = true)]
async fn a_restarted_container_waits_only_while_its_newest_attempt_has_ended() {
    let fake_node = node_with_a_device(Limits::default()).await;
    let scope = &fake_node.scope;
    let resource_use = || scope.devices().resources_in_use(LABEL)[RESOURCE];
    let token = scope
        .devices()
        .lease(&["acme-0".parse().unwrap()])
        .await
        .unwrap()
        .token;
    let sandbox = sandbox_of(scope, "u-1", 0).await;
    let init = run_attempt(scope, &sandbox, "init", 0, token).await;
    scope.tasks().stop(&init, Duration::ZERO).await.unwrap();
    let first = run_attempt(scope, &sandbox, "main", 0, token).await;
    assert_eq!(
        resource_use(),
        ResourceUse::Waiting,
        "no attempt of the init container runs"
    );
    scope.tasks().remove(&init).await.unwrap();
    assert_eq!(resource_use(), ResourceUse::Running);

    scope.tasks().stop(&first, Duration::ZERO).await.unwrap();
    assert_eq!(resource_use(), ResourceUse::Waiting);
    let second = run_attempt(scope, &sandbox, "main", 1, token).await;
    assert_eq!(
        resource_use(),
        ResourceUse::Ended,
        "it runs, and has an ended predecessor"
    );
    scope.tasks().stop(&second, Duration::ZERO).await.unwrap();
    assert_eq!(resource_use(), ResourceUse::Waiting);
    scope.tasks().remove(&first).await.unwrap();
    run_attempt(scope, &sandbox, "main", 2, token).await;
    scope.tasks().remove(&second).await.unwrap();
    assert_eq!(resource_use(), ResourceUse::Running);
}

#[tokio::test(start_paused = true)]
async fn the_containers_of_a_replaced_sandbox_are_attempts_of_those_of_its_successor() {
    let limits = Limits::default();
    let restart_grace = limits.restart_grace;
    let fake_node = node_with_a_device(limits).await;
    let scope = &fake_node.scope;
    let resource_use = || scope.devices().resources_in_use(LABEL)[RESOURCE];
    let token = scope
        .devices()
        .lease(&["acme-0".parse().unwrap()])
        .await
        .unwrap()
        .token;
    let replaced = sandbox_of(scope, "u-1", 0).await;
    run_attempt(scope, &replaced, "main", 0, token).await;
    scope.sandboxes().stop(&replaced).await.unwrap();
    tokio::time::sleep(restart_grace + Duration::from_secs(2)).await;
    assert_eq!(
        resource_use(),
        ResourceUse::Ended,
        "its pod is probably gone"
    );

    let other = sandbox_of(scope, "u-2", 0).await;
    assert_eq!(
        resource_use(),
        ResourceUse::Ended,
        "another pod does not start its containers"
    );
    scope.sandboxes().stop(&other).await.unwrap();
    let successor = sandbox_of(scope, "u-1", 1).await;
    assert_eq!(
        resource_use(),
        ResourceUse::Waiting,
        "its containers are to be created again"
    );
    run_attempt(scope, &successor, "main", 0, token).await;
    assert_eq!(
        resource_use(),
        ResourceUse::Ended,
        "it runs in the successor"
    );
}

#[tokio::test(start_paused = true)]
async fn resource_is_in_use_from_lease_until_end_of_grace() {
    let limits = Limits::default();
    let restart_grace = limits.restart_grace;
    let fake_node = node_with_a_device(limits).await;
    let scope = &fake_node.scope;
    let in_use = || {
        scope
            .devices()
            .resources_in_use(LABEL)
            .into_iter()
            .collect::<Vec<_>>()
    };
    let resource = RESOURCE.to_owned();
    assert_eq!(in_use(), []);

    let leased = scope
        .devices()
        .lease(&["acme-0".parse().unwrap()])
        .await
        .unwrap();
    assert_eq!(
        in_use(),
        [(resource.clone(), ResourceUse::Waiting)],
        "a pod is being admitted"
    );

    let sandbox = scope
        .sandboxes()
        .create(sandbox_spec("pod"))
        .await
        .unwrap()
        .id
        .to_string();
    let task = run(scope, &sandbox, "main", leased.token).await;
    assert_eq!(in_use(), [(resource.clone(), ResourceUse::Running)]);

    scope.tasks().stop(&task, Duration::ZERO).await.unwrap();
    assert_eq!(
        in_use(),
        [(resource.clone(), ResourceUse::Waiting)],
        "its container is started again"
    );

    scope.tasks().remove(&task).await.unwrap();
    scope.sandboxes().stop(&sandbox).await.unwrap();
    assert_eq!(
        in_use(),
        [(resource, ResourceUse::Waiting)],
        "its pod may get another sandbox"
    );
    tokio::time::sleep(restart_grace + Duration::from_secs(2)).await;
    assert_eq!(
        in_use(),
        [],
        "the lease is remembered, and keeps its slots from nobody"
    );
}
