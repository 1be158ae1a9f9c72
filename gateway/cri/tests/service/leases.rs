//! Devices that were leased to the kubelet: from the annotation of a container until the end of its sandbox.

use std::sync::Arc;

use switchyard_core::device::{Device, DeviceGroup, Inventory, node};
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::{ErrorKind, Result};
use switchyard_proto::cri::v1 as cri;
use tokio::sync::watch;
use tonic::Code;

use crate::support::{ServiceFixture, app, code, pod};

fn devices() -> Inventory {
    let devices = vec![Device::new("acme0", node("/dev/acme0".into(), "rw"))];
    Inventory::of([DeviceGroup {
        devices,
        ..DeviceGroup::new("acme", "tpu", "v2")
    }])
}

/// Adds one device to a node.
async fn equip(node: &ServiceFixture) {
    let (_, inventories) = watch::channel(Some(Arc::new(devices())));
    node.gateway.devices().watch(inventories);
    let mut view = node.gateway.scope(Owner::Kubernetes).devices().subscribe();
    view.wait_for(Option::is_some)
        .await
        .expect("the gateway lives");
}

/// Leases the device, and returns the annotation key by which a kubelet passes the lease on.
async fn lease(scope: &Scope) -> Result<String> {
    let leased = scope
        .devices()
        .lease(&["acme0".parse().expect("it is an id")])
        .await?;
    Ok(format!("devices.switchyard.io/{}", leased.token))
}

/// A container with this lease.
fn leased(key: &str, attempt: u32) -> cri::ContainerConfig {
    let mut config = app("app");
    config.metadata.as_mut().expect("it is set").attempt = attempt;
    config.annotations.insert(key.to_owned(), String::new());
    config
}

/// Checks that Nomad does not get the device; returns the error, which names the holder.
async fn is_held(node: &ServiceFixture) -> String {
    let error = lease(&node.gateway.scope(Owner::Nomad))
        .await
        .expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    error.report()
}

async fn remove(node: &mut ServiceFixture, container_id: String) {
    let request = cri::RemoveContainerRequest { container_id };
    node.runtime
        .remove_container(request)
        .await
        .expect("it can be removed");
}

#[tokio::test]
async fn crash_looping_container_keeps_its_device_across_daemon_restart() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    equip(&node).await;
    let key = lease(&node.gateway.scope(Owner::Kubernetes))
        .await
        .expect("it is free");
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    for attempt in 0..4 {
        let container = node
            .create(&sandbox, leased(&key, attempt))
            .await
            .expect("it has its lease");
        node.start(&container).await.expect("it is created");
        let text = is_held(&node).await;
        assert!(
            text.contains("\"acme0\"") && text.contains("web_shop_uid-web_0 of kubernetes"),
            "{text}"
        );
        node.fake
            .exit(container.parse().expect("it is an id"), 1)
            .expect("it runs");
        node.ended(&container).await;
        is_held(&node).await;
        remove(&mut node, container).await;
        is_held(&node).await;
        if attempt % 2 == 1 {
            node = node.restarted().await;
            equip(&node).await;
            is_held(&node).await;
        }
    }
    node.is_sound();
}

#[tokio::test]
async fn lease_annotation_is_echoed_and_not_passed_to_the_backend() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    equip(&node).await;
    let key = lease(&node.gateway.scope(Owner::Kubernetes))
        .await
        .expect("it is free");
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let config = leased(&key, 0);
    let container = node
        .create(&sandbox, config.clone())
        .await
        .expect("it has its lease");
    assert_eq!(
        node.status(&container)
            .await
            .expect("it is there")
            .annotations,
        config.annotations
    );
    let below = node
        .fake
        .annotations(container.parse().expect("it is an id"));
    assert!(!below.is_empty() && !below.contains_key(&key), "{below:?}");
    let again = node.create(&sandbox, config).await.expect("it is there");
    assert_eq!(again, container, "the same request is the same container");
}

#[tokio::test]
async fn foreign_or_malformed_lease_is_rejected() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    equip(&node).await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let nomads = lease(&node.gateway.scope(Owner::Nomad))
        .await
        .expect("it is free");
    let unknown = format!("devices.switchyard.io/{}", "0".repeat(32));
    for key in [&nomads, &unknown] {
        let refused = node
            .create(&sandbox, leased(key, 0))
            .await
            .expect_err("it is not its lease");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        assert!(refused.message().contains("lease"), "{refused:?}");
    }
    let malformed = node
        .create(&sandbox, leased("devices.switchyard.io/x", 0))
        .await;
    assert_eq!(code(malformed), Code::InvalidArgument);
    assert_eq!(node.fake.tasks(), []);
    // A container without devices is not affected.
    node.create(&sandbox, app("other"))
        .await
        .expect("it is well formed");
}

#[tokio::test]
async fn successor_gets_the_device_after_its_holder_stopped() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    equip(&node).await;
    let scope = node.gateway.scope(Owner::Kubernetes);
    let key = lease(&scope).await.expect("it is free");
    let first = node.run(pod("first")).await.expect("it is well formed");
    let container = node
        .create(&first, leased(&key, 0))
        .await
        .expect("it has its lease");
    node.start(&container).await.expect("it is created");
    // A kubelet counts the devices of a deleted pod as free, although its containers are still stopping.
    let key = lease(&scope)
        .await
        .expect("a kubelet is believed about its own devices");
    let second = node.run(pod("second")).await.expect("it is well formed");
    let refused = node
        .create(&second, leased(&key, 0))
        .await
        .expect_err("the first one still runs");
    assert!(
        refused.message().contains("first_shop_uid-first_0"),
        "{refused:?}"
    );
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: first,
    };
    node.runtime
        .stop_pod_sandbox(request)
        .await
        .expect("it can be stopped");
    node.create(&second, leased(&key, 0))
        .await
        .expect("its predecessor has ended");
    node.is_sound();
}
