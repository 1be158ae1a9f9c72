//! Facts about attaching to a task's streams, and about connecting to ports of a sandbox.

use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::backend::Withdrawal;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::spec::{Output, Stdin, Stdio, TaskSpec};
use switchyard_core::stream::{AttachSpec, Attachment, Sink, Source};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::Fixture;
use crate::contract_test::{ContractTest, ENDLESS, MadeTask};
use crate::refused;

/// All streams.
const ALL: AttachSpec = AttachSpec {
    stdin: true,
    stdout: true,
    stderr: true,
};
/// Time for which a test watches that something does not happen.
const MOMENT: Duration = Duration::from_millis(200);

fn spec(fixture: &dyn Fixture, command: &[&str], stdin: Stdin) -> TaskSpec {
    let stdio = Stdio {
        stdin,
        tty: false,
        output: Output::Live,
    };
    TaskSpec {
        stdio,
        ..fixture.task_spec("task", command)
    }
}

async fn running<'a>(fixture: &'a dyn Fixture, spec: TaskSpec) -> (ContractTest<'a>, MadeTask) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = test.task_of(sandbox.id, spec).await;
    test.backend
        .start_task(task.id, &Withdrawal::default())
        .await
        .expect("start");
    (test, task)
}

async fn join(test: &ContractTest<'_>, id: TaskId) -> Attachment {
    test.backend.attach(id, ALL).await.expect("attach")
}

async fn write_line(to: &mut Attachment, text: &str) {
    let stdin: &mut Sink = to.stdin.as_mut().expect("the task has an input");
    stdin.write_all(text.as_bytes()).await.expect("write");
    stdin.flush().await.expect("flush");
}

async fn expect_output(from: &mut Attachment, text: &str) {
    let mut bytes = vec![0; text.len()];
    from.stdout
        .as_mut()
        .expect("it was asked for")
        .read_exact(&mut bytes)
        .await
        .expect("read");
    assert_eq!(String::from_utf8_lossy(&bytes), text);
}

async fn rest(from: &mut Option<Source>) -> String {
    let mut bytes = Vec::new();
    from.as_mut()
        .expect("it was asked for")
        .read_to_end(&mut bytes)
        .await
        .expect("read");
    String::from_utf8(bytes).expect("the command writes UTF-8")
}

/// Clients attach and disconnect; no disconnect ends the task.
pub async fn attached_clients_share_streams_and_open_stdin_survives_them(fixture: &dyn Fixture) {
    let (test, task) = running(fixture, spec(fixture, &["cat"], Stdin::Open)).await;
    let mut one = join(&test, task.id).await;
    let mut other = join(&test, task.id).await;
    write_line(&mut one, "first\n").await;
    expect_output(&mut one, "first\n").await;
    expect_output(&mut other, "first\n").await;
    write_line(&mut other, "second\n").await;
    expect_output(&mut one, "second\n").await;
    one.stdin
        .take()
        .expect("it was there")
        .shutdown()
        .await
        .expect("shut down");
    drop((one, other));
    let ended = tokio::time::timeout(MOMENT, test.backend.wait_task(task.id)).await;
    assert!(ended.is_err(), "the task ended with its clients: {ended:?}");
    let mut late = join(&test, task.id).await;
    write_line(&mut late, "third\n").await;
    expect_output(&mut late, "third\n").await;
}

/// It also ends for the other attached clients; later clients have no input.
pub async fn attach_stdin_once_closes_with_its_client(fixture: &dyn Fixture) {
    let (test, task) = running(fixture, spec(fixture, &["cat"], Stdin::Once)).await;
    let mut watcher = test
        .backend
        .attach(
            task.id,
            AttachSpec {
                stdin: false,
                ..ALL
            },
        )
        .await
        .expect("attach");
    assert!(watcher.stdin.is_none());
    let mut client = join(&test, task.id).await;
    let _other = join(&test, task.id).await;
    write_line(&mut client, "bye\n").await;
    expect_output(&mut client, "bye\n").await;
    client
        .stdin
        .take()
        .expect("it was there")
        .shutdown()
        .await
        .expect("shut down");
    assert_eq!(test.wait(task.id).await.code, 0);
    assert_eq!(
        (
            rest(&mut client.stdout).await,
            rest(&mut client.stderr).await
        ),
        (String::new(), String::new())
    );
    assert_eq!(rest(&mut watcher.stdout).await, "bye\n");
}

/// However the task ends.
pub async fn attached_output_ends_with_the_task(fixture: &dyn Fixture) {
    let (test, task) = running(fixture, spec(fixture, ENDLESS, Stdin::Closed)).await;
    let mut client = join(&test, task.id).await;
    test.kill(task.id).await;
    assert_eq!(
        (
            rest(&mut client.stdout).await,
            rest(&mut client.stderr).await
        ),
        (String::new(), String::new())
    );
}

/// A task does not see the end of its input because the daemon is dead.
pub async fn open_stdin_survives_the_daemon(fixture: &dyn Fixture) {
    let (mut test, task) = running(fixture, spec(fixture, &["cat"], Stdin::Open)).await;
    let mut before = join(&test, task.id).await;
    write_line(&mut before, "before\n").await;
    expect_output(&mut before, "before\n").await;
    drop(before);
    test.reopen().await;
    let mut after = join(&test, task.id).await;
    write_line(&mut after, "after\n").await;
    expect_output(&mut after, "after\n").await;
}

/// This is not an error: the client wants the output.
pub async fn attach_without_stdin_has_no_input(fixture: &dyn Fixture) {
    let (test, task) = running(fixture, spec(fixture, ENDLESS, Stdin::Closed)).await;
    assert!(join(&test, task.id).await.stdin.is_none());
    test.backend
        .resize_task(task.id, 80, 24)
        .await
        .expect("a size without a terminal is done");
}

/// The terminal echoes the input; it does not end with an attached client.
pub async fn attached_tty_has_one_output_and_can_be_resized(fixture: &dyn Fixture) {
    let mut spec = spec(fixture, &["cat"], Stdin::Once);
    spec.stdio.tty = true;
    let (test, task) = running(fixture, spec).await;
    let mut client = join(&test, task.id).await;
    assert!(client.stderr.is_none());
    test.backend
        .resize_task(task.id, 132, 43)
        .await
        .expect("resize");
    write_line(&mut client, "typed\n").await;
    expect_output(&mut client, "typed").await;
    drop(client);
    let ended = tokio::time::timeout(MOMENT, test.backend.wait_task(task.id)).await;
    assert!(ended.is_err(), "the task ended with its client: {ended:?}");
}

/// `FailedPrecondition`.
pub async fn discarded_output_cannot_be_attached(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let (task, _) = test.running(sandbox.id, "task", ENDLESS).await;
    assert_eq!(
        refused(test.backend.attach(task.id, ALL).await),
        ErrorKind::FailedPrecondition
    );
}

/// `FailedPrecondition` before the start and after the end, `NotFound` for a task that does not exist.
pub async fn attach_needs_a_running_task(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    let task = test
        .task_of(sandbox.id, spec(fixture, ENDLESS, Stdin::Open))
        .await;
    assert_eq!(
        refused(test.backend.attach(task.id, ALL).await),
        ErrorKind::FailedPrecondition
    );
    test.backend
        .start_task(task.id, &Withdrawal::default())
        .await
        .expect("start");
    test.kill(task.id).await;
    assert_eq!(
        refused(test.backend.attach(task.id, ALL).await),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(
        refused(test.backend.attach(TaskId::random(), ALL).await),
        ErrorKind::NotFound
    );
}

/// A sandbox that does not exist is `NotFound`.
pub async fn closed_port_is_unavailable(fixture: &dyn Fixture) {
    let (test, sandbox) = ContractTest::with_sandbox(fixture).await;
    assert_eq!(
        refused(test.backend.dial(sandbox.id, 1).await),
        ErrorKind::Unavailable
    );
    assert_eq!(
        refused(test.backend.dial(SandboxId::random(), 1).await),
        ErrorKind::NotFound
    );
}
