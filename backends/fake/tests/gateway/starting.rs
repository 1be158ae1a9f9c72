//! Starts whose callers go away: no program of theirs runs on, and nobody sees them as created meanwhile.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use futures::{FutureExt, poll};
use switchyard_contract::refused;
use switchyard_core::event::EventKind;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::ledger::MemoryStore;
use switchyard_core::operation::Operations;
use switchyard_core::spec::TaskUpdate;
use switchyard_core::state::{ExitCause, START_FAILED_CODE, TaskState};
use switchyard_core::{ErrorKind, Reason, Result};
use switchyard_fake::{Fake, Hold, Method};
use tokio::task::JoinHandle;

use crate::node::{ENDLESS, FakeNode, limits, task_spec, until};

const LONG: Duration = Duration::from_secs(3600);

/// A call to start a task, as a frontend makes it: it ends if the handler is aborted.
fn call(node: &FakeNode, task: TaskId) -> JoinHandle<Result<()>> {
    let scope = node.scope.clone();
    tokio::spawn(async move { scope.tasks().start(&task.to_string()).await })
}

/// Starts a task, and drops the call once this many calls of the backend are held.
async fn withdrawn(node: &FakeNode, task: TaskId, hold: &Hold, held: usize) {
    let call = call(node, task);
    hold.arrived(held).await;
    call.abort();
    until(|| node.state(task) == TaskState::Unattended).await;
}

#[tokio::test]
async fn withdrawn_start_never_runs_beside_the_next_attempt() {
    let node = FakeNode::new().await;
    let first = node.task(ENDLESS).await;
    let mut events = node.scope.subscribe();
    let hold = node.fake.hold(Method::StartTask);
    withdrawn(&node, first.id, &hold, 1).await;
    let sandbox = first.sandbox.to_string();
    let next = node
        .scope
        .tasks()
        .create(&sandbox, task_spec("next", ENDLESS))
        .await
        .unwrap();
    let started = call(&node, next.id);
    hold.arrived(2).await;
    hold.release();
    started.await.unwrap().unwrap();
    until(|| matches!(node.state(first.id), TaskState::Exited { .. })).await;
    assert!(node.fake.runs(next.id) && !node.fake.runs(first.id));
    let exit = node.exit(first.id);
    assert_eq!(exit.code, START_FAILED_CODE);
    assert!(
        matches!(&exit.cause, ExitCause::StartFailed(why) if why.contains("gone away")),
        "{exit:?}"
    );
    while let Some(event) = events.next().now_or_never() {
        assert_ne!(
            event.unwrap().unwrap().kind,
            EventKind::TaskStarted(first.id)
        );
    }
    node.is_sound();
}

#[tokio::test]
async fn joined_start_outlives_its_first_caller() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let hold = node.fake.hold(Method::StartTask);
    let first = call(&node, task.id);
    hold.arrived(1).await;
    let id = task.id.to_string();
    let mut second = pin!(node.scope.tasks().start(&id));
    assert!(poll!(&mut second).is_pending());
    first.abort();
    first.await.unwrap_err();
    assert_eq!(node.state(task.id), TaskState::Starting);
    hold.release();
    second.await.unwrap();
    assert!(node.state(task.id).is_running());
    assert_eq!(node.fake.count(Method::StartTask), 1);
    node.agrees().await;
}

#[tokio::test]
async fn start_withdrawn_after_its_program_runs_is_killed() {
    let node = FakeNode::new().await;
    let task = node.task(&["ignore-term"]).await;
    let hold = node.fake.hold_answer(Method::StartTask);
    withdrawn(&node, task.id, &hold, 1).await;
    assert!(node.fake.runs(task.id));
    hold.release();
    until(|| matches!(node.state(task.id), TaskState::Exited { .. })).await;
    assert_eq!(
        (node.exit(task.id).code, node.fake.runs(task.id)),
        (137, false)
    );
    node.agrees().await;
}

#[tokio::test]
async fn start_withdrawn_while_it_waits_leaves_the_task_created() {
    let fake = FakeNode::new().await.fake;
    let node = FakeNode::within(
        fake,
        Limits {
            starts_per_owner: 1,
            ..limits()
        },
    );
    node.gateway.recover().await.unwrap();
    let other = node.task(ENDLESS).await;
    let sandbox = other.sandbox.to_string();
    let task = node
        .scope
        .tasks()
        .create(&sandbox, task_spec("waiting", ENDLESS))
        .await
        .unwrap();
    // It waits for a permit, which the start of the other task has.
    let hold = node.fake.hold(Method::StartTask);
    let begun = call(&node, other.id);
    hold.arrived(1).await;
    let waiting = call(&node, task.id);
    until(|| node.state(task.id) == TaskState::Starting).await;
    waiting.abort();
    until(|| node.state(task.id) == TaskState::Created).await;
    hold.release();
    begun.await.unwrap().unwrap();
    // It waits for an update of the same task.
    let hold = node.fake.hold(Method::UpdateTask);
    let id = task.id.to_string();
    let mut update = pin!(node.scope.tasks().update(&id, TaskUpdate::default()));
    assert!(poll!(&mut update).is_pending());
    hold.arrived(1).await;
    {
        let mut waiting = pin!(node.scope.tasks().start(&id));
        assert!(poll!(&mut waiting).is_pending());
    }
    hold.release();
    update.await.unwrap();
    assert_eq!(
        (node.state(task.id), node.fake.count(Method::StartTask)),
        (TaskState::Created, 1)
    );
    node.scope.tasks().start(&id).await.unwrap();
    node.agrees().await;
}

#[tokio::test]
async fn stop_and_removal_wait_for_the_end_of_a_withdrawn_start() {
    for removed in [false, true] {
        let node = FakeNode::new().await;
        let task = node.task(ENDLESS).await;
        let id = task.id.to_string();
        let hold = node.fake.hold_answer(Method::StartTask);
        withdrawn(&node, task.id, &hold, 1).await;
        let ended = async {
            if removed {
                node.scope.tasks().remove(&id).await
            } else {
                node.scope.tasks().stop(&id, LONG).await
            }
        };
        let mut ended = pin!(ended);
        assert!(poll!(&mut ended).is_pending());
        hold.release();
        ended.await.unwrap();
        assert!(!node.fake.runs(task.id));
        if !removed {
            assert_eq!(node.exit(task.id).code, 137);
        }
        node.agrees().await;
    }
}

#[tokio::test]
async fn caller_of_a_withdrawn_start_is_told_of_its_end() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let id = task.id.to_string();
    let hold = node.fake.hold(Method::StartTask);
    withdrawn(&node, task.id, &hold, 1).await;
    let mut late = pin!(node.scope.tasks().start(&id));
    assert!(poll!(&mut late).is_pending());
    hold.release();
    let told = late.await.unwrap_err();
    let gone = "everybody who asked for it has gone away, so it was given up";
    assert_eq!(
        (told.kind(), told.report()),
        (ErrorKind::Cancelled, format!("start task {id}: {gone}"))
    );
    assert_eq!(
        refused(node.scope.tasks().start(&id).await),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(node.fake.count(Method::StartTask), 1);
    node.is_sound();
    // Once the program was executed, it runs on for who has joined.
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let id = task.id.to_string();
    let hold = node.fake.hold_answer(Method::StartTask);
    withdrawn(&node, task.id, &hold, 1).await;
    let mut late = pin!(node.scope.tasks().start(&id));
    assert!(poll!(&mut late).is_pending());
    hold.release();
    late.await.unwrap();
    assert!(node.state(task.id).is_running() && node.fake.runs(task.id));
    assert_eq!(node.fake.count(Method::StartTask), 1);
    node.agrees().await;
}

#[tokio::test(start_paused = true)]
async fn shutdown_withdraws_no_start() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let hold = node.fake.hold(Method::StartTask);
    let cut_off = call(&node, task.id);
    hold.arrived(1).await;
    let mut shut_down = pin!(node.gateway.shut_down(LONG));
    assert!(poll!(&mut shut_down).is_pending());
    cut_off.abort();
    cut_off.await.unwrap_err();
    assert!(poll!(&mut shut_down).is_pending());
    hold.release();
    shut_down.await.unwrap();
    assert!(node.fake.runs(task.id));
    let node = FakeNode::over(node.fake.reopen()).await;
    assert!(node.state(task.id).is_running());
    node.agrees().await;
}

/// A node whose predecessor was killed during the start of a task, which waits for the outcome of that start.
async fn pending(runs: bool) -> (FakeNode, TaskId, Hold) {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await.id;
    node.fake.leave_start_pending(task, runs);
    let fake = node.fake.reopen();
    let hold = fake.hold(Method::ResolveStart);
    let node = FakeNode::over(fake).await;
    assert_eq!(node.state(task), TaskState::Unattended);
    (node, task, hold)
}

#[tokio::test]
async fn start_of_a_predecessor_is_unattended_until_its_outcome_is_known() {
    for runs in [false, true] {
        let (node, task, hold) = pending(runs).await;
        hold.arrived(1).await;
        hold.release();
        until(|| node.state(task) != TaskState::Unattended).await;
        assert_eq!(
            (node.state(task).is_running(), node.fake.runs(task)),
            (runs, runs)
        );
        // A repeated request finds the start, or makes it.
        let again = node.scope.tasks().start(&task.to_string()).await;
        assert_eq!(
            again.map_err(|error| error.kind()),
            if runs {
                Err(ErrorKind::FailedPrecondition)
            } else {
                Ok(())
            }
        );
        node.fake.exit(task, 4).unwrap();
        assert_eq!(
            node.scope
                .tasks()
                .wait(&task.to_string())
                .await
                .unwrap()
                .code,
            4
        );
        node.agrees().await;
    }
}

#[tokio::test]
async fn repeated_start_gets_the_outcome_of_a_predecessors_start() {
    for runs in [false, true] {
        let (node, task, hold) = pending(runs).await;
        let id = task.to_string();
        let mut again = pin!(node.scope.tasks().start(&id));
        assert!(poll!(&mut again).is_pending());
        hold.arrived(1).await;
        hold.release();
        again.await.unwrap();
        assert!(node.state(task).is_running());
        assert_eq!(node.fake.count(Method::StartTask), usize::from(!runs));
        node.agrees().await;
    }
}

#[tokio::test]
async fn stop_waits_for_the_outcome_of_a_predecessors_start() {
    for runs in [false, true] {
        let (node, task, hold) = pending(runs).await;
        let id = task.to_string();
        let mut stop = pin!(node.scope.tasks().stop(&id, Duration::ZERO));
        assert!(poll!(&mut stop).is_pending());
        hold.arrived(1).await;
        hold.release();
        stop.await.unwrap();
        assert!(!node.fake.runs(task));
        if runs {
            assert_eq!(node.exit(task).code, 137);
        } else {
            assert_eq!(node.state(task), TaskState::Created);
        }
        node.agrees().await;
    }
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_for_a_predecessors_start_are_unavailable_when_the_daemon_ends() {
    let (node, task, hold) = pending(true).await;
    hold.arrived(1).await;
    let id = task.to_string();
    let sandbox = node.scope.tasks().find(&id).unwrap().sandbox.to_string();
    let calls = [
        node.scope.tasks().start(&id).boxed_local(),
        node.scope
            .tasks()
            .update(&id, TaskUpdate::default())
            .boxed_local(),
        node.scope.tasks().stop(&id, Duration::ZERO).boxed_local(),
        node.scope.tasks().remove(&id).boxed_local(),
        node.scope.sandboxes().stop(&sandbox).boxed_local(),
    ];
    let shut_down = node.gateway.shut_down(Duration::from_secs(1));
    let (results, drained) = tokio::join!(join_all(calls), shut_down);
    for (number, result) in results.into_iter().enumerate() {
        let error = result.unwrap_err();
        assert_eq!(
            (error.kind(), error.reason()),
            (ErrorKind::Unavailable, Some(Reason::DaemonEnds)),
            "call {number}: {error:?}"
        );
    }
    drained.unwrap_err();
    // Only the next daemon learns of it.
    assert_eq!(node.state(task), TaskState::Unattended);
    drop(hold);
    let node = FakeNode::over(node.fake.reopen()).await;
    until(|| node.state(task).is_running()).await;
    node.agrees().await;
}

/// A node whose operations can be listed.
async fn listed() -> (FakeNode, Operations) {
    let operations = Operations::default();
    let fake = Fake::with_local_busybox().await;
    let leases = Arc::new(MemoryStore::default());
    let gateway =
        Gateway::with_leases(Arc::new(fake.clone()), limits(), leases, operations.clone());
    let scope = gateway.scope(Owner::Kubernetes);
    gateway.recover().await.unwrap();
    (
        FakeNode {
            fake,
            gateway,
            scope,
        },
        operations,
    )
}

/// Returns the number of operations that wait for an earlier one.
fn waiting(operations: &Operations) -> usize {
    let waits = |steps: &[(&str, Duration)]| {
        steps
            .iter()
            .any(|(step, _)| *step == "wait_for_earlier_operation")
    };
    operations
        .in_flight()
        .iter()
        .filter(|operation| waits(&operation.steps))
        .count()
}

#[tokio::test]
async fn removal_kills_a_task_that_is_started_before_its_turn() {
    let (node, operations) = listed().await;
    let task = node.task(&["ignore-term"]).await;
    let id = task.id.to_string();
    let hold = node.fake.hold(Method::UpdateTask);
    let mut update = pin!(node.scope.tasks().update(&id, TaskUpdate::default()));
    assert!(poll!(&mut update).is_pending());
    hold.arrived(1).await;
    // Both wait for the update. The removal is the first to look, and finds nothing to kill; then it is the
    // start's turn.
    let mut removal = pin!(node.scope.tasks().remove(&id));
    assert!(poll!(&mut removal).is_pending());
    until(|| waiting(&operations) == 1).await;
    let start = call(&node, task.id);
    until(|| waiting(&operations) == 2).await;
    hold.release();
    removal.await.unwrap();
    start.await.unwrap().unwrap();
    assert_eq!(node.fake.count(Method::StartTask), 1);
    assert_eq!(refused(node.scope.tasks().find(&id)), ErrorKind::NotFound);
    update.await.unwrap();
    node.agrees().await;
}
