//! Creation is idempotent, continues without its caller, and leaves nothing behind when it fails.

use std::pin::pin;
use std::time::Duration;

use futures::poll;

use switchyard_contract::refused;
use switchyard_core::event::EventKind;
use switchyard_core::{Error, ErrorKind};
use switchyard_fake::Method;

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec, until};

#[tokio::test]
async fn sandbox_create_joins_one_in_flight_of_the_same_name() {
    let node = FakeNode::new().await;
    let hold = node.fake.hold(Method::CreateSandbox);
    let mut first = pin!(node.scope.sandboxes().create(sandbox_spec("pod")));
    assert!(poll!(&mut first).is_pending());
    hold.arrived(1).await;
    // The retry is the same request although its timestamp differs.
    let mut second = pin!(node.scope.sandboxes().create(sandbox_spec("pod")));
    assert!(poll!(&mut second).is_pending());
    hold.release();
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.unwrap(), second.unwrap());
    assert_eq!(node.fake.count(Method::CreateSandbox), 1);
    node.agrees().await;
}

#[tokio::test]
async fn task_create_joins_one_in_flight_of_the_same_name() {
    let node = FakeNode::new().await;
    let sandbox = node.sandbox().await.id.to_string();
    let hold = node.fake.hold(Method::CreateTask);
    let mut first = pin!(
        node.scope
            .tasks()
            .create(&sandbox, task_spec("task", ENDLESS))
    );
    assert!(poll!(&mut first).is_pending());
    hold.arrived(1).await;
    let mut second = pin!(
        node.scope
            .tasks()
            .create(&sandbox, task_spec("task", ENDLESS))
    );
    assert!(poll!(&mut second).is_pending());
    hold.release();
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.unwrap(), second.unwrap());
    assert_eq!(node.fake.count(Method::CreateTask), 1);
    node.agrees().await;
}

#[tokio::test]
async fn cancelled_create_is_parked_for_its_retry() {
    let node = FakeNode::new().await;
    let mut events = node.scope.subscribe();
    let hold = node.fake.hold(Method::CreateSandbox);
    {
        let mut gone = pin!(node.scope.sandboxes().create(sandbox_spec("pod")));
        assert!(poll!(&mut gone).is_pending());
        hold.arrived(1).await;
    }
    hold.release();
    let Some(EventKind::SandboxReady(id)) = events.next().await.unwrap().map(|event| event.kind)
    else {
        panic!("the creation did not continue");
    };
    assert_eq!(
        node.scope
            .sandboxes()
            .create(sandbox_spec("pod"))
            .await
            .unwrap()
            .id,
        id
    );
    {
        let hold = node.fake.hold_answer(Method::CreateTask);
        let id = id.to_string();
        let mut gone = pin!(node.scope.tasks().create(&id, task_spec("task", ENDLESS)));
        assert!(poll!(&mut gone).is_pending());
        hold.arrived(1).await;
    }
    let task = node
        .scope
        .tasks()
        .create(&id.to_string(), task_spec("task", ENDLESS))
        .await
        .unwrap();
    assert_eq!(node.fake.tasks(), [task.id]);
    assert_eq!(
        (
            node.fake.count(Method::CreateSandbox),
            node.fake.count(Method::CreateTask)
        ),
        (1, 1)
    );
    node.agrees().await;
}

#[tokio::test]
async fn name_held_with_another_record_is_rejected() {
    let node = FakeNode::new().await;
    let mut other = sandbox_spec("pod");
    other.meta.record.push(1);
    let hold = node.fake.hold(Method::CreateSandbox);
    let mut first = pin!(node.scope.sandboxes().create(sandbox_spec("pod")));
    assert!(poll!(&mut first).is_pending());
    // While the creation is in flight, and afterwards.
    assert_eq!(
        refused(node.scope.sandboxes().create(other.clone()).await),
        ErrorKind::AlreadyExists
    );
    hold.release();
    let sandbox = first.await.unwrap().id.to_string();
    assert_eq!(
        refused(node.scope.sandboxes().create(other).await),
        ErrorKind::AlreadyExists
    );

    node.scope
        .tasks()
        .create(&sandbox, task_spec("task", ENDLESS))
        .await
        .unwrap();
    let mut other = task_spec("task", ENDLESS);
    other.meta.record.push(1);
    assert_eq!(
        refused(node.scope.tasks().create(&sandbox, other).await),
        ErrorKind::AlreadyExists
    );
    let elsewhere = node
        .scope
        .sandboxes()
        .create(sandbox_spec("elsewhere"))
        .await
        .unwrap()
        .id
        .to_string();
    let moved = node
        .scope
        .tasks()
        .create(&elsewhere, task_spec("task", ENDLESS))
        .await;
    assert_eq!(refused(moved), ErrorKind::AlreadyExists);
    node.agrees().await;
}

#[tokio::test]
async fn name_of_a_stopped_sandbox_is_rejected_until_removal() {
    let node = FakeNode::new().await;
    let id = node.sandbox().await.id.to_string();
    node.scope.sandboxes().stop(&id).await.unwrap();
    assert_eq!(
        refused(node.scope.sandboxes().create(sandbox_spec("pod")).await),
        ErrorKind::AlreadyExists
    );
    let task = node
        .scope
        .tasks()
        .create(&id, task_spec("task", ENDLESS))
        .await;
    assert_eq!(refused(task), ErrorKind::FailedPrecondition);
    node.scope.sandboxes().remove(&id).await.unwrap();
    assert_ne!(node.sandbox().await.id.to_string(), id);
    node.agrees().await;
}

#[tokio::test]
async fn failed_create_frees_its_name() {
    let node = FakeNode::new().await;
    node.fake.fail_next(
        Method::CreateSandbox,
        Error::unavailable("the network is away"),
    );
    assert_eq!(
        refused(node.scope.sandboxes().create(sandbox_spec("pod")).await),
        ErrorKind::Unavailable
    );
    assert!(node.scope.sandboxes().list().unwrap().is_empty());
    let sandbox = node.sandbox().await.id.to_string();
    let mut wrong = task_spec("task", ENDLESS);
    wrong.image = "docker.io/library/nginx:1".into();
    assert_eq!(
        refused(node.scope.tasks().create(&sandbox, wrong).await),
        ErrorKind::NotFound
    );
    node.scope
        .tasks()
        .create(&sandbox, task_spec("task", ENDLESS))
        .await
        .unwrap();
    node.agrees().await;
}

#[tokio::test]
async fn task_created_during_sandbox_stop_is_rolled_back() {
    let node = FakeNode::new().await;
    let sandbox = node.sandbox().await.id.to_string();
    let hold = node.fake.hold_answer(Method::CreateTask);
    let mut create = pin!(
        node.scope
            .tasks()
            .create(&sandbox, task_spec("task", ENDLESS))
    );
    assert!(poll!(&mut create).is_pending());
    hold.arrived(1).await;
    let mut stop = pin!(node.scope.sandboxes().stop(&sandbox));
    assert!(poll!(&mut stop).is_pending());
    until(|| {
        node.scope
            .sandboxes()
            .find(&sandbox)
            .unwrap()
            .state
            .as_str()
            == "stopping"
    })
    .await;
    // The stop waits for the creation of the task, which needs the network.
    assert_eq!(node.fake.count(Method::StopSandbox), 0);
    hold.release();
    let (created, stopped) = tokio::join!(create, stop);
    assert_eq!(refused(created), ErrorKind::FailedPrecondition);
    stopped.unwrap();
    assert!(node.fake.tasks().is_empty());
    node.agrees().await;
}

#[tokio::test(start_paused = true)]
async fn rollback_of_a_created_task_is_retried() {
    let node = FakeNode::new().await;
    let sandbox = node.sandbox().await.id.to_string();
    let hold = node.fake.hold_answer(Method::CreateTask);
    let mut create = pin!(
        node.scope
            .tasks()
            .create(&sandbox, task_spec("task", ENDLESS))
    );
    assert!(poll!(&mut create).is_pending());
    hold.arrived(1).await;
    let mut stop = pin!(node.scope.sandboxes().stop(&sandbox));
    assert!(poll!(&mut stop).is_pending());
    until(|| {
        node.scope
            .sandboxes()
            .find(&sandbox)
            .unwrap()
            .state
            .as_str()
            == "stopping"
    })
    .await;
    node.fake
        .fail_next(Method::RemoveTask, Error::unavailable("containerd is away"));
    hold.release();
    let (created, stopped) = tokio::join!(create, stop);
    assert_eq!(refused(created), ErrorKind::FailedPrecondition);
    stopped.unwrap();
    assert_eq!(node.fake.tasks().len(), 1);
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert!(node.fake.tasks().is_empty());
    node.agrees().await;
}

#[tokio::test]
async fn same_task_name_in_two_sandboxes_rolls_one_back() {
    let node = FakeNode::new().await;
    let one = node.sandbox().await.id.to_string();
    let other = node
        .scope
        .sandboxes()
        .create(sandbox_spec("other"))
        .await
        .unwrap()
        .id
        .to_string();
    let hold = node.fake.hold(Method::CreateTask);
    let mut first = pin!(node.scope.tasks().create(&one, task_spec("task", ENDLESS)));
    let mut second = pin!(
        node.scope
            .tasks()
            .create(&other, task_spec("task", ENDLESS))
    );
    assert!(poll!(&mut first).is_pending() && poll!(&mut second).is_pending());
    hold.arrived(2).await;
    hold.release();
    let (first, second) = tokio::join!(first, second);
    assert_eq!(u8::from(first.is_ok()) + u8::from(second.is_ok()), 1);
    assert_eq!(refused(first.and(second)), ErrorKind::AlreadyExists);
    node.agrees().await;
}
