//! Tests of which statuses are sent.

use std::time::Duration;

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::TaskState;
use tokio::time::timeout;

use super::{BATCH_MAX, Reports};

fn status(state: TaskState, message: &str) -> swarm::TaskStatus {
    swarm::TaskStatus {
        state: state.into(),
        message: message.to_owned(),
        ..Default::default()
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_latest_status_is_sent_and_once() {
    let reports = Reports::default();
    reports.report("t", status(TaskState::Accepted, "accepted"));
    reports.report("t", status(TaskState::Running, "started"));
    let batch = reports.next().await;
    assert_eq!(batch.len(), 1);
    assert_eq!(batch[0].status, Some(status(TaskState::Running, "started")));
    reports.sent(&batch);
    let more = timeout(Duration::from_secs(60), reports.next()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test(start_paused = true)]
async fn status_that_changes_while_it_is_sent_is_sent_again() {
    let reports = Reports::default();
    reports.report("t", status(TaskState::Running, "started"));
    let batch = reports.next().await;
    reports.report("t", status(TaskState::Failed, "finished"));
    reports.sent(&batch);
    assert_eq!(
        reports.next().await[0].status,
        Some(status(TaskState::Failed, "finished"))
    );
}

#[tokio::test(start_paused = true)]
async fn state_never_goes_back() {
    let reports = Reports::default();
    reports.report("t", status(TaskState::Failed, "finished"));
    reports.report("t", status(TaskState::Running, "started"));
    assert_eq!(
        reports.next().await[0].status,
        Some(status(TaskState::Failed, "finished"))
    );
}

#[tokio::test(start_paused = true)]
async fn new_session_gets_everything_but_what_is_forgotten() {
    let reports = Reports::default();
    for task in ["a", "b"] {
        reports.report(task, status(TaskState::Running, "started"));
    }
    reports.sent(&reports.next().await);
    reports.forget("a");
    reports.begin_session();
    let batch = reports.next().await;
    assert_eq!(
        batch
            .iter()
            .map(|update| update.task_id.as_str())
            .collect::<Vec<_>>(),
        ["b"]
    );
}

#[tokio::test(start_paused = true)]
async fn many_statuses_and_long_texts_are_bounded() {
    let reports = Reports::default();
    let long = "ä".repeat(100_000);
    for task in 0..BATCH_MAX * 2 + 1 {
        reports.report(
            &task.to_string(),
            swarm::TaskStatus {
                err: long.clone(),
                ..status(TaskState::Failed, &long)
            },
        );
    }
    let mut sizes = Vec::new();
    for _ in 0..3 {
        let batch = reports.next().await;
        sizes.push(batch.len());
        assert!(batch.iter().all(|update| {
            update
                .status
                .as_ref()
                .is_some_and(|status| status.err.len() == 1024)
        }));
        reports.sent(&batch);
    }
    assert_eq!(sizes, [BATCH_MAX, BATCH_MAX, 1]);
}
