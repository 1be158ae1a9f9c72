//! The control socket: who may serve it, what it refuses, and how the client survives a restart.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use switchyard_logkeeper::protocol::{FaultKind, VERSION};
use switchyard_logkeeper::{Config, Error, LogSpec, Server};

use crate::support::{Site, log};

#[tokio::test]
async fn logkeeper_identifies_itself() {
    let site = Site::new();
    let keeper = site.start().await;
    let welcome = site.client.hello().await.unwrap();
    assert_eq!(
        (welcome.version, welcome.pid),
        (VERSION, std::process::id())
    );
    let mode = fs::metadata(&site.config.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
    keeper.stop().await;
    assert!(!site.config.socket.exists());
    assert!(matches!(
        site.client.hello().await,
        Err(Error::Unavailable { .. })
    ));
}

#[tokio::test]
async fn logkeepers_never_share_a_state_directory_or_socket() {
    let site = Site::new();
    let keeper = site.start().await;
    let same_state = Config::new(site.dir.path().join("other.sock"), &site.config.state_dir);
    assert!(matches!(
        Server::start(&same_state).await,
        Err(Error::StateInUse(_))
    ));
    let same_socket = Config::new(&site.config.socket, site.dir.path().join("other"));
    assert!(matches!(
        Server::start(&same_socket).await,
        Err(Error::SocketInUse(_))
    ));
    site.client.hello().await.unwrap();
    keeper.stop().await;
}

#[tokio::test]
async fn stale_socket_is_replaced() {
    let site = Site::new();
    drop(UnixListener::bind(&site.config.socket).unwrap());
    assert!(site.config.socket.exists());
    let keeper = site.start().await;
    site.client.hello().await.unwrap();
    keeper.stop().await;
}

#[tokio::test]
async fn client_reconnects_after_restart() {
    let site = Site::new();
    let keeper = site.start().await;
    site.client.stats().await.unwrap();
    site.client.shutdown().await.unwrap();
    keeper.ended().await;
    let keeper = site.start().await;
    site.client.stats().await.unwrap();
    keeper.stop().await;
}

#[tokio::test]
async fn long_list_is_paginated() {
    let site = Site::new();
    let keeper = site.start().await;
    let ids: Vec<_> = (0..230).map(|number| format!("c{number:03}")).collect();
    let mut outputs = Vec::new();
    for id in &ids {
        let spec = site.spec(id);
        outputs.push(site.output(&spec));
        site.client.open(&spec).await.unwrap();
    }
    let listed: Vec<_> = site
        .client
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|entry| entry.id)
        .collect();
    assert_eq!(listed, ids);
    for id in &ids {
        site.client.finish(id, Duration::ZERO).await.unwrap();
    }
    let stats = site.client.stats().await.unwrap();
    assert_eq!((stats.containers, stats.finished), (0, 230));
    keeper.stop().await;
}

#[tokio::test]
async fn malformed_parameters_are_refused_and_leave_nothing_behind() {
    let site = Site::new();
    let keeper = site.start().await;
    let good = site.spec("c1");
    let _output = site.output(&good);
    fs::write(site.dir.path().join("file"), "").unwrap();
    let file = Some(site.dir.path().join("file"));
    let changes: [fn(&mut LogSpec); 10] = [
        |spec| spec.id = "../c1".into(),
        |spec| spec.id = ".c1".into(),
        |spec| spec.id = String::new(),
        |spec| spec.id = "x".repeat(129),
        |spec| spec.max_line = 0,
        |spec| spec.max_line = u32::MAX,
        |spec| spec.stdout = Some("relative".into()),
        |spec| spec.stdout = Some("/nonexistent/fifo".into()),
        |spec| spec.stderr.clone_from(&spec.stdout),
        |spec| spec.tty = true,
    ];
    let not_a_fifo = LogSpec {
        stdout: file,
        ..good.clone()
    };
    let bad = changes.map(|change| {
        let mut spec = good.clone();
        change(&mut spec);
        spec
    });
    for spec in bad.into_iter().chain([not_a_fifo]) {
        let error = site.client.open(&spec).await.unwrap_err();
        assert_eq!(
            error.fault().map(|fault| fault.kind),
            Some(FaultKind::InvalidArgument),
            "{spec:?}"
        );
    }
    assert!(
        fs::read_dir(&site.config.state_dir).unwrap().count() <= 1,
        "only the lock is left"
    );
    assert!(!log(&good).exists());
    keeper.stop().await;
}

#[tokio::test]
async fn invalid_request_lines_get_an_error_reply() {
    let site = Site::new();
    let keeper = site.start().await;
    let socket = site.config.socket.clone();
    let answers = tokio::task::spawn_blocking(move || {
        let mut stream = BufReader::new(UnixStream::connect(socket).unwrap());
        let mut ask = |line: &str| {
            stream.get_mut().write_all(line.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_line(&mut answer).unwrap();
            answer
        };
        let early = ask("{\"op\":\"stats\"}\n");
        let version = ask("{\"op\":\"hello\",\"version\":99}\n");
        ask("{\"op\":\"hello\",\"version\":1}\n");
        let garbage = ask("garbage\n");
        let good = ask("{\"op\":\"stats\"}\n");
        let long = "x".repeat(70_000);
        // The keeper closes the connection on an endless line; the rest of the write may already fail.
        drop(stream.get_mut().write_all(long.as_bytes()));
        let mut rest = String::new();
        let ended = stream.read_line(&mut rest).map_or(true, |len| len == 0);
        (early, version, garbage, good, ended)
    });
    let (early, version, garbage, good, ended) = answers.await.unwrap();
    assert!(early.contains("invalid_argument"), "{early}");
    assert!(version.contains("unsupported"), "{version}");
    assert!(garbage.contains("invalid_argument"), "{garbage}");
    assert!(good.starts_with("{\"ok\""), "{good}");
    assert!(ended);
    keeper.stop().await;
}
