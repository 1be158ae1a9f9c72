//! A follower prints the output of the container, whatever happens to its log meanwhile.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use switchyard_crash_points::CrashPoint;

use super::*;

/// Number of lines that a container prints.
const LINES: u32 = 200_000;

/// Prints the lines in parts, with pauses in which other things can happen.
fn script() -> String {
    format!(
        "i=0; while [ $i -lt 100 ]; do seq $((i*{part}+1)) $(((i+1)*{part})); i=$((i+1)); sleep 0.05; done",
        part = LINES / 100
    )
}

/// Kills the logkeeper after a write to a log, before it stores that.
#[track_caller]
fn kill_after_a_write(node: &TestNode) {
    node.daemon().kill_at(&[(CrashPoint::LinesWritten, 2)]);
    let killed = eventually(LIMIT, || node.daemon().pending_kills().is_empty());
    assert!(killed, "nothing was written\n{}", node.daemon().tail());
}

#[test]
fn every_line_is_followed_once_over_rotations_and_kills_of_the_logkeeper() {
    let node = TestNode::start();
    let pod = node.pod("followed");
    let id = pod.start_shell("main", &script());
    let follower = Follower::start(&node, &["logs", "--follow", &id], "followed");
    let late = Follower::start(
        &node,
        &["logs", "--follow", "--tail", "0", "--since", "1h", &id],
        "late",
    );
    let log = pod.log_path("main");
    let lines = |text: &str| text.lines().count();
    let mut rotated = Vec::new();
    for (round, time) in [
        "20260101-000000",
        "20260101-000010",
        "20260101-000020",
        "20260101-000030",
    ]
    .into_iter()
    .enumerate()
    {
        let goal = (round + 1) * 15_000;
        follower.wait_text(|text| lines(text) > goal);
        let old = log.with_extension(format!("log.{time}"));
        // The next logkeeper writes the last lines again: into the same file, or into the next one.
        if round % 2 == 0 {
            kill_after_a_write(&node);
        }
        fs::rename(&log, &old).expect("a log can be renamed");
        if round % 2 == 1 {
            kill_after_a_write(&node);
        }
        // It may be away at the moment.
        let reopened = eventually(LIMIT, || node.cri().reopen_log(&id).is_ok());
        assert!(reopened, "{}", node.daemon().tail());
        rotated.push(old);
    }
    // As a kubelet does with all rotated files but the newest.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder
        .write_all(&fs::read(&rotated[0]).expect("it is there"))
        .expect("memory is there");
    let compressed = rotated[0].with_extension("20260101-000000.gz");
    fs::write(&compressed, encoder.finish().expect("memory is there"))
        .expect("the root can be written");
    fs::remove_file(&rotated[0]).expect("it is there");
    let status = node.cri().wait_exit(&id);
    assert_eq!(status.exit_code, 0);

    let expected: String = (1..=LINES).map(|line| format!("{line}\n")).collect();
    let same = |name: &str, text: &str| {
        let wrong = text
            .lines()
            .zip(1..)
            .find(|(line, number)| *line != number.to_string());
        assert!(
            text == expected,
            "{name}: {} lines, {wrong:?} is the first wrong one",
            lines(text)
        );
    };
    let (ended, text) = follower.wait_end();
    assert!(ended.success());
    same("followed", &text);
    let (ended, text) = late.wait_end();
    assert!(
        ended.success() && expected.ends_with(&text),
        "{} lines at the end",
        lines(&text)
    );
    same("read afterwards", &node.output(&["logs", &id]));
    assert_eq!(
        node.output(&["logs", "--tail", "150000", &id])
            .lines()
            .next(),
        Some("50001")
    );
    assert_eq!(
        node.output(&["logs", "--tail", "2", &id]),
        format!("{}\n{LINES}\n", LINES - 1)
    );
}

#[test]
fn follower_goes_on_while_the_daemon_is_restarted_and_ends_with_the_removal() {
    let node = TestNode::start();
    let pod = node.pod("restarted");
    let id = pod.start_shell(
        "main",
        "n=0; while :; do n=$((n+1)); echo $n; sleep 0.05; done",
    );
    let follower = Follower::start(&node, &["logs", "-f", &id], "followed");
    follower.wait_text(|text| text.lines().count() > 3);
    node.daemon().kill9();
    let before = follower.text().lines().count();
    follower.wait_text(|text| text.lines().count() > before + 10);
    node.daemon().restart();
    node.cri().stop(&id, 0).expect("it can be stopped");
    node.cri().remove(&id).expect("it can be removed");
    let (status, text) = follower.wait_end();
    assert!(status.success(), "{text}");
    let numbers: Vec<String> = (1..=text.lines().count())
        .map(|number| number.to_string())
        .collect();
    assert_eq!(text.lines().collect::<Vec<_>>(), numbers);
}
