//! Tests of what a pod gets, and of the ledger's content after it.

use std::time::Duration;

use switchyard_contract::specs;
use switchyard_core::id::{LeaseToken, Owner, SlotId};
use switchyard_core::ledger::LeaseState;
use switchyard_core::spec::LeaseClaim;
use switchyard_fake::BUSYBOX;
use switchyard_kubelet::{Kubelet, Options, RunOptions};
use switchyard_proto::kubelet::pod_resources::v1::{ClaimResource, DynamicResource};

use crate::node::{PluginFixture, TPU, group, inventory, registered};

/// The token of the lease in an answer to Allocate.
pub(crate) fn token(options: &RunOptions) -> LeaseToken {
    let mut tokens = options
        .annotations
        .keys()
        .filter_map(|key| key.strip_prefix("devices.switchyard.io/"));
    let token = tokens
        .next()
        .expect("there is a token")
        .parse()
        .expect("it is one");
    assert_eq!(tokens.next(), None);
    token
}

/// Creates and starts a task with a lease, in a sandbox of its own, as CRI does; returns the sandbox.
pub(crate) async fn run(node: &PluginFixture, name: &str, token: LeaseToken) -> String {
    let scope = node.gateway.scope(Owner::Kubernetes);
    let sandbox = scope
        .sandboxes()
        .create(specs::sandbox(Owner::Kubernetes, name))
        .await
        .unwrap();
    let mut spec = specs::task(Owner::Kubernetes, name, BUSYBOX, &["serve"]);
    spec.leases = vec![LeaseClaim {
        token,
        slots: Vec::new(),
        named: false,
    }];
    let task = scope
        .tasks()
        .create(&sandbox.id.to_string(), spec)
        .await
        .unwrap();
    scope.tasks().start(&task.id.to_string()).await.unwrap();
    sandbox.id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_its_devices_and_the_token_of_their_lease() {
    let node =
        PluginFixture::with(inventory([group(TPU, 2, 1), group("acme.com/fpga", 1, 1)])).await;
    let kubelet = node.followed(2).await;
    let given = kubelet.admit("pod", "app", &[(TPU, 1)]).await.unwrap();
    assert_eq!(given.ids[TPU].len(), 1);
    let number = given.ids[TPU][0].trim_start_matches("acme-com-tpu-00");
    let path = format!("/dev/acme-com-tpu{number}");
    assert_eq!(
        given.devices,
        [(path.clone(), path.clone(), "rw".to_owned())]
    );
    assert_eq!(given.envs["DEVICES"], path);
    assert_eq!(given.cdi_devices, [format!("{TPU}={number}")]);
    let report = node.gateway.claims().report();
    let lease = report
        .devices
        .get(token(&given))
        .expect("it is in the ledger");
    assert_eq!(lease.owner, Owner::Kubernetes);
    assert!(
        lease.slots.iter().map(SlotId::as_str).eq(&given.ids[TPU]),
        "{:?}",
        lease.slots
    );
    assert!(
        matches!(lease.state, LeaseState::Unbound { .. }),
        "{lease:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_names_the_resource_the_device_and_who_has_it() {
    let node = PluginFixture::with(inventory([group(TPU, 1, 1)])).await;
    let kubelet = node.followed(1).await;
    // The device is asked for before the kubelet has seen that it is gone.
    let mut client = crate::hostile::client(&node.endpoint(&kubelet, TPU)).await;
    let nomad = node.gateway.scope(Owner::Nomad);
    nomad
        .devices()
        .lease(&["acme-com-tpu-000".parse().unwrap()])
        .await
        .unwrap();
    let refused = client
        .allocate(crate::hostile::asked(&["acme-com-tpu-000"]))
        .await
        .unwrap_err();
    for part in [TPU, "acme-com-tpu-000", "nomad"] {
        assert!(refused.message().contains(part), "{refused:?}");
    }
    kubelet
        .wait_until("it is unhealthy", |kubelet| kubelet.capacity(TPU) == (1, 0))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_successor_of_a_pod_waits_for_the_end_of_its_containers() {
    let node = PluginFixture::with(inventory([group(TPU, 1, 1)])).await;
    let kubelet = node.followed(1).await;
    let first = kubelet.admit("first", "app", &[(TPU, 1)]).await.unwrap();
    let sandbox = run(&node, "first", token(&first)).await;
    kubelet
        .pre_start("first", "app")
        .await
        .expect("a restart does not wait for itself");
    // The pod is removed, but its containers still run.
    kubelet.remove_pod("first");
    let second = kubelet.admit("second", "app", &[(TPU, 1)]).await.unwrap();
    assert_ne!(token(&second), token(&first));
    let waiting = kubelet.pre_start("second", "app");
    tokio::pin!(waiting);
    let early = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "{early:?}");
    node.gateway
        .scope(Owner::Kubernetes)
        .sandboxes()
        .stop(&sandbox)
        .await
        .unwrap();
    waiting.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_pod_has_by_the_kubelets_list_is_free_again() {
    let node = PluginFixture::with(inventory([group(TPU, 2, 1)])).await;
    let options = Options {
        pod_resources_socket: Some(node.path("pod-resources/kubelet.sock")),
        ..Options::default()
    };
    let kubelet = Kubelet::start(node.directory(), options);
    registered(&kubelet, 1).await;
    let kept = token(&kubelet.admit("kept", "app", &[(TPU, 1)]).await.unwrap());
    let orphan = token(&kubelet.admit("orphan", "app", &[(TPU, 1)]).await.unwrap());
    kubelet.remove_pod("orphan");
    let holds = |token| {
        node.gateway
            .claims()
            .report()
            .devices
            .get(token)
            .is_some_and(switchyard_core::ledger::Lease::holds)
    };
    let gone = tokio::time::timeout(Duration::from_secs(20), async {
        while holds(orphan) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    gone.await.expect("the orphan's lease ends");
    assert!(holds(kept));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_pods_have_by_claims_is_known_also_on_a_node_without_devices_of_ours() {
    let node = PluginFixture::with(inventory([])).await;
    let socket = node.path("pod-resources/kubelet.sock");
    let claim = DynamicResource {
        claim_name: "gpus".to_owned(),
        claim_namespace: "shop".to_owned(),
        claim_resources: ["gpu-0", "gpu-1"]
            .map(|device| ClaimResource {
                cdi_devices: Vec::new(),
                driver_name: "gpu.acme.com".to_owned(),
                pool_name: "node1".to_owned(),
                device_name: device.to_owned(),
            })
            .to_vec(),
    };
    let options = Options {
        pod_resources_socket: Some(socket.clone()),
        dynamic_resources: vec![claim],
        ..Options::default()
    };
    let _kubelet = Kubelet::start(node.directory(), options);
    let known = async |count: usize| {
        let reached = tokio::time::timeout(Duration::from_secs(20), async {
            while node.gateway.devices().dynamic().len() != count {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        reached.await.expect("the list is read");
    };
    known(2).await;
    let devices = node.gateway.devices().dynamic();
    assert_eq!(
        (devices[1].claim.as_str(), devices[1].device.as_str()),
        ("shop/gpus", "gpu-1")
    );
    // Without a kubelet nothing is known.
    std::fs::remove_file(socket).unwrap();
    known(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn packed_slots_come_from_the_device_that_is_in_use() {
    let node = PluginFixture::with(inventory([group(TPU, 4, 4)])).await;
    let kubelet = node.followed(1).await;
    let first = kubelet.admit("first", "app", &[(TPU, 1)]).await.unwrap();
    let device = switchyard_core::id::device_of(&first.ids[TPU][0]).to_owned();
    for pod in ["second", "third", "fourth"] {
        let given = kubelet.admit(pod, "app", &[(TPU, 1)]).await.unwrap();
        assert_eq!(switchyard_core::id::device_of(&given.ids[TPU][0]), device);
    }
    let given = kubelet.admit("fifth", "app", &[(TPU, 1)]).await.unwrap();
    assert_ne!(switchyard_core::id::device_of(&given.ids[TPU][0]), device);
}
