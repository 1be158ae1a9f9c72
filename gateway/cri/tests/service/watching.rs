//! Metrics and events, over the socket.

use std::collections::{BTreeMap, BTreeSet};

use switchyard_core::id::Owner;
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::support::{ServiceFixture, app, code, pod};

async fn metrics(node: &mut ServiceFixture) -> Vec<cri::PodSandboxMetrics> {
    let answer = node
        .runtime
        .list_pod_sandbox_metrics(cri::ListPodSandboxMetricsRequest {})
        .await;
    answer.expect("it answers").into_inner().pod_metrics
}

#[tokio::test]
async fn every_metric_has_a_descriptor_with_its_labels() {
    let mut node = ServiceFixture::new().await;
    node.running().await;
    let answer = node
        .runtime
        .list_metric_descriptors(cri::ListMetricDescriptorsRequest {})
        .await;
    let descriptors = answer.expect("it answers").into_inner().descriptors;
    let labels: BTreeMap<_, _> = descriptors
        .into_iter()
        .map(|descriptor| (descriptor.name, descriptor.label_keys))
        .collect();
    let pods = metrics(&mut node).await;
    let all = pods.iter().flat_map(|pod| {
        pod.metrics.iter().chain(
            pod.container_metrics
                .iter()
                .flat_map(|container| &container.metrics),
        )
    });
    let mut reported = BTreeSet::new();
    for metric in all {
        assert_eq!(
            metric.label_values.len(),
            labels[&metric.name].len(),
            "{metric:?}"
        );
        assert!(metric.timestamp > 0 && metric.value.is_some(), "{metric:?}");
        reported.insert(metric.name.clone());
    }
    assert!(
        reported.contains("container_network_receive_bytes_total"),
        "{reported:?}"
    );
    assert!(
        reported.contains("container_memory_working_set_bytes"),
        "{reported:?}"
    );
}

#[tokio::test]
async fn only_ready_pods_and_running_containers_have_metrics() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, container) = node.running().await;
    let ended = node
        .create(&sandbox, app("ended"))
        .await
        .expect("it is well formed");
    let stopped = node.run(pod("stopped")).await.expect("it is well formed");
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: stopped,
    };
    node.runtime
        .stop_pod_sandbox(request)
        .await
        .expect("it stops");
    let pods = metrics(&mut node).await;
    let [only] = pods.as_slice() else {
        panic!("{pods:?}")
    };
    assert_eq!(only.pod_sandbox_id, sandbox);
    let ids: Vec<_> = only
        .container_metrics
        .iter()
        .map(|metrics| metrics.container_id.as_str())
        .collect();
    assert_eq!(ids, [container.as_str()], "{ended} has not been started");
    let mut stream = node
        .runtime
        .stream_pod_sandbox_metrics(cri::StreamPodSandboxMetricsRequest {})
        .await
        .expect("it answers")
        .into_inner();
    let streamed = stream
        .message()
        .await
        .expect("it continues")
        .expect("there is a pod")
        .pod_sandbox_metrics;
    assert_eq!(streamed.len(), 1);
    assert!(stream.message().await.expect("it continues").is_none());
    node.is_sound();
}

#[tokio::test]
async fn metrics_exclude_other_owners() {
    let mut node = ServiceFixture::new().await;
    node.running().await;
    let nomad = node.gateway.scope(Owner::Nomad);
    let tasks = node
        .gateway
        .scope(Owner::Kubernetes)
        .tasks()
        .list()
        .expect("it has recovered");
    let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    let homes: Vec<_> = tasks.iter().map(|task| task.sandbox).collect();
    assert!(
        nomad
            .tasks()
            .metrics(&ids)
            .await
            .expect("it answers")
            .is_empty()
    );
    assert!(
        nomad
            .sandboxes()
            .traffic(&homes)
            .await
            .expect("it answers")
            .is_empty()
    );
}

#[tokio::test]
async fn events_are_streamed_until_the_client_disconnects() {
    let mut node = ServiceFixture::new().await;
    let answer = node
        .runtime
        .get_container_events(cri::GetEventsRequest {})
        .await;
    let mut events = answer.expect("it is served").into_inner();
    let id = node.run(pod("web")).await.expect("it is well formed");
    let created = events
        .message()
        .await
        .expect("it continues")
        .expect("it continues");
    assert_eq!(created.container_id, id);
    assert_eq!(
        created.container_event_type(),
        cri::ContainerEventType::ContainerCreatedEvent
    );
    drop(events);
    let mut unrecovered = ServiceFixture::unrecovered(switchyard_fake::Fake::with_busybox()).await;
    let refused = unrecovered
        .runtime
        .get_container_events(cri::GetEventsRequest {})
        .await;
    assert_eq!(code(refused.map(drop)), Code::Unavailable);
}
