//! Commands in a container, with streams.

use std::time::Duration;

use switchyard_tests::host::{cgroups, eventually, processes};
use switchyard_tests::leak_scan::NAMESPACE;
use switchyard_tests::node::TestNode;
use switchyard_tests::streams::{OUTPUTS, PIPES, StreamSession, TERMINAL};
use tonic::Code;

/// Time for something to be cleared away.
const LIMIT: Duration = Duration::from_secs(30);
/// The answer to a command that takes too long.
const LATE: Result<(), Code> = Err(Code::DeadlineExceeded);
/// The bytes that go through a copying command.
const LARGE: usize = 100_000_000;

/// The commands that run in a container.
fn commands(container: &str) -> Vec<String> {
    cgroups::members(container)
        .into_iter()
        .filter_map(processes::find)
        .map(|process| process.command)
        .collect()
}

/// Panics if anything that only serves an exec remains.
#[track_caller]
fn assert_no_exec_left(node: &TestNode, container: &str) {
    let dir = node.root().run().join("tasks").join(container);
    let mut left = Vec::new();
    let gone = eventually(LIMIT, || {
        let entries = std::fs::read_dir(&dir)
            .expect("the container runs")
            .flatten();
        left = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        left.retain(|name| name.starts_with("exec-"));
        left.is_empty()
    });
    assert!(gone, "{left:?}");
}

#[test]
fn exec_returns_stdout_stderr_and_exit_code() {
    let node = TestNode::shared();
    let pod = node.pod("exec");
    let id = pod.start_shell("main", "exec sleep 1000");
    let mut session = StreamSession::exec(
        node.cri(),
        &id,
        &["sh", "-c", "echo out; echo err >&2; exit 42"],
        OUTPUTS,
    );
    assert_eq!(session.wait_exit_code(), 42);
    assert_eq!(
        (&session.received.stdout[..], &session.received.stderr[..]),
        (&b"out\n"[..], &b"err\n"[..])
    );
    let mut session = StreamSession::exec(node.cri(), &id, &["true"], OUTPUTS);
    assert_eq!(session.wait_exit_code(), 0);
    let mut session = StreamSession::exec(node.cri(), &id, &["sh", "-c", "kill -9 $$"], OUTPUTS);
    assert_eq!(session.wait_exit_code(), 137);
    assert_no_exec_left(&node, &id);
}

/// The exec then goes through containerd, which knows the shim's address.
#[test]
fn exec_works_when_its_shim_is_not_found() {
    let node = TestNode::shared();
    let pod = node.pod("hidden");
    let id = pod.start_shell("main", "exec sleep 1000");
    let state = node
        .root()
        .run()
        .join("containerd/state/io.containerd.runtime.v2.task");
    let bundle = state.join(NAMESPACE).join(&id);
    let address = ["address", "bootstrap.json"].map(|name| bundle.join(name));
    let address = address
        .iter()
        .find(|file| file.exists())
        .expect("containerd keeps it there");
    let hidden = bundle.join("hidden");
    std::fs::rename(address, &hidden).expect("it can be renamed");
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
    let mut session = StreamSession::exec(node.cri(), &id, &["sh", "-c", "cat; exit 7"], PIPES);
    session.send("said");
    session.end_input();
    assert_eq!(
        (session.wait_exit_code(), &session.received.stdout[..]),
        (7, &b"said"[..])
    );
    assert_eq!(
        node.cri()
            .exec(&id, &["sleep", "1000"], 1)
            .map(drop)
            .map_err(|status| status.code()),
        LATE
    );
    std::fs::rename(hidden, address).expect("it can be renamed back");
    assert_no_exec_left(&node, &id);
}

/// Cleanup after an answer neither delays the next command nor leaves anything.
#[test]
fn concurrent_execs_have_separate_output_and_leave_nothing_behind() {
    let node = TestNode::shared();
    let pod = node.pod("many");
    let id = pod.start_shell("main", "exec sleep 1000");
    // More than the number of shim sockets that are held at a time.
    std::thread::scope(|scope| {
        let run = |number: i32| {
            let node = &node;
            let id = &id;
            scope.spawn(move || {
                let script = format!("echo {number}; echo {number} >&2; exit {number}");
                let answer = node
                    .cri()
                    .exec(id, &["sh", "-c", &script], 0)
                    .expect("it runs");
                let line = format!("{number}\n").into_bytes();
                assert_eq!(
                    (&answer.stdout, &answer.stderr, answer.exit_code),
                    (&line, &line, number)
                );
            })
        };
        let all: Vec<_> = (1..=24).map(run).collect();
        all.into_iter()
            .for_each(|one| one.join().expect("it does not panic"));
    });
    assert_no_exec_left(&node, &id);
}

#[test]
fn exec_of_a_missing_program_is_reported() {
    let node = TestNode::shared();
    let pod = node.pod("missing");
    let id = pod.start_shell("main", "exec sleep 1000");
    let mut session = StreamSession::exec(node.cri(), &id, &["/no/such/program"], OUTPUTS);
    assert!(session.wait_end());
    let status = &session.received.status;
    assert!(
        status.contains("Failure") && status.contains("/no/such/program"),
        "{status}"
    );
    assert_no_exec_left(&node, &id);
}

#[test]
fn exec_stdin_closes_with_the_clients() {
    let node = TestNode::shared();
    let pod = node.pod("half");
    let id = pod.start_shell("main", "exec sleep 1000");
    let mut session = StreamSession::exec(
        node.cri(),
        &id,
        &["sh", "-c", "cat; echo after the end"],
        PIPES,
    );
    session.send("said\n");
    session.wait_stdout("said\n");
    session.end_input();
    assert_eq!(session.wait_exit_code(), 0);
    assert_eq!(session.received.stdout, b"said\nafter the end\n");
}

#[test]
fn exec_tty_follows_client_resizes() {
    let node = TestNode::shared();
    let pod = node.pod("terminal");
    let id = pod.start_shell("main", "exec sleep 1000");
    let script = "while ! read -t 1 word; do stty size; done; echo \"read $word\" >&2";
    let mut session = StreamSession::exec(node.cri(), &id, &["sh", "-c", script], TERMINAL);
    session.resize(132, 43);
    session.wait_stdout("43 132\r\n");
    session.resize(80, 24);
    session.wait_stdout("24 80\r\n");
    session.send("word\n");
    session.wait_stdout("read word\r\n");
    assert_eq!(session.wait_exit_code(), 0);
}

#[test]
fn tty_shell_exits_at_client_stdin_eof() {
    let node = TestNode::shared();
    let pod = node.pod("typed");
    let id = pod.start_shell("main", "exec sleep 1000");
    let mut session = StreamSession::exec(node.cri(), &id, &["sh"], TERMINAL);
    session.send("echo a$((1+1))b\n");
    session.end_input();
    assert_eq!(session.wait_exit_code(), 0);
    let shown = String::from_utf8_lossy(&session.received.stdout).into_owned();
    assert!(shown.contains("a2b"), "{shown:?}");
}

#[test]
fn exec_is_killed_when_its_client_disconnects() {
    let node = TestNode::shared();
    let pod = node.pod("vanishes");
    let id = pod.start_shell("main", "exec sleep 1000");
    for streams in [PIPES, TERMINAL] {
        let session = StreamSession::exec(node.cri(), &id, &["sleep", "27182"], streams);
        let runs = || {
            commands(&id)
                .iter()
                .any(|command| command.contains("27182"))
        };
        assert!(eventually(LIMIT, runs), "{:?}", commands(&id));
        drop(session);
        assert!(eventually(LIMIT, || !runs()), "{:?}", commands(&id));
    }
    assert_no_exec_left(&node, &id);
}

#[test]
fn exec_ends_with_its_container() {
    let node = TestNode::shared();
    let pod = node.pod("ends");
    let id = pod.start_shell("main", "exec sleep 1000");
    let mut session = StreamSession::exec(
        node.cri(),
        &id,
        &["sh", "-c", "echo on; exec sleep 1000"],
        PIPES,
    );
    session.wait_stdout("on\n");
    node.cri().stop(&id, 0).expect("it can be stopped");
    assert_eq!(session.wait_exit_code(), 137);
}

#[test]
fn exec_transfers_a_hundred_megabytes_unchanged() {
    let node = TestNode::shared();
    let pod = node.pod("large");
    let id = pod.start_shell("main", "exec sleep 1000");
    // A line of 1021 bytes: no piece that a buffer could lose or double is a multiple of it.
    let line = "0123456789".repeat(102);
    let script = format!("yes {line} | head -c {LARGE}");
    let mut session = StreamSession::exec(node.cri(), &id, &["sh", "-c", &script], OUTPUTS);
    assert_eq!(session.wait_exit_code(), 0);
    let expected = format!("{line}\n");
    let got = &session.received.stdout;
    assert_eq!(got.len(), LARGE);
    let wrong = got
        .chunks(expected.len())
        .position(|piece| *piece != expected.as_bytes()[..piece.len()]);
    assert_eq!(wrong, None, "the first line that is not as it was sent");
    // The other way the container takes the sum.
    let sent = &session.received.stdout[..LARGE / 5];
    let mut back = StreamSession::exec(node.cri(), &id, &["sh", "-c", "md5sum"], PIPES);
    back.send(sent);
    back.end_input();
    assert_eq!(back.wait_exit_code(), 0);
    let sum = node
        .cri()
        .sh(&id, &format!("yes {line} | head -c {} | md5sum", LARGE / 5));
    assert_eq!(
        String::from_utf8_lossy(&back.received.stdout).trim_end(),
        sum
    );
}
