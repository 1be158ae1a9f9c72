//! Tests of what operators learn of tasks that cannot begin.

use switchyard_core::event::{EventKind, UnmetWork};

use super::*;

/// A task that this node cannot run, by the reason of its rejection.
fn rejected() -> Vec<(swarm::Task, &'static str)> {
    let driver = |name: &str| swarm::Driver {
        name: name.to_owned(),
        ..Default::default()
    };
    let by_log = swarm::Task {
        log_driver: Some(driver("syslog")),
        ..running(1, &[])
    };
    let by_other_log = swarm::Task {
        log_driver: Some(driver("gelf")),
        ..running(2, &[])
    };
    let by_networks = swarm::Task {
        networks: vec![swarm::NetworkAttachment::default(); 2],
        ..running(3, &[])
    };
    let number = swarm::DiscreteGenericResource {
        kind: "ssd".to_owned(),
        value: 2,
    };
    let resource = Some(swarm::generic_resource::Resource::DiscreteResourceSpec(
        number,
    ));
    let by_resource = swarm::Task {
        assigned_generic_resources: vec![swarm::GenericResource { resource }],
        ..running(4, &[])
    };
    vec![
        (by_log, "no log driver \"syslog\""),
        (by_other_log, "no log driver \"gelf\""),
        (by_networks, "networks: 2 of them"),
        (by_resource, "\"ssd\" is a number"),
    ]
}

#[tokio::test]
async fn rejected_task_is_an_event_and_its_service_waits_until_one_is_prepared() {
    let node = TestNode::new().await;
    let mut events = node.gateway.scope(Owner::Swarm).subscribe();
    let waiting = node.executor.shared.settings.waiting.clone();
    for (number, (task, part)) in (1..).zip(rejected()) {
        node.assign(wanted(task, State::Running)).await;
        node.reported(number, State::Rejected).await;
        let event = within(events.next()).await.unwrap().unwrap();
        let EventKind::Unmet(work) = event.kind else {
            panic!("{event:?}")
        };
        let UnmetWork {
            names,
            reason,
            is_rejected,
        } = &*work;
        assert_eq!(names.get("swarm_service"), Some("web"));
        assert!(*is_rejected && reason.contains(part), "{reason}");
        let list = waiting.list();
        let [service] = &list[..] else {
            panic!("{list:?}")
        };
        assert!(
            service.is_rejected && service.reason == *reason,
            "{service:?}"
        );
    }
    // The same again is no news.
    let (again, _) = rejected().pop().unwrap();
    let again = swarm::Task {
        id: task_id(5),
        ..again
    };
    node.assign(wanted(again, State::Running)).await;
    node.reported(5, State::Rejected).await;
    node.assign(wanted(running(6, &[]), State::Running)).await;
    node.reported(6, State::Running).await;
    assert_eq!(waiting.list(), []);
    let event = within(events.next()).await.unwrap().unwrap();
    assert!(!matches!(event.kind, EventKind::Unmet(_)), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn task_that_is_tried_again_waits() {
    let node = TestNode::new().await;
    let waiting = node.executor.shared.settings.waiting.clone();
    for _ in 0..3 {
        node.fake.fail_next(
            Method::CreateSandbox,
            Error::unavailable("containerd does not answer"),
        );
    }
    node.assign(wanted(running(1, &[]), State::Running)).await;
    let waits = async {
        while waiting.list().is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(waits).await;
    let service = waiting.list().remove(0);
    assert!(
        !service.is_rejected && service.reason.contains("containerd"),
        "{service:?}"
    );
    node.reported(1, State::Running).await;
    assert_eq!(waiting.list(), []);
}
