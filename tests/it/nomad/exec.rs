//! Commands in running tasks: with a result only, and with streams.

use std::time::{Duration, Instant};

use serde_json::json;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::driver::ExecOutput;
use switchyard_tests::nomad::{Agent, BlockingDriver, TaskSetup};

use super::shell;

/// Time limit of a command.
const LIMIT: Duration = Duration::from_secs(20);

/// A task that only waits.
fn with_task(test: impl FnOnce(&BlockingDriver, &TaskSetup)) {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "echo up; exec sleep 1000");
    driver.start(&task.config).expect("it starts");
    task.wait_stdout(|text| text.contains("up"));
    test(&driver, &task);
    task.end(&driver);
}

fn said(stdout: &str, stderr: &str, code: i32) -> ExecOutput {
    ExecOutput {
        stdout: stdout.to_owned(),
        stderr: stderr.to_owned(),
        code,
    }
}

#[test]
fn exec_returns_output_and_code_and_is_killed_at_timeout() {
    with_task(|driver, task| {
        let script = "echo out; echo err >&2; exit 9";
        let answer = driver
            .exec(task.id(), &["sh", "-c", script], LIMIT)
            .expect("it runs");
        assert_eq!(answer, said("out\n", "err\n", 9));
        // The last that fits is kept.
        let long = "seq 1 5000";
        let answer = driver
            .exec(task.id(), &["sh", "-c", long], LIMIT)
            .expect("it runs");
        assert!(
            answer.stdout.len() <= 4096 && answer.stdout.ends_with("\n4999\n5000\n"),
            "{answer:?}"
        );
        let begin = Instant::now();
        let late = driver.exec(task.id(), &["sleep", "1000"], Duration::from_millis(300));
        late.expect_err("it takes too long");
        assert!(begin.elapsed() < LIMIT);
        let left = driver
            .exec(
                task.id(),
                &["sh", "-c", "ps | grep -c '[s]leep 1000'"],
                LIMIT,
            )
            .expect("it runs");
        assert_eq!(left.stdout, "1\n", "the task's own sleep alone is left");
        driver
            .exec("none/such/12345678", &["true"], LIMIT)
            .expect_err("there is no such task");
        // Environment and directory are the task's own.
        let env = driver.exec(
            task.id(),
            &["sh", "-c", "echo $NOMAD_TASK_DIR $NOMAD_ALLOC_DIR"],
            LIMIT,
        );
        assert_eq!(env.expect("it runs").stdout, "/local /alloc\n");
    });
}

#[test]
fn exec_streams_without_tty_are_separate_and_complete() {
    with_task(|driver, task| {
        let run = |script: &str, input: &str, close| {
            driver.exec_streaming(
                task.id(),
                &["sh", "-c", script],
                false,
                input.as_bytes(),
                close,
            )
        };
        let script = "echo hi; echo wrong >&2";
        assert_eq!(
            run(script, "", false).expect("it runs"),
            said("hi\n", "wrong\n", 0)
        );
        let script = "for n in 1 2 3; do echo $n; sleep 0.1; done";
        assert_eq!(
            run(script, "", false).expect("it runs"),
            said("1\n2\n3\n", "", 0)
        );
        let answer = run("stty size", "", false).expect("it runs");
        assert!(
            answer.code != 0 && answer.stdout.is_empty() && !answer.stderr.is_empty(),
            "{answer:?}"
        );
        let script = "echo from the command; head -n1";
        assert_eq!(
            run(script, "typed\n", false).expect("it runs"),
            said("from the command\ntyped\n", "", 0)
        );
        let script = "(( sleep 0.3; echo behind ) & ); echo first; exec sleep 0.1";
        assert_eq!(
            run(script, "", false).expect("it runs"),
            said("first\nbehind\n", "", 0)
        );
        assert_eq!(
            run("exit 56", "", false).expect("it runs"),
            said("", "", 56)
        );
        let many = "0123456789\n".repeat(20_000);
        assert_eq!(
            run("cat", &many, true).expect("it runs"),
            said(&many, "", 0)
        );
        let missing = driver.exec_streaming(task.id(), &["no-such-program"], false, b"", false);
        match missing {
            Ok(answer) => assert!(matches!(answer.code, 126 | 127), "{answer:?}"),
            Err(status) => assert!(status.message().contains("no-such-program"), "{status}"),
        }
    });
}

#[test]
fn exec_tty_resizes_reads_input_and_ends_with_its_process() {
    with_task(|driver, task| {
        let run = |script: &str, input: &str| {
            driver.exec_streaming(
                task.id(),
                &["sh", "-c", script],
                true,
                input.as_bytes(),
                false,
            )
        };
        // The size comes right after the command.
        let script = "n=0; while [ \"$(stty size 2>/dev/null)\" != '24 80' ] && [ $n -lt 100 ]; do n=$((n+1)); sleep 0.05; done; stty size";
        assert_eq!(run(script, "").expect("it runs"), said("24 80\r\n", "", 0));
        let answer = run("head -n1; echo err >&2", "typed\n").expect("it runs");
        assert_eq!(answer, said("typed\r\ntyped\r\nerr\r\n", "", 0));
        let begin = Instant::now();
        let answer = run(
            "trap '' HUP; (sleep 100; echo behind) & echo first; exit 3",
            "",
        )
        .expect("it runs");
        assert_eq!((answer.stdout.as_str(), answer.code), ("first\r\n", 3));
        assert!(begin.elapsed() < LIMIT, "it waited for a child");
    });
}
