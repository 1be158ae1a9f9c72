//! Tests of the report for operators.

use std::time::SystemTime;

use switchyard_core::id::Owner;
use switchyard_device_host::{PluginReport, PluginState};
use switchyard_kubelet::vendor::{self, CallBehaviour, device};

use crate::node::{GPU, HostFixture, IDS, until};

/// The report of the only plugin.
fn plugin(node: &HostFixture) -> PluginReport {
    let report = node.hosted.report();
    let [plugin] = &report.plugins[..] else {
        panic!("{report:?}")
    };
    plugin.clone()
}

fn last_error(node: &HostFixture) -> String {
    plugin(node)
        .last_error
        .map(|error| error.text)
        .unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn plugin_report_has_socket_devices_and_last_failure() {
    let began = SystemTime::now();
    let node = HostFixture::new().await;
    until("it listens", || node.hosted.report().fault.is_none()).await;
    let vendor = node.vendor("gpu-1.sock", &IDS).await;
    node.healthy(3).await;
    let seen = plugin(&node);
    assert!(
        seen.since >= began && seen.since <= SystemTime::now(),
        "{seen:?}"
    );
    let connected = PluginReport {
        resource: GPU.to_owned(),
        endpoint: "gpu-1.sock".to_owned(),
        state: PluginState::Connected,
        since: seen.since,
        devices: 3,
        healthy: 3,
        last_error: None,
    };
    assert_eq!(seen, connected);
    vendor.set_devices(vec![
        device(IDS[0], true),
        device(IDS[1], false),
        device("", true),
    ]);
    node.healthy(1).await;
    assert_eq!((plugin(&node).devices, plugin(&node).healthy), (2, 1));
    assert!(
        last_error(&node).contains("entries are left out (1)"),
        "{:?}",
        plugin(&node)
    );

    vendor.set_behaviour(|behaviour| {
        behaviour.allocate = CallBehaviour::Fail("the driver is not loaded")
    });
    let leased = node
        .gateway
        .scope(Owner::Nomad)
        .devices()
        .lease(&[IDS[0].parse().unwrap()])
        .await
        .unwrap();
    node.run(Owner::Nomad, "job", leased.token)
        .await
        .unwrap_err();
    assert!(
        last_error(&node).contains("the driver is not loaded"),
        "{:?}",
        plugin(&node)
    );
    assert_eq!(
        plugin(&node).since,
        seen.since,
        "it is connected all the same"
    );

    drop(vendor);
    until("it has ended", || plugin(&node).state == PluginState::Ended).await;
    let ended = plugin(&node);
    assert_eq!((ended.devices, ended.healthy), (2, 0));
    assert!(
        ended.since >= seen.since && last_error(&node).contains("ListAndWatch"),
        "{ended:?}"
    );

    let _vendor = node.vendor("gpu-2.sock", &IDS).await;
    node.healthy(3).await;
    let again = plugin(&node);
    assert_eq!(
        (again.endpoint.as_str(), again.state),
        ("gpu-2.sock", PluginState::Connected)
    );
    assert!(again.since >= ended.since, "{again:?}");
    assert_eq!(
        again.last_error, ended.last_error,
        "with the time it was at"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_registration_is_reported_and_adds_no_plugin() {
    let node = HostFixture::new().await;
    let vendor = vendor::VendorPlugin::start(&node.directory(), "gpu.sock", "gpu", &IDS);
    assert_eq!(node.hosted.report().refused, None);
    vendor::register(&node.directory(), vendor.request())
        .await
        .unwrap_err();
    let report = node.hosted.report();
    assert!(
        report
            .refused
            .is_some_and(|error| error.text.contains("\"gpu\" is no resource"))
    );
    assert!(report.plugins.is_empty());
}
