//! Facts about attaching to a task's streams, and about connecting to ports of a sandbox.

use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::spec::{Output, Stdin, Stdio, TaskSpec};
use switchyard_core::stream::{AttachSpec, Attachment, Sink, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Fixture;
use crate::lab::{ContractTest, ENDLESS, MadeTask, refused};

/// All streams.
const ALL: AttachSpec = AttachSpec { stdin: true, stdout: true, stderr: true };
/// How long a test waits for something that must not happen.
const MOMENT: Duration = Duration::from_millis(200);

fn spec(fixture: &dyn Fixture, command: &[&str], stdin: Stdin) -> TaskSpec {
    let stdio = Stdio { stdin, tty: false, output: Output::Live };
    TaskSpec { stdio, ..fixture.task_spec("task", command) }
}

async fn running<'a>(fixture: &'a dyn Fixture, spec: TaskSpec) -> (ContractTest<'a>, MadeTask) {
    let (lab, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = lab.task_of(sandbox.id, spec).await;
    lab.backend.start_task(task.id).await.expect("start");
    (lab, task)
}

async fn join(lab: &ContractTest<'_>, id: TaskId) -> Attachment {
    lab.backend.attach(id, ALL).await.expect("attach")
}

async fn write_line(to: &mut Attachment, text: &str) {
    let stdin: &mut Sink = to.stdin.as_mut().expect("the task has an input");
    stdin.write_all(text.as_bytes()).await.expect("write");
    stdin.flush().await.expect("flush");
}

async fn expect_output(from: &mut Attachment, text: &str) {
    let mut bytes = vec![0; text.len()];
    from.stdout.as_mut().expect("it was asked for").read_exact(&mut bytes).await.expect("read");
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

async fn rest(from: &mut Option<Source>) -> String {
    let mut bytes = Vec::new();
    from.as_mut().expect("it was asked for").read_to_end(&mut bytes).await.expect("read");
    String::from_utf8(bytes).expect("the command writes UTF-8")
}

/// Clients attach and disconnect; no disconnect ends the task.
pub async fn what_one_client_says_is_heard_by_all_and_an_open_input_outlives_them(fixture: &dyn Fixture) {
    let (lab, task) = running(fixture, spec(fixture, &["cat"], Stdin::Open)).await;
    let mut one = join(&lab, task.id).await;
    let mut other = join(&lab, task.id).await;
    write_line(&mut one, "first\n").await;
    expect_output(&mut one, "first\n").await;
    expect_output(&mut other, "first\n").await;
    write_line(&mut other, "second\n").await;
    expect_output(&mut one, "second\n").await;
    one.stdin.take().expect("it was there").shutdown().await.expect("shut down");
    drop((one, other));
    let ended = tokio::time::timeout(MOMENT, lab.backend.wait_task(task.id)).await;
    assert!(ended.is_err(), "the task ended with its clients: {ended:?}");
    let mut late = join(&lab, task.id).await;
    write_line(&mut late, "third\n").await;
    expect_output(&mut late, "third\n").await;
}

/// It also ends for the other attached clients; later clients have no input.
pub async fn an_input_that_is_once_ends_with_its_client(fixture: &dyn Fixture) {
    let (lab, task) = running(fixture, spec(fixture, &["cat"], Stdin::Once)).await;
    let mut watcher = lab.backend.attach(task.id, AttachSpec { stdin: false, ..ALL }).await.expect("attach");
    assert!(watcher.stdin.is_none());
    let mut client = join(&lab, task.id).await;
    let _other = join(&lab, task.id).await;
    write_line(&mut client, "bye\n").await;
    expect_output(&mut client, "bye\n").await;
    client.stdin.take().expect("it was there").shutdown().await.expect("shut down");
    assert_eq!(lab.wait(task.id).await.code, 0);
    assert_eq!(
        (rest(&mut client.stdout).await, rest(&mut client.stderr).await),
        (String::new(), String::new())
    );
    assert_eq!(rest(&mut watcher.stdout).await, "bye\n");
}

/// However the task ends.
pub async fn output_ends_with_the_task(fixture: &dyn Fixture) {
    let (lab, task) = running(fixture, spec(fixture, ENDLESS, Stdin::Closed)).await;
    let mut client = join(&lab, task.id).await;
    lab.kill(task.id).await;
    assert_eq!(
        (rest(&mut client.stdout).await, rest(&mut client.stderr).await),
        (String::new(), String::new())
    );
}

/// A task does not see the end of its input because the daemon is dead.
pub async fn an_open_input_outlives_the_daemon(fixture: &dyn Fixture) {
    let (mut lab, task) = running(fixture, spec(fixture, &["cat"], Stdin::Open)).await;
    let mut before = join(&lab, task.id).await;
    write_line(&mut before, "before\n").await;
    expect_output(&mut before, "before\n").await;
    drop(before);
    lab.reopen().await;
    let mut after = join(&lab, task.id).await;
    write_line(&mut after, "after\n").await;
    expect_output(&mut after, "after\n").await;
}

/// This is not an error: the client wants the output.
pub async fn a_task_without_input_gives_none(fixture: &dyn Fixture) {
    let (lab, task) = running(fixture, spec(fixture, ENDLESS, Stdin::Closed)).await;
    assert!(join(&lab, task.id).await.stdin.is_none());
    lab.backend.resize_task(task.id, 80, 24).await.expect("a size without a terminal is done");
}

/// The terminal echoes the input; it does not end with an attached client.
pub async fn a_terminal_gives_one_output_and_can_be_resized(fixture: &dyn Fixture) {
    let mut spec = spec(fixture, &["cat"], Stdin::Once);
    spec.stdio.tty = true;
    let (lab, task) = running(fixture, spec).await;
    let mut client = join(&lab, task.id).await;
    assert!(client.stderr.is_none());
    lab.backend.resize_task(task.id, 132, 43).await.expect("resize");
    write_line(&mut client, "typed\n").await;
    expect_output(&mut client, "typed").await;
    drop(client);
    let ended = tokio::time::timeout(MOMENT, lab.backend.wait_task(task.id)).await;
    assert!(ended.is_err(), "the task ended with its client: {ended:?}");
}

/// `FailedPrecondition`.
pub async fn output_that_goes_nowhere_cannot_be_attached_to(fixture: &dyn Fixture) {
    let (lab, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = lab.running(sandbox.id, "task", ENDLESS).await;
    assert_eq!(refused(lab.backend.attach(task.id, ALL).await), ErrorKind::FailedPrecondition);
}

/// `FailedPrecondition` before the start and after the end, `NotFound` for a task that does not exist.
pub async fn a_task_that_does_not_run_cannot_be_attached_to(fixture: &dyn Fixture) {
    let (lab, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = lab.task_of(sandbox.id, spec(fixture, ENDLESS, Stdin::Open)).await;
    assert_eq!(refused(lab.backend.attach(task.id, ALL).await), ErrorKind::FailedPrecondition);
    lab.backend.start_task(task.id).await.expect("start");
    lab.kill(task.id).await;
    assert_eq!(refused(lab.backend.attach(task.id, ALL).await), ErrorKind::FailedPrecondition);
    assert_eq!(refused(lab.backend.attach(TaskId::random(), ALL).await), ErrorKind::NotFound);
}

/// A sandbox that does not exist is `NotFound`.
pub async fn a_port_that_nobody_listens_on_is_unavailable(fixture: &dyn Fixture) {
    let (lab, sandbox) = ContractTest::with_sandbox(fixture).await;
    assert_eq!(refused(lab.backend.dial(sandbox.id, 1).await), ErrorKind::Unavailable);
    assert_eq!(refused(lab.backend.dial(SandboxId::random(), 1).await), ErrorKind::NotFound);
}
