//! Clients that ask for more than is served at a time: what is refused stops nothing else, and whatever a
//! session waits for, it ends with its client, and when it is idle.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use async_trait::async_trait;
use switchyard_streaming::client::{ClientEvent, Spdy};
use switchyard_streaming::{Config, Connection, Dial, Input, Output, Refusal};
use tokio_util::sync::CancellationToken;

use crate::flow::{Endless, Silent, open, settled};
use crate::support::{Happened, Running, STDOUT, given, serve, soon};

/// Number of forwards that fail at the same moment.
const FAILING: usize = 300;

/// Number of streams that are opened then and belong to no forward; they are refused.
const INVALID: usize = 32;

/// The most forwards of a client.
const MOST: usize = 512;

/// Ports at which nobody listens, which is known as soon as the token is cancelled.
struct Closed(CancellationToken);

#[async_trait]
impl Dial for Closed {
    async fn dial(&self, _: u16) -> Result<Connection, Refusal> {
        self.0.cancelled().await;
        Err(Refusal::Failed("nobody listens".to_owned()))
    }
}

/// Ports that send without end; counts the bytes.
struct Talking(Arc<AtomicUsize>);

#[async_trait]
impl Dial for Talking {
    async fn dial(&self, _: u16) -> Result<Connection, Refusal> {
        let input = Input::new(tokio::io::sink());
        Ok(Connection {
            input,
            output: Output::new(Endless(Arc::clone(&self.0))),
        })
    }
}

/// A session of a client that forwards ports.
struct Forwarding {
    server: Running,
    spdy: Spdy,
    /// The streams that the server is to end or to reset.
    streams: HashSet<u32>,
}

impl Forwarding {
    async fn open(config: Config, dial: impl Dial + 'static) -> Self {
        let server = serve(config).await;
        let url = server
            .sessions
            .port_forward(Vec::new(), Arc::new(dial))
            .unwrap();
        let spdy = soon(Spdy::open(&url, &["portforward.k8s.io"]))
            .await
            .unwrap()
            .unwrap();
        Self {
            server,
            spdy,
            streams: HashSet::new(),
        }
    }

    /// As [`Forwarding::open`]; then [`FAILING`] forwards fail while streams arrive that are refused.
    async fn failing(config: Config) -> Self {
        let closed = CancellationToken::new();
        let mut forwarding = Self::open(config, Closed(closed.clone())).await;
        for request in 0..FAILING {
            forwarding.stream("error", request).await;
            forwarding.stream("data", request).await;
        }
        for _ in 0..2 * FAILING {
            let event = soon(forwarding.spdy.receiver.event()).await.unwrap();
            assert!(
                matches!(event, Some(ClientEvent::Replied { .. })),
                "{event:?}"
            );
        }
        for request in 0..INVALID {
            forwarding.stream("neither", request).await;
        }
        closed.cancel();
        forwarding
    }

    async fn stream(&mut self, kind: &str, request: usize) {
        let headers = [
            ("streamtype", kind),
            ("port", "9999"),
            ("requestid", &*request.to_string()),
        ];
        self.streams
            .insert(self.spdy.sender.open(&headers).await.unwrap());
    }

    /// Reads until all streams have ended.
    async fn read(&mut self) {
        while !self.streams.is_empty() {
            let event = soon(self.spdy.receiver.event())
                .await
                .unwrap()
                .expect("the connection stays");
            if let ClientEvent::Data {
                stream, end: true, ..
            }
            | ClientEvent::Reset { stream, .. } = event
            {
                self.streams.remove(&stream);
            }
        }
    }

    /// The server answers, also after all that was asked for.
    async fn answers(&mut self) {
        self.spdy.sender.ping(1).await.unwrap();
        while soon(self.spdy.receiver.event())
            .await
            .unwrap()
            .expect("the connection stays")
            != (ClientEvent::Ping { id: 1 })
        {}
    }
}

/// Waits until no session is open.
async fn ended(server: &Running) {
    soon(async {
        while server.sessions.open().iter().any(|(_, open)| *open > 0) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn streams_refused_while_forwards_fail_do_not_stop_them() {
    let mut forwarding = Forwarding::failing(Config::default()).await;
    forwarding.read().await;
    forwarding.answers().await;
    drop(forwarding.spdy);
    ended(&forwarding.server).await;
}

#[tokio::test]
async fn session_with_failing_forwards_ends_with_its_client() {
    for half in [true, false] {
        let mut forwarding = Forwarding::failing(Config::default()).await;
        loop {
            let event = soon(forwarding.spdy.receiver.event())
                .await
                .unwrap()
                .expect("the connection stays");
            if matches!(event, ClientEvent::Data { .. }) {
                break;
            }
        }
        let mut spdy = forwarding.spdy;
        if half {
            soon(spdy.sender.shutdown()).await.unwrap();
        } else {
            // What the client has not read makes this a reset.
            drop(spdy);
        }
        ended(&forwarding.server).await;
    }
}

#[tokio::test]
async fn idle_session_with_failing_forwards_ends() {
    let config = Config {
        idle_timeout: Duration::from_millis(500),
        ..Config::default()
    };
    let forwarding = Forwarding::failing(config).await;
    ended(&forwarding.server).await;
}

#[tokio::test]
async fn more_streams_at_once_than_are_allowed_do_not_stop_the_session() {
    let closed = CancellationToken::new();
    closed.cancel();
    // Those whose other stream was beyond the limit wait for it.
    let config = Config {
        stream_creation_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let mut forwarding = Forwarding::open(config, Closed(closed)).await;
    for request in 0..2 * MOST {
        forwarding.stream("error", request).await;
        forwarding.stream("data", request).await;
    }
    forwarding.read().await;
    forwarding.answers().await;
    drop(forwarding.spdy);
    ended(&forwarding.server).await;
}

#[tokio::test]
async fn idle_session_with_unread_refusals_ends() {
    let config = Config {
        idle_timeout: Duration::from_millis(500),
        ..Config::default()
    };
    let taken = Arc::new(AtomicUsize::new(0));
    let mut forwarding = Forwarding::open(config, Talking(Arc::clone(&taken))).await;
    forwarding.stream("error", 0).await;
    forwarding.stream("data", 0).await;
    settled(&taken).await;
    // More than the server queues.
    for request in 0..1000 {
        forwarding.stream("neither", request).await;
    }
    ended(&forwarding.server).await;
}

#[tokio::test]
async fn refusal_does_not_wait_for_the_client_window() {
    let mut forwarding = Forwarding::open(Config::default(), Silent(Arc::default())).await;
    forwarding.spdy.sender.initial_window(0).await.unwrap();
    for request in 0..MOST {
        forwarding.stream("error", request).await;
        // The forward counts until its time is over, its stream does not.
        for stream in forwarding.streams.drain() {
            forwarding.spdy.sender.reset(stream).await.unwrap();
        }
    }
    for request in MOST..MOST + 100 {
        forwarding.stream("error", request).await;
    }
    forwarding.read().await;
    forwarding.answers().await;
}

#[tokio::test]
async fn hang_up_is_noticed_while_no_answer_can_be_written() {
    let server = serve(Config::default()).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let (command, _end, mut events) = given(None, Some(Output::new(Endless(Arc::clone(&taken)))));
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let (mut spdy, _) = open(&url, &["error", "stdout"]).await;
    settled(&taken).await;
    // More than the server queues.
    for _ in 0..1000 {
        spdy.sender.ping(1).await.unwrap();
    }
    // Only the sending direction is closed, so that the server's writes do not fail.
    soon(spdy.sender.shutdown()).await.unwrap();
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
}
