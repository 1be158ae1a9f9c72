//! A disk that hangs, or that can only be read.

use parking_lot::Mutex;
use switchyard_core::operation::{EndedOperation, OperationKind, OperationObserver, Outcome};
use switchyard_crash_points::CrashPoint;
use tokio::time::{advance, pause};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use super::*;

/// Time for which a test watches that something does not happen.
const LOOK: Duration = Duration::from_millis(200);

/// Longer than the disk may take.
const DISK_LATE: Duration = Duration::from_secs(31);

/// Longer than the pause before the node looks again.
const LOOKS_AGAIN: Duration = Duration::from_secs(11);

/// Counts the errors that a thread logs.
#[derive(Clone, Default)]
struct ErrorCount(Arc<AtomicU32>);

impl Subscriber for ErrorCount {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR && metadata.is_event()
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Notes how leaves have ended.
#[derive(Default)]
struct EndedLeaves(Mutex<Vec<&'static str>>);

impl OperationObserver for EndedLeaves {
    fn operation_ended(&self, operation: &EndedOperation<'_>) {
        assert_eq!(operation.kind, OperationKind::LeaveSwarm);
        self.0.lock().push(match operation.outcome {
            Outcome::Succeeded => "succeeded",
            Outcome::Failed(_) => "failed",
            Outcome::Dropped => "dropped",
        });
    }
}

/// Advances the clock while a thread is held, which prevents automatic advance.
async fn pass(time: Duration) {
    advance(time).await;
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn node_whose_disk_hangs_is_still_known_and_answers_while_it_looks_again() {
    let test = ActorTest::new();
    test.store_membership();
    let gateway = Gateway::new(Arc::new(Fake::new()), Limits::default());
    gateway.recover().await.unwrap();
    let (node, actor) = SwarmNode::new(NodeParts {
        dir: test.path(),
        join_by_file: None,
        scope: gateway.scope(Owner::Swarm),
        operations: test.operations.clone(),
        maker: Arc::clone(&test.maker) as _,
        image_retention: Reloadable::default(),
        waiting: WaitingServices::default(),
    });
    let mut held = actor.store().hold(CrashPoint::SwarmDepartureSaved);
    let _running = tokio::spawn(actor.run());
    wait_until(&node, "it is a member", |phase| {
        matches!(phase, NodePhase::Member(_))
    })
    .await;
    let leaving = tokio::spawn({
        let node = node.clone();
        async move { node.leave().await }
    });
    held.reached().await;
    pause();
    // For the leave, and for the look at what has become of it.
    pass(DISK_LATE).await;
    pass(DISK_LATE).await;
    assert!(leaving.is_finished(), "{:?}", node.status());
    let late = leaving.await.unwrap();
    assert!(matches!(late, Err(Error::DiskLate { .. })), "{late:?}");
    let ended = node.status();
    let is_known = matches!(&ended.phase, NodePhase::Ended { member: Some(MemberName { cluster, node }), .. }
        if cluster == "c" && node == "n");
    assert!(is_known, "{ended:?}");

    pass(LOOKS_AGAIN).await;
    let joining = tokio::spawn({
        let node = node.clone();
        async move { node.join(request()).await }
    });
    pass(Duration::ZERO).await;
    assert!(joining.is_finished(), "it waits for the disk");
    let refused = joining.await.unwrap();
    assert!(
        matches!(&refused, Err(Error::StillMember { reason }) if reason.contains("disk")),
        "{refused:?}"
    );
    drop(held);
    wait_until(&node, "the leave was done", |phase| {
        matches!(phase, NodePhase::NotJoined { .. })
    })
    .await;
    assert_eq!(names(&test.path()), ["departure.json"]);
}

#[tokio::test]
async fn stored_leave_that_fails_at_once_is_tried_again_after_a_pause_and_told_once() {
    let errors = ErrorCount::default();
    // With one subscriber alone, an event that another thread logs first is disabled for this one too.
    let _second = Dispatch::new(errors.clone());
    let _logged = tracing::subscriber::set_default(errors.clone());
    let test = ActorTest::new();
    let leaves = Arc::<EndedLeaves>::default();
    test.operations.observe(Arc::clone(&leaves) as _);
    test.store_membership();
    let left = Departure {
        cluster: "c".to_owned(),
        node: "n".to_owned(),
        cause: DepartureCause::Left,
    };
    test.store().save_departure(&left).unwrap();
    // No file can be written at the place of the draft.
    let obstacle = test.path().join("departure.json.new");
    fs::create_dir(&obstacle).unwrap();
    let (node, _running) = test.start().await;
    let limit = SystemTime::now() + Duration::from_secs(60);
    while node.status().refusal.is_none() {
        assert!(SystemTime::now() < limit, "{:?}", node.status());
        sleep(Duration::from_millis(10)).await;
    }
    sleep(LOOK).await;
    let status = node.status();
    assert!(
        status.problems()[0].contains("departure.json.new"),
        "{status:?}"
    );
    assert!(
        matches!(&status.phase, NodePhase::Leaving(Some(member)) if member.node == "n"),
        "{status:?}"
    );
    assert_eq!(test.maker.removals.load(Ordering::Relaxed), 1);
    // As one that cannot be removed: it is tried at the start alone.
    let draft = test.path().join("managers.json.new");
    fs::write(&draft, "").unwrap();
    assert!(matches!(
        node.leave().await,
        Err(Error::Busy { doing: "leaving" })
    ));
    pause();
    let tried_again = async {
        while test.maker.removals.load(Ordering::Relaxed) < 4 {
            sleep(Duration::from_secs(1)).await;
        }
    };
    timeout(LIMIT, tried_again)
        .await
        .expect("it is tried again");
    let tried = node.status();
    assert_eq!((tried.since, tried.refusal), (status.since, status.refusal));
    assert_eq!(errors.0.load(Ordering::Relaxed), 1);
    // All tries after the first one are one operation.
    assert_eq!(*leaves.0.lock(), ["failed"]);
    assert_eq!(test.operations.in_flight().len(), 1);
    fs::remove_file(draft).expect("no look removes drafts");
    fs::remove_dir(obstacle).unwrap();
    wait_until(&node, "it has left", |phase| {
        matches!(phase, NodePhase::NotJoined { .. })
    })
    .await;
    assert_eq!(*leaves.0.lock(), ["failed", "succeeded"]);
    assert_eq!(names(&test.path()), ["departure.json"]);
}
