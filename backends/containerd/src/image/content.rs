//! Blobs in containerd's content store.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use containerd_client::services::v1 as api;
use futures::StreamExt;
use switchyard_core::backoff::Backoff;
use switchyard_core::{Error, ErrorKind, Reason, Result, threads};
use switchyard_proto::containerd::services::content::v1::{
    WriteAction, WriteContentRequest, WriteContentResponse,
};
use switchyard_registry::{Descriptor, Digest};
use switchyard_steps::{Step, reach};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::base::error::from_status;
use crate::client::{Client, QUICK, call};

pub(crate) type Labels = HashMap<String, String>;

/// Bytes collected for one message.
const CHUNK: usize = 256 << 10;
/// A received piece of at least this many bytes is sent as a message of its own, which saves copying it.
const MIN_MESSAGE: usize = 64 << 10;
/// Messages that may be sent before the first of them is answered, so that downloading and writing overlap.
const MAX_UNANSWERED: usize = 4;
/// How long another writer of the same blob is waited for while it makes no progress.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest blob that is read into memory, in bytes.
const READ_LIMIT: usize = 16 << 20;

/// Reads a whole small blob.
///
/// # Errors
/// `InvalidArgument` if it is larger than [`READ_LIMIT`].
pub(crate) async fn read(client: &Client, digest: &Digest) -> Result<Bytes> {
    let what = format!("read blob {digest}");
    let request = api::ReadContentRequest { digest: digest.to_string(), offset: 0, size: 0 };
    let mut stream = call(&what, QUICK, client.content().read(request)).await?;
    let mut body = BytesMut::new();
    while let Some(message) = next_message(&what, &mut stream).await? {
        if body.len() + message.data.len() > READ_LIMIT {
            return Err(Error::invalid(digest, format!("the blob is larger than {READ_LIMIT} bytes")));
        }
        body.extend_from_slice(&message.data);
    }
    Ok(body.freeze())
}

/// The next message of a stream; `None` at its end.
pub(crate) async fn next_message<T>(what: &str, stream: &mut Streaming<T>) -> Result<Option<T>> {
    match tokio::time::timeout(QUICK, stream.message()).await {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(status)) => Err(from_status(what, status)),
        Err(_) => Err(crate::base::error::timed_out(what, QUICK)),
    }
}

/// Writes a small blob in one message. If the blob exists already, the labels are added to it.
pub(crate) async fn write_small(
    client: &Client,
    kind: &str,
    descriptor: &Descriptor,
    data: Bytes,
    labels: Labels,
) -> Result<()> {
    let what = format!("write {kind} {}", descriptor.digest);
    let name = format!("{kind}-{}", descriptor.digest);
    let message = WriteContentRequest {
        action: WriteAction::Commit.into(),
        r#ref: name.clone(),
        total: length(descriptor.size)?,
        expected: descriptor.digest.to_string(),
        offset: 0,
        data,
        labels: labels.clone().into_iter().collect(),
    };
    let attempt = || async {
        let request = tokio_stream::once(message.clone());
        let mut answers = call(&what, QUICK, client.content_writer().write(request)).await?;
        while next_message(&what, &mut answers).await?.is_some() {}
        Ok(())
    };
    match retry_while_locked(client, &what, &name, attempt).await {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            add_labels(client, &descriptor.digest, labels).await
        }
        other => other,
    }
}

/// Adds labels to a blob.
pub(crate) async fn add_labels(client: &Client, digest: &Digest, labels: Labels) -> Result<()> {
    if labels.is_empty() {
        return Ok(());
    }
    let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
    let info = api::Info { digest: digest.to_string(), labels, ..Default::default() };
    let request =
        api::UpdateRequest { info: Some(info), update_mask: Some(prost_types::FieldMask { paths }) };
    call(&format!("label blob {digest}"), QUICK, client.content().update(request)).await.map(drop)
}

/// Downloads a blob into the content store. A blob that exists already is not downloaded. An unfinished
/// download is continued, unless its content turns out to be wrong. `received` is set to the number of bytes
/// in the store, as they arrive. containerd computes the digest while it writes, and keeps no blob with
/// another digest. Cancel-safe: what has arrived is kept for the next try while its lease exists.
pub(crate) async fn fetch(
    client: &Client,
    pull: &switchyard_registry::Pull,
    descriptor: &Descriptor,
    labels: Labels,
    received: &AtomicU64,
) -> Result<()> {
    let what = format!("write layer {}", descriptor.digest);
    let attempt = || async {
        match fetch_once(client, pull, descriptor, &labels, &what, received).await? {
            DownloadOutcome::Complete => Ok(()),
            DownloadOutcome::DigestMismatch { kept: 0, error } => Err(error),
            // The part from an earlier try may be what is wrong: download once more, from the beginning.
            DownloadOutcome::DigestMismatch { .. } => {
                match fetch_once(client, pull, descriptor, &labels, &what, received).await? {
                    DownloadOutcome::Complete => Ok(()),
                    DownloadOutcome::DigestMismatch { error, .. } => Err(error),
                }
            }
        }
    };
    match retry_while_locked(client, &what, &layer_ref(descriptor), attempt).await {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            add_labels(client, &descriptor.digest, labels).await
        }
        other => other,
    }
}

/// How a download ended.
enum DownloadOutcome {
    Complete,
    /// The content does not have the expected digest and was discarded. `kept` bytes of it were from an
    /// earlier try.
    DigestMismatch {
        kept: u64,
        error: Error,
    },
}

async fn fetch_once(
    client: &Client,
    pull: &switchyard_registry::Pull,
    descriptor: &Descriptor,
    labels: &Labels,
    what: &str,
    received: &AtomicU64,
) -> Result<DownloadOutcome> {
    let mut writer = Writer::open(client, descriptor, what).await?;
    let kept = writer.offset;
    received.store(kept, Ordering::Relaxed);
    let mut blob = pull.blob(descriptor, kept).without_digest_check().into_stream();
    let mut chunk = BytesMut::new();
    while let Some(piece) = blob.next().await {
        let piece = piece.map_err(super::shared_types::from_registry)?;
        received.fetch_add(u64::try_from(piece.len()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let data = if chunk.is_empty() && piece.len() >= MIN_MESSAGE {
            piece
        } else {
            chunk.extend_from_slice(&piece);
            if chunk.len() < CHUNK {
                continue;
            }
            chunk.split().freeze()
        };
        writer.write(data).await?;
        reach(Step::LayerBegun);
    }
    match writer.commit(chunk.freeze(), labels.clone()).await {
        Ok(()) => {
            reach(Step::LayerCommitted);
            Ok(DownloadOutcome::Complete)
        }
        Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
            let request = api::AbortRequest { r#ref: layer_ref(descriptor) };
            crate::client::ignore_not_found(call(what, QUICK, client.content().abort(request)).await)?;
            let error = Error::internal(format!("{what}: the downloaded content does not have this digest"))
                .with_source(error);
            Ok(DownloadOutcome::DigestMismatch { kept, error })
        }
        Err(error) => Err(error),
    }
}

/// Writes a blob from a file, in which it begins at offset `at`. A blob that exists already is not written
/// again. Cancel-safe: what was written is kept for the next try while its lease exists.
pub(crate) async fn write_from_file(
    client: &Client,
    file: &Arc<File>,
    at: u64,
    descriptor: &Descriptor,
) -> Result<()> {
    let what = format!("write layer {}", descriptor.digest);
    let attempt = || async {
        let mut writer = Writer::open(client, descriptor, &what).await?;
        while writer.offset < descriptor.size {
            let rest = usize::try_from(descriptor.size - writer.offset).unwrap_or(CHUNK);
            let file = Arc::clone(file);
            let from = at + writer.offset;
            let reading = threads::bulk(move || {
                let mut piece = vec![0; rest.min(CHUNK)];
                let read = file.read_exact_at(&mut piece, from);
                read.map_err(|fault| Error::internal("read the archive").with_source(fault))?;
                Ok(Bytes::from(piece))
            });
            let piece = reading.await.map_err(|error| error.context(&what))?;
            writer.write(piece).await?;
            reach(Step::LayerBegun);
        }
        writer.commit(Bytes::new(), Labels::new()).await?;
        reach(Step::LayerCommitted);
        Ok(())
    };
    match retry_while_locked(client, &what, &layer_ref(descriptor), attempt).await {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The reference under which containerd tracks the writing of a layer.
pub(crate) fn layer_ref(descriptor: &Descriptor) -> String {
    format!("layer-{}", descriptor.digest)
}

fn length(size: u64) -> Result<i64> {
    i64::try_from(size).map_err(|_| Error::invalid("size of a blob", format!("{size} is impossible")))
}

/// Runs `attempt` again while another writer holds the lock of the same blob, as long as that writer makes
/// progress.
async fn retry_while_locked<F: Future<Output = Result<()>>>(
    client: &Client,
    what: &str,
    name: &str,
    mut attempt: impl FnMut() -> F,
) -> Result<()> {
    let mut lock_wait = LockWait::new(Instant::now());
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
    loop {
        let error = match attempt().await {
            // Another writer holds the lock of the blob.
            Err(error) if error.reason() == Some(Reason::Locked) => error,
            other => return other,
        };
        let request = api::StatusRequest { r#ref: name.to_owned() };
        let offset = match call(what, QUICK, client.content().status(request)).await {
            Ok(answer) => Some(answer.status.unwrap_or_default().offset),
            // The other writer has just finished or aborted.
            Err(gone) if gone.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let pause = backoff.pause();
        if !lock_wait.should_retry(offset, Instant::now(), pause) {
            return Err(error);
        }
        tracing::debug!(what, "another writer holds the lock of a blob: waiting");
        tokio::time::sleep(pause).await;
    }
}

/// The wait for another writer: it lasts while that writer makes progress.
#[derive(Debug)]
struct LockWait {
    written: i64,
    until: Instant,
}

impl LockWait {
    fn new(now: Instant) -> Self {
        Self { written: -1, until: now + LOCK_TIMEOUT }
    }

    /// Whether to try again after `pause`. `offset` is how many bytes the other writer has written; `None` if
    /// there is no such writer, which does not count as progress: the lock may be a stale one.
    fn should_retry(&mut self, offset: Option<i64>, now: Instant, pause: Duration) -> bool {
        if let Some(offset) = offset.filter(|offset| *offset > self.written) {
            (self.written, self.until) = (offset, now + LOCK_TIMEOUT);
        }
        now + pause <= self.until
    }
}

/// A blob that is being written.
struct Writer<'a> {
    what: &'a str,
    requests: mpsc::Sender<WriteContentRequest>,
    answers: Streaming<WriteContentResponse>,
    blob: WriteContentRequest,
    offset: u64,
    unanswered: usize,
}

impl<'a> Writer<'a> {
    async fn open(client: &Client, descriptor: &Descriptor, what: &'a str) -> Result<Self> {
        let blob = WriteContentRequest {
            action: WriteAction::Stat.into(),
            r#ref: layer_ref(descriptor),
            total: length(descriptor.size)?,
            expected: descriptor.digest.to_string(),
            ..Default::default()
        };
        let (requests, queue) = mpsc::channel(MAX_UNANSWERED);
        requests.try_send(blob.clone()).expect("a new channel has room");
        let mut answers =
            call(what, QUICK, client.content_writer().write(ReceiverStream::new(queue))).await?;
        let first = next_message(what, &mut answers).await?.ok_or_else(|| stream_ended(what))?;
        let offset = u64::try_from(first.offset).unwrap_or(0);
        Ok(Self { what, requests, answers, blob, offset, unanswered: 0 })
    }

    /// Sends a message without waiting for its answer.
    async fn send(&mut self, message: WriteContentRequest) -> Result<()> {
        let written = u64::try_from(message.data.len()).expect("a length fits 64 bits");
        let sent = tokio::time::timeout(QUICK, self.requests.send(message)).await;
        let sent = sent.map_err(|_| crate::base::error::timed_out(self.what, QUICK))?;
        if sent.is_err() {
            // containerd has ended the stream: the last message is the error.
            while next_message(self.what, &mut self.answers).await?.is_some() {}
            return Err(stream_ended(self.what));
        }
        self.offset += written;
        self.unanswered += 1;
        Ok(())
    }

    /// Waits until no more than `rest` messages are unanswered.
    async fn wait_unanswered(&mut self, rest: usize) -> Result<()> {
        while self.unanswered > rest {
            next_message(self.what, &mut self.answers).await?.ok_or_else(|| stream_ended(self.what))?;
            self.unanswered -= 1;
        }
        Ok(())
    }

    /// Writes data. The message does not carry the expected digest: containerd would look the blob up for
    /// each message.
    async fn write(&mut self, data: Bytes) -> Result<()> {
        let action = WriteAction::Write.into();
        let offset = length(self.offset)?;
        self.send(WriteContentRequest { action, offset, data, ..Default::default() }).await?;
        self.wait_unanswered(MAX_UNANSWERED - 1).await
    }

    async fn commit(mut self, rest: Bytes, labels: Labels) -> Result<()> {
        let message = WriteContentRequest {
            action: WriteAction::Commit.into(),
            offset: length(self.offset)?,
            data: rest,
            labels: labels.into_iter().collect(),
            ..std::mem::take(&mut self.blob)
        };
        self.send(message).await?;
        self.wait_unanswered(0).await
    }
}

fn stream_ended(what: &str) -> Error {
    Error::unavailable(format!("containerd ended the stream too soon: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_waited_for_while_it_gets_on_and_a_lock_without_one_is_not() {
        let pause = Duration::from_secs(2);
        let begin = Instant::now();
        let after = |seconds: u64| begin + Duration::from_secs(seconds);
        let mut wait = LockWait::new(begin);
        for round in 0..10_i64 {
            assert!(wait.should_retry(Some(round * 100), after(round.unsigned_abs() * 50), pause));
        }
        assert!(!wait.should_retry(Some(900), after(9 * 50 + 59), pause), "it makes no progress");
        let mut wait = LockWait::new(begin);
        assert!(wait.should_retry(Some(5), begin, pause));
        let rounds =
            (0..1000_u64).take_while(|round| wait.should_retry(None, after(round * 2), pause)).count();
        assert_eq!(rounds, 30);
    }
}
