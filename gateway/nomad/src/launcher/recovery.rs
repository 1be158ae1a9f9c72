//! Decides whether a launcher outlives the end of its session: it does while its agent may be recovering tasks.
//!
//! An agent recovers each task once after its plugin has ended, and starts a task again whose recovery has failed. So a
//! plugin that ended in the middle of that would cost it all tasks which it has not recovered yet.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::launch::Role;

/// Time after a `RecoverTask` or its answer, or after an agent has begun with this launcher, within which the agent may still
/// send the next one. Agents send them one after the other, or one from each task at once.
const RECOVERY_WINDOW: Duration = Duration::from_secs(10);

/// Follows the calls of the agent. Clones share state.
#[derive(Debug, Clone)]
pub(super) struct RecoveryWatch {
    role: Role,
    progress: Arc<Mutex<RecoveryProgress>>,
}

/// The calls of the agent as far as they show whether it recovers tasks.
#[derive(Debug, Clone, Copy, Default)]
struct RecoveryProgress {
    /// The time at which the agent has begun with this launcher, or the last session was opened.
    begun: Option<Instant>,
    /// True if a call about a task was passed on since the agent has begun.
    has_called: bool,
    /// Number of unanswered `RecoverTask` calls, and of repeated `StartTask` calls that keep output open.
    unanswered: usize,
    /// The time at which the last of these came, or was answered or given up.
    latest: Option<Instant>,
}

/// A call without an answer that the launcher outlives its daemons for, until it is dropped.
#[derive(Debug)]
pub(super) struct RecoveryGuard {
    watch: RecoveryWatch,
}

// === impl RecoveryWatch ===

impl RecoveryWatch {
    /// Nothing was called yet.
    pub(super) fn new(role: Role) -> Self {
        Self {
            role,
            progress: Arc::default(),
        }
    }

    /// An agent begins with this launcher, which it has started or found: it may recover its tasks next.
    pub(super) fn begin(&self) {
        let mut progress = self.lock();
        progress.has_called = false;
        progress.begun = Some(Instant::now());
    }

    /// A session is open: what the agent waits to send comes next.
    pub(super) fn opened(&self) {
        self.lock().begun = Some(Instant::now());
    }

    /// A call about a task is passed on.
    pub(super) fn note_call(&self) {
        self.lock().has_called = true;
    }

    /// A `RecoverTask` has come, or a start keeps output open, and is unanswered until the guard is dropped.
    pub(super) fn recovering(&self) -> RecoveryGuard {
        let mut progress = self.lock();
        progress.unanswered += 1;
        progress.latest = Some(Instant::now());
        RecoveryGuard {
            watch: self.clone(),
        }
    }

    /// Returns whether the launcher outlives a session that ends now. That of a device plugin never does: agents recover
    /// no devices.
    pub(super) fn outlives_session(&self) -> bool {
        self.role == Role::Driver && self.lock().may_continue(Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, RecoveryProgress> {
        self.progress.lock()
    }
}

// === impl RecoveryProgress ===

impl RecoveryProgress {
    /// Returns whether a `RecoverTask` may be under way at this time, or come next.
    fn may_continue(&self, now: Instant) -> bool {
        let is_recent = |time: Instant| now.saturating_duration_since(time) < RECOVERY_WINDOW;
        let is_next = !self.has_called && self.begun.is_some_and(is_recent);
        is_next || self.unanswered > 0 || self.latest.is_some_and(is_recent)
    }
}

// === impl RecoveryGuard ===

impl Drop for RecoveryGuard {
    fn drop(&mut self) {
        let mut progress = self.watch.lock();
        progress.unanswered -= 1;
        progress.latest = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shortest time that counts here.
    const TICK: Duration = Duration::from_millis(1);

    #[test]
    fn recovery_may_be_under_way_until_ten_seconds_after_its_last_call() {
        let now = Instant::now();
        let begun = RecoveryProgress {
            begun: Some(now),
            ..RecoveryProgress::default()
        };
        assert!(
            begun.may_continue(now + RECOVERY_WINDOW - TICK),
            "it is next"
        );
        assert!(
            !begun.may_continue(now + RECOVERY_WINDOW),
            "this agent has no tasks"
        );
        let called = RecoveryProgress {
            has_called: true,
            ..begun
        };
        assert!(!called.may_continue(now), "this agent recovers nothing");
        let unanswered = RecoveryProgress {
            unanswered: 1,
            latest: Some(now),
            ..called
        };
        assert!(unanswered.may_continue(now + 100 * RECOVERY_WINDOW));
        let answered = RecoveryProgress {
            unanswered: 0,
            ..unanswered
        };
        assert!(answered.may_continue(now + RECOVERY_WINDOW - TICK));
        assert!(!answered.may_continue(now + RECOVERY_WINDOW));
    }

    #[tokio::test(start_paused = true)]
    async fn recovery_that_the_agent_gives_up_does_not_count_for_ever() {
        let watch = RecoveryWatch::new(Role::Driver);
        watch.opened();
        assert!(watch.outlives_session());
        let (first, second) = (watch.recovering(), watch.recovering());
        watch.note_call();
        drop(first);
        tokio::time::advance(2 * RECOVERY_WINDOW).await;
        assert!(watch.outlives_session(), "one is unanswered");
        drop(second);
        tokio::time::advance(RECOVERY_WINDOW - TICK).await;
        assert!(watch.outlives_session(), "the next one may follow");
        tokio::time::advance(TICK).await;
        assert!(!watch.outlives_session());
        // The next process of an agent that was killed.
        watch.begin();
        assert!(watch.outlives_session());
    }

    #[test]
    fn launcher_of_a_device_plugin_ends_with_its_session() {
        let watch = RecoveryWatch::new(Role::Device);
        watch.opened();
        assert!(!watch.outlives_session());
    }
}
