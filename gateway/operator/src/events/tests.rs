//! Pages of events, and the report of lost ones.

use std::time::Duration;

use super::*;

fn event(owner: &str, detail: String) -> EventView {
    EventView {
        owner: owner.to_owned(),
        detail,
        ..EventView::default()
    }
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
    let log = EventLog::new(Owners::default());
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
    let log = EventLog::new(Owners::default());
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
    let log = EventLog::new(Owners::default());
    for owner in ["nomad", "kubernetes", "nomad", "kubernetes"] {
        log.push(event(owner, String::new()));
    }
    let page = log.after(None, Some("nomad"), Duration::ZERO).await;
    assert_eq!((numbers(&page), page.next), (vec![1, 3], 4));
}

#[tokio::test(start_paused = true)]
async fn follower_of_one_owner_is_not_woken_by_others() {
    let log = EventLog::new(Owners::default());
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
    let log = EventLog::new(Owners::default());
    for _ in 0..10_010 {
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
    let log = EventLog::new(Owners::default());
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
    let log = EventLog::new(Owners::default());
    log.push(event("nomad", String::new()));
    let page = log
        .after(Some(("an earlier run", 500)), None, Duration::ZERO)
        .await;
    assert_eq!(
        (numbers(&page), page.is_restarted, page.missed),
        (vec![1], true, 0)
    );
}

#[test]
fn exits_are_told_with_their_cause() {
    let exit = |code, cause| {
        exit_text(&Exit {
            code,
            finished_at: SystemTime::UNIX_EPOCH,
            cause,
        })
    };
    assert_eq!(exit(3, ExitCause::Exited), "code 3");
    assert_eq!(
        exit(137, ExitCause::OomKilled),
        "code 137, killed because it ran out of memory"
    );
    assert_eq!(
        exit(128, ExitCause::StartFailed("no such program".into())),
        "never started: no such program"
    );
    assert_eq!(exit(255, ExitCause::Lost), "its exit was not observed");
}
