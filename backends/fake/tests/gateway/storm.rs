//! Random concurrent operations, faults and kills: whatever each results in, the state stays consistent.

use std::time::Duration;

use futures::future::join_all;
use proptest::prelude::*;
use switchyard_core::Error;
use switchyard_core::id::TaskId;
use switchyard_fake::Method;

use crate::node::{ENDLESS, FakeNode, sandbox_spec, task_spec, until};

/// Far more than any round takes with the paused clock.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy)]
enum Deed {
    CreateSandbox,
    StopSandbox,
    RemoveSandbox,
    CreateTask,
    StartTask,
    StopTask,
    RemoveTask,
    Wait,
    Exit,
}

fn deed() -> impl Strategy<Value = (Deed, u8, u64)> {
    let kind = prop_oneof![
        3 => Just(Deed::CreateSandbox),
        1 => Just(Deed::StopSandbox),
        1 => Just(Deed::RemoveSandbox),
        4 => Just(Deed::CreateTask),
        4 => Just(Deed::StartTask),
        2 => Just(Deed::StopTask),
        2 => Just(Deed::RemoveTask),
        1 => Just(Deed::Wait),
        1 => Just(Deed::Exit),
    ];
    (kind, 0..2_u8, 0..4_u64)
}

fn fault() -> impl Strategy<Value = Method> {
    prop_oneof![
        Just(Method::CreateSandbox),
        Just(Method::StopSandbox),
        Just(Method::RemoveSandbox),
        Just(Method::CreateTask),
        Just(Method::StartTask),
        Just(Method::SignalTask),
        Just(Method::WaitTask),
        Just(Method::RemoveTask),
    ]
}

/// Performs one operation for a caller that may drop it half way.
async fn asked_for(node: &FakeNode, deed: (Deed, u8, u64)) {
    let work = perform(node, deed);
    let pause = deed.2;
    if pause == 3 {
        let _ = tokio::time::timeout(Duration::from_millis(pause + 1), work).await;
    } else {
        work.await;
    }
}

/// Performs one operation; it may fail, but it must return.
async fn perform(node: &FakeNode, (deed, name, pause): (Deed, u8, u64)) {
    let scope = &node.scope;
    let pod = format!("pod {name}");
    let container = format!("task {name}");
    tokio::time::sleep(Duration::from_millis(pause)).await;
    let sandboxes = scope.sandboxes().list().unwrap();
    let pod_id = sandboxes
        .iter()
        .find(|one| one.meta.name == pod)
        .map(|one| one.id.to_string());
    let tasks = scope.tasks().list().unwrap();
    let task: Option<TaskId> = tasks
        .iter()
        .find(|one| one.meta.name == container)
        .map(|one| one.id);
    let task_id = task.map_or_else(String::new, |id| id.to_string());
    let pod_id = pod_id.unwrap_or_default();
    let patience = Duration::from_millis(pause * 1000);
    // The result of each depends on the others, so the round is checked as a whole.
    match deed {
        Deed::CreateSandbox => drop(scope.sandboxes().create(sandbox_spec(&pod)).await),
        Deed::StopSandbox => drop(scope.sandboxes().stop(&pod_id).await),
        Deed::RemoveSandbox => drop(scope.sandboxes().remove(&pod_id).await),
        Deed::CreateTask => {
            let command = if pause == 0 {
                &["ignore-term"]
            } else {
                ENDLESS
            };
            drop(
                scope
                    .tasks()
                    .create(&pod_id, task_spec(&container, command))
                    .await,
            );
        }
        Deed::StartTask => drop(scope.tasks().start(&task_id).await),
        Deed::StopTask => drop(scope.tasks().stop(&task_id, patience).await),
        Deed::RemoveTask => drop(scope.tasks().remove(&task_id).await),
        // A task may run forever: this waiter gives up.
        Deed::Wait => drop(tokio::time::timeout(patience, scope.tasks().wait(&task_id)).await),
        Deed::Exit => drop(task.map(|id| node.fake.exit(id, 1))),
    }
}

async fn settled(node: &FakeNode) {
    let wrong = || {
        node.scope
            .tasks()
            .list()
            .unwrap()
            .iter()
            .any(|task| task.state.is_running() != node.fake.runs(task.id))
    };
    for _ in 0..1000 {
        if !wrong() {
            return;
        }
        // With the paused clock this takes no time; it lets watchers that wait for their next check run.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    until(|| !wrong()).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn concurrent_call_storm_keeps_invariants(
        rounds in prop::collection::vec(
            (prop::collection::vec(deed(), 1..12), prop::collection::vec(fault(), 0..3), any::<bool>()),
            1..6,
        ),
    ) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut node = FakeNode::slow().await;
            for (deeds, faults, killed) in rounds {
                for method in faults {
                    node.fake.fail_next(method, Error::unavailable("by chance"));
                }
                let all = join_all(deeds.into_iter().map(|deed| asked_for(&node, deed)));
                tokio::time::timeout(PATIENCE, all).await.expect("an operation hangs");
                settled(&node).await;
                if killed {
                    node = node.killed().await;
                    node.agrees().await;
                }
                node.is_sound();
            }
            let node = node.killed().await;
            for sandbox in node.scope.sandboxes().list().unwrap() {
                node.scope.sandboxes().remove(&sandbox.id.to_string()).await.unwrap();
            }
            assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
            node.agrees().await;
        });
    }
}
