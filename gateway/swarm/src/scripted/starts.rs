//! A start that takes long, while sessions break and managers assign its task again: nobody else counts the instances.

use std::sync::Arc;
use std::time::Duration;

use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_core::reload::Reloadable;
use switchyard_fake::{Fake, Method};
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::assignment_change::AssignmentAction;
use switchyard_proto::docker::swarmkit::v1::assignments_message::Type;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::manager::{CLUSTER, ScriptedManager};
use crate::agent::Agent;
use crate::executor::{Executor, MemberName};
use crate::join::join;
use crate::life::State;
use crate::sample_tasks::{container, task, task_id};
use crate::session::description::NodeFacts;
use crate::session::reports::Reports;
use crate::store::Store;
use crate::task_context::TaskExecutorSettings;
use crate::task_executor::TaskExecutor;
use crate::waiting::WaitingServices;

/// Everything: the task, as a manager has it that knows this state, and another one that is only prepared, by which it
/// shows that the node has the message.
fn everything(known: State, marker: usize) -> swarm::AssignmentsMessage {
    let assigned = |number: usize, known: State, wanted: State| {
        let status = swarm::TaskStatus {
            state: known.to_wire().into(),
            ..Default::default()
        };
        let args = vec!["serve".to_owned()];
        let task = swarm::Task {
            desired_state: wanted.to_wire().into(),
            status: Some(status),
            ..task(
                number,
                swarm::ContainerSpec {
                    args,
                    ..container()
                },
            )
        };
        swarm::AssignmentChange {
            assignment: Some(swarm::Assignment {
                item: Some(swarm::assignment::Item::Task(Box::new(task))),
            }),
            action: AssignmentAction::Update.into(),
        }
    };
    swarm::AssignmentsMessage {
        r#type: Type::Complete.into(),
        applies_to: String::new(),
        results_in: "1".to_owned(),
        changes: vec![
            assigned(1, known, State::Running),
            assigned(marker, State::Assigned, State::Ready),
        ],
    }
}

async fn reported(reports: &Reports, number: usize, state: State) {
    let reached = async {
        while reports
            .latest(&task_id(number))
            .is_none_or(|status| State::from_wire(status.state) != state)
        {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let reached = timeout(Duration::from_secs(60), reached).await;
    assert!(
        reached.is_ok(),
        "task {number}: {:?}",
        reports.latest(&task_id(number))
    );
}

#[tokio::test]
async fn task_that_takes_long_to_start_is_started_once_however_often_it_is_assigned() {
    let manager = ScriptedManager::start(true).await;
    // The last one first. A manager that has failed may know less than the one before it.
    manager.change(|script| {
        script.assignments = vec![
            vec![everything(State::Assigned, 12)],
            vec![everything(State::Starting, 11)],
            vec![everything(State::Assigned, 10)],
        ];
    });
    let fake = Fake::with_busybox();
    let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
    gateway.recover().await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let store = Store::new(dir.path().join("swarm"));
    let request = manager.request(Availability::Active);
    let identity = join(&store, &request).await.unwrap();
    let settings = TaskExecutorSettings {
        log_dir: dir.path().join("logs"),
        files_dir: dir.path().join("files"),
        port_range: 61_000..=61_003,
        pull_timeout: Duration::from_secs(60),
        logkeeper: None,
        allowed_devices: Reloadable::default(),
        device_kinds: Reloadable::default(),
        waiting: WaitingServices::default(),
    };
    let facts = watch::Sender::new(NodeFacts::default());
    let reports = Arc::<Reports>::default();
    let scope = gateway.scope(Owner::Swarm);
    let executor = Arc::new(TaskExecutor::new(
        scope,
        settings,
        facts.subscribe(),
        reports.clone(),
    ));
    executor.serve(&MemberName {
        cluster: CLUSTER.to_owned(),
        node: identity.node().to_owned(),
    });
    let agent = Agent::new(store, identity, executor.clone(), reports.clone())
        .await
        .unwrap();
    let end = CancellationToken::new();
    let ended = end.clone();
    let running = tokio::spawn(async move { agent.run(ended).await });

    let hold = fake.hold(Method::StartTask);
    hold.arrived(1).await;
    reported(&reports, 10, State::Ready).await;
    for marker in [11, 12] {
        let stream = manager.shared.session.lock().take().unwrap();
        stream
            .send(Err(Status::unavailable("the manager ends")))
            .await
            .unwrap();
        reported(&reports, marker, State::Ready).await;
    }
    assert_eq!(manager.shared.asked.lock().sessions.len(), 3);
    hold.release();
    reported(&reports, 1, State::Running).await;
    assert_eq!(fake.count(Method::StartTask), 1);
    // The task and three markers, of which two are gone.
    assert_eq!(fake.count(Method::CreateTask), 4);
    assert_eq!(fake.breaches(), Vec::<String>::new());
    end.cancel();
    running.await.unwrap().unwrap();
    executor.remove_all().await.unwrap();
    assert_eq!(fake.remaining_objects(), Vec::<String>::new());
}
