//! Back-pressure: windows are respected in both directions, and a client that does not read costs no memory
//! and does not affect others.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::{SinkExt, StreamExt};
use switchyard_streaming::client::{ClientEvent, Spdy, UpgradedStream, exec, websocket_over};
use switchyard_streaming::{Config, Connection, Dial, Input, Output, Refusal};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpSocket;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{ALL, Happened, Loopback, STDOUT, given, noise, serve, shell, soon};

/// More than all buffers on the way can hold: the sockets', the server's, and those that the client's windows
/// allow.
const FAR_TOO_MUCH: usize = 64 << 20;

/// An endless output that counts how many bytes were read from it.
pub(crate) struct Endless(pub(crate) Arc<AtomicUsize>);

impl AsyncRead for Endless {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = buffer.remaining();
        buffer.initialize_unfilled().fill(7);
        buffer.advance(length);
        self.0.fetch_add(length, Ordering::Relaxed);
        Poll::Ready(Ok(()))
    }
}

/// An input that accepts nothing.
struct Full;

/// Ports that never answer; counts the dials.
pub(crate) struct Silent(pub(crate) Arc<AtomicUsize>);

#[async_trait]
impl Dial for Silent {
    async fn dial(&self, _: u16) -> Result<Connection, Refusal> {
        self.0.fetch_add(1, Ordering::Relaxed);
        std::future::pending().await
    }
}

impl AsyncWrite for Full {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

/// Waits until a counter no longer changes.
pub(crate) async fn settled(count: &AtomicUsize) -> usize {
    let mut last = usize::MAX;
    soon(async {
        loop {
            let now = count.load(Ordering::Relaxed);
            if now == last {
                return now;
            }
            last = now;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
}

pub(crate) async fn open(url: &url::Url, kinds: &[&str]) -> (Spdy, Vec<u32>) {
    let mut spdy = soon(Spdy::open(url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    let mut streams = Vec::new();
    for kind in kinds {
        streams.push(spdy.sender.open(&[("streamtype", kind)]).await.unwrap());
    }
    (spdy, streams)
}

#[tokio::test]
async fn slow_client_backpressures_the_process_with_bounded_memory() {
    let server = serve(Config::default()).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let (command, _end, mut events) = given(None, Some(Output::new(Endless(Arc::clone(&taken)))));
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let (spdy, _) = open(&url, &["error", "stdout"]).await;
    let taken = settled(&taken).await;
    assert!(
        (1..FAR_TOO_MUCH).contains(&taken),
        "{taken} bytes were taken"
    );
    drop(spdy);
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
}

#[tokio::test]
async fn slow_process_backpressures_the_client_with_bounded_memory() {
    let server = serve(Config::default()).await;
    let (command, _end, mut events) = given(Some(Input::new(Full)), None);
    let url = server.sessions.exec(ALL, command).unwrap();
    let (mut spdy, streams) = open(&url, &["error", "stdin", "stdout", "stderr"]).await;
    let sent = AtomicUsize::new(0);
    let piece = noise(1 << 16);
    let flood = async {
        loop {
            spdy.sender.data(streams[1], &piece, false).await.unwrap();
            sent.fetch_add(piece.len(), Ordering::Relaxed);
        }
    };
    let sent = tokio::select! { sent = settled(&sent) => sent, () = flood => unreachable!() };
    assert!(
        (1 << 20..FAR_TOO_MUCH).contains(&sent),
        "{sent} bytes were sent"
    );
    // The connection is not read any more, but its end is noticed.
    drop(spdy);
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
}

#[tokio::test]
async fn ping_flood_of_a_non_reading_client_is_backpressured() {
    let server = serve(Config::default()).await;
    let (command, _end, mut events) = given(None, None);
    let url = server.sessions.exec(ALL, command).unwrap();
    let (mut spdy, _) = open(&url, &["error", "stdin", "stdout", "stderr"]).await;
    let sent = AtomicUsize::new(0);
    let ping = [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1].repeat(1000);
    let flood = async {
        loop {
            spdy.sender.raw(&ping).await.unwrap();
            sent.fetch_add(ping.len(), Ordering::Relaxed);
        }
    };
    let sent = tokio::select! { sent = settled(&sent) => sent, () = flood => unreachable!() };
    assert!(sent < FAR_TOO_MUCH, "{sent} bytes were sent");
    drop(spdy);
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
}

#[tokio::test]
async fn data_sent_stays_within_the_client_window() {
    let server = serve(Config::default()).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let (command, _end, _told) = given(None, Some(Output::new(Endless(taken))));
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let mut spdy = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    spdy.sender.initial_window(10_000).await.unwrap();
    spdy.sender.open(&[("streamtype", "error")]).await.unwrap();
    let stdout = spdy.sender.open(&[("streamtype", "stdout")]).await.unwrap();
    let mut got = 0;
    for room in [10_000, 10_001, 200_000] {
        while got < room {
            match soon(spdy.receiver.event()).await.unwrap().unwrap() {
                ClientEvent::Data { bytes, .. } => got += bytes.len(),
                other => assert!(matches!(other, ClientEvent::Replied { .. }), "{other:?}"),
            }
        }
        assert_eq!(got, room);
        let more = timeout(Duration::from_millis(200), spdy.receiver.event()).await;
        assert!(more.is_err(), "{more:?}");
        let next = if room == 10_000 { 1 } else { 189_999 };
        spdy.sender.window(stdout, next).await.unwrap();
    }
}

#[tokio::test]
async fn client_window_is_replenished() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(ALL, "wc -c");
    let url = server.sessions.exec(ALL, command).unwrap();
    let (mut spdy, streams) = open(&url, &["error", "stdin", "stdout", "stderr"]).await;
    let mut stream = 65_536_u32;
    let mut connection = 65_536_u32;
    let mut left = 3_000_000_u32;
    let mut output = Vec::new();
    while left > 0 {
        let piece = left.min(stream).min(connection).min(32_768);
        if piece > 0 {
            spdy.sender
                .data(streams[1], &vec![7; piece as usize], piece == left)
                .await
                .unwrap();
            (stream, connection, left) = (stream - piece, connection - piece, left - piece);
            continue;
        }
        match soon(spdy.receiver.event()).await.unwrap().unwrap() {
            ClientEvent::Window { stream: 0, delta } => connection += delta,
            ClientEvent::Window { delta, .. } => stream += delta,
            other => assert!(matches!(other, ClientEvent::Replied { .. }), "{other:?}"),
        }
    }
    while let Some(event) = soon(spdy.receiver.event()).await.unwrap() {
        match event {
            ClientEvent::Data { stream, bytes, .. } if stream == streams[2] => {
                output.extend_from_slice(&bytes)
            }
            _ => {}
        }
    }
    assert_eq!(String::from_utf8(output).unwrap(), "3000000\n");
}

#[tokio::test]
async fn unread_forwarded_connection_does_not_block_others() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .port_forward(Vec::new(), Arc::new(Loopback))
        .unwrap();
    let stuck = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let echo = crate::port_forward::echo().await;
    let mut spdy = soon(Spdy::open(&url, &["portforward.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    let mut streams = Vec::new();
    for (request, port) in [stuck.local_addr().unwrap().port(), echo]
        .into_iter()
        .enumerate()
    {
        let port = port.to_string();
        let request = request.to_string();
        for kind in ["error", "data"] {
            let headers = [
                ("streamtype", kind),
                ("port", &*port),
                ("requestid", &*request),
            ];
            streams.push(spdy.sender.open(&headers).await.unwrap());
        }
    }
    // The client fills the first stream's window as often as it is increased, and then stops.
    let mut window = 65_536_u32;
    loop {
        while window > 0 {
            let piece = window.min(32_768);
            spdy.sender
                .data(streams[1], &vec![7; piece as usize], false)
                .await
                .unwrap();
            window -= piece;
        }
        match timeout(Duration::from_millis(500), spdy.receiver.event()).await {
            Ok(Ok(Some(ClientEvent::Window { stream, delta }))) if stream == streams[1] => {
                window += delta
            }
            Ok(event) => assert!(event.unwrap().is_some()),
            Err(_) => break,
        }
    }
    spdy.sender
        .data(streams[3], b"still here", true)
        .await
        .unwrap();
    loop {
        match soon(spdy.receiver.event()).await.unwrap().unwrap() {
            ClientEvent::Data { stream, bytes, .. } if stream == streams[3] => {
                assert_eq!(bytes, "still here");
                break;
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn rapid_reset_client_stays_within_the_connection_limit() {
    /// Each connection takes two of the 1024 streams that a client may have.
    const MOST: usize = 512;
    let server = serve(Config::default()).await;
    let dialled = Arc::new(AtomicUsize::new(0));
    let url = server
        .sessions
        .port_forward(Vec::new(), Arc::new(Silent(Arc::clone(&dialled))))
        .unwrap();
    let Spdy {
        mut sender,
        mut receiver,
    } = soon(Spdy::open(&url, &["portforward.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    // Half of the pairs are complete, the others wait for their data stream. The last one is not reset, to
    // read its error.
    let open = async {
        for request in 0..=MOST {
            let name = request.to_string();
            let kinds = if request % 2 == 0 && request < MOST {
                &["error", "data"][..]
            } else {
                &["error"]
            };
            for kind in kinds {
                let headers = [("streamtype", *kind), ("port", "80"), ("requestid", &*name)];
                let stream = sender.open(&headers).await.unwrap();
                if request < MOST {
                    sender.reset(stream).await.unwrap();
                }
            }
        }
    };
    let listen = async {
        let mut received = Vec::new();
        loop {
            if let ClientEvent::Data { bytes, end, .. } = receiver.event().await.unwrap().unwrap() {
                received.extend_from_slice(&bytes);
                if end {
                    return String::from_utf8(received).unwrap();
                }
            }
        }
    };
    let ((), received) = soon(async { tokio::join!(open, listen) }).await;
    assert_eq!(received, "512 connections are forwarded already");
    assert_eq!(dialled.load(Ordering::Relaxed), MOST / 2);
}

#[tokio::test]
async fn session_ends_with_a_client_of_zero_window() {
    let server = serve(Config {
        max_connections: 1,
        ..Config::default()
    })
    .await;
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "exit 3").0)
        .unwrap();
    let mut spdy = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    spdy.sender.initial_window(0).await.unwrap();
    spdy.sender.open(&[("streamtype", "error")]).await.unwrap();
    let stdout = spdy.sender.open(&[("streamtype", "stdout")]).await.unwrap();
    loop {
        match soon(spdy.receiver.event()).await.unwrap().unwrap() {
            ClientEvent::Data {
                stream, end: true, ..
            } if stream == stdout => break,
            other => assert!(matches!(other, ClientEvent::Replied { .. }), "{other:?}"),
        }
    }
    // Only the exit code is left to be sent, and there is no window for it.
    drop(spdy);
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "echo next").0)
        .unwrap();
    let next = soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    assert_eq!(next.stdout, b"next\n");
}

/// A connection to a client that has room for little.
async fn narrow(url: &url::Url) -> Box<dyn UpgradedStream> {
    let address = url.socket_addrs(|| None).unwrap()[0];
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(1 << 18).unwrap();
    Box::new(socket.connect(address).await.unwrap())
}

/// Takes as long as a client on a slow line for these bytes: it gets about 330 kB in a second.
async fn take_slowly(bytes: usize) -> usize {
    tokio::time::sleep(Duration::from_micros(3 * bytes as u64)).await;
    bytes
}

/// The output is less than the sockets hold and far more than such a client takes until the server would close at once: what
/// the client sends then resets the connection.
const SLOWLY_TAKEN: usize = 4_000_000;

#[tokio::test]
async fn slow_client_of_spdy_that_goes_on_sending_gets_the_end_of_the_output() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(STDOUT, &format!("head -c {SLOWLY_TAKEN} /dev/zero"));
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let stream = narrow(&url).await;
    let mut spdy = soon(Spdy::over(stream, &url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    spdy.sender.initial_window(1 << 30).await.unwrap();
    spdy.sender.window(0, 1 << 30).await.unwrap();
    spdy.sender.open(&[("streamtype", "error")]).await.unwrap();
    let stdout = spdy.sender.open(&[("streamtype", "stdout")]).await.unwrap();
    let mut got = 0;
    while got < SLOWLY_TAKEN {
        match soon(spdy.receiver.event()).await.unwrap() {
            Some(ClientEvent::Data { stream, bytes, .. }) if stream == stdout => {
                got += take_slowly(bytes.len()).await;
                // As a client that updates a window does.
                let _closed = spdy.sender.ping(1).await;
            }
            Some(_) => {}
            None => break,
        }
    }
    assert_eq!(got, SLOWLY_TAKEN);
}

#[tokio::test]
async fn slow_client_of_messages_that_goes_on_sending_gets_the_end_of_the_output() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(STDOUT, &format!("head -c {SLOWLY_TAKEN} /dev/zero"));
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let stream = narrow(&url).await;
    let mut socket = soon(websocket_over(stream, &url, "v4.channel.k8s.io"))
        .await
        .unwrap()
        .unwrap();
    let mut got = 0;
    while got < SLOWLY_TAKEN {
        match soon(socket.next()).await {
            Some(Ok(Message::Binary(message))) if message[0] == 1 => {
                got += take_slowly(message.len() - 1).await;
                let _closed = socket.send(Message::Ping(Vec::<u8>::new().into())).await;
            }
            Some(Ok(Message::Close(_))) | None => break,
            Some(Ok(_)) => {}
            Some(Err(error)) => panic!("{error} after {got} bytes"),
        }
    }
    assert_eq!(got, SLOWLY_TAKEN);
}
