//! The queue of spans, and the task that sends them in batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use switchyard_core::trace::{EndedSpan, SpanSink};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::collector::Collector;
use super::to_proto::SpanSource;
use crate::loss::LossReport;

/// Maximum number of spans that wait to be sent.
pub(super) const QUEUE: usize = 4096;

/// The largest number of spans in one request.
pub(super) const BATCH: usize = 512;

/// Time for which a span waits for others, so that they are sent together.
const GATHER: Duration = Duration::from_secs(2);

/// The queue of spans. A full queue loses further ones.
#[derive(Debug)]
pub(super) struct SpanQueue {
    spans: Sender<EndedSpan>,
    closed: CancellationToken,
    counts: Arc<SpanCounters>,
}

/// The other end of the queue.
#[derive(Debug)]
pub(super) struct WaitingSpans {
    spans: Receiver<EndedSpan>,
    closed: CancellationToken,
}

/// The spans since the daemon started.
#[derive(Debug, Default)]
pub(super) struct SpanCounters {
    sent: AtomicU64,
    lost: AtomicU64,
    /// The loss of spans, for the log: it ends when all that waited are sent.
    loss: LossReport,
}

/// Numbers of spans since the daemon started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceCounts {
    /// The spans that the collector has accepted.
    pub sent: u64,
    /// The spans that are lost: the queue was full, or the collector did not accept them.
    pub lost: u64,
}

/// Sends the spans of a queue until it is closed and empty. A batch that is not accepted is lost: it is not sent again,
/// because the next ones wait behind it.
pub(super) async fn run(
    mut waiting: WaitingSpans,
    source: SpanSource,
    collector: Collector,
    counts: Arc<SpanCounters>,
) {
    while let Some(batch) = waiting.next_batch().await {
        let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
        match collector.export(source.request(batch)).await {
            Ok(rejected) => {
                let rejected = rejected.min(count);
                counts.add(count - rejected, rejected);
                if waiting.is_empty() && counts.loss.ends() {
                    tracing::info!(lost = counts.get().lost, "traces are exported again");
                }
            }
            Err(error) => {
                counts.add(0, count);
                if counts.loss.begins() {
                    tracing::warn!(%error, "traces cannot be exported: spans are lost until they can");
                }
            }
        }
    }
}

// === impl SpanQueue ===

impl SpanQueue {
    pub(super) fn new(counts: Arc<SpanCounters>) -> (Self, WaitingSpans) {
        let (sender, spans) = mpsc::channel(QUEUE);
        let closed = CancellationToken::new();
        let queue = Self {
            spans: sender,
            closed: closed.clone(),
            counts,
        };
        (queue, WaitingSpans { spans, closed })
    }

    /// Number of waiting spans.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.spans.max_capacity() - self.spans.capacity()
    }

    /// Takes no further spans.
    pub(super) fn close(&self) {
        self.closed.cancel();
    }
}

impl SpanSink for SpanQueue {
    fn ended(&self, span: EndedSpan) {
        if self.spans.try_send(span).is_ok() {
            return;
        }
        self.counts.add(0, 1);
        if !self.closed.is_cancelled() && self.counts.loss.begins() {
            tracing::warn!(
                "spans are lost: the collector does not accept them as fast as they are made"
            );
        }
    }
}

// === impl WaitingSpans ===

impl WaitingSpans {
    /// Returns whether no span waits.
    fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The next spans that are sent together; `None` once the queue is closed and empty.
    async fn next_batch(&mut self) -> Option<Vec<EndedSpan>> {
        let mut batch = Vec::new();
        let closed = self.closed.clone();
        tokio::select! {
            biased;
            count = self.spans.recv_many(&mut batch, BATCH) => if count == 0 { return None },
            () = closed.cancelled() => {
                self.spans.close();
                // What is left is there already.
                return (self.spans.recv_many(&mut batch, BATCH).await > 0).then_some(batch);
            }
        }
        let deadline = Instant::now() + GATHER;
        while batch.len() < BATCH {
            let room = BATCH - batch.len();
            tokio::select! {
                biased;
                count = self.spans.recv_many(&mut batch, room) => if count == 0 { break },
                () = closed.cancelled() => break,
                () = tokio::time::sleep_until(deadline) => break,
            }
        }
        Some(batch)
    }
}

// === impl SpanCounters ===

impl SpanCounters {
    pub(super) fn get(&self) -> TraceCounts {
        let Self {
            sent,
            lost,
            loss: _,
        } = self;
        TraceCounts {
            sent: sent.load(Ordering::Relaxed),
            lost: lost.load(Ordering::Relaxed),
        }
    }

    fn add(&self, sent: u64, lost: u64) {
        self.sent.fetch_add(sent, Ordering::Relaxed);
        self.lost.fetch_add(lost, Ordering::Relaxed);
    }
}
