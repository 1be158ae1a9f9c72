//! The budget for output that stays in the spools for attached clients: for all containers together no more
//! than a share of the state directory's file system, which is memory mostly, and which others need too.
//!
//! A followed stream has a *window*: [`BASE`], as long as it is followed, one [`UNIT`] more from its first output on, and
//! more while a client is behind. Half of the share is for [`BASE`] alone, so that clients that are behind do not keep others
//! from attaching; the units are taken of the other half, and a stream does without them when it is used up.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::statvfs::statvfs;

use crate::spool::BUSY_SLACK;

/// The part of the file system that all windows may take.
const SHARE: u64 = 8;

/// The most bytes that all windows may take, however large the file system is.
const MOST: u64 = 256 << 20;

/// Number of bytes of the most recent output that a client gets after it has fallen too far behind.
pub(crate) const RECENT: u64 = 64 << 10;

/// The smallest window, in bytes: the recent output, and as much again before the space of older output is released.
pub(crate) const BASE: u64 = 2 * RECENT;

/// The unit in which windows grow, in bytes: what a stream needs whose clients have read everything.
const UNIT: u64 = BUSY_SLACK;

/// Number of bytes by which a client may fall behind while the budget lasts.
const LARGEST: u64 = 8 << 20;

/// The unused budget of the windows of all streams.
#[derive(Debug)]
pub(crate) struct WindowBudget {
    /// Number of further streams that may be followed.
    streams: AtomicU64,
    /// The bytes by which windows may still grow.
    growth: AtomicU64,
}

/// The window of one stream. Dropping it returns its share.
#[derive(Debug)]
pub(crate) struct SpoolWindow {
    budget: Arc<WindowBudget>,
    size: u64,
}

// === impl WindowBudget ===

impl WindowBudget {
    /// The budget for a state directory; the smallest one if its file system cannot be asked.
    pub(crate) fn of(state_dir: &Path) -> Arc<Self> {
        let total = match statvfs(state_dir) {
            // A file system without a limit of its own reports 0.
            Ok(stat) if stat.blocks() == 0 => MOST,
            Ok(stat) => {
                (stat.blocks().saturating_mul(stat.fragment_size()) / SHARE).clamp(BASE, MOST)
            }
            Err(error) => {
                tracing::warn!(dir = %state_dir.display(), %error, "cannot read the size of the state directory's file system: few clients can attach");
                BASE
            }
        };
        Self::with(total)
    }

    fn with(total: u64) -> Arc<Self> {
        let streams = AtomicU64::new((total / 2 / BASE).max(1));
        Arc::new(Self {
            streams,
            growth: AtomicU64::new(total / 2),
        })
    }

    /// The smallest window; `None` if as many streams are followed as the budget permits.
    pub(crate) fn window(self: &Arc<Self>) -> Option<SpoolWindow> {
        take(&self.streams, 1).then(|| SpoolWindow {
            budget: Arc::clone(self),
            size: BASE,
        })
    }
}

/// Takes this much of what is left, or nothing.
fn take(left: &AtomicU64, wanted: u64) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
        left.checked_sub(wanted)
    })
    .is_ok()
}

// === impl SpoolWindow ===

impl SpoolWindow {
    /// Lets the window grow for a client that is `behind` bytes behind, as far as the budget permits, and returns how many
    /// logged bytes are kept at least, and how many more than those at most. Both together are at most the window's size,
    /// and at most what such a client needs.
    pub(crate) fn fit(&mut self, behind: u64) -> (u64, u64) {
        let needed = needed(behind);
        while self.size < needed && take(&self.budget.growth, UNIT) {
            self.size += UNIT;
        }
        let used = self.size.min(needed);
        // Of a window that is not larger than it has to be, the slack is a smaller part.
        let slack = used.saturating_sub(BUSY_SLACK).clamp(BASE / 2, BUSY_SLACK);
        (used - slack, slack)
    }

    /// Returns what a client that is `behind` bytes behind does not need; after the space was released. What a client needs
    /// that has read everything is returned with the window.
    pub(crate) fn shrink(&mut self, behind: u64) {
        let needed = needed(behind);
        if self.size > needed {
            self.budget
                .growth
                .fetch_add(self.size - needed, Ordering::Relaxed);
            self.size = needed;
        }
    }
}

impl Drop for SpoolWindow {
    fn drop(&mut self) {
        self.budget
            .growth
            .fetch_add(self.size - BASE, Ordering::Relaxed);
        self.budget.streams.fetch_add(1, Ordering::Relaxed);
    }
}

/// The size of the window for a client that is `behind` bytes behind. One that is not needs some output too: if the
/// logkeeper ends now, the next one begins with the last [`BUSY_SLACK`] bytes.
fn needed(behind: u64) -> u64 {
    BASE + (behind.saturating_add(BUSY_SLACK))
        .div_ceil(UNIT)
        .saturating_mul(UNIT)
        .min(LARGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_keeps_what_a_client_has_not_read_and_returns_the_rest() {
        let budget = WindowBudget::with(1 << 30);
        let mut window = budget.window().unwrap();
        for behind in [0, 1, 200_000, 300_000, 5 << 20, 1 << 20, 0] {
            let (keep, slack) = window.fit(behind);
            assert!(
                keep >= behind + BASE / 2 && keep >= BUSY_SLACK,
                "{behind}: {keep}"
            );
            window.shrink(behind);
            assert!(
                keep + slack <= window.size,
                "{behind}: {keep} and {slack} of {}",
                window.size
            );
        }
        assert_eq!(
            window.size,
            BASE + BUSY_SLACK,
            "its clients have read everything"
        );
        let (keep, _) = window.fit(1 << 40);
        assert!((7 << 20..=8 << 20).contains(&keep), "{keep}");
        drop(window);
        assert_eq!(budget.growth.load(Ordering::Relaxed), 1 << 29);
    }

    #[test]
    fn windows_shrink_and_end_with_the_budget() {
        let budget = WindowBudget {
            streams: AtomicU64::new(3),
            growth: AtomicU64::new(UNIT),
        };
        let budget = Arc::new(budget);
        let mut windows: Vec<_> = std::iter::from_fn(|| budget.window()).collect();
        for window in &mut windows {
            window.fit(LARGEST);
        }
        let sizes: Vec<_> = windows.iter().map(|window| window.size).collect();
        assert_eq!(sizes, [BASE + UNIT, BASE, BASE]);
        assert!(budget.window().is_none(), "no more streams can be followed");
        assert_eq!(windows[1].fit(LARGEST), (RECENT, RECENT));
        windows.pop();
        assert!(budget.window().is_some());
    }

    #[test]
    fn budget_is_a_share_of_the_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let of = |path: &Path| {
            let WindowBudget { streams, growth } = &*WindowBudget::of(path);
            (
                streams.load(Ordering::Relaxed),
                growth.load(Ordering::Relaxed),
            )
        };
        let (streams, growth) = of(dir.path());
        assert!(
            (1..=MOST / 2 / BASE).contains(&streams) && growth <= MOST / 2,
            "{streams} {growth}"
        );
        assert_eq!(of(&dir.path().join("none")), (1, BASE / 2));
    }
}
