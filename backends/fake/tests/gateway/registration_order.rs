//! Which resources are in use: a kubelet that starts is registered with these first.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::device::{Device, DeviceGroup, Inventory, node};
use switchyard_core::gateway::{Limits, ResourceUse};
use switchyard_core::spec::{LeaseClaim, TaskSpec};
use switchyard_fake::Fake;
use tokio::sync::watch;

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec};

#[tokio::test(start_paused = true)]
async fn a_resource_is_in_use_from_its_lease_until_the_grace_of_a_stopped_sandbox_is_over() {
    let limits = Limits::default();
    let restart_grace = limits.restart_grace;
    let node_under_test = FakeNode::within(Fake::with_local_busybox().await, limits);
    let device = Device::new("acme-0", node("/dev/acme0".into(), "rw"));
    let group = DeviceGroup { devices: vec![device], ..DeviceGroup::new("acme", "tpu", "v2") };
    let group = DeviceGroup { resource: "acme.com/tpu".to_owned(), ..group };
    let (_hardware, inventories) = watch::channel(Some(Arc::new(Inventory::of([group]))));
    node_under_test.gateway.watch_devices(inventories);
    node_under_test.gateway.recover().await.unwrap();
    let scope = &node_under_test.scope;
    scope.devices().wait_for(Option::is_some).await.unwrap();
    let in_use = || scope.resources_in_use().into_iter().collect::<Vec<_>>();
    let resource = "acme.com/tpu".to_owned();
    assert_eq!(in_use(), []);

    let leased = scope.lease(&["acme-0".to_owned()]).await.unwrap();
    assert_eq!(in_use(), [(resource.clone(), ResourceUse::Waiting)], "a pod is being admitted");

    let sandbox = scope.create_sandbox(sandbox_spec("pod")).await.unwrap().id.to_string();
    let leases = vec![LeaseClaim::new(leased.token)];
    let spec = TaskSpec { leases, ..task_spec("main", ENDLESS) };
    let task = scope.create_task(&sandbox, spec).await.unwrap().id.to_string();
    scope.start_task(&task).await.unwrap();
    assert_eq!(in_use(), [(resource.clone(), ResourceUse::Running)]);

    scope.stop_task(&task, Duration::ZERO).await.unwrap();
    assert_eq!(in_use(), [(resource.clone(), ResourceUse::Waiting)], "its container is started again");

    scope.remove_task(&task).await.unwrap();
    scope.stop_sandbox(&sandbox).await.unwrap();
    assert_eq!(in_use(), [(resource, ResourceUse::Waiting)], "its pod may get another sandbox");
    tokio::time::sleep(restart_grace + Duration::from_secs(2)).await;
    assert_eq!(in_use(), [], "the lease is remembered, and keeps its slots from nobody");
}
