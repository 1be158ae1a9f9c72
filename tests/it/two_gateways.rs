//! Two instances on one containerd do not touch each other's objects.

use switchyard_containerd::{Containerd, Settings};
use switchyard_contract::Fixture;
use switchyard_core::backend::{Backend, Withdrawal, unobserved};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_core::state::{SandboxState, TaskState};
use switchyard_tests::backend_fixture::BackendFixture;

#[tokio::test(flavor = "multi_thread")]
async fn second_gateway_neither_adopts_nor_removes_objects_of_the_first() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let first = world.backend();
    first.recover().await.expect("a fresh world can be recovered");
    let request = PullRequest {
        reference: world.image(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Host,
    };
    first.images().pull(&request).await.expect("the image can be pulled");
    let sandbox = SandboxId::random();
    let task = TaskId::random();
    first.create_sandbox(sandbox, &world.sandbox_spec("pod")).await.expect("a sandbox can be made");
    first
        .create_task(task, sandbox, &world.task_spec("task", &["sleep", "1000"]))
        .await
        .expect("so can a task");
    first.start_task(task, &Withdrawal::default()).await.expect("and started");

    let state = world.root().path().join("state2");
    let run = world.root().path().join("run2");
    std::fs::create_dir_all(&state).expect("the scratch directory can be written");
    std::fs::create_dir_all(&run).expect("the scratch directory can be written");
    let settings = Settings { state, run, ..world.settings().clone() };
    let second = Containerd::connect(settings, unobserved()).expect("it can be set up");
    let found = second.recover().await.expect("it recovers");
    assert!(found.sandboxes.is_empty() && found.tasks.is_empty(), "it has adopted {found:#?}");
    assert_eq!(second.images().list().await.expect("images can be listed").len(), 1, "images have no owner");
    drop(second);

    let again = world.reopen().await.recover().await.expect("the first recovers");
    assert_eq!(again.sandboxes.len(), 1);
    assert_eq!(again.sandboxes[0].state, SandboxState::Ready);
    assert!(matches!(again.tasks[0].state, TaskState::Running { .. }), "{:?}", again.tasks[0].state);
}
