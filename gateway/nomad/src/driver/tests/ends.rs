//! Tests of signals, stops, destructions and recoveries of tasks.

use switchyard_core::spec::Signal;
use switchyard_fake::Method;
use tokio::time::Instant;

use super::*;

#[tokio::test]
async fn stop_and_destroy_of_unknown_tasks_succeed() {
    let fixture = fixture().await;
    fixture
        .stop("no/such/00000000", "SIGINT", 5)
        .await
        .expect("it does not run");
    fixture
        .destroy("no/such/00000000", false)
        .await
        .expect("it is not there");
    let id = fixture.running(&["true"]).await;
    fixture.wait(&id).await.expect("it ends");
    fixture.stop(&id, "", 5).await.expect("it does not run");
    for _ in 0..2 {
        fixture.destroy(&id, true).await.expect("it is not there");
    }
}

#[tokio::test]
async fn stop_sends_its_signal_or_the_tasks_stop_signal() {
    for (name, number) in [("", 15), ("SIGINT", 2), ("usr1", 10), ("3", 3)] {
        let fixture = fixture().await;
        let id = fixture.running(&["serve"]).await;
        let task = fixture.task(&id);
        fixture.stop(&id, name, 5).await.expect("it listens");
        let sent: Vec<u8> = fixture
            .fake
            .signals(task)
            .into_iter()
            .map(Signal::number)
            .collect();
        assert_eq!(sent, [number], "{name:?}");
        assert_eq!(
            code(&fixture.wait(&id).await.expect("it has ended")),
            128 + i32::from(number)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn second_stop_does_not_extend_the_first_deadline() {
    let fixture = fixture().await;
    let id = fixture.running(&["ignore-term"]).await;
    let began = Instant::now();
    let (first, second) = tokio::join!(fixture.stop(&id, "", 5), async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        fixture.stop(&id, "", 30).await
    });
    first.expect("it is killed");
    second.expect("it is killed");
    assert_eq!(began.elapsed(), Duration::from_secs(5));
}

#[tokio::test]
async fn stop_with_zero_timeout_kills_at_once() {
    let fixture = fixture().await;
    let id = fixture.running(&["ignore-term"]).await;
    let task = fixture.task(&id);
    fixture.stop(&id, "", 0).await.expect("it is killed");
    assert_eq!(fixture.fake.signals(task), [Signal::KILL]);
}

#[tokio::test]
async fn signals_are_accepted_by_name_and_number_only() {
    let fixture = fixture().await;
    let id = fixture.running(&["ignore-term"]).await;
    let signal = async |id: &str, signal: &str| {
        let message = nomad::SignalTaskRequest {
            task_id: id.to_owned(),
            signal: signal.to_owned(),
        };
        fixture.driver.signal_task(call(message)).await.map(drop)
    };
    for known in ["SIGTERM", "term", "15"] {
        signal(&id, known).await.expect("it is a signal");
    }
    assert_eq!(fixture.fake.signals(fixture.task(&id)), [Signal::TERM; 3]);
    for unknown in ["", "SIGNONE", "0", "65", "SIG"] {
        let refused = signal(&id, unknown).await.expect_err("it is no signal");
        assert_eq!(refused.code(), Code::InvalidArgument, "{unknown:?}");
        assert!(
            refused.message().starts_with("failed to parse signal"),
            "{refused:?}"
        );
    }
    let refused = fixture
        .stop(&id, "SIGNONE", 5)
        .await
        .expect_err("it is no signal");
    assert!(
        refused.message().starts_with("failed to parse signal"),
        "{refused:?}"
    );
    let gone = signal("no/such/00000000", "SIGTERM")
        .await
        .expect_err("there is no task");
    assert!(
        gone.message().starts_with("task not found for given id"),
        "{gone:?}"
    );
}

#[tokio::test]
async fn running_task_is_destroyed_only_by_force() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let refused = fixture.destroy(&id, false).await.expect_err("it runs");
    assert!(
        refused
            .message()
            .starts_with("must call StopTask for the given task before Destroy"),
        "{refused:?}"
    );
    let (waited, destroyed) = tokio::join!(fixture.wait(&id), fixture.destroy(&id, true));
    destroyed.expect("it is taken away");
    assert_eq!(code(&waited.expect("it was waited for")), 137);
    assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
}

#[tokio::test]
async fn task_kept_by_configuration_is_stopped_and_removed_at_next_start() {
    let mut config = PluginConfig::default();
    config.gc.container = false;
    let fixture = fixture_with(config).await;
    let id = fixture.running(&["serve"]).await;
    fixture.destroy(&id, true).await.expect("it is stopped");
    assert!(!fixture.fake.runs(fixture.task(&id)));
    let next = fixture.request("00000002", &["serve"]);
    fixture.start(&next).await.expect("it starts");
    assert_eq!(fixture.fake.tasks(), [fixture.task(&next.id)]);
}

#[tokio::test(start_paused = true)]
async fn image_is_removed_after_a_delay_when_unused() {
    let fixture = fixture().await;
    let driver = fixture.driver.clone();
    let _tending = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        driver.run_background().await
    }));
    let id = fixture.running(&["true"]).await;
    fixture.wait(&id).await.expect("it ends");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(fixture.fake.count(Method::RemoveImage), 0);
    fixture.destroy(&id, true).await.expect("it has ended");
    tokio::time::sleep(Duration::from_secs(179)).await;
    assert_eq!(fixture.fake.count(Method::RemoveImage), 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(fixture.fake.count(Method::RemoveImage), 1);
}

#[tokio::test]
async fn recovery_finds_running_and_exited_tasks_without_changes() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    let fixture = fixture.restarted().await;
    for _ in 0..2 {
        fixture.recover(&request).await.expect("it runs");
    }
    let task = fixture.task(&request.id);
    assert!(fixture.fake.runs(task) && fixture.fake.signals(task).is_empty());
    fixture.fake.exit(task, 4).expect("it runs");
    let fixture = fixture.restarted().await;
    fixture.recover(&request).await.expect("it has run");
    assert_eq!(
        code(&fixture.wait(&request.id).await.expect("it has ended")),
        4
    );
}

#[tokio::test]
async fn recovery_of_a_missing_task_has_nomads_error_text() {
    let fixture = fixture().await;
    let gone = fixture
        .recover(&fixture.request("00000009", &["serve"]))
        .await
        .expect_err("nobody started it");
    assert_eq!(gone.code(), Code::NotFound);
    assert!(
        gone.message().starts_with("task not found for given id"),
        "{gone:?}"
    );
    let nothing = nomad::RecoverTaskRequest::default();
    assert!(fixture.driver.recover_task(call(nothing)).await.is_err());
}

#[tokio::test]
async fn task_recovery_waits_for_gateway_recovery() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    let fake = fixture.fake.reopen();
    let gateway = Gateway::new(Arc::new(fake), Limits::default());
    let sessions = Sessions::default();
    let _open = sessions.open(session(PluginConfig::default()));
    let driver = Driver::new(gateway.scope(Owner::Nomad), sessions);
    let handle = nomad::TaskHandle {
        config: Some(request),
        ..Default::default()
    };
    let message = nomad::RecoverTaskRequest {
        task_id: String::new(),
        handle: Some(handle),
    };
    let mut recovery = driver.recover_task(call(message));
    assert!(futures::poll!(&mut recovery).is_pending());
    gateway.recover().await.expect("the fake recovers");
    recovery.await.expect("it runs");
}

#[tokio::test]
async fn waits_end_with_the_gateway_as_plugin_shutdown() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    let (waited, ended) = tokio::join!(
        fixture.wait(&id),
        fixture.gateway.shut_down(Duration::from_secs(5))
    );
    ended.expect("nothing is in flight");
    assert_eq!(
        waited.expect_err("the gateway has ended").code(),
        Code::Unavailable
    );
}

#[tokio::test]
async fn oom_killed_task_is_distinguished() {
    let fixture = fixture().await;
    let id = fixture.running(&["serve"]).await;
    fixture.fake.oom_kill(fixture.task(&id)).expect("it runs");
    let ended = fixture.wait(&id).await.expect("it has ended");
    let result = ended.result.expect("it is always set");
    assert_eq!(
        (result.exit_code, result.oom_killed, ended.err.as_str()),
        (137, true, "OOM Killed")
    );
}

#[tokio::test(start_paused = true)]
async fn dangling_task_is_removed_and_other_agents_tasks_are_kept() {
    let mut config = PluginConfig::default();
    config.gc.dangling.creation_grace = Duration::ZERO;
    let mut fixture = fixture_with(config.clone()).await;
    let driver = fixture.driver.clone();
    let _tending = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move {
        driver.run_background().await
    }));
    let forgotten = fixture.running(&["serve"]).await;
    let mut foreign = fixture.request("00000002", &["serve"]);
    foreign.id = "other/web/00000002".into();
    let elsewhere = fixture.dir.path().join("elsewhere").join(ALLOC);
    for part in ["alloc/logs", "web/local", "web/secrets"] {
        std::fs::create_dir_all(elsewhere.join(part)).expect("there is room");
    }
    foreign.alloc_dir = elsewhere.display().to_string();
    fixture.start(&foreign).await.expect("it starts");
    // The agent loses its state, comes back, and starts something else.
    fixture.open = fixture.sessions.open(Session {
        id: "between".into(),
        ..session(config.clone())
    });
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(
        fixture.fake.runs(fixture.task(&forgotten)),
        "its agent is not here"
    );
    fixture.open = fixture.sessions.open(session(config));
    let mut known = fixture.request("00000003", &["serve"]);
    known.id = "more/web/00000003".into();
    known.node_id = "all-its-state-is-lost".into();
    fixture.start(&known).await.expect("it starts");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        fixture
            .wait(&forgotten)
            .await
            .expect_err("nobody knew it")
            .code(),
        Code::NotFound
    );
    let left = [fixture.task(&foreign.id), fixture.task(&known.id)];
    assert!(left.iter().all(|task| fixture.fake.runs(*task)));
}
