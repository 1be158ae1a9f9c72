//! The metrics listener: what it serves, to whom, and what strangers can do to it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use switchyard_config::ContainerMetrics;
use switchyard_operator::admin::{self, BearerToken, Hosts, Limits, Token};
use switchyard_tls::Certificate;
use switchyard_tls::testing::{Authority, Identity};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::node::{TestNode, TestProcess};
use super::{LIMITS, down, is_open};
use crate::support::soon;

const SECRET: &str = "a-secret-of-the-node-0123456789";

/// A metrics listener with a token and, if there is an authority of clients, with mutual TLS.
struct Listener {
    address: SocketAddr,
    /// Its only process.
    containerd: Arc<TestProcess>,
    certificate: Certificate,
    token: BearerToken,
    ours: Authority,
    node: TestNode,
}

/// A stream that carries HTTP.
trait Carrier: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Carrier for T {}

fn token(dir: &Path, text: &str) -> Token {
    use std::os::unix::fs::PermissionsExt;
    let file = dir.join("token");
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    Token::read(&file).unwrap()
}

impl Listener {
    async fn serve(wants_clients: bool, limits: Limits) -> Self {
        let containerd = Arc::new(TestProcess::new("containerd"));
        let node = TestNode::new().await.with_process(&containerd);
        let pages = node.pages(ContainerMetrics::Local);
        let ours = Authority::new(node.dir.path(), "ours");
        let clients = wants_clients.then(|| ours.certificate());
        let certificate = Certificate::new(ours.issue("server").server(clients).read().unwrap());
        let token = BearerToken::new(token(node.dir.path(), SECRET));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = pages.metrics_router(Some(token.clone()));
        tokio::spawn(admin::serve_tls(
            listener,
            certificate.clone(),
            router,
            Hosts::Any,
            limits,
        ));
        Self {
            address,
            containerd,
            certificate,
            token,
            ours,
            node,
        }
    }

    /// A connection after its handshake, as the client sees it.
    async fn connect(&self, identity: Option<&Identity>) -> std::io::Result<Box<dyn Carrier>> {
        let stream = TcpStream::connect(self.address).await?;
        let name = ServerName::try_from("localhost").unwrap();
        Ok(Box::new(
            soon(
                "a handshake",
                self.ours.client(identity).connect(name, stream),
            )
            .await?,
        ))
    }

    /// The answer to one request on a connection of its own; empty if there is none.
    async fn get(&self, path: &str, token: &str, identity: Option<&Identity>) -> String {
        let Ok(mut stream) = self.connect(identity).await else {
            return String::new();
        };
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        drop(stream.write_all(request.as_bytes()).await);
        let mut answer = Vec::new();
        drop(soon("an answer", stream.read_to_end(&mut answer)).await);
        String::from_utf8(answer).unwrap()
    }
}

/// Asks for a page on an open connection; its status line, `None` if the connection is closed.
async fn ask(stream: &mut Box<dyn Carrier>, token: &str) -> Option<String> {
    let request =
        format!("GET /livez HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\n") || !answer.windows(4).any(|part| part == b"\r\n\r\n") {
        let byte = soon("an answer", stream.read_u8()).await.ok()?;
        answer.push(byte);
        // The body of both answers is one line.
        if answer.ends_with(b"\r\n\r\n") {
            answer.push(soon("a body", stream.read_u8()).await.ok()?);
        }
    }
    String::from_utf8(answer)
        .unwrap()
        .lines()
        .next()
        .map(str::to_owned)
}

#[tokio::test]
async fn metrics_listener_serves_metrics_and_health_without_reasons_and_nothing_else() {
    let listener = Listener::serve(false, LIMITS).await;
    listener.containerd.set(down());
    let metrics = listener.get("/metrics", SECRET, None).await;
    assert!(
        metrics.starts_with("HTTP/1.1 200 ") && metrics.contains("switchyard_build_info{"),
        "{metrics}"
    );
    assert!(
        listener
            .get("/livez", SECRET, None)
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    for path in ["/readyz", "/healthz", "/readyz/containerd"] {
        let answer = listener.get(path, SECRET, None).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "{path}: {answer}");
        assert!(
            answer.contains("[-]containerd failed: reason withheld"),
            "{path}: {answer}"
        );
        assert!(!answer.contains("gone"), "{path}: {answer}");
    }
    for path in [
        "/statusz",
        "/v1/objects",
        "/v1/devices",
        "/v1/config",
        "/v1/log/level",
        "/nowhere",
    ] {
        let answer = listener.get(path, SECRET, None).await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
    }
    let index = listener.get("/", SECRET, None).await;
    assert!(
        index.contains("/metrics") && !index.contains("/statusz"),
        "{index}"
    );
}

#[tokio::test]
async fn request_without_the_token_learns_nothing() {
    let listener = Listener::serve(false, LIMITS).await;
    for path in [
        "/",
        "/metrics",
        "/livez",
        "/readyz?verbose",
        "/statusz",
        "/nowhere",
    ] {
        for wrong in ["", "wrong", &SECRET[1..], &format!("{SECRET}x")] {
            let answer = listener.get(path, wrong, None).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{path}: {answer}");
            assert!(
                answer
                    .to_ascii_lowercase()
                    .contains("\r\nwww-authenticate: bearer\r\n"),
                "{answer}"
            );
            assert!(
                !answer.contains("switchyard_") && !answer.contains(SECRET),
                "{answer}"
            );
        }
    }
}

#[tokio::test]
async fn replaced_token_is_demanded_of_open_connections() {
    let listener = Listener::serve(false, LIMITS).await;
    let mut stream = listener.connect(None).await.unwrap();
    assert_eq!(
        ask(&mut stream, SECRET).await.as_deref(),
        Some("HTTP/1.1 200 OK")
    );
    listener
        .token
        .replace(token(listener.node.dir.path(), "the-next-token-0123456789"));
    assert_eq!(
        ask(&mut stream, SECRET).await.as_deref(),
        Some("HTTP/1.1 401 Unauthorized")
    );
    assert_eq!(
        ask(&mut stream, "the-next-token-0123456789")
            .await
            .as_deref(),
        Some("HTTP/1.1 200 OK")
    );
}

#[tokio::test]
async fn client_without_a_certificate_of_the_authority_gets_no_answer() {
    let listener = Listener::serve(true, LIMITS).await;
    let other = Authority::new(listener.node.dir.path(), "other");
    let good = listener.ours.issue("prometheus");
    assert!(
        listener
            .get("/metrics", SECRET, Some(&good))
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    assert!(
        listener
            .get("/metrics", "wrong", Some(&good))
            .await
            .starts_with("HTTP/1.1 401 ")
    );
    assert_eq!(listener.get("/metrics", SECRET, None).await, "");
    assert_eq!(
        listener
            .get("/metrics", SECRET, Some(&other.issue("prometheus")))
            .await,
        ""
    );
}

#[tokio::test]
async fn open_connection_is_closed_when_the_client_authority_is_replaced() {
    let listener = Listener::serve(true, LIMITS).await;
    let good = listener.ours.issue("prometheus");
    let mut open = listener.connect(Some(&good)).await.unwrap();
    assert!(ask(&mut open, SECRET).await.is_some());
    let other = Authority::new(listener.node.dir.path(), "other");
    let server = listener
        .ours
        .issue("server")
        .server(Some(other.certificate()));
    listener.certificate.replace(server.read().unwrap());
    let mut rest = Vec::new();
    drop(soon("the end", open.read_to_end(&mut rest)).await);
    assert_eq!(ask(&mut open, SECRET).await, None);
    assert_eq!(listener.get("/metrics", SECRET, Some(&good)).await, "");
    let answer = listener
        .get("/metrics", SECRET, Some(&other.issue("prometheus")))
        .await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn handshake_that_stalls_or_is_garbage_ends() {
    let limits = Limits {
        header_timeout: Duration::from_millis(50),
        ..LIMITS
    };
    let listener = Listener::serve(false, limits).await;
    // Nothing; the beginning of a handshake; a record that promises more; plain HTTP; noise.
    let record = [&[0x16, 3, 1, 0x40, 0][..], &[0; 100]].concat();
    for words in [
        &b""[..],
        &[0x16, 3, 1],
        &record,
        b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n",
        &[0xff; 70_000],
        &[0; 10],
    ] {
        let mut stream = TcpStream::connect(listener.address).await.unwrap();
        drop(stream.write_all(words).await);
        let mut answer = Vec::new();
        drop(soon("the end", stream.read_to_end(&mut answer)).await);
        assert!(
            !answer.starts_with(b"HTTP"),
            "{}",
            String::from_utf8_lossy(&answer)
        );
    }
    // After the handshake the head of the request has the rest of the time.
    let mut stream = listener.connect(None).await.unwrap();
    stream.write_all(b"GET /liv").await.unwrap();
    let mut answer = Vec::new();
    drop(soon("the end", stream.read_to_end(&mut answer)).await);
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test(flavor = "multi_thread")]
async fn scraper_is_served_while_strangers_hold_handshakes() {
    const LIMIT: usize = 16;
    let listener = Listener::serve(
        false,
        Limits {
            max_connections: LIMIT,
            ..LIMITS
        },
    )
    .await;
    let mut held = Vec::new();
    for number in 0..400 {
        let mut stream = TcpStream::connect(listener.address).await.unwrap();
        let words = [
            &b""[..],
            &[0x16, 3, 1],
            &[0x16, 3, 1, 0x02, 0, 1, 0, 1, 0xfc, 3, 3],
        ][number % 3];
        drop(stream.write_all(words).await);
        held.push(stream);
        if number % 20 == 0 {
            let answer = listener.get("/metrics", SECRET, None).await;
            assert!(
                answer.starts_with("HTTP/1.1 200 "),
                "after {number}: {answer}"
            );
        }
    }
    let closed = async {
        while held.len() > LIMIT {
            held.retain(is_open);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon("the others to be closed", closed).await;
}
