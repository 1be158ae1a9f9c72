//! Plugins that hang, fail, send invalid answers or die while a container is created: the error says so, and
//! the ledger is unchanged.

use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::gateway::Leased;
use switchyard_core::id::Owner;
use switchyard_core::ledger::LeaseState;
use switchyard_device_host::PluginState;
use switchyard_kubelet::vendor::{CallBehaviour, VENDOR_DEVICES, VendorPlugin, device};
use switchyard_proto::kubelet::device_plugin::v1beta1;

use crate::node::{GPU, HostFixture, IDS, token, variable};

/// A device that Nomad has leased.
async fn leased(node: &HostFixture) -> Leased {
    node.healthy(3).await;
    node.gateway
        .scope(Owner::Nomad)
        .devices()
        .lease(&[IDS[0].parse().unwrap()])
        .await
        .unwrap()
}

/// The lease still belongs to Nomad, and no task was created with it.
fn is_unbound(node: &HostFixture, leased: &Leased) {
    let report = node.gateway.claims().report();
    let lease = report.devices.get(leased.token).expect("it is still there");
    assert_eq!(lease.owner, Owner::Nomad);
    assert_eq!(lease.slots, [IDS[0]]);
    assert!(
        matches!(lease.state, LeaseState::Unbound { .. }),
        "{lease:?}"
    );
    assert!(node.fake.tasks().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_plugin_is_named_with_its_error_and_retried() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    let leased = leased(&node).await;
    let mount = |host: &str| v1beta1::Mount {
        container_path: "/opt".to_owned(),
        host_path: host.to_owned(),
        read_only: false,
    };
    vendor.set_behaviour(|behaviour| {
        behaviour.allocate = CallBehaviour::Fail("the driver is not loaded")
    });
    let refused = node
        .run(Owner::Nomad, "one", leased.token)
        .await
        .unwrap_err();
    for part in [GPU, IDS[0], "fails Allocate", "the driver is not loaded"] {
        assert!(refused.report().contains(part), "{refused:?}");
    }
    is_unbound(&node, &leased);
    vendor.set_behaviour(|behaviour| {
        behaviour.allocate = CallBehaviour::Answer;
        behaviour.answer.mounts = vec![mount("/opt/../etc")];
    });
    let refused = node
        .run(Owner::Nomad, "two", leased.token)
        .await
        .unwrap_err();
    assert!(
        refused
            .report()
            .contains("mounts.host_path: \"/opt/../etc\""),
        "{refused:?}"
    );
    is_unbound(&node, &leased);
    vendor.set_behaviour(|behaviour| {
        behaviour.answer.mounts.clear();
        behaviour.further_answers = 3;
    });
    let refused = node
        .run(Owner::Nomad, "three", leased.token)
        .await
        .unwrap_err();
    assert!(refused.report().contains("4 answers"), "{refused:?}");
    vendor.set_behaviour(|behaviour| {
        behaviour.further_answers = 0;
        behaviour
            .answer
            .envs
            .insert("HUGE".to_owned(), "x".repeat(3 << 20));
    });
    let refused = node
        .run(Owner::Nomad, "four", leased.token)
        .await
        .unwrap_err();
    assert!(refused.report().len() < 1000, "{refused:?}");
    is_unbound(&node, &leased);
    vendor.set_behaviour(|behaviour| behaviour.answer.envs.clear());
    let (_, spec) = node.run(Owner::Nomad, "five", leased.token).await.unwrap();
    assert_eq!(variable(&spec, VENDOR_DEVICES), Some(IDS[0]));
    assert_eq!(
        (node.failures("failed"), node.failures("malformed")),
        (2, 2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_plugin_blocks_only_its_container_until_timeout() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    let leased = leased(&node).await;
    vendor.set_behaviour(|behaviour| behaviour.allocate = CallBehaviour::Hang);
    let hung = node.run(Owner::Nomad, "hung", leased.token);
    tokio::pin!(hung);
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut hung)
            .await
            .is_err()
    );
    vendor.set_behaviour(|behaviour| behaviour.allocate = CallBehaviour::Answer);
    let other = node
        .gateway
        .scope(Owner::Kubernetes)
        .devices()
        .lease(&[IDS[1].parse().unwrap()])
        .await
        .unwrap();
    node.run(Owner::Kubernetes, "other", other.token)
        .await
        .unwrap();
    assert!(
        tokio::time::timeout(Duration::ZERO, &mut hung)
            .await
            .is_err(),
        "the other one waited for nothing"
    );
    let refused = hung.await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::DeadlineExceeded);
    assert!(
        refused
            .report()
            .contains("has not answered Allocate within 20s"),
        "{refused:?}"
    );
    assert_eq!(node.failures("late"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_death_during_allocate_fails_one_container_and_retry_succeeds() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu-1.sock", &IDS).await;
    let leased = leased(&node).await;
    vendor.set_behaviour(|behaviour| behaviour.allocate = CallBehaviour::Hang);
    let killed = async {
        while vendor.calls("Allocate").is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(vendor);
    };
    let (refused, ()) = tokio::join!(node.run(Owner::Nomad, "one", leased.token), killed);
    let refused = refused.unwrap_err();
    assert!(refused.report().contains("fails Allocate"), "{refused:?}");
    node.healthy(0).await;
    let refused = node
        .run(Owner::Nomad, "two", leased.token)
        .await
        .unwrap_err();
    assert!(refused.report().contains("is not connected"), "{refused:?}");
    is_unbound(&node, &leased);
    let _successor = node.vendor("gpu-2.sock", &IDS).await;
    node.healthy(3).await;
    node.run(Owner::Nomad, "three", leased.token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn recreated_container_needs_no_plugin() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    let kubelet = node.kubelet(3).await;
    let given = kubelet.admit("pod", "app", &[(GPU, 1)]).await.unwrap();
    let (sandbox, _) = node
        .run(Owner::Kubernetes, "pod", token(&given))
        .await
        .unwrap();
    drop(vendor);
    node.healthy(0).await;
    let spec = node
        .task(Owner::Kubernetes, &sandbox, "again", token(&given))
        .await
        .unwrap();
    assert_eq!(variable(&spec, VENDOR_DEVICES), Some(&*given.ids[GPU][0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_or_endless_device_list_is_accepted_up_to_the_limit() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    node.healthy(3).await;
    let long = "x".repeat(5000);
    let odd = [
        device(IDS[0], true),
        device(IDS[0], true),
        device("", true),
        device(&long, true),
    ];
    vendor.set_devices(odd.to_vec());
    node.healthy(1).await;
    assert!(node.failures("malformed") >= 1);
    vendor.set_devices(
        (0..10_000)
            .map(|number| device(&format!("GPU-8a2f3c11-{number:05}"), true))
            .collect(),
    );
    node.healthy(4096).await;
    vendor.set_devices(IDS.map(|id| device(id, true)).to_vec());
    node.healthy(3).await;
    let leased = node
        .gateway
        .scope(Owner::Nomad)
        .devices()
        .lease(&[IDS[0].parse().unwrap()])
        .await
        .unwrap();
    node.run(Owner::Nomad, "job", leased.token).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_with_empty_list_can_add_devices_later() {
    let node = HostFixture::new().await;
    let vendor = VendorPlugin::start(&node.directory(), "gpu.sock", GPU, &IDS);
    vendor.set_behaviour(|behaviour| behaviour.list = CallBehaviour::Hang);
    vendor.register().await.unwrap();
    crate::node::until("it is reported", || node.failures("late") == 1).await;
    crate::node::until("it is shown", || node.count(PluginState::Silent) == 1).await;
    vendor.set_behaviour(|behaviour| behaviour.list = CallBehaviour::Answer);
    vendor.register().await.unwrap();
    node.healthy(3).await;
    assert_eq!(node.count(PluginState::Connected), 1);
}
