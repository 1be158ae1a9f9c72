//! The page with the metrics of containers: where it is served, what it contains, and how often the node is read.

use std::io::Read;
use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use flate2::read::GzDecoder;
use futures::poll;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Request, StatusCode};
use switchyard_config::ContainerMetrics;
use switchyard_contract::specs;
use switchyard_core::Error;
use switchyard_core::id::Owner;
use switchyard_core::spec::{MemoryLimit, Resources, SandboxSpec, TaskSpec};
use switchyard_fake::{Fake, Method};
use switchyard_operator::admin::Reach;
use switchyard_operator_api::ContainersView;
use tokio::time::advance;
use tower::ServiceExt as _;

use super::node::{TestNode, endless, labelled};
use crate::support::soon;

/// A node with the containers of a pod, whose name is hostile, and of a job.
async fn node() -> TestNode {
    let node = TestNode::new().await.named_by_labels();
    let hostile = "a\"b\\c\nowner=\"root\"} 7";
    for (owner, label, name) in [
        (Owner::Kubernetes, "pod", hostile),
        (Owner::Nomad, "nomad_job", "shop"),
    ] {
        let sandbox = specs::sandbox(owner, "web");
        let meta = labelled(sandbox.meta.clone(), label, name);
        let sandbox = node.sandbox(SandboxSpec { meta, ..sandbox }).await;
        let resources = Resources {
            memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
            ..Resources::default()
        };
        node.start(
            &sandbox,
            TaskSpec {
                resources,
                ..endless(owner, "web")
            },
        )
        .await;
    }
    node
}

/// Number of readings of the containers: each asks once for each owner.
fn readings(fake: &Fake) -> usize {
    let asked = fake.count(Method::TaskMetrics);
    assert_eq!(asked % Owner::ALL.len(), 0, "{asked}");
    asked / Owner::ALL.len()
}

/// One listener's pages, asked without sockets.
struct Page {
    router: axum::Router,
    fake: Fake,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Page {
    async fn new(exposure: ContainerMetrics, reach: Reach) -> Self {
        let node = node().await;
        Self {
            router: node.pages(exposure).router(reach),
            fake: node.fake,
        }
    }

    async fn ask(&self, path: &str, accepted: &str) -> Answer {
        let request = Request::get(path)
            .header(ACCEPT_ENCODING, accepted)
            .body(Body::empty())
            .unwrap();
        let (head, body) = self
            .router
            .clone()
            .oneshot(request)
            .await
            .unwrap()
            .into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap().to_vec();
        Answer {
            status: head.status,
            headers: head.headers,
            body,
        }
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let answer = self.ask(path, "").await;
        (answer.status, String::from_utf8(answer.body).unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn counters_are_served_on_the_unix_socket_alone() {
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let page = Page::new(ContainerMetrics::Network, Reach::Local).await;
    let (status, body) = page.get("/v1/containers").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let view: ContainersView = serde_json::from_str(&body).unwrap();
    assert!(u128::from(view.at_unix_ns) >= begun.as_nanos(), "{body}");
    let owners: Vec<_> = view.tasks.iter().map(|task| task.owner.as_str()).collect();
    assert_eq!(owners, ["kubernetes", "nomad"]);
    // The first reading of the in-memory backend.
    let pod = &view.tasks[0];
    assert_eq!(pod.cpu_ns, Some(10_000_000));
    let working_set = (1 << 20) + 4096;
    assert_eq!(
        (pod.memory_bytes, pod.memory_limit_bytes, pod.pids),
        (Some(working_set), Some(1 << 20), Some(1))
    );
    assert_eq!((pod.read_bytes, pod.written_bytes), (Some(512), Some(1024)));
    let network = pod.network.as_ref().unwrap();
    assert_eq!((network.received_bytes, network.sent_bytes), (1000, 500));
    let (_, body) = page.get("/v1/containers?owner=nomad").await;
    let view: ContainersView = serde_json::from_str(&body).unwrap();
    assert_eq!(view.tasks.len(), 1);
    // All share the reading of the metrics.
    let (status, _) = page.get("/metrics/containers").await;
    assert_eq!((status, readings(&page.fake)), (StatusCode::OK, 1));
    assert_eq!(
        page.get("/v1/containers?owner=root").await.0,
        StatusCode::BAD_REQUEST
    );
    let network = Page::new(ContainerMetrics::Network, Reach::Network).await;
    assert_eq!(network.get("/v1/containers").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn listeners_serve_containers_as_configured() {
    for (exposure, local, network) in [
        (ContainerMetrics::Off, false, false),
        (ContainerMetrics::Local, true, false),
        (ContainerMetrics::Network, true, true),
    ] {
        let node = node().await;
        let admin = node.pages(exposure);
        for (name, router, is_served) in [
            ("unix socket", admin.router(Reach::Local), local),
            ("admin address", admin.router(Reach::Network), network),
            ("metrics listener", admin.metrics_router(None), network),
        ] {
            let page = Page {
                router,
                fake: node.fake.clone(),
            };
            let (status, text) = page.get("/metrics/containers").await;
            let expected = if is_served {
                StatusCode::OK
            } else {
                StatusCode::NOT_FOUND
            };
            assert_eq!(status, expected, "{exposure:?} on the {name}: {text}");
            assert!(
                is_served || text.contains("admin.container_metrics"),
                "{exposure:?} on the {name}: {text}"
            );
            assert_eq!(
                text.contains("nomad_job=\"shop\""),
                is_served,
                "{exposure:?} on the {name}: {text}"
            );
            // There the list is a page for browsers, which do not read metrics.
            if name == "admin address" {
                continue;
            }
            let (_, index) = page.get("/").await;
            assert_eq!(
                index.contains("/metrics/containers"),
                is_served,
                "{exposure:?}: {index}"
            );
        }
    }
}

#[tokio::test]
async fn owner_selects_containers_and_an_unknown_one_is_refused() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local).await;
    let (_, all) = page.get("/metrics/containers").await;
    assert!(
        all.contains("owner=\"kubernetes\"") && all.contains("owner=\"nomad\""),
        "{all}"
    );
    assert!(
        all.contains("pod=\"a\\\"b\\\\c\\nowner=\\\"root\\\"} 7\""),
        "{all}"
    );
    assert_eq!(all.matches("# TYPE container_memory_rss ").count(), 1);
    let (_, jobs) = page.get("/metrics/containers?owner=nomad").await;
    assert!(
        !jobs.contains("owner=\"kubernetes\"") && jobs.contains("owner=\"nomad\""),
        "{jobs}"
    );
    let (status, none) = page.get("/metrics/containers?owner=swarm").await;
    let samples: Vec<_> = none.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(
        (status, &samples[..]),
        (
            StatusCode::OK,
            &["switchyard_container_scrape_success{owner=\"swarm\"} 1"][..]
        )
    );
    for query in [
        "owner=root",
        "owner=",
        "owner=nomad&owner=host",
        "ownr=nomad",
    ] {
        let (status, why) = page.get(&format!("/metrics/containers?{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {why}");
    }
}

#[tokio::test(start_paused = true)]
async fn gzip_is_the_same_text_for_clients_that_ask_for_it() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local).await;
    let plain = page.ask("/metrics/containers", "identity").await;
    assert!(plain.headers.get(CONTENT_ENCODING).is_none());
    let packed = page.ask("/metrics/containers", "gzip").await;
    assert_eq!(packed.headers[CONTENT_ENCODING], "gzip");
    assert_eq!(packed.headers[CONTENT_TYPE], "text/plain; version=0.0.4");
    assert!(packed.body.len() < plain.body.len() / 2);
    let mut text = Vec::new();
    GzDecoder::new(&*packed.body)
        .read_to_end(&mut text)
        .unwrap();
    assert_eq!(String::from_utf8(text), String::from_utf8(plain.body));
}

#[tokio::test(start_paused = true)]
async fn one_reading_serves_five_seconds() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local).await;
    for (later, reads) in [(0, 1), (0, 1), (4, 1), (1, 2), (4, 2), (60, 3)] {
        advance(Duration::from_secs(later)).await;
        let (status, _) = page.get("/metrics/containers?owner=nomad").await;
        assert_eq!((status, readings(&page.fake)), (StatusCode::OK, reads));
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_reading_is_shared_and_ends() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local).await;
    let hold = page.fake.hold(Method::TaskMetrics);
    let (first, second) = tokio::join!(
        page.get("/metrics/containers"),
        page.get("/metrics/containers?owner=nomad")
    );
    assert_eq!(
        (first.0, readings(&page.fake)),
        (StatusCode::GATEWAY_TIMEOUT, 1)
    );
    assert!(
        first.1.contains("not read within 5s") && first == second,
        "{}",
        first.1
    );
    drop(hold);
    assert_eq!(page.get("/metrics/containers").await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn reading_goes_on_for_the_next_client_when_its_first_one_disconnects() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local).await;
    let begin = page.fake.hold(Method::TaskMetrics);
    let end = page.fake.hold_answer(Method::TaskMetrics);
    {
        let mut disconnects = pin!(page.get("/metrics/containers"));
        assert!(poll!(&mut disconnects).is_pending());
    }
    // Nobody waits for it.
    soon("the begin of the reading", begin.arrived(Owner::ALL.len())).await;
    drop(begin);
    soon("its end", end.arrived(Owner::ALL.len())).await;
    for _ in 0..49 {
        advance(Duration::from_millis(100)).await;
    }
    drop(end);
    let (status, text) = page.get("/metrics/containers").await;
    assert_eq!(
        (status, readings(&page.fake)),
        (StatusCode::OK, 1),
        "{text}"
    );
}

#[tokio::test]
async fn failed_reading_is_repeated_and_its_reason_stays_on_the_unix_socket() {
    for (reach, is_told, query) in [
        (Reach::Local, true, ""),
        (Reach::Network, false, ""),
        (Reach::Network, false, "?owner=nomad"),
    ] {
        let page = Page::new(ContainerMetrics::Network, reach).await;
        for _ in Owner::ALL {
            let error = Error::unavailable("cannot read /var/lib/secret");
            page.fake.fail_next(Method::TaskMetrics, error);
        }
        let (status, why) = page.get(&format!("/metrics/containers{query}")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(why.contains("/var/lib/secret"), is_told, "{why}");
        assert_eq!(page.get("/metrics/containers").await.0, StatusCode::OK);
    }
}

#[tokio::test]
async fn owner_that_cannot_be_read_hides_no_other_and_is_reported() {
    let page = Page::new(ContainerMetrics::Network, Reach::Network).await;
    // The first call is that of the first owner.
    let error = Error::unavailable("cannot read /var/lib/secret");
    page.fake.fail_next(Method::TaskMetrics, error);
    let (status, text) = page.get("/metrics/containers").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    for line in [
        "switchyard_container_scrape_success{owner=\"kubernetes\"} 0",
        "switchyard_container_scrape_success{owner=\"nomad\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(text.contains("nomad_job=\"shop\""), "{text}");
    assert!(!text.contains("pod=") && !text.contains("secret"), "{text}");
    // It is read again at once.
    let (_, text) = page.get("/metrics/containers").await;
    assert!(
        text.contains("scrape_success{owner=\"kubernetes\"} 1"),
        "{text}"
    );
}

#[tokio::test]
async fn owner_that_cannot_be_read_fails_where_it_is_asked_for() {
    for (path, expected) in [
        (
            "/metrics/containers?owner=kubernetes",
            StatusCode::SERVICE_UNAVAILABLE,
        ),
        ("/metrics/containers?owner=nomad", StatusCode::OK),
        // Its numbers would look complete.
        ("/v1/containers", StatusCode::SERVICE_UNAVAILABLE),
        ("/v1/containers?owner=nomad", StatusCode::OK),
    ] {
        let page = Page::new(ContainerMetrics::Local, Reach::Local).await;
        page.fake
            .fail_next(Method::TaskMetrics, Error::unavailable("away"));
        let (status, text) = page.get(path).await;
        assert_eq!(status, expected, "{path}: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn owner_that_hangs_hides_no_other() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local).await;
    let hold = page.fake.hold_next(Method::TaskMetrics);
    let (status, text) = page.get("/metrics/containers").await;
    assert_eq!(status, StatusCode::OK, "{text}");
    assert!(
        text.contains("scrape_success{owner=\"kubernetes\"} 0"),
        "{text}"
    );
    assert!(text.contains("nomad_job=\"shop\""), "{text}");
    drop(hold);
}
