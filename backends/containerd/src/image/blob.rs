//! Reading blobs of containerd's content store, and replacing damaged ones.
//!
//! containerd computes the digest of a blob while it writes it, and never again: a file that a power cut, a
//! bad sector or a restored backup has changed is served as it is, one that is missing is not found, and
//! writing it again is refused because the database has it. So every blob that is read is compared with its
//! digest, and a pull replaces a damaged one: it deletes the blob, has containerd collect garbage, which
//! removes the file, and writes the blob again. Layers are not read before they are unpacked, so they are
//! checked when that fails.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Bytes, BytesMut};
use containerd_client::services::v1 as api;
use parking_lot::Mutex;
use switchyard_core::keyed_lock::{KeyedLock, KeyedLockGuard};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_registry::{Descriptor, Digest, Hasher};

use super::content::{self, Labels, add_labels, next_message};
use super::lease::Lease;
use crate::base::error::is_unanswered;
use crate::client::{Client, QUICK, call, ignore_not_found};

/// Prefix of the labels by which containerd's garbage collection finds the blobs that a blob refers to.
const CONTENT_REFERENCE: &str = "containerd.io/gc.ref.content";

/// The largest blob that is read into memory, in bytes.
const READ_LIMIT: usize = 16 << 20;

/// The reason why a blob could not be read.
#[derive(Debug)]
pub(crate) enum ReadFailure {
    /// containerd did not answer, or refuses such calls: that says nothing about the blob.
    Unanswered(Error),
    /// The store does not have the blob.
    Absent(Error),
    /// The blob is larger than [`READ_LIMIT`].
    TooLarge(Error),
    /// The store says that it has the blob, but the file is missing, cannot be read, or has another digest.
    Damaged(Error),
}

/// The checks and replacements of blobs, of all pulls.
#[derive(Debug, Default)]
pub(crate) struct BlobRepairs {
    /// Serialises the checks and replacements of one blob: the second must not delete what the first has
    /// written.
    locks: KeyedLock<Digest>,
    /// Damaged layers that nobody could download when they were found. Images with one of them have to be
    /// pulled again.
    damaged: Mutex<BTreeSet<Digest>>,
    /// Number of layers that were replaced.
    replaced: AtomicU64,
}

/// The result of the check of a layer.
pub(super) enum LayerCheck {
    /// It has its digest.
    Intact {
        /// Some layer was replaced since it was used: it may have been this one.
        replaced: bool,
    },
    /// It is damaged or not there. Nobody else checks or replaces it until the guard is dropped.
    Damaged {
        /// The lock of the blob.
        turn: KeyedLockGuard,
        /// The defect.
        fault: Error,
    },
}

// === impl ReadFailure ===

impl From<ReadFailure> for Error {
    fn from(failure: ReadFailure) -> Self {
        match failure {
            ReadFailure::Unanswered(error)
            | ReadFailure::Absent(error)
            | ReadFailure::TooLarge(error)
            | ReadFailure::Damaged(error) => error,
        }
    }
}

/// Reads a whole small blob, and compares its digest.
pub(crate) async fn read(client: &Client, digest: &Digest) -> Result<Bytes, ReadFailure> {
    let mut body = BytesMut::new();
    let collect = |piece: &[u8]| {
        if body.len() + piece.len() > READ_LIMIT {
            let error = Error::invalid(
                digest,
                format!("the blob is larger than {READ_LIMIT} bytes"),
            );
            return Err(ReadFailure::TooLarge(error));
        }
        body.extend_from_slice(piece);
        Ok(())
    };
    read_checked(client, digest, collect).await?;
    Ok(body.freeze())
}

/// Reads a blob of any size, and compares its digest.
async fn check(client: &Client, digest: &Digest) -> Result<(), ReadFailure> {
    read_checked(client, digest, |_| Ok(())).await
}

/// Hands the pieces of a blob to `take`, and compares the digest at the end.
async fn read_checked(
    client: &Client,
    digest: &Digest,
    mut take: impl FnMut(&[u8]) -> Result<(), ReadFailure>,
) -> Result<(), ReadFailure> {
    let what = format!("read blob {digest}");
    let mut hasher = Hasher::new(digest.algorithm());
    let request = api::ReadContentRequest {
        digest: digest.to_string(),
        offset: 0,
        size: 0,
    };
    let mut stream = match call(&what, QUICK, client.content().read(request)).await {
        Ok(stream) => stream,
        Err(error) => return Err(judge(client, digest, error).await),
    };
    loop {
        match next_message(&what, &mut stream).await {
            Ok(Some(message)) => {
                take(&message.data)?;
                hasher.update(&message.data);
            }
            Ok(None) => break,
            Err(error) => return Err(judge(client, digest, error).await),
        }
    }
    let actual = hasher.finish();
    if actual == *digest {
        return Ok(());
    }
    let error = Error::internal(format!(
        "blob {digest} in containerd's content store has digest {actual}"
    ));
    Err(ReadFailure::Damaged(error))
}

/// Decides what an error of a read says about the blob. containerd passes errors of the disk on as `Unknown`.
async fn judge(client: &Client, digest: &Digest, error: Error) -> ReadFailure {
    match error.kind() {
        ErrorKind::NotFound => match labels_of(client, digest).await {
            // The database has the blob, so that its file is what is missing.
            Ok(Some(_)) => ReadFailure::Damaged(error),
            Ok(None) => ReadFailure::Absent(error),
            Err(error) => ReadFailure::Unanswered(error),
        },
        // The second is a read beyond the end of a file.
        ErrorKind::Internal | ErrorKind::InvalidArgument => ReadFailure::Damaged(error),
        ErrorKind::AlreadyExists
        | ErrorKind::FailedPrecondition
        | ErrorKind::Unavailable
        | ErrorKind::ResourceExhausted
        | ErrorKind::Unauthenticated
        | ErrorKind::DeadlineExceeded
        | ErrorKind::Cancelled
        | ErrorKind::Unimplemented => ReadFailure::Unanswered(error),
    }
}

/// The labels of a blob; `None` if the store does not have it.
pub(super) async fn labels_of(client: &Client, digest: &Digest) -> Result<Option<Labels>> {
    let request = api::InfoRequest {
        digest: digest.to_string(),
    };
    match call(
        &format!("look up blob {digest}"),
        QUICK,
        client.content().info(request),
    )
    .await
    {
        Ok(answer) => Ok(Some(answer.info.unwrap_or_default().labels)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns whether a layer whose unpacking failed with this error may be damaged.
pub(super) fn may_be_damage(error: &Error) -> bool {
    let of_blob = matches!(
        error.kind(),
        ErrorKind::Internal | ErrorKind::NotFound | ErrorKind::InvalidArgument
    );
    of_blob && !is_unanswered(error)
}

/// Deletes a blob with its file. Returns the labels for the blob that replaces it: these, and those that it had.
/// The labels go with the blob, so what they refer to is put under the lease before: the garbage collection
/// would remove intact layers, and they would have to be downloaded again.
///
/// The file stays if another containerd namespace has the blob too.
pub(super) async fn drop_blob(
    client: &Client,
    lease: &Lease,
    digest: &Digest,
    mut labels: Labels,
) -> Result<Labels> {
    for (key, value) in labels_of(client, digest).await?.unwrap_or_default() {
        labels.entry(key).or_insert(value);
    }
    let references = labels
        .iter()
        .filter(|(key, _)| key.starts_with(CONTENT_REFERENCE));
    let references: Vec<&str> = references.map(|(_, digest)| digest.as_str()).collect();
    lease.protect_content(&references).await?;
    let request = api::DeleteContentRequest {
        digest: digest.to_string(),
    };
    let what = format!("delete the damaged blob {digest}");
    ignore_not_found(call(&what, QUICK, client.content().delete(request)).await)?;
    reach(CrashPoint::BlobDropped);
    // The deletion removes only the database entry; the file goes with the garbage collection.
    lease.leases().collect_garbage().await?;
    Ok(labels)
}

// === impl BlobRepairs ===

impl BlobRepairs {
    /// Writes an index, a manifest or a configuration with a client that works under this lease. If it exists already, the labels are added to it; if it
    /// turns out to be damaged, it is replaced.
    pub(super) async fn store_document(
        &self,
        (client, lease): (&Client, &Lease),
        kind: &str,
        descriptor: &Descriptor,
        data: Bytes,
        labels: Labels,
    ) -> Result<()> {
        let digest = &descriptor.digest;
        if content::write_small(client, kind, descriptor, data.clone(), labels.clone()).await? {
            return Ok(());
        }
        if is_intact(client, digest).await? {
            return add_labels(client, digest, labels).await;
        }
        let _turn = self.locks.lock(digest.clone()).await;
        // Somebody else may have replaced it meanwhile.
        if is_intact(client, digest).await? {
            return add_labels(client, digest, labels).await;
        }
        tracing::warn!(%digest, kind, "a document of an image is damaged in containerd's content store: replacing it");
        let labels = drop_blob(client, lease, digest, labels).await?;
        content::write_small(client, kind, descriptor, data, labels).await?;
        read(client, digest).await.map(drop).map_err(|failure| {
            Error::from(failure).context(format!(
                "{kind} {digest} was written again and is still damaged: another namespace of this containerd has it too"
            ))
        })
    }

    /// Checks a layer. `seen` is what [`BlobRepairs::replaced`] was before the layer was used.
    pub(super) async fn check_layer(
        &self,
        client: &Client,
        digest: &Digest,
        seen: u64,
    ) -> Result<LayerCheck> {
        let turn = self.locks.lock(digest.clone()).await;
        match check(client, digest).await {
            Ok(()) => {
                self.damaged.lock().remove(digest);
                Ok(LayerCheck::Intact {
                    replaced: self.replaced() != seen,
                })
            }
            Err(ReadFailure::Unanswered(error)) => Err(error),
            Err(failure) => Ok(LayerCheck::Damaged {
                turn,
                fault: Error::from(failure),
            }),
        }
    }

    /// A damaged layer was replaced.
    pub(super) fn mark_replaced(&self, digest: &Digest) {
        self.replaced.fetch_add(1, Ordering::Relaxed);
        self.damaged.lock().remove(digest);
    }

    /// There is nothing to replace a damaged layer by. Returns the error that says so.
    pub(super) fn mark_damaged(&self, digest: &Digest, fault: Error) -> Error {
        self.damaged.lock().insert(digest.clone());
        let text = format!(
            "layer {digest} is damaged in containerd's content store: pull the image again, which replaces it"
        );
        Error::failed_precondition(text).with_source(fault)
    }

    /// Returns the number of layers that were replaced.
    pub(super) fn replaced(&self) -> u64 {
        self.replaced.load(Ordering::Relaxed)
    }

    /// Returns whether one of these layers is known to be damaged.
    pub(super) fn has_damaged(&self, layers: &[Descriptor]) -> bool {
        let damaged = self.damaged.lock();
        !damaged.is_empty() && layers.iter().any(|layer| damaged.contains(&layer.digest))
    }

    /// Forgets all damaged layers for which `exists` is false.
    pub(super) fn retain(&self, exists: impl Fn(&Digest) -> bool) {
        self.damaged.lock().retain(exists);
    }
}

/// Returns whether a small blob has its digest; `false` if it is damaged or missing.
async fn is_intact(client: &Client, digest: &Digest) -> Result<bool> {
    match read(client, digest).await {
        Ok(_) => Ok(true),
        Err(ReadFailure::Unanswered(error) | ReadFailure::TooLarge(error)) => Err(error),
        Err(ReadFailure::Absent(_) | ReadFailure::Damaged(_)) => Ok(false),
    }
}

#[cfg(test)]
mod tests;
