//! The way of log lines out of the process: a bounded queue, and the thread that writes what is in it.
//!
//! Nothing that logs a line waits for it: a journal or a disk that hangs would stop the threads that serve requests. A
//! line that finds no room is lost and counted. A process that confines itself has no such thread, and loses a line that
//! the journal does not take at once.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

use crate::flush::flush_queue;
use crate::journal::{JournalEntry, JournalSocket, is_gone};

/// The most lines that wait to be written, and their size in bytes.
const QUEUE: (usize, usize) = (4096, 8 << 20);

/// The name of the thread.
pub(crate) const THREAD: &str = "log";

/// Pause before an entry is sent again to a journal that is away.
const RETRY: Duration = Duration::from_millis(200);

/// A line that is formatted.
#[derive(Debug)]
pub(crate) enum LogLine {
    /// For standard error, with its newline.
    Text(Vec<u8>),
    /// For the journal.
    Entry(JournalEntry),
}

/// The place where lines go.
#[derive(Debug)]
pub(crate) enum Sink {
    /// Standard error.
    Stderr,
    /// The journal.
    Journal(JournalSocket),
}

/// Takes lines. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct LogOutput(Way);

#[derive(Debug, Clone)]
enum Way {
    /// Through the queue of a thread.
    Queued(Arc<LogQueue>),
    /// At once, without a wait where the journal is written.
    Direct(Arc<Mutex<Sink>>),
}

#[derive(Debug)]
struct LogQueue {
    messages: SyncSender<QueuedMessage>,
    counts: Arc<LineCounters>,
}

#[derive(Debug)]
enum QueuedMessage {
    Line(LogLine),
    /// Everything before this message is written.
    Flush(mpsc::Sender<()>),
}

#[derive(Debug, Default)]
struct LineCounters {
    written: AtomicU64,
    lost: AtomicU64,
    /// Bytes of the lines that wait.
    waiting: AtomicUsize,
}

/// Numbers of lines of the log since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogCounts {
    /// The lines that were written.
    pub written: u64,
    /// The lines that are lost: they found no room, or could not be written.
    pub lost: u64,
}

// === impl LogOutput ===

impl LogOutput {
    /// Starts the thread that writes lines there.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(sink: Sink) -> io::Result<Self> {
        Self::start_with(sink, QUEUE.0)
    }

    fn start_with(sink: Sink, lines: usize) -> io::Result<Self> {
        let (messages, queue) = mpsc::sync_channel(lines);
        let counts = Arc::new(LineCounters::default());
        let shared = Arc::clone(&counts);
        thread::Builder::new()
            .name(THREAD.into())
            .spawn(move || write_all(&queue, sink, &shared))?;
        let queue = LogQueue { messages, counts };
        Ok(Self(Way::Queued(Arc::new(queue))))
    }

    /// Writes lines there at once.
    pub(crate) fn direct(sink: Sink) -> Self {
        Self(Way::Direct(Arc::new(Mutex::new(sink))))
    }

    /// Takes a line. Of a queue it never waits.
    pub(crate) fn take(&self, line: LogLine) {
        match &self.0 {
            Way::Queued(queue) => queue.take(line),
            Way::Direct(sink) => {
                // There is nowhere to report a failure.
                let _ = sink.lock().write(&line);
            }
        }
    }

    /// The lines since the process started.
    pub(crate) fn counts(&self) -> LogCounts {
        match &self.0 {
            Way::Queued(queue) => LogCounts {
                written: queue.counts.written.load(Ordering::Relaxed),
                lost: queue.counts.lost.load(Ordering::Relaxed),
            },
            Way::Direct(_) => LogCounts::default(),
        }
    }

    /// Waits until the lines so far are written, at most for this time. Blocks. The thread that writes them does not
    /// wait for itself.
    pub(crate) fn flush(&self, limit: Duration) {
        match &self.0 {
            Way::Queued(queue) if thread::current().name() != Some(THREAD) => {
                // What is not written in time is lost, and cannot be reported.
                flush_queue(&queue.messages, QueuedMessage::Flush, limit);
            }
            Way::Queued(_) | Way::Direct(_) => {}
        }
    }
}

/// The writer of one line, which is given as a whole.
impl Write for LogOutput {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.take(LogLine::Text(line.to_vec()));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl LogQueue ===

impl LogQueue {
    fn take(&self, line: LogLine) {
        let length = line.len();
        let before = self.counts.waiting.fetch_add(length, Ordering::Relaxed);
        let has_room = before.saturating_add(length) <= QUEUE.1;
        if has_room && self.messages.try_send(QueuedMessage::Line(line)).is_ok() {
            return;
        }
        self.counts.waiting.fetch_sub(length, Ordering::Relaxed);
        self.counts.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// Writes the lines of a queue until all its senders are gone.
fn write_all(queue: &Receiver<QueuedMessage>, mut sink: Sink, counts: &LineCounters) {
    let mut reported = 0;
    while let Ok(message) = queue.recv() {
        let line = match message {
            QueuedMessage::Line(line) => line,
            QueuedMessage::Flush(done) => {
                // Nobody may wait for it any more.
                let _ = done.send(());
                continue;
            }
        };
        let written = sink.write_patiently(&line);
        let waiting = counts.waiting.fetch_sub(line.len(), Ordering::Relaxed) - line.len();
        if written.is_err() {
            counts.lost.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        counts.written.fetch_add(1, Ordering::Relaxed);
        // Once for each time that lines were lost, when it is over: this line needs room too.
        let lost = counts.lost.load(Ordering::Relaxed);
        if waiting == 0 && lost > reported {
            reported = lost;
            tracing::warn!(
                lost,
                "lines of the log were lost: they could not be written as fast as they were made"
            );
        }
    }
}

// === impl Sink ===

impl Sink {
    fn write(&mut self, line: &LogLine) -> io::Result<()> {
        match (self, line) {
            (Self::Journal(journal), LogLine::Entry(entry)) => journal.send(entry),
            (Self::Stderr, LogLine::Text(text)) => io::stderr().lock().write_all(text),
            // A sink and the form of its lines are chosen together.
            (Self::Journal(_), LogLine::Text(_)) | (Self::Stderr, LogLine::Entry(_)) => {
                Err(io::ErrorKind::InvalidInput.into())
            }
        }
    }

    /// Writes a line, again and again while the journal is away or does not read: the queue has the lines meanwhile, and
    /// loses the latest when it is full.
    fn write_patiently(&mut self, line: &LogLine) -> io::Result<()> {
        loop {
            let Err(error) = self.write(line) else {
                return Ok(());
            };
            match self.pause_after(&error) {
                Some(pause) => thread::sleep(pause),
                None => return Err(error),
            }
        }
    }

    /// The pause after which a line that was not written is written again; `None` if it is lost. Standard error that does not
    /// block, such as a pipe that others share, may have a part of the line already, and is not waited for.
    fn pause_after(&self, error: &io::Error) -> Option<Duration> {
        match self {
            Self::Journal(_) if is_gone(error) => Some(RETRY),
            // The send itself has waited.
            Self::Journal(_) if is_late(error) => Some(Duration::ZERO),
            Self::Journal(_) | Self::Stderr => None,
        }
    }
}

/// Returns whether the journal did not read in time.
fn is_late(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

// === impl LogLine ===

impl LogLine {
    fn len(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Entry(entry) => entry.as_bytes().len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use crate::journal::{Priority, SendWait};

    fn entry(number: usize) -> LogLine {
        let message = format!("line {number}");
        LogLine::Entry(JournalEntry::new(Priority::Info, "switchyard", &message))
    }

    fn receive(journal: &UnixDatagram) -> String {
        let mut bytes = [0; 4096];
        let length = journal.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    #[test]
    fn lines_wait_for_a_journal_that_is_away_and_those_without_room_are_lost_and_counted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let wait = SendWait::AtMost(Duration::from_secs(10));
        let socket = JournalSocket::new(path.clone(), wait);
        let output = LogOutput::start_with(Sink::Journal(socket), 4).unwrap();
        for number in 0..100 {
            output.take(entry(number));
        }
        // Nobody reads: neither a line nor a flush waits for longer than it may.
        output.flush(Duration::from_millis(50));
        let lost = output.counts().lost;
        assert!((95..100).contains(&lost), "{lost}");
        let journal = UnixDatagram::bind(&path).unwrap();
        assert!(receive(&journal).ends_with("MESSAGE=line 0\n"));
        output.flush(Duration::from_secs(10));
        let counts = output.counts();
        assert_eq!(
            counts,
            LogCounts {
                written: 100 - lost,
                lost
            }
        );
    }

    #[test]
    fn only_the_journal_is_waited_for() {
        let wait = SendWait::AtMost(Duration::from_secs(10));
        let journal = Sink::Journal(JournalSocket::new("/run/none".into(), wait));
        let pause = |sink: &Sink, kind: io::ErrorKind| sink.pause_after(&kind.into());
        assert_eq!(pause(&journal, io::ErrorKind::NotFound), Some(RETRY));
        let late = io::ErrorKind::WouldBlock;
        assert_eq!(pause(&journal, late), Some(Duration::ZERO));
        assert_eq!(pause(&journal, io::ErrorKind::PermissionDenied), None);
        assert_eq!(pause(&Sink::Stderr, late), None);
    }

    #[test]
    fn lines_without_a_thread_are_lost_if_the_journal_does_not_take_them_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let socket = JournalSocket::new(path.clone(), SendWait::Never);
        let output = LogOutput::direct(Sink::Journal(socket));
        output.take(entry(0));
        let journal = UnixDatagram::bind(&path).unwrap();
        output.take(entry(1));
        assert!(receive(&journal).ends_with("MESSAGE=line 1\n"));
    }
}
