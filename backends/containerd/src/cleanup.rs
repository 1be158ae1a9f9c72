//! The cleanup queue: undos and removals that run while requests are served, and are retried until they
//! succeed.
//!
//! An undo or a cleanup that fails because containerd is down must not wait for the daemon's next start. If
//! the daemon is killed first, recovery finds the same objects again.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use parking_lot::{Mutex, MutexGuard};
use switchyard_core::backend::{BackendObserver, RecoveryResult};
use switchyard_core::{Error, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::contact::Contact;
use crate::client::health::Health;

/// The interval between two scans of the queue, and the shortest pause between two tries.
const PERIOD: Duration = Duration::from_secs(2);
/// The longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_mins(5);
/// Interval at which the log repeats that a cleanup keeps failing.
const LOG_INTERVAL: Duration = Duration::from_hours(1);
/// Maximum number of concurrent cleanups.
const CONCURRENCY: usize = 4;

/// The bound of the queue. More entries than a node ever has objects would be a bug of this daemon; an entry
/// that is dropped is found again by recovery at the next start.
const MAX_QUEUED: usize = 10_000;

/// An undo or a removal that is left to do.
pub(crate) trait Cleanup: fmt::Debug + Send + Sync {
    /// The kind of the cleanup and the id of its object, for the log.
    fn description(&self) -> String;

    /// Does it. Repeated until it succeeds, so that it must succeed if there is nothing left to do.
    ///
    /// # Errors
    /// The reason why it has to be repeated.
    fn run(&self) -> BoxFuture<'_, Result<()>>;

    /// Returns whether clients wait for it. Then it begins at once, beside however many others, and needs nothing of
    /// containerd: it is retried also while that is down.
    fn is_awaited(&self) -> bool {
        false
    }
}

/// An entry of the queue.
#[derive(Debug)]
struct QueuedCleanup {
    cleanup: Box<dyn Cleanup>,
    since: Instant,
    /// Time of the next try.
    due: Instant,
    /// Time at which the log last reported that this cleanup fails.
    logged_at: Option<Instant>,
}

/// The component that a cleanup needs.
///
/// # Errors
/// `Unavailable` if it was dropped: the next daemon process finds what is left.
pub(crate) fn upgrade<T>(component: &Weak<T>) -> Result<Arc<T>> {
    component
        .upgrade()
        .ok_or_else(|| Error::unavailable("the backend is shutting down"))
}

/// The cleanups that wait for their next try.
#[derive(Debug)]
pub(crate) struct CleanupQueue {
    queue: Mutex<VecDeque<QueuedCleanup>>,
    permits: Arc<Semaphore>,
    observer: Arc<dyn BackendObserver>,
}

/// The removal of what a predecessor left of one object, reported when it is done.
#[derive(Debug)]
pub(crate) struct RecoveryCleanup {
    pub(crate) kind: &'static str,
    pub(crate) cleanup: Box<dyn Cleanup>,
    pub(crate) observer: Arc<dyn BackendObserver>,
}

// === impl QueuedCleanup ===

impl QueuedCleanup {
    fn new(cleanup: Box<dyn Cleanup>) -> Self {
        let now = Instant::now();
        Self {
            cleanup,
            since: now,
            due: now,
            logged_at: None,
        }
    }

    fn is_due(&self, now: Instant, is_awaited: bool) -> bool {
        self.due <= now && self.cleanup.is_awaited() == is_awaited
    }

    /// Schedules the next try after a failed one. `true` if the failure is to be logged as a warning: the
    /// first one, and then one every [`LOG_INTERVAL`].
    fn postpone(&mut self, now: Instant) -> bool {
        self.due = now + retry_pause(now.saturating_duration_since(self.since));
        let log = self
            .logged_at
            .is_none_or(|logged| now.saturating_duration_since(logged) >= LOG_INTERVAL);
        if log {
            self.logged_at = Some(now);
        }
        log
    }
}

/// The pause before the next try of a cleanup that has waited for `waited`. The pause is an eighth of that,
/// so once the obstacle is gone the cleanup takes at most an eighth longer than it had to.
fn retry_pause(waited: Duration) -> Duration {
    (waited / 8).clamp(PERIOD, MAX_PAUSE)
}

// === impl RecoveryCleanup ===

impl Cleanup for RecoveryCleanup {
    fn description(&self) -> String {
        self.cleanup.description()
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.cleanup.run().await?;
            self.observer.recovered(self.kind, RecoveryResult::Cleaned);
            Ok(())
        })
    }

    fn is_awaited(&self) -> bool {
        self.cleanup.is_awaited()
    }
}

// === impl CleanupQueue ===

impl CleanupQueue {
    /// An empty queue that reports to `observer` what waits and what fails.
    pub(crate) fn new(observer: Arc<dyn BackendObserver>) -> Self {
        Self {
            queue: Mutex::default(),
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
            observer,
        }
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<QueuedCleanup>> {
        self.queue.lock()
    }

    /// Adds a cleanup, due at the next scan.
    pub(crate) fn enqueue(&self, cleanup: impl Cleanup + 'static) {
        self.observer.cleanup_added();
        self.requeue(QueuedCleanup::new(Box::new(cleanup)));
    }

    fn requeue(&self, waiting: QueuedCleanup) {
        if !push(&mut self.queue(), waiting, MAX_QUEUED) {
            self.observer.cleanup_ended();
            tracing::error!(
                most = MAX_QUEUED,
                "the cleanup queue is full: a cleanup is dropped until the next start of this daemon"
            );
        }
    }

    /// The number of entries that are due, of those that clients wait for or of the others.
    fn due_count(&self, now: Instant, is_awaited: bool) -> usize {
        self.queue()
            .iter()
            .filter(|waiting| waiting.is_due(now, is_awaited))
            .count()
    }

    /// Removes and returns the first of these entries.
    fn pop_due(&self, now: Instant, is_awaited: bool) -> Option<QueuedCleanup> {
        let mut queue = self.queue();
        let at = queue
            .iter()
            .position(|waiting| waiting.is_due(now, is_awaited))?;
        queue.remove(at)
    }

    /// Runs a cleanup in a task of `tracker`: at once if clients wait for it, else as soon as fewer than
    /// [`CONCURRENCY`] of the others run. It is queued if it fails.
    pub(crate) fn spawn(self: &Arc<Self>, cleanup: Box<dyn Cleanup>, tracker: &TaskTracker) {
        let queue = Arc::clone(self);
        self.observer.cleanup_added();
        tracker.spawn(async move {
            // The semaphore is never closed.
            let _permit = if cleanup.is_awaited() {
                None
            } else {
                queue.permits.acquire().await.ok()
            };
            queue.attempt(QueuedCleanup::new(cleanup)).await;
        });
    }

    /// Runs the queued cleanups until `stop`; those for which no client waits only while containerd is up.
    pub(crate) async fn run(self: Arc<Self>, health: Health, stop: CancellationToken) {
        let queue = &self;
        let next = |is_awaited| {
            move || {
                let waiting = queue.pop_due(Instant::now(), is_awaited)?;
                Some(queue.attempt(waiting))
            }
        };
        let due = || match health.current() {
            Contact::Up { .. } => queue.due_count(Instant::now(), false),
            Contact::Down { .. } => 0,
        };
        let awaited = || queue.due_count(Instant::now(), true);
        // None of the others, which may hang, holds up one that is awaited.
        tokio::join!(
            in_rounds(due, next(false), stop.clone()),
            in_rounds(awaited, next(true), stop),
        );
    }

    async fn attempt(&self, mut waiting: QueuedCleanup) {
        let what = waiting.cleanup.description();
        match waiting.cleanup.run().await {
            Ok(()) => {
                self.observer.cleanup_ended();
                if waiting.logged_at.is_some() {
                    tracing::info!(what, after = ?waiting.since.elapsed(), "a cleanup that had failed is done");
                }
            }
            Err(error) => {
                self.observer.cleanup_failed();
                if waiting.postpone(Instant::now()) {
                    let error = error.report();
                    tracing::warn!(
                        what,
                        error,
                        "a cleanup failed: it is retried, and logged again in an hour if it still fails"
                    );
                } else {
                    tracing::debug!(what, error = error.report(), "a cleanup failed again");
                }
                self.requeue(waiting);
            }
        }
    }
}

/// Appends to a queue of at most `most` entries; `false` if it is full.
fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) -> bool {
    let fits = queue.len() < most;
    if fits {
        queue.push_back(item);
    }
    fits
}

/// Runs the futures that `next` gives, at most [`CONCURRENCY`] at once, until `stop`. Each round runs as many
/// as were `due` when it began, so that a cleanup that fails and is queued again is retried in a later round.
/// One that takes long, as with an unresponsive shim, does not delay the others.
async fn in_rounds<F: Future<Output = ()>>(
    due: impl Fn() -> usize,
    next: impl Fn() -> Option<F>,
    stop: CancellationToken,
) {
    let mut rounds = interval_at(Instant::now() + PERIOD, PERIOD);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut running = FuturesUnordered::new();
    let mut left = 0;
    loop {
        tokio::select! {
            _ = rounds.tick() => left = due(),
            Some(()) = running.next() => {}
            () = stop.cancelled() => break,
        }
        while left > 0 && running.len() < CONCURRENCY {
            left -= 1;
            running.extend(next());
        }
    }
    // Those that have begun run to their end.
    while running.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
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
            in_rounds(|| queue.borrow().len(), next, stop.clone()),
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
        tokio::join!(in_rounds(|| 1, next, stop.clone()), later);
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
        // All fail from now on, and are queued: each of them is found by the one of both that retries it.
        end.close();
        tracker.close();
        tracker.wait().await;
        let later = Instant::now() + MAX_PAUSE;
        let is_taken = |is_awaited| {
            let taken = queue.pop_due(later, is_awaited);
            taken.is_some_and(|taken| taken.cleanup.is_awaited() == is_awaited)
        };
        for is_awaited in [false, true] {
            assert_eq!(queue.due_count(later, is_awaited), CONCURRENCY * 2);
            assert!((0..CONCURRENCY * 2).all(|_| is_taken(is_awaited)));
            assert!(queue.pop_due(later, is_awaited).is_none());
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
            queue
                .pop_due(now, false)
                .map(|waiting| waiting.cleanup.description())
        };
        let now = Instant::now();
        let count = |now| queue.due_count(now, false);
        assert_eq!((count(now), count(due)), (1, 2));
        assert_eq!(next(now).as_deref(), Some("a"));
        assert_eq!(next(now), None);
        assert_eq!(next(due).as_deref(), Some("b"));
        assert!(queue.queue().is_empty());
    }
}
