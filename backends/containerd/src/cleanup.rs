//! What is cleared away while requests are served: tried at once, and again until it is gone.
//!
//! An undo or a clearing-up that fails because containerd is away must not wait for the daemon's next start. Recovery finds the
//! same things again should the daemon be killed meanwhile.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::state::Exit;
use switchyard_core::{ErrorKind, Result};
use tokio::sync::Semaphore;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use crate::backend::Inner;
use crate::health::Contact;
use crate::image::lease;
use crate::recover::OutdatedObject;
use crate::sandbox::{SandboxEntry, Unreleased};
use crate::task::TaskEntry;

/// Between two looks at what waits.
const PERIOD: Duration = Duration::from_secs(2);
/// The longest pause between two tries.
const MAX_PAUSE: Duration = Duration::from_mins(5);
/// How often it is told anew that something cannot be cleared away.
const LOG_INTERVAL: Duration = Duration::from_hours(1);
/// How many things are cleared away at once.
const CONCURRENCY: usize = 4;

/// The most things that wait to be cleared away. More of them than there are ever objects on a node would be a fault of ours; what is
/// not kept then is found by the next start.
const MAX_QUEUED: usize = 10_000;

/// Something to clear away.
#[derive(Debug, Clone)]
pub(crate) enum Cleanup {
    /// A sandbox that was never finished.
    Sandbox(SandboxId, Arc<SandboxEntry>),
    /// A task that was never finished.
    Task(Arc<TaskEntry>),
    /// The process and the log of a task that has ended, and its end if that is not on record.
    EndedTask(Arc<TaskEntry>),
    /// A start that failed, which is not on record yet.
    FailedStart(Arc<TaskEntry>, Exit),
    /// Limits that may not be those on record.
    Limits(Arc<TaskEntry>),
    /// What is left of a checkpoint, for which the task may stand still.
    Checkpoint(Arc<TaskEntry>),
    /// A further process in a task, which a predecessor started, by its directory.
    Exec(TaskId, PathBuf),
    /// The cgroup of an object that is gone, with something in it yet, by the object's id.
    Cgroup(String),
    /// A lease that nobody needs any more, by its id.
    Lease(String),
    /// What an earlier version wrote on a container object.
    Outdated(OutdatedObject),
}

/// Something that waits to be cleared away.
#[derive(Debug)]
struct QueuedCleanup {
    cleanup: Cleanup,
    since: Instant,
    /// When it is tried next.
    due: Instant,
    /// When it was told last that it cannot be cleared away.
    logged_at: Option<Instant>,
}

/// What waits to be cleared away.
#[derive(Debug)]
pub(crate) struct CleanupQueue {
    queue: Mutex<VecDeque<QueuedCleanup>>,
    permits: Arc<Semaphore>,
    /// Those sandboxes of which even the network is left.
    pub(crate) unreleased: Unreleased,
}

impl Default for CleanupQueue {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            permits: Arc::new(Semaphore::new(CONCURRENCY)),
            unreleased: Unreleased::default(),
        }
    }
}

// === impl Leftover ===

impl Cleanup {
    /// What it is, for people.
    fn description(&self) -> String {
        match self {
            Self::Sandbox(id, _) => format!("sandbox {id}"),
            Self::Task(entry) => format!("task {}", entry.id),
            Self::EndedTask(entry) => format!("process of task {}", entry.id),
            Self::FailedStart(entry, _) => format!("failed start of task {}", entry.id),
            Self::Limits(entry) => format!("limits of task {}", entry.id),
            Self::Checkpoint(entry) => format!("checkpoint of task {}", entry.id),
            Self::Exec(task, _) => format!("exec in task {task}"),
            Self::Cgroup(id) => format!("cgroup of {id}"),
            Self::Lease(id) => format!("lease {id}"),
            Self::Outdated(outdated) => format!("outdated labels of container {}", &*outdated.id),
        }
    }
}

// === impl Waiting ===

impl QueuedCleanup {
    fn new(leftover: Cleanup) -> Self {
        let now = Instant::now();
        Self { cleanup: leftover, since: now, due: now, logged_at: None }
    }

    /// Puts the next try off after one that failed, and says whether to tell of it: the first time, and seldom after that.
    fn postpone(&mut self, now: Instant) -> bool {
        self.due = now + retry_pause(now.saturating_duration_since(self.since));
        let tell = self.logged_at.is_none_or(|told| now.saturating_duration_since(told) >= LOG_INTERVAL);
        if tell {
            self.logged_at = Some(now);
        }
        tell
    }
}

/// How long to wait for the next try of what has waited for so long: whatever is in the way, it delays the end by an eighth at most.
fn retry_pause(waited: Duration) -> Duration {
    (waited / 8).clamp(PERIOD, MAX_PAUSE)
}

// === impl Leftovers ===

impl CleanupQueue {
    fn queue(&self) -> MutexGuard<'_, VecDeque<QueuedCleanup>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps something for later.
    pub(crate) fn enqueue(&self, leftover: Cleanup) {
        self.requeue(QueuedCleanup::new(leftover));
    }

    fn requeue(&self, waiting: QueuedCleanup) {
        if !push(&mut self.queue(), waiting, MAX_QUEUED) {
            tracing::error!(
                most = MAX_QUEUED,
                "too much waits to be cleared away: something is left for the next start of this daemon"
            );
        }
    }

    /// How many are due.
    fn due_count(&self, now: Instant) -> usize {
        self.queue().iter().filter(|waiting| waiting.due <= now).count()
    }

    /// The next that is due.
    fn pop_due(&self, now: Instant) -> Option<QueuedCleanup> {
        let mut queue = self.queue();
        let at = queue.iter().position(|waiting| waiting.due <= now)?;
        queue.remove(at)
    }
}

/// Puts something at the end of a queue that holds no more than `most`; `false` if it is full.
fn push<T>(queue: &mut VecDeque<T>, item: T, most: usize) -> bool {
    let fits = queue.len() < most;
    if fits {
        queue.push_back(item);
    }
    fits
}

impl Inner {
    /// Clears something away as soon as there is a turn, without anybody waiting for it.
    pub(crate) fn clean_up_soon(self: &Arc<Self>, leftover: Cleanup) {
        let inner = Arc::clone(self);
        self.tracker.spawn(async move {
            // Nobody closes it.
            let _turn = inner.cleanup.permits.acquire().await;
            inner.attempt_cleanup(QueuedCleanup::new(leftover)).await;
        });
    }

    /// Clears leftovers away until `stop`.
    pub(crate) async fn run_cleanup(self: Arc<Self>, stop: CancellationToken) {
        let due = || match self.health.current() {
            Contact::Up { .. } => self.cleanup.due_count(Instant::now()),
            Contact::Down { .. } => 0,
        };
        let next = || self.cleanup.pop_due(Instant::now()).map(|waiting| self.attempt_cleanup(waiting));
        in_rounds(due, next, stop).await;
    }

    async fn attempt_cleanup(&self, mut waiting: QueuedCleanup) {
        let what = waiting.cleanup.description();
        match self.clean_up(&waiting.cleanup).await {
            Ok(()) if waiting.logged_at.is_some() => {
                tracing::info!(what, after = ?waiting.since.elapsed(), "what was left behind is gone");
            }
            Ok(()) => {}
            Err(error) => {
                if waiting.postpone(Instant::now()) {
                    let error = error.report();
                    tracing::warn!(
                        what,
                        error,
                        "something is still left behind: it is tried again, and told again in an hour"
                    );
                } else {
                    tracing::debug!(what, error = error.report(), "something is still left behind");
                }
                self.cleanup.requeue(waiting);
            }
        }
    }

    async fn clean_up(&self, leftover: &Cleanup) -> Result<()> {
        match leftover {
            Cleanup::Sandbox(id, entry) => self.destroy_entry(*id, entry).await,
            Cleanup::Task(entry) => self.destroy_task(entry).await,
            Cleanup::EndedTask(entry) => self.clean_up_exit(entry).await,
            Cleanup::Limits(entry) => self.restore_limits(entry).await,
            Cleanup::Checkpoint(entry) => self.end_checkpoint(entry).await,
            Cleanup::Exec(task, dir) => crate::exec::predecessor::end_exec(&self.client, *task, dir).await,
            Cleanup::Cgroup(id) => self.remove_busy_cgroup(id).await,
            Cleanup::Lease(id) => lease::delete(&self.client, id).await,
            Cleanup::Outdated(outdated) => self.update_outdated_object(outdated).await,
            Cleanup::FailedStart(entry, exit) => match self.undo_start(entry, exit).await {
                // It was removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                other => other,
            },
        }
    }
}

/// Has things done, a few at once, until `stop`. In each round as many as are `due` at its beginning, so that what fails and is put back is
/// tried again in another; one that takes long, for want of an answer of its shim, holds up no other.
async fn in_rounds<F: Future<Output = ()>>(
    due: impl Fn() -> usize,
    next: impl Fn() -> Option<F>,
    stop: CancellationToken,
) {
    let mut rounds = interval_at(Instant::now() + PERIOD, PERIOD);
    rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut at_work = FuturesUnordered::new();
    let mut left = 0;
    loop {
        tokio::select! {
            _ = rounds.tick() => left = due(),
            Some(()) = at_work.next() => {}
            () = stop.cancelled() => break,
        }
        while left > 0 && at_work.len() < CONCURRENCY {
            left -= 1;
            at_work.extend(next());
        }
    }
    // What was begun comes to its end.
    while at_work.next().await.is_some() {}
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

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
        tokio::join!(in_rounds(|| queue.borrow().len(), next, stop.clone()), later);
        assert_eq!(done.borrow().last(), Some(&150), "what was begun comes to its end");
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_waits_for_another_round() {
        let stop = CancellationToken::new();
        let tries = RefCell::new(Vec::new());
        let began = Instant::now();
        let next = || {
            tries.borrow_mut().push(began.elapsed().as_secs());
            Some(std::future::ready(()))
        };
        let later = async {
            tokio::time::sleep(PERIOD * 3 + PERIOD / 2).await;
            stop.cancel();
        };
        tokio::join!(in_rounds(|| 1, next, stop.clone()), later);
        assert_eq!(*tries.borrow(), [1, 2, 3].map(|round| PERIOD.as_secs() * round));
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
        let mut waiting = QueuedCleanup::new(Cleanup::Cgroup("x".to_owned()));
        let begin = waiting.since;
        let mut now = begin;
        let mut tries = 0;
        let mut told = Vec::new();
        while now.duration_since(begin) < LOG_INTERVAL * 2 {
            tries += 1;
            if waiting.postpone(now) {
                told.push(now.duration_since(begin));
            }
            now = waiting.due;
        }
        assert!((20..100).contains(&tries), "{tries}");
        assert_eq!(told.len(), 2, "{told:?}");
    }

    #[test]
    fn only_what_is_due_is_taken() {
        let leftovers = CleanupQueue::default();
        leftovers.enqueue(Cleanup::Cgroup("a".to_owned()));
        let mut later = QueuedCleanup::new(Cleanup::Cgroup("b".to_owned()));
        later.postpone(Instant::now());
        let due = later.due;
        leftovers.requeue(later);
        let next = |now| leftovers.pop_due(now).map(|waiting| waiting.cleanup.description());
        let now = Instant::now();
        assert_eq!((leftovers.due_count(now), leftovers.due_count(due)), (1, 2));
        assert_eq!(next(now).as_deref(), Some("cgroup of a"));
        assert_eq!(next(now), None);
        assert_eq!(next(due).as_deref(), Some("cgroup of b"));
        assert!(leftovers.queue().is_empty());
    }
}
