//! Logs of containers.

mod full_disk;
mod kills;
mod rotation;
pub(crate) mod writers;

use std::fs;
use std::os::unix::fs::symlink;

use switchyard_tests::node::{TestNode, log_content};
use tonic::Code;

/// The most bytes of text in one line of a log.
const CHUNK: usize = 16 << 10;

#[test]
fn long_lines_are_split_and_marked_partial() {
    let node = TestNode::shared();
    let pod = node.pod("long");
    let script = "head -c 40000 /dev/zero | tr '\\0' x; echo; echo short; printf unfinished";
    let id = pod.start_shell("main", script);
    let _ = node.cri().wait_exit(&id);
    let lines = pod.log("main");
    let seen: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line.split(' ').nth(2).unwrap_or_default(),
                log_content(line).len(),
            )
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("P", CHUNK),
            ("P", CHUNK),
            ("F", 40_000 - 2 * CHUNK),
            ("F", 5),
            ("P", 10)
        ]
    );
}

#[test]
fn log_reopen_leaves_the_old_file_untouched() {
    let node = TestNode::shared();
    let pod = node.pod("rotated");
    let script = "n=0; while :; do n=$((n+1)); echo line $n; sleep 0.01; done";
    let id = pod.start_shell("main", script);
    let path = pod.log_path("main");
    let rotated = path.with_extension("log.1");
    pod.wait_log("main", |lines| lines.len() > 5);
    fs::rename(&path, &rotated).expect("a log can be renamed");
    node.cri().reopen_log(&id).expect("it can be reopened");
    let old = fs::read_to_string(&rotated).expect("the old one is there");
    let new = pod.wait_log("main", |lines| lines.len() > 5);
    assert_eq!(
        fs::read_to_string(&rotated).expect("the old one is there"),
        old,
        "the old one has grown"
    );
    node.cri().stop(&id, 0).expect("it can be stopped");
    let all: Vec<_> = old
        .lines()
        .chain(new.iter().map(String::as_str))
        .map(log_content)
        .collect();
    let expected: Vec<_> = (1..=all.len())
        .map(|number| format!("line {number}"))
        .collect();
    assert_eq!(all, expected, "lines are missing between the two");
    let status = node.cri().reopen_log(&id).expect_err("it has ended");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
}

#[test]
fn symlink_at_the_log_path_is_not_followed() {
    let node = TestNode::shared();
    let pod = node.pod("linked");
    let path = pod.log_path("main");
    let target = pod.log_path("main").with_file_name("precious");
    fs::create_dir_all(path.parent().expect("it is in a directory"))
        .expect("the root can be written");
    fs::write(&target, "as it was").expect("the root can be written");
    symlink(&target, &path).expect("a link can be made");
    let id = pod.create(&node.container("main", &["sh", "-c", "echo said; exec sleep 1000"]));
    let status = node.cri().start(&id).expect_err("its log cannot be opened");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(
        status.message().contains(&format!(
            "log {} cannot be written: it is a symbolic link",
            path.display()
        )),
        "{status}"
    );
    // Nor when the log is reopened.
    let other = pod.start_shell("other", "while :; do echo line; sleep 0.01; done");
    let log = pod.log_path("other");
    pod.wait_log("other", |lines| lines.len() > 5);
    fs::rename(&log, log.with_extension("log.1")).expect("a log can be renamed");
    symlink(&target, &log).expect("a link can be made");
    let status = node
        .cri()
        .reopen_log(&other)
        .expect_err("its log cannot be opened");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(
        status.message().contains(&format!(
            "log {} cannot be written: it is a symbolic link",
            log.display()
        )),
        "{status}"
    );
    fs::remove_file(&log).expect("a link can be removed");
    node.cri().reopen_log(&other).expect("now it can");
    pod.wait_log("other", |lines| lines.len() > 5);
    assert_eq!(
        fs::read_to_string(&target).expect("it is there"),
        "as it was"
    );
}

#[test]
fn container_without_log_path_runs_unlogged() {
    let node = TestNode::shared();
    let pod = node.pod("silent");
    let script = "head -c 1000000 /dev/zero; exec sleep 1000";
    let id = pod.start_shell_with("main", script, |config| config.log_path.clear());
    // Unread output must not block the container.
    let ran = switchyard_tests::host::eventually(std::time::Duration::from_secs(10), || {
        node.cri().sh(&id, "cat /proc/1/cmdline | tr '\\0' ' '") == "sleep 1000 "
    });
    assert!(ran, "its output holds it up");
    assert_eq!(
        node.cri().status(&id).expect("it has a status").log_path,
        ""
    );
    assert!(!pod.log_path("main").exists());
}
