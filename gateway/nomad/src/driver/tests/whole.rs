//! Tests that no response lacks a field that agents need; and of networks, statistics, and unknown tasks.

use switchyard_core::state::{Exit, TaskState};

use super::*;
use crate::to_proto;

const NO_TIME: i64 = -62_135_596_800;

fn check_status(status: &nomad::InspectTaskResponse) -> nomad::TaskStatus {
    let task = status
        .task
        .clone()
        .expect("an agent falls over a status without a task");
    assert!(
        task.result.is_some() && task.started_at.is_some() && task.completed_at.is_some(),
        "{task:?}"
    );
    assert!(status.driver.is_some());
    task
}

#[tokio::test]
async fn task_handle_suffices_for_recovery() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    let started = fixture.start(&request).await.expect("it starts");
    let handle = started
        .handle
        .expect("an agent cannot recover a task without");
    assert_eq!(
        (handle.version, handle.state()),
        (1, nomad::TaskState::Running)
    );
    assert_eq!(handle.config, Some(request));
    assert!(!handle.driver_state.is_empty());
    let network = started
        .network_override
        .expect("it has a network of its own");
    assert!(!network.addr.is_empty() && !network.auto_advertise);
}

#[tokio::test]
async fn inspect_is_complete_in_every_state() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let running = check_status(&fixture.inspect(&id).await.expect("it runs"));
    assert_eq!(
        (running.id.as_str(), running.name.as_str()),
        (id.as_str(), "web")
    );
    assert_eq!(running.state(), nomad::TaskState::Running);
    assert_eq!(running.completed_at.expect("it is set").seconds, NO_TIME);
    let task = fixture.driver.task(&id).expect("it is there");
    let now = std::time::SystemTime::now();
    let exit = Exit::lost(now);
    for state in [
        TaskState::Created,
        TaskState::Starting,
        TaskState::Unattended,
        TaskState::Stopping {
            pid: 1,
            started_at: now,
        },
        TaskState::Exited {
            started_at: None,
            exit: exit.clone(),
        },
        TaskState::Exited {
            started_at: Some(now),
            exit: exit.clone(),
        },
        TaskState::Removing {
            started_at: None,
            exit: None,
        },
        TaskState::Removing {
            started_at: Some(now),
            exit: Some(exit),
        },
    ] {
        check_status(&to_proto::inspected(
            None,
            &Task {
                state,
                ..(*task).clone()
            },
        ));
    }
}

#[tokio::test]
async fn capabilities_and_schema_are_always_served() {
    let fixture = fixture().await;
    let answer = fixture
        .driver
        .capabilities(call(nomad::CapabilitiesRequest {}))
        .await
        .expect("there is a session");
    let able = answer.into_inner().capabilities.expect("it is always set");
    assert!(able.send_signals && able.exec && !able.must_create_network);
    let answer = fixture
        .driver
        .task_config_schema(call(nomad::TaskConfigSchemaRequest {}))
        .await;
    let schema = answer
        .expect("it is always answered")
        .into_inner()
        .spec
        .expect("it is always set");
    assert!(schema.block.is_some());
    fixture
        .driver
        .init(call(nomad::InitRequest {}))
        .await
        .expect("it is always answered");
    fixture
        .driver
        .shutdown(call(nomad::ShutdownRequest {}))
        .await
        .expect("it is always answered");
    let health = fixture
        .driver
        .fingerprint(call(nomad::FingerprintRequest {}))
        .await
        .expect("there is a session");
    let first = health
        .into_inner()
        .next()
        .await
        .expect("it comes at once")
        .expect("it is no error");
    assert_eq!(first.err, "");
}

#[tokio::test(start_paused = true)]
async fn task_stats_are_complete_immediate_and_end_with_the_task() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let message = nomad::TaskStatsRequest {
        task_id: id.clone(),
        collection_interval: None,
    };
    let mut stats = fixture
        .driver
        .task_stats(call(message))
        .await
        .expect("it runs")
        .into_inner();
    for _ in 0..3 {
        let answer = stats
            .next()
            .await
            .expect("it runs")
            .expect("it is no error");
        let stats = answer.stats.expect("an agent falls over a message without");
        assert_eq!(stats.id, id);
        let usage = stats
            .agg_resource_usage
            .expect("an agent falls over statistics without");
        assert!(stats.timestamp.is_some() && usage.cpu.is_some() && usage.memory.is_some());
        let measured = usage.cpu.unwrap_or_default().measured_fields;
        let percent: i32 = nomad::cpu_usage::Fields::Percent.into();
        assert!(
            measured.contains(&percent),
            "also of the first: {measured:?}"
        );
    }
    fixture.destroy(&id, true).await.expect("it is taken away");
    assert!(stats.next().await.is_none());
    let gone = nomad::TaskStatsRequest {
        task_id: id,
        collection_interval: None,
    };
    assert_eq!(
        fixture
            .driver
            .task_stats(call(gone))
            .await
            .err()
            .expect("it is gone")
            .code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn network_is_created_once_and_destroy_is_idempotent() {
    let fixture = fixture().await;
    let make = async || {
        let message = nomad::CreateNetworkRequest {
            alloc_id: ALLOC.into(),
            hostname: "web-1".into(),
        };
        fixture
            .driver
            .create_network(call(message))
            .await
            .expect("it is made")
            .into_inner()
    };
    let first = make().await;
    let second = make().await;
    assert_eq!((first.created, second.created), (true, false));
    let spec = first.isolation_spec.expect("it is always set");
    assert_eq!(Some(&spec), second.isolation_spec.as_ref());
    assert_eq!(
        spec.mode(),
        nomad::network_isolation_spec::NetworkIsolationMode::Group
    );
    assert_eq!(spec.labels["docker_sandbox_hostname"], "web-1");
    for _ in 0..2 {
        let message = nomad::DestroyNetworkRequest {
            alloc_id: ALLOC.into(),
            isolation_spec: None,
        };
        fixture
            .driver
            .destroy_network(call(message))
            .await
            .expect("it is taken away");
    }
    assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
    let nowhere = nomad::CreateNetworkRequest::default();
    assert!(fixture.driver.create_network(call(nowhere)).await.is_err());
}

#[tokio::test]
async fn what_the_node_cannot_fulfil_is_an_event_of_the_task() {
    let fixture = fixture().await;
    let mut events = fixture
        .driver
        .task_events(call(nomad::TaskEventsRequest {}))
        .await
        .expect("there is a session")
        .into_inner();
    let many: Vec<String> = (0..7).map(|number| format!("w{number}")).collect();
    let cases: [(&[String], Option<&str>); 4] = [
        (&[], None),
        (
            &["RLIMIT_NOFILE is cut from 5 to 4".to_owned()],
            Some("Not fulfilled in full: RLIMIT_NOFILE is cut from 5 to 4"),
        ),
        (
            &[
                "oom_score_adj is 0 instead of -5".to_owned(),
                "no seccomp".to_owned(),
            ],
            Some("Not fulfilled in full: oom_score_adj is 0 instead of -5; no seccomp"),
        ),
        (
            &many,
            Some("Not fulfilled in full: w0; w1; w2; w3; w4; and 2 more"),
        ),
    ];
    for (number, (warnings, expected)) in cases.into_iter().enumerate() {
        fixture.fake.set_warnings(warnings.to_vec());
        let request = fixture.request(&format!("{number:08x}"), &["serve"]);
        fixture.start(&request).await.expect("it starts");
        let Some(expected) = expected else { continue };
        let event = loop {
            let event = events.next().await.expect("it is open").expect("it is one");
            if event.message != "Downloading image" {
                break event;
            }
        };
        assert_eq!(
            (event.task_id, event.message.as_str()),
            (request.id, expected)
        );
    }
}
