//! Exec and attach over SPDY: output, input and its end, exit status in every version, sizes, and clients
//! that disconnect.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};
use switchyard_streaming::client::{ClientEvent, Spdy, exec};
use switchyard_streaming::{Config, Control, Outcome, Output, Process, Refusal, Size, Streams};
use tokio::io::{AsyncWriteExt, duplex};
use tokio::net::unix::pipe;

use crate::support::{ALL, Given, Happened, STDOUT, TTY, given, noise, serve, shell, soon};

/// A process that has exited, and whose output nobody closes.
struct Unclosed;

#[async_trait]
impl Control for Unclosed {
    async fn resize(&self, _: Size) -> Result<(), Refusal> {
        Ok(())
    }

    async fn wait(&self) -> Outcome {
        Outcome::Exited(7)
    }

    async fn cut_outputs(&self) {}

    async fn hang_up(&self) {}
}

#[tokio::test]
async fn output_streams_are_separate_and_status_comes_last() {
    let server = serve(Config::default()).await;
    for protocol in ["v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let (command, _told) = shell(ALL, "echo out; echo err >&2; exit 42");
        let url = server.sessions.exec(ALL, command).unwrap();
        let ended = soon(exec(&url, protocol, ALL, b"")).await.unwrap();
        assert_eq!(
            (&ended.stdout[..], &ended.stderr[..]),
            (&b"out\n"[..], &b"err\n"[..])
        );
        let status: Value = serde_json::from_str(&ended.status).unwrap();
        assert_eq!(status["reason"], "NonZeroExitCode");
        assert_eq!(
            status["details"]["causes"],
            json!([{"reason": "ExitCode", "message": "42"}])
        );
        assert_eq!(ended.order.len(), 4, "{:?}", ended.order);
        assert_eq!(ended.order[3], "error");
    }
}

#[tokio::test]
async fn success_sends_a_status() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(STDOUT, "true");
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let ended = soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    let status: Value = serde_json::from_str(&ended.status).unwrap();
    assert_eq!(status, json!({"metadata": {}, "status": "Success"}));
}

#[tokio::test]
async fn old_protocol_versions_send_failures_as_text_and_no_success() {
    let server = serve(Config::default()).await;
    for protocol in ["channel.k8s.io", "v2.channel.k8s.io", "v3.channel.k8s.io"] {
        for (script, expected) in [
            ("exit 3", "command terminated with non-zero exit code: 3"),
            ("echo hello", ""),
        ] {
            let (command, _told) = shell(ALL, script);
            let url = server.sessions.exec(ALL, command).unwrap();
            let ended = soon(exec(&url, protocol, ALL, b"")).await.unwrap();
            assert_eq!(ended.status, expected, "{protocol}");
        }
    }
}

#[tokio::test]
async fn version_2_tty_has_no_resize_stream() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(TTY, "cat");
    let url = server.sessions.exec(TTY, command).unwrap();
    let ended = soon(exec(&url, "v2.channel.k8s.io", TTY, b"typed"))
        .await
        .unwrap();
    assert_eq!(ended.stdout, b"typed");
}

#[tokio::test]
async fn stdin_eof_reaches_the_process_and_its_output_returns() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(ALL, "wc -c; echo done");
    let url = server.sessions.attach(ALL, command).unwrap();
    let ended = soon(exec(&url, "v4.channel.k8s.io", ALL, &noise(300_000)))
        .await
        .unwrap();
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "300000\ndone\n");
}

#[tokio::test]
async fn bulk_data_is_unchanged_in_both_directions() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(ALL, "tee /dev/stderr");
    let url = server.sessions.exec(ALL, command).unwrap();
    let sent = noise(8 << 20);
    let ended = soon(exec(&url, "v4.channel.k8s.io", ALL, &sent))
        .await
        .unwrap();
    assert!(
        ended.stdout == sent,
        "{} bytes came back",
        ended.stdout.len()
    );
    assert!(
        ended.stderr == sent,
        "{} bytes came back as errors",
        ended.stderr.len()
    );
}

#[tokio::test]
async fn pipe_output_is_forwarded_completely() {
    let server = serve(Config::default()).await;
    let (mut writer, reader) = pipe::pipe().unwrap();
    let (command, end, _told) = given(None, Some(Output::from(reader)));
    let url = server.sessions.attach(STDOUT, command).unwrap();
    let sent = noise(4 << 20);
    let write = async {
        writer.write_all(&sent).await.unwrap();
        drop(writer);
        end.cancel();
    };
    let (ended, ()) =
        soon(async { tokio::join!(exec(&url, "v4.channel.k8s.io", STDOUT, b""), write) }).await;
    assert!(ended.unwrap().stdout == sent);
}

#[tokio::test]
async fn status_comes_although_the_output_is_not_closed() {
    let server = serve(Config::default()).await;
    let (output, mut process) = duplex(1024);
    process.write_all(b"all of it").await.unwrap();
    let stdout = Some(Output::new(output));
    let process = Process {
        stdin: None,
        stdout,
        stderr: None,
        control: Arc::new(Unclosed),
    };
    let url = server
        .sessions
        .exec(
            STDOUT,
            Box::new(Given {
                process: Ok(process),
            }),
        )
        .unwrap();
    let ended = soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    assert_eq!(ended.stdout, b"all of it");
    let status: Value = serde_json::from_str(&ended.status).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "7");
}

/// As of a child that writes on after the runtime has failed to close the output.
#[tokio::test]
async fn status_comes_although_the_output_has_no_end() {
    let server = serve(Config::default()).await;
    let stdout = Some(Output::new(tokio::io::repeat(b'x')));
    let process = Process {
        stdin: None,
        stdout,
        stderr: None,
        control: Arc::new(Unclosed),
    };
    let url = server
        .sessions
        .exec(
            STDOUT,
            Box::new(Given {
                process: Ok(process),
            }),
        )
        .unwrap();
    let ended = soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    let status: Value = serde_json::from_str(&ended.status).unwrap();
    assert_eq!(status["details"]["causes"][0]["message"], "7");
}

#[tokio::test]
async fn open_sessions_are_counted() {
    let server = serve(Config::default()).await;
    let counts = |exec, attach| [("exec", exec), ("attach", attach), ("portforward", 0)];
    let (command, end, _told) = given(None, None);
    let url = server.sessions.attach(STDOUT, command).unwrap();
    // A session that no client has opened is not counted.
    assert_eq!(server.sessions.open(), counts(0, 0));
    let (other, other_end, _told) = given(None, None);
    let other = server.sessions.exec(STDOUT, other).unwrap();
    let watch = async {
        while server.sessions.open() != counts(1, 1) {
            tokio::task::yield_now().await;
        }
        end.cancel();
        while server.sessions.open() != counts(1, 0) {
            tokio::task::yield_now().await;
        }
        other_end.cancel();
    };
    let protocol = "v4.channel.k8s.io";
    let both = async {
        tokio::join!(
            exec(&url, protocol, STDOUT, b""),
            exec(&other, protocol, STDOUT, b""),
            watch
        )
    };
    let (first, second, ()) = soon(both).await;
    first.and(second).unwrap();
    while server.sessions.open() != counts(0, 0) {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn rejected_process_is_an_internal_error() {
    let server = serve(Config::default()).await;
    for (protocol, expected) in [
        ("v4.channel.k8s.io", None),
        (
            "v3.channel.k8s.io",
            Some("Internal error occurred: it has gone"),
        ),
    ] {
        let refused = Box::new(Given {
            process: Err(Refusal::Failed("it has gone".to_owned())),
        });
        let url = server.sessions.exec(ALL, refused).unwrap();
        let ended = soon(exec(&url, protocol, ALL, b"input")).await.unwrap();
        match expected {
            Some(expected) => assert_eq!(ended.status, expected),
            None => {
                let status: Value = serde_json::from_str(&ended.status).unwrap();
                assert_eq!(status["reason"], "InternalError");
                assert_eq!(status["code"], 500);
                assert_eq!(status["message"], "Internal error occurred: it has gone");
            }
        }
    }
}

#[tokio::test]
async fn process_exit_does_not_wait_for_stdin() {
    let server = serve(Config::default()).await;
    let streams = Streams {
        stdin: true,
        stdout: true,
        stderr: false,
        tty: false,
    };
    let (command, _told) = shell(streams, "echo early");
    let url = server.sessions.exec(streams, command).unwrap();
    let Spdy {
        mut sender,
        mut receiver,
    } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    for kind in ["error", "stdin", "stdout"] {
        sender.open(&[("streamtype", kind)]).await.unwrap();
    }
    let mut last = None;
    while let Some(event) = soon(receiver.event()).await.unwrap() {
        last = Some(event);
    }
    assert_eq!(last, Some(ClientEvent::GoAway { status: 0 }));
}

#[tokio::test]
async fn resizes_arrive_in_order_and_invalid_ones_are_dropped() {
    let server = serve(Config::default()).await;
    let (command, mut events) = shell(TTY, "cat");
    let url = server.sessions.exec(TTY, command).unwrap();
    let Spdy {
        mut sender,
        receiver: _receiver,
    } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    for kind in ["error", "stdin", "stdout"] {
        sender.open(&[("streamtype", kind)]).await.unwrap();
    }
    let resize = sender.open(&[("streamtype", "resize")]).await.unwrap();
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    for absurd in ["0", "-1", "65536", "1e400", "\"9\""] {
        let size = format!("{{\"Width\":{absurd},\"Height\":1}}\n");
        sender.data(resize, size.as_bytes(), false).await.unwrap();
    }
    sender
        .data(resize, b"{\"Width\":80,\"Hei", false)
        .await
        .unwrap();
    sender.data(resize, b"ght\":24}\n", false).await.unwrap();
    assert_eq!(soon(events.recv()).await, Some(Happened::Resized(80, 24)));
    sender
        .data(resize, b"{\"Width\":120,\"Height\":40}", false)
        .await
        .unwrap();
    assert_eq!(soon(events.recv()).await, Some(Happened::Resized(120, 40)));
    drop(sender);
}

#[tokio::test]
async fn client_disconnect_hangs_up_the_process() {
    let server = serve(Config::default()).await;
    let (command, mut events) = shell(ALL, "cat >/dev/null; exec sleep 1000");
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
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    drop((sender, receiver));
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
}

#[tokio::test]
async fn pings_are_answered_and_unexpected_streams_reset() {
    let server = serve(Config::default()).await;
    let (command, _told) = shell(ALL, "cat");
    let url = server.sessions.exec(ALL, command).unwrap();
    let Spdy {
        mut sender,
        mut receiver,
    } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    let unknown = sender.open(&[("streamtype", "telepathy")]).await.unwrap();
    for kind in ["error", "stdin", "stdout", "stderr"] {
        sender.open(&[("streamtype", kind)]).await.unwrap();
    }
    sender.ping(7).await.unwrap();
    let late = sender.open(&[("streamtype", "stdout")]).await.unwrap();
    let mut pinged = false;
    let mut resets = Vec::new();
    while !pinged || resets.len() < 2 {
        match soon(receiver.event()).await.unwrap().unwrap() {
            ClientEvent::Ping { id } => pinged = id == 7,
            ClientEvent::Reset { stream, .. } => resets.push(stream),
            ClientEvent::Replied { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    resets.sort_unstable();
    assert_eq!(resets, [unknown, late]);
}
