//! Facts about execs in tasks.

use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::backend::ExecProcess;
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_core::stream::{Sink, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::lab::{ContractTest, ENDLESS, MadeTask, refused};
use crate::{Fixture, MISSING_EXECUTABLE, specs};

/// A running task for execs.
async fn host(fixture: &dyn Fixture) -> (ContractTest<'_>, MadeTask) {
    let (lab, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = lab.running(sandbox.id, "task", ENDLESS).await;
    (lab, task)
}

async fn enter(lab: &ContractTest<'_>, task: &MadeTask, spec: &ExecSpec) -> ExecProcess {
    lab.backend.exec(task.id, spec).await.expect("exec")
}

async fn all(stream: Option<Source>) -> String {
    let mut text = Vec::new();
    stream.expect("the stream is connected").read_to_end(&mut text).await.expect("read");
    String::from_utf8(text).expect("the command writes UTF-8")
}

/// Standard output and standard error are separate.
pub async fn a_process_writes_to_both_streams_and_ends_with_its_code(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let spec = specs::exec(&["sh", "-c", "echo out; echo err >&2; exit 4"]);
    let mut process = enter(&lab, &task, &spec).await;
    assert!(process.stdin.is_none());
    let (stdout, stderr, code) =
        tokio::join!(all(process.stdout.take()), all(process.stderr.take()), process.control.wait());
    assert_eq!((stdout.as_str(), stderr.as_str(), code.expect("wait")), ("out\n", "err\n", 4));
    process.control.delete().await.expect("delete");
    process.control.delete().await.expect("delete again");
}

/// `cat` echoes more than a pipe holds, then exits.
pub async fn what_goes_in_comes_out_and_dropping_the_input_ends_it(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let spec = ExecSpec { stdin: true, ..specs::exec(&["cat"]) };
    let mut process = enter(&lab, &task, &spec).await;
    let mut stdin = process.stdin.take().expect("input was asked for");
    let text = "switchyard\n".repeat(50_000);
    let feed = async {
        stdin.write_all(text.as_bytes()).await.expect("write");
        stdin.shutdown().await.expect("flush");
        drop(stdin);
    };
    let ((), stdout, code) = tokio::join!(feed, all(process.stdout.take()), process.control.wait());
    assert_eq!(code.expect("wait"), 0);
    assert!(stdout == text, "{} bytes came back of {}", stdout.len(), text.len());
    process.control.delete().await.expect("delete");
}

/// Also by several callers concurrently.
pub async fn the_end_can_be_asked_for_again(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let process = enter(&lab, &task, &specs::exec(&["sh", "-c", "exit 9"])).await;
    let (first, second) = tokio::join!(process.control.wait(), process.control.wait());
    assert_eq!((first.expect("wait"), second.expect("wait")), (9, 9));
    assert_eq!(process.control.wait().await.expect("wait"), 9);
    process.control.signal(Signal::TERM).await.expect("a signal after the end is done");
}

/// The exit code is 128 plus the signal; the task continues to run.
pub async fn a_signal_ends_a_process(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    for (signal, code) in [(Signal::TERM, 143), (Signal::KILL, 137)] {
        let process = enter(&lab, &task, &specs::exec(ENDLESS)).await;
        process.control.signal(signal).await.expect("signal");
        assert_eq!(process.control.wait().await.expect("wait"), code);
        process.control.delete().await.expect("delete");
    }
    let going_on = tokio::time::timeout(Duration::from_millis(50), lab.backend.wait_task(task.id)).await;
    assert!(going_on.is_err(), "the task ended: {going_on:?}");
}

/// Its output ends, although a reader still has it open.
pub async fn a_dropped_process_is_killed(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let mut process = enter(&lab, &task, &specs::exec(ENDLESS)).await;
    let stdout = process.stdout.take();
    drop(process);
    assert_eq!(all(stdout).await, "");
}

/// Their streams are independent.
pub async fn two_processes_run_at_the_same_time(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let spec = ExecSpec { stdin: true, ..specs::exec(&["cat"]) };
    let (mut one, mut other) = tokio::join!(enter(&lab, &task, &spec), enter(&lab, &task, &spec));
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
pub async fn a_process_ends_with_its_task(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let mut process = enter(&lab, &task, &specs::exec(ENDLESS)).await;
    lab.kill(task.id).await;
    assert_eq!(process.control.wait().await.expect("wait"), 137);
    assert_eq!(all(process.stdout.take()).await, "");
}

/// `FailedPrecondition` before the start and after the exit.
pub async fn a_task_that_does_not_run_cannot_be_entered(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let created = lab.task(task.sandbox, "created", ENDLESS).await;
    lab.kill(task.id).await;
    for id in [created.id, task.id] {
        let entered = lab.backend.exec(id, &specs::exec(&["true"])).await;
        assert_eq!(refused(entered), ErrorKind::FailedPrecondition);
    }
}

/// `InvalidArgument`; the task continues to run.
pub async fn a_command_that_does_not_exist_is_refused(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let entered = lab.backend.exec(task.id, &specs::exec(&[MISSING_EXECUTABLE])).await;
    assert_eq!(refused(entered), ErrorKind::InvalidArgument);
    let process = enter(&lab, &task, &specs::exec(&["true"])).await;
    assert_eq!(process.control.wait().await.expect("wait"), 0);
}

/// All output is on standard output.
pub async fn a_terminal_merges_the_streams_and_can_be_resized(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let spec =
        ExecSpec { tty: true, ..specs::exec(&["sh", "-c", "echo out; sleep 0.2; echo err >&2; exit 2"]) };
    let mut process = enter(&lab, &task, &spec).await;
    assert!(process.stderr.is_none());
    process.control.resize(132, 43).await.expect("resize");
    let (stdout, code) = tokio::join!(all(process.stdout.take()), process.control.wait());
    assert_eq!(stdout.split_whitespace().collect::<Vec<_>>(), ["out", "err"]);
    assert_eq!(code.expect("wait"), 2);
}

/// A child that continues to run holds the output open, until it is cut.
pub async fn output_that_a_child_holds_can_be_cut(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let mut process = enter(&lab, &task, &specs::exec(&["sh", "-c", "echo said; sleep 1000 &"])).await;
    assert_eq!(process.control.wait().await.expect("wait"), 0);
    let (stdout, ()) =
        tokio::join!(all(process.stdout.take()), process.control.cut_output(Duration::from_millis(300)));
    assert_eq!(stdout, "said\n");
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
pub async fn the_end_of_what_is_typed_ends_a_process_with_a_terminal(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let spec = ExecSpec { tty: true, stdin: true, ..specs::exec(&["cat"]) };
    let mut process = enter(&lab, &task, &spec).await;
    let mut stdin = process.stdin.take().expect("input was asked for");
    stdin.write_all(b"typed\n").await.expect("write");
    let (stdout, code) = until_it_ends(&mut process, stdin).await;
    assert_eq!(code, 0);
    assert!(stdout.starts_with("typed"), "{stdout:?}");
}

/// Each process that reads the terminal in turn gets the end of the input, as with a pipe.
pub async fn the_end_of_what_is_typed_is_there_for_all_who_read(fixture: &dyn Fixture) {
    let (lab, task) = host(fixture).await;
    let spec = ExecSpec { tty: true, stdin: true, ..specs::exec(&["sh", "-c", "cat; cat; echo over"]) };
    let mut process = enter(&lab, &task, &spec).await;
    let stdin = process.stdin.take().expect("input was asked for");
    let (stdout, code) = until_it_ends(&mut process, stdin).await;
    assert_eq!(code, 0);
    assert!(stdout.contains("over"), "{stdout:?}");
}
