//! The admin pages over real sockets, from a source that the test controls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use http::StatusCode;
use switchyard::admin::{Admin, Reach};
use switchyard::channel;
use switchyard::listener::GuardedListener;
use switchyard::metrics::Metrics;
use switchyard::status::{Condition, Objects, Part, SandboxView, Source, StatusReport};
use switchyard_core::id::Owner;
use switchyard_core::table::Counts;
use switchyard_logkeeper::protocol::Stats;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::soon;

#[derive(Default)]
struct Fake {
    parts: Mutex<Vec<Part>>,
}

impl Source for Fake {
    fn parts(&self) -> Vec<Part> {
        self.parts.lock().unwrap().clone()
    }

    fn count_sandboxes(&self) -> Counts {
        BTreeMap::from([((Owner::Kubernetes, "ready"), 1)])
    }

    fn count_tasks(&self) -> Counts {
        BTreeMap::from([((Owner::Nomad, "running"), 3)])
    }

    fn count_images(&self) -> BoxFuture<'_, Option<u64>> {
        Box::pin(std::future::ready(Some(5)))
    }

    fn count_launchers(&self) -> Option<u64> {
        Some(2)
    }

    fn count_streaming(&self) -> Vec<(&'static str, u64)> {
        vec![("portforward", 4)]
    }

    fn logs(&self) -> BoxFuture<'_, Option<Stats>> {
        Box::pin(std::future::ready(Some(Stats { containers: 2, ..Stats::default() })))
    }

    fn objects(&self) -> Objects {
        Objects {
            sandboxes: vec![SandboxView {
                id: "ab".repeat(32),
                owner: "kubernetes".into(),
                name: "web".into(),
                state: "ready".into(),
                handler: String::new(),
                ips: vec!["10.0.0.2".parse().unwrap()],
                created_at: "2024-01-01T00:00:00Z".into(),
            }],
            tasks: Vec::new(),
        }
    }
}

fn part(name: &'static str, needed: bool, condition: Condition) -> Part {
    Part { name, needed, condition }
}

fn up() -> Condition {
    Condition::Up("fine".into())
}

fn down() -> Condition {
    Condition::Down("gone".into())
}

struct Pages {
    source: Arc<Fake>,
    dir: TempDir,
    tcp: std::net::SocketAddr,
}

impl Pages {
    async fn serve() -> Self {
        let source = Arc::new(Fake::default());
        let admin = Admin::new(Arc::clone(&source) as _, Arc::new(Metrics::new().unwrap()));
        let dir = tempfile::tempdir().unwrap();
        let unix = GuardedListener::bind(&dir.path().join("admin.sock"), None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = listener.local_addr().unwrap();
        let (local, network) = (admin.router(Reach::Local), admin.router(Reach::Network));
        tokio::spawn(async move { axum::serve(unix, local).await });
        tokio::spawn(async move { axum::serve(listener, network).await });
        Self { source, dir, tcp }
    }

    fn set(&self, parts: Vec<Part>) {
        *self.source.parts.lock().unwrap() = parts;
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let answer = soon("a page", channel::get(&self.dir.path().join("admin.sock"), path)).await;
        let (status, body) = answer.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// The head and body over TCP, as text.
    async fn get_tcp(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.tcp).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut text = String::new();
        soon("an answer", stream.read_to_string(&mut text)).await.unwrap();
        text
    }
}

#[tokio::test]
async fn readiness_follows_the_parts_that_are_needed() {
    let pages = Pages::serve().await;
    pages.set(vec![part("containerd", true, up()), part("network", false, down())]);
    assert_eq!(pages.get("/readyz").await, (StatusCode::OK, "ok\n".into()));
    let verbose = "[+]containerd ok: fine\n[!]network failed, not needed: gone\nreadyz check passed\n";
    assert_eq!(pages.get("/readyz?verbose").await, (StatusCode::OK, verbose.into()));

    pages.set(vec![part("containerd", true, down()), part("cri", true, up())]);
    let failed = "[-]containerd failed: gone\n[+]cri ok: fine\nreadyz check failed\n";
    assert_eq!(pages.get("/readyz").await, (StatusCode::SERVICE_UNAVAILABLE, failed.into()));
    assert_eq!(pages.get("/healthz").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(pages.get("/livez").await, (StatusCode::OK, "ok\n".into()));
}

#[tokio::test]
async fn one_part_is_asked_for_by_name() {
    let pages = Pages::serve().await;
    pages.set(vec![part("cri", true, up()), part("network", false, down())]);
    assert_eq!(pages.get("/readyz/cri").await.0, StatusCode::OK);
    assert_eq!(pages.get("/readyz/network").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(pages.get("/readyz/swarm").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_and_status_show_the_node() {
    let pages = Pages::serve().await;
    pages.set(vec![part("cri", true, up())]);
    let metrics = pages.get_tcp("/metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(metrics.contains("content-type: text/plain; version=0.0.4"), "{metrics}");
    for line in [
        "switchyard_tasks{owner=\"nomad\",state=\"running\"} 3",
        "switchyard_images 5",
        "switchyard_streaming_sessions{kind=\"portforward\"} 4",
        "switchyard_backend_up{part=\"cri\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
    let report: StatusReport = serde_json::from_str(&pages.get("/statusz").await.1).unwrap();
    assert!(report.ready);
    assert_eq!((report.pid, report.images), (std::process::id(), Some(5)));
    assert_eq!(report.parts[0].name, "cri");
}

#[tokio::test]
async fn objects_are_named_on_the_unix_socket_only() {
    let pages = Pages::serve().await;
    let (status, body) = pages.get("/v1/objects").await;
    assert_eq!(status, StatusCode::OK);
    let objects: Objects = serde_json::from_str(&body).unwrap();
    assert_eq!(objects.sandboxes[0].name, "web");
    assert!(pages.get_tcp("/v1/objects").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_shows_status_and_objects() {
    let pages = Pages::serve().await;
    pages.set(vec![part("cri", true, up()), part("network", false, down())]);
    let socket = pages.dir.path().join("admin.sock").display().to_string();
    let run = |args: &[&str]| {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        tokio::task::spawn_blocking(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            crate::support::switchyard(&args)
        })
    };
    let output = run(&["status", "--socket", &socket]).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains(" is ready, process ") && text.contains("network  failed (not needed)  gone"),
        "{text}"
    );
    let output = run(&["ps", "--socket", &socket]).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("ababababababa  kubernetes  web   ready  10.0.0.2"), "{text}");
    let output = run(&["ps", "--socket", &socket, "--output", "json"]).await.unwrap();
    assert!(serde_json::from_slice::<Objects>(&output.stdout).is_ok());

    pages.set(vec![part("cri", true, down())]);
    let output = run(&["status", "--socket", &socket]).await.unwrap();
    assert_eq!(output.status.code(), Some(1));
}
