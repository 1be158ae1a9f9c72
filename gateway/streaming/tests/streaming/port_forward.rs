//! Port-forward over SPDY: pairs of streams, several ports at once, half-closes, and refusals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use switchyard_streaming::client::{ClientEvent, Spdy};
use switchyard_streaming::{Config, Sessions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Loopback, noise, serve, soon};

/// A port whose connections are handled by `answer`.
pub(crate) async fn port<F>(answer: impl Fn(TcpStream) -> F + Send + 'static) -> u16
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(answer(socket));
        }
    });
    port
}

/// A port that echoes what it receives, and closes when the client does.
pub(crate) async fn echo() -> u16 {
    port(|mut socket| async move {
        let (mut reader, mut writer) = socket.split();
        let _copied = tokio::io::copy(&mut reader, &mut writer).await;
    })
    .await
}

/// A port that reports how many bytes it has received, once the client has closed.
pub(crate) async fn count() -> u16 {
    port(|mut socket| async move {
        let mut bytes = Vec::new();
        socket.read_to_end(&mut bytes).await.unwrap();
        socket
            .write_all(bytes.len().to_string().as_bytes())
            .await
            .unwrap();
    })
    .await
}

/// A port without a listener.
async fn closed() -> u16 {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

async fn open(sessions: &Sessions) -> Spdy {
    let url = sessions
        .port_forward(Vec::new(), Arc::new(Loopback))
        .unwrap();
    soon(Spdy::open(&url, &["portforward.k8s.io"]))
        .await
        .unwrap()
        .unwrap()
}

/// Opens the streams of one connection: error and data.
async fn pair(spdy: &mut Spdy, port: u16, request: u32) -> (u32, u32) {
    let port = port.to_string();
    let request = request.to_string();
    let headers = |kind| {
        [
            ("streamtype", kind),
            ("port", &*port),
            ("requestid", &*request),
        ]
    };
    let error = spdy.sender.open(&headers("error")).await.unwrap();
    spdy.sender.data(error, &[], true).await.unwrap();
    (error, spdy.sender.open(&headers("data")).await.unwrap())
}

/// Reads until all these streams were ended or reset; returns the data of each.
async fn read(spdy: &mut Spdy, streams: &[u32]) -> HashMap<u32, Vec<u8>> {
    let mut open = streams.to_vec();
    let mut got = HashMap::<u32, Vec<u8>>::new();
    while !open.is_empty() {
        match soon(spdy.receiver.event())
            .await
            .unwrap()
            .expect("the connection stays")
        {
            ClientEvent::Data { stream, bytes, end } => {
                got.entry(stream).or_default().extend_from_slice(&bytes);
                open.retain(|other| *other != stream || !end);
            }
            ClientEvent::Reset { stream, .. } => open.retain(|other| *other != stream),
            ClientEvent::Replied { .. } | ClientEvent::Window { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    got
}

#[tokio::test]
async fn several_forwarded_ports_share_one_connection() {
    let server = serve(Config::default()).await;
    let mut spdy = open(&server.sessions).await;
    let echo = echo().await;
    let count = count().await;
    let mut streams = Vec::new();
    for request in 0..20 {
        let port = if request % 2 == 0 { echo } else { count };
        let (error, data) = pair(&mut spdy, port, request).await;
        streams.push((error, data, port, noise(1000 * request as usize + 1)));
    }
    for (_, data, _, bytes) in &streams {
        spdy.sender.data(*data, bytes, true).await.unwrap();
    }
    let all: Vec<u32> = streams
        .iter()
        .flat_map(|(error, data, ..)| [*error, *data])
        .collect();
    let got = read(&mut spdy, &all).await;
    for (error, data, port, bytes) in streams {
        assert!(got[&error].is_empty());
        let expected = if port == echo {
            bytes
        } else {
            bytes.len().to_string().into_bytes()
        };
        assert!(
            got[&data] == expected,
            "{} bytes of {}",
            got[&data].len(),
            expected.len()
        );
    }
}

#[tokio::test]
async fn bulk_forwarded_data_is_unchanged_in_both_directions() {
    let server = serve(Config::default()).await;
    let Spdy { sender, receiver } = open(&server.sessions).await;
    let mut spdy = Spdy { sender, receiver };
    let (error, data) = pair(&mut spdy, echo().await, 0).await;
    let bytes = noise(16 << 20);
    let Spdy {
        mut sender,
        mut receiver,
    } = spdy;
    let send = async {
        for piece in bytes.chunks(100_000) {
            sender.data(data, piece, false).await.unwrap();
        }
        sender.data(data, &[], true).await.unwrap();
    };
    let receive = async {
        let mut got = Vec::new();
        let mut open = 2;
        while open > 0 {
            if let ClientEvent::Data { stream, bytes, end } =
                receiver.event().await.unwrap().unwrap()
            {
                assert!(stream == data || (stream == error && bytes.is_empty()));
                got.extend_from_slice(&bytes);
                open -= i32::from(end);
            }
        }
        got
    };
    let ((), got) = soon(async { tokio::join!(send, receive) }).await;
    assert!(got == bytes);
}

#[tokio::test]
async fn half_closed_port_still_receives_data() {
    let server = serve(Config::default()).await;
    let (got, mut events) = tokio::sync::mpsc::unbounded_channel();
    let first = port(move |mut socket| {
        let got = got.clone();
        async move {
            socket.write_all(b"bye").await.unwrap();
            socket.shutdown().await.unwrap();
            let mut bytes = Vec::new();
            socket.read_to_end(&mut bytes).await.unwrap();
            got.send(bytes).unwrap();
        }
    })
    .await;
    let mut spdy = open(&server.sessions).await;
    let (error, data) = pair(&mut spdy, first, 0).await;
    let ended = read(&mut spdy, &[error, data]).await;
    assert_eq!(ended[&data], b"bye");
    spdy.sender
        .data(data, b"one more thing", true)
        .await
        .unwrap();
    assert_eq!(soon(events.recv()).await.unwrap(), b"one more thing");
}

#[tokio::test]
async fn unreachable_port_is_reported_and_others_continue() {
    let server = serve(Config::default()).await;
    let mut spdy = open(&server.sessions).await;
    let closed = closed().await;
    let (error, data) = pair(&mut spdy, closed, 0).await;
    let got = read(&mut spdy, &[error, data]).await;
    let text = String::from_utf8(got[&error].clone()).unwrap();
    assert!(
        text.starts_with(&format!("cannot forward port {closed}: ")),
        "{text}"
    );
    let (error, data) = pair(&mut spdy, echo().await, 1).await;
    spdy.sender.data(data, b"hello", true).await.unwrap();
    assert_eq!(read(&mut spdy, &[error, data]).await[&data], b"hello");
}

#[tokio::test]
async fn stream_reset_closes_its_connection() {
    let server = serve(Config::default()).await;
    let (ended, mut events) = tokio::sync::mpsc::unbounded_channel();
    let waiting = port(move |mut socket| {
        let ended = ended.clone();
        async move {
            let _reset = socket.read_to_end(&mut Vec::new()).await;
            ended.send(()).unwrap();
        }
    })
    .await;
    let mut spdy = open(&server.sessions).await;
    let (error, data) = pair(&mut spdy, waiting, 0).await;
    spdy.sender.data(data, b"hello", false).await.unwrap();
    spdy.sender.reset(data).await.unwrap();
    soon(events.recv()).await.unwrap();
    read(&mut spdy, &[error]).await;
}

#[tokio::test]
async fn streams_without_request_id_are_paired_by_order() {
    let server = serve(Config::default()).await;
    let mut spdy = open(&server.sessions).await;
    let port = echo().await.to_string();
    for text in ["first", "second"] {
        let error = spdy
            .sender
            .open(&[("streamtype", "error"), ("port", &port)])
            .await
            .unwrap();
        spdy.sender.data(error, &[], true).await.unwrap();
        let data = spdy
            .sender
            .open(&[("streamtype", "data"), ("port", &port)])
            .await
            .unwrap();
        spdy.sender.data(data, text.as_bytes(), true).await.unwrap();
        assert_eq!(
            read(&mut spdy, &[error, data]).await[&data],
            text.as_bytes()
        );
    }
}

#[tokio::test]
async fn invalid_streams_are_reset() {
    let server = serve(Config::default()).await;
    let mut spdy = open(&server.sessions).await;
    let long = "1".repeat(65);
    let bad: [&[(&str, &str)]; 7] = [
        &[],
        &[("streamtype", "data")],
        &[("streamtype", "data"), ("port", "0"), ("requestid", "1")],
        &[
            ("streamtype", "data"),
            ("port", "65536"),
            ("requestid", "1"),
        ],
        &[("streamtype", "data"), ("port", "http"), ("requestid", "1")],
        &[("streamtype", "stdin"), ("port", "80"), ("requestid", "1")],
        &[("streamtype", "data"), ("port", "80"), ("requestid", &long)],
    ];
    for headers in bad {
        let stream = spdy.sender.open(headers).await.unwrap();
        assert_eq!(
            soon(spdy.receiver.event()).await.unwrap(),
            Some(ClientEvent::Replied { stream })
        );
        let reset = soon(spdy.receiver.event()).await.unwrap();
        assert!(
            matches!(reset, Some(ClientEvent::Reset { stream: other, .. }) if other == stream),
            "{reset:?}"
        );
    }
    let headers = [("streamtype", "data"), ("port", "80"), ("requestid", "1")];
    spdy.sender.open(&headers).await.unwrap();
    let again = spdy.sender.open(&headers).await.unwrap();
    read(&mut spdy, &[again]).await;
}

#[tokio::test]
async fn incomplete_stream_pair_is_reset() {
    let config = Config {
        stream_creation_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let server = serve(config).await;
    let mut spdy = open(&server.sessions).await;
    let headers = |kind| [("streamtype", kind), ("port", "80"), ("requestid", kind)];
    let error = spdy.sender.open(&headers("error")).await.unwrap();
    let data = spdy.sender.open(&headers("data")).await.unwrap();
    let got = read(&mut spdy, &[error, data]).await;
    assert_eq!(got[&error], b"the data stream did not come in time");
}
