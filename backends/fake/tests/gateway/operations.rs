//! Tests of the operations that the gateway registers: one for each execution of a change, whoever waits for
//! it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_core::Error;
use switchyard_core::gateway::Gateway;
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, PullProgress, PullRequest};
use switchyard_core::ledger::MemoryStore;
use switchyard_core::operation::{
    Caller, EndedOperation, EndedStep, OperationObserver, Operations, Outcome,
};
use switchyard_fake::{BUSYBOX, Fake, Method};

use crate::node::{ENDLESS, FakeNode, limits, sandbox_spec, task_spec, until};
use crate::restart::cut_off;

/// The events that an observer received.
#[derive(Default)]
struct Observed {
    operations: Mutex<Vec<String>>,
    steps: Mutex<Vec<String>>,
}

impl OperationObserver for Observed {
    fn operation_ended(&self, operation: &EndedOperation<'_>) {
        let EndedOperation {
            kind,
            owner,
            subject,
            caller,
            outcome,
            ..
        } = operation;
        assert_eq!(*owner, Some(Owner::Kubernetes), "{kind}");
        assert!(
            subject.sandbox.is_some() && subject.sandbox_meta.is_some(),
            "{kind}: {subject:?}"
        );
        let outcome = match outcome {
            Outcome::Succeeded => "ok",
            Outcome::Failed(error) => error.kind().as_str(),
            Outcome::Dropped => "dropped",
        };
        let caller = caller.map_or("nobody", |caller| caller.listener);
        self.operations
            .lock()
            .push(format!("{kind} {outcome} for {caller}"));
    }

    fn step_ended(&self, step: EndedStep) {
        self.steps
            .lock()
            .push(format!("{}: {}", step.operation, step.name));
    }
}

impl Observed {
    #[track_caller]
    fn assert_operations(&self, expected: &[&str]) {
        assert_eq!(*self.operations.lock(), expected);
    }
}

/// A gateway over this backend that is observed, and has not recovered.
fn observed(fake: Fake) -> (FakeNode, Arc<Observed>) {
    let operations = Operations::default();
    let observed = Arc::new(Observed::default());
    operations.observe(Arc::clone(&observed) as _);
    let leases = Arc::new(MemoryStore::default());
    let gateway = Gateway::with_leases(Arc::new(fake.clone()), limits(), leases, operations);
    let scope = gateway.scope(Owner::Kubernetes);
    (
        FakeNode {
            fake,
            gateway,
            scope,
        },
        observed,
    )
}

fn kubelet() -> Caller {
    Caller {
        listener: "cri",
        uid: Some(0),
        pid: Some(7),
    }
}

#[tokio::test]
async fn callers_of_one_creation_and_its_retry_are_one_operation() {
    let (node, observed) = observed(Fake::with_local_busybox().await);
    node.gateway.recover().await.unwrap();
    let create = || kubelet().scope(node.scope.sandboxes().create(sandbox_spec("pod")));
    let (first, second) = futures::future::join(create(), create()).await;
    assert_eq!(first.unwrap().id, second.unwrap().id);
    create().await.unwrap();
    observed.assert_operations(&["create_sandbox ok for cri"]);
}

#[tokio::test]
async fn pull_in_flight_shows_its_registry_and_progress() {
    let operations = Operations::default();
    let fake = Fake::with_busybox();
    let leases = Arc::new(MemoryStore::default());
    let gateway =
        Gateway::with_leases(Arc::new(fake.clone()), limits(), leases, operations.clone());
    gateway.recover().await.unwrap();
    let request = PullRequest {
        reference: BUSYBOX.into(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Kubernetes,
    };
    let progress = PullProgress {
        layers: 2,
        layers_done: 1,
        bytes: 10,
        bytes_done: 7,
    };
    let hold = fake.hold(Method::Pull);
    let scope = gateway.scope(Owner::Kubernetes);
    let pull = tokio::spawn(async move { scope.images().pull(&request).await });
    until(|| operations.in_flight().len() == 1).await;
    let known = operations.in_flight().remove(0);
    assert!(known.subject.registry().is_some(), "{known:?}");
    fake.set_progress(progress);
    until(|| operations.in_flight()[0].pull == Some(progress)).await;
    drop(hold);
    pull.await.unwrap().unwrap();
    assert!(operations.in_flight().is_empty());
}

#[tokio::test]
async fn pull_for_a_sandbox_names_it() {
    let (node, observed) = observed(Fake::with_busybox());
    node.gateway.recover().await.unwrap();
    let sandboxes = node.scope.sandboxes();
    sandboxes.create(sandbox_spec("pod")).await.unwrap();
    let request = PullRequest {
        reference: BUSYBOX.to_owned(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Kubernetes,
    };
    let images = node.scope.images();
    kubelet()
        .scope(images.pull_for("pod", &request))
        .await
        .unwrap();
    // The observer wants a sandbox for each.
    observed.assert_operations(&["create_sandbox ok for nobody", "pull_image ok for cri"]);
}

#[tokio::test]
async fn parts_of_a_removal_are_no_operations() {
    let (node, observed) = observed(Fake::with_local_busybox().await);
    node.gateway.recover().await.unwrap();
    let task = node.running(ENDLESS).await;
    observed.operations.lock().clear();
    kubelet()
        .scope(node.scope.sandboxes().remove(&task.sandbox.to_string()))
        .await
        .unwrap();
    observed.assert_operations(&["remove_sandbox ok for cri"]);
    let steps = observed.steps.lock().clone();
    for step in [
        "remove_sandbox: kill_tasks",
        "remove_sandbox: release_network",
        "remove_sandbox: remove_tasks",
    ] {
        assert!(
            steps.iter().any(|known| known == step),
            "{step} is not among {steps:?}"
        );
    }
    // What is gone already is no operation.
    node.scope
        .sandboxes()
        .remove(&task.sandbox.to_string())
        .await
        .unwrap();
    node.scope
        .tasks()
        .stop(&task.id.to_string(), Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(observed.operations.lock().len(), 1);
}

#[tokio::test]
async fn operation_continues_for_its_caller_who_has_gone() {
    let (node, observed) = observed(Fake::with_local_busybox().await);
    node.gateway.recover().await.unwrap();
    let hold = node.fake.hold(Method::CreateSandbox);
    {
        let create = kubelet().scope(node.scope.sandboxes().create(sandbox_spec("pod")));
        let mut create = Box::pin(create);
        assert!(futures::poll!(&mut create).is_pending());
        hold.arrived(1).await;
    }
    observed.assert_operations(&[]);
    hold.release();
    until(|| !observed.operations.lock().is_empty()).await;
    observed.assert_operations(&["create_sandbox ok for cri"]);
}

#[tokio::test]
async fn failure_is_the_end_of_an_operation() {
    let (node, observed) = observed(Fake::with_local_busybox().await);
    node.gateway.recover().await.unwrap();
    let sandbox = node.sandbox().await.id.to_string();
    node.fake
        .fail_next(Method::CreateTask, Error::unavailable("containerd is away"));
    let create = node
        .scope
        .tasks()
        .create(&sandbox, task_spec("task", ENDLESS));
    kubelet().scope(create).await.unwrap_err();
    observed.assert_operations(&[
        "create_sandbox ok for nobody",
        "create_task unavailable for cri",
    ]);
}

#[tokio::test]
async fn all_attempts_of_a_resumed_removal_are_one_operation_of_nobody() {
    let node = FakeNode::new().await;
    let sandbox = node.running(&["ignore-term"]).await.sandbox;
    let fake = cut_off(node, sandbox, Method::RemoveSandbox).await;
    for _ in 0..3 {
        fake.fail_next(Method::RemoveSandbox, Error::unavailable("away"));
    }
    let (node, observed) = observed(fake);
    node.gateway.recover().await.unwrap();
    until(|| !observed.operations.lock().is_empty()).await;
    observed.assert_operations(&["remove_sandbox ok for nobody"]);
    assert!(
        node.fake.count(Method::RemoveSandbox) >= 4,
        "{:?}",
        node.fake.calls()
    );
    assert!(node.fake.remaining_objects().is_empty());
}
