//! Tests of a kubelet's view of the devices.

use switchyard_core::device::Health;
use switchyard_core::id::Owner;
use switchyard_kubelet::ListedDevice;

use crate::node::{PluginFixture, TPU, group, inventory};

#[tokio::test(flavor = "multi_thread")]
async fn slots_have_health_and_memory_nodes() {
    let node = PluginFixture::with(inventory([group(TPU, 2, 2)])).await;
    let kubelet = node.followed(1).await;
    let seen = |node: i64| ListedDevice {
        healthy: true,
        numa_nodes: vec![node],
    };
    let expected = [
        ("acme-com-tpu-000::0", 0),
        ("acme-com-tpu-000::1", 0),
        ("acme-com-tpu-001::0", 1),
        ("acme-com-tpu-001::1", 1),
    ];
    assert_eq!(
        kubelet.devices(TPU),
        expected
            .map(|(id, node)| (id.to_owned(), seen(node)))
            .into()
    );
    node.change_group(|group| group.devices[0].health = Health::Unhealthy("it burns".to_owned()));
    kubelet
        .wait_until("both slots are unhealthy", |kubelet| {
            kubelet.capacity(TPU) == (4, 2)
        })
        .await;
    node.change_group(|group| group.devices[0].health = Health::Healthy);
    kubelet
        .wait_until("both slots are healthy again", |kubelet| {
            kubelet.capacity(TPU) == (4, 4)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_vanishes_stays_unhealthy_and_the_kubelet_lives() {
    let node = PluginFixture::with(inventory([group(TPU, 3, 1)])).await;
    let kubelet = node.followed(1).await;
    for _ in 0..20 {
        let admitted = kubelet.admit("pod", "app", &[(TPU, 3)]);
        let vanished = async {
            node.change_group(|group| group.devices.clear());
            kubelet
                .wait_until("they are unhealthy", |kubelet| {
                    kubelet.capacity(TPU) == (3, 0)
                })
                .await;
        };
        // Both results are fine: the device may vanish before it is allocated.
        let (_, ()) = tokio::join!(admitted, vanished);
        assert_eq!(kubelet.crash(), None);
        kubelet.remove_pod("pod");
        node.change_group(|known| *known = group(TPU, 3, 1));
        kubelet
            .wait_until("they are there again", |kubelet| {
                kubelet.capacity(TPU) == (3, 3)
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_owner_has_is_unhealthy_and_what_the_kubelet_has_stays_healthy() {
    let node = PluginFixture::with(inventory([group(TPU, 3, 1)])).await;
    let kubelet = node.followed(1).await;
    let nomad = node.gateway.scope(Owner::Nomad);
    let lease = nomad
        .devices()
        .lease(&["acme-com-tpu-001".parse().unwrap()])
        .await
        .unwrap();
    kubelet
        .wait_until("one is unhealthy", |kubelet| {
            kubelet.capacity(TPU) == (3, 2)
        })
        .await;
    assert!(!kubelet.devices(TPU)["acme-com-tpu-001"].healthy);
    kubelet.admit("pod", "app", &[(TPU, 2)]).await.unwrap();
    node.gateway
        .devices()
        .release_lease(lease.token)
        .await
        .unwrap();
    kubelet
        .wait_until("it is healthy again", |kubelet| {
            kubelet.capacity(TPU) == (3, 3)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubelet_that_restarts_starts_its_pods_again() {
    let node = PluginFixture::with(inventory([group(TPU, 2, 1)])).await;
    let kubelet = node.followed(1).await;
    kubelet.admit("pod", "app", &[(TPU, 2)]).await.unwrap();
    let checkpoint = kubelet.kill();
    let options = switchyard_kubelet::Options {
        checkpoint,
        ..Default::default()
    };
    let kubelet = switchyard_kubelet::Kubelet::start(node.directory(), options);
    assert!(
        kubelet
            .readmit("pod")
            .unwrap_err()
            .contains("no healthy devices present")
    );
    crate::node::registered(&kubelet, 1).await;
    kubelet.readmit("pod").unwrap();
    let refused = kubelet
        .admit("other", "app", &[(TPU, 1)])
        .await
        .unwrap_err();
    assert!(refused.contains("Available: 0"), "{refused}");
}
