//! Tests of starts: complete, repeated, cancelled, and failing.

use switchyard_core::Error;
use switchyard_fake::Method;

use super::*;

#[tokio::test]
async fn a_task_starts_ends_and_tells_its_code_as_often_as_it_is_asked() {
    let lab = lab().await;
    let id = lab.running(&["sh", "-c", "exit 3"]).await;
    for _ in 0..2 {
        assert_eq!(code(&lab.wait(&id).await.expect("it ends")), 3);
    }
    lab.destroy(&id, false).await.expect("it has ended");
    assert_eq!(lab.wait(&id).await.expect_err("it is gone").code(), Code::NotFound);
    assert_eq!(lab.fake.remaining_objects(), Vec::<String>::new());
    assert_eq!(lab.fake.breaches(), Vec::<String>::new());
}

#[tokio::test]
async fn a_start_that_is_asked_for_again_is_the_same_start() {
    let lab = lab().await;
    let request = lab.request("00000001", &["serve"]);
    let (first, second) = tokio::join!(lab.start(&request), lab.start(&request));
    assert_eq!(first.expect("it starts"), second.expect("it runs"));
    lab.start(&request).await.expect("it runs");
    assert_eq!(lab.fake.count(Method::StartTask), 1);
}

#[tokio::test]
async fn a_start_is_found_again_by_a_successor_also_if_the_task_has_ended() {
    let lab = lab().await;
    let request = lab.request("00000001", &["serve"]);
    lab.start(&request).await.expect("it starts");
    let lab = lab.restarted().await;
    lab.start(&request).await.expect("it runs");
    assert_eq!(lab.fake.count(Method::CreateTask), 0);
    lab.fake.exit(lab.task(&request.id), 7).expect("it runs");
    let lab = lab.restarted().await;
    lab.start(&request).await.expect("it has run");
    assert_eq!(code(&lab.wait(&request.id).await.expect("it has ended")), 7);
    assert_eq!(lab.fake.count(Method::CreateTask), 0);
}

#[tokio::test]
async fn a_task_that_a_predecessor_made_and_did_not_start_is_started() {
    let lab = lab().await;
    let request = lab.request("00000001", &["serve"]);
    let held = lab.fake.hold(Method::StartTask);
    let driver = lab.driver.clone();
    let message = nomad::StartTaskRequest { task: Some(request.clone()) };
    let start = tokio::spawn(async move { driver.start_task(call(message)).await });
    while lab.fake.count(Method::StartTask) == 0 {
        tokio::task::yield_now().await;
    }
    let lab = lab.restarted().await;
    start.abort();
    drop(held);
    // The agent has a handle and believes that the task ran; it never did, and nothing would ever start it.
    let error = lab.recover(&request).await.expect_err("it has not begun");
    assert!(error.message().starts_with("task not found for given id"), "{error:?}");
    lab.start(&request).await.expect("it starts");
    assert_eq!((lab.fake.count(Method::CreateTask), lab.fake.tasks().len()), (0, 1));
}

#[tokio::test]
async fn another_request_under_the_same_id_takes_the_place_of_the_first() {
    let lab = lab().await;
    let request = lab.request("00000001", &["serve"]);
    lab.start(&request).await.expect("it starts");
    let first = lab.task(&request.id);
    let other = nomad::TaskConfig { user: "root".into(), ..request };
    lab.start(&other).await.expect("it starts");
    assert_ne!(lab.task(&other.id), first);
    assert_eq!(lab.fake.tasks(), [lab.task(&other.id)]);
}

#[tokio::test]
async fn a_new_start_of_a_task_takes_away_the_one_that_was_never_delivered() {
    let lab = lab().await;
    let undelivered = lab.running(&["serve"]).await;
    let request = lab.request("00000002", &["serve"]);
    lab.start(&request).await.expect("it starts");
    assert_eq!(lab.fake.tasks(), [lab.task(&request.id)]);
    assert_eq!(lab.wait(&undelivered).await.expect_err("it is gone").code(), Code::NotFound);
    // Another task of the allocation is not affected.
    let mut other = lab.request("00000003", &["serve"]);
    (other.name, other.id) = ("log".into(), format!("{ALLOC}/log/00000003"));
    for part in ["local", "secrets"] {
        std::fs::create_dir_all(lab.dir.path().join(ALLOC).join("log").join(part)).expect("there is room");
    }
    lab.start(&other).await.expect("it starts");
    assert_eq!(lab.fake.tasks().len(), 2);
}

#[tokio::test]
async fn nothing_is_left_of_a_start_whose_caller_goes_while_the_image_comes() {
    let lab = lab().await;
    let held = lab.fake.hold(Method::Pull);
    let request = lab.request("00000001", &["serve"]);
    let start = lab.start(&request);
    tokio::select! {
        biased;
        _ = start => panic!("the registry hangs"),
        () = async { while lab.fake.count(Method::Pull) == 0 { tokio::task::yield_now().await } } => {}
    }
    drop(held);
    lab.destroy(&request.id, true).await.expect("there is nothing");
    assert_eq!(lab.fake.count(Method::CreateSandbox), 0);
}

#[tokio::test]
async fn a_start_whose_caller_goes_later_is_kept_for_a_retry_or_a_destruction() {
    for again in [true, false] {
        let lab = lab().await;
        let held = lab.fake.hold(Method::CreateTask);
        let request = lab.request("00000001", &["serve"]);
        tokio::select! {
            biased;
            _ = lab.start(&request) => panic!("the runtime hangs"),
            () = async { while lab.fake.count(Method::CreateTask) == 0 { tokio::task::yield_now().await } } => {}
        }
        if again {
            let (started, ()) = tokio::join!(lab.start(&request), async { drop(held) });
            started.expect("it runs");
            assert_eq!(lab.fake.count(Method::CreateTask), 1);
        } else {
            let (destroyed, ()) = tokio::join!(lab.destroy(&request.id, true), async { drop(held) });
            destroyed.expect("it is taken away");
            assert_eq!(lab.fake.remaining_objects(), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn whatever_step_of_a_start_fails_nothing_is_left_and_the_agent_may_try_again() {
    for step in [Method::Pull, Method::CreateSandbox, Method::CreateTask, Method::StartTask] {
        let lab = lab().await;
        lab.fake.fail_next(step, Error::unavailable("it is away"));
        let request = lab.request("00000001", &["serve"]);
        let failed = lab.start(&request).await.expect_err("a step fails");
        assert_eq!(failed.code(), Code::FailedPrecondition, "{step:?}");
        assert!(!failed.details().is_empty() && failed.message().contains("it is away"), "{failed:?}");
        assert_eq!(lab.fake.remaining_objects(), Vec::<String>::new(), "{step:?}");
        lab.start(&request).await.expect("it starts");
    }
}

#[tokio::test]
async fn an_image_that_vanishes_before_the_task_is_made_is_pulled_again() {
    let lab = lab().await;
    lab.fake.fail_next(Method::CreateTask, Error::not_found("the image has gone"));
    lab.running(&["serve"]).await;
    assert_eq!(lab.fake.count(Method::Pull), 2);
}

#[tokio::test]
async fn what_can_never_start_is_told_so() {
    let lab = lab().await;
    let request = lab.request("00000001", &["serve"]);
    for wrong in [
        nomad::TaskConfig { id: String::new(), ..request.clone() },
        nomad::TaskConfig { alloc_dir: "relative".into(), ..request.clone() },
        nomad::TaskConfig { msgpack_driver_config: vec![0xc1], ..request.clone() },
        nomad::TaskConfig { user: "a b".into(), ..request },
    ] {
        let refused = lab.start(&wrong).await.expect_err("it is malformed");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(refused.details().is_empty());
    }
    let nothing = lab.driver.start_task(call(nomad::StartTaskRequest { task: None })).await;
    assert_eq!(nothing.expect_err("there is no task").code(), Code::InvalidArgument);
    assert_eq!(lab.fake.remaining_objects(), Vec::<String>::new());
}

#[tokio::test]
async fn a_call_without_a_session_is_refused_so_that_it_may_be_tried_again() {
    let lab = lab().await;
    let task = Some(lab.request("00000001", &["serve"]));
    let refused = lab.driver.start_task(Request::new(nomad::StartTaskRequest { task })).await;
    let refused = refused.expect_err("it names no session");
    assert_eq!((refused.code(), refused.details().is_empty()), (Code::FailedPrecondition, false));
}

#[tokio::test]
async fn people_are_told_of_a_download_in_the_session_that_asked_for_it() {
    let lab = lab().await;
    let events = lab.driver.task_events(call(nomad::TaskEventsRequest {})).await.expect("there is a session");
    let id = lab.running(&["serve"]).await;
    let event = events.into_inner().next().await.expect("it is open").expect("it is an event");
    assert_eq!((event.task_id, event.message.as_str()), (id, "Downloading image"));
    assert_eq!(event.annotations["image"], BUSYBOX);
}
