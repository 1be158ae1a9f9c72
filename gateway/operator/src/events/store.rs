//! The history on disk: a thread of its own writes the records, so that a slow, full or hanging disk delays nothing.
//!
//! At most 1 MiB of records wait for it; further ones are lost, and counted. A reader has a thread and a limit in time.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{Error, Result, threads};
use switchyard_operator_api::{EventView, HistoryPage};
use switchyard_telemetry::{LossReport, flush_queue};

use super::filter::EventFilter;
use super::place::Place;
use super::record;
use super::segments::{self, SegmentWriter};

/// The directory of the segments, in the state directory.
const DIRECTORY: &str = "history";

/// Maximum number of records that wait to be written, and of their bytes.
const QUEUE: (usize, usize) = (4096, 1 << 20);

/// Interval at which old segments are looked for.
const PRUNE: Duration = Duration::from_secs(3600);

/// Number of bytes at the end of the history whose events a start reads.
const TAIL: u64 = 256 << 10;

/// Time for the disk to return these.
const TAIL_LIMIT: Duration = Duration::from_millis(500);

/// Time for the disk to return a page.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// Time for the last records to be written when the daemon ends.
const FLUSH: Duration = Duration::from_secs(1);

/// The history on disk.
#[derive(Debug)]
pub(super) struct HistoryStore {
    messages: SyncSender<StoreMessage>,
    dir: PathBuf,
    counts: Arc<RecordCounts>,
    readers: BlockingPool,
}

/// The records since the daemon started.
#[derive(Debug, Default)]
struct RecordCounts {
    written: AtomicU64,
    lost: AtomicU64,
    /// Bytes of the records that wait.
    waiting: AtomicUsize,
    /// The loss of events, for the log: it ends when all that waited are written.
    loss: LossReport,
}

#[derive(Debug)]
enum StoreMessage {
    Record(String),
    /// Everything before this message is written.
    Flush(Sender<()>),
}

/// Numbers of records since the daemon started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HistoryCounts {
    /// The records that were written.
    pub written: u64,
    /// The events that could not be recorded.
    pub lost: u64,
}

impl HistoryStore {
    /// Starts to record in a state directory, and returns the last events on record there; none if the disk does not
    /// answer at once. A directory that cannot be written is no error: records are lost and counted until it can.
    /// `None` if the thread cannot be started. Blocks for half a second at most.
    pub(super) fn start(state: &Path) -> Option<(Self, Vec<EventView>)> {
        let dir = state.join(DIRECTORY);
        let counts = Arc::new(RecordCounts::default());
        let (messages, queue) = mpsc::sync_channel(QUEUE.0);
        let (former, last) = mpsc::channel();
        let writer = {
            let dir = dir.clone();
            let counts = Arc::clone(&counts);
            move || {
                // Nobody may wait for it any more.
                drop(former.send(last_events(&dir)));
                write_all(&queue, dir, &counts);
            }
        };
        let started = thread::Builder::new().name("history".into()).spawn(writer);
        if let Err(error) = started {
            tracing::error!(%error, "no events are recorded: the thread that writes them cannot be started");
            return None;
        }
        let events = last.recv_timeout(TAIL_LIMIT).unwrap_or_else(|_| {
            tracing::warn!(dir = %dir.display(), "the history does not answer: the list of events begins empty");
            Vec::new()
        });
        let store = Self {
            messages,
            dir,
            counts,
            readers: BlockingPool::new(threads::FILES_POOL, READ_LIMIT),
        };
        Some((store, events))
    }

    /// Records an event; never waits.
    pub(super) fn record(&self, event: &EventView) {
        let line = record::encode(event);
        let length = line.len();
        let before = self.counts.waiting.fetch_add(length, Ordering::Relaxed);
        let has_room = before.saturating_add(length) <= QUEUE.1;
        if has_room && self.messages.try_send(StoreMessage::Record(line)).is_ok() {
            return;
        }
        self.counts.waiting.fetch_sub(length, Ordering::Relaxed);
        self.lose(1);
        if self.counts.loss.begins() {
            tracing::error!(
                "events are not recorded: they are not written as fast as they happen; does the disk hang?"
            );
        }
    }

    /// Counts events that cannot be recorded.
    pub(super) fn lose(&self, events: u64) {
        self.counts.lost.fetch_add(events, Ordering::Relaxed);
    }

    /// The records since the daemon started.
    pub(super) fn counts(&self) -> HistoryCounts {
        HistoryCounts {
            written: self.counts.written.load(Ordering::Relaxed),
            lost: self.counts.lost.load(Ordering::Relaxed),
        }
    }

    /// The events on record from a place on that a filter wants. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` if the disk does not answer, or cannot be read.
    pub(super) async fn page(&self, from: Place, filter: EventFilter) -> Result<HistoryPage> {
        let dir = self.dir.clone();
        let read = move || {
            segments::scan(&dir, from, &filter).map_err(|error| {
                Error::unavailable(format!("the history in {} cannot be read", dir.display()))
                    .with_source(error)
            })
        };
        let scan = self.readers.run("the history".to_owned(), read).await?;
        Ok(HistoryPage {
            events: scan.events,
            next: scan.next.map(|place| place.to_string()),
            unreadable: scan.unreadable,
            lost: self.counts().lost,
        })
    }

    /// Waits until the records so far are written, for a bounded time. Blocks.
    pub(super) fn flush(&self) {
        if !flush_queue(&self.messages, StoreMessage::Flush, FLUSH) {
            tracing::warn!(
                "the last events may not be recorded: the disk does not write them in time"
            );
        }
    }
}

/// The last events on record.
fn last_events(dir: &Path) -> Vec<EventView> {
    segments::tail(dir, TAIL).unwrap_or_else(|error| {
        tracing::warn!(dir = %dir.display(), %error, "the history cannot be read: the list of events begins empty");
        Vec::new()
    })
}

/// Writes the records of a queue until all its senders are gone.
fn write_all(queue: &Receiver<StoreMessage>, dir: PathBuf, counts: &RecordCounts) {
    let mut writer = SegmentWriter::new(dir);
    let mut pruned = Instant::now();
    loop {
        match queue.recv_timeout(PRUNE.saturating_sub(pruned.elapsed())) {
            Ok(StoreMessage::Record(line)) => {
                let written = writer.write(&line);
                counts.waiting.fetch_sub(line.len(), Ordering::Relaxed);
                note_result(written, counts);
            }
            // Nobody may wait for it any more.
            Ok(StoreMessage::Flush(done)) => drop(done.send(())),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if pruned.elapsed() >= PRUNE {
            pruned = Instant::now();
            if let Err(error) = writer.prune(SystemTime::now()) {
                tracing::warn!(%error, "old events cannot be removed: it is tried again in an hour");
            }
        }
    }
}

/// Counts a record, and logs the beginning and the end of a loss.
fn note_result(written: io::Result<()>, counts: &RecordCounts) {
    match written {
        Ok(()) => {
            counts.written.fetch_add(1, Ordering::Relaxed);
            let waiting = counts.waiting.load(Ordering::Relaxed);
            if waiting == 0 && counts.loss.ends() {
                let lost = counts.lost.load(Ordering::Relaxed);
                tracing::info!(lost, "events are recorded again");
            }
        }
        Err(error) => {
            counts.lost.fetch_add(1, Ordering::Relaxed);
            if counts.loss.begins() {
                tracing::error!(%error, "events are not recorded until the disk can be written");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store whose disk hangs: nothing takes its messages, which are returned.
    fn hanging() -> (HistoryStore, Receiver<StoreMessage>) {
        let (messages, queue) = mpsc::sync_channel(QUEUE.0);
        let store = HistoryStore {
            messages,
            dir: PathBuf::new(),
            counts: Arc::default(),
            readers: BlockingPool::new(threads::FILES_POOL, READ_LIMIT),
        };
        (store, queue)
    }

    #[test]
    fn disk_that_hangs_holds_up_nothing_and_takes_bounded_memory() {
        let (store, queue) = hanging();
        let event = EventView {
            detail: "x".repeat(1000),
            ..EventView::default()
        };
        for _ in 0..10_000 {
            store.record(&event);
        }
        let waiting = store.counts.waiting.load(Ordering::Relaxed);
        assert!((QUEUE.1 / 2..=QUEUE.1).contains(&waiting), "{waiting}");
        let records = u64::try_from(queue.try_iter().count()).unwrap();
        let lost = store.counts().lost;
        assert_eq!(records + lost, 10_000);
        // Nobody answers this, and it returns.
        store.flush();
    }

    #[test]
    fn short_records_are_bounded_in_number() {
        let (store, queue) = hanging();
        for _ in 0..QUEUE.0 + 5 {
            store.record(&EventView::default());
        }
        assert_eq!(store.counts().lost, 5);
        assert_eq!(queue.try_iter().count(), QUEUE.0);
    }
}
