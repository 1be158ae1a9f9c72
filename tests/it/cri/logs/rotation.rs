//! Rotation as the kubelet does it, by a rename and `ReopenContainerLog`, under load and with kills in
//! between.

use std::fs;

use switchyard_tests::host::eventually;

use super::writers::{LIMIT, LineWriter, TestLogkeeper, pause};

/// Number of rotations of the log.
const ROUNDS: usize = 24;

#[test]
fn log_rotation_under_load_and_kills_loses_no_line() {
    let (mut keeper, node) = TestLogkeeper::with_node();
    let pod = node.pod("rotated");
    let writer = LineWriter::start(&node, &pod, "writer", false);
    let reopen = || node.cri().reopen_log(&writer.id);
    let mut old = Vec::new();
    for round in 0..ROUNDS {
        writer.wait_log_growth();
        let path = writer.log().with_extension(format!("log.{round}"));
        fs::rename(writer.log(), &path).expect("a log can be renamed");
        pause(20);
        match round % 8 {
            1 | 5 => keeper.restart(),
            3 => {
                keeper.kill();
                // A kubelet gets this error, and retries.
                reopen().expect_err("there is no logkeeper");
                keeper.restart();
            }
            6 => {
                node.daemon().kill9();
                pause(50);
                node.daemon().restart();
            }
            7 => {
                node.daemon().kill9();
                keeper.restart();
                node.daemon().restart();
            }
            _ => {}
        }
        assert!(eventually(LIMIT, || reopen().is_ok()), "{:?}", reopen());
        let len = fs::metadata(&path).expect("it is there").len();
        old.push((path, len));
    }
    writer.wait_log_growth();
    let total = writer.stop();
    assert_eq!(node.cri().wait_exit(&writer.id).exit_code, 0);
    for (path, len) in &old {
        let now = fs::metadata(path).expect("it is there").len();
        assert_eq!(now, *len, "{} has grown after its rotation", path.display());
    }
    let files: Vec<_> = old
        .into_iter()
        .map(|(path, _)| path)
        .chain([writer.log()])
        .collect();
    writer.check(&files, total);
}
