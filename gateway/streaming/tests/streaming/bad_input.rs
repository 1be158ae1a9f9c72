//! Malformed frames: the connection ends, the process gets a hang-up, and the server continues to serve.

use futures::SinkExt;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use switchyard_streaming::Config;
use switchyard_streaming::client::{ClientEvent, Spdy, exec, websocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_tungstenite::tungstenite::Message;

use crate::support::{ALL, Happened, Running, STDOUT, serve, shell, soon};

/// Checks that the server still serves.
async fn works(server: &Running) {
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "echo alive").0)
        .unwrap();
    let ended = soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    assert_eq!(ended.stdout, b"alive\n");
}

/// Sends these bytes on a running session; returns the server's last status.
async fn send(server: &Running, bytes: &[u8]) -> Option<u32> {
    let (command, mut events) = shell(ALL, "exec sleep 1000");
    let url = server.sessions.exec(ALL, command).unwrap();
    let Spdy {
        mut sender,
        mut receiver,
    } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    for kind in ["error", "stdin", "stdout", "stderr"] {
        sender.open(&[("streamtype", kind)]).await.unwrap();
    }
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    sender.raw(bytes).await.unwrap();
    let mut status = None;
    while let Ok(Some(event)) = soon(receiver.event()).await {
        if let ClientEvent::GoAway { status: code } = event {
            status = Some(code);
        }
    }
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
    status
}

#[tokio::test]
async fn malformed_frames_end_the_connection_with_a_protocol_error() {
    let server = serve(Config::default()).await;
    let frames: [&[u8]; 9] = [
        b"GET / HTTP/1.1\r\nHost: there\r\n\r\n\x00\x00\x00\x00\x00\x00\x00\x00",
        &[0x80, 2, 0, 1, 0, 0, 0, 0],
        &[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff],
        &[0x80, 3, 0, 1, 0, 0, 0, 0],
        // A header block that does not begin a zlib stream.
        &[
            0x80, 3, 0, 1, 0, 0, 0, 14, 0, 0, 0, 11, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
        ],
        // Stream 2 is not a valid id for a client.
        &[0x80, 3, 0, 1, 0, 0, 0, 10, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0],
        &[0x80, 3, 0, 3, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1],
        // Window updates beyond the maximum.
        &[
            0x80, 3, 0, 9, 0, 0, 0, 8, 0, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff,
        ],
        &[0x80, 3, 0, 6, 0, 0, 0, 3, 0, 0, 0],
    ];
    for frame in &frames[1..] {
        assert_eq!(send(&server, frame).await, Some(1), "{frame:?}");
    }
    // Letters are parsed as a data frame of an unknown stream: its bytes are skipped, until zeros are parsed
    // as stream 0.
    let letters = [frames[0], &vec![0; 1 << 20][..]].concat();
    let _anything_but_a_hang = send_then_close(&server, &letters).await;
    works(&server).await;
}

/// Sends bytes and closes the connection.
async fn send_then_close(server: &Running, bytes: &[u8]) -> std::io::Result<()> {
    let (command, mut events) = shell(ALL, "exec sleep 1000");
    let url = server.sessions.exec(ALL, command).unwrap();
    let mut spdy = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    for kind in ["error", "stdin", "stdout", "stderr"] {
        spdy.sender.open(&[("streamtype", kind)]).await.unwrap();
    }
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    let sent = soon(spdy.sender.raw(bytes)).await;
    drop(spdy);
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
    sent
}

#[tokio::test]
async fn window_overflow_resets_only_its_stream() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .exec(ALL, shell(ALL, "read line; echo $line >&2").0)
        .unwrap();
    let Spdy {
        mut sender,
        mut receiver,
    } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    let mut streams = Vec::new();
    for kind in ["error", "stdin", "stdout", "stderr"] {
        streams.push(sender.open(&[("streamtype", kind)]).await.unwrap());
    }
    sender.window(streams[2], 0x7fff_ffff).await.unwrap();
    sender
        .data(streams[1], b"on it goes\n", false)
        .await
        .unwrap();
    let mut reset = None;
    let mut errors = Vec::new();
    while let Some(event) = soon(receiver.event()).await.unwrap() {
        match event {
            ClientEvent::Reset { stream, status } => reset = Some((stream, status)),
            ClientEvent::Data { stream, bytes, .. } if stream == streams[3] => {
                errors.extend_from_slice(&bytes)
            }
            _ => {}
        }
    }
    assert_eq!(reset, Some((streams[2], 7)));
    assert_eq!(errors, b"on it goes\n");
}

#[tokio::test]
async fn arbitrary_bytes_after_an_upgrade_do_not_hang() {
    let server = serve(Config::default()).await;
    let mut runner = TestRunner::deterministic();
    let bytes = proptest::collection::vec(proptest::prelude::any::<u8>(), 1..4000);
    for turn in 0..40 {
        let bytes = bytes.new_tree(&mut runner).unwrap().current();
        let (command, mut events) = shell(ALL, "cat");
        let url = server.sessions.exec(ALL, command).unwrap();
        if turn % 2 == 0 {
            let mut spdy = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
                .await
                .unwrap()
                .unwrap();
            let _sent = soon(spdy.sender.raw(&bytes)).await;
        } else {
            let mut socket = soon(websocket(&url, "v5.channel.k8s.io"))
                .await
                .unwrap()
                .unwrap();
            let _sent = soon(socket.get_mut().write_all(&bytes)).await;
        }
        // Opened or not, the session ends when the client disconnects.
        while soon(events.recv()).await.is_some() {}
    }
    works(&server).await;
}

#[tokio::test]
async fn arbitrary_frames_do_not_hang() {
    let server = serve(Config::default()).await;
    let mut runner = TestRunner::deterministic();
    let frames = proptest::collection::vec(
        (0..7_u8, 0..12_u32, proptest::prelude::any::<u32>()),
        1..100,
    );
    for _ in 0..40 {
        let (command, mut events) = shell(ALL, "cat");
        let url = server.sessions.exec(ALL, command).unwrap();
        let Spdy {
            mut sender,
            receiver,
        } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
            .await
            .unwrap()
            .unwrap();
        for kind in ["error", "stdin", "stdout", "stderr"] {
            sender.open(&[("streamtype", kind)]).await.unwrap();
        }
        for (kind, stream, number) in frames.new_tree(&mut runner).unwrap().current() {
            // A connection that was closed because of an earlier one accepts no more.
            let _sent = match kind {
                0 => soon(sender.open(&[("streamtype", "stdout")]))
                    .await
                    .map(drop),
                1 => {
                    soon(sender.data(stream, &number.to_be_bytes().repeat(1000), number % 9 == 0))
                        .await
                }
                2 => soon(sender.reset(stream)).await,
                3 => soon(sender.ping(number)).await,
                4 => soon(sender.window(stream, number)).await,
                5 => soon(sender.initial_window(number)).await,
                _ => soon(sender.data(stream, &[], number % 9 == 0)).await,
            };
        }
        drop((sender, receiver));
        while soon(events.recv()).await.is_some() {}
    }
    works(&server).await;
}

#[tokio::test]
async fn malformed_messages_close_the_websocket_with_a_reason() {
    let server = serve(Config::default()).await;
    // An unmasked message, an unknown opcode, a reserved bit.
    for frame in [
        &[0x82, 1, 0][..],
        &[0x83, 0x80, 1, 2, 3, 4],
        &[0xc2, 0x80, 1, 2, 3, 4],
    ] {
        let (command, mut events) = shell(ALL, "exec sleep 1000");
        let url = server.sessions.exec(ALL, command).unwrap();
        let mut socket = soon(websocket(&url, "v4.channel.k8s.io"))
            .await
            .unwrap()
            .unwrap();
        assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
        socket.get_mut().write_all(frame).await.unwrap();
        assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
        let mut rest = Vec::new();
        let _reset = soon(socket.get_mut().read_to_end(&mut rest)).await;
        let close = rest
            .windows(4)
            .find(|bytes| bytes[0] == 0x88)
            .expect("a close frame");
        assert_eq!(u16::from_be_bytes([close[2], close[3]]), 1002, "{frame:?}");
    }
    works(&server).await;
}

#[tokio::test]
async fn oversized_websocket_message_is_rejected() {
    let server = serve(Config::default()).await;
    let (command, mut events) = shell(ALL, "cat >/dev/null");
    let url = server.sessions.exec(ALL, command).unwrap();
    let mut socket = soon(websocket(&url, "v4.channel.k8s.io"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    let _refused = soon(socket.send(Message::Binary(vec![0; 2 << 20].into()))).await;
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
    works(&server).await;
}
