//! Tests of starts: complete, repeated, cancelled, and failing.

use switchyard_core::Error;
use switchyard_fake::Method;
use tokio_util::task::AbortOnDropHandle;

use super::leases::{GRACE_OVER, fixture_with_devices};
use super::*;

#[tokio::test]
async fn task_exit_code_is_reported_to_every_wait() {
    let fixture = fixture().await;
    let id = fixture.running(&["sh", "-c", "exit 3"]).await;
    for _ in 0..2 {
        assert_eq!(code(&fixture.wait(&id).await.expect("it ends")), 3);
    }
    fixture.destroy(&id, false).await.expect("it has ended");
    assert_eq!(
        fixture.wait(&id).await.expect_err("it is gone").code(),
        Code::NotFound
    );
    assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
    assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
}

#[tokio::test]
async fn repeated_start_returns_the_same_task() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    let (first, second) = tokio::join!(fixture.start(&request), fixture.start(&request));
    assert_eq!(first.expect("it starts"), second.expect("it runs"));
    fixture.start(&request).await.expect("it runs");
    assert_eq!(fixture.fake.count(Method::StartTask), 1);
}

#[tokio::test]
async fn repeated_start_finds_the_task_after_daemon_restart() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    let fixture = fixture.restarted().await;
    fixture.start(&request).await.expect("it runs");
    assert_eq!(fixture.fake.count(Method::CreateTask), 0);
    fixture
        .fake
        .exit(fixture.task(&request.id), 7)
        .expect("it runs");
    let fixture = fixture.restarted().await;
    fixture.start(&request).await.expect("it has run");
    assert_eq!(
        code(&fixture.wait(&request.id).await.expect("it has ended")),
        7
    );
    assert_eq!(fixture.fake.count(Method::CreateTask), 0);
}

#[tokio::test]
async fn task_created_by_a_predecessor_is_started() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    let held = fixture.fake.hold(Method::StartTask);
    let driver = fixture.driver.clone();
    let message = nomad::StartTaskRequest {
        task: Some(request.clone()),
    };
    let start = tokio::spawn(async move { driver.start_task(call(message)).await });
    while fixture.fake.count(Method::StartTask) == 0 {
        tokio::task::yield_now().await;
    }
    let fixture = fixture.restarted().await;
    start.abort();
    drop(held);
    // The agent has a handle and believes that the task ran; it never did, and nothing would ever start it.
    let error = fixture
        .recover(&request)
        .await
        .expect_err("it has not begun");
    assert!(
        error.message().starts_with("task not found for given id"),
        "{error:?}"
    );
    fixture.start(&request).await.expect("it starts");
    assert_eq!(
        (
            fixture.fake.count(Method::CreateTask),
            fixture.fake.tasks().len()
        ),
        (0, 1)
    );
}

#[tokio::test]
async fn different_request_with_the_same_id_replaces_the_task() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    let first = fixture.task(&request.id);
    let other = nomad::TaskConfig {
        user: "root".into(),
        ..request
    };
    fixture.start(&other).await.expect("it starts");
    assert_ne!(fixture.task(&other.id), first);
    assert_eq!(fixture.fake.tasks(), [fixture.task(&other.id)]);
}

#[tokio::test]
async fn new_start_removes_the_undelivered_one() {
    let fixture = fixture().await;
    let undelivered = fixture.running(&["serve"]).await;
    let request = fixture.request("00000002", &["serve"]);
    fixture.start(&request).await.expect("it starts");
    assert_eq!(fixture.fake.tasks(), [fixture.task(&request.id)]);
    assert_eq!(
        fixture
            .wait(&undelivered)
            .await
            .expect_err("it is gone")
            .code(),
        Code::NotFound
    );
    // Another task of the allocation is not affected.
    let mut other = fixture.request("00000003", &["serve"]);
    (other.name, other.id) = ("log".into(), format!("{ALLOC}/log/00000003"));
    for part in ["local", "secrets"] {
        std::fs::create_dir_all(fixture.dir.path().join(ALLOC).join("log").join(part))
            .expect("there is room");
    }
    fixture.start(&other).await.expect("it starts");
    assert_eq!(fixture.fake.tasks().len(), 2);
}

#[tokio::test]
async fn start_cancelled_during_pull_leaves_nothing_behind() {
    let fixture = fixture().await;
    let held = fixture.fake.hold(Method::Pull);
    let request = fixture.request("00000001", &["serve"]);
    let start = fixture.start(&request);
    tokio::select! {
        biased;
        _ = start => panic!("the registry hangs"),
        () = async { while fixture.fake.count(Method::Pull) == 0 { tokio::task::yield_now().await } } => {}
    }
    drop(held);
    fixture
        .destroy(&request.id, true)
        .await
        .expect("there is nothing");
    assert_eq!(fixture.fake.count(Method::CreateSandbox), 0);
}

/// Starts a task, and drops the call once the backend, where this method is held, was called.
async fn cancelled(fixture: &DriverFixture, request: &nomad::TaskConfig, held: Method) {
    tokio::select! {
        biased;
        _ = fixture.start(request) => panic!("the runtime hangs"),
        () = async { while fixture.fake.count(held) == 0 { tokio::task::yield_now().await } } => {}
    }
}

impl DriverFixture {
    /// Neither the image nor the device of a start that has been undone is held.
    async fn has_released_all(&self, why: &str) {
        let image_delay = PluginConfig::default().gc.image_delay;
        tokio::time::sleep(image_delay.max(GRACE_OVER) + Duration::from_secs(1)).await;
        let image = self
            .driver
            .scope()
            .images()
            .find(BUSYBOX)
            .await
            .expect("it can be read");
        assert!(image.is_none(), "{why}: {image:?}");
        self.pods()
            .devices()
            .lease(&["acme0".parse().unwrap()])
            .await
            .expect(why);
    }
}

#[tokio::test(start_paused = true)]
async fn start_cancelled_later_is_undone_and_can_be_repeated() {
    for step in [Method::CreateSandbox, Method::CreateTask, Method::StartTask] {
        for again in [true, false] {
            let fixture = fixture_with_devices().await;
            let driver = fixture.driver.clone();
            let _tending =
                AbortOnDropHandle::new(tokio::spawn(async move { driver.run_background().await }));
            let held = fixture.fake.hold(step);
            let request = fixture.leased("00000001", &fixture.reserve().await);
            cancelled(&fixture, &request, step).await;
            if again {
                let (started, ()) = tokio::join!(fixture.start(&request), async { drop(held) });
                started.expect("it runs");
                let task = fixture.task(&request.id);
                assert_eq!(fixture.fake.tasks(), [task], "{step:?}");
                assert!(fixture.fake.runs(task));
            } else {
                drop(held);
                while !fixture.fake.remaining_objects().is_empty() {
                    tokio::task::yield_now().await;
                }
                fixture.has_released_all(&format!("{step:?}")).await;
                fixture
                    .destroy(&request.id, true)
                    .await
                    .expect("there is nothing");
            }
            assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn start_cancelled_later_that_fails_holds_neither_image_nor_device() {
    for step in [Method::CreateSandbox, Method::CreateTask, Method::StartTask] {
        let fixture = fixture_with_devices().await;
        let _tending = fixture.tended();
        let held = fixture.fake.hold(step);
        let request = fixture.leased("00000001", &fixture.reserve().await);
        cancelled(&fixture, &request, step).await;
        fixture
            .fake
            .fail_next(step, Error::unavailable("it is away"));
        drop(held);
        fixture.has_released_all(&format!("{step:?}")).await;
        fixture.is_clean(&format!("{step:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn start_that_pulls_its_image_again_keeps_its_device() {
    let fixture = fixture_with_devices().await;
    let request = fixture.leased("00000001", &fixture.reserve().await);
    fixture
        .fake
        .fail_next(Method::CreateTask, Error::not_found("the image has gone"));
    let first = fixture.fake.hold(Method::Pull);
    let driver = fixture.driver.clone();
    let message = nomad::StartTaskRequest {
        task: Some(request.clone()),
    };
    let start = tokio::spawn(async move { driver.start_task(call(message)).await });
    first.arrived(1).await;
    let second = fixture.fake.hold(Method::Pull);
    drop(first);
    second.arrived(1).await;
    tokio::time::sleep(GRACE_OVER).await;
    fixture
        .pods()
        .devices()
        .lease(&["acme0".parse().unwrap()])
        .await
        .expect_err("the start continues");
    drop(second);
    start.await.expect("it does not panic").expect("it starts");
}

#[tokio::test(start_paused = true)]
async fn start_cancelled_before_anything_is_made_releases_its_image_and_leases() {
    let fixture = fixture_with_devices().await;
    let driver = fixture.driver.clone();
    let _tending =
        AbortOnDropHandle::new(tokio::spawn(async move { driver.run_background().await }));
    let request = fixture.leased("00000001", &fixture.reserve().await);
    let held = fixture.fake.hold(Method::Pull);
    let driver = fixture.driver.clone();
    let message = nomad::StartTaskRequest {
        task: Some(request.clone()),
    };
    let start = tokio::spawn(async move { driver.start_task(call(message)).await });
    held.arrived(1).await;
    // Another operation on the task, for which the start waits once it has its image.
    let turn = fixture
        .driver
        .shared
        .task_locks
        .lock(identity::task_key(&request.id).to_owned())
        .await;
    drop(held);
    while fixture
        .driver
        .scope()
        .images()
        .find(BUSYBOX)
        .await
        .expect("it can be read")
        .is_none()
    {
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    start.abort();
    start.await.expect_err("it was cancelled");
    drop(turn);
    fixture.has_released_all("nothing was made").await;
    assert_eq!(fixture.fake.count(Method::CreateSandbox), 0);
    assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
}

#[tokio::test]
async fn start_cut_off_by_the_end_of_the_daemon_is_found_by_the_repeated_request() {
    let fixture = fixture().await;
    let held = fixture.fake.hold(Method::StartTask);
    let request = fixture.request("00000001", &["serve"]);
    let driver = fixture.driver.clone();
    let message = nomad::StartTaskRequest {
        task: Some(request.clone()),
    };
    let start = tokio::spawn(async move { driver.start_task(call(message)).await });
    held.arrived(1).await;
    let gateway = fixture.gateway.clone();
    let ending = gateway.ending();
    let shut_down = tokio::spawn(async move { gateway.shut_down(Duration::from_secs(60)).await });
    // The sessions end first, then the launcher, and with it the call.
    ending.cancelled().await;
    start.abort();
    start.await.expect_err("it was cut off");
    drop(held);
    shut_down
        .await
        .expect("it does not panic")
        .expect("nothing hangs");
    let task = fixture.task(&request.id);
    assert!(fixture.fake.runs(task));
    let fixture = fixture.restarted().await;
    fixture.start(&request).await.expect("it runs");
    assert_eq!(
        (
            fixture.task(&request.id),
            fixture.fake.count(Method::CreateTask)
        ),
        (task, 0)
    );
}

#[tokio::test]
async fn start_of_a_predecessor_outlives_a_daemon_that_ends_before_its_outcome_is_known() {
    let fixture = fixture().await;
    let held = fixture.fake.hold(Method::StartTask);
    let request = fixture.request("00000001", &["serve"]);
    let driver = fixture.driver.clone();
    let message = nomad::StartTaskRequest {
        task: Some(request.clone()),
    };
    let _killed = AbortOnDropHandle::new(tokio::spawn(async move {
        driver.start_task(call(message)).await
    }));
    held.arrived(1).await;
    let task = fixture.task(&request.id);
    fixture.fake.leave_start_pending(task, true);
    let fake = fixture.fake.reopen();
    let resolving = fake.hold(Method::ResolveStart);
    let DriverFixture { dir, .. } = fixture;
    let fixture = over(fake, PluginConfig::default(), dir).await;
    let (started, _) = tokio::join!(
        fixture.start(&request),
        fixture.gateway.shut_down(Duration::ZERO)
    );
    let refused = started.expect_err("the daemon ends");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(fixture.fake.count(Method::BeginRemoval), 0);
    drop(resolving);
    let fixture = fixture.restarted().await;
    fixture.start(&request).await.expect("it runs");
    assert_eq!(
        (
            fixture.task(&request.id),
            fixture.fake.count(Method::CreateTask)
        ),
        (task, 0)
    );
}

#[tokio::test]
async fn failed_start_leaves_nothing_behind_and_is_recoverable() {
    for step in [
        Method::Pull,
        Method::CreateSandbox,
        Method::CreateTask,
        Method::StartTask,
    ] {
        let fixture = fixture().await;
        fixture
            .fake
            .fail_next(step, Error::unavailable("it is away"));
        let request = fixture.request("00000001", &["serve"]);
        let failed = fixture.start(&request).await.expect_err("a step fails");
        assert_eq!(failed.code(), Code::FailedPrecondition, "{step:?}");
        assert!(
            !failed.details().is_empty() && failed.message().contains("it is away"),
            "{failed:?}"
        );
        assert_eq!(
            fixture.fake.remaining_objects(),
            Vec::<String>::new(),
            "{step:?}"
        );
        fixture.start(&request).await.expect("it starts");
    }
}

#[tokio::test]
async fn image_removed_before_task_creation_is_pulled_again() {
    let fixture = fixture().await;
    fixture
        .fake
        .fail_next(Method::CreateTask, Error::not_found("the image has gone"));
    fixture.running(&["serve"]).await;
    assert_eq!(fixture.fake.count(Method::Pull), 2);
}

#[tokio::test]
async fn unrecoverable_start_failure_is_reported_as_such() {
    let fixture = fixture().await;
    let request = fixture.request("00000001", &["serve"]);
    for wrong in [
        nomad::TaskConfig {
            id: String::new(),
            ..request.clone()
        },
        nomad::TaskConfig {
            alloc_dir: "relative".into(),
            ..request.clone()
        },
        nomad::TaskConfig {
            msgpack_driver_config: vec![0xc1],
            ..request.clone()
        },
        nomad::TaskConfig {
            user: "a b".into(),
            ..request
        },
    ] {
        let refused = fixture.start(&wrong).await.expect_err("it is malformed");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.details().is_empty());
    }
    let nothing = fixture
        .driver
        .start_task(call(nomad::StartTaskRequest { task: None }))
        .await;
    assert_eq!(
        nothing.expect_err("there is no task").code(),
        Code::InvalidArgument
    );
    assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
}

#[tokio::test]
async fn call_without_a_session_is_rejected_as_recoverable() {
    let fixture = fixture().await;
    let task = Some(fixture.request("00000001", &["serve"]));
    let refused = fixture
        .driver
        .start_task(Request::new(nomad::StartTaskRequest { task }))
        .await;
    let refused = refused.expect_err("it names no session");
    assert_eq!(
        (refused.code(), refused.details().is_empty()),
        (Code::FailedPrecondition, false)
    );
}

#[tokio::test]
async fn download_event_is_sent_to_the_requesting_session() {
    let fixture = fixture().await;
    let events = fixture
        .driver
        .task_events(call(nomad::TaskEventsRequest {}))
        .await
        .expect("there is a session");
    let id = fixture.running(&["serve"]).await;
    let event = events
        .into_inner()
        .next()
        .await
        .expect("it is open")
        .expect("it is an event");
    assert_eq!(
        (event.task_id, event.message.as_str()),
        (id, "Downloading image")
    );
    assert_eq!(event.annotations["image"], BUSYBOX);
}
