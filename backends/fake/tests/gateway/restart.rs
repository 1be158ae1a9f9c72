//! The daemon is killed or stopped, and another one continues.

use std::pin::pin;
use std::time::Duration;

use futures::poll;
use switchyard_contract::refused;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::Signal;
use switchyard_core::state::{ExitCause, LOST_CODE, TaskState};
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::{Fake, Method};

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec, until};

const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn sandbox_created_before_kill_is_returned_to_retry() {
    let node = FakeNode::new().await;
    let hold = node.fake.hold_answer(Method::CreateSandbox);
    let scope = node.scope.clone();
    let mut create = pin!(scope.sandboxes().create(sandbox_spec("pod")));
    assert!(poll!(&mut create).is_pending());
    hold.arrived(1).await;
    let node = node.killed().await;
    hold.release();
    let id = node.fake.sandboxes()[0];
    assert_eq!(
        node.scope
            .sandboxes()
            .create(sandbox_spec("pod"))
            .await
            .unwrap()
            .id,
        id
    );
    assert_eq!(node.fake.sandboxes(), [id]);
    assert!(poll!(&mut create).is_pending(), "the dead answer");
    node.agrees().await;
}

#[tokio::test]
async fn sandbox_not_created_before_kill_is_created_by_retry() {
    let node = FakeNode::new().await;
    let hold = node.fake.hold(Method::CreateSandbox);
    let scope = node.scope.clone();
    let mut create = pin!(scope.sandboxes().create(sandbox_spec("pod")));
    assert!(poll!(&mut create).is_pending());
    hold.arrived(1).await;
    let node = node.killed().await;
    hold.release();
    node.sandbox().await;
    assert_eq!(node.fake.sandboxes().len(), 1);
    node.agrees().await;
}

#[tokio::test]
async fn interrupted_start_is_recovered_with_its_outcome() {
    for started in [false, true] {
        let node = FakeNode::new().await;
        let task = node.task(ENDLESS).await;
        let hold = if started {
            node.fake.hold_answer(Method::StartTask)
        } else {
            node.fake.hold(Method::StartTask)
        };
        let scope = node.scope.clone();
        let id = task.id.to_string();
        let mut start = pin!(scope.tasks().start(&id));
        assert!(poll!(&mut start).is_pending());
        hold.arrived(1).await;
        let node = node.killed().await;
        if !started {
            assert_eq!(node.state(task.id), TaskState::Created);
            node.scope.tasks().start(&id).await.unwrap();
        }
        assert!(node.state(task.id).is_running());
        node.fake.exit(task.id, 5).unwrap();
        assert_eq!(node.scope.tasks().wait(&id).await.unwrap().code, 5);
        node.agrees().await;
    }
}

#[tokio::test]
async fn exit_during_downtime_is_recovered() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let fake = node.fake.reopen();
    drop(node);
    fake.exit(task.id, 7).unwrap();
    let node = FakeNode::over(fake).await;
    assert_eq!(node.exit(task.id).code, 7);
    assert_eq!(
        node.scope
            .tasks()
            .wait(&task.id.to_string())
            .await
            .unwrap()
            .code,
        7
    );
    node.agrees().await;
}

#[tokio::test]
async fn running_task_is_watched_after_recovery() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let before = node.state(task.id);
    let node = node.killed().await;
    assert_eq!(node.state(task.id), before);
    node.fake.exit(task.id, 8).unwrap();
    assert_eq!(
        node.scope
            .tasks()
            .wait(&task.id.to_string())
            .await
            .unwrap()
            .code,
        8
    );
    node.agrees().await;
}

#[tokio::test]
async fn interrupted_stop_is_repeated() {
    let node = FakeNode::new().await;
    let task = node.running(&["ignore-term"]).await;
    let scope = node.scope.clone();
    let id = task.id.to_string();
    let mut stop = pin!(scope.tasks().stop(&id, LONG));
    assert!(poll!(&mut stop).is_pending());
    until(|| node.state(task.id).as_str() == "stopping").await;
    let node = node.killed().await;
    assert_eq!(node.state(task.id).as_str(), "running");
    tokio::time::pause();
    node.scope.tasks().stop(&id, LONG).await.unwrap();
    assert_eq!(node.fake.signals(task.id), [Signal::TERM, Signal::KILL]);
}

#[tokio::test]
async fn lost_task_is_queried_until_found() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    for _ in 0..5 {
        node.fake
            .fail_next(Method::WaitTask, Error::unavailable("containerd is away"));
    }
    tokio::time::pause();
    node.scope
        .tasks()
        .start(&task.id.to_string())
        .await
        .unwrap();
    node.fake.exit(task.id, 6).unwrap();
    assert_eq!(
        node.scope
            .tasks()
            .wait(&task.id.to_string())
            .await
            .unwrap()
            .code,
        6
    );
    assert_eq!(node.fake.count(Method::WaitTask), 6);
    node.agrees().await;
}

#[tokio::test]
async fn task_missing_in_the_backend_exits_with_unknown_code() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    node.fake
        .fail_next(Method::WaitTask, Error::not_found("no such task"));
    node.scope
        .tasks()
        .start(&task.id.to_string())
        .await
        .unwrap();
    let exit = node.scope.tasks().wait(&task.id.to_string()).await.unwrap();
    assert_eq!((exit.code, exit.cause), (LOST_CODE, ExitCause::Lost));
}

/// The state after the gateway was killed during the removal of a sandbox, at this call of the backend.
pub(crate) async fn cut_off(node: FakeNode, sandbox: SandboxId, method: Method) -> Fake {
    let hold = node.fake.hold(method);
    let scope = node.scope.clone();
    let id = sandbox.to_string();
    let mut removal = pin!(scope.sandboxes().remove(&id));
    assert!(poll!(&mut removal).is_pending());
    hold.arrived(1).await;
    let fake = node.fake.reopen();
    drop(node);
    hold.release();
    fake
}

#[tokio::test]
async fn interrupted_removal_is_completed_after_restart() {
    for method in [
        Method::StopSandbox,
        Method::RemoveTask,
        Method::RemoveSandbox,
    ] {
        let node = FakeNode::new().await;
        let sandbox = node.running(&["ignore-term"]).await.sandbox;
        let fake = cut_off(node, sandbox, method).await;
        // The call fails first, as if containerd were unavailable.
        fake.fail_next(method, Error::unavailable("away"));
        let node = FakeNode::over(fake).await;
        until(|| node.fake.remaining_objects().is_empty()).await;
        node.agrees().await;
    }
}

#[tokio::test]
async fn removal_resumed_after_restart_is_joined_by_callers() {
    let node = FakeNode::new().await;
    let sandbox = node.sandbox().await.id;
    let node = FakeNode::over(cut_off(node, sandbox, Method::StopSandbox).await).await;
    assert_eq!(node.fake.pending_removals(), [sandbox]);
    node.scope
        .sandboxes()
        .remove(&sandbox.to_string())
        .await
        .unwrap();
    assert!(node.fake.remaining_objects().is_empty());
    node.agrees().await;
}

#[tokio::test]
async fn removal_with_failed_record_still_stops_the_task() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    node.fake.fail_next(
        Method::BeginRemoval,
        Error::unavailable("containerd is away"),
    );
    let removed = node
        .scope
        .sandboxes()
        .remove(&task.sandbox.to_string())
        .await;
    assert_eq!(refused(removed), ErrorKind::Unavailable);
    assert!(!node.fake.runs(task.id));
    node.scope
        .sandboxes()
        .remove(&task.sandbox.to_string())
        .await
        .unwrap();
    assert!(node.fake.remaining_objects().is_empty());
    node.agrees().await;
}

#[tokio::test]
async fn shutting_down_leaves_tasks_running() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    node.gateway.shut_down(LONG).await.unwrap();
    assert!(node.fake.runs(task.id) && node.fake.signals(task.id).is_empty());
    let node = FakeNode::over(node.fake.reopen()).await;
    assert!(node.state(task.id).is_running());
    node.scope
        .tasks()
        .stop(&task.id.to_string(), LONG)
        .await
        .unwrap();
    node.agrees().await;
}

#[tokio::test(start_paused = true)]
async fn stop_and_removal_waits_fail_at_gateway_shutdown() {
    let node = FakeNode::new().await;
    let stopped = node.running(ENDLESS).await;
    let spec = task_spec("removed", ENDLESS);
    let removed = node
        .scope
        .tasks()
        .create(&stopped.sandbox.to_string(), spec)
        .await
        .unwrap();
    node.scope
        .tasks()
        .start(&removed.id.to_string())
        .await
        .unwrap();
    let hold = node.fake.hold(Method::SignalTask);
    let ids = [&stopped, &removed].map(|task| task.id.to_string());
    let mut stop = pin!(node.scope.tasks().stop(&ids[0], Duration::ZERO));
    let mut remove = pin!(node.scope.tasks().remove(&ids[1]));
    assert!(poll!(&mut stop).is_pending() && poll!(&mut remove).is_pending());
    hold.arrived(2).await;
    let mut shut_down = pin!(node.gateway.shut_down(LONG));
    assert!(poll!(&mut shut_down).is_pending());
    // Tasks that end with the gateway have ended.
    tokio::time::sleep(Duration::from_millis(1)).await;
    hold.release();
    let (stop, remove, shut_down) = tokio::join!(stop, remove, shut_down);
    stop.unwrap();
    remove.unwrap();
    shut_down.unwrap();
    assert_eq!(node.fake.tasks(), [stopped.id]);
    node.agrees().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_operations_in_flight_up_to_a_limit() {
    let node = FakeNode::new().await;
    let sandbox = node.sandbox().await.id.to_string();
    let hold = node.fake.hold(Method::CreateTask);
    let mut create = pin!(
        node.scope
            .tasks()
            .create(&sandbox, task_spec("task", ENDLESS))
    );
    assert!(poll!(&mut create).is_pending());
    hold.arrived(1).await;
    let cut_off = node.gateway.shut_down(Duration::from_secs(1)).await;
    assert_eq!(refused(cut_off), ErrorKind::DeadlineExceeded);
    let mut shut_down = pin!(node.gateway.shut_down(LONG));
    assert!(poll!(&mut shut_down).is_pending());
    hold.release();
    shut_down.await.unwrap();
    create.await.unwrap();
    node.agrees().await;
}
