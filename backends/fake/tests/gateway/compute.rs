//! CPUs and memory: exclusive CPUs and amounts are claimed before a task is created, and released when it has
//! ended.

use std::pin::pin;
use std::sync::Arc;

use futures::poll;
use switchyard_contract::refused;
use switchyard_contract::specs;
use switchyard_core::gateway::Limits;
use switchyard_core::id::Owner;
use switchyard_core::ledger::Overcommit;
use switchyard_core::object::Task;
use switchyard_core::spec::{ComputeClaim, CpuList, Reserved, Resources, TaskSpec, TaskUpdate};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_fake::{BUSYBOX, Method};

use crate::node::{ENDLESS, FakeNode, limits, until};

const MIB: u64 = 1 << 20;

/// A node with four CPUs and 100 MiB that does not overcommit.
async fn node() -> FakeNode {
    let fake = FakeNode::new().await.fake;
    let node = FakeNode::within(fake, enforced());
    node.gateway.recover().await.unwrap();
    node
}

fn enforced() -> Limits {
    let capacity = Some(Reserved {
        cpu_milli: 4000,
        memory_bytes: 100 * MIB,
    });
    Limits {
        capacity,
        overcommit: Overcommit::Enforce,
        ..limits()
    }
}

fn spec(owner: Owner, cores: Option<&str>, mebibytes: u64) -> TaskSpec {
    let reserved = Reserved {
        cpu_milli: 500,
        memory_bytes: mebibytes * MIB,
    };
    TaskSpec {
        resources: Resources {
            cpuset_cpus: cores.map(|list| CpuList::new(list).unwrap()),
            ..Resources::default()
        },
        compute: ComputeClaim {
            reserved,
            exclusive_cpus: cores.is_some(),
        },
        ..specs::task(owner, &format!("task of {owner}"), BUSYBOX, ENDLESS)
    }
}

/// A task in a sandbox of its own.
async fn make(node: &FakeNode, spec: TaskSpec) -> Result<Arc<Task>> {
    let scope = node.gateway.scope(spec.meta.owner);
    let name = format!("sandbox of {}", spec.meta.owner);
    let sandbox = scope
        .sandboxes()
        .create(specs::sandbox(spec.meta.owner, &name))
        .await
        .unwrap();
    scope.tasks().create(&sandbox.id.to_string(), spec).await
}

/// The total memory reservation, in MiB.
fn memory(node: &FakeNode) -> u64 {
    let report = node.gateway.claims().report();
    report
        .compute
        .reserved()
        .values()
        .map(|reserved| reserved.memory_bytes / MIB)
        .sum()
}

#[tokio::test]
async fn exclusive_cores_are_held_until_the_sandbox_stops() {
    let node = node().await;
    let task = make(&node, spec(Owner::Nomad, Some("2-3"), 1))
        .await
        .unwrap();
    let scope = node.gateway.scope(Owner::Nomad);
    scope.tasks().start(&task.id.to_string()).await.unwrap();
    let error = make(&node, spec(Owner::Kubernetes, Some("1-2"), 1))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    let text = error.report();
    assert!(
        text.contains("the set 2 of processors") && text.contains("sandbox of nomad of nomad"),
        "{text}"
    );
    assert_eq!(
        node.fake.count(Method::CreateTask),
        1,
        "nothing is made of what is refused"
    );
    node.fake.exit(task.id, 1).unwrap();
    scope.tasks().wait(&task.id.to_string()).await.unwrap();
    refused(make(&node, spec(Owner::Kubernetes, Some("1-2"), 1)).await);
    scope
        .sandboxes()
        .stop(&task.sandbox.to_string())
        .await
        .unwrap();
    let pod = make(&node, spec(Owner::Kubernetes, Some("1-2"), 1))
        .await
        .unwrap();
    node.scope.tasks().start(&pod.id.to_string()).await.unwrap();
    node.agrees().await;
}

#[tokio::test]
async fn compute_is_held_from_task_creation_to_exit() {
    let node = node().await;
    let task = make(&node, spec(Owner::Nomad, None, 60)).await.unwrap();
    assert_eq!(memory(&node), 60);
    let error = make(&node, spec(Owner::Kubernetes, None, 50))
        .await
        .unwrap_err();
    let text = error.report();
    assert!(
        text.contains(
            "50 MiB of memory is more than is left of 100 MiB of memory: nomad has reserved 60 MiB"
        ),
        "{text}"
    );
    let scope = node.gateway.scope(Owner::Nomad);
    scope.tasks().start(&task.id.to_string()).await.unwrap();
    assert_eq!(memory(&node), 60);
    node.fake.exit(task.id, 0).unwrap();
    scope.tasks().wait(&task.id.to_string()).await.unwrap();
    until(|| memory(&node) == 0).await;
    make(&node, spec(Owner::Kubernetes, None, 100))
        .await
        .unwrap();
    assert_eq!(memory(&node), 100);
}

#[tokio::test]
async fn failed_create_or_start_holds_no_compute() {
    let node = node().await;
    node.fake
        .fail_next(Method::CreateTask, Error::internal("no"));
    assert_eq!(
        refused(make(&node, spec(Owner::Nomad, Some("0-3"), 100)).await),
        ErrorKind::Internal
    );
    let task = make(&node, spec(Owner::Kubernetes, Some("0-3"), 100))
        .await
        .unwrap();
    node.fake
        .fail_next(Method::StartTask, Error::internal("no"));
    assert_eq!(
        refused(node.scope.tasks().start(&task.id.to_string()).await),
        ErrorKind::Internal
    );
    assert_eq!(memory(&node), 0);
    node.scope
        .tasks()
        .remove(&task.id.to_string())
        .await
        .unwrap();
    make(&node, spec(Owner::Nomad, Some("0-3"), 100))
        .await
        .unwrap();
}

#[tokio::test]
async fn only_successful_limits_update_changes_the_held_compute() {
    let node = node().await;
    let task = make(&node, spec(Owner::Kubernetes, Some("0"), 40))
        .await
        .unwrap();
    let id = task.id.to_string();
    node.scope.tasks().start(&id).await.unwrap();
    let update = |cores: &str, mebibytes: u64| {
        let TaskSpec {
            resources, compute, ..
        } = spec(Owner::Kubernetes, Some(cores), mebibytes);
        TaskUpdate {
            resources,
            compute: Some(compute),
            ..TaskUpdate::default()
        }
    };
    refused(node.scope.tasks().update(&id, update("0", 101)).await);
    node.fake
        .fail_next(Method::UpdateTask, Error::internal("no"));
    refused(node.scope.tasks().update(&id, update("1", 90)).await);
    assert_eq!(memory(&node), 40);
    node.scope
        .tasks()
        .update(&id, update("1", 90))
        .await
        .unwrap();
    assert_eq!(memory(&node), 90);
    refused(make(&node, spec(Owner::Nomad, Some("1"), 1)).await);
    // If a kubelet updates a running container, a conflict is reported, and not refused.
    make(&node, spec(Owner::Nomad, Some("2"), 1)).await.unwrap();
    node.scope
        .tasks()
        .update(&id, update("1-2", 90))
        .await
        .unwrap();
    assert_eq!(node.gateway.claims().report().compute.conflicts().len(), 1);
    // An update without these fields changes nothing.
    node.scope
        .tasks()
        .update(&id, TaskUpdate::default())
        .await
        .unwrap();
    assert_eq!(memory(&node), 91);
}

#[tokio::test]
async fn held_compute_survives_daemon_restart() {
    let node = node().await;
    let running = make(&node, spec(Owner::Nomad, Some("0"), 30))
        .await
        .unwrap();
    let scope = node.gateway.scope(Owner::Nomad);
    scope.tasks().start(&running.id.to_string()).await.unwrap();
    let ended = make(&node, spec(Owner::Kubernetes, Some("1"), 50))
        .await
        .unwrap();
    node.scope
        .tasks()
        .start(&ended.id.to_string())
        .await
        .unwrap();
    node.fake.exit(ended.id, 0).unwrap();
    node.scope
        .tasks()
        .wait(&ended.id.to_string())
        .await
        .unwrap();
    let fake = node.fake.reopen();
    drop(node);
    let node = FakeNode::within(fake, enforced());
    node.gateway.recover().await.unwrap();
    assert_eq!(memory(&node), 30);
    let report = node.gateway.claims().report();
    let own: Vec<_> = report
        .compute
        .exclusive()
        .map(|(id, _, cores)| (id, cores.to_string()))
        .collect();
    let mut expected = vec![(running.id, "0".to_owned()), (ended.id, "1".to_owned())];
    expected.sort();
    assert_eq!(own, expected);
}

#[tokio::test]
async fn update_that_ends_after_its_sandbox_was_stopped_claims_nothing() {
    for started in [false, true] {
        let node = node().await;
        let task = make(&node, spec(Owner::Nomad, Some("1"), 10))
            .await
            .unwrap();
        let scope = node.gateway.scope(Owner::Nomad);
        let id = task.id.to_string();
        let TaskSpec {
            resources, compute, ..
        } = spec(Owner::Nomad, Some("1-2"), 20);
        let update = TaskUpdate {
            resources,
            compute: Some(compute),
            ..TaskUpdate::default()
        };
        if started {
            scope.tasks().start(&id).await.unwrap();
            let hold = node.fake.hold(Method::UpdateTask);
            let mut update = pin!(scope.tasks().update(&id, update));
            assert!(poll!(&mut update).is_pending());
            hold.arrived(1).await;
            scope
                .sandboxes()
                .stop(&task.sandbox.to_string())
                .await
                .unwrap();
            hold.release();
            update.await.unwrap();
        } else {
            // A stop waits for the update of a task that may be about to start.
            scope
                .sandboxes()
                .stop(&task.sandbox.to_string())
                .await
                .unwrap();
            scope.tasks().update(&id, update).await.unwrap();
        }
        assert_eq!(
            (
                memory(&node),
                node.gateway.claims().report().compute.exclusive().count()
            ),
            (0, 0)
        );
        make(&node, spec(Owner::Kubernetes, Some("1-2"), 100))
            .await
            .unwrap();
        node.is_sound();
    }
}

/// Two owners request this concurrently, repeatedly: one of them gets it, and never both.
async fn race(cores: Option<&str>, mebibytes: u64) {
    let node = node().await;
    for _ in 0..200 {
        let (one, other) = tokio::join!(
            make(&node, spec(Owner::Nomad, cores, mebibytes)),
            make(&node, spec(Owner::Kubernetes, cores, mebibytes))
        );
        assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
        for owner in [Owner::Nomad, Owner::Kubernetes] {
            let scope = node.gateway.scope(owner);
            for sandbox in scope.sandboxes().list().unwrap() {
                scope
                    .sandboxes()
                    .remove(&sandbox.id.to_string())
                    .await
                    .unwrap();
            }
        }
        assert_eq!(
            (
                memory(&node),
                node.gateway.claims().report().compute.exclusive().count()
            ),
            (0, 0)
        );
    }
    node.is_sound();
}

#[tokio::test]
async fn racing_owners_never_share_an_exclusive_core() {
    race(Some("3"), 1).await;
}

#[tokio::test]
async fn racing_owners_never_overcommit_the_last_memory() {
    race(None, 60).await;
}
