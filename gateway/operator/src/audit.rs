//! The audit log: one line of JSON for each operation that changes something, with who requested it and how it
//! ended, and one for each exit of a task.
//!
//! The lines are written by a thread of their own, so that a slow disk or journal delays no operation. At most
//! 4096 lines wait for it; further ones are lost, and counted.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::thread;
use std::time::Duration;

use switchyard_core::operation::{EndedOperation, OperationKind};
use switchyard_core::reload::Reloadable;
use switchyard_operator_api::{EventView, ExitView};
use switchyard_telemetry::{LossReport, flush_queue, journal_socket};

use crate::config::{AuditConfig, AuditTarget};

use crate::owners::Owners;

mod line;
mod sink;

pub use line::AuditLine;
pub(crate) use line::log_name;
use sink::Sink;

/// Maximum number of lines that wait to be written.
const QUEUE: usize = 4096;

/// Time for the last lines to be written when the daemon ends.
const FLUSH: Duration = Duration::from_secs(2);

/// The audit log. Clones share it.
#[derive(Debug, Clone)]
pub struct AuditLog(Arc<Recorder>);

#[derive(Debug)]
struct Recorder {
    /// `None` if nothing is audited.
    lines: Option<SyncSender<Message>>,
    exec_sync: Reloadable<bool>,
    owners: Owners,
    counts: Arc<Counts>,
}

/// The lines since the daemon started.
#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    lost: AtomicU64,
    /// The loss of lines, for the log: it ends when all that waited are written.
    loss: LossReport,
}

enum Message {
    Line(Box<AuditLine>),
    /// Everything before this message is written.
    Flush(mpsc::Sender<()>),
}

/// Numbers of lines since the daemon started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditCounts {
    /// The lines that were written.
    pub written: u64,
    /// The lines that could not be written.
    pub lost: u64,
}

impl AuditLog {
    /// Starts the audit log that a configuration describes. A file that cannot be opened is no error: the lines
    /// are lost and counted until it can.
    #[must_use]
    pub fn start(config: &AuditConfig, owners: Owners) -> Self {
        Self::start_at(config, owners, &journal_socket())
    }

    fn start_at(config: &AuditConfig, owners: Owners, journal: &Path) -> Self {
        let counts = Arc::new(Counts::default());
        let sink = match config.to {
            AuditTarget::Off => None,
            AuditTarget::Journal => Some(Sink::journal(journal)),
            AuditTarget::File => Some(Sink::file(config.file.clone())),
        };
        let lines = sink.and_then(|sink| {
            let (sender, queue) = mpsc::sync_channel(QUEUE);
            let counts = Arc::clone(&counts);
            let writer = thread::Builder::new().name("audit".into());
            match writer.spawn(move || write_all(&queue, sink, &counts)) {
                Ok(_) => Some(sender),
                Err(error) => {
                    tracing::error!(%error, "the audit log cannot be written: its thread cannot be started");
                    None
                }
            }
        });
        let exec_sync = Reloadable::from(config.exec_sync);
        Self(Arc::new(Recorder {
            lines,
            exec_sync,
            owners,
            counts,
        }))
    }

    /// Puts another configuration in force, as far as a reload can.
    pub fn reconfigure(&self, config: &AuditConfig) {
        self.0.exec_sync.set(config.exec_sync);
    }

    /// Writes the line of an operation that has ended; never waits.
    pub fn record(&self, operation: &EndedOperation<'_>) {
        let wanted = operation.kind != OperationKind::ExecSync || *self.0.exec_sync.get();
        if self.0.lines.is_some() && wanted {
            self.send(AuditLine::of(operation, &self.0.owners));
        }
    }

    /// Writes the line of an exit, which is that of the event; never waits.
    pub(crate) fn record_exit(&self, event: &EventView, exit: &ExitView) {
        if self.0.lines.is_some() {
            self.send(AuditLine::of_exit(event, exit));
        }
    }

    /// The lines since the daemon started; `None` if nothing is audited.
    #[must_use]
    pub fn counts(&self) -> Option<AuditCounts> {
        let Counts {
            written,
            lost,
            loss: _,
        } = &*self.0.counts;
        self.0.lines.as_ref().map(|_| AuditCounts {
            written: written.load(Ordering::Relaxed),
            lost: lost.load(Ordering::Relaxed),
        })
    }

    /// Waits until the lines so far are written, for a bounded time. Blocks.
    pub fn flush(&self) {
        let Some(lines) = &self.0.lines else { return };
        if !flush_queue(lines, Message::Flush, FLUSH) {
            tracing::warn!(
                "the last lines of the audit log may be lost: they are not written in time"
            );
        }
    }

    fn send(&self, line: AuditLine) {
        let Some(lines) = &self.0.lines else { return };
        if lines.try_send(Message::Line(Box::new(line))).is_err() {
            self.0.counts.lost.fetch_add(1, Ordering::Relaxed);
            if self.0.counts.loss.begins() {
                tracing::error!(
                    "lines of the audit log are lost: they are not written as fast as they are made"
                );
            }
        }
    }
}

/// Writes the lines of a queue until all its senders are gone.
fn write_all(queue: &Receiver<Message>, mut sink: Sink, counts: &Counts) {
    let mut is_failing = false;
    loop {
        let next = match queue.try_recv() {
            Err(TryRecvError::Empty) => {
                if !is_failing && counts.loss.ends() {
                    let lost = counts.lost.load(Ordering::Relaxed);
                    tracing::info!(lost, "the audit log is written again");
                }
                queue.recv().ok()
            }
            next => next.ok(),
        };
        match next {
            Some(Message::Line(line)) => {
                let written = sink.write(&line);
                is_failing = written.is_err();
                note_result(written, &sink, counts);
            }
            // Nobody may wait for it any more.
            Some(Message::Flush(done)) => drop(done.send(())),
            None => return,
        }
    }
}

/// Counts a line, and logs the beginning of a loss.
fn note_result(written: io::Result<()>, sink: &Sink, counts: &Counts) {
    match written {
        Ok(()) => {
            counts.written.fetch_add(1, Ordering::Relaxed);
        }
        Err(error) => {
            counts.lost.fetch_add(1, Ordering::Relaxed);
            if counts.loss.begins() {
                tracing::error!(%error, sink = sink.name(), "the audit log cannot be written: its lines are lost until it can");
            }
        }
    }
}

#[cfg(test)]
mod tests;
