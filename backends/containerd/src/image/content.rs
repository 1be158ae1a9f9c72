//! Blobs in containerd's content store.

use std::collections::HashMap;
use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use containerd_client::services::v1 as api;
use futures::StreamExt;
use switchyard_core::backoff::Backoff;
use switchyard_core::{Error, ErrorKind, Reason, Result, threads};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_proto::containerd::services::content::v1::{
    WriteAction, WriteContentRequest, WriteContentResponse,
};
use switchyard_registry::{Descriptor, Digest};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use crate::base::error::from_status;
use crate::client::{Client, QUICK, call};

pub(crate) type Labels = HashMap<String, String>;

/// Bytes collected for one message.
const CHUNK: usize = 256 << 10;
/// A received piece of at least this many bytes is sent as a message of its own, which saves copying it.
const MIN_MESSAGE: usize = 64 << 10;
/// Messages that may be sent before the first of them is answered, so that downloading and writing overlap.
const MAX_UNANSWERED: usize = 4;
/// Limit for which another writer of the same blob is waited for while it makes no progress.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Limit for a commit. containerd syncs the blob before it answers: a large layer was downloaded into memory,
/// and has to be written to the disk then.
const COMMIT_LIMIT: Duration = Duration::from_mins(20);

/// The next message of a stream; `None` at its end.
pub(crate) async fn next_message<T>(what: &str, stream: &mut Streaming<T>) -> Result<Option<T>> {
    match tokio::time::timeout(QUICK, stream.message()).await {
        Ok(Ok(message)) => Ok(message),
        Ok(Err(status)) => Err(from_status(what, status)),
        Err(_) => Err(crate::base::error::timed_out(what, QUICK)),
    }
}

/// Writes a small blob in one message. Returns whether it was written; `false` if containerd has it already,
/// to which no labels are added then.
pub(crate) async fn write_small(
    client: &Client,
    kind: &str,
    descriptor: &Descriptor,
    data: Bytes,
    labels: Labels,
) -> Result<bool> {
    let what = format!("write {kind} {}", descriptor.digest);
    let name = format!("{kind}-{}", descriptor.digest);
    let message = WriteContentRequest {
        action: WriteAction::Commit.into(),
        r#ref: name.clone(),
        total: length(descriptor.size)?,
        expected: descriptor.digest.to_string(),
        offset: 0,
        data,
        labels: labels.into_iter().collect(),
    };
    let attempt = || async {
        let request = tokio_stream::once(message.clone());
        let written = async {
            let mut answers = client.content_writer().write(request).await?.into_inner();
            while answers.message().await?.is_some() {}
            Ok(())
        };
        while_answered(client, &what, &name, written).await
    };
    match retry_while_locked(client, &what, (&name, descriptor.size), attempt).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Adds labels to a blob.
pub(crate) async fn add_labels(client: &Client, digest: &Digest, labels: Labels) -> Result<()> {
    if labels.is_empty() {
        return Ok(());
    }
    let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
    let info = api::Info {
        digest: digest.to_string(),
        labels,
        ..Default::default()
    };
    let request = api::UpdateRequest {
        info: Some(info),
        update_mask: Some(prost_types::FieldMask { paths }),
    };
    call(
        &format!("label blob {digest}"),
        QUICK,
        client.content().update(request),
    )
    .await
    .map(drop)
}

/// Downloads a blob into the content store. A blob that exists already is not downloaded. An unfinished
/// download is continued, unless its content turns out to be wrong. `received` is set to the number of bytes
/// in the store, as they arrive; those that arrive are also reported to the observer. containerd computes the digest while it writes, and keeps no blob with
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
    match retry_while_locked(
        client,
        &what,
        (&layer_ref(descriptor), descriptor.size),
        attempt,
    )
    .await
    {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            add_labels(client, &descriptor.digest, labels).await
        }
        other => other,
    }
}

/// The end of a download.
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
    let mut blob = pull
        .blob(descriptor, kept)
        .without_digest_check()
        .into_stream();
    let mut chunk = BytesMut::new();
    while let Some(piece) = blob.next().await {
        let piece = piece.map_err(super::shared_types::from_registry)?;
        let bytes = u64::try_from(piece.len()).unwrap_or(u64::MAX);
        received.fetch_add(bytes, Ordering::Relaxed);
        client
            .observer()
            .layer_received(pull.reference().registry(), bytes);
        // Small pieces are gathered, since each message has a cost of its own; a large one is passed on
        // uncopied.
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
        reach(CrashPoint::LayerBegun);
    }
    match writer.commit(client, chunk.freeze(), labels.clone()).await {
        Ok(()) => {
            reach(CrashPoint::LayerCommitted);
            Ok(DownloadOutcome::Complete)
        }
        Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
            // containerd keeps the wrong content under the reference: the next writer would continue it.
            let request = api::AbortRequest {
                r#ref: layer_ref(descriptor),
            };
            crate::client::ignore_not_found(
                call(what, QUICK, client.content().abort(request)).await,
            )?;
            let error = Error::internal(format!(
                "{what}: the downloaded content does not have this digest"
            ))
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
    labels: Labels,
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
            reach(CrashPoint::LayerBegun);
        }
        writer.commit(client, Bytes::new(), labels.clone()).await?;
        reach(CrashPoint::LayerCommitted);
        Ok(())
    };
    match retry_while_locked(
        client,
        &what,
        (&layer_ref(descriptor), descriptor.size),
        attempt,
    )
    .await
    {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            add_labels(client, &descriptor.digest, labels).await
        }
        other => other,
    }
}

/// The reference under which containerd tracks the writing of a layer.
pub(crate) fn layer_ref(descriptor: &Descriptor) -> String {
    format!("layer-{}", descriptor.digest)
}

fn length(size: u64) -> Result<i64> {
    i64::try_from(size)
        .map_err(|_| Error::invalid("size of a blob", format!("{size} is impossible")))
}

/// Waits for the answer to a commit of the blob that is written under this name: as long as containerd answers
/// questions about it, for at most [`COMMIT_LIMIT`]. Cancel-safe; containerd completes a commit that was given
/// up, and the next writer of the blob waits for that.
async fn while_answered<T>(
    client: &Client,
    what: &str,
    name: &str,
    commit: impl Future<Output = Result<T, Status>>,
) -> Result<T> {
    let until = Instant::now() + COMMIT_LIMIT;
    let mut commit = pin!(commit);
    loop {
        if let Ok(answer) = tokio::time::timeout(QUICK, &mut commit).await {
            return answer.map_err(|status| from_status(what, status));
        }
        if Instant::now() >= until {
            return Err(crate::base::error::timed_out(what, COMMIT_LIMIT));
        }
        written_bytes(client, what, name).await?;
        tracing::debug!(what, "containerd syncs a blob to the disk: waiting");
    }
}

/// Returns the number of bytes written under a name; `None` if nobody writes under it: the writer has just
/// finished or aborted.
async fn written_bytes(client: &Client, what: &str, name: &str) -> Result<Option<u64>> {
    let request = api::StatusRequest {
        r#ref: name.to_owned(),
    };
    match call(what, QUICK, client.content().status(request)).await {
        Ok(answer) => Ok(u64::try_from(answer.status.unwrap_or_default().offset).ok()),
        Err(gone) if gone.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs `attempt` again while another writer holds the lock of the same blob, which has this name and size, as
/// long as that writer makes progress.
async fn retry_while_locked<F: Future<Output = Result<()>>>(
    client: &Client,
    what: &str,
    (name, size): (&str, u64),
    mut attempt: impl FnMut() -> F,
) -> Result<()> {
    let mut lock_wait = LockWait::new(size, Instant::now());
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
    loop {
        let error = match attempt().await {
            // Another writer holds the lock of the blob.
            Err(error) if error.reason() == Some(Reason::Locked) => error,
            other => return other,
        };
        let offset = written_bytes(client, what, name).await?;
        let pause = backoff.pause();
        if !lock_wait.should_retry(offset, Instant::now(), pause) {
            return Err(error);
        }
        tracing::debug!(what, "another writer holds the lock of a blob: waiting");
        tokio::time::sleep(pause).await;
    }
}

/// The wait for another writer: it lasts while that writer makes progress, and while it commits.
#[derive(Debug)]
struct LockWait {
    size: u64,
    written: Option<u64>,
    until: Instant,
}

impl LockWait {
    fn new(size: u64, now: Instant) -> Self {
        Self {
            size,
            written: None,
            until: now + LOCK_TIMEOUT,
        }
    }

    /// Returns whether to try again after `pause`. `offset` is the other writer's number of bytes; `None` if
    /// there is no such writer, which does not count as progress: the lock may be a stale one.
    fn should_retry(&mut self, offset: Option<u64>, now: Instant, pause: Duration) -> bool {
        if offset > self.written {
            let is_whole = offset.is_some_and(|offset| offset >= self.size);
            (self.written, self.until) = (
                offset,
                now + if is_whole { COMMIT_LIMIT } else { LOCK_TIMEOUT },
            );
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
            // The answer has the offset at which an unfinished download continues.
            action: WriteAction::Stat.into(),
            r#ref: layer_ref(descriptor),
            total: length(descriptor.size)?,
            expected: descriptor.digest.to_string(),
            ..Default::default()
        };
        let (requests, queue) = mpsc::channel(MAX_UNANSWERED);
        requests
            .try_send(blob.clone())
            .expect("a new channel has room");
        let mut answers = call(
            what,
            QUICK,
            client.content_writer().write(ReceiverStream::new(queue)),
        )
        .await?;
        let first = next_message(what, &mut answers)
            .await?
            .ok_or_else(|| stream_ended(what))?;
        let offset = u64::try_from(first.offset).unwrap_or(0);
        Ok(Self {
            what,
            requests,
            answers,
            blob,
            offset,
            unanswered: 0,
        })
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
            next_message(self.what, &mut self.answers)
                .await?
                .ok_or_else(|| stream_ended(self.what))?;
            self.unanswered -= 1;
        }
        Ok(())
    }

    /// Writes data. The message does not carry the expected digest: containerd would look the blob up for
    /// each message.
    async fn write(&mut self, data: Bytes) -> Result<()> {
        let action = WriteAction::Write.into();
        let offset = length(self.offset)?;
        self.send(WriteContentRequest {
            action,
            offset,
            data,
            ..Default::default()
        })
        .await?;
        self.wait_unanswered(MAX_UNANSWERED - 1).await
    }

    async fn commit(mut self, client: &Client, rest: Bytes, labels: Labels) -> Result<()> {
        let message = WriteContentRequest {
            action: WriteAction::Commit.into(),
            offset: length(self.offset)?,
            data: rest,
            labels: labels.into_iter().collect(),
            ..std::mem::take(&mut self.blob)
        };
        let name = message.r#ref.clone();
        self.send(message).await?;
        let Self {
            what,
            answers,
            unanswered,
            ..
        } = &mut self;
        let answered = async {
            while *unanswered > 0 && answers.message().await?.is_some() {
                *unanswered -= 1;
            }
            Ok(())
        };
        while_answered(client, what, &name, answered).await?;
        if *unanswered > 0 {
            Err(stream_ended(what))
        } else {
            Ok(())
        }
    }
}

fn stream_ended(what: &str) -> Error {
    Error::unavailable(format!("containerd ended the stream too soon: {what}"))
}

#[cfg(test)]
mod tests;
