//! Findings of a code review: owners, updates, and retries at critical moments.

use std::pin::pin;
use std::time::Duration;

use futures::poll;
use switchyard_contract::refused;
use switchyard_core::id::Owner;
use switchyard_core::spec::{CpuShares, MemoryLimit, PidMode, Resources};
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::Method;

use crate::node::{ENDLESS, FakeNode, task_spec, until};
const LONG: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn reads_by_id_are_rejected_for_other_owners() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let nomad = node.gateway.scope(Owner::Nomad);
    assert!(nomad.tasks().stats(&[task.id]).await.unwrap().is_empty());
    assert_eq!(
        refused(nomad.tasks().inspect(task.id).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(nomad.sandboxes().stats(task.sandbox).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(nomad.sandboxes().inspect(task.sandbox).await),
        ErrorKind::NotFound
    );
}

#[tokio::test]
async fn update_continues_when_its_caller_is_dropped() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let id = task.id.to_string();
    let limits = Resources {
        cpu_shares: Some(CpuShares::clamped(100)),
        ..Resources::default()
    };
    let hold = node.fake.hold_answer(Method::UpdateTask);
    {
        let mut gone = pin!(node.scope.tasks().update(&id, &limits));
        assert!(poll!(&mut gone).is_pending());
        hold.arrived(1).await;
    }
    hold.release();
    until(|| node.scope.tasks().find(&id).unwrap().details.resources == limits).await;
    node.agrees().await;
}

#[tokio::test]
async fn concurrent_updates_both_take_effect() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let memory = Resources {
        memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
        ..Resources::default()
    };
    let shares = Resources {
        cpu_shares: Some(CpuShares::clamped(100)),
        ..Resources::default()
    };
    let hold = node.fake.hold(Method::UpdateTask);
    let mut both = pin!(async {
        tokio::join!(
            node.scope.tasks().update(&id, &memory),
            node.scope.tasks().update(&id, &shares)
        )
    });
    assert!(poll!(&mut both).is_pending());
    hold.arrived(1).await;
    hold.release();
    both.await.0.unwrap();
    let expected = Resources {
        cpu_shares: Some(CpuShares::clamped(100)),
        ..memory.clone()
    };
    assert_eq!(
        node.scope.tasks().find(&id).unwrap().details.resources,
        expected
    );
    node.agrees().await;
}

#[tokio::test(start_paused = true)]
async fn update_and_removal_are_serialised() {
    let node = FakeNode::new().await;
    let id = node.running(ENDLESS).await.id.to_string();
    let limits = Resources {
        cpu_shares: Some(CpuShares::clamped(100)),
        ..Resources::default()
    };
    let hold = node.fake.hold(Method::UpdateTask);
    let mut update = pin!(node.scope.tasks().update(&id, &limits));
    assert!(poll!(&mut update).is_pending());
    hold.arrived(1).await;
    let mut remove = pin!(node.scope.tasks().remove(&id));
    let _ = tokio::time::timeout(Duration::from_secs(1), &mut remove).await;
    drop(hold);
    let _ = update.await;
    node.is_sound();
}

#[tokio::test(start_paused = true)]
async fn failed_removal_of_a_created_task_can_be_retried() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let id = task.id.to_string();
    node.fake
        .fail_next(Method::RemoveTask, Error::unavailable("containerd is away"));
    assert_eq!(
        refused(node.scope.tasks().remove(&id).await),
        ErrorKind::Unavailable
    );
    node.scope.tasks().remove(&id).await.unwrap();
    node.agrees().await;
}

#[tokio::test]
async fn stop_during_sandbox_removal_succeeds() {
    let node = FakeNode::new().await;
    let id = node.sandbox().await.id.to_string();
    let hold = node.fake.hold(Method::RemoveSandbox);
    let mut remove = pin!(node.scope.sandboxes().remove(&id));
    assert!(poll!(&mut remove).is_pending());
    hold.arrived(1).await;
    node.scope.sandboxes().stop(&id).await.unwrap();
    hold.release();
    remove.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_stop_signal_is_sent_on_retry() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let id = task.id.to_string();
    node.fake
        .fail_next(Method::SignalTask, Error::unavailable("containerd is away"));
    assert_eq!(
        refused(node.scope.tasks().stop(&id, LONG).await),
        ErrorKind::Unavailable
    );
    node.scope.tasks().stop(&id, LONG).await.unwrap();
    assert_eq!(node.exit(task.id).code, 143);
}

#[tokio::test]
async fn retried_create_joins_although_its_pid_target_exited() {
    let node = FakeNode::new().await;
    let target = node.running(ENDLESS).await;
    let mut spec = task_spec("debugger", ENDLESS);
    spec.pid = PidMode::Target(target.id);
    let sandbox = target.sandbox.to_string();
    let made = node
        .scope
        .tasks()
        .create(&sandbox, spec.clone())
        .await
        .unwrap();
    node.scope
        .tasks()
        .stop(&target.id.to_string(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(
        node.scope.tasks().create(&sandbox, spec).await.unwrap().id,
        made.id
    );
}

#[tokio::test]
async fn name_of_a_task_being_removed_stays_reserved() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let sandbox = task.sandbox.to_string();
    let id = task.id.to_string();
    let hold = node.fake.hold(Method::RemoveTask);
    let mut remove = pin!(node.scope.tasks().remove(&id));
    assert!(poll!(&mut remove).is_pending());
    hold.arrived(1).await;
    let again = node
        .scope
        .tasks()
        .create(&sandbox, task_spec("task", ENDLESS))
        .await;
    assert_eq!(refused(again), ErrorKind::AlreadyExists);
    hold.release();
    remove.await.unwrap();
}
