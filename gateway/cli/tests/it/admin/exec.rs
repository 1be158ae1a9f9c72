//! Commands that an operator runs in tasks of all owners.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use axum::body::Body;
use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, Request, StatusCode};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};
use serde_json::json;
use switchyard_config::ContainerMetrics;
use switchyard_core::id::Owner;
use switchyard_core::object::Task;
use switchyard_fake::Method as BackendMethod;
use switchyard_operator::admin::Reach;
use switchyard_operator_api::{EXEC_PATH, EXEC_PROTOCOL, FrameHead, FrameKind};
use switchyard_socket::channel::{self, UpgradeAnswer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::node::{TestNode, ask_as_root, endless};
use super::{Pages, run};
use crate::support::{exe, soon};

/// Runs `switchyard exec` with this input.
async fn exec(pages: &Pages, words: &[&str], input: &'static str) -> Output {
    let socket = pages.socket();
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let ran = tokio::task::spawn_blocking(move || {
        let mut child = Command::new(exe())
            .args(["exec", "--socket", &socket])
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // The command may have ended before it reads.
        let written = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let output = child.wait_with_output().unwrap();
        written.join().unwrap();
        output
    });
    soon("the command", ran).await.unwrap()
}

async fn running(node: &TestNode, owner: Owner, name: &str) -> Arc<Task> {
    node.run(endless(owner, name)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn command_runs_in_the_task_of_any_owner_with_its_streams_and_its_exit_code() {
    let node = TestNode::new().await;
    for (owner, name) in [
        (Owner::Kubernetes, "pod-task"),
        (Owner::Nomad, "job-task"),
        (Owner::Swarm, "service-task"),
        (Owner::Host, "host-task"),
    ] {
        running(&node, owner, name).await;
    }
    let pages = Pages::serve(node).await;
    let script = "echo out; echo err >&2; exit 4";
    for task in ["pod-task", "job-task", "service-task", "host-task"] {
        let output = exec(&pages, &[task, "sh", "-c", script], "").await;
        assert_eq!(
            (
                output.status.code(),
                output.stdout.as_slice(),
                output.stderr.as_slice()
            ),
            (Some(4), &b"out\n"[..], &b"err\n"[..]),
            "{task}"
        );
    }
    let output = exec(&pages, &["-i", "job-task", "--", "cat"], "told\n").await;
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(0), &b"told\n"[..])
    );
    let text = "switchyard\n".repeat(30_000);
    let output = exec(&pages, &["--interactive", "job-task", "cat"], text.leak()).await;
    assert_eq!(
        (output.status.code(), output.stdout.len()),
        (Some(0), 330_000)
    );
    // A terminal without input needs none here.
    let output = exec(&pages, &["-t", "job-task", "sh", "-c", script], "").await;
    assert_eq!(
        (output.status.code(), output.stderr.as_slice()),
        (Some(4), &b""[..]),
        "all output is that of the terminal"
    );
    // Without `-i` there is no input.
    let output = exec(&pages, &["job-task", "cat"], "told\n").await;
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn command_that_cannot_be_run_is_refused_with_what_is_wrong() {
    let node = TestNode::new().await;
    running(&node, Owner::Swarm, "web").await;
    let ended = running(&node, Owner::Nomad, "ended").await;
    let scope = node.gateway.scope(Owner::Nomad);
    let id = ended.id.to_string();
    scope
        .tasks()
        .stop(&id, std::time::Duration::ZERO)
        .await
        .unwrap();
    let sandbox = node
        .sandbox(switchyard_contract::specs::sandbox(
            Owner::Kubernetes,
            "pod",
        ))
        .await;
    let pages = Pages::serve(node).await;
    let sandbox = sandbox.id.to_string();
    for (words, part) in [
        (vec!["no-such", "true"], "nothing has the name \"no-such\""),
        (vec![sandbox.as_str(), "true"], "is a sandbox"),
        (vec!["ended", "true"], "is exited, not running"),
        (vec!["web", "/no/such"], "/no/such"),
    ] {
        let output = exec(&pages, &words, "").await;
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains(part), "{text}");
        assert!(!text.contains("does not exist"), "{text}");
    }
    // A terminal needs one.
    let output = exec(&pages, &["-it", "web", "sh"], "").await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("standard input is none"), "{text}");
    let output = run(&["exec", "--socket", &pages.socket(), "web"]).await;
    assert_eq!(output.status.code(), Some(2));
}

async fn open(pages: &Pages, body: serde_json::Value) -> UpgradeAnswer {
    let socket = pages.node.dir.path().join("admin.sock");
    let body = Bytes::from(body.to_string());
    let asked = channel::upgrade(&socket, EXEC_PATH, EXEC_PROTOCOL, body);
    soon("an answer", asked).await.unwrap()
}

#[tokio::test]
async fn command_is_killed_with_its_client_although_it_reads_nothing() {
    let node = TestNode::new().await;
    running(&node, Owner::Swarm, "web").await;
    let pages = Pages::serve(node).await;
    let body = json!({ "task": "web", "command": ["sleep", "1000"], "stdin": true });
    let UpgradeAnswer::Upgraded(mut connection) = open(&pages, body.clone()).await else {
        panic!("the command runs")
    };
    assert_eq!(pages.node.fake.processes(), 1);
    // It does not read this.
    let head = FrameHead::write(FrameKind::Input, 5).unwrap();
    connection.write_all(&head).await.unwrap();
    connection.write_all(b"hello").await.unwrap();
    drop(connection);
    let gone = async {
        while pages.node.fake.processes() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    soon("the end of the command", gone).await;

    // A client that sends what it must not loses its session.
    let UpgradeAnswer::Upgraded(mut connection) = open(&pages, body).await else {
        panic!("the command runs")
    };
    connection.write_all(&[9; 5]).await.unwrap();
    let mut rest = Vec::new();
    drop(soon("the end", connection.read_to_end(&mut rest)).await);
    assert!(rest.is_empty(), "{rest:?}");
}

/// A terminal, by the end that programs have; the other end must stay open meanwhile.
fn terminal() -> (OwnedFd, OwnedFd) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let other = openpt(flags).unwrap();
    unlockpt(&other).unwrap();
    (ioctl_tiocgptpeer(&other, flags).unwrap(), other)
}

/// Returns whether keys are passed on as they are.
fn is_raw(terminal: &OwnedFd) -> bool {
    let modes = tcgetattr(terminal).unwrap().local_modes;
    !modes.contains(LocalModes::ICANON)
}

#[tokio::test(flavor = "multi_thread")]
async fn terminal_is_set_back_before_a_signal_ends_the_client() {
    let node = TestNode::new().await;
    running(&node, Owner::Swarm, "web").await;
    let pages = Pages::serve(node).await;
    for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
        let (terminal, _other) = terminal();
        let mut child = Command::new(exe())
            .args(["exec", "--socket", &pages.socket(), "-it", "web", "cat"])
            .stdin(terminal.try_clone().unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let begun = async {
            while !is_raw(&terminal) {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        soon("the session", begun).await;
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        kill(pid, signal).unwrap();
        let ended = tokio::task::spawn_blocking(move || child.wait());
        let status = soon("its end", ended).await.unwrap().unwrap();
        assert_eq!(status.code(), Some(128 + signal as i32), "{signal}");
        assert!(!is_raw(&terminal), "{signal}");
    }
}

#[tokio::test(start_paused = true)]
async fn start_that_hangs_is_answered_before_the_connection_is_closed() {
    let node = TestNode::new().await;
    running(&node, Owner::Swarm, "web").await;
    let hold = node.fake.hold(BackendMethod::Exec);
    let router = node.pages(ContainerMetrics::Local).router(Reach::Local);
    let body = json!({ "task": "web", "command": ["true"] }).to_string();
    let request = Request::post(EXEC_PATH)
        .header(UPGRADE, EXEC_PROTOCOL)
        .body(Body::from(body))
        .unwrap();
    let (status, text) = ask_as_root(&router, request).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT, "{text}");
    assert!(text.starts_with("the command was not started"), "{text}");
    drop(hold);
}

#[tokio::test]
async fn requests_of_another_form_are_refused() {
    let node = TestNode::new().await;
    running(&node, Owner::Swarm, "web").await;
    let pages = Pages::serve(node).await;
    for (body, expected) in [
        (json!({ "task": "web" }), StatusCode::BAD_REQUEST),
        (json!([1]), StatusCode::BAD_REQUEST),
        (
            json!({ "task": "web", "command": [] }),
            StatusCode::BAD_REQUEST,
        ),
        (
            json!({ "task": "", "command": ["true"] }),
            StatusCode::BAD_REQUEST,
        ),
        (
            json!({ "task": "other", "command": ["true"] }),
            StatusCode::NOT_FOUND,
        ),
    ] {
        let shown = body.to_string();
        match open(&pages, body).await {
            UpgradeAnswer::Answered(status, _) => assert_eq!(status, expected, "{shown}"),
            UpgradeAnswer::Upgraded(_) => panic!("{shown} is run"),
        }
    }
    let (status, text) = pages.ask(Method::POST, EXEC_PATH).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(text.contains("switchyard exec"), "{text}");
    let words = format!(
        "POST {EXEC_PATH} HTTP/1.1\r\nHost: localhost\r\nUpgrade: {EXEC_PROTOCOL}\r\nConnection: close\r\n\r\n"
    );
    assert!(pages.say(&words).await.starts_with("HTTP/1.1 404"));
    assert_eq!(pages.node.fake.processes(), 0);
}
