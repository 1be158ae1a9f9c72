//! Duration of checks, and the lines about their results.

use std::sync::atomic::AtomicUsize;

use futures::poll;
use tokio::sync::oneshot;
use tokio::time::advance;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

/// Counts the warnings that are logged.
#[derive(Clone, Default)]
struct CountedWarnings(Arc<AtomicUsize>);

impl Subscriber for CountedWarnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn reasons_of_an_outage_that_take_turns_are_logged_once_each() {
    let warnings = CountedWarnings::default();
    let health = Health::new(LIMIT);
    let mut logged = LoggedTexts::at_most(REASONS_MAX);
    let down = |reason: &str| Contact::Down {
        reason: reason.to_owned(),
    };
    tracing::subscriber::with_default(warnings.clone(), || {
        for _ in 0..20 {
            health.note(down("late"), false, &mut logged);
            health.note(down("refused"), false, &mut logged);
        }
        let version = "2.1.0".to_owned();
        health.note(Contact::Up { version }, false, &mut logged);
        health.note(down("late"), false, &mut logged);
    });
    assert_eq!(warnings.0.load(Ordering::Relaxed), 3);
    assert_eq!(health.current(), down("late"));
}

#[test]
fn each_loss_of_contact_counts_once_also_one_between_two_checks() {
    let up = |version: &str| Contact::Up {
        version: version.to_owned(),
    };
    let down = || Contact::Down {
        reason: "refused".to_owned(),
    };
    // Each check with whether its connection is a new one, and the losses after all.
    for (name, checks, losses) in [
        ("never up", vec![(down(), false), (down(), false)], 0),
        ("start", vec![(down(), false), (up("1"), true)], 0),
        ("steady", vec![(up("1"), true), (up("1"), false)], 0),
        ("quick restart", vec![(up("1"), true), (up("1"), true)], 1),
        ("quick upgrade", vec![(up("1"), true), (up("2"), true)], 1),
        (
            "outage",
            vec![
                (up("1"), true),
                (down(), false),
                (down(), false),
                (up("1"), true),
            ],
            1,
        ),
        // It hung, and answers over the same connection.
        (
            "silence",
            vec![(up("1"), true), (down(), false), (up("1"), false)],
            1,
        ),
        (
            "two outages",
            vec![
                (up("1"), true),
                (up("1"), true),
                (down(), true),
                (up("1"), true),
            ],
            2,
        ),
    ] {
        let health = Health::new(LIMIT);
        let mut logged = LoggedTexts::at_most(REASONS_MAX);
        for (contact, is_reconnected) in checks {
            health.note(contact, is_reconnected, &mut logged);
        }
        assert_eq!(health.losses(), losses, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn pause_of_the_daemon_is_not_held_against_containerd() {
    let (answer, answered) = oneshot::channel();
    let call = async { answered.await.map_err(|_| Status::cancelled("it is gone")) };
    let mut asked = Box::pin(ask("get its version", LIMIT, call));
    assert!(poll!(&mut asked).is_pending());
    // Nothing has been read meanwhile; then the answer is.
    advance(2 * LIMIT).await;
    assert!(poll!(&mut asked).is_pending());
    answer.send(Response::new(7)).unwrap();
    assert_eq!(asked.await.unwrap(), 7);
}

#[test]
fn logkeeper_that_is_silent_or_gone_is_waited_for_at_first() {
    let late = switchyard_logkeeper::Error::Deadline {
        op: "hello",
        limit: LIMIT,
    };
    let gone = switchyard_logkeeper::Error::Unavailable {
        socket: "/run/x".into(),
        source: std::io::ErrorKind::ConnectionRefused.into(),
    };
    let of = |fault, silence, gone| {
        let times = ContactTimes {
            silence: Duration::from_secs(silence),
            gone: Duration::from_secs(gone),
        };
        LogkeeperContact::of(fault, times)
    };
    assert_eq!(of(None, 100, 0), LogkeeperContact::Up);
    assert_eq!(of(Some(&late), 29, 0), LogkeeperContact::Busy);
    assert_eq!(of(Some(&gone), 3, 1), LogkeeperContact::Returning);
    for (fault, silence, lasts) in [(&late, 30, 0), (&gone, 3, 2), (&gone, 30, 0)] {
        assert!(
            matches!(
                of(Some(fault), silence, lasts),
                LogkeeperContact::Down { .. }
            ),
            "{fault} {silence}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_late_after_the_whole_time() {
    let began = Instant::now();
    let silent = std::future::pending::<std::result::Result<Response<()>, Status>>();
    let error = ask("get its version", LIMIT, silent).await.unwrap_err();
    assert_eq!(
        (error.kind(), began.elapsed()),
        (ErrorKind::DeadlineExceeded, LIMIT)
    );
    assert!(error.report().contains("within 5s"), "{}", error.report());
}
