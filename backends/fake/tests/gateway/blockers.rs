//! Errors that name the processes that hold up what has failed.

use std::time::Duration;

use switchyard_core::Error;
use switchyard_core::backend::Blocker;
use switchyard_core::gateway::UnendedTask;
use switchyard_core::id::Owner;
use switchyard_core::image::{Credentials, PullRequest};
use switchyard_fake::{BUSYBOX, Method};
use switchyard_linux::kernel_wait::KernelWait;

use crate::node::{ENDLESS, FakeNode, sandbox_spec};

/// A process that waits in the kernel.
fn waiting(name: &str) -> Blocker {
    Blocker {
        wait: KernelWait {
            pid: 812,
            name: name.to_owned(),
            thread: 812,
            state: 'D',
            channel: Some("nfs_wait_bit_killable".to_owned()),
        },
        call: None,
        mount: None,
    }
}

#[tokio::test(start_paused = true)]
async fn task_that_cannot_end_is_explained_by_what_is_left_of_it() {
    let node = FakeNode::new().await;
    let task = node.task(ENDLESS).await;
    let hold = node.fake.hold(Method::WaitTask);
    let id = task.id.to_string();
    node.scope.tasks().start(&id).await.unwrap();
    let blocker = waiting("java");
    node.fake.set_task_blockers(task.id, vec![blocker.clone()]);
    let stopped = node.scope.tasks().stop(&id, Duration::ZERO).await;
    let text = stopped.unwrap_err().report();
    assert!(text.ends_with(&format!(": {blocker}")), "{text}");
    let unended = || node.gateway.tasks().unended();
    let expected = UnendedTask {
        id: task.id,
        owner: Owner::Kubernetes,
        why: Some(blocker.to_string()),
    };
    assert_eq!(unended(), std::slice::from_ref(&expected));
    let blockers = node.scope.tasks().blockers(task.id).await;
    assert_eq!(blockers.unwrap(), [blocker]);
    // What cannot be looked at hides nothing, and what was found before stays.
    node.fake.fail_next(
        Method::TaskBlockers,
        Error::unavailable("no thread is free"),
    );
    let stopped = node.scope.tasks().stop(&id, Duration::ZERO).await;
    let text = stopped.unwrap_err().report();
    assert!(text.contains("was sent SIGKILL, but no exit"), "{text}");
    assert_eq!(unended(), [expected]);
    hold.release();
    node.scope.tasks().stop(&id, Duration::ZERO).await.unwrap();
    assert!(unended().is_empty());
}

#[tokio::test]
async fn start_and_pull_that_the_runtime_does_not_answer_name_the_program_that_waits() {
    let node = FakeNode::new().await;
    let runc = waiting("runc");
    node.fake.set_runtime_blockers(vec![runc.clone()]);
    let late = || Error::deadline("it did not answer");
    node.fake.fail_next(Method::CreateSandbox, late());
    let created = node.scope.sandboxes().create(sandbox_spec("late")).await;
    let expected = format!("{runc}: it did not answer");
    let text = created.unwrap_err().report();
    assert!(text.ends_with(&expected), "{text}");
    node.fake.fail_next(Method::Pull, late());
    let request = PullRequest {
        reference: BUSYBOX.to_owned(),
        credentials: Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Kubernetes,
    };
    let pulled = node.scope.images().pull(&request).await;
    let text = pulled.unwrap_err().report();
    assert!(text.contains(&runc.to_string()), "{text}");
    // Whatever else fails is not the program's.
    node.fake
        .fail_next(Method::CreateSandbox, Error::internal("no address"));
    let created = node.scope.sandboxes().create(sandbox_spec("other")).await;
    let text = created.unwrap_err().report();
    assert!(!text.contains("runc"), "{text}");
}
