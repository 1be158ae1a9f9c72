//! The places of users on the admin socket.

use axum::response::Response;
use axum::routing::get;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;

/// Number of connections that the listener of a test serves.
const CONNECTIONS: usize = 16;

/// More than a listener has places.
const MANY: u32 = 40;

/// A listener whose peers a test chooses.
struct TestListener(mpsc::Receiver<(DuplexStream, TestPeer)>);

/// A peer, by its user.
struct TestPeer(Option<u32>);

impl AdminListener for TestListener {
    type Stream = DuplexStream;

    async fn accept(&mut self) -> io::Result<(DuplexStream, Caller)> {
        match self.0.recv().await {
            Some((stream, TestPeer(uid))) => Ok((
                stream,
                Caller {
                    listener: "admin socket",
                    uid,
                    pid: None,
                },
            )),
            None => std::future::pending().await,
        }
    }
}

/// A server with a page that never ends, one that does, and one whose session does not end, until it is dropped.
struct Server {
    connections: mpsc::Sender<(DuplexStream, TestPeer)>,
    waiting: Arc<std::sync::atomic::AtomicUsize>,
    _served: tokio_util::task::AbortOnDropHandle<()>,
}

/// An answer after which the connection is used for something else, for ever.
async fn session() -> Response {
    let mut answer = Response::new(Body::empty());
    let work = Continued::new(std::future::pending());
    answer.extensions_mut().insert(work);
    answer
}

impl Server {
    fn start() -> Self {
        let (connections, accepted) = mpsc::channel(1);
        let waiting = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = Arc::clone(&waiting);
        let wait = move || {
            let counted = Arc::clone(&counted);
            async move {
                counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                std::future::pending::<()>().await;
            }
        };
        let router = Router::new()
            .route("/wait", get(wait))
            .route("/session", get(session))
            .route("/", get(async || "served"));
        let limits = Limits {
            max_connections: CONNECTIONS,
            header_timeout: Duration::from_secs(3600),
            idle_timeout: Duration::from_secs(3600),
            max_header_bytes: 8192,
        };
        let served = tokio::spawn(serve(TestListener(accepted), router, Hosts::Any, limits));
        Self {
            connections,
            waiting,
            _served: tokio_util::task::AbortOnDropHandle::new(served),
        }
    }

    fn waiting(&self) -> usize {
        self.waiting.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Requests a page as a user.
    async fn ask(&self, user: u32, path: &str) -> DuplexStream {
        let (mut near, far) = duplex(1 << 16);
        self.connections
            .send((far, TestPeer(Some(user))))
            .await
            .unwrap();
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        // A connection that was closed already takes no more.
        let _ = near.write_all(head.as_bytes()).await;
        near
    }

    /// Requests a page as a user, and keeps the connection when it is served.
    async fn keep(&self, user: u32) -> DuplexStream {
        let (mut near, far) = duplex(1 << 16);
        self.connections
            .send((far, TestPeer(Some(user))))
            .await
            .unwrap();
        near.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"served") {
            assert_ne!(near.read_buf(&mut answer).await.unwrap(), 0, "it is closed");
        }
        near
    }

    /// Returns the page that a user gets.
    async fn page(&self, user: u32) -> String {
        let mut connection = self.ask(user, "/").await;
        let mut text = String::new();
        // A connection that is closed at once is an empty answer.
        let _ = connection.read_to_string(&mut text).await;
        text
    }

    /// Many pages that do not end; returns the connections of those that are served.
    async fn occupy(&self, user: u32) -> Vec<DuplexStream> {
        let mut held = Vec::new();
        for _ in 0..MANY {
            let before = self.waiting();
            let mut connection = self.ask(user, "/wait").await;
            let mut byte = [0];
            let mut closed = std::pin::pin!(connection.read(&mut byte));
            // It is closed, or its page has begun.
            while self.waiting() == before && futures::poll!(&mut closed).is_pending() {
                tokio::task::yield_now().await;
            }
            if self.waiting() > before {
                held.push(connection);
            }
        }
        held
    }
}

#[tokio::test]
async fn users_that_hold_all_their_places_leave_some_to_root_and_to_each_other() {
    let server = Server::start();
    let own = geteuid().as_raw();
    let first = server.occupy(own + 1000).await;
    assert_eq!(first.len(), 7);
    assert!(
        server.page(own + 2000).await.ends_with("served"),
        "another user has places"
    );
    let second = server.occupy(own + 2000).await;
    assert_eq!(second.len(), 7);
    assert_eq!(
        server.page(own + 3000).await,
        "",
        "all places of users are taken"
    );
    for user in [0, own] {
        assert!(server.page(user).await.ends_with("served"), "user {user}");
    }
    drop(first);
    while !server.page(own + 3000).await.ends_with("served") {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn idle_connections_of_root_make_way_for_users() {
    let server = Server::start();
    let mut kept = Vec::new();
    for _ in 0..CONNECTIONS {
        kept.push(server.keep(0).await);
    }
    let user = geteuid().as_raw() + 1000;
    // A connection counts as idle a moment after its answer.
    let served = async {
        while !server.page(user).await.ends_with("served") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), served)
        .await
        .expect("idle ones make way");
}

#[tokio::test]
async fn sessions_take_no_places_from_pages() {
    let server = Server::start();
    let mut sessions = Vec::new();
    for _ in 0..=CONNECTIONS {
        let mut session = server.ask(0, "/session").await;
        let begun = session.read_u8();
        tokio::time::timeout(Duration::from_secs(30), begun)
            .await
            .expect("there is a place for each")
            .unwrap();
        sessions.push(session);
    }
    for user in [0, geteuid().as_raw() + 1000] {
        let page = tokio::time::timeout(Duration::from_secs(30), server.page(user)).await;
        assert!(page.unwrap().ends_with("served"), "user {user}");
    }
}

#[test]
fn places_are_divided_for_every_limit() {
    for (limit, users, user) in [
        (1, 1, 1),
        (2, 1, 1),
        (3, 2, 1),
        (8, 7, 4),
        (16, 14, 7),
        (256, 224, 112),
    ] {
        let table = ConnectionTable::new(limit);
        assert_eq!(
            (table.limit_of_users(), table.limit_of_user()),
            (users, user),
            "{limit}"
        );
    }
}
