//! Starting tasks, their limits, and readers.

use std::pin::pin;
use std::time::Duration;

use futures::poll;
use switchyard_contract::refused;
use switchyard_core::spec::{CpuShares, MemoryLimit, PidMode, Resources, Signal, TaskUpdate};
use switchyard_core::state::{ExitCause, START_FAILED_CODE, TaskState};
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::Method;

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec};

#[tokio::test]
async fn start_joins_one_in_flight_of_the_same_task() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let id = task.id.to_string();
    let hold = node.fake.hold(Method::StartTask);
    let mut first = pin!(node.scope.tasks().start(&id));
    assert!(poll!(&mut first).is_pending());
    hold.arrived(1).await;
    let mut second = pin!(node.scope.tasks().start(&id));
    assert!(poll!(&mut second).is_pending());
    hold.release();
    let (first, second) = tokio::join!(first, second);
    first.unwrap();
    second.unwrap();
    assert_eq!(node.fake.count(Method::StartTask), 1);
    assert!(node.state(task.id).is_running());
    node.agrees().await;
}

#[tokio::test]
async fn start_in_a_stopped_sandbox_is_rejected_without_effect() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    node.scope
        .sandboxes()
        .stop(&task.sandbox.to_string())
        .await
        .unwrap();
    let started = node.scope.tasks().start(&task.id.to_string()).await;
    assert_eq!(refused(started), ErrorKind::FailedPrecondition);
    assert_eq!(node.fake.count(Method::StartTask), 0);
    assert_eq!(node.state(task.id), TaskState::Created);
    node.agrees().await;
}

#[tokio::test]
async fn failed_start_is_recorded_as_exit_with_reason() {
    let node = FakeNode::new().await;
    let task = node.task(&["/no/such/server"]).await;
    let id = task.id.to_string();
    assert_eq!(
        refused(node.scope.tasks().start(&id).await),
        ErrorKind::InvalidArgument
    );
    let exit = node.scope.tasks().wait(&id).await.unwrap();
    assert_eq!(exit.code, START_FAILED_CODE);
    assert!(
        matches!(&exit.cause, ExitCause::StartFailed(why) if why.contains("/no/such/server")),
        "{exit:?}"
    );
    assert_eq!(
        refused(node.scope.tasks().start(&id).await),
        ErrorKind::FailedPrecondition
    );
    assert_eq!(
        refused(node.scope.tasks().signal(&id, Signal::TERM).await),
        ErrorKind::FailedPrecondition
    );
    node.scope.tasks().remove(&id).await.unwrap();
    node.agrees().await;
}

#[tokio::test]
async fn exit_has_its_cause() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    node.fake.oom_kill(task.id).unwrap();
    let exit = node.scope.tasks().wait(&task.id.to_string()).await.unwrap();
    assert_eq!((exit.code, exit.cause), (137, ExitCause::OomKilled));
    node.agrees().await;
}

#[tokio::test]
async fn pid_target_must_be_a_running_task_of_the_sandbox() {
    let node = FakeNode::new().await;
    let target = node.running(ENDLESS).await;
    let sandbox = target.sandbox.to_string();
    let other = node
        .scope
        .sandboxes()
        .create(sandbox_spec("other"))
        .await
        .unwrap();
    let mut spec = task_spec("debugger", ENDLESS);
    spec.pid = PidMode::Target(target.id);
    let elsewhere = node
        .scope
        .tasks()
        .create(&other.id.to_string(), spec.clone())
        .await;
    assert_eq!(refused(elsewhere), ErrorKind::InvalidArgument);
    node.scope
        .tasks()
        .create(&sandbox, spec.clone())
        .await
        .unwrap();
    node.scope
        .tasks()
        .stop(&target.id.to_string(), Duration::ZERO)
        .await
        .unwrap();
    spec.meta.name = "late".into();
    assert_eq!(
        refused(node.scope.tasks().create(&sandbox, spec).await),
        ErrorKind::FailedPrecondition
    );
    node.agrees().await;
}

#[tokio::test]
async fn update_changes_all_named_limits_or_none() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let id = task.id.to_string();
    let limits = |task: &str| {
        node.scope
            .tasks()
            .find(task)
            .unwrap()
            .details
            .resources
            .clone()
    };
    let memory = Resources {
        memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
        ..Resources::default()
    };
    node.scope.tasks().update(&id, &memory).await.unwrap();
    let shares = Resources {
        cpu_shares: Some(CpuShares::clamped(100)),
        ..Resources::default()
    };
    node.scope.tasks().update(&id, &shares).await.unwrap();
    let both = Resources {
        cpu_shares: Some(CpuShares::clamped(100)),
        ..memory.clone()
    };
    assert_eq!(limits(&id), both);
    let annotated = TaskUpdate {
        annotations: [("hint".into(), "warm".into())].into(),
        ..TaskUpdate::default()
    };
    node.scope.tasks().update(&id, annotated).await.unwrap();
    assert_eq!(
        (limits(&id), node.fake.annotations(task.id)["hint"].as_str()),
        (both.clone(), "warm")
    );
    node.fake
        .fail_next(Method::UpdateTask, Error::unavailable("containerd is away"));
    let more = Resources {
        memory_limit_bytes: MemoryLimit::new(2 << 20).ok(),
        ..Resources::default()
    };
    assert_eq!(
        refused(node.scope.tasks().update(&id, &more).await),
        ErrorKind::Unavailable
    );
    assert_eq!(limits(&id), both);
    node.agrees().await;
    node.scope.tasks().stop(&id, Duration::ZERO).await.unwrap();
    assert_eq!(
        refused(node.scope.tasks().update(&id, &more).await),
        ErrorKind::FailedPrecondition
    );
    let node = node.killed().await;
    assert_eq!(
        node.scope.tasks().find(&id).unwrap().details.resources,
        both
    );
}

#[tokio::test]
async fn reads_return_existing_objects() {
    let node = FakeNode::new().await;
    let task = node.running(ENDLESS).await;
    let gone = switchyard_core::id::TaskId::random();
    let stats = node.scope.tasks().stats(&[task.id, gone]).await.unwrap();
    assert_eq!(stats.keys().copied().collect::<Vec<_>>(), [task.id]);
    assert!(stats[&task.id].usage.cpu.is_some());
    assert!(
        !node
            .scope
            .sandboxes()
            .stats(task.sandbox)
            .await
            .unwrap()
            .interfaces
            .is_empty()
    );
    let TaskState::Running { pid, .. } = node.state(task.id) else {
        panic!("it runs")
    };
    assert_eq!(
        node.scope.tasks().inspect(task.id).await.unwrap().pid,
        Some(pid)
    );
    assert_eq!(
        refused(node.scope.tasks().inspect(gone).await),
        ErrorKind::NotFound
    );
    assert_eq!(
        refused(node.scope.tasks().reopen_log(&task.id.to_string()).await),
        ErrorKind::FailedPrecondition
    );
    let counts = node.gateway.tasks().count();
    assert_eq!(counts.into_values().collect::<Vec<_>>(), [1]);
}
