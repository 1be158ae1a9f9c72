//! Ranges of a large blob that are downloaded ahead of its reader, each over a connection of its own.
//!
//! ```text
//!  reader ──► range 5 ─ range 6 ─ range 7 ─ range 8        the first may be half read; each is a request, and a task
//! ```
//!
//! One connection transfers at most its window in each round trip. Several fill a link with a long round trip, at the cost of
//! the memory for what arrives before it can be read: at most [`RangeConfig::bytes`] for each range, and [`MAX_RANGES`] for all
//! blobs of a client together.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::length;
use crate::Result;

/// Maximum number of ranges of all blobs that are downloaded ahead.
pub(crate) const MAX_RANGES: usize = 12;
/// A rest of a blob that is shorter than this many ranges is downloaded over one connection.
const WORTH_RANGES: u64 = 4;

/// Settings for downloads of blobs in ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeConfig {
    /// Maximum number of concurrent requests for one blob; 1 switches ranges off.
    pub at_once: usize,
    /// Bytes of a range.
    pub bytes: u64,
    /// The time until a response begins from which on ranges are used. Below it, one connection fills the link.
    pub latency: Duration,
}

/// The ranges ahead of a reader: adjacent, in order.
#[derive(Debug, Default)]
pub(super) struct RangesAhead {
    queue: VecDeque<RangeAhead>,
}

/// A range that is being downloaded, or that was.
#[derive(Debug)]
pub(super) struct RangeAhead {
    /// Part that the reader has not got yet.
    rest: Range<u64>,
    /// True if the reader has got some of it.
    has_begun: bool,
    /// The pieces that have arrived: not more than the range has, so that they need no other bound.
    pieces: mpsc::UnboundedReceiver<Result<Bytes>>,
    _download: AbortOnDropHandle<()>,
    _permit: OwnedSemaphorePermit,
}

// === impl RangeConfig ===

impl Default for RangeConfig {
    fn default() -> Self {
        Self {
            at_once: 4,
            bytes: 4 << 20,
            latency: Duration::from_millis(5),
        }
    }
}

impl RangeConfig {
    /// The first range of the rest of a blob; `None` if the rest is better downloaded in one response. `latency` is the
    /// shortest time that a response of this registry has taken to begin, if one is known.
    pub(super) fn first(&self, rest: Range<u64>, latency: Option<Duration>) -> Option<Range<u64>> {
        let is_far = latency.is_none_or(|latency| latency >= self.latency);
        let worth = self.bytes.saturating_mul(WORTH_RANGES);
        let is_large = self.bytes > 0 && rest.end.saturating_sub(rest.start) >= worth;
        (self.at_once > 1 && is_far && is_large).then(|| self.cut(rest))
    }

    /// The first bytes of the rest of a blob.
    fn cut(&self, rest: Range<u64>) -> Range<u64> {
        rest.start..rest.end.min(rest.start.saturating_add(self.bytes))
    }
}

// === impl RangesAhead ===

impl RangesAhead {
    /// The offset at which the first range begins, or continues.
    pub(super) fn start(&self) -> Option<u64> {
        self.queue.front().map(|first| first.rest.start)
    }

    /// Returns whether the reader has got some of the first range.
    pub(super) fn has_begun(&self) -> bool {
        self.queue.front().is_some_and(|first| first.has_begun)
    }

    /// The offset behind the last range.
    pub(super) fn end(&self) -> Option<u64> {
        self.queue.back().map(|last| last.rest.end)
    }

    /// Aborts all downloads, and forgets what has arrived.
    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }

    /// Adds ranges from offset `from` on, until there are `most`, the blob ends, or `start` gives none.
    pub(super) fn fill(
        &mut self,
        config: &RangeConfig,
        from: u64,
        (size, most): (u64, usize),
        start: impl Fn(Range<u64>) -> Option<RangeAhead>,
    ) {
        let mut from = self.end().unwrap_or(from);
        while self.queue.len() < most && from < size {
            let Some(range) = start(config.cut(from..size)) else {
                return;
            };
            from = range.rest.end;
            self.queue.push_back(range);
        }
    }

    /// The next piece of the first range; `None` if its download has ended too early. The range is removed at its end, and
    /// when it fails. Cancel-safe.
    pub(super) async fn next_piece(&mut self) -> Option<Result<Bytes>> {
        let first = self.queue.front_mut()?;
        let piece = first.pieces.recv().await;
        if let Some(Ok(piece)) = &piece {
            first.rest.start = first.rest.start.saturating_add(length(piece));
            first.has_begun = true;
        }
        if first.rest.is_empty() || !matches!(piece, Some(Ok(_))) {
            self.queue.pop_front();
        }
        piece
    }
}

// === impl RangeAhead ===

impl RangeAhead {
    /// A range whose download is a task that sends its pieces.
    pub(super) fn new(
        range: Range<u64>,
        pieces: mpsc::UnboundedReceiver<Result<Bytes>>,
        download: AbortOnDropHandle<()>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        Self {
            rest: range,
            has_begun: false,
            pieces,
            _download: download,
            _permit: permit,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_used_for_large_rests_of_far_registries() {
        let config = RangeConfig {
            at_once: 4,
            bytes: 10,
            latency: Duration::from_millis(5),
        };
        let far = Some(Duration::from_millis(20));
        let near = Some(Duration::from_micros(300));
        let off = RangeConfig {
            at_once: 1,
            ..config
        };
        let none = RangeConfig { bytes: 0, ..config };
        let cases = [
            (config, 0..40, far, Some(0..10)),
            (config, 0..40, None, Some(0..10)),
            (config, 0..40, Some(Duration::from_millis(5)), Some(0..10)),
            (config, 7..47, far, Some(7..17)),
            (config, 0..u64::MAX, far, Some(0..10)),
            (config, 0..39, far, None),
            (config, 10..49, far, None),
            (config, 40..40, far, None),
            (config, 0..40, near, None),
            (off, 0..1000, far, None),
            (none, 0..1000, far, None),
        ];
        for (config, rest, latency, expected) in cases {
            let context = format!("{rest:?} {latency:?}");
            assert_eq!(config.first(rest, latency), expected, "{context}");
        }
    }
}
