//! Sessions over WebSocket: channels of every version, the end of an input, the tunnel, and forwarded ports.

use std::sync::Arc;

use futures::{SinkExt, StreamExt};
use serde_json::Value;
use switchyard_streaming::client::{ClientEvent, Spdy, WebSocket, websocket};
use switchyard_streaming::{Config, Streams};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;
use url::Url;

use crate::port_forward::echo;
use crate::support::{ALL, Happened, Loopback, STDOUT, TTY, noise, serve, shell, soon};

async fn open(url: &Url, protocols: &str) -> WebSocket {
    soon(websocket(url, protocols)).await.unwrap().unwrap()
}

/// The content of each channel, until the server closes.
async fn rest(socket: &mut WebSocket) -> [Vec<u8>; 8] {
    let mut channels = <[Vec<u8>; 8]>::default();
    loop {
        match soon(socket.next()).await {
            Some(Ok(Message::Binary(bytes))) => {
                channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..])
            }
            Some(Ok(Message::Close(_))) | None => return channels,
            Some(Ok(_)) => {}
            Some(Err(error)) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn output_and_status_use_their_channels() {
    let server = serve(Config::default()).await;
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let url = server
            .sessions
            .exec(ALL, shell(ALL, "echo out; echo err >&2; exit 7").0)
            .unwrap();
        let mut socket = open(&url, protocol).await;
        let first = soon(socket.next()).await.unwrap().unwrap();
        assert_eq!(
            first,
            Message::Binary(vec![1].into()),
            "it says that the session is there"
        );
        let channels = rest(&mut socket).await;
        assert_eq!(
            (&channels[1][..], &channels[2][..]),
            (&b"out\n"[..], &b"err\n"[..])
        );
        let status: Value = serde_json::from_slice(&channels[3]).unwrap();
        assert_eq!(status["details"]["causes"][0]["message"], "7");
    }
}

#[tokio::test]
async fn failure_without_a_protocol_is_plain_text() {
    let server = serve(Config::default()).await;
    for protocol in ["", "channel.k8s.io"] {
        let url = server
            .sessions
            .exec(STDOUT, shell(STDOUT, "exit 7").0)
            .unwrap();
        let channels = rest(&mut open(&url, protocol).await).await;
        assert_eq!(
            channels[3],
            b"command terminated with non-zero exit code: 7"
        );
    }
}

#[tokio::test]
async fn version_5_closes_stdin() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .exec(ALL, shell(ALL, "wc -c; echo end").0)
        .unwrap();
    let mut socket = open(&url, "v5.channel.k8s.io").await;
    for piece in noise(200_000).chunks(32_768) {
        soon(socket.send(Message::Binary([&[0], piece].concat().into())))
            .await
            .unwrap();
    }
    soon(socket.send(Message::Binary(vec![255, 0].into())))
        .await
        .unwrap();
    assert_eq!(rest(&mut socket).await[1], b"200000\nend\n");
}

#[tokio::test]
async fn version_4_cannot_close_stdin() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .exec(
            ALL,
            shell(ALL, "read line; echo $line; read line || echo end").0,
        )
        .unwrap();
    let mut socket = open(&url, "v4.channel.k8s.io").await;
    for message in [&[255, 0][..], b"\0hello\n", &[255, 0], b"\0\n"] {
        soon(socket.send(Message::Binary(message.to_vec().into())))
            .await
            .unwrap();
    }
    assert_eq!(rest(&mut socket).await[1], b"hello\n");
}

#[tokio::test]
async fn websocket_bulk_data_is_unchanged_in_both_directions() {
    let server = serve(Config::default()).await;
    let url = server.sessions.exec(ALL, shell(ALL, "cat").0).unwrap();
    let (mut sink, mut stream) = open(&url, "v5.channel.k8s.io").await.split();
    let sent = noise(4 << 20);
    let send = async {
        for piece in sent.chunks(32_768) {
            sink.send(Message::Binary([&[0], piece].concat().into()))
                .await
                .unwrap();
        }
        sink.send(Message::Binary(vec![255, 0].into()))
            .await
            .unwrap();
    };
    let receive = async {
        let mut got = Vec::new();
        while let Some(Ok(message)) = stream.next().await {
            match message {
                Message::Binary(bytes) if bytes[0] == 1 => got.extend_from_slice(&bytes[1..]),
                Message::Close(_) => break,
                _ => {}
            }
        }
        got
    };
    let ((), got) = soon(async { tokio::join!(send, receive) }).await;
    assert!(got == sent);
}

#[tokio::test]
async fn resizes_and_pings_are_handled_and_close_hangs_up() {
    let server = serve(Config::default()).await;
    let (command, mut events) = shell(TTY, "exec sleep 1000");
    let url = server.sessions.exec(TTY, command).unwrap();
    let mut socket = open(&url, "v5.channel.k8s.io").await;
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    soon(socket.send(Message::Binary(
        b"\x04{\"Width\":80,\"Height\":24}".to_vec().into(),
    )))
    .await
    .unwrap();
    assert_eq!(soon(events.recv()).await, Some(Happened::Resized(80, 24)));
    soon(socket.send(Message::Ping(b"there?".to_vec().into())))
        .await
        .unwrap();
    while soon(socket.next()).await.unwrap().unwrap() != Message::Pong(b"there?".to_vec().into()) {}
    soon(socket.close(None)).await.unwrap();
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
}

#[tokio::test]
async fn messages_for_unknown_channels_are_ignored() {
    let server = serve(Config::default()).await;
    let streams = Streams {
        stdin: true,
        stdout: true,
        stderr: false,
        tty: false,
    };
    let url = server
        .sessions
        .exec(streams, shell(streams, "cat").0)
        .unwrap();
    let mut socket = open(&url, "v5.channel.k8s.io").await;
    for message in [
        &[][..],
        &[0],
        &[1, 2, 3],
        &[4, 5, 6],
        &[9, 9],
        &[255],
        &[255, 9],
        b"\0text",
        &[255, 0],
        &[255, 0],
    ] {
        soon(socket.send(Message::Binary(message.to_vec().into())))
            .await
            .unwrap();
    }
    assert_eq!(rest(&mut socket).await[1], b"text");
}

#[tokio::test]
async fn requested_ports_are_forwarded_in_messages() {
    let server = serve(Config::default()).await;
    let first = echo().await;
    let second = echo().await;
    let url = server
        .sessions
        .port_forward(vec![first, second], Arc::new(Loopback))
        .unwrap();
    let mut socket = open(&url, "v4.channel.k8s.io").await;
    for message in [&b"\0one"[..], b"\x02two"] {
        soon(socket.send(Message::Binary(message.to_vec().into())))
            .await
            .unwrap();
    }
    let mut channels = <[Vec<u8>; 4]>::default();
    while channels[0].len() < 5 || channels[2].len() < 5 {
        if let Message::Binary(bytes) = soon(socket.next()).await.unwrap().unwrap() {
            channels[usize::from(bytes[0])].extend_from_slice(&bytes[1..]);
        }
    }
    let one = first.to_le_bytes();
    let two = second.to_le_bytes();
    let expected = [
        [&one[..], b"one"].concat(),
        one.to_vec(),
        [&two[..], b"two"].concat(),
        two.to_vec(),
    ];
    assert_eq!(channels, expected);
}

#[tokio::test]
async fn messages_for_unrequested_ports_are_not_forwarded() {
    let server = serve(Config::default()).await;
    for ports in [Vec::new(), vec![80; 128]] {
        let url = server
            .sessions
            .port_forward(ports, Arc::new(Loopback))
            .unwrap();
        let refused = soon(websocket(&url, "v4.channel.k8s.io"))
            .await
            .unwrap()
            .unwrap_err();
        assert_eq!(refused.status, 400);
    }
}

#[tokio::test]
async fn websocket_tunnel_carries_spdy() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .port_forward(Vec::new(), Arc::new(Loopback))
        .unwrap();
    let socket = open(&url, "SPDY/3.1+portforward.k8s.io").await;
    // Bytes in, messages out, and back, as kubectl does it.
    let (near, far) = tokio::io::duplex(1 << 16);
    let (mut reader, mut writer) = tokio::io::split(far);
    let (mut sink, mut stream) = socket.split();
    tokio::spawn(async move {
        let mut buffer = vec![0; 10_000];
        while let Ok(length @ 1..) = reader.read(&mut buffer).await {
            sink.send(Message::Binary(buffer[..length].to_vec().into()))
                .await
                .unwrap();
        }
    });
    tokio::spawn(async move {
        while let Some(Ok(Message::Binary(bytes))) = stream.next().await {
            writer.write_all(&bytes).await.unwrap();
        }
    });
    let Spdy {
        mut sender,
        mut receiver,
    } = Spdy::begin(Box::new(near), bytes::BytesMut::new());
    let port = echo().await.to_string();
    for kind in ["error", "data"] {
        sender
            .open(&[("streamtype", kind), ("port", &*port), ("requestid", "0")])
            .await
            .unwrap();
    }
    let sent = noise(1 << 20);
    let send = async {
        for piece in sent.chunks(30_000) {
            sender.data(3, piece, false).await.unwrap();
        }
        sender.data(3, &[], true).await.unwrap();
    };
    let receive = async {
        let mut got = Vec::new();
        loop {
            if let ClientEvent::Data {
                stream: 3,
                bytes,
                end,
            } = receiver.event().await.unwrap().unwrap()
            {
                got.extend_from_slice(&bytes);
                if end {
                    return got;
                }
            }
        }
    };
    let ((), got) = soon(async { tokio::join!(send, receive) }).await;
    assert!(got == sent);
}
