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
use parking_lot::Mutex;
use switchyard_core::backend::{BackendObserver, RecoveryResult};
use switchyard_core::threads::processors;
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
/// Maximum number of concurrent cleanups for which no client waits: containerd serves requests meanwhile.
const CONCURRENCY: usize = 4;
/// The most retries at a time of those for which clients wait, however many processors there are. Their first tries have no bound but the
/// number of sandboxes that end.
const AWAITED_MAX: usize = 16;

/// The bound of each queue. More entries than a node ever has objects would be a bug of this daemon; an entry
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
    /// containerd: it is retried also while that is down, at most [`awaited_at_once`] of these at a time.
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

/// The number of retries at a time of what clients wait for, on a node with this many processors. The obstacle of one release is often that of
/// all, as missing plugins or a full disk, so that a thousand sandboxes may wait for it to go. Then each takes some milliseconds of a
/// processor, or with plugins some 60: a thousand take 15 s four at a time, and more at a time would be no faster on two processors. Pure.
fn awaited_at_once(processors: usize) -> usize {
    processors.clamp(CONCURRENCY, AWAITED_MAX)
}

/// Cleanups in the order of their tries.
#[derive(Debug, Default)]
struct CleanupRetries(Mutex<VecDeque<QueuedCleanup>>);

/// The cleanups that wait for their next try.
#[derive(Debug)]
pub(crate) struct CleanupQueue {
    /// Those that clients wait for. None of the others, which may hang, holds up one of these.
    awaited: CleanupRetries,
    others: CleanupRetries,
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

// === impl CleanupRetries ===

impl CleanupRetries {
    /// Appends an entry; `false` if it is full.
    fn push(&self, waiting: QueuedCleanup) -> bool {
        push(&mut self.0.lock(), waiting, MAX_QUEUED)
    }

    /// The number of entries that are due.
    fn due_count(&self, now: Instant) -> usize {
        let queue = self.0.lock();
        queue.iter().filter(|waiting| waiting.due <= now).count()
    }

    /// Removes and returns the first of these.
    fn pop_due(&self, now: Instant) -> Option<QueuedCleanup> {
        let mut queue = self.0.lock();
        let at = queue.iter().position(|waiting| waiting.due <= now)?;
        queue.remove(at)
    }
}

// === impl CleanupQueue ===

impl CleanupQueue {
    /// An empty queue that reports to `observer` what waits and what fails.
    pub(crate) fn new(observer: Arc<dyn BackendObserver>) -> Self {
        Self {
            awaited: CleanupRetries::default(),
            others: CleanupRetries::default(),
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
            observer,
        }
    }

    /// Adds a cleanup, due at the next scan.
    pub(crate) fn enqueue(&self, cleanup: impl Cleanup + 'static) {
        self.observer.cleanup_added();
        self.requeue(QueuedCleanup::new(Box::new(cleanup)));
    }

    fn requeue(&self, waiting: QueuedCleanup) {
        let retries = if waiting.cleanup.is_awaited() {
            &self.awaited
        } else {
            &self.others
        };
        if !retries.push(waiting) {
            self.observer.cleanup_ended();
            tracing::error!(
                most = MAX_QUEUED,
                "the cleanup queue is full: a cleanup is dropped until the next start of this daemon"
            );
        }
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
        let is_up = || matches!(health.current(), Contact::Up { .. });
        self.run_while(is_up, stop).await;
    }

    /// The same, by what is said of containerd.
    async fn run_while(&self, is_up: impl Fn() -> bool, stop: CancellationToken) {
        let due = || {
            if is_up() {
                self.others.due_count(Instant::now())
            } else {
                0
            }
        };
        let next = || Some(self.attempt(self.others.pop_due(Instant::now())?));
        let due_awaited = || self.awaited.due_count(Instant::now());
        let next_awaited = || Some(self.attempt(self.awaited.pop_due(Instant::now())?));
        tokio::join!(
            in_rounds(CONCURRENCY, due, next, stop.clone()),
            in_rounds(
                awaited_at_once(processors()),
                due_awaited,
                next_awaited,
                stop
            ),
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

/// Runs the futures that `next` gives, at most `most` at once, until `stop`. Each round runs as many
/// as were `due` when it began, so that a cleanup that fails and is queued again is retried in a later round.
/// One that takes long, as with an unresponsive shim, does not delay the others.
async fn in_rounds<F: Future<Output = ()>>(
    most: usize,
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
        while left > 0 && running.len() < most {
            left -= 1;
            running.extend(next());
        }
    }
    // Those that have begun run to their end.
    while running.next().await.is_some() {}
}

#[cfg(test)]
mod tests;
