//! Requests that no kubelet makes.

use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use switchyard_proto::kubelet::device_plugin::v1beta1;
use switchyard_proto::kubelet::device_plugin::v1beta1::device_plugin_client::DevicePluginClient;
use tokio::net::UnixStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::node::{PluginFixture, TPU, group, inventory};

/// A client of the plugin at a socket.
pub(crate) async fn client(socket: &Path) -> DevicePluginClient<Channel> {
    let socket: PathBuf = socket.to_owned();
    let connect = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost")
        .connect_with_connector(connect)
        .await
        .unwrap();
    DevicePluginClient::new(channel)
}

/// A request for these devices.
pub(crate) fn asked(ids: &[&str]) -> v1beta1::AllocateRequest {
    let devices_ids = ids.iter().map(|id| (*id).to_owned()).collect();
    v1beta1::AllocateRequest {
        container_requests: vec![v1beta1::ContainerAllocateRequest { devices_ids }],
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_that_make_no_sense_are_refused_and_nothing_is_leased() {
    let node =
        PluginFixture::with(inventory([group(TPU, 2, 1), group("acme.com/fpga", 1, 1)])).await;
    let kubelet = node.followed(2).await;
    let mut client = client(&node.endpoint(&kubelet, TPU)).await;
    let long = "x".repeat(1 << 20);
    for (ids, code) in [
        (vec!["acme-com-tpu-007"], Code::NotFound),
        (
            vec!["acme-com-tpu-000", "acme-com-fpga-000"],
            Code::NotFound,
        ),
        (
            vec!["acme-com-tpu-000", "acme-com-tpu-000"],
            Code::InvalidArgument,
        ),
        (vec!["../../etc/passwd\0\n"], Code::NotFound),
        (vec![""], Code::NotFound),
        (vec![], Code::InvalidArgument),
        (vec![&*long], Code::NotFound),
        (vec!["acme-com-tpu-000"; 10_000], Code::InvalidArgument),
    ] {
        let refused = client.allocate(asked(&ids)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(refused.message().contains(TPU), "{refused:?}");
        assert!(refused.message().len() < 2100);
        let request = v1beta1::PreStartContainerRequest {
            devices_ids: asked(&ids).container_requests.remove(0).devices_ids,
        };
        assert_eq!(
            client
                .pre_start_container(request)
                .await
                .unwrap_err()
                .code(),
            code
        );
    }
    assert_eq!(node.gateway.claims().report().devices.leases().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_containers_in_one_call_have_a_lease_each() {
    let node = PluginFixture::with(inventory([group(TPU, 3, 1)])).await;
    let kubelet = node.followed(1).await;
    let mut client = client(&node.endpoint(&kubelet, TPU)).await;
    let mut request = asked(&["acme-com-tpu-000", "acme-com-tpu-002"]);
    request
        .container_requests
        .extend(asked(&["acme-com-tpu-001"]).container_requests);
    let given = client
        .allocate(request)
        .await
        .unwrap()
        .into_inner()
        .container_responses;
    assert_eq!(
        given
            .iter()
            .map(|one| one.devices.len())
            .collect::<Vec<_>>(),
        [2, 1]
    );
    assert_ne!(given[0].annotations, given[1].annotations);
    assert_eq!(node.gateway.claims().report().devices.leases().count(), 2);
    let none = client
        .allocate(v1beta1::AllocateRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert!(none.container_responses.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_preference_is_given_whatever_is_asked() {
    let node = PluginFixture::with(inventory([group(TPU, 2, 1)])).await;
    let kubelet = node.followed(1).await;
    let mut client = client(&node.endpoint(&kubelet, TPU)).await;
    for (available, allocation_size) in [
        (vec!["x".repeat(1 << 20)], i32::MAX),
        (vec![], -1),
        (vec!["y".to_owned(); 9999], 7),
    ] {
        let one = v1beta1::ContainerPreferredAllocationRequest {
            must_include_device_i_ds: vec!["z".to_owned()],
            available_device_i_ds: available,
            allocation_size,
        };
        let request = v1beta1::PreferredAllocationRequest {
            container_requests: vec![one],
        };
        let given = client
            .get_preferred_allocation(request)
            .await
            .unwrap()
            .into_inner();
        assert_eq!(given.container_responses.len(), 1);
    }
    let many = vec![v1beta1::ContainerPreferredAllocationRequest::default(); 1_000_000];
    let request = v1beta1::PreferredAllocationRequest {
        container_requests: many,
    };
    let given = client
        .get_preferred_allocation(request)
        .await
        .unwrap()
        .into_inner();
    assert!(given.container_responses.len() <= 64);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_without_end_keep_no_kubelet_out() {
    let node = PluginFixture::with(inventory([group(TPU, 2, 1)])).await;
    let kubelet = node.followed(1).await;
    let socket = node.endpoint(&kubelet, TPU);
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(UnixStream::connect(&socket).await.unwrap());
    }
    node.change_group(|group| group.devices.truncate(1));
    kubelet
        .wait_until("its stream continues", |kubelet| {
            kubelet.capacity(TPU) == (2, 1)
        })
        .await;
    // The next registration uses a new socket.
    let again = node.followed(1).await;
    assert_eq!(again.capacity(TPU), (2, 1));
    drop(idle);
}
