//! Tests of the admin pages over real sockets, about a node over the in-memory backend.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use switchyard_config::ContainerMetrics;
use switchyard_core::backend::{Advisory, Backend as _};
use switchyard_core::id::Owner;
use switchyard_operator::admin::{self, Hosts, Limits, Reach};
use switchyard_operator::status::{Condition, Part};
use switchyard_operator_api::StatusReport;
use switchyard_socket::channel;
use switchyard_socket::listener::GuardedListener;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::support::soon;
use devices::{Held, VendorPlugins};
use node::{IMAGES, TestNode, TestProcess, broken, endless};

mod blockers;
mod containers;
mod devices;
mod exec;
mod images;
mod logs;
mod metrics_listener;
mod node;
mod objects;
mod page;
mod programs;
mod series;
mod swarm;
mod volumes;
mod waiting;

fn up() -> Condition {
    Condition::Up("fine".into())
}

fn down() -> Condition {
    Condition::Down("gone".into())
}

/// Longer than any test takes.
const LIMITS: Limits = Limits {
    max_connections: 64,
    header_timeout: Duration::from_secs(3600),
    idle_timeout: Duration::from_secs(3600),
    max_header_bytes: 8192,
};

/// The pages about a node.
struct Pages {
    node: TestNode,
    tcp: std::net::SocketAddr,
}

impl Pages {
    async fn serve(node: TestNode) -> Self {
        Self::with(node, LIMITS).await
    }

    async fn with(node: TestNode, limits: Limits) -> Self {
        let admin = node.pages(ContainerMetrics::Local);
        let unix = GuardedListener::bind(&node.dir.path().join("admin.sock"), None).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tcp = listener.local_addr().unwrap();
        admin.set_address(tcp);
        let local = admin.router(Reach::Local);
        let network = admin.router(Reach::Network);
        tokio::spawn(admin::serve(unix, local, Hosts::Any, limits));
        tokio::spawn(admin::serve(listener, network, Hosts::of(tcp, &[]), limits));
        Self { node, tcp }
    }

    /// The path of the unix socket.
    fn socket(&self) -> String {
        let socket = self.node.dir.path().join("admin.sock");
        socket.display().to_string()
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        self.ask(Method::GET, path).await
    }

    async fn ask(&self, method: Method, path: &str) -> (StatusCode, String) {
        let socket = self.node.dir.path().join("admin.sock");
        let answer = soon("a page", channel::request(&socket, method, path)).await;
        let (status, body) = answer.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// The head and body over TCP, as text.
    async fn get_tcp(&self, path: &str) -> String {
        self.say(&format!(
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        ))
        .await
    }

    /// Sends this text over TCP, and returns everything received until the end of the connection.
    async fn say(&self, words: &str) -> String {
        let mut stream = TcpStream::connect(self.tcp).await.unwrap();
        // The server may refuse the request before it has been sent completely.
        drop(stream.write_all(words.as_bytes()).await);
        let mut bytes = Vec::new();
        drop(soon("the end", stream.read_to_end(&mut bytes)).await);
        String::from_utf8(bytes).unwrap()
    }
}

/// A client that reuses one connection until it is closed, as Prometheus does.
struct Scraper {
    address: std::net::SocketAddr,
    connection: Option<BufReader<TcpStream>>,
}

impl Scraper {
    fn new(pages: &Pages) -> Self {
        Self {
            address: pages.tcp,
            connection: None,
        }
    }

    /// One page; reconnects if the server has closed the idle connection.
    async fn scrape(&mut self) -> io::Result<()> {
        if let Some(connection) = &mut self.connection
            && Self::ask(connection).await.is_ok()
        {
            return Ok(());
        }
        let mut connection = BufReader::new(TcpStream::connect(self.address).await?);
        let asked = Self::ask(&mut connection).await;
        self.connection = Some(connection);
        asked
    }

    async fn ask(connection: &mut BufReader<TcpStream>) -> io::Result<()> {
        connection
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            .await?;
        let mut length = 0;
        loop {
            let mut line = String::new();
            if connection.read_line(&mut line).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        connection.read_exact(&mut body).await?;
        assert!(
            String::from_utf8(body)
                .unwrap()
                .contains("switchyard_images 1\n")
        );
        Ok(())
    }
}

#[tokio::test]
async fn readiness_follows_required_components() {
    let containerd = Arc::new(TestProcess::new("containerd"));
    let pages = Pages::serve(TestNode::new().await.with_process(&containerd)).await;
    let runtime = pages.node.fake.status().version;
    pages.node.change_status(|status| status.network = broken());
    // Nobody uses it: the node may be of Nomad alone.
    let (_, text) = pages.get("/readyz?verbose").await;
    assert!(!text.contains("network"), "{text}");
    pages.node.use_network().await;
    assert_eq!(pages.get("/readyz").await, (StatusCode::OK, "ok\n".into()));
    let backend = format!(
        "[+]runtime ok: {runtime}\n\
         [!]network failed, the node stays ready: Broken: gone\n\
         [+]disk ok: can be written and has space\n\
         [+]recovery ok: done\n\
         [+]devices ok: can be given out\n"
    );
    let verbose = format!("[+]containerd ok: fine\n{backend}readyz check passed\n");
    assert_eq!(
        pages.get("/readyz?verbose").await,
        (StatusCode::OK, verbose)
    );

    containerd.set(down());
    pages.node.reporter.set([Part::needed("cri", up())]);
    let failed =
        format!("[-]containerd failed: gone\n{backend}[+]cri ok: fine\nreadyz check failed\n");
    assert_eq!(
        pages.get("/readyz").await,
        (StatusCode::SERVICE_UNAVAILABLE, failed)
    );
    assert_eq!(
        pages.get("/healthz").await.0,
        StatusCode::SERVICE_UNAVAILABLE
    );
    assert_eq!(pages.get("/livez").await, (StatusCode::OK, "ok\n".into()));

    containerd.set(up());
    assert_eq!(pages.get("/readyz").await.0, StatusCode::OK);
    pages.node.change_status(|status| status.runtime = broken());
    let (status, text) = pages.get("/readyz").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(text.contains("[-]runtime failed: Broken: gone\n"), "{text}");
}

#[tokio::test]
async fn single_component_is_queried_by_name() {
    let pages = Pages::serve(TestNode::new().await).await;
    pages
        .node
        .reporter
        .set([Part::needed("cri", up()), Part::optional("kubelet", down())]);
    pages.node.change_status(|status| status.network = broken());
    pages.node.use_network().await;
    assert_eq!(pages.get("/readyz").await.0, StatusCode::OK);
    for part in ["cri", "runtime"] {
        assert_eq!(
            pages.get(&format!("/readyz/{part}")).await.0,
            StatusCode::OK,
            "{part}"
        );
    }
    for part in ["kubelet", "network"] {
        let (status, _) = pages.get(&format!("/readyz/{part}")).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{part}");
    }
    assert_eq!(pages.get("/readyz/swarm").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn metrics_and_status_pages_show_the_node() {
    let node = TestNode::new().await.with_plugins(Arc::new(VendorPlugins));
    Held::on(&node).await;
    for (owner, image) in [Owner::Kubernetes, Owner::Nomad].into_iter().zip(IMAGES) {
        node.pull(owner, image).await;
    }
    for name in ["one", "two"] {
        node.run(endless(Owner::Nomad, name)).await;
    }
    node.reporter.set([Part::needed("cri", up())]);
    let ids = vec!["CVE-2024-21626".into()];
    let runc = Advisory {
        program: "runc".into(),
        version: "1.1.0".into(),
        ids,
    };
    node.change_status(|status| status.advisories = vec![runc]);
    let pages = Pages::serve(node).await;
    let metrics = pages.get_tcp("/metrics").await;
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(
        metrics.contains("content-type: text/plain; version=0.0.4"),
        "{metrics}"
    );
    for line in [
        "switchyard_sandboxes{owner=\"kubernetes\",state=\"ready\"} 1",
        "switchyard_tasks{owner=\"nomad\",state=\"running\"} 3",
        "switchyard_images 3",
        "switchyard_streaming_sessions{kind=\"portforward\"} 4",
        "switchyard_backend_up{part=\"cri\"} 1",
        "switchyard_backend_up{part=\"runtime\"} 1",
        "switchyard_device_host_plugins{state=\"connected\"} 1",
        "switchyard_device_host_plugins{state=\"silent\"} 0",
        "switchyard_device_host_plugins{state=\"ended\"} 1",
        "switchyard_device_host_devices{health=\"healthy\",resource=\"acme.com/gpu\"} 2",
        "switchyard_device_host_devices{health=\"unhealthy\",resource=\"acme.com/gpu\"} 1",
        "switchyard_device_host_devices{health=\"unhealthy\",resource=\"acme.com/nic\"} 4",
        "switchyard_device_host_state_since_timestamp_seconds{resource=\"acme.com/nic\",state=\"ended\"} 1700000000",
        "switchyard_device_host_failures_total{reason=\"late\"} 3",
        "switchyard_ledger_device_capacity_slots{resource=\"acme/tpu/v2\"} 4",
        "switchyard_ledger_device_claimed_slots{owner=\"nomad\",resource=\"acme/tpu/v2\"} 2",
        "switchyard_ledger_claimed_ports{owner=\"kubernetes\"} 1",
        "switchyard_ledger_cpu_capacity_cores 8",
        "switchyard_ledger_cpu_claimed_cores{owner=\"nomad\"} 2.55",
        "switchyard_ledger_exclusive_cores{owner=\"nomad\"} 2",
        "switchyard_ledger_memory_capacity_bytes 17179869184",
        "switchyard_ledger_claims{owner=\"nomad\",resource=\"cpu_milli\"} 2550",
        "switchyard_ledger_refusals_total{owner=\"kubernetes\",reason=\"held\",resource=\"device\"} 3",
    ] {
        assert!(
            metrics.contains(&format!("{line}\n")),
            "{line} is missing in {metrics}"
        );
    }
    let report: StatusReport = serde_json::from_str(&pages.get("/statusz").await.1).unwrap();
    assert!(report.ready);
    assert_eq!(
        (report.pid, report.images),
        (Some(std::process::id()), Some(3))
    );
    let parts: Vec<_> = report.parts.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(
        parts,
        ["runtime", "network", "disk", "recovery", "devices", "cri"]
    );
    assert_eq!(report.advisories[0].ids, ["CVE-2024-21626"]);
}

/// Runs our binary beside the server.
async fn run(args: &[&str]) -> std::process::Output {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let output = tokio::task::spawn_blocking(move || {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        crate::support::switchyard(&args)
    });
    output.await.unwrap()
}

#[tokio::test]
async fn failure_reasons_are_served_on_the_unix_socket_only() {
    let containerd = Arc::new(TestProcess::new("containerd"));
    let logkeeper = Arc::new(TestProcess::new("logkeeper"));
    let node = TestNode::new()
        .await
        .with_process(&containerd)
        .with_process(&logkeeper);
    let why = "ended with signal 9: last words: cannot open /var/lib/secret, process 4194301";
    containerd.set(Condition::Down(why.into()));
    logkeeper.set(Condition::Up(
        "logkeeper protocol 1, process 4194302".into(),
    ));
    let pages = Pages::serve(node).await;
    for path in [
        "/readyz",
        "/readyz?verbose",
        "/readyz/containerd",
        "/readyz/logkeeper?verbose",
        "/statusz",
    ] {
        let text = pages.get_tcp(path).await;
        for secret in ["last words", "/var/lib", "419430", "\"pid\""] {
            assert!(
                !text.contains(secret),
                "{path} shows strangers {secret}: {text}"
            );
        }
    }
    assert!(
        pages
            .get_tcp("/readyz")
            .await
            .contains("[-]containerd failed: reason withheld")
    );
    assert!(
        pages
            .get_tcp("/readyz?verbose")
            .await
            .contains("[+]logkeeper ok\n")
    );
    let report: StatusReport = serde_json::from_str(
        pages
            .get_tcp("/statusz")
            .await
            .split_once("\r\n\r\n")
            .unwrap()
            .1,
    )
    .unwrap();
    assert!(!report.ready && report.pid.is_none());
    assert!(report.features.is_empty(), "paths are named in them");
    assert!(pages.get("/readyz").await.1.contains(why));
    assert!(pages.get("/statusz").await.1.contains(why));
}

#[tokio::test]
async fn dns_rebinding_host_is_rejected() {
    let pages = Pages::serve(TestNode::new().await).await;
    let ask = async |host: &str| {
        pages
            .say(&format!(
                "GET /metrics HTTP/1.1\r\n{host}Connection: close\r\n\r\n"
            ))
            .await
    };
    let refused = ask("Host: rebound.example:9640\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
    assert!(
        refused.contains("\"rebound.example\" is no name of this node"),
        "{refused}"
    );
    assert!(!refused.contains("switchyard_"), "{refused}");
    for host in [
        "Host: localhost:9640\r\n",
        "Host: 127.0.0.1\r\n",
        "Host: [::1]:1\r\n",
    ] {
        assert!(ask(host).await.starts_with("HTTP/1.1 200 "), "{host}");
    }
    for host in ["", "Host: localhost\r\nHost: rebound.example\r\n"] {
        assert!(ask(host).await.starts_with("HTTP/1.1 400 "), "{host}");
    }
    let body = pages
        .say("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
        .await;
    assert!(body.starts_with("HTTP/1.1 413 "), "{body}");
}

#[tokio::test]
async fn endless_or_missing_request_head_is_rejected() {
    let limits = Limits {
        header_timeout: Duration::from_millis(50),
        idle_timeout: Duration::from_millis(50),
        ..LIMITS
    };
    let pages = Pages::with(TestNode::new().await, limits).await;
    let giant = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
        "x".repeat(10_000)
    );
    assert!(pages.say(&giant).await.starts_with("HTTP/1.1 431 "));
    let (least, most) = (8192 - 10, 8192 + 10);
    for (length, status) in [(least, "200"), (most, "431")] {
        let head = "GET /livez HTTP/1.1\r\nHost: localhost\r\nX: \r\n\r\n";
        let request = head.replace("X: ", &format!("X: {}", "x".repeat(length - head.len())));
        let answer = pages.say(&request).await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{length}: {answer}"
        );
    }
    // If the request is much too long, the refusal may be lost.
    let endless = pages.say(&"x".repeat(8 << 20)).await;
    assert!(!endless.contains(" 200 "), "{endless}");
    let many = "A: b\r\n".repeat(1000);
    assert!(
        pages
            .say(&format!("GET / HTTP/1.1\r\n{many}\r\n"))
            .await
            .starts_with("HTTP/1.1 431 ")
    );
    assert_eq!(pages.say("GET / HTT").await, "");
    // A connection with an answered and then an incomplete request is closed as well.
    let answered = pages
        .say("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /li")
        .await;
    assert!(answered.ends_with("\r\n\r\nok\n"), "{answered}");
}

#[tokio::test(flavor = "multi_thread")]
async fn scraper_is_served_while_others_hold_connections() {
    const LIMIT: usize = 16;
    let pages = Pages::with(
        TestNode::new().await,
        Limits {
            max_connections: LIMIT,
            ..LIMITS
        },
    )
    .await;
    let mut scraper = Scraper::new(&pages);
    soon("a page", scraper.scrape()).await.unwrap();
    let mut held = Vec::new();
    for number in 0..400 {
        let mut stream = TcpStream::connect(pages.tcp).await.unwrap();
        // Some send nothing, some an incomplete request, some stay idle, some do not read.
        let words = [
            "",
            "GET / HTTP",
            "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ][number % 3];
        drop(stream.write_all(words.as_bytes()).await);
        held.push(stream);
        if number % 10 == 0 {
            soon("a page", scraper.scrape()).await.unwrap();
        }
    }
    for _ in 0..20 {
        soon("a page", scraper.scrape()).await.unwrap();
    }
    // All connections above the limit are closed.
    let closed = async {
        while held.len() > LIMIT {
            held.retain(is_open);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the others to be closed", closed).await;
}

/// Returns whether the server has not closed the connection.
fn is_open(stream: &TcpStream) -> bool {
    loop {
        match stream.try_read(&mut [0; 1024]) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}
