//! Pages of events, the report of lost ones, and what the next daemon finds on record.

use std::time::Duration;

use switchyard_core::ErrorKind;
use switchyard_core::event::{EventBus, EventKind, TaskEnd};
use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::state::{Exit, ExitCause};

use super::*;

fn event(owner: &str, detail: String) -> EventView {
    EventView {
        owner: owner.to_owned(),
        detail,
        ..EventView::default()
    }
}

/// An empty list, in memory alone.
fn without_store() -> EventLog {
    EventLog::with(
        Owners::default(),
        None,
        Vec::new(),
        Arc::new(Causes::default()),
    )
}

async fn after(log: &EventLog, number: u64) -> EventPage {
    let run = log.0.run.clone();
    log.after(Some((&run, number)), None, Duration::ZERO).await
}

fn numbers(page: &EventPage) -> Vec<u64> {
    page.events.iter().map(|event| event.number).collect()
}

#[tokio::test]
async fn pages_continue_where_the_former_one_ended() {
    let log = without_store();
    for _ in 0..PAGE + 2 {
        log.push(event("nomad", String::new()));
    }
    let first = log.after(None, None, Duration::ZERO).await;
    assert_eq!(
        (first.events.len(), first.next, first.missed),
        (PAGE, PAGE as u64, 0)
    );
    let second = after(&log, first.next).await;
    assert_eq!(
        (numbers(&second), second.next),
        (vec![PAGE as u64 + 1, PAGE as u64 + 2], PAGE as u64 + 2)
    );
    let third = after(&log, second.next).await;
    assert_eq!((third.events.len(), third.next), (0, second.next));
}

#[tokio::test(start_paused = true)]
async fn follower_gets_an_event_as_soon_as_it_happens_or_an_empty_page_in_time() {
    let log = without_store();
    let empty = log.after(None, None, Duration::from_secs(20)).await;
    assert!(empty.events.is_empty());
    let waiting = tokio::spawn({
        let log = log.clone();
        async move { after_wait(&log).await }
    });
    tokio::task::yield_now().await;
    log.push(event("kubernetes", "x".into()));
    assert_eq!(numbers(&waiting.await.unwrap()), [1]);
}

async fn after_wait(log: &EventLog) -> EventPage {
    log.after(None, None, Duration::from_secs(3600)).await
}

#[tokio::test]
async fn events_of_other_owners_are_skipped_and_not_asked_for_again() {
    let log = without_store();
    for owner in ["nomad", "kubernetes", "nomad", "kubernetes"] {
        log.push(event(owner, String::new()));
    }
    let page = log.after(None, Some("nomad"), Duration::ZERO).await;
    assert_eq!((numbers(&page), page.next), (vec![1, 3], 4));
}

#[tokio::test(start_paused = true)]
async fn follower_of_one_owner_is_not_woken_by_others() {
    let log = without_store();
    let waiting = tokio::spawn({
        let log = log.clone();
        async move {
            log.after(None, Some("nomad"), Duration::from_secs(20))
                .await
        }
    });
    for owner in ["kubernetes", "kubernetes", "nomad"] {
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        log.push(event(owner, String::new()));
    }
    let page = waiting.await.unwrap();
    assert_eq!((numbers(&page), page.next), (vec![3], 3));
}

#[tokio::test]
async fn ring_is_bounded_in_number_and_size_and_tells_what_it_lost() {
    let log = without_store();
    for _ in 0..5_010 {
        log.push(event("nomad", String::new()));
    }
    let page = after(&log, 5).await;
    assert_eq!((page.missed, page.events[0].number), (5, 11));
    let huge = "ä".repeat(4000);
    for _ in 0..10_000 {
        log.push(event("nomad", huge.clone()));
    }
    let ring = log.0.ring.lock();
    let kept = ring.page(0, usize::MAX, None).0;
    assert!(kept.iter().all(|event| event.detail.len() <= 1024));
    let bytes: usize = kept.iter().map(|event| event.detail.len()).sum();
    assert!(
        (1 << 20..=2 << 20).contains(&bytes),
        "{bytes} bytes are kept"
    );
    assert_eq!(ring.missing_after(0), kept[0].number - 1);
}

#[tokio::test]
async fn events_that_were_not_recorded_are_told_to_those_who_knew_the_one_before() {
    let log = without_store();
    log.push(event("nomad", String::new()));
    log.0.ring.lock().miss(7);
    log.push(event("nomad", String::new()));
    let page = after(&log, 1).await;
    assert_eq!((page.missed, numbers(&page)), (7, vec![9]));
    assert_eq!(after(&log, 9).await.missed, 0);
    assert_eq!(log.after(None, None, Duration::ZERO).await.missed, 0);
}

#[tokio::test]
async fn number_of_an_earlier_run_gets_all_events_and_is_told() {
    let log = without_store();
    log.push(event("nomad", String::new()));
    let page = log
        .after(Some(("an earlier run", 500)), None, Duration::ZERO)
        .await;
    assert_eq!(
        (numbers(&page), page.is_restarted, page.missed),
        (vec![1], true, 0)
    );
}

/// Remembers the causes of exits.
#[derive(Debug, Default)]
struct Causes(Mutex<Vec<String>>);

impl ExitObserver for Causes {
    fn task_exited(&self, event: &EventView, exit: &ExitView) {
        self.0
            .lock()
            .push(format!("{} {}", event.owner, exit.cause));
    }
}

fn start(state: &Path) -> EventLog {
    EventLog::start(Owners::default(), state, Arc::new(Causes::default()))
}

async fn on_record(log: &EventLog) -> Vec<EventView> {
    log.flush();
    let page = log.history(Place::default(), EventFilter::default()).await;
    page.unwrap().events
}

fn words(events: &[EventView]) -> Vec<&str> {
    events.iter().map(|event| event.event.as_str()).collect()
}

#[tokio::test]
async fn next_daemon_shows_what_the_one_before_has_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let log = start(dir.path());
    log.note_start("version 1");
    log.push(EventView {
        names: [("pod".to_owned(), "web".to_owned())].into(),
        ..event("kubernetes", "x".to_owned())
    });
    log.note_end("it was asked to end");
    log.flush();
    let expected = HistoryCounts {
        written: 3,
        lost: 0,
    };
    assert_eq!(log.counts(), Some(expected));
    drop(log);

    let next = start(dir.path());
    next.note_start("version 2");
    let page = next.after(None, None, Duration::ZERO).await;
    assert_eq!(numbers(&page), [1, 2, 3, 4]);
    assert_eq!(
        words(&page.events),
        ["daemon_started", "", "daemon_ended", "daemon_started"]
    );
    assert_eq!(page.events[3].detail, "version 2");
    assert!(page.events.iter().all(|event| event.names.is_empty()));
    // A follower of the one before gets what is new.
    let known = Some(("an earlier run", 3));
    let page = next.after(known, None, Duration::ZERO).await;
    assert!(page.is_restarted);
    assert_eq!(numbers(&page), [4]);
    let recorded = on_record(&next).await;
    assert_eq!(recorded.len(), 4);
    assert_eq!(recorded[1].names["pod"], "web");
}

#[tokio::test]
async fn daemon_that_left_no_record_of_its_end_is_reported_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let log = start(dir.path());
    log.note_start("version 1");
    log.push(event("nomad", "x".to_owned()));
    log.flush();
    drop(log);
    let next = start(dir.path());
    next.note_start("version 2");
    let recorded = on_record(&next).await;
    let detail = &recorded.last().unwrap().detail;
    assert!(
        detail.starts_with("version 2; the daemon before it left no record of its end"),
        "{detail}"
    );
}

#[tokio::test]
async fn exit_is_recorded_with_its_time_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let causes = Arc::new(Causes::default());
    let log = EventLog::start(
        Owners::default(),
        dir.path(),
        Arc::clone(&causes) as Arc<dyn ExitObserver>,
    );
    let bus = EventBus::default();
    let events = bus.subscribe(None);
    let exit = Exit {
        code: 1,
        finished_at: SystemTime::UNIX_EPOCH,
        cause: ExitCause::Exited,
    };
    let end = TaskEnd {
        stop: None,
        is_found: true,
    };
    for kind in [
        EventKind::TaskExited(TaskId::from_bytes([1; 32]), exit, end),
        EventKind::SandboxRemoved(SandboxId::from_bytes([2; 32])),
    ] {
        bus.publish(Event {
            at: SystemTime::now(),
            owner: Owner::Nomad,
            kind,
            sandbox: None,
            task: None,
        });
    }
    drop(bus);
    log.clone().record(events).await;
    let recorded = on_record(&log).await;
    assert_eq!(words(&recorded), ["task_exited", "sandbox_removed"]);
    assert_eq!(recorded[0].at, "1970-01-01T00:00:00.000Z");
    let text = "code 1; found at the start of the daemon";
    assert_eq!(recorded[0].detail, text);
    assert_eq!(*causes.0.lock(), ["nomad exited"]);
}

#[tokio::test]
async fn directory_that_cannot_be_written_loses_and_counts_events_and_shows_the_latest() {
    let dir = tempfile::tempdir().unwrap();
    let history = dir.path().join("history");
    std::fs::write(&history, "no directory").unwrap();
    let log = start(dir.path());
    log.push(event("nomad", "first".to_owned()));
    log.flush();
    let lost = HistoryCounts {
        written: 0,
        lost: 1,
    };
    assert_eq!(log.counts(), Some(lost));
    let page = log.history(Place::default(), EventFilter::default()).await;
    assert_eq!(page.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(log.latest(9, |_| true).len(), 1);
    std::fs::remove_file(&history).unwrap();
    log.push(event("nomad", "second".to_owned()));
    let recorded = on_record(&log).await;
    assert_eq!(recorded.len(), 1);
    assert_eq!(recorded[0].detail, "second");
}

#[tokio::test]
async fn history_without_a_store_is_refused() {
    let log = without_store();
    let page = log.history(Place::default(), EventFilter::default()).await;
    assert_eq!(page.unwrap_err().kind(), ErrorKind::FailedPrecondition);
    assert_eq!(log.counts(), None);
}
