//! A node under test: a gateway over a fake backend that has busybox.

use std::sync::Arc;
use std::time::Duration;

use switchyard_contract::specs;
use switchyard_core::backend::Backend;
use switchyard_core::gateway::{Gateway, Limits, Scope};
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::{SandboxSpec, TaskSpec};
use switchyard_core::state::{Exit, TaskState};
use switchyard_fake::{BUSYBOX, Fake};

/// A main process that runs until it is killed.
pub(crate) const ENDLESS: &[&str] = &["serve"];

pub(crate) struct FakeNode {
    pub(crate) fake: Fake,
    pub(crate) gateway: Gateway,
    /// The scope of Kubernetes, which most tests use.
    pub(crate) scope: Scope,
}

impl FakeNode {
    /// A node that has recovered from an empty state, and has pulled busybox.
    pub(crate) async fn new() -> Self {
        let fake = Fake::with_local_busybox().await;
        Self::over(fake).await
    }

    /// A node whose backend needs time for each call.
    pub(crate) async fn slow() -> Self {
        let node = Self::new().await;
        Self::over(node.fake.clone().with_latency(Duration::from_millis(2))).await
    }

    /// A recovered gateway over this backend.
    pub(crate) async fn over(fake: Fake) -> Self {
        let node = Self::unrecovered(fake);
        node.gateway.recover().await.unwrap();
        node
    }

    pub(crate) fn unrecovered(fake: Fake) -> Self {
        Self::within(fake, limits())
    }

    /// A gateway over this backend with these limits, before recovery.
    pub(crate) fn within(fake: Fake, limits: Limits) -> Self {
        let gateway = Gateway::new(Arc::new(fake.clone()), limits);
        let scope = gateway.scope(Owner::Kubernetes);
        Self {
            fake,
            gateway,
            scope,
        }
    }

    /// Kills the daemon at this moment and starts another one, which has completed the removals that it has
    /// found.
    pub(crate) async fn killed(self) -> Self {
        let fake = self.fake.reopen();
        drop(self);
        let node = Self::over(fake).await;
        for _ in 0..10_000 {
            if node.fake.pending_removals().is_empty() {
                return node;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!(
            "removals are not finished: {:?}",
            node.fake.pending_removals()
        );
    }

    pub(crate) async fn sandbox(&self) -> Arc<Sandbox> {
        self.scope
            .sandboxes()
            .create(sandbox_spec("pod"))
            .await
            .unwrap()
    }

    /// A created task in a sandbox of its own.
    pub(crate) async fn task(&self, command: &[&str]) -> Arc<Task> {
        let sandbox = self.sandbox().await;
        self.scope
            .tasks()
            .create(&sandbox.id.to_string(), task_spec("task", command))
            .await
            .unwrap()
    }

    /// A started task in a sandbox of its own.
    pub(crate) async fn running(&self, command: &[&str]) -> Arc<Task> {
        let task = self.task(command).await;
        self.scope
            .tasks()
            .start(&task.id.to_string())
            .await
            .unwrap();
        task
    }

    pub(crate) fn state(&self, id: TaskId) -> TaskState {
        self.scope
            .tasks()
            .find(&id.to_string())
            .unwrap()
            .state
            .clone()
    }

    pub(crate) fn exit(&self, id: TaskId) -> Exit {
        match self.state(id) {
            TaskState::Exited { exit, .. } => exit,
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Running { .. }
            | TaskState::Stopping { .. }
            | TaskState::Removing { .. } => panic!("it is {:?}, not exited", self.state(id)),
        }
    }

    /// Checks that the gateway has fulfilled its part of the contract.
    #[track_caller]
    pub(crate) fn is_sound(&self) {
        assert_eq!(self.fake.breaches(), Vec::<String>::new());
    }

    /// Checks that backend and table have the same objects, with the tasks in the same states.
    pub(crate) async fn agrees(&self) {
        self.is_sound();
        let recovered = self.fake.recover().await.unwrap();
        let scopes = Owner::ALL.map(|owner| self.gateway.scope(owner));
        let mut held: Vec<_> = scopes
            .iter()
            .flat_map(|scope| scope.sandboxes().list().unwrap())
            .collect();
        held.sort_by_key(|sandbox| sandbox.id);
        assert_eq!(held.len(), recovered.sandboxes.len());
        for (ours, theirs) in held.iter().zip(&recovered.sandboxes) {
            assert_eq!(**ours, *theirs);
        }
        let mut held: Vec<_> = scopes
            .iter()
            .flat_map(|scope| scope.tasks().list().unwrap())
            .collect();
        held.sort_by_key(|task| task.id);
        assert_eq!(held.len(), recovered.tasks.len());
        for (ours, theirs) in held.iter().zip(&recovered.tasks) {
            assert_eq!(
                (ours.id, ours.sandbox, &ours.meta),
                (theirs.id, theirs.sandbox, &theirs.meta)
            );
            assert_eq!(ours.details, theirs.details);
            assert_eq!(ours.state, theirs.state);
        }
    }
}

/// Limits that a test does not have to wait for.
pub(crate) fn limits() -> Limits {
    Limits {
        kill: Duration::from_secs(10),
        outage: Duration::from_millis(20),
        retry_min: Duration::from_millis(1),
        retry_max: Duration::from_millis(5),
        ..Limits::default()
    }
}

pub(crate) fn sandbox_spec(name: &str) -> SandboxSpec {
    specs::sandbox(Owner::Kubernetes, name)
}

pub(crate) fn task_spec(name: &str, command: &[&str]) -> TaskSpec {
    specs::task(Owner::Kubernetes, name, BUSYBOX, command)
}

/// Lets all other tasks run until `ready`; independent of the clock.
#[track_caller]
pub(crate) fn until(ready: impl Fn() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..100_000 {
            if ready() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("what is waited for at {caller} does not happen");
    }
}
