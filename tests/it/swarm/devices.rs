//! Devices that the scheduler has assigned to a task, on a real containerd: what its container sees, and who has them
//! over a restart of the daemon.

use std::path::Path;
use std::sync::Arc;

use swarm::TaskState;
use switchyard_contract::Fixture;
use switchyard_core::device::{Device, DeviceGroup, Inventory, node};
use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::Change;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::swarm::node::{LIMIT, SwarmNode, assigned, task};
use tokio::sync::watch;

use crate::nomad::devices::make_device;

/// The gateway has this device from now on.
async fn equip(gateway: &Gateway, path: &Path) -> watch::Sender<Option<Arc<Inventory>>> {
    let group = DeviceGroup {
        devices: vec![Device::new("acme0", node(path.to_owned(), "rw"))],
        variable: "ACME_DEVICES".to_owned(),
        ..DeviceGroup::new("acme", "tpu", "v2")
    };
    let (tell, inventories) = watch::channel(Some(Arc::new(Inventory::of([group]))));
    gateway.devices().watch(inventories);
    gateway.scope(Owner::Swarm).devices().scanned().await;
    tell
}

/// The error of a pod that does not get the device.
async fn refusal(gateway: &Gateway) -> String {
    let pods = gateway.scope(Owner::Kubernetes);
    pods.devices()
        .lease(&["acme0".parse().expect("it is an id")])
        .await
        .expect_err("it is held")
        .report()
}

#[tokio::test(flavor = "multi_thread")]
async fn container_has_its_device_and_holds_it_over_a_restart() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let path = world.root().run().join("acme0");
    make_device(&path);
    let node = SwarmNode::over(&world).await;
    let _devices = equip(&node.gateway, &path).await;
    // A shell drops variables whose names it cannot use.
    let script = "stat -c '%t:%T' $ACME_DEVICES; echo read >$ACME_DEVICES; \
                  tr '\\0' '\\n' </proc/1/environ; echo end; exec sleep 1000";
    let named = swarm::NamedGenericResource {
        kind: "acme/tpu/v2".into(),
        value: "acme0".into(),
    };
    let resource = Some(swarm::generic_resource::Resource::NamedResourceSpec(named));
    let mut asked = task(&world, "t1", script, |_| {});
    asked.assigned_generic_resources = vec![swarm::GenericResource { resource }];
    node.apply(true, vec![assigned(asked.clone())]).await;
    node.reported("t1", TaskState::Running).await;
    let log = node.log(&world, "t1", " end").await;
    assert!(
        log.contains("1:3") && log.contains("DOCKER_RESOURCE_ACME/TPU/V2=acme0"),
        "{log:?}"
    );
    assert!(refusal(&node.gateway).await.contains("t1 of swarm"));

    node.gateway.shut_down(LIMIT).await.unwrap();
    drop(node);
    world.reopen().await;
    let node = SwarmNode::over(&world).await;
    let _devices = equip(&node.gateway, &path).await;
    assert!(refusal(&node.gateway).await.contains("t1 of swarm"));
    asked.status = Some(swarm::TaskStatus {
        state: TaskState::Running.into(),
        ..Default::default()
    });
    node.apply(true, vec![assigned(asked.clone())]).await;
    asked.desired_state = TaskState::Shutdown.into();
    node.apply(false, vec![assigned(asked.clone())]).await;
    node.reported("t1", TaskState::Shutdown).await;
    // Its successor has the device as soon as the end is reported.
    let successor = swarm::Task {
        id: "t2".into(),
        status: Some(swarm::TaskStatus {
            state: TaskState::Assigned.into(),
            ..Default::default()
        }),
        desired_state: TaskState::Running.into(),
        ..asked
    };
    node.apply(false, vec![Change::Task(Arc::new(successor))])
        .await;
    node.reported("t2", TaskState::Running).await;
    assert!(refusal(&node.gateway).await.contains("t2 of swarm"));
    node.end().await;
}
