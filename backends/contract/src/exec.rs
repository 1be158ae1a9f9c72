//! Facts about execs in tasks.

use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::backend::{ExecPlace, ExecProcess};
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_core::stream::{Sink, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::contract_test::{ContractTest, ENDLESS, MadeTask};
use crate::refused;
use crate::{Fixture, MISSING_EXECUTABLE, specs};

/// A running task for execs.
async fn host(fixture: &dyn Fixture) -> (ContractTest<'_>, MadeTask) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", ENDLESS).await;
    (test, task)
}

async fn enter(test: &ContractTest<'_>, task: &MadeTask, spec: &ExecSpec) -> ExecProcess {
    test.backend
        .exec(task.id, spec, ExecPlace::uncounted())
        .await
        .expect("exec")
}

async fn all(stream: Option<Source>) -> String {
    let mut text = Vec::new();
    stream
        .expect("the stream is connected")
        .read_to_end(&mut text)
        .await
        .expect("read");
    String::from_utf8(text).expect("the command writes UTF-8")
}

/// Standard output and standard error are separate.
pub async fn exec_process_has_both_streams_and_exit_code(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let spec = specs::exec(&["sh", "-c", "echo out; echo err >&2; exit 4"]);
    let mut process = enter(&test, &task, &spec).await;
    assert!(process.stdin.is_none());
    let (stdout, stderr, code) = tokio::join!(
        all(process.stdout.take()),
        all(process.stderr.take()),
        process.control.wait()
    );
    assert_eq!(
        (stdout.as_str(), stderr.as_str(), code.expect("wait")),
        ("out\n", "err\n", 4)
    );
    process.control.delete().await.expect("delete");
    process.control.delete().await.expect("delete again");
}

/// `cat` echoes more than a pipe holds, then exits.
pub async fn exec_echoes_stdin_and_dropping_it_closes_it(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let spec = ExecSpec {
        stdin: true,
        ..specs::exec(&["cat"])
    };
    let mut process = enter(&test, &task, &spec).await;
    let mut stdin = process.stdin.take().expect("input was asked for");
    let text = "switchyard\n".repeat(50_000);
    let feed = async {
        stdin.write_all(text.as_bytes()).await.expect("write");
        stdin.shutdown().await.expect("flush");
        drop(stdin);
    };
    let ((), stdout, code) = tokio::join!(feed, all(process.stdout.take()), process.control.wait());
    assert_eq!(code.expect("wait"), 0);
    assert!(
        stdout == text,
        "{} bytes came back of {}",
        stdout.len(),
        text.len()
    );
    process.control.delete().await.expect("delete");
}

/// Also by several callers concurrently.
pub async fn exit_can_be_awaited_repeatedly(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let process = enter(&test, &task, &specs::exec(&["sh", "-c", "exit 9"])).await;
    let (first, second) = tokio::join!(process.control.wait(), process.control.wait());
    assert_eq!((first.expect("wait"), second.expect("wait")), (9, 9));
    assert_eq!(process.control.wait().await.expect("wait"), 9);
    process
        .control
        .signal(Signal::TERM)
        .await
        .expect("a signal after the end is done");
}

/// The exit code is 128 plus the signal; the task continues to run.
pub async fn signal_terminates_an_exec_process(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::KILL, 137)] {
        let process = enter(&test, &task, &specs::exec(ENDLESS)).await;
        process.control.signal(signal).await.expect("signal");
        assert_eq!(process.control.wait().await.expect("wait"), code);
        process.control.delete().await.expect("delete");
    }
    let going_on =
        tokio::time::timeout(Duration::from_millis(50), test.backend.wait_task(task.id)).await;
    assert!(going_on.is_err(), "the task ended: {going_on:?}");
}

/// Its output ends, although a reader still has it open.
pub async fn dropped_exec_process_is_killed(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let mut process = enter(&test, &task, &specs::exec(ENDLESS)).await;
    let stdout = process.stdout.take();
    drop(process);
    assert_eq!(all(stdout).await, "");
}

/// Their streams are independent.
pub async fn two_exec_processes_run_concurrently(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let spec = ExecSpec {
        stdin: true,
        ..specs::exec(&["cat"])
    };
    let (mut one, mut other) = tokio::join!(enter(&test, &task, &spec), enter(&test, &task, &spec));
    for (process, text) in [(&mut other, "other"), (&mut one, "one")] {
        let mut stdin = process.stdin.take().expect("input was asked for");
        stdin.write_all(text.as_bytes()).await.expect("write");
        stdin.shutdown().await.expect("flush");
    }
    let (first, second) = tokio::join!(all(one.stdout.take()), all(other.stdout.take()));
    assert_eq!((first.as_str(), second.as_str()), ("one", "other"));
    assert_eq!(one.control.wait().await.expect("wait"), 0);
    assert_eq!(other.control.wait().await.expect("wait"), 0);
}

/// No exec outlives its task.
pub async fn exec_process_ends_with_its_task(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let mut process = enter(&test, &task, &specs::exec(ENDLESS)).await;
    test.kill(task.id).await;
    assert_eq!(process.control.wait().await.expect("wait"), 137);
    assert_eq!(all(process.stdout.take()).await, "");
}

/// `FailedPrecondition` before the start and after the exit.
pub async fn exec_needs_a_running_task(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let created = test.task(task.sandbox, "created", ENDLESS).await;
    test.kill(task.id).await;
    for id in [created.id, task.id] {
        let entered = test
            .backend
            .exec(id, &specs::exec(&["true"]), ExecPlace::uncounted())
            .await;
        assert_eq!(refused(entered), ErrorKind::FailedPrecondition);
    }
}

/// `InvalidArgument`; the task continues to run.
pub async fn exec_of_a_missing_command_is_rejected(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let entered = test
        .backend
        .exec(
            task.id,
            &specs::exec(&[MISSING_EXECUTABLE]),
            ExecPlace::uncounted(),
        )
        .await;
    assert_eq!(refused(entered), ErrorKind::InvalidArgument);
    let process = enter(&test, &task, &specs::exec(&["true"])).await;
    assert_eq!(process.control.wait().await.expect("wait"), 0);
}

/// All output is on standard output.
pub async fn exec_tty_merges_streams_and_can_be_resized(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let spec = ExecSpec {
        tty: true,
        ..specs::exec(&["sh", "-c", "echo out; sleep 0.2; echo err >&2; exit 2"])
    };
    let mut process = enter(&test, &task, &spec).await;
    assert!(process.stderr.is_none());
    process.control.resize(132, 43).await.expect("resize");
    let (stdout, code) = tokio::join!(all(process.stdout.take()), process.control.wait());
    assert_eq!(
        stdout.split_whitespace().collect::<Vec<_>>(),
        ["out", "err"]
    );
    assert_eq!(code.expect("wait"), 2);
}

/// A child that continues to run holds the output open, until it is cut.
pub async fn output_held_by_a_child_can_be_cut_off(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let mut process = enter(
        &test,
        &task,
        &specs::exec(&["sh", "-c", "echo said; sleep 1000 &"]),
    )
    .await;
    assert_eq!(process.control.wait().await.expect("wait"), 0);
    tokio::select! {
        stdout = all(process.stdout.take()) => assert_eq!(stdout, "said\n"),
        () = process.control.cut_output(Duration::from_millis(300)) => panic!("the output has not ended"),
    }
    process.control.delete().await.expect("delete");
}

/// The output of a process while the end of its input is sent, and its exit code.
async fn until_it_ends(process: &mut ExecProcess, mut stdin: Sink) -> (String, i32) {
    let output = all(process.stdout.take());
    let ended = async { tokio::join!(output, process.control.wait()) };
    let typed = async {
        stdin.shutdown().await.expect("shut down");
        std::future::pending().await
    };
    tokio::select! {
        (stdout, code) = ended => (stdout, code.expect("wait")),
        () = typed => unreachable!("the future never completes"),
    }
}

/// Earlier input is read first, and then the process exits by itself.
pub async fn tty_stdin_eof_terminates_the_exec_process(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let spec = ExecSpec {
        tty: true,
        stdin: true,
        ..specs::exec(&["cat"])
    };
    let mut process = enter(&test, &task, &spec).await;
    let mut stdin = process.stdin.take().expect("input was asked for");
    stdin.write_all(b"typed\n").await.expect("write");
    let (stdout, code) = until_it_ends(&mut process, stdin).await;
    assert_eq!(code, 0);
    assert!(stdout.starts_with("typed"), "{stdout:?}");
}

/// Each process that reads the terminal in turn gets the end of the input, as with a pipe.
pub async fn tty_stdin_eof_reaches_all_readers(fixture: &dyn Fixture) {
    let (test, task) = host(fixture).await;
    let spec = ExecSpec {
        tty: true,
        stdin: true,
        ..specs::exec(&["sh", "-c", "cat; cat; echo over"])
    };
    let mut process = enter(&test, &task, &spec).await;
    let stdin = process.stdin.take().expect("input was asked for");
    let (stdout, code) = until_it_ends(&mut process, stdin).await;
    assert_eq!(code, 0);
    assert!(stdout.contains("over"), "{stdout:?}");
}
