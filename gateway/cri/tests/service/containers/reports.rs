//! Lists, statuses and usage of containers.

use super::*;

async fn usage(node: &mut ServiceFixture) -> Vec<cri::ContainerStats> {
    let request = cri::ListContainerStatsRequest::default();
    node.runtime
        .list_container_stats(request)
        .await
        .expect("it answers")
        .into_inner()
        .stats
}

#[tokio::test]
async fn container_status_echoes_its_request_after_restart() {
    let mut node = ServiceFixture::new().await;
    let image = node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let config = app("app");
    let container = node
        .create(&sandbox, config.clone())
        .await
        .expect("it is well formed");
    node.start(&container).await.expect("it can be started");
    let before = node.status(&container).await.expect("it is there");
    assert_eq!(before.metadata, config.metadata);
    assert_eq!(
        (&before.labels, &before.annotations),
        (&config.labels, &config.annotations)
    );
    assert_eq!(before.mounts, config.mounts);
    assert_eq!(before.log_path, "/var/log/pods/shop_web/app/0.log");
    assert_eq!(
        before.image.clone().expect("clients insist on it").image,
        "busybox"
    );
    assert_eq!(before.image_id, image);
    assert!(
        before.image_ref.contains("@sha256:"),
        "{}",
        before.image_ref
    );
    let limits = before
        .resources
        .clone()
        .and_then(|resources| resources.linux)
        .expect("they are reported");
    assert_eq!(
        (limits.cpu_shares, limits.memory_limit_in_bytes),
        (512, 64 << 20)
    );
    let mut node = node.restarted().await;
    assert_eq!(
        node.status(&container).await.expect("it is recovered"),
        before
    );
    node.is_sound();
}

#[tokio::test]
async fn all_container_filters_must_match() {
    let mut node = ServiceFixture::new().await;
    let (web, first) = node.running().await;
    let second = node
        .create(&web, app("second"))
        .await
        .expect("it is well formed");
    let db = node.run(pod("db")).await.expect("it is well formed");
    let third = node
        .create(&db, app("app"))
        .await
        .expect("it is well formed");
    let filter =
        |id: &str, sandbox: &str, state: Option<cri::ContainerState>, labels: &[(&str, &str)]| {
            cri::ContainerFilter {
                id: id.to_owned(),
                state: state.map(|state| cri::ContainerStateValue {
                    state: state.into(),
                }),
                pod_sandbox_id: sandbox.to_owned(),
                label_selector: map(labels),
            }
        };
    use cri::ContainerState::{ContainerCreated, ContainerRunning};
    assert_eq!(list(&mut node, filter("", "", None, &[])).await.len(), 3);
    assert_eq!(list(&mut node, filter("", &web, None, &[])).await.len(), 2);
    assert_eq!(
        list(&mut node, filter("", &db[..20], None, &[])).await,
        [third.as_str()]
    );
    assert_eq!(
        list(&mut node, filter("", "", Some(ContainerRunning), &[])).await,
        [first.as_str()]
    );
    assert_eq!(
        list(&mut node, filter("", &web, Some(ContainerCreated), &[])).await,
        [second.as_str()]
    );
    assert_eq!(
        list(&mut node, filter(&first[..12], "", None, &[])).await,
        [first.as_str()]
    );
    let named = [("io.kubernetes.container.name", "second")];
    assert_eq!(
        list(&mut node, filter("", "", None, &named)).await,
        [second.as_str()]
    );
    assert_eq!(
        list(&mut node, filter(&first, &db, None, &[])).await,
        Vec::<String>::new()
    );
    assert_eq!(
        list(&mut node, filter("", "nowhere", None, &[])).await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn stats_cover_containers_that_have_not_exited() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, container) = node.running().await;
    let created = node
        .create(&sandbox, app("created"))
        .await
        .expect("it is well formed");
    let mut stats = usage(&mut node).await;
    stats.sort_by_key(|stats| stats.cpu.is_none());
    let ids: Vec<_> = stats
        .iter()
        .map(|stats| stats.attributes.as_ref().expect("it is set").id.clone())
        .collect();
    assert_eq!(ids, [container.clone(), created]);
    assert!(stats[0].memory.is_some() && stats[0].writable_layer.is_some());
    assert_eq!((&stats[1].cpu, &stats[1].memory), (&None, &None));
    stop(&mut node, &container, 0).await;
    assert_eq!(usage(&mut node).await.len(), 1);
    let request = cri::ContainerStatsRequest {
        container_id: container,
    };
    let ended = node
        .runtime
        .container_stats(request)
        .await
        .expect("it is there")
        .into_inner()
        .stats;
    assert_eq!(ended.expect("attributes are always reported").cpu, None);
}

#[tokio::test]
async fn verbose_status_of_a_container_is_json() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, container) = node.running().await;
    let request = cri::ContainerStatusRequest {
        container_id: container,
        verbose: true,
    };
    let info = node
        .runtime
        .container_status(request)
        .await
        .expect("it answers")
        .into_inner()
        .info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    assert_eq!(info["sandboxID"], sandbox);
    assert!(info["pid"].as_u64().is_some_and(|pid| pid > 0), "{info}");
    assert_eq!(info["snapshotter"], "memory");
}

#[tokio::test]
async fn streams_yield_every_listed_container_once() {
    let mut node = ServiceFixture::new().await;
    let (_, container) = node.running().await;
    let mut listed = node
        .runtime
        .stream_containers(cri::StreamContainersRequest::default())
        .await
        .expect("it answers")
        .into_inner();
    let batch = listed
        .message()
        .await
        .expect("it is sent")
        .expect("there is one container");
    assert_eq!(
        batch.containers.iter().map(|c| &c.id).collect::<Vec<_>>(),
        [&container]
    );
    assert_eq!(listed.message().await.expect("it ends well"), None);
    let mut stats = node
        .runtime
        .stream_container_stats(cri::StreamContainerStatsRequest::default())
        .await
        .expect("it answers")
        .into_inner();
    let batch = stats
        .message()
        .await
        .expect("it is sent")
        .expect("there is one container");
    assert_eq!(batch.container_stats.len(), 1);
    assert_eq!(stats.message().await.expect("it ends well"), None);
}
