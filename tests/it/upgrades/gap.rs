//! The time between two daemons, as clients see it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_logkeeper::StoreClient;
use switchyard_proto::cri::v1::ContainerState;
use switchyard_proto::nomad::drivers::proto::fingerprint_response::HealthState;
use switchyard_tests::daemon::binary;
use switchyard_tests::host::{eventually, processes};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::Agent;

use super::pid;

/// Time for the daemon to hand its listeners over, and for a client to be answered.
const LIMIT: Duration = Duration::from_secs(30);

/// The grace period of a stop, in seconds: shorter than a daemon once waited for its operations, and many times longer than it
/// needs to end without them.
const GRACE: i64 = 9;

/// The names of the stored listeners whose daemon runs.
fn claimed(node: &TestNode) -> Vec<String> {
    let socket = node.root().run().join("logkeeper/logkeeper.sock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be built");
    runtime.block_on(async {
        let Ok(Some(mut store)) = StoreClient::connect(&socket).await else {
            return Vec::new();
        };
        let entries = store.list().await.unwrap_or_default().into_iter();
        entries
            .filter(|entry| entry.claimed)
            .map(|entry| entry.name)
            .collect()
    })
}

/// Connects to the admin socket and sends a request; the answer is read later.
fn ask(node: &TestNode, path: &str) -> UnixStream {
    let mut client = UnixStream::connect(node.root().run().join("admin.sock"))
        .expect("a client is not refused while no daemon runs");
    client
        .set_read_timeout(Some(LIMIT))
        .expect("the limit is not zero");
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    client
        .write_all(request.as_bytes())
        .expect("the request fits into the socket");
    client
}

/// The sockets that are bound to a path, or were connected to it and not accepted.
fn connections(socket: &Path) -> usize {
    let all = fs::read_to_string("/proc/net/unix").expect("Linux has it");
    let path = socket.to_str().expect("the path is ASCII");
    all.lines().filter(|line| line.ends_with(path)).count()
}

/// The answer to such a request.
#[track_caller]
fn answer(mut client: UnixStream) -> String {
    let mut answer = String::new();
    client
        .read_to_string(&mut answer)
        .expect("the next daemon answers");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer
}

#[test]
fn clients_wait_between_two_daemons_however_the_first_ends() {
    let node = TestNode::start();
    for killed in [true, false, true] {
        assert!(
            eventually(LIMIT, || claimed(&node).contains(&"admin".to_owned())),
            "{}",
            node.daemon().tail()
        );
        if killed {
            node.daemon().kill9();
        } else {
            node.daemon().terminate();
        }
        let clients = [ask(&node, "/livez"), ask(&node, "/livez")];
        node.daemon().spawn();
        node.daemon().wait_ready();
        for client in clients {
            let _ = answer(client);
        }
    }
    assert_eq!(node.pod("after").run_shell("echo works", |_| {}), "works");
}

#[test]
fn daemon_puts_its_listeners_into_the_next_logkeeper() {
    let node = TestNode::start();
    let is_stored = || eventually(LIMIT, || claimed(&node).contains(&"admin".to_owned()));
    assert!(is_stored(), "{}", node.daemon().tail());
    node.kill_managed("logkeeper");
    assert!(is_stored(), "{}", node.daemon().tail());
    node.daemon().kill9();
    let waiting = ask(&node, "/livez");
    node.daemon().restart();
    drop(waiting);
}

#[test]
fn restart_of_the_logkeeper_lasts_until_the_next_one_has_the_listeners() {
    let node = TestNode::start();
    for _ in 0..2 {
        let _ = node.output(&["restart", "logkeeper"]);
        node.daemon().kill9();
        let client = ask(&node, "/livez");
        node.daemon().spawn();
        node.daemon().wait_ready();
        let _ = answer(client);
    }
}

fn is_stopping(node: &TestNode) -> bool {
    let status = node.output(&["status", "--verbose", "--output", "json"]);
    let status: Value = serde_json::from_str(&status).expect("it is JSON");
    let operations = status["operations"].as_array().expect("they are asked for");
    operations
        .iter()
        .any(|operation| operation["operation"] == "stop_task")
}

#[test]
fn daemon_ends_amid_a_long_stop_and_the_next_one_finishes_it() {
    let node = TestNode::start();
    let pod = node.pod("stubborn");
    let id = pod.start_shell(
        "main",
        "trap '' TERM; echo ready; while :; do sleep 1; done",
    );
    pod.wait_log("main", |lines| lines.len() == 1);
    let process = i32::try_from(pid(&node, &id)).expect("Linux keeps process ids below 2^22");
    let is_admin_stored = || eventually(LIMIT, || claimed(&node).contains(&"admin".to_owned()));
    assert!(is_admin_stored(), "{}", node.daemon().tail());
    let (client, stopped) = std::thread::scope(|scope| {
        let stop = scope.spawn(|| node.cri().stop(&id, GRACE));
        assert!(eventually(LIMIT, || is_stopping(&node)));
        let end = scope.spawn(|| node.daemon().terminate());
        let log = node.root().daemon_log();
        let drains = || fs::read_to_string(&log).is_ok_and(|text| text.contains("draining"));
        assert!(eventually(LIMIT, drains), "the daemon does not end");
        let client = ask(&node, "/statusz");
        end.join().expect("it ends");
        assert!(
            processes::find(process).is_some_and(|found| !found.zombie),
            "the daemon has waited for the stop"
        );
        (client, stop.join().expect("it does not panic"))
    });
    stopped.expect_err("the stop is cut off");
    node.daemon().spawn();
    node.daemon().wait_ready();
    let successor = format!("\"pid\":{},", node.daemon().pid());
    let answer = answer(client);
    assert!(answer.contains(&successor), "{successor}: {answer}");
    node.cri().stop(&id, 0).expect("it can be repeated");
    let status = node.cri().status(&id).expect("the container exists");
    assert_eq!(status.state(), ContainerState::ContainerExited);
}

#[test]
fn command_is_answered_also_if_the_next_daemon_binds_another_socket() {
    let node = TestNode::start();
    let is_stored = || claimed(&node).contains(&"admin".to_owned());
    assert!(eventually(LIMIT, is_stored), "{}", node.daemon().tail());
    node.daemon().kill9();
    let socket = node.root().run().join("admin.sock");
    let before = connections(&socket);
    let command = Command::new(binary())
        .args(["status", "--output", "json", "--socket"])
        .arg(&socket)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary exists");
    // The stored listener accepts it, and nobody answers there.
    assert!(eventually(LIMIT, || connections(&socket) > before));
    // As a daemon of an older version does, which takes no listener.
    fs::remove_file(&socket).expect("the logkeeper's listener is bound to it");
    node.daemon().restart();
    let done = command.wait_with_output().expect("it is our child");
    // Its status says whether the node is ready, which it may not be yet.
    let answer = serde_json::from_slice::<Value>(&done.stdout);
    assert!(
        answer.is_ok_and(|status| status["parts"].is_array()),
        "{done:?}"
    );
}

#[test]
fn plugin_waits_for_the_next_daemon_and_not_at_the_listener_of_the_last_one() {
    let node = TestNode::start();
    let is_stored = || claimed(&node).contains(&"nomad".to_owned());
    assert!(eventually(LIMIT, is_stored), "{}", node.daemon().tail());
    node.daemon().kill9();
    let agent = Agent::start(node.root(), &json!({}));
    let waits = || {
        agent
            .plugin()
            .stderr()
            .contains("is kept open for the next")
    };
    assert!(eventually(LIMIT, waits), "{}", agent.plugin().stderr());
    // As a daemon of an older version does, which takes no listener.
    let socket = node.root().run().join("nomad.sock");
    fs::remove_file(&socket).expect("the logkeeper's listener is bound to it");
    node.daemon().restart();
    let mut fingerprints = agent.driver().fingerprint().expect("it is opened");
    let is_healthy = || {
        let next = fingerprints.next(LIMIT).expect("it does not end");
        next.expect("it is no error").health() == HealthState::Healthy
    };
    assert!(eventually(LIMIT, is_healthy), "{}", agent.plugin().stderr());
}
