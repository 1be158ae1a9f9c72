//! Tests of which cleanups begin when, and what holds up what.

use std::cell::RefCell;
use std::future::ready;

use switchyard_core::backend::unobserved;

use super::*;

#[derive(Debug)]
struct NamedCleanup(&'static str);

/// One that does not end before its permit is there.
#[derive(Debug)]
struct HungCleanup {
    is_awaited: bool,
    end: Arc<Semaphore>,
    begun: Arc<Semaphore>,
}

impl Cleanup for HungCleanup {
    fn description(&self) -> String {
        format!("{self:?}")
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        self.begun.add_permits(1);
        Box::pin(async move {
            let ended = self.end.acquire().await;
            ended.map(drop).map_err(|_| Error::internal("it fails"))
        })
    }

    fn is_awaited(&self) -> bool {
        self.is_awaited
    }
}

impl Cleanup for NamedCleanup {
    fn description(&self) -> String {
        self.0.to_owned()
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

#[tokio::test(start_paused = true)]
async fn one_that_takes_long_holds_up_nothing_that_comes_later() {
    let stop = CancellationToken::new();
    let queue = RefCell::new(VecDeque::from([150]));
    let done = RefCell::new(Vec::new());
    let next = || {
        let seconds = queue.borrow_mut().pop_front()?;
        let done = &done;
        Some(async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            done.borrow_mut().push(seconds);
        })
    };
    let later = async {
        tokio::time::sleep(PERIOD * 2).await;
        queue.borrow_mut().extend([1, 2, 1, 2, 1]);
        tokio::time::sleep(PERIOD * 4).await;
        done.borrow_mut().sort_unstable();
        assert_eq!(*done.borrow(), [1, 1, 1, 2, 2]);
        stop.cancel();
    };
    tokio::join!(
        in_rounds(CONCURRENCY, || queue.borrow().len(), next, stop.clone()),
        later
    );
    assert_eq!(
        done.borrow().last(),
        Some(&150),
        "what was begun comes to its end"
    );
}

#[tokio::test(start_paused = true)]
async fn what_fails_waits_for_another_round() {
    let stop = CancellationToken::new();
    let tries = RefCell::new(Vec::new());
    let began = Instant::now();
    let next = || {
        tries.borrow_mut().push(began.elapsed().as_secs());
        Some(ready(()))
    };
    let later = async {
        tokio::time::sleep(PERIOD * 3 + PERIOD / 2).await;
        stop.cancel();
    };
    tokio::join!(in_rounds(CONCURRENCY, || 1, next, stop.clone()), later);
    assert_eq!(
        *tries.borrow(),
        [1, 2, 3].map(|round| PERIOD.as_secs() * round)
    );
}

/// The clock stands still: nobody waits for real time.
#[tokio::test(start_paused = true)]
async fn what_clients_wait_for_begins_beside_others_that_hang() {
    let queue = Arc::new(CleanupQueue::new(unobserved()));
    let tracker = TaskTracker::new();
    let end = Arc::new(Semaphore::new(0));
    let [others, awaited] = [false, true].map(|is_awaited| {
        let begun = Arc::new(Semaphore::new(0));
        for _ in 0..CONCURRENCY * 2 {
            let cleanup = HungCleanup {
                is_awaited,
                end: Arc::clone(&end),
                begun: Arc::clone(&begun),
            };
            queue.spawn(Box::new(cleanup), &tracker);
        }
        begun
    });
    // It is over when all tasks wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(others.available_permits(), CONCURRENCY);
    assert_eq!(awaited.available_permits(), CONCURRENCY * 2);
    // All fail from now on, and are queued, each where it is retried.
    end.close();
    tracker.close();
    tracker.wait().await;
    let later = Instant::now() + MAX_PAUSE;
    for (retries, is_awaited) in [(&queue.others, false), (&queue.awaited, true)] {
        assert_eq!(retries.due_count(later), CONCURRENCY * 2);
        for _ in 0..CONCURRENCY * 2 {
            let taken = retries.pop_due(later).unwrap();
            assert_eq!(taken.cleanup.is_awaited(), is_awaited);
        }
        assert!(retries.pop_due(later).is_none());
    }
}

/// The same.
#[tokio::test(start_paused = true)]
async fn what_clients_wait_for_is_retried_beside_others_that_hang_and_without_containerd() {
    for is_up in [true, false] {
        let queue = CleanupQueue::new(unobserved());
        let end = Arc::new(Semaphore::new(0));
        let [others, awaited] = [false, true].map(|is_awaited| {
            let begun = Arc::new(Semaphore::new(0));
            for _ in 0..CONCURRENCY {
                queue.enqueue(HungCleanup {
                    is_awaited,
                    end: Arc::clone(&end),
                    begun: Arc::clone(&begun),
                });
            }
            begun
        });
        let stop = CancellationToken::new();
        let later = async {
            tokio::time::sleep(PERIOD * 2).await;
            let expected = if is_up { CONCURRENCY } else { 0 };
            assert_eq!(others.available_permits(), expected, "{is_up}");
            assert_eq!(awaited.available_permits(), CONCURRENCY, "{is_up}");
            stop.cancel();
            end.close();
        };
        tokio::join!(queue.run_while(|| is_up, stop.clone()), later);
    }
}

/// The same.
#[tokio::test(start_paused = true)]
async fn more_processors_retry_more_at_once_of_what_clients_wait_for() {
    for (processors, most) in [(1, 4), (2, 4), (4, 4), (6, 6), (16, 16), (512, 16)] {
        assert_eq!(awaited_at_once(processors), most);
        let begun = RefCell::new(0);
        let stop = CancellationToken::new();
        let next = || {
            *begun.borrow_mut() += 1;
            Some(stop.cancelled())
        };
        let later = async {
            tokio::time::sleep(PERIOD * 3).await;
            assert_eq!(*begun.borrow(), most, "as many as hang, on {processors}");
            stop.cancel();
        };
        tokio::join!(in_rounds(most, || 1_000, next, stop.clone()), later);
    }
}

#[test]
fn a_full_queue_keeps_what_it_has() {
    let mut queue = VecDeque::new();
    assert!(push(&mut queue, 1, 2) && push(&mut queue, 2, 2));
    assert!(!push(&mut queue, 3, 2));
    assert_eq!(queue, [1, 2]);
    queue.pop_front();
    assert!(push(&mut queue, 3, 2));
}

#[test]
fn what_waits_long_is_tried_less_often_but_never_given_up() {
    let seconds = Duration::from_secs;
    assert_eq!(retry_pause(Duration::ZERO), PERIOD);
    assert_eq!(retry_pause(seconds(16)), PERIOD);
    assert_eq!(retry_pause(seconds(160)), seconds(20));
    assert_eq!(retry_pause(seconds(1_000_000)), MAX_PAUSE);
}

#[test]
fn what_cannot_be_cleared_away_is_told_once_and_each_hour() {
    let mut waiting = QueuedCleanup::new(Box::new(NamedCleanup("x")));
    let begin = waiting.since;
    let mut now = begin;
    let mut tries = 0;
    let mut logged = Vec::new();
    while now.duration_since(begin) < LOG_INTERVAL * 2 {
        tries += 1;
        if waiting.postpone(now) {
            logged.push(now.duration_since(begin));
        }
        now = waiting.due;
    }
    assert!((20..100).contains(&tries), "{tries}");
    assert_eq!(logged.len(), 2, "{logged:?}");
}

#[test]
fn only_what_is_due_is_taken() {
    let queue = CleanupQueue::new(unobserved());
    queue.enqueue(NamedCleanup("a"));
    let mut later = QueuedCleanup::new(Box::new(NamedCleanup("b")));
    later.postpone(Instant::now());
    let due = later.due;
    queue.requeue(later);
    let next = |now| {
        let waiting = queue.others.pop_due(now)?;
        Some(waiting.cleanup.description())
    };
    let now = Instant::now();
    let count = |now| queue.others.due_count(now);
    assert_eq!((count(now), count(due)), (1, 2));
    assert_eq!(next(now).as_deref(), Some("a"));
    assert_eq!(next(now), None);
    assert_eq!(next(due).as_deref(), Some("b"));
    assert!(queue.others.0.lock().is_empty());
}
