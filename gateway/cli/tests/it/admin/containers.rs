//! The page with the metrics of containers: where it is served, what it contains, and how often the node is read.

use std::io::Read;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use axum::body::{Body, to_bytes};
use flate2::read::GzDecoder;
use futures::future::BoxFuture;
use futures::{FutureExt, poll};
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, Request, StatusCode};
use parking_lot::Mutex;
use switchyard_config::ContainerMetrics;
use switchyard_container_metrics::{Figures, Subject, samples};
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::{Error, Result};
use switchyard_operator::admin::Reach;
use switchyard_operator::container_metrics::{ContainerReading, SandboxTraffic, TaskUsage};
use switchyard_operator_api::ContainersView;
use tokio::time::advance;
use tower::ServiceExt as _;

use super::{Fake, exposed_pages};

/// The containers of the source: a pod's and a job's.
#[derive(Default)]
pub(super) struct Containers {
    reads: AtomicU32,
    /// Whether readings do not end.
    pub(super) hang: AtomicBool,
    /// How many steps a reading has, each of which takes a second.
    steps: AtomicU32,
    failure: Mutex<Option<Error>>,
}

impl Containers {
    pub(super) fn read(&self) -> BoxFuture<'static, Result<ContainerReading>> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if self.hang.load(Ordering::Relaxed) {
            return std::future::pending().boxed();
        }
        let failure = self.failure.lock().take();
        let steps = self.steps.load(Ordering::Relaxed);
        let read = async move {
            for _ in 0..steps {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            failure.map_or_else(|| Ok(reading()), Err)
        };
        read.boxed()
    }

    fn reads(&self) -> u32 {
        self.reads.load(Ordering::Relaxed)
    }
}

fn reading() -> ContainerReading {
    let mut figures = Figures::default();
    let mut tasks = Vec::new();
    let hostile = "a\"b\\c\nowner=\"root\"} 7";
    for (byte, owner, labels) in
        [(1, Owner::Kubernetes, [("pod", hostile)]), (2, Owner::Nomad, [("nomad_job", "shop")])]
    {
        let id = TaskId::from_bytes([byte; 32]);
        let subject = Subject::new(owner, &id.to_string(), labels);
        let task = Arc::new(samples::task(owner, id));
        figures.add_task(subject, &task, &samples::reading(), UNIX_EPOCH);
        tasks.push(TaskUsage::of(Arc::clone(&task), Arc::new(samples::sandbox(&task)), &samples::reading()));
    }
    let traffic = vec![SandboxTraffic::of(tasks[0].sandbox.id, &[samples::interface()])];
    ContainerReading { at: UNIX_EPOCH + Duration::from_secs(7), figures: Arc::new(figures), tasks, traffic }
}

#[tokio::test]
async fn counters_are_served_on_the_unix_socket_alone() {
    let page = Page::new(ContainerMetrics::Network, Reach::Local);
    let (status, body) = page.get("/v1/containers").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let view: ContainersView = serde_json::from_str(&body).unwrap();
    assert_eq!(view.at_unix_ns, 7_000_000_000);
    let owners: Vec<_> = view.tasks.iter().map(|task| task.owner.as_str()).collect();
    assert_eq!(owners, ["kubernetes", "nomad"]);
    let pod = &view.tasks[0];
    assert_eq!(pod.cpu_ns, Some(9_007_199_254_999_999_999));
    assert_eq!((pod.memory_bytes, pod.memory_limit_bytes, pod.pids), (Some(11), Some(1 << 20), Some(29)));
    // The sums over two devices.
    assert_eq!((pod.read_bytes, pod.written_bytes), (Some(40 + 60), Some(41 + 61)));
    let network = pod.network.as_ref().unwrap();
    assert_eq!((network.received_bytes, network.sent_bytes), (1, 5));
    let (_, body) = page.get("/v1/containers?owner=nomad").await;
    let view: ContainersView = serde_json::from_str(&body).unwrap();
    assert_eq!(view.tasks.len(), 1);
    // All share the reading of the metrics.
    let (status, _) = page.get("/metrics/containers").await;
    assert_eq!((status, page.source.containers.reads()), (StatusCode::OK, 1));
    assert_eq!(page.get("/v1/containers?owner=root").await.0, StatusCode::BAD_REQUEST);
    let network = Page::new(ContainerMetrics::Network, Reach::Network);
    assert_eq!(network.get("/v1/containers").await.0, StatusCode::NOT_FOUND);
}

/// One listener's pages, asked without sockets.
struct Page {
    router: axum::Router,
    source: Arc<Fake>,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Page {
    fn new(exposure: ContainerMetrics, reach: Reach) -> Self {
        let (admin, source, _) = exposed_pages(exposure);
        Self { router: admin.router(reach), source }
    }

    async fn ask(&self, path: &str, accepted: &str) -> Answer {
        let request = Request::get(path).header(ACCEPT_ENCODING, accepted).body(Body::empty()).unwrap();
        let (head, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap().to_vec();
        Answer { status: head.status, headers: head.headers, body }
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let answer = self.ask(path, "").await;
        (answer.status, String::from_utf8(answer.body).unwrap())
    }
}

#[tokio::test]
async fn listeners_serve_containers_as_configured() {
    for (exposure, local, network) in [
        (ContainerMetrics::Off, false, false),
        (ContainerMetrics::Local, true, false),
        (ContainerMetrics::Network, true, true),
    ] {
        let (admin, source, _dir) = exposed_pages(exposure);
        for (name, router, is_served) in [
            ("unix socket", admin.router(Reach::Local), local),
            ("admin address", admin.router(Reach::Network), network),
            ("metrics listener", admin.metrics_router(None), network),
        ] {
            let page = Page { router, source: Arc::clone(&source) };
            let (status, text) = page.get("/metrics/containers").await;
            let expected = if is_served { StatusCode::OK } else { StatusCode::NOT_FOUND };
            assert_eq!(status, expected, "{exposure:?} on the {name}: {text}");
            assert!(
                is_served || text.contains("admin.container_metrics"),
                "{exposure:?} on the {name}: {text}"
            );
            assert_eq!(text.contains("nomad_job=\"shop\""), is_served, "{exposure:?} on the {name}: {text}");
            // There the list is a page for browsers, which do not read metrics.
            if name == "admin address" {
                continue;
            }
            let (_, index) = page.get("/").await;
            assert_eq!(index.contains("/metrics/containers"), is_served, "{exposure:?}: {index}");
        }
    }
}

#[tokio::test]
async fn owner_selects_containers_and_an_unknown_one_is_refused() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local);
    let (_, all) = page.get("/metrics/containers").await;
    assert!(all.contains("owner=\"kubernetes\"") && all.contains("owner=\"nomad\""), "{all}");
    assert!(all.contains("pod=\"a\\\"b\\\\c\\nowner=\\\"root\\\"} 7\""), "{all}");
    assert_eq!(all.matches("# TYPE container_memory_rss ").count(), 1);
    let (_, jobs) = page.get("/metrics/containers?owner=nomad").await;
    assert!(!jobs.contains("owner=\"kubernetes\"") && jobs.contains("owner=\"nomad\""), "{jobs}");
    assert_eq!(page.get("/metrics/containers?owner=swarm").await, (StatusCode::OK, String::new()));
    for query in ["owner=root", "owner=", "owner=nomad&owner=host", "ownr=nomad"] {
        let (status, why) = page.get(&format!("/metrics/containers?{query}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}: {why}");
    }
}

#[tokio::test]
async fn gzip_is_the_same_text_for_clients_that_ask_for_it() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local);
    let plain = page.ask("/metrics/containers", "identity").await;
    assert!(plain.headers.get(CONTENT_ENCODING).is_none());
    let packed = page.ask("/metrics/containers", "gzip").await;
    assert_eq!(packed.headers[CONTENT_ENCODING], "gzip");
    assert_eq!(packed.headers[CONTENT_TYPE], "text/plain; version=0.0.4");
    assert!(packed.body.len() < plain.body.len() / 2);
    let mut text = Vec::new();
    GzDecoder::new(&*packed.body).read_to_end(&mut text).unwrap();
    assert_eq!(String::from_utf8(text), String::from_utf8(plain.body));
}

#[tokio::test(start_paused = true)]
async fn one_reading_serves_five_seconds() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local);
    for (later, reads) in [(0, 1), (0, 1), (4, 1), (1, 2), (4, 2), (60, 3)] {
        advance(Duration::from_secs(later)).await;
        let (status, _) = page.get("/metrics/containers?owner=nomad").await;
        assert_eq!((status, page.source.containers.reads()), (StatusCode::OK, reads));
    }
}

#[tokio::test(start_paused = true)]
async fn hanging_reading_is_shared_and_ends() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local);
    page.source.containers.hang.store(true, Ordering::Relaxed);
    let (first, second) =
        tokio::join!(page.get("/metrics/containers"), page.get("/metrics/containers?owner=nomad"));
    assert_eq!((first.0, page.source.containers.reads()), (StatusCode::GATEWAY_TIMEOUT, 1));
    assert!(first.1.contains("not read within 5s") && first == second, "{}", first.1);
    page.source.containers.hang.store(false, Ordering::Relaxed);
    assert_eq!(page.get("/metrics/containers").await.0, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn reading_goes_on_for_the_next_client_when_its_first_one_disconnects() {
    let page = Page::new(ContainerMetrics::Local, Reach::Local);
    page.source.containers.steps.store(3, Ordering::Relaxed);
    {
        let mut disconnects = pin!(page.get("/metrics/containers"));
        assert!(poll!(&mut disconnects).is_pending());
    }
    for _ in 0..49 {
        advance(Duration::from_millis(100)).await;
    }
    let (status, text) = page.get("/metrics/containers").await;
    assert_eq!((status, page.source.containers.reads()), (StatusCode::OK, 1), "{text}");
}

#[tokio::test]
async fn failed_reading_is_repeated_and_its_reason_stays_on_the_unix_socket() {
    for (reach, is_told) in [(Reach::Local, true), (Reach::Network, false)] {
        let page = Page::new(ContainerMetrics::Network, reach);
        let failure = Error::unavailable("cannot read /var/lib/secret");
        *page.source.containers.failure.lock() = Some(failure);
        let (status, why) = page.get("/metrics/containers").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(why.contains("/var/lib/secret"), is_told, "{why}");
        assert_eq!(page.get("/metrics/containers").await.0, StatusCode::OK);
    }
}
