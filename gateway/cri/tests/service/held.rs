//! Pods and containers that the backend cannot read, as kubelets see them.

use std::collections::BTreeMap;

use switchyard_core::backend::{HeldClaims, ObjectFacts, Unreadable, UnreadableKind};
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::Meta;
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::support::{self, ServiceFixture, app, code, map};

/// An object of which its identity and the runtime are known.
fn held(id: &str, kind: UnreadableKind, meta: &Meta, sandbox: Option<SandboxId>) -> Unreadable {
    Unreadable {
        id: id.to_owned(),
        kind,
        owner: Some(Owner::Kubernetes),
        name: meta.name.clone(),
        sandbox,
        reason: "of version 9".to_owned(),
        claims: HeldClaims {
            is_complete: true,
            ..HeldClaims::default()
        },
        facts: ObjectFacts {
            labels: meta.labels.clone(),
            image: "busybox:1".to_owned(),
            created_at: Some(meta.created_at),
            runs: true,
        },
    }
}

fn held_pod(node: &ServiceFixture, id: &str) -> Unreadable {
    let scope = node.gateway.scope(Owner::Kubernetes);
    let pod = scope.sandboxes().find(id).expect("it is there");
    held(id, UnreadableKind::Sandbox, &pod.meta, None)
}

fn held_container(node: &ServiceFixture, id: &str) -> Unreadable {
    let scope = node.gateway.scope(Owner::Kubernetes);
    let task = scope.tasks().find(id).expect("it is there");
    held(id, UnreadableKind::Task, &task.meta, Some(task.sandbox))
}

async fn pods(node: &mut ServiceFixture) -> Vec<cri::PodSandbox> {
    let request = cri::ListPodSandboxRequest::default();
    let answer = node.runtime.list_pod_sandbox(request).await;
    answer.expect("it answers").into_inner().items
}

async fn containers(
    node: &mut ServiceFixture,
    filter: cri::ContainerFilter,
) -> Vec<cri::Container> {
    let request = cri::ListContainersRequest {
        filter: Some(filter),
    };
    let answer = node.runtime.list_containers(request).await;
    answer.expect("it answers").into_inner().containers
}

/// The fields of a pod by which a kubelet finds that nothing has changed.
fn seen_of_pod(mut pod: cri::PodSandbox) -> cri::PodSandbox {
    pod.annotations = BTreeMap::new();
    pod.runtime_handler = String::new();
    pod
}

/// The same for a container.
fn seen_of_container(mut container: cri::Container) -> cri::Container {
    assert!(container.image.is_some(), "a kubelet would pass it over");
    container.image = None;
    container.image_ref = String::new();
    container.image_id = String::new();
    container.annotations = BTreeMap::new();
    container
}

#[tokio::test]
async fn what_cannot_be_read_stays_in_the_lists_of_kubelets_and_its_status_is_refused() {
    let mut node = ServiceFixture::new().await;
    let (pod, container) = node.running().await;
    let all = cri::ContainerFilter::default;
    let pods_before = pods(&mut node).await.into_iter().map(seen_of_pod);
    let pods_before: Vec<_> = pods_before.collect();
    let before = containers(&mut node, all()).await;
    let before: Vec<_> = before.into_iter().map(seen_of_container).collect();
    let unreadable = vec![held_pod(&node, &pod), held_container(&node, &container)];
    node.fake.set_unreadable(unreadable);
    let mut node = node.restarted().await;

    let now = pods(&mut node).await;
    let now: Vec<_> = now.into_iter().map(seen_of_pod).collect();
    assert_eq!(now, pods_before);
    let now = containers(&mut node, all()).await;
    let now: Vec<_> = now.into_iter().map(seen_of_container).collect();
    assert_eq!(now, before);
    let request = cri::StreamContainersRequest::default();
    let answer = node.runtime.stream_containers(request).await;
    let mut stream = answer.expect("it answers").into_inner();
    let first = stream.message().await.expect("it continues");
    assert_eq!(first.expect("it has a batch").containers.len(), 1);
    // NotFound would be taken for the end.
    assert_eq!(code(node.pod_status(&pod).await), Code::FailedPrecondition);
    let status = node.status(&container).await;
    assert_eq!(code(status), Code::FailedPrecondition);

    let exited = cri::ContainerStateValue {
        state: cri::ContainerState::ContainerExited.into(),
    };
    let filters = [
        cri::ContainerFilter {
            pod_sandbox_id: pod,
            ..all()
        },
        cri::ContainerFilter {
            label_selector: map(&[("io.kubernetes.container.name", "app")]),
            ..all()
        },
        cri::ContainerFilter {
            state: Some(exited),
            ..all()
        },
    ];
    let mut found = Vec::new();
    for filter in filters {
        found.push(containers(&mut node, filter).await.len());
    }
    assert_eq!(found, [1, 1, 0]);
}

#[tokio::test]
async fn status_and_events_do_not_look_complete_without_a_container_that_cannot_be_read() {
    let mut node = ServiceFixture::new().await;
    let (pod, container) = node.running().await;
    let side = node.create(&pod, app("side")).await.expect("it is created");
    let request = || cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.clone(),
        verbose: false,
    };
    let answer = node.runtime.pod_sandbox_status(request()).await;
    let whole = answer.expect("it answers").into_inner();
    assert_eq!(whole.containers_statuses.len(), 2);
    assert!(whole.timestamp > 0);
    let unreadable = vec![held_container(&node, &container)];
    node.fake.set_unreadable(unreadable);
    let mut node = node.restarted().await;
    let listed = containers(&mut node, cri::ContainerFilter::default()).await;
    let mut ids: Vec<_> = listed.into_iter().map(|container| container.id).collect();
    ids.sort_unstable();
    let mut expected = [container, side];
    expected.sort_unstable();
    assert_eq!(ids, expected);
    let answer = node.runtime.pod_sandbox_status(request()).await;
    let answer = answer.expect("it answers").into_inner();
    assert_eq!(answer.status, whole.status);
    assert!(answer.containers_statuses.is_empty());
    assert_eq!(answer.timestamp, 0);
    // An event of the pod would lack the container too.
    let request = cri::GetEventsRequest {};
    let answer = node.runtime.get_container_events(request).await;
    let mut events = answer.expect("it is served").into_inner();
    let next = node.run(support::pod("next")).await.expect("it runs");
    let first = events.message().await.expect("it continues");
    assert_eq!(first.expect("it continues").container_id, next);
}
