//! Kills of the daemon and of the logkeeper while containers print without pause.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::sys::signal::{Signal, kill};
use switchyard_tests::host::eventually;
use switchyard_tests::node::TestNode;

use super::writers::{LIMIT, LineWriter, TestLogkeeper, pause, share, shared_dir};

#[test]
fn daemon_kill_loses_no_line_and_blocks_no_container() {
    let node = TestNode::start();
    let pod = node.pod("busy");
    let writer = LineWriter::start(&node, &pod, "writer", false);
    for _ in 0..3 {
        writer.wait_more_lines(500);
        pause(300);
        node.daemon().kill9();
        // Far more than the pipes on the way can hold.
        writer.wait_more_lines(20_000);
        writer.wait_log_growth();
        node.daemon().restart();
    }
    node.daemon().kill9();
    let total = writer.stop();
    node.daemon().restart();
    assert_eq!(node.cri().wait_exit(&writer.id).exit_code, 0);
    writer.check(&[writer.log()], total);
}

#[test]
fn repeated_logkeeper_kills_lose_duplicate_or_tear_no_line() {
    let (mut keeper, node) = TestLogkeeper::with_node();
    let pod = node.pod("busy");
    let writers = [("plain", false), ("terminal", true)];
    let writers = writers.map(|(name, tty)| LineWriter::start(&node, &pod, name, tty));
    let files = || {
        writers
            .each_ref()
            .map(|writer| fs::metadata(writer.log()).expect("it is there").ino())
    };
    let before = files();
    for _ in 0..30 {
        pause(60);
        keeper.restart();
    }
    writers
        .iter()
        .for_each(|writer| writer.wait_more_lines(1000));
    let totals = writers.each_ref().map(LineWriter::stop);
    for (writer, total) in writers.iter().zip(totals) {
        assert_eq!(node.cri().wait_exit(&writer.id).exit_code, 0);
        writer.check(&[writer.log()], total);
    }
    assert_eq!(files(), before, "a restart continues in the same file");
}

#[test]
fn daemon_and_logkeeper_kills_lose_no_line() {
    let node = TestNode::start();
    let pod = node.pod("busy");
    let writer = LineWriter::start(&node, &pod, "writer", false);
    for round in 0..3 {
        writer.wait_more_lines(500);
        let dead = node
            .root()
            .managed("logkeeper")
            .expect("the daemon writes down whom it started");
        let end_keeper = || kill(dead, Signal::SIGKILL).expect("it runs");
        let again = || {
            eventually(LIMIT, || {
                node.root()
                    .managed("logkeeper")
                    .is_some_and(|pid| pid != dead)
            })
        };
        match round {
            0 => {
                end_keeper();
                pause(50);
                node.daemon().kill9();
            }
            1 => {
                node.daemon().kill9();
                pause(50);
                end_keeper();
            }
            _ => {
                end_keeper();
                assert!(again(), "it is not started again\n{}", node.daemon().tail());
                pause(50);
                node.daemon().kill9();
            }
        }
        node.daemon().restart();
        assert!(again(), "it is not started again\n{}", node.daemon().tail());
    }
    writer.wait_more_lines(20_000);
    let total = writer.stop();
    assert_eq!(node.cri().wait_exit(&writer.id).exit_code, 0);
    writer.check(&[writer.log()], total);
}

#[test]
fn last_lines_are_logged_after_exit_without_a_logkeeper() {
    let (mut keeper, node) = TestLogkeeper::with_node();
    let pod = node.pod("last");
    let dir = shared_dir(&node, "words");
    let script =
        "echo first; until [ -e /host/go ]; do sleep 0.02; done; echo last; printf words; exit 3";
    let id = pod.start_shell_with("words", script, |config| share(config, &dir));
    pod.wait_log("words", |lines| lines.len() == 1);
    keeper.kill();
    fs::write(dir.join("go"), "").expect("the root can be written");
    assert_eq!(node.cri().wait_exit(&id).exit_code, 3);
    keeper.restart();
    // The unfinished line is written once the daemon has reported to the logkeeper that the output has ended.
    let lines = pod.wait_log("words", |lines| lines.len() == 3);
    let words: Vec<_> = lines
        .iter()
        .map(|line| line.splitn(3, ' ').nth(2).unwrap_or_default())
        .collect();
    assert_eq!(words, ["F first", "F last", "P words"]);
}

#[test]
fn logkeeper_that_is_away_is_named_as_the_cause_and_its_return_is_counted() {
    let (mut keeper, node) = TestLogkeeper::with_node();
    let page = || node.daemon().get("/metrics").1;
    let shows = |line: &str| {
        let line = format!("\n{line}\n");
        assert!(eventually(LIMIT, || page().contains(&line)), "{}", page());
    };
    let restarts = "switchyard_managed_restarts_total{cause=\"other\",part=\"logkeeper\"}";
    shows(&format!("{restarts} 0"));
    keeper.kill();
    shows("switchyard_backend_up{part=\"logkeeper\"} 0");
    shows("switchyard_runtime_down{reason=\"LogkeeperUnavailable\"} 1");
    assert!(!page().contains("ContainerdUnavailable"), "{}", page());
    keeper.restart();
    shows("switchyard_backend_up{part=\"runtime\"} 1");
    shows(&format!("{restarts} 1"));
    assert!(!page().contains("switchyard_runtime_down{"), "{}", page());
}
