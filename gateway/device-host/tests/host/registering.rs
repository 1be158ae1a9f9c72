//! Tests of who may register, and of a plugin's devices when it, or another plugin, connects and disconnects.

use std::os::unix::fs::symlink;

use switchyard_core::device::{Device, DeviceGroup, Health, Inventory};
use switchyard_core::id::Owner;
use switchyard_device_host::{Config, Host, Hosted, PluginState, ReservedNames};
use switchyard_kubelet::vendor::{self, VendorPlugin, device};
use tonic::Code;

use crate::node::{GPU, HostFixture, IDS, names, until};

#[tokio::test(flavor = "multi_thread")]
async fn registered_plugin_devices_are_offered_under_its_resource_name() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    let kubelet = node.kubelet(3).await;
    assert!(kubelet.devices(GPU).keys().eq(IDS));
    let seen = node.seen(Owner::Nomad, |devices| devices.len() == 3).await;
    assert!(
        seen.iter().all(|device| device.health == Health::Healthy),
        "{seen:?}"
    );
    let mut view = node.gateway.scope(Owner::Nomad).devices().subscribe();
    let inventory = view
        .wait_for(Option::is_some)
        .await
        .unwrap()
        .clone()
        .unwrap();
    let DeviceGroup {
        vendor: maker,
        kind,
        name,
        ..
    } = &*inventory.groups[0];
    assert_eq!((&**maker, &**kind, &**name), ("acme.com", "gpu", "default"));
    vendor.set_devices(vec![
        device(IDS[0], true),
        device(IDS[1], false),
        device(IDS[2], true),
    ]);
    kubelet
        .wait_until("one is unwell", |kubelet| kubelet.capacity(GPU) == (3, 2))
        .await;
    vendor.set_devices(vec![device(IDS[0], true)]);
    kubelet
        .wait_until("two are gone", |kubelet| kubelet.capacity(GPU) == (3, 1))
        .await;
    node.healthy(1).await;
    assert_eq!(node.count(PluginState::Connected), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_without_resource_or_socket_is_rejected() {
    let taken = DeviceGroup {
        resource: "acme.com/own".to_owned(),
        ..DeviceGroup::new("acme", "own", "v1")
    };
    let node = HostFixture::with(Inventory::of([taken])).await;
    let directory = node.directory();
    let vendor = VendorPlugin::start(&directory, "gpu.sock", GPU, &IDS);
    symlink(directory.join("gpu.sock"), directory.join("link.sock")).unwrap();
    std::fs::write(directory.join("file"), "").unwrap();
    let mut cases = Vec::new();
    for (version, resource, endpoint, text) in [
        (
            "v1alpha",
            GPU,
            "gpu.sock",
            "version: \"v1alpha\" is not supported",
        ),
        ("v1beta1", "gpu", "gpu.sock", "resource_name: \"gpu\""),
        (
            "v1beta1",
            "x.kubernetes.io/gpu",
            "gpu.sock",
            "resource_name",
        ),
        ("v1beta1", GPU, "../host/gpu.sock", "endpoint"),
        ("v1beta1", GPU, "kubelet.sock", "endpoint"),
        ("v1beta1", GPU, "link.sock", "is not a socket"),
        ("v1beta1", GPU, "file", "is not a socket"),
        ("v1beta1", "acme.com/own", "gpu.sock", "devices.groups"),
        ("v1beta1", "taken.com/gpu", "gpu.sock", "devices.groups"),
    ] {
        let mut request = vendor.request();
        (request.version, request.resource_name) = (version.to_owned(), resource.to_owned());
        request.endpoint = endpoint.to_owned();
        cases.push(text);
        let refused = vendor::register(&directory, request).await.unwrap_err();
        assert!(refused.message().contains(text), "{refused:?}");
    }
    assert_eq!(node.count(PluginState::Connected), 0);
    assert_eq!(
        node.failures("refused") + node.failures("unreachable"),
        u64::try_from(cases.len()).unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn registration_of_an_unresponsive_plugin_fails_within_the_call() {
    let node = HostFixture::new().await;
    let vendor = VendorPlugin::start(&node.directory(), "gpu.sock", GPU, &IDS);
    vendor.set_behaviour(|behaviour| behaviour.get_options = vendor::CallBehaviour::Hang);
    let refused = vendor::register(&node.directory(), vendor.request())
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::DeadlineExceeded);
    assert!(
        refused
            .message()
            .contains("gpu.sock: it has not answered within 10s"),
        "{refused:?}"
    );
    let mut request = vendor.request();
    request.endpoint = "nobody.sock".to_owned();
    let refused = vendor::register(&node.directory(), request)
        .await
        .unwrap_err();
    assert!(
        refused.message().contains("no process listens on"),
        "{refused:?}"
    );
    assert_eq!(node.failures("unreachable"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_of_a_dead_plugin_stay_unhealthy_until_reregistration() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu-1.sock", &IDS).await;
    let kubelet = node.kubelet(3).await;
    drop(vendor);
    kubelet
        .wait_until("they are unhealthy", |kubelet| {
            kubelet.capacity(GPU) == (3, 0)
        })
        .await;
    let ended = |devices: &[Device]| {
        devices.len() == 3
            && devices
                .iter()
                .all(|device| device.health.fault() == Some("the plugin of its vendor has ended"))
    };
    node.seen(Owner::Nomad, ended).await;
    assert_eq!(
        (
            node.count(PluginState::Connected),
            node.count(PluginState::Ended)
        ),
        (0, 1)
    );
    let _vendor = node.vendor("gpu-2.sock", &IDS).await;
    kubelet
        .wait_until("they are healthy again", |kubelet| {
            kubelet.capacity(GPU) == (3, 3)
        })
        .await;
    assert_eq!(kubelet.crash(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_of_an_earlier_plugin_does_not_affect_the_later_one() {
    let node = HostFixture::new().await;
    let first = node.vendor("gpu-1.sock", &IDS).await;
    node.healthy(3).await;
    let second = node.vendor("gpu-2.sock", &IDS[..2]).await;
    node.healthy(2).await;
    // Lists of the first plugin are ignored now.
    first.set_devices(IDS.map(|id| device(id, false)).to_vec());
    drop(first);
    second.set_devices(vec![device(IDS[0], true)]);
    node.healthy(1).await;
    assert_eq!(node.count(PluginState::Connected), 1);
    assert_eq!(node.failures("ended"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn reregistered_plugin_is_called_over_its_newer_connection() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    node.healthy(3).await;
    vendor.register().await.unwrap();
    vendor.set_devices(vec![device(IDS[0], true)]);
    node.healthy(1).await;
    assert_eq!(node.count(PluginState::Connected), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn predecessor_sockets_are_removed() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    assert_eq!(names(&node.directory()), ["gpu.sock", "kubelet.sock"]);
    drop(vendor);
    let directory = node.directory();
    let config = Config {
        enabled: true,
        directory: directory.clone(),
        ..Config::default()
    };
    let hosted = Hosted::new(ReservedNames::default(), &config);
    let seen = hosted.clone();
    let stop = tokio_util::sync::CancellationToken::new();
    let other = tokio::spawn(Host::new(hosted, config).serve(stop.clone()));
    // A live host serves the directory: the second one leaves it alone, and reports why.
    until("it is reported", || {
        seen.report()
            .fault
            .is_some_and(|fault| fault.contains("serves"))
    })
    .await;
    assert_eq!(names(&directory), ["gpu.sock", "kubelet.sock"]);
    stop.cancel();
    other.await.unwrap();
    until("the first one lives", || {
        node.count(PluginState::Ended) == 1
    })
    .await;
}
