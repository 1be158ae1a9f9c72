//! Tests of what containers and tasks with a vendor's devices get, and that no two of them get the same
//! device.

use std::collections::BTreeMap;
use std::sync::Arc;

use switchyard_core::ErrorKind;
use switchyard_core::device::{Device, DeviceGroup, Inventory, node as device_node};
use switchyard_core::id::Owner;
use switchyard_core::spec::MountSource;
use switchyard_device_host::ResourceConfig;
use switchyard_kubelet::vendor::{CallBehaviour, VENDOR_DEVICES, VendorPlugin};
use switchyard_proto::kubelet::device_plugin::v1beta1;

use crate::node::{GPU, HostFixture, IDS, token, variable};

/// The parts of a plugin's answer besides the environment variable.
fn answer() -> v1beta1::ContainerAllocateResponse {
    v1beta1::ContainerAllocateResponse {
        mounts: vec![v1beta1::Mount {
            container_path: "/usr/lib/acme".to_owned(),
            host_path: "/opt/acme".to_owned(),
            read_only: true,
        }],
        devices: vec![v1beta1::DeviceSpec {
            container_path: "/dev/gpu0".to_owned(),
            host_path: "/dev/acme/gpu7".to_owned(),
            permissions: "mrw".to_owned(),
        }],
        annotations: [("cdi.k8s.io/acme".to_owned(), "acme.com/gpu=7".to_owned())].into(),
        ..Default::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn container_gets_the_allocate_response_of_one_call() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    vendor.set_behaviour(|behaviour| behaviour.answer = answer());
    let kubelet = node.kubelet(3).await;
    let given = kubelet.admit("pod", "app", &[(GPU, 1)]).await.unwrap();
    assert!(
        given.envs.is_empty() && given.devices.is_empty(),
        "{given:?}"
    );
    assert!(
        vendor.calls("Allocate").is_empty(),
        "nothing is made with it yet"
    );
    let (sandbox, spec) = node
        .run(Owner::Kubernetes, "pod", token(&given))
        .await
        .unwrap();
    assert_eq!(variable(&spec, VENDOR_DEVICES), Some(&*given.ids[GPU][0]));
    let [mount] = &spec.mounts[..] else {
        panic!("{:?}", spec.mounts)
    };
    assert_eq!(mount.destination.to_str(), Some("/usr/lib/acme"));
    assert!(
        matches!(&mount.source, MountSource::Host { path, .. } if path.ends_with("acme"))
            && mount.readonly
    );
    let [gpu] = &spec.devices[..] else {
        panic!("{:?}", spec.devices)
    };
    assert_eq!(
        (gpu.host_path.to_str(), &*gpu.permissions),
        (Some("/dev/acme/gpu7"), "mrw")
    );
    assert_eq!(spec.cdi_devices, ["acme.com/gpu=7"]);
    // A restart of the container, with the same lease.
    let again = node
        .task(Owner::Kubernetes, &sandbox, "again", token(&given))
        .await
        .unwrap();
    assert_eq!(
        (again.env, again.mounts, again.devices),
        (spec.env, spec.mounts, spec.devices)
    );
    assert_eq!(vendor.calls("Allocate"), [given.ids[GPU].clone()]);
    assert!(vendor.calls("PreStartContainer").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn hosted_device_held_by_one_owner_is_refused_to_the_other() {
    let node = HostFixture::new().await;
    let vendor = node.vendor("gpu.sock", &IDS[..2]).await;
    let kubelet = node.kubelet(2).await;
    let pod = kubelet.admit("pod", "app", &[(GPU, 1)]).await.unwrap();
    let of_pod = pod.ids[GPU][0].clone();
    let nomad = node.gateway.scope(Owner::Nomad);
    let refused = nomad
        .devices()
        .lease(&[of_pod.parse().unwrap()])
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    assert!(
        refused.report().contains("kubernetes") && refused.report().contains(&of_pod),
        "{refused:?}"
    );
    let free = IDS[..2].iter().find(|id| **id != of_pod).unwrap();
    let leased = nomad
        .devices()
        .lease(&[(*free).parse().unwrap()])
        .await
        .unwrap();
    assert_eq!(
        leased.reservation,
        Default::default(),
        "nothing before the task starts"
    );
    kubelet
        .wait_until("the other is nomad's", |kubelet| {
            kubelet.capacity(GPU) == (2, 1)
        })
        .await;
    let refused = kubelet
        .admit("other", "app", &[(GPU, 1)])
        .await
        .unwrap_err();
    assert!(refused.contains("Available: 0"), "{refused}");
    let (_, spec) = node.run(Owner::Nomad, "job", leased.token).await.unwrap();
    assert_eq!(variable(&spec, VENDOR_DEVICES), Some(*free));
    let (_, spec) = node
        .run(Owner::Kubernetes, "pod", token(&pod))
        .await
        .unwrap();
    assert_eq!(variable(&spec, VENDOR_DEVICES), Some(&*of_pod));
    assert_eq!(vendor.calls("Allocate").len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn resource_quota_applies_per_owner_also_to_later_plugins() {
    let quota = BTreeMap::from([("kubernetes".to_owned(), 1), ("nomad".to_owned(), 2)]);
    let resource = ResourceConfig {
        name: GPU.to_owned(),
        quota,
        swarm_kind: String::new(),
    };
    let node = HostFixture::configured(Inventory::default(), vec![resource]).await;
    let vendor = node.vendor("gpu-1.sock", &IDS).await;
    let kubelet = node.kubelet(1).await;
    assert_eq!(kubelet.capacity(GPU), (3, 1));
    node.healthy(2).await;
    let nomad = node.gateway.scope(Owner::Nomad);
    let refused = nomad
        .devices()
        .lease(&IDS.map(|id| id.parse().unwrap()))
        .await
        .unwrap_err();
    assert!(refused.report().contains("quota"), "{refused:?}");
    nomad
        .devices()
        .lease(
            &IDS[1..]
                .iter()
                .map(|id| id.parse().unwrap())
                .collect::<Vec<_>>(),
        )
        .await
        .unwrap();
    let refused = nomad
        .devices()
        .lease(&[IDS[0].parse().unwrap()])
        .await
        .unwrap_err();
    assert!(
        refused.report().contains("quota") && refused.report().contains(IDS[0]),
        "{refused:?}"
    );
    kubelet.admit("pod", "app", &[(GPU, 1)]).await.unwrap();
    drop(vendor);
    node.healthy(0).await;
    let more = [
        "GPU-8a2f3c11-0",
        "GPU-8a2f3c11-1",
        "GPU-8a2f3c11-2",
        "GPU-8a2f3c11-3",
    ];
    let _successor = node.vendor("gpu-2.sock", &more).await;
    node.healthy(2).await;
    let refused = nomad
        .devices()
        .lease(&[more[3].parse().unwrap()])
        .await
        .unwrap_err();
    assert!(refused.report().contains("quota"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_vendor_id_is_mapped_here_and_original_to_the_plugin() {
    let node = HostFixture::new().await;
    let vendor = node
        .vendor("gpu.sock", &["0", "GPU-8a2f3c11::1", "/dev/acme 2"])
        .await;
    let kubelet = node.kubelet(3).await;
    for number in 0..3 {
        let pod = format!("pod-{number}");
        let given = kubelet.admit(&pod, "app", &[(GPU, 1)]).await.unwrap();
        node.run(Owner::Kubernetes, &pod, token(&given))
            .await
            .unwrap();
    }
    let mut asked: Vec<String> = vendor.calls("Allocate").concat();
    asked.sort();
    assert_eq!(asked, ["/dev/acme 2", "0", "GPU-8a2f3c11::1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn pre_start_is_called_for_plugins_that_require_it() {
    let node = HostFixture::new().await;
    let vendor = VendorPlugin::start(&node.directory(), "gpu.sock", GPU, &IDS);
    vendor.set_behaviour(|behaviour| behaviour.options.pre_start_required = true);
    vendor.register().await.unwrap();
    node.healthy(3).await;
    let leased = node
        .gateway
        .scope(Owner::Nomad)
        .devices()
        .lease(&[IDS[1].parse().unwrap()])
        .await
        .unwrap();
    let (sandbox, _) = node.run(Owner::Nomad, "job", leased.token).await.unwrap();
    node.task(Owner::Nomad, &sandbox, "again", leased.token)
        .await
        .unwrap();
    assert_eq!(vendor.calls("PreStartContainer"), [[IDS[1]], [IDS[1]]]);
    assert_eq!(vendor.calls("Allocate").len(), 1);
    vendor.set_behaviour(|behaviour| {
        behaviour.pre_start = CallBehaviour::Fail("the GPU is being reset")
    });
    let refused = node
        .task(Owner::Nomad, &sandbox, "third", leased.token)
        .await
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(
        refused.report().contains("the GPU is being reset"),
        "{refused:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn preferred_allocation_is_queried_and_its_failure_ignored() {
    let node = HostFixture::new().await;
    let vendor = VendorPlugin::start(&node.directory(), "gpu.sock", GPU, &IDS);
    vendor.set_behaviour(|behaviour| behaviour.options.get_preferred_allocation_available = true);
    vendor.register().await.unwrap();
    let kubelet = node.kubelet(3).await;
    let given = kubelet.admit("last", "app", &[(GPU, 1)]).await.unwrap();
    assert_eq!(given.ids[GPU], [IDS[2]], "by the plugin");
    vendor.set_behaviour(|behaviour| behaviour.prefer = CallBehaviour::Fail("no idea"));
    let given = kubelet.admit("first", "app", &[(GPU, 1)]).await.unwrap();
    assert_eq!(given.ids[GPU], [IDS[0]], "by what is known here");
    assert_eq!(vendor.calls("GetPreferredAllocation").len(), 2);
    assert_eq!(node.failures("failed"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn device_node_of_a_configured_group_is_given_only_by_the_ledger() {
    let own = DeviceGroup {
        resource: "acme.com/own".to_owned(),
        devices: vec![Device::new(
            "own-device",
            device_node("/dev/acme/gpu7".into(), "rw"),
        )],
        ..DeviceGroup::new("acme", "own", "v1")
    };
    let node = HostFixture::with(Inventory::of([own])).await;
    let vendor = node.vendor("gpu.sock", &IDS).await;
    vendor.set_behaviour(|behaviour| behaviour.answer = answer());
    node.healthy(3).await;
    let pods = node.gateway.scope(Owner::Kubernetes);
    pods.devices()
        .lease(&["own-device".parse().unwrap()])
        .await
        .unwrap();
    let leased = node
        .gateway
        .scope(Owner::Nomad)
        .devices()
        .lease(&[IDS[0].parse().unwrap()])
        .await
        .unwrap();
    let refused = node
        .run(Owner::Nomad, "job", leased.token)
        .await
        .unwrap_err();
    assert!(
        refused.report().contains("own-device") && refused.report().contains("kubernetes"),
        "{refused:?}"
    );
    node.change(|inventory| Arc::make_mut(&mut inventory.groups[0]).devices.clear());
}
