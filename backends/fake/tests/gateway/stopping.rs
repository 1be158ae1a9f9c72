//! Stopping and removing tasks, with and without a grace period, and sandboxes, with failures.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures::poll;
use switchyard_contract::refused;
use switchyard_core::backend::{Backend, BackendStatus, Condition};
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::spec::{Signal, TaskUpdate};
use switchyard_core::state::{ExitCause, SandboxState, TaskState};
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::Method;
use tokio::time::Instant;

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec, until};

const LONG: Duration = Duration::from_secs(3600);
const SHORT: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn second_stop_sends_no_signal_but_keeps_its_own_grace() {
    let node = FakeNode::new().await;
    let task = node.running(&["ignore-term"]).await;
    let id = task.id.to_string();
    let begun = Instant::now();
    let mut patient = pin!(node.scope.tasks().stop(&id, LONG));
    assert!(poll!(&mut patient).is_pending());
    until(|| node.fake.signals(task.id) == [Signal::TERM]).await;
    let (patient, hasty) = tokio::join!(patient, node.scope.tasks().stop(&id, SHORT));
    patient.unwrap();
    hasty.unwrap();
    assert_eq!(node.fake.signals(task.id), [Signal::TERM, Signal::KILL]);
    assert!(
        begun.elapsed() >= SHORT && begun.elapsed() < SHORT * 2,
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(node.exit(task.id).code, 137);
    node.agrees().await;
}

#[tokio::test(start_paused = true)]
async fn stop_returns_when_the_task_exits() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let begun = Instant::now();
    node.scope
        .tasks()
        .stop(&task.id.to_string(), LONG)
        .await
        .unwrap();
    assert_eq!(
        (node.exit(task.id).code, node.exit(task.id).cause),
        (143, ExitCause::Exited)
    );
    assert_eq!(node.fake.signals(task.id), [Signal::TERM]);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn delayed_stop_signal_counts_against_the_grace() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let id = task.id.to_string();
    let begun = Instant::now();
    let hold = node.fake.hold(Method::SignalTask);
    let (stopped, ()) = tokio::join!(node.scope.tasks().stop(&id, SHORT), async {
        // The stop signal, and then SIGKILL.
        hold.arrived(2).await;
        assert!(
            begun.elapsed() >= SHORT && begun.elapsed() < SHORT * 2,
            "{:?}",
            begun.elapsed()
        );
        hold.release();
    });
    stopped.unwrap();
    node.agrees().await;
}

#[tokio::test]
async fn stop_uses_the_tasks_stop_signal() {
    let node = FakeNode::new().await;
    let sandbox = node.sandbox().await.id.to_string();
    let mut spec = task_spec(
        "task",
        &[
            "sh",
            "-c",
            "trap 'exit 9' USR1; while true; do sleep 1; done",
        ],
    );
    spec.stop_signal = Signal::parse("SIGUSR1");
    let task = node.scope.tasks().create(&sandbox, spec).await.unwrap();
    node.scope
        .tasks()
        .start(&task.id.to_string())
        .await
        .unwrap();
    node.scope
        .tasks()
        .stop(&task.id.to_string(), LONG)
        .await
        .unwrap();
    assert_eq!(node.exit(task.id).code, 9);
}

#[tokio::test]
async fn stop_without_grace_kills() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    node.scope
        .tasks()
        .stop(&task.id.to_string(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(node.fake.signals(task.id), [Signal::KILL]);
    assert_eq!(node.exit(task.id).code, 137);
}

#[tokio::test]
async fn stop_continues_when_its_caller_is_dropped() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let hold = node.fake.hold(Method::SignalTask);
    {
        let id = task.id.to_string();
        let mut gone = pin!(node.scope.tasks().stop(&id, LONG));
        assert!(poll!(&mut gone).is_pending());
        hold.arrived(1).await;
    }
    hold.release();
    assert_eq!(
        node.scope
            .tasks()
            .wait(&task.id.to_string())
            .await
            .unwrap()
            .code,
        143
    );
}

#[tokio::test]
async fn stop_of_a_task_not_running_sends_no_signal() {
    let node = FakeNode::new().await;
    let created = node.task(ENDLESS).await;
    node.scope
        .tasks()
        .stop(&created.id.to_string(), LONG)
        .await
        .unwrap();
    assert_eq!(node.state(created.id), TaskState::Created);
    let spec = task_spec("done", &["true"]);
    let ended = node
        .scope
        .tasks()
        .create(&created.sandbox.to_string(), spec)
        .await
        .unwrap();
    node.scope
        .tasks()
        .start(&ended.id.to_string())
        .await
        .unwrap();
    node.scope
        .tasks()
        .wait(&ended.id.to_string())
        .await
        .unwrap();
    node.scope
        .tasks()
        .stop(&ended.id.to_string(), LONG)
        .await
        .unwrap();
    node.scope
        .tasks()
        .stop(&TaskId::random().to_string(), LONG)
        .await
        .unwrap();
    assert_eq!(node.exit(ended.id).code, 0);
    assert_eq!(node.fake.count(Method::SignalTask), 0);
    node.agrees().await;
}

#[tokio::test]
async fn stop_does_not_wait_for_a_start_of_an_unavailable_backend() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let id = task.id.to_string();
    let hold = node.fake.hold(Method::StartTask);
    let mut start = pin!(node.scope.tasks().start(&id));
    assert!(poll!(&mut start).is_pending());
    hold.arrived(1).await;
    let up = node.fake.status();
    let away = Condition::False {
        reason: "Away".into(),
        message: "containerd is away".into(),
    };
    node.fake.set_status(BackendStatus {
        runtime: away,
        ..up.clone()
    });
    for error in [
        node.scope.tasks().stop(&id, LONG).await.unwrap_err(),
        node.scope.tasks().remove(&id).await.unwrap_err(),
        node.scope
            .tasks()
            .update(&id, TaskUpdate::default())
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("containerd is away"), "{error}");
    }
    node.fake.set_status(up);
    hold.release();
    start.await.unwrap();
    node.scope.tasks().stop(&id, LONG).await.unwrap();
    assert_eq!(node.exit(task.id).code, 143);
    node.agrees().await;
}

#[tokio::test]
async fn stop_waits_for_a_start_in_flight() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let id = task.id.to_string();
    let hold = node.fake.hold(Method::StartTask);
    let mut start = pin!(node.scope.tasks().start(&id));
    assert!(poll!(&mut start).is_pending());
    hold.arrived(1).await;
    let mut stop = pin!(node.scope.tasks().stop(&id, LONG));
    assert!(poll!(&mut stop).is_pending());
    assert_eq!(node.state(task.id), TaskState::Starting);
    hold.release();
    let (started, stopped) = tokio::join!(start, stop);
    started.unwrap();
    stopped.unwrap();
    assert_eq!(node.exit(task.id).code, 143);
    node.agrees().await;
}

#[tokio::test]
async fn removal_of_a_running_task_kills_it() {
    let node = FakeNode::new().await;
    let task = node.running(&["ignore-term"]).await;
    node.scope
        .tasks()
        .remove(&task.id.to_string())
        .await
        .unwrap();
    assert_eq!(node.fake.signals(task.id), [Signal::KILL]);
    assert_eq!(
        refused(node.scope.tasks().find(&task.id.to_string())),
        ErrorKind::NotFound
    );
    node.scope
        .tasks()
        .remove(&task.id.to_string())
        .await
        .unwrap();
    assert_eq!(node.fake.count(Method::RemoveTask), 1);
    node.agrees().await;
}

#[tokio::test]
async fn failed_removal_can_be_retried() {
    let node = FakeNode::new().await;
    let task = node.running(&["sh", "-c", "exit 4"]).await;
    let id = task.id.to_string();
    assert_eq!(node.scope.tasks().wait(&id).await.unwrap().code, 4);
    node.fake
        .fail_next(Method::RemoveTask, Error::unavailable("containerd is away"));
    assert_eq!(
        refused(node.scope.tasks().remove(&id).await),
        ErrorKind::Unavailable
    );
    assert_eq!(node.exit(task.id).code, 4);
    node.scope.tasks().remove(&id).await.unwrap();
    node.agrees().await;
}

#[tokio::test(start_paused = true)]
async fn missing_exit_after_sigkill_is_an_error() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let hold = node.fake.hold(Method::WaitTask);
    node.scope
        .tasks()
        .start(&task.id.to_string())
        .await
        .unwrap();
    let stopped = node
        .scope
        .tasks()
        .stop(&task.id.to_string(), Duration::ZERO)
        .await;
    assert_eq!(refused(stopped), ErrorKind::DeadlineExceeded);
    let unended = || node.gateway.tasks().count_unended();
    assert_eq!(unended(), BTreeMap::from([(Owner::Kubernetes, 1)]));
    hold.release();
    node.scope
        .tasks()
        .stop(&task.id.to_string(), LONG)
        .await
        .unwrap();
    assert_eq!(node.exit(task.id).code, 137);
    assert!(unended().is_empty());
}

#[tokio::test]
async fn concurrent_sandbox_stops_run_once() {
    let node = FakeNode::new().await;
    let task = node.running(&["ignore-term"]).await;
    let id = task.sandbox.to_string();
    let hold = node.fake.hold(Method::StopSandbox);
    let mut stops = pin!(async {
        tokio::join!(
            node.scope.sandboxes().stop(&id),
            node.scope.sandboxes().stop(&id)
        )
    });
    assert!(poll!(&mut stops).is_pending());
    hold.arrived(1).await;
    assert_eq!(node.exit(task.id).code, 137);
    hold.release();
    let (first, second) = stops.await;
    first.unwrap();
    second.unwrap();
    node.scope.sandboxes().stop(&id).await.unwrap();
    assert_eq!(node.fake.count(Method::StopSandbox), 1);
    assert_eq!(
        node.scope.sandboxes().find(&id).unwrap().state,
        SandboxState::Stopped
    );
    node.agrees().await;
}

#[tokio::test]
async fn sandbox_with_failed_stop_rejects_tasks_and_can_be_stopped_again() {
    let node = FakeNode::new().await;
    let id = node.sandbox().await.id.to_string();
    node.fake.fail_next(
        Method::StopSandbox,
        Error::unavailable("the network is away"),
    );
    assert_eq!(
        refused(node.scope.sandboxes().stop(&id).await),
        ErrorKind::Unavailable
    );
    assert_eq!(
        node.scope.sandboxes().find(&id).unwrap().state.as_str(),
        "unknown"
    );
    let task = node
        .scope
        .tasks()
        .create(&id, task_spec("task", ENDLESS))
        .await;
    assert_eq!(refused(task), ErrorKind::FailedPrecondition);
    node.scope.sandboxes().stop(&id).await.unwrap();
    node.fake.fail_next(
        Method::RemoveSandbox,
        Error::unavailable("containerd is away"),
    );
    assert_eq!(
        refused(node.scope.sandboxes().remove(&id).await),
        ErrorKind::Unavailable
    );
    assert_eq!(
        node.scope.sandboxes().find(&id).unwrap().state,
        SandboxState::Stopped
    );
    node.scope.sandboxes().remove(&id).await.unwrap();
    assert!(node.fake.remaining_objects().is_empty());
    node.agrees().await;
}

#[tokio::test]
async fn sandbox_removal_removes_its_tasks() {
    let node = FakeNode::new().await;
    let task = node.running(&["ignore-term"]).await;
    let id = task.sandbox.to_string();
    node.scope
        .tasks()
        .create(&id, task_spec("created", ENDLESS))
        .await
        .unwrap();
    let other = node
        .scope
        .sandboxes()
        .create(sandbox_spec("other"))
        .await
        .unwrap();
    let kept = node
        .scope
        .tasks()
        .create(&other.id.to_string(), task_spec("kept", ENDLESS))
        .await
        .unwrap();
    let both = tokio::join!(
        node.scope.sandboxes().remove(&id),
        node.scope.sandboxes().remove(&id)
    );
    both.0.unwrap();
    both.1.unwrap();
    assert_eq!(
        (node.fake.sandboxes(), node.fake.tasks()),
        (vec![other.id], vec![kept.id])
    );
    assert_eq!(node.fake.count(Method::RemoveSandbox), 1);
    node.agrees().await;
}

#[tokio::test]
async fn waiter_is_notified_when_a_created_task_is_removed() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let id = task.id.to_string();
    let mut wait = pin!(node.scope.tasks().wait(&id));
    assert!(poll!(&mut wait).is_pending());
    node.scope.tasks().remove(&id).await.unwrap();
    assert_eq!(refused(wait.await), ErrorKind::NotFound);
}
