//! Lists, statuses and usage of pods.

use super::*;

#[tokio::test]
async fn all_pod_filters_must_match() {
    let mut node = ServiceFixture::new().await;
    let web = node.run(pod("web")).await.expect("it is well formed");
    let db = node.run(pod("db")).await.expect("it is well formed");
    stop(&mut node, &db).await;
    let filter = |id: &str, state: Option<cri::PodSandboxState>, labels: &[(&str, &str)]| {
        cri::PodSandboxFilter {
            id: id.to_owned(),
            state: state.map(|state| cri::PodSandboxStateValue {
                state: state.into(),
            }),
            label_selector: map(labels),
        }
    };
    use cri::PodSandboxState::{SandboxNotready, SandboxReady};
    assert_eq!(
        list(&mut node, filter("", None, &[("tier", "front")]))
            .await
            .len(),
        2
    );
    assert_eq!(
        list(&mut node, filter("", Some(SandboxReady), &[])).await,
        [web.as_str()]
    );
    assert_eq!(
        list(&mut node, filter("", Some(SandboxNotready), &[])).await,
        [db.as_str()]
    );
    assert_eq!(
        list(
            &mut node,
            filter("", None, &[("io.kubernetes.pod.name", "db")])
        )
        .await,
        [db.as_str()]
    );
    assert_eq!(
        list(
            &mut node,
            filter(&web, Some(SandboxReady), &[("tier", "front")])
        )
        .await,
        [web.as_str()]
    );
    assert_eq!(
        list(&mut node, filter(&web[..16], None, &[])).await,
        [web.as_str()]
    );
    assert_eq!(
        list(&mut node, filter(&web, Some(SandboxNotready), &[])).await,
        Vec::<String>::new()
    );
    assert_eq!(
        list(&mut node, filter("zz", None, &[])).await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn stream_yields_every_listed_pod_once() {
    let mut node = ServiceFixture::new().await;
    for name in ["a", "b", "c"] {
        node.run(pod(name)).await.expect("it is well formed");
    }
    let listed = node
        .runtime
        .list_pod_sandbox(cri::ListPodSandboxRequest::default())
        .await;
    let listed = listed.expect("it answers").into_inner().items;
    let streamed = node
        .runtime
        .stream_pod_sandboxes(cri::StreamPodSandboxesRequest::default())
        .await;
    let mut streamed = streamed.expect("it answers").into_inner();
    let mut all = Vec::new();
    while let Some(batch) = streamed.message().await.expect("it is sent") {
        assert!(!batch.pod_sandboxes.is_empty());
        all.extend(batch.pod_sandboxes);
    }
    assert_eq!(all, listed);
}

#[tokio::test]
async fn large_pod_fits_into_a_message() {
    let mut node = ServiceFixture::new().await;
    let mut config = pod("web");
    config.annotations = map(&[("large", &"x".repeat(6 << 20))]);
    let id = node
        .run(config.clone())
        .await
        .expect("it is below the limit");
    assert_eq!(
        node.pod_status(&id).await.expect("it is there").annotations,
        config.annotations
    );
}

#[tokio::test]
async fn pod_stats_have_network_and_containers() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, container) = node.running().await;
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: sandbox.clone(),
    };
    let one = node
        .runtime
        .pod_sandbox_stats(request)
        .await
        .expect("it answers")
        .into_inner();
    let linux = one.stats.and_then(|stats| stats.linux).expect("it is set");
    let network = linux
        .network
        .and_then(|network| network.default_interface)
        .expect("it has an interface");
    assert_eq!(network.name, "eth0");
    let id = linux.containers[0]
        .attributes
        .as_ref()
        .map(|attributes| attributes.id.clone());
    assert_eq!(id, Some(container));
    let stats = node
        .runtime
        .list_pod_sandbox_stats(cri::ListPodSandboxStatsRequest::default())
        .await;
    let stats = stats.expect("it answers").into_inner().stats;
    assert_eq!(stats.len(), 1);
    stop(&mut node, &sandbox).await;
    let stats = node
        .runtime
        .list_pod_sandbox_stats(cri::ListPodSandboxStatsRequest::default())
        .await;
    assert_eq!(stats.expect("it answers").into_inner().stats, []);
}

#[tokio::test]
async fn verbose_status_of_a_pod_is_json() {
    let mut node = ServiceFixture::new().await;
    let id = node.run(pod("web")).await.expect("it is well formed");
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: id,
        verbose: true,
    };
    let info = node
        .runtime
        .pod_sandbox_status(request)
        .await
        .expect("it answers")
        .into_inner()
        .info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    assert_eq!(info["config"]["metadata"]["name"], "web");
    assert!(info["pid"].is_u64());
}
