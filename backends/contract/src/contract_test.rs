//! Shared by all facts: an open backend, and helpers to create objects in it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::Result;
use switchyard_core::backend::{Backend, Recovered, Started, Withdrawal};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Credentials, ImageId, PullRequest};
use switchyard_core::object::{Sandbox, SandboxDetails, Task, TaskDetails};
use switchyard_core::spec::{SandboxSpec, Signal, TaskSpec};
use switchyard_core::state::{Exit, TaskState};

use crate::Fixture;

/// A main process that runs until it is killed.
pub(crate) const ENDLESS: &[&str] = &["sleep", "1000"];

/// A fact's view of its fixture.
pub(crate) struct ContractTest<'a> {
    pub(crate) fixture: &'a dyn Fixture,
    pub(crate) backend: Arc<dyn Backend>,
}

/// A created sandbox.
pub(crate) struct MadeSandbox {
    pub(crate) id: SandboxId,
    pub(crate) spec: SandboxSpec,
    pub(crate) details: SandboxDetails,
}

/// A created task.
pub(crate) struct MadeTask {
    pub(crate) id: TaskId,
    pub(crate) sandbox: SandboxId,
    pub(crate) spec: TaskSpec,
    pub(crate) details: TaskDetails,
}

impl<'a> ContractTest<'a> {
    /// Opens the backend and recovers its state, as the gateway does first.
    pub(crate) async fn open(fixture: &'a dyn Fixture) -> Self {
        let backend = fixture.backend();
        backend.recover().await.expect("recover a fresh backend");
        Self { fixture, backend }
    }

    /// Opens the backend, pulls the image and creates a sandbox.
    pub(crate) async fn with_sandbox(fixture: &'a dyn Fixture) -> (Self, MadeSandbox) {
        let test = Self::open(fixture).await;
        test.pull().await.expect("pull the image of the fixture");
        let sandbox = test.sandbox("pod").await;
        (test, sandbox)
    }

    /// Kills the daemon and starts a new one.
    pub(crate) async fn reopen(&mut self) -> Recovered {
        self.backend = self.fixture.reopen().await;
        self.backend.recover().await.expect("recover after a kill")
    }

    pub(crate) async fn pull(&self) -> Result<ImageId> {
        self.pull_from(&self.fixture.image()).await
    }

    pub(crate) async fn pull_for(&self, owner: Owner) -> Result<ImageId> {
        self.pull_with(owner, Credentials::Anonymous).await
    }

    pub(crate) async fn pull_with(
        &self,
        owner: Owner,
        credentials: Credentials,
    ) -> Result<ImageId> {
        let reference = self.fixture.image();
        let request = PullRequest {
            reference,
            credentials,
            handler: String::new(),
            owner,
        };
        self.backend.images().pull(&request).await
    }

    pub(crate) async fn pull_from(&self, reference: &str) -> Result<ImageId> {
        let request = PullRequest {
            reference: reference.to_owned(),
            credentials: Credentials::Anonymous,
            handler: String::new(),
            owner: Owner::Host,
        };
        self.backend.images().pull(&request).await
    }

    pub(crate) async fn sandbox(&self, name: &str) -> MadeSandbox {
        let id = SandboxId::random();
        let spec = self.fixture.sandbox_spec(name);
        let details = self
            .backend
            .create_sandbox(id, &spec)
            .await
            .expect("create a sandbox");
        MadeSandbox { id, spec, details }
    }

    pub(crate) async fn task(&self, sandbox: SandboxId, name: &str, command: &[&str]) -> MadeTask {
        self.task_of(sandbox, self.fixture.task_spec(name, command))
            .await
    }

    pub(crate) async fn task_of(&self, sandbox: SandboxId, spec: TaskSpec) -> MadeTask {
        let id = TaskId::random();
        let details = self
            .backend
            .create_task(id, sandbox, &spec)
            .await
            .expect("create a task");
        MadeTask {
            id,
            sandbox,
            spec,
            details,
        }
    }

    pub(crate) async fn running(
        &self,
        sandbox: SandboxId,
        name: &str,
        command: &[&str],
    ) -> (MadeTask, Started) {
        let task = self.task(sandbox, name, command).await;
        let started = self
            .backend
            .start_task(task.id, &Withdrawal::default())
            .await
            .expect("start a task");
        (task, started)
    }

    pub(crate) async fn wait(&self, id: TaskId) -> Exit {
        self.backend.wait_task(id).await.expect("wait for a task")
    }

    /// Kills a task and waits for its exit.
    pub(crate) async fn kill(&self, id: TaskId) -> Exit {
        self.backend
            .signal_task(id, Signal::KILL)
            .await
            .expect("kill a task");
        self.wait(id).await
    }
}

/// The sandbox with this id.
#[track_caller]
pub(crate) fn sandbox_in(recovered: &Recovered, id: SandboxId) -> &Sandbox {
    recovered
        .sandboxes
        .iter()
        .find(|sandbox| sandbox.id == id)
        .expect("the sandbox is recovered")
}

/// The task with this id.
#[track_caller]
pub(crate) fn task_in(recovered: &Recovered, id: TaskId) -> &Task {
    recovered
        .tasks
        .iter()
        .find(|task| task.id == id)
        .expect("the task is recovered")
}

/// Checks that two times are equal to the millisecond.
#[track_caller]
pub(crate) fn same_time(left: SystemTime, right: SystemTime) {
    let apart = left
        .duration_since(right)
        .unwrap_or_else(|error| error.duration());
    assert!(
        apart <= Duration::from_millis(1),
        "{left:?} and {right:?} are {apart:?} apart"
    );
}

/// Checks that a recovered sandbox equals the created one, apart from its state.
#[track_caller]
pub(crate) fn same_sandbox(found: &Sandbox, made: &MadeSandbox) {
    same_time(found.meta.created_at, made.spec.meta.created_at);
    let mut meta = made.spec.meta.clone();
    meta.created_at = found.meta.created_at;
    assert_eq!(*found.meta, meta);
    assert_eq!(found.handler, made.spec.handler);
    assert_eq!(found.details, made.details);
}

/// Checks that a recovered task equals the created one, apart from its state.
#[track_caller]
pub(crate) fn same_task(found: &Task, made: &MadeTask) {
    same_time(found.meta.created_at, made.spec.meta.created_at);
    let mut meta = made.spec.meta.clone();
    meta.created_at = found.meta.created_at;
    assert_eq!(*found.meta, meta);
    assert_eq!(found.sandbox, made.sandbox);
    // What the node could not fulfil is not on record.
    let details = TaskDetails {
        warnings: Vec::new(),
        ..made.details.clone()
    };
    assert_eq!(found.details, details);
}

/// Checks that two exits are equal, with times to the millisecond.
#[track_caller]
pub(crate) fn same_exit(left: &Exit, right: &Exit) {
    same_time(left.finished_at, right.finished_at);
    assert_eq!((left.code, &left.cause), (right.code, &right.cause));
}

/// The exit of an exited task.
#[track_caller]
pub(crate) fn exit_of(task: &Task) -> &Exit {
    match &task.state {
        TaskState::Exited { exit, .. } => exit,
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Running { .. }
        | TaskState::Stopping { .. }
        | TaskState::Removing { .. } => panic!("it is {:?}, not exited", task.state),
    }
}
