//! Sessions with a manager that is silent, forgetful or hostile.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::assignment_change::AssignmentAction;
use switchyard_proto::docker::swarmkit::v1::assignments_message::Type;
use switchyard_proto::docker::swarmkit::v1::issuance_status::State;
use switchyard_proto::docker::swarmkit::v1::node_spec::Availability;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::manager::{CLUSTER, ScriptedManager, session};
use crate::agent::Agent;
use crate::error::Error;
use crate::join::join;
use crate::offer::DeviceCheck;
use crate::report::AgentReport;
use crate::session::assignments::Change;
use crate::session::reports::Reports;
use crate::store::Store;
use crate::test_util::IdleExecutor;
use crate::testing::TestAuthority;

/// A node that has joined, with its agent running.
pub(super) struct Running {
    pub(super) executor: Arc<IdleExecutor>,
    reports: Arc<Reports>,
    report: watch::Receiver<AgentReport>,
    store: Store,
    agent: JoinHandle<Result<(), Error>>,
    _dir: tempfile::TempDir,
}

impl Running {
    pub(super) async fn start(manager: &ScriptedManager) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path().join("swarm"));
        let request = manager.request(Availability::Drain);
        let identity = join(&store, &request).await.unwrap();
        let executor = Arc::<IdleExecutor>::default();
        let reports = Arc::<Reports>::default();
        let agent = Agent::new(store.clone(), identity, executor.clone(), reports.clone())
            .await
            .unwrap();
        let report = agent.report();
        let agent = tokio::spawn(async move { agent.run(CancellationToken::new()).await });
        Self {
            executor,
            reports,
            report,
            store,
            agent,
            _dir: dir,
        }
    }

    pub(super) async fn until(&mut self, is_so: impl FnMut(&AgentReport) -> bool) {
        let waited = tokio::time::timeout(Duration::from_secs(30), self.report.wait_for(is_so))
            .await
            .is_ok();
        assert!(waited, "{:?}", self.report.borrow());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.agent.abort();
    }
}

fn assignments(kind: Type, from: &str, to: &str) -> swarm::AssignmentsMessage {
    swarm::AssignmentsMessage {
        r#type: kind.into(),
        applies_to: from.to_owned(),
        results_in: to.to_owned(),
        changes: Vec::new(),
    }
}

#[tokio::test]
async fn missing_message_opens_a_new_stream_within_the_session() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| {
        let missed = vec![
            assignments(Type::Complete, "", "1"),
            assignments(Type::Incremental, "2", "3"),
        ];
        script.assignments = vec![missed];
    });
    let node = Running::start(&manager).await;
    manager
        .until("a second stream", |asked| asked.assignments == 2)
        .await;
    manager
        .until("heartbeats continue", |asked| asked.heartbeats > 3)
        .await;
    assert_eq!(manager.shared.asked.lock().sessions.len(), 1);
    assert_eq!(node.executor.changes.lock().len(), 2);
}

#[tokio::test]
async fn message_of_very_many_empty_parts_is_refused_and_the_next_session_goes_on() {
    let manager = ScriptedManager::start(true).await;
    let mut hostile = assignments(Type::Complete, "", "1");
    hostile.changes = vec![swarm::AssignmentChange::default(); 250_000];
    manager.change(|script| script.assignments = vec![vec![hostile]]);
    let mut node = Running::start(&manager).await;
    let refusal = "the message has so many parts that they take more than 67108864 bytes once they are decoded";
    node.until(|report| {
        report
            .session_error
            .as_deref()
            .is_some_and(|error| error.contains(refusal))
    })
    .await;
    node.until(|report| report.sessions == 2 && report.session_error.is_none())
        .await;
}

#[tokio::test]
async fn tasks_come_by_the_deprecated_stream_from_a_manager_without_assignments() {
    let manager = ScriptedManager::start(true).await;
    let all = |ids: &[&str]| {
        let task = |id: &&str| swarm::Task {
            id: (*id).to_owned(),
            ..Default::default()
        };
        swarm::TasksMessage {
            tasks: ids.iter().map(task).collect(),
        }
    };
    manager.change(|script| script.tasks = vec![vec![all(&["a", "b"]), all(&["b", "c"])]]);
    let node = Running::start(&manager).await;
    manager
        .until("heartbeats continue", |asked| asked.heartbeats > 3)
        .await;
    assert_eq!(manager.shared.asked.lock().sessions.len(), 1);
    let changes = node.executor.changes.lock();
    let shown: Vec<Vec<String>> = changes
        .iter()
        .map(|changes| {
            assert!(changes.is_complete);
            let name = |change: &Change| match change {
                Change::Task(task) => task.id.clone(),
                Change::TaskGone(id) => format!("-{id}"),
                Change::Secret(_)
                | Change::Config(_)
                | Change::Volume(_)
                | Change::VolumeGone(_)
                | Change::SecretGone(_)
                | Change::ConfigGone(_) => panic!("{change:?}"),
            };
            changes.list.iter().map(name).collect()
        })
        .collect();
    assert_eq!(shown, [vec!["a", "b"], vec!["b", "c", "-a"]]);
}

#[tokio::test]
async fn volume_that_is_to_go_is_told_to_be_unpublished() {
    let manager = ScriptedManager::start(true).await;
    let volume = swarm::VolumeAssignment {
        id: "v1".to_owned(),
        ..Default::default()
    };
    let item = Some(swarm::assignment::Item::Volume(volume));
    let mut first = assignments(Type::Complete, "", "1");
    first.changes = vec![swarm::AssignmentChange {
        assignment: Some(swarm::Assignment { item }),
        action: AssignmentAction::Remove.into(),
    }];
    manager.change(|script| script.assignments = vec![vec![first]]);
    let _node = Running::start(&manager).await;
    manager
        .until("the volume", |asked| asked.unpublished == ["v1"])
        .await;
    manager
        .until("heartbeats continue", |asked| asked.heartbeats > 1)
        .await;
    assert_eq!(manager.shared.asked.lock().sessions.len(), 1);
}

#[tokio::test]
async fn lost_registration_and_changed_session_id_open_another_session() {
    let manager = ScriptedManager::start(false).await;
    manager.change(|script| {
        script.sessions = vec![
            Ok(session("")),
            Err(Status::not_found("node not registered")),
        ];
    });
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    assert_eq!(manager.shared.asked.lock().sessions.len(), 3);
    let stream = manager.shared.session.lock().clone().unwrap();
    stream.send(Ok(session("another"))).await.unwrap();
    node.until(|report| report.sessions == 2).await;
    let asked = manager.shared.asked.lock();
    assert!(
        asked
            .sessions
            .iter()
            .all(|request| request.session_id.is_empty()),
        "ids are not used again"
    );
    let engine = asked.sessions[0].description.clone().unwrap().engine;
    assert!(
        engine.is_some(),
        "without an engine everything would be placed here"
    );
}

#[tokio::test]
async fn manager_that_answers_no_heartbeat_is_left() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| script.has_heartbeats = false);
    let mut node = Running::start(&manager).await;
    node.until(|report| {
        report
            .session_error
            .as_deref()
            .is_some_and(|error| error.contains("Heartbeat within 5 s"))
    })
    .await;
    manager.change(|script| script.has_heartbeats = true);
    node.until(|report| report.sessions == 2 && report.session_error.is_none())
        .await;
}

#[tokio::test]
async fn removed_node_ends_with_what_to_do() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| {
        script.sessions = vec![Err(Status::permission_denied(
            "node node1 was removed from swarm",
        ))];
    });
    let mut node = Running::start(&manager).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), &mut node.agent)
        .await
        .unwrap()
        .unwrap();
    assert!(matches!(ended, Err(Error::Removed { .. })), "{ended:?}");
    assert_eq!(manager.shared.asked.lock().sessions.len(), 1);
}

#[tokio::test]
async fn one_foreign_task_does_not_keep_other_statuses_back() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| script.refused_task = Some("b".to_owned()));
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    for task in ["a", "b", "c"] {
        node.reports.report(
            task,
            swarm::TaskStatus {
                state: 512,
                ..Default::default()
            },
        );
    }
    manager
        .until("c arrives alone", |asked| {
            asked.updates.contains(&vec!["c".to_owned()])
        })
        .await;
    manager
        .until("heartbeats continue", |asked| asked.heartbeats > 3)
        .await;
    let asked = manager.shared.asked.lock();
    let count = |task: &str| {
        asked
            .updates
            .iter()
            .filter(|tasks| tasks.contains(&task.to_owned()))
            .count()
    };
    assert!(
        count("b") <= 3,
        "it is not tried again and again: {:?}",
        asked.updates
    );
    assert_eq!(asked.sessions.len(), 1);
}

#[tokio::test]
async fn asked_renewal_changes_key_and_certificate_and_begins_a_new_session() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| script.nodes = vec!["node1".to_owned(); 2]);
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    let before = node.store.load(SystemTime::now()).unwrap().unwrap();
    let status = swarm::IssuanceStatus {
        state: State::Rotate.into(),
        err: String::new(),
    };
    let certificate = swarm::Certificate {
        status: Some(status),
        ..Default::default()
    };
    let rotate = swarm::Node {
        certificate: Some(certificate),
        ..Default::default()
    };
    let message = swarm::SessionMessage {
        node: Some(rotate),
        ..session("s1")
    };
    let stream = manager.shared.session.lock().clone().unwrap();
    // Asked twice, it renews once.
    for _ in 0..2 {
        stream.send(Ok(message.clone())).await.unwrap();
    }
    node.until(|report| report.sessions == 2).await;
    let after = node.store.load(SystemTime::now()).unwrap().unwrap();
    assert_ne!(
        after.key().public_key().unwrap(),
        before.key().public_key().unwrap()
    );
    let asked = manager.shared.asked.lock();
    assert_eq!(asked.requests.len(), 2);
    assert!(
        asked.requests[1].token.is_empty(),
        "the certificate is enough"
    );
}

#[tokio::test]
async fn renewal_for_another_node_or_role_is_not_used() {
    let manager = ScriptedManager::start(true).await;
    manager.change(|script| script.nodes = vec!["node9".to_owned(), "node1".to_owned()]);
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    let before = node.store.load(SystemTime::now()).unwrap().unwrap();
    let status = swarm::IssuanceStatus {
        state: State::Rotate.into(),
        err: String::new(),
    };
    let certificate = swarm::Certificate {
        status: Some(status),
        ..Default::default()
    };
    let rotate = swarm::Node {
        certificate: Some(certificate),
        ..Default::default()
    };
    let stream = manager.shared.session.lock().clone().unwrap();
    stream
        .send(Ok(swarm::SessionMessage {
            node: Some(rotate),
            ..session("s1")
        }))
        .await
        .unwrap();
    node.until(|report| {
        report
            .renewal_error
            .as_deref()
            .is_some_and(|error| error.contains("names the node node9"))
    })
    .await;
    manager.change(|script| {
        script.nodes = vec!["node1".to_owned()];
        script.role = "swarm-manager";
    });
    node.until(|report| {
        report
            .renewal_error
            .as_deref()
            .is_some_and(|error| error.contains("a manager"))
    })
    .await;
    let after = node.store.load(SystemTime::now()).unwrap().unwrap();
    assert_eq!(after.chain(), before.chain());
    assert_eq!(
        node.report.borrow().sessions,
        1,
        "the session continues with the old certificate"
    );
}

#[tokio::test]
async fn roots_of_another_authority_are_not_taken() {
    let manager = ScriptedManager::start(true).await;
    let dir = tempfile::tempdir().unwrap();
    let other = TestAuthority::new(dir.path(), "other");
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    let stream = manager.shared.session.lock().clone().unwrap();
    for roots in [b"no certificate".to_vec(), other.root()] {
        stream
            .send(Ok(swarm::SessionMessage {
                root_ca: roots,
                ..session("s1")
            }))
            .await
            .unwrap();
    }
    // The second asks for a renewal, by which the certificate might lead to the new roots.
    manager
        .until("a renewal", |asked| asked.requests.len() == 2)
        .await;
    let stored = node.store.load(SystemTime::now()).unwrap().unwrap();
    assert_eq!(stored.roots().pem(), manager.shared.authority.root());
}

#[tokio::test]
async fn lists_of_managers_are_stored_and_hostile_ones_are_cut() {
    let manager = ScriptedManager::start(true).await;
    let peer = |address: String| {
        let peer = Some(swarm::Peer {
            node_id: String::new(),
            addr: address,
        });
        swarm::WeightedPeer { peer, weight: 10 }
    };
    let mut many: Vec<swarm::WeightedPeer> = (0..10_000)
        .map(|port| peer(format!("127.0.0.1:{port}")))
        .collect();
    many.push(swarm::WeightedPeer::default());
    many.insert(0, peer(String::new()));
    manager.change(|script| {
        script.sessions = vec![Ok(swarm::SessionMessage {
            managers: many,
            ..session("s1")
        })]
    });
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    manager
        .until("heartbeats continue", |asked| asked.heartbeats > 1)
        .await;
    assert_eq!(node.store.load_managers().unwrap().peers().count(), 64);
}

#[tokio::test]
async fn conclusion_about_the_check_of_the_managers_is_kept_for_the_next_daemon() {
    let manager = ScriptedManager::start(true).await;
    let mut node = Running::start(&manager).await;
    node.until(|report| report.sessions == 1).await;
    for check in [DeviceCheck::Inverted, DeviceCheck::Plain] {
        node.executor.device_check.send_replace(Some(check));
        let stored = async {
            while node.store.load_device_check(CLUSTER).unwrap() != Some(check) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), stored)
            .await
            .expect("it is not stored");
        let identity = node.store.load(SystemTime::now()).unwrap().unwrap();
        let executor = Arc::<IdleExecutor>::default();
        let next = Agent::new(
            node.store.clone(),
            identity,
            executor.clone(),
            Arc::default(),
        );
        next.await.unwrap().recover().await;
        assert_eq!(*executor.device_check.borrow(), Some(check));
    }
}
