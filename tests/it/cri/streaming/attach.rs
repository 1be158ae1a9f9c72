//! Clients that are attached to a container.

use std::time::Duration;

use switchyard_proto::cri::v1::{ContainerConfig, ContainerState};
use switchyard_streaming::Streams;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::streams::{OUTPUTS, PIPES, StreamSession, TERMINAL};

/// Time for which a test waits for something that must not happen.
const MOMENT: Duration = Duration::from_millis(500);

/// A container that echoes its input.
fn echo(pod: &TestPod<'_>, change: impl FnOnce(&mut ContainerConfig)) -> String {
    let script = "echo ready; while read line; do echo \"heard $line\"; done; echo bye; exit 3";
    let id = pod.start_shell_with("main", script, |config| {
        config.stdin = true;
        change(config);
    });
    if !pod.log_path("main").as_os_str().is_empty() {
        pod.wait_log("main", |lines| !lines.is_empty());
    }
    id
}

/// Fails if a container does not run (any more).
#[track_caller]
fn assert_runs(node: &TestNode, id: &str) {
    std::thread::sleep(MOMENT);
    assert_eq!(
        node.cri().status(id).expect("it has a status").state(),
        ContainerState::ContainerRunning
    );
}

#[test]
fn all_attached_clients_and_the_log_get_all_output() {
    let node = TestNode::shared();
    let pod = node.pod("attach");
    let id = echo(&pod, |_| {});
    let mut one = StreamSession::attach(node.cri(), &id, PIPES);
    let mut other = StreamSession::attach(node.cri(), &id, PIPES);
    one.send("one\n");
    one.wait_stdout("heard one\n");
    // A client that gets output is attached.
    other.send("other\n");
    other.wait_stdout("heard other\n");
    one.wait_stdout("heard other\n");
    one.send("both\n");
    one.wait_stdout("heard both\n");
    other.wait_stdout("heard both\n");
    drop(one);
    assert_runs(&node, &id);
    other.send("again\n");
    other.wait_stdout("heard again\n");
    drop(other);
    let mut late = StreamSession::attach(node.cri(), &id, PIPES);
    late.send("late\n");
    late.wait_stdout("heard late\n");
    assert_eq!(
        late.received.stdout, b"heard late\n",
        "only what comes while one is attached is heard"
    );
    assert_eq!(
        pod.log_text("main"),
        "ready\nheard one\nheard other\nheard both\nheard again\nheard late"
    );
}

#[test]
fn attach_ends_when_the_container_exits() {
    let node = TestNode::shared();
    let pod = node.pod("end");
    let id = pod.start_shell(
        "main",
        "trap 'echo out; echo err >&2; exit 0' TERM; echo ready; while :; do sleep 0.05; done",
    );
    pod.wait_log("main", |lines| !lines.is_empty());
    let mut client = StreamSession::attach(node.cri(), &id, OUTPUTS);
    // The session is open once the server has confirmed it; earlier output is not sent to it.
    std::thread::sleep(MOMENT);
    node.cri().stop(&id, 20).expect("it can be stopped");
    assert_eq!(client.wait_exit_code(), 0);
    assert_eq!(
        (&client.received.stdout[..], &client.received.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
}

#[test]
fn stdin_once_closes_with_its_client() {
    let node = TestNode::shared();
    for vanishes in [false, true] {
        let pod = node.pod("once");
        let id = echo(&pod, |config| config.stdin_once = true);
        let watcher = StreamSession::attach(node.cri(), &id, OUTPUTS);
        drop(watcher);
        assert_runs(&node, &id);
        let mut client = StreamSession::attach(node.cri(), &id, PIPES);
        client.send("it\n");
        client.wait_stdout("heard it\n");
        if vanishes {
            drop(client);
        } else {
            client.end_input();
            assert_eq!(client.wait_exit_code(), 0);
            assert_eq!(
                client.received.stdout, b"heard it\nbye\n",
                "it stays to hear the end"
            );
        }
        assert_eq!(node.cri().wait_exit(&id).exit_code, 3);
    }
}

#[test]
fn client_half_close_keeps_open_stdin() {
    let node = TestNode::shared();
    let pod = node.pod("said");
    let id = echo(&pod, |_| {});
    let mut client = StreamSession::attach(node.cri(), &id, PIPES);
    client.send("all\n");
    client.end_input();
    assert_eq!(client.wait_exit_code(), 0);
    assert_eq!(
        client.received.stdout, b"heard all\n",
        "it still hears the answer"
    );
    assert_runs(&node, &id);
}

#[test]
fn attach_works_without_a_log() {
    let node = TestNode::shared();
    let pod = node.pod("unlogged");
    let mut config = node.container("main", &["sh"]);
    (config.log_path, config.stdin, config.stdin_once) = (String::new(), true, true);
    let id = pod.start(&config);
    let mut client = StreamSession::attach(node.cri(), &id, PIPES);
    client.send("echo heard; echo wrong >&2\n");
    client.wait_stdout("heard\n");
    client.end_input();
    assert_eq!(client.wait_exit_code(), 0);
    assert_eq!(client.received.stderr, b"wrong\n");
}

#[test]
fn tty_attach_resizes_and_survives_detach() {
    let node = TestNode::shared();
    let pod = node.pod("terminal");
    let id = pod.start_shell_with(
        "main",
        "while :; do stty size; read -t 1 word && echo \"read $word\"; done",
        |config| {
            (config.stdin, config.stdin_once, config.tty) = (true, true, true);
        },
    );
    let mut client = StreamSession::attach(node.cri(), &id, TERMINAL);
    client.resize(111, 22);
    client.wait_stdout("22 111\r\n");
    client.send("word\n");
    client.wait_stdout("read word\r\n");
    drop(client);
    assert_runs(&node, &id);
}

#[test]
fn attach_without_stdin_or_without_output_is_supported() {
    let node = TestNode::shared();
    let pod = node.pod("mute");
    let id = pod.start_shell("main", "while :; do echo on; sleep 0.1; done");
    let mut client = StreamSession::attach(node.cri(), &id, PIPES);
    client.send("anybody?\n");
    client.wait_stdout("on\n");
    let other = node.pod("speaks");
    let listening = echo(&other, |_| {});
    let mut mute = StreamSession::attach(
        node.cri(),
        &listening,
        Streams {
            stdout: false,
            stderr: false,
            ..PIPES
        },
    );
    mute.send("said\n");
    other.wait_log("main", |lines| {
        lines.iter().any(|line| line.ends_with("heard said"))
    });
}

#[test]
fn daemon_kill_during_attach_does_not_affect_the_container() {
    let node = TestNode::start();
    let pod = node.pod("dies");
    let id = echo(&pod, |_| {});
    let before = node.cri().status(&id).expect("it has a status");
    let mut client = StreamSession::attach(node.cri(), &id, PIPES);
    client.send("before\n");
    client.wait_stdout("heard before\n");
    node.daemon().kill9();
    assert!(
        client.wait_end(),
        "the client's connection was the daemon's"
    );
    node.daemon().restart();
    assert_eq!(node.cri().status(&id).expect("it has a status"), before);
    let mut client = StreamSession::attach(node.cri(), &id, PIPES);
    client.send("after\n");
    client.wait_stdout("heard after\n");
    assert_eq!(pod.log_text("main"), "ready\nheard before\nheard after");
}

#[test]
fn stdin_once_closes_after_daemon_kill_during_attach() {
    let node = TestNode::start();
    let pod = node.pod("once");
    let id = echo(&pod, |config| config.stdin_once = true);
    let mut client = StreamSession::attach(node.cri(), &id, PIPES);
    client.send("it\n");
    client.wait_stdout("heard it\n");
    node.daemon().kill9();
    node.daemon().restart();
    assert_eq!(node.cri().wait_exit(&id).exit_code, 3);
    assert_eq!(pod.log_text("main"), "ready\nheard it\nbye");
}

#[test]
fn logkeeper_kill_does_not_affect_attached_clients() {
    let node = TestNode::start();
    let pod = node.pod("keeper");
    let id = pod.start_shell(
        "main",
        "n=0; while :; do n=$((n+1)); echo number $n; sleep 0.01; done",
    );
    let mut client = StreamSession::attach(node.cri(), &id, OUTPUTS);
    client.wait_stdout("number ");
    for _ in 0..3 {
        let received_before = client.received.stdout.len();
        node.kill_managed("logkeeper");
        node.daemon().wait_ready();
        let text = String::from_utf8_lossy(&client.received.stdout[..received_before]).into_owned();
        let last = text
            .trim_end()
            .rsplit(' ')
            .next()
            .and_then(|word| word.parse::<u32>().ok());
        client.wait_stdout(&format!(
            "number {}\n",
            last.expect("numbers are heard") + 200
        ));
    }
    let text = String::from_utf8_lossy(&client.received.stdout).into_owned();
    let numbers: Vec<u32> = text
        .lines()
        .filter_map(|line| line.strip_prefix("number ")?.parse().ok())
        .collect();
    let gap = numbers.windows(2).find(|pair| pair[1] != pair[0] + 1);
    assert_eq!(gap, None, "among {} numbers", numbers.len());
}
