//! Tests of shared runs.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

use super::*;
use crate::error::ErrorKind;

fn flights() -> Singleflight<String, u32> {
    Singleflight::new(TaskTracker::new())
}

#[tokio::test]
async fn callers_with_the_same_request_share_one_run() {
    let flights = flights();
    let runs = Arc::new(AtomicUsize::new(0));
    let go = Arc::new(Notify::new());
    let call = || {
        let runs = Arc::clone(&runs);
        let go = Arc::clone(&go);
        flights.run(
            "pod".into(),
            b"a",
            || Decision::Begin,
            move || async move {
                runs.fetch_add(1, Ordering::SeqCst);
                go.notified().await;
                Ok(7)
            },
        )
    };
    let (first, second, ()) = tokio::join!(call(), call(), async {
        tokio::task::yield_now().await;
        go.notify_one();
    });
    assert_eq!((first.unwrap(), second.unwrap()), (7, 7));
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn different_request_with_the_same_key_is_rejected_while_in_flight() {
    let flights = flights();
    let go = Arc::new(Notify::new());
    let waiting = Arc::clone(&go);
    let first = flights.run(
        "pod".into(),
        b"a",
        || Decision::Begin,
        move || async move {
            waiting.notified().await;
            Ok(1)
        },
    );
    let second = async {
        tokio::task::yield_now().await;
        let refused = flights
            .run("pod".into(), b"b", || Decision::Begin, || async { Ok(2) })
            .await;
        go.notify_one();
        refused
    };
    let (first, second) = tokio::join!(first, second);
    assert_eq!(first.unwrap(), 1);
    assert_eq!(second.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[tokio::test]
async fn work_continues_when_its_caller_is_dropped() {
    let flights = flights();
    let go = Arc::new(Notify::new());
    let done = Arc::new(Notify::new());
    {
        let go = Arc::clone(&go);
        let done = Arc::clone(&done);
        let mut call = Box::pin(flights.run(
            "pod".into(),
            b"",
            || Decision::Begin,
            move || async move {
                go.notified().await;
                done.notify_one();
                Ok(1)
            },
        ));
        assert!(futures::poll!(&mut call).is_pending());
    }
    go.notify_one();
    done.notified().await;
}

#[tokio::test]
async fn panic_frees_the_key_and_is_reported() {
    let flights = flights();
    let broken = flights
        .run(
            "pod".into(),
            b"",
            || Decision::Begin,
            || async { panic!("on purpose") },
        )
        .await;
    assert_eq!(broken.unwrap_err().kind(), ErrorKind::Internal);
    assert_eq!(
        flights
            .run("pod".into(), b"", || Decision::Begin, || async { Ok(3) })
            .await
            .unwrap(),
        3
    );
}

#[tokio::test]
async fn decision_can_answer_without_work() {
    let flights = flights();
    let answer = flights
        .run(
            "pod".into(),
            b"",
            || Decision::Answer(Ok(9)),
            || async { Ok(0) },
        )
        .await;
    assert_eq!(answer.unwrap(), 9);
}
