//! Templates of secrets and configs are expanded where nobody else waits for them.

use std::sync::mpsc;

use switchyard_core::threads::{self, BULK};
use tokio::task::JoinSet;

use super::*;

/// All threads for bulk work, in use until it is dropped.
struct BulkInUse {
    _until_dropped: Vec<mpsc::Sender<()>>,
    _jobs: JoinSet<Result<()>>,
}

impl BulkInUse {
    async fn begin() -> Self {
        let (begun, mut has_begun) = tokio::sync::mpsc::channel(BULK);
        let mut jobs = JoinSet::new();
        let mut until_dropped = Vec::new();
        for _ in 0..BULK {
            let (end, ended) = mpsc::channel::<()>();
            until_dropped.push(end);
            let begun = begun.clone();
            jobs.spawn(threads::bulk(move || {
                begun.blocking_send(()).unwrap();
                let _ = ended.recv();
                Ok(())
            }));
        }
        for _ in 0..BULK {
            within(has_begun.recv()).await.unwrap();
        }
        Self {
            _until_dropped: until_dropped,
            _jobs: jobs,
        }
    }
}

/// A task with a config that is a template.
fn with_template(number: usize) -> swarm::Task {
    let file = swarm::FileTarget {
        name: "site.conf".into(),
        mode: 0o444,
        ..Default::default()
    };
    let reference = swarm::ConfigReference {
        config_id: "c1".into(),
        config_name: "site".into(),
        target: Some(swarm::config_reference::Target::File(file)),
    };
    task(
        number,
        swarm::ContainerSpec {
            configs: vec![reference],
            args: vec!["serve".into()],
            ..container()
        },
    )
}

#[tokio::test]
async fn expansion_that_does_not_end_holds_up_neither_other_tasks_nor_assignments() {
    let node = TestNode::new().await;
    let template = config("c1", b"{{.Service.Name}}", true);
    node.apply(false, vec![Change::Config(Arc::new(template))])
        .await;
    let threads = BulkInUse::begin().await;
    node.assign(with_template(1)).await;
    node.assign(with_template(2)).await;
    node.assign(running(3, &[])).await;
    node.reported(3, State::Running).await;
    // Dependencies are taken up meanwhile.
    node.apply(
        false,
        vec![Change::Secret(Arc::new(secret("s1", b"x", false)))],
    )
    .await;
    for number in [1, 2] {
        let reached = node
            .status(number)
            .map_or(State::Assigned, |status| State::from_wire(status.state));
        assert_eq!(
            reached,
            State::Assigned,
            "task {number} waits for its expansion"
        );
    }
    // What is not wanted any more does not wait.
    node.remove(2).await;
    drop(threads);
    node.reported(1, State::Running).await;
    let made = node.place.path().join("files").join(task_id(1));
    let made: Vec<_> = std::fs::read_dir(made)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    assert_eq!(std::fs::read_to_string(&made[0]).unwrap(), "web");
    node.remove(1).await;
    node.remove(3).await;
    node.is_empty().await;
}

#[tokio::test]
async fn task_that_is_removed_waits_for_no_expansion() {
    let node = TestNode::new().await;
    node.apply(
        false,
        vec![Change::Config(Arc::new(config(
            "c1",
            b"{{.Task.ID}}",
            true,
        )))],
    )
    .await;
    let _threads = BulkInUse::begin().await;
    node.assign(with_template(1)).await;
    node.remove(1).await;
    node.is_empty().await;
}
