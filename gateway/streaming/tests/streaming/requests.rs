//! Requests, tokens and timeouts: what is refused and how, and how sessions and servers end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use switchyard_streaming::client::{
    ClientEvent, Spdy, UpgradeRefused, connect, exec, request, websocket,
};
use switchyard_streaming::{BindError, Config, Server};
use switchyard_tls::TlsConfig;
use switchyard_tls::testing::Authority;
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::support::{ALL, Happened, Loopback, STDOUT, given, serve, shell, soon};

async fn refused(url: &Url, protocols: &[&str]) -> UpgradeRefused {
    soon(Spdy::open(url, protocols)).await.unwrap().unwrap_err()
}

#[tokio::test]
async fn urls_are_absolute_with_the_listen_address() {
    let server = Server::bind(Config::default()).await.unwrap();
    let url = server
        .sessions()
        .port_forward(Vec::new(), Arc::new(Loopback))
        .unwrap();
    assert_eq!(url.scheme(), "http");
    assert_eq!(url.socket_addrs(|| None).unwrap(), [server.address()]);
    assert_ne!(server.address().port(), 0);
    assert_eq!(url.path_segments().unwrap().next(), Some("portforward"));
    let base = Some(Url::parse("https://node.example/streams/").unwrap());
    let server = Server::bind(Config {
        base_url: base,
        ..Config::default()
    })
    .await
    .unwrap();
    let url = server
        .sessions()
        .exec(STDOUT, shell(STDOUT, "true").0)
        .unwrap();
    assert!(
        url.as_str()
            .starts_with("https://node.example/streams/exec/"),
        "{url}"
    );
}

#[tokio::test]
async fn invalid_server_configuration_fails_at_bind() {
    let address = Server::bind(Config::default()).await.unwrap();
    let taken = Server::bind(Config {
        address: address.address(),
        ..Config::default()
    })
    .await
    .unwrap_err();
    assert!(matches!(taken, BindError::Listen { .. }), "{taken}");
    let base = Some(Url::parse("unix:/run/socket").unwrap());
    let wrong = Server::bind(Config {
        base_url: base,
        ..Config::default()
    })
    .await
    .unwrap_err();
    assert!(matches!(wrong, BindError::BaseUrl { .. }), "{wrong}");
    let certificates = "/absent/certificate".into();
    let tls = Some(TlsConfig {
        certificates,
        key: "/absent/key".into(),
        client_ca: None,
    });
    let absent = Server::bind(Config {
        tls,
        ..Config::default()
    })
    .await
    .unwrap_err();
    assert!(
        absent.to_string().contains("/absent/certificate"),
        "{absent}"
    );
}

#[tokio::test]
async fn token_opens_one_session() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "true").0)
        .unwrap();
    soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    assert_eq!(refused(&url, &["v4.channel.k8s.io"]).await.status, 404);
}

#[tokio::test]
async fn concurrent_uses_of_a_token_open_one_session() {
    let server = serve(Config::default()).await;
    let url = server.sessions.exec(ALL, shell(ALL, "cat").0).unwrap();
    let opening: Vec<_> = (0..20)
        .map(|_| Spdy::open(&url, &["v4.channel.k8s.io"]))
        .collect();
    let opened = soon(futures::future::join_all(opening)).await;
    assert_eq!(
        opened
            .iter()
            .filter(|answer| answer.as_ref().unwrap().is_ok())
            .count(),
        1
    );
}

#[tokio::test]
async fn wrong_tokens_and_session_kinds_are_not_found() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "true").0)
        .unwrap();
    let paths = [
        "/exec/AAAAAAAAAAAAAAAAAAAAAA",
        "/exec/",
        "/exec",
        "/",
        "/exec/../exec/x",
    ];
    let elsewhere = url.path().replace("/exec/", "/attach/");
    for path in paths.into_iter().chain([&*elsewhere]) {
        let mut guess = url.clone();
        guess.set_path(path);
        assert_eq!(
            refused(&guess, &["v4.channel.k8s.io"]).await.status,
            404,
            "{path}"
        );
    }
    soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
}

#[tokio::test]
async fn expired_token_drops_its_session() {
    let server = serve(Config {
        token_lifetime: Duration::from_millis(50),
        ..Config::default()
    })
    .await;
    let (command, mut events) = shell(STDOUT, "true");
    let url = server.sessions.exec(STDOUT, command).unwrap();
    assert_eq!(
        soon(events.recv()).await,
        None,
        "it was dropped, and never opened"
    );
    assert_eq!(refused(&url, &["v4.channel.k8s.io"]).await.status, 404);
}

#[tokio::test]
async fn pending_sessions_are_limited() {
    let server = serve(Config {
        max_tokens: 2,
        ..Config::default()
    })
    .await;
    let first = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "true").0)
        .unwrap();
    server
        .sessions
        .attach(STDOUT, shell(STDOUT, "true").0)
        .unwrap();
    let refused = server
        .sessions
        .port_forward(Vec::new(), Arc::new(Loopback))
        .unwrap_err();
    assert_eq!(refused.limit, 2);
    soon(exec(&first, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    server
        .sessions
        .port_forward(Vec::new(), Arc::new(Loopback))
        .unwrap();
}

#[tokio::test]
async fn rejected_request_has_a_reason_and_keeps_the_token() {
    let server = serve(Config::default()).await;
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "true").0)
        .unwrap();
    let none = refused(&url, &["v9.channel.k8s.io"]).await;
    assert_eq!(none.status, 403);
    let listed = none
        .head
        .matches("x-accepted-stream-protocol-versions:")
        .count();
    assert_eq!(listed, 5, "{}", none.head);
    assert_eq!(refused(&url, &[]).await.status, 400);
    assert_eq!(
        soon(websocket(&url, "v9.channel.k8s.io"))
            .await
            .unwrap()
            .unwrap_err()
            .status,
        403
    );
    for (method, status) in [("GET", 400), ("DELETE", 405), ("POST", 400)] {
        let mut socket = connect(&url).await.unwrap();
        let answer = soon(request(&mut socket, method, &url, &[]))
            .await
            .unwrap()
            .unwrap_err();
        assert_eq!(answer.status, status, "{method}");
    }
    soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
}

#[tokio::test]
async fn slow_request_times_out() {
    let config = Config {
        request_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let server = serve(config).await;
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "true").0)
        .unwrap();
    let mut socket = connect(&url).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, b"POST /exec/")
        .await
        .unwrap();
    let closed = soon(socket.read_to_end(&mut Vec::new())).await;
    assert!(closed.is_err() || closed.unwrap() < 1000);
}

#[tokio::test]
async fn idle_connections_are_evicted_oldest_first() {
    let config = Config {
        max_connections: 2,
        max_waiting: 3,
        ..Config::default()
    };
    let server = serve(config).await;
    let (command, mut events) = shell(ALL, "cat");
    let held = server.sessions.exec(ALL, command).unwrap();
    let open = soon(Spdy::open(&held, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(connect(&held).await.unwrap());
    }
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "echo served").0)
        .unwrap();
    let ended = soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    assert_eq!(ended.stdout, b"served\n");
    // Together with the one that was served, the last two were within the limit.
    for mut oldest in idle.drain(..6) {
        assert_eq!(
            soon(oldest.read(&mut [0])).await.unwrap_or(0),
            0,
            "it has made room"
        );
    }
    drop(open);
    assert_eq!(soon(events.recv()).await, None, "nobody opened its streams");
}

#[tokio::test]
async fn missing_streams_end_the_session_before_start() {
    let config = Config {
        stream_creation_timeout: Duration::from_millis(100),
        ..Config::default()
    };
    let server = serve(config).await;
    let (command, mut events) = shell(ALL, "cat");
    let url = server.sessions.exec(ALL, command).unwrap();
    let Spdy {
        mut sender,
        mut receiver,
    } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    sender.open(&[("streamtype", "error")]).await.unwrap();
    let mut last = None;
    while let Some(event) = soon(receiver.event()).await.unwrap() {
        last = Some(event);
    }
    assert_eq!(last, Some(ClientEvent::GoAway { status: 0 }));
    assert_eq!(soon(events.recv()).await, None, "it was never opened");
}

#[tokio::test]
async fn only_idle_sessions_time_out() {
    let server = serve(Config {
        idle_timeout: Duration::from_millis(400),
        ..Config::default()
    })
    .await;
    let (command, mut events) = shell(ALL, "exec sleep 1000");
    let url = server.sessions.exec(ALL, command).unwrap();
    let idle = soon(exec(&url, "v4.channel.k8s.io", ALL, b""))
        .await
        .unwrap();
    assert_ended_early(&idle.status);
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
    let (command, _told) = shell(
        STDOUT,
        "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done",
    );
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let busy = soon(exec(&url, "v4.channel.k8s.io", STDOUT, b""))
        .await
        .unwrap();
    assert!(busy.status.contains("Success"), "{}", busy.status);
}

/// Fails unless a client gets an error: it would take an empty status for success.
#[track_caller]
fn assert_ended_early(status: &str) {
    let status: serde_json::Value = serde_json::from_str(status).unwrap();
    let message = "Internal error occurred: the session was ended before the exit was known";
    assert_eq!(status["message"], message);
}

#[tokio::test]
async fn server_stop_ends_sessions() {
    let mut server = serve(Config {
        drain_timeout: Duration::from_millis(10),
        ..Config::default()
    })
    .await;
    let (command, mut events) = shell(ALL, "exec sleep 1000");
    let url = server.sessions.exec(ALL, command).unwrap();
    let waiting = server.sessions.exec(ALL, shell(ALL, "true").0).unwrap();
    let running = tokio::spawn(async move { exec(&url, "v4.channel.k8s.io", ALL, b"").await });
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    server.stop.cancel();
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
    soon(&mut server.serving).await.unwrap();
    assert_ended_early(&soon(running).await.unwrap().unwrap().status);
    assert!(
        soon(connect(&waiting)).await.is_err(),
        "nobody listens any more"
    );
}

#[tokio::test]
async fn session_ending_within_the_drain_time_is_not_cut_off() {
    let mut server = serve(Config {
        drain_timeout: Duration::from_secs(30),
        ..Config::default()
    })
    .await;
    let (command, mut events) = shell(STDOUT, "sleep 0.2; echo late");
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let running = tokio::spawn(async move { exec(&url, "v4.channel.k8s.io", STDOUT, b"").await });
    assert_eq!(soon(events.recv()).await, Some(Happened::Opened));
    server.stop.cancel();
    assert_eq!(soon(running).await.unwrap().unwrap().stdout, b"late\n");
    soon(&mut server.serving).await.unwrap();
}

#[tokio::test]
async fn server_stop_does_not_wait_for_non_reading_clients() {
    let mut server = serve(Config {
        drain_timeout: Duration::ZERO,
        ..Config::default()
    })
    .await;
    let (command, _end, mut events) = given(
        None,
        Some(switchyard_streaming::Output::new(tokio::io::repeat(7))),
    );
    let url = server.sessions.exec(STDOUT, command).unwrap();
    let Spdy {
        mut sender,
        receiver: _receiver,
    } = soon(Spdy::open(&url, &["v4.channel.k8s.io"]))
        .await
        .unwrap()
        .unwrap();
    for kind in ["error", "stdout"] {
        sender.open(&[("streamtype", kind)]).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.stop.cancel();
    assert_eq!(soon(events.recv()).await, Some(Happened::HungUp));
    soon(&mut server.serving).await.unwrap();
}

#[tokio::test]
async fn sessions_are_served_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::new(dir.path(), "streaming");
    let tls = Some(authority.issue("server").server(None));
    let server = serve(Config {
        tls,
        ..Config::default()
    })
    .await;
    let url = server
        .sessions
        .exec(STDOUT, shell(STDOUT, "echo secret").0)
        .unwrap();
    assert_eq!(url.scheme(), "https");
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let socket = connect(&url).await.unwrap();
    let secured = soon(authority.client(None).connect(name, socket))
        .await
        .unwrap();
    let spdy = soon(Spdy::over(Box::new(secured), &url, &["v4.channel.k8s.io"]))
        .await
        .unwrap();
    let Spdy {
        mut sender,
        mut receiver,
    } = spdy.unwrap();
    for kind in ["error", "stdout"] {
        sender.open(&[("streamtype", kind)]).await.unwrap();
    }
    let mut output = Vec::new();
    while let Some(event) = soon(receiver.event()).await.unwrap() {
        if let ClientEvent::Data {
            stream: 3, bytes, ..
        } = event
        {
            output.extend_from_slice(&bytes);
        }
    }
    assert_eq!(output, b"secret\n");
    let plain = soon(Spdy::open(&url, &["v4.channel.k8s.io"])).await;
    assert!(plain.is_err(), "plain HTTP gets no answer");
}

#[tokio::test]
async fn dropped_server_stops_listening() {
    let server = Server::bind(Config::default()).await.unwrap();
    let address: SocketAddr = server.address();
    let run = tokio::spawn(server.run(CancellationToken::new()));
    run.abort();
    assert!(run.await.unwrap_err().is_cancelled());
    let refused = tokio::net::TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
}
