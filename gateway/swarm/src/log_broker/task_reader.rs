//! Reads the log of one task, in chunks of messages.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use switchyard_core::threads;
use switchyard_core::{Error, Result};
use switchyard_logkeeper::format::Stream;
use switchyard_logkeeper::reader::{
    LogLocation, LogPiece, LogQuery, LogReader, ReadError, ReadWaiter,
};
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::Semaphore;

use crate::executor::TaskLog;

/// Size in bytes at which a chunk is complete. Its last piece may exceed it by up to 320 KiB; managers accept
/// messages of 4 MiB.
const CHUNK: usize = 64 << 10;

/// Maximum number of messages in a chunk.
const CHUNK_MESSAGES: usize = 1000;

/// Maximum number of logs that are read at the same time, on threads for bulk work.
const READS: usize = 2;

static READ_PERMITS: Semaphore = Semaphore::const_new(READS);

/// Reads the log of one task.
#[derive(Debug)]
pub(super) struct TaskReader {
    reader: LabelledReader,
    /// Dropped with the future that waits for a part of the log.
    waiter: ReadWaiter,
}

/// The part of it that works on another thread.
#[derive(Debug)]
struct LabelledReader {
    reader: LogReader,
    labels: MessageLabels,
}

/// Fields that all messages of one log share.
#[derive(Debug, Clone)]
pub(super) struct MessageLabels {
    context: swarm::LogContext,
    /// The time of the last message: what has no time of its own gets it.
    last: Duration,
    /// True if standard error is selected.
    has_stderr: bool,
}

/// The messages of one read.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) messages: Vec<swarm::LogMessage>,
    /// Size of their text in bytes.
    pub(super) size: u64,
}

/// The result of opening a log.
#[derive(Debug)]
pub(super) enum OpenedLog {
    Reader(TaskReader),
    /// There is no file yet, or not any more.
    Absent,
    /// It cannot be read.
    Failed(String),
}

// === impl MessageLabels ===

impl MessageLabels {
    /// For this log on this node: a manager refuses other nodes.
    pub(super) fn new(log: &TaskLog, node: &str, query: &LogQuery) -> Self {
        let context = swarm::LogContext {
            service_id: log.service_id.clone(),
            node_id: node.to_owned(),
            task_id: log.task_id.clone(),
        };
        Self {
            context,
            last: Duration::ZERO,
            has_stderr: query.stream != Some(Stream::Stdout),
        }
    }

    /// The message for a piece of a log. As in those of docker's agents, a complete line ends with its line end, and a partial one does not.
    fn message(&mut self, piece: &LogPiece<'_>) -> swarm::LogMessage {
        self.last = piece.since_epoch().unwrap_or(self.last);
        let mut data = Vec::with_capacity(piece.text.len() + 1);
        data.extend_from_slice(piece.text);
        if piece.is_ended {
            data.push(b'\n');
        }
        let stream = match piece.stream {
            Stream::Stdout => swarm::LogStream::Stdout,
            Stream::Stderr => swarm::LogStream::Stderr,
        };
        self.message_of(stream, data)
    }

    fn message_of(&self, stream: swarm::LogStream, data: Vec<u8>) -> swarm::LogMessage {
        swarm::LogMessage {
            context: Some(self.context.clone()),
            timestamp: Some((UNIX_EPOCH + self.last).into()),
            stream: stream.into(),
            data,
            attrs: Vec::new(),
        }
    }

    /// A line of the gateway itself, on standard error, as the logkeeper writes its own: the protocol has no field
    /// for errors. `None` if that stream is not wanted.
    pub(super) fn notice(&self, text: &str) -> Option<swarm::LogMessage> {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or(self.last);
        let labels = Self {
            last: now,
            ..self.clone()
        };
        let data = format!("[switchyard: {text}]\n").into_bytes();
        self.has_stderr
            .then(|| labels.message_of(swarm::LogStream::Stderr, data))
    }
}

// === impl TaskReader ===

impl TaskReader {
    /// Opens a log. Cancel-safe: the thread that searches where it begins ends soon after.
    pub(super) async fn open(file: PathBuf, query: LogQuery, labels: MessageLabels) -> OpenedLog {
        let waiter = ReadWaiter::default();
        let interest = waiter.interest();
        let opened = read("opening a log", move || {
            let location = location(&file).ok_or_else(|| {
                Error::internal(format!(
                    "the log {} is no file in a directory",
                    file.display()
                ))
            })?;
            match LogReader::open(&location, &query, &interest) {
                Ok(reader) => Ok(Some(reader)),
                Err(ReadError::Absent(_)) => Ok(None),
                Err(error) => Err(failed(error)),
            }
        });
        match opened.await {
            Ok(Some(reader)) => OpenedLog::Reader(Self {
                reader: LabelledReader { reader, labels },
                waiter,
            }),
            Ok(None) => OpenedLog::Absent,
            Err(error) => OpenedLog::Failed(error.report()),
        }
    }

    /// Declares that nothing more will be written to the log.
    pub(super) const fn end(&mut self) {
        self.reader.reader.end();
    }

    /// Reads on; a chunk without messages is the end of what was written so far. Not cancel-safe: the reader is lost,
    /// and the thread that reads ends soon after.
    ///
    /// # Errors
    /// The log cannot be read on.
    pub(super) async fn chunk(self) -> Result<(Self, Chunk)> {
        let Self { mut reader, waiter } = self;
        let reading = read("reading a log", move || {
            reader.fill().map(|chunk| (reader, chunk))
        });
        let (reader, chunk) = reading.await?;
        Ok((Self { reader, waiter }, chunk))
    }
}

// === impl LabelledReader ===

impl LabelledReader {
    fn fill(&mut self) -> Result<Chunk> {
        let mut chunk = Chunk::default();
        let mut size = 0;
        while size < CHUNK && chunk.messages.len() < CHUNK_MESSAGES {
            let Some(piece) = self.reader.next_piece().map_err(failed)? else {
                break;
            };
            size += piece.text.len() + 1;
            chunk.messages.push(self.labels.message(&piece));
        }
        for omitted in self.reader.take_omitted() {
            let text = format!(
                "a part of the log is left out: {}",
                failed(omitted).report()
            );
            tracing::warn!(swarm_task = self.labels.context.task_id, "{text}");
            chunk.messages.extend(self.labels.notice(&text));
        }
        chunk.size = size as u64;
        Ok(chunk)
    }
}

/// Runs something that reads a log, as one of few at a time.
async fn read<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let permit = READ_PERMITS.acquire().await;
    let permit =
        permit.map_err(|closed| Error::internal(format!("wait for {what}")).with_source(closed))?;
    threads::bulk(move || {
        // Held by the thread: it continues if the caller is dropped, and still counts.
        let _until_it_ends = permit;
        work()
    })
    .await
}

/// Returns the location of a log: symbolic links are followed only on the way to its directory.
fn location(file: &Path) -> Option<LogLocation> {
    let root = file.parent()?.to_owned();
    let path = PathBuf::from(file.file_name()?);
    Some(LogLocation::Cri { root, path })
}

fn failed(error: ReadError) -> Error {
    Error::unavailable("the log cannot be read").with_source(error)
}
