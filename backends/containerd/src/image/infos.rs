//! The content of image records: read from the content store, and cached by the digest of the target.
//!
//! What one image lacks concerns that image alone: a record whose documents are damaged is passed over, and
//! said once.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::image::ImageId;
use switchyard_core::{Error, Result};
use switchyard_registry::{self as registry, Digest, ImageConfig, Manifest, Platforms, total_bytes};
use tokio::time::Instant;

use super::blob::{self, ReadFailure};
use super::index::ImageInfo;
use super::shared_types::from_registry;
use crate::client::Client;

/// The limit on the documents of all cached images together, in bytes: enough for about two thousand common
/// images.
const CACHE_BYTES: u64 = 16 << 20;

/// How long damaged content is not read again: a disk that fails may take its time for each read.
const DAMAGED_AGE: Duration = Duration::from_secs(60);

/// How deep image indexes may nest.
const MAX_DEPTH: usize = 4;

/// What the content of an image record is.
#[derive(Debug, Clone)]
pub(super) enum RecordContent {
    /// An image for this platform.
    Image(Arc<ImageInfo>),
    /// No image for this platform, or none at all. Other clients also store images without the parts for this
    /// platform.
    Foreign(Error),
    /// A document is damaged: it is missing, cannot be read or parsed, or has another digest.
    Damaged(Error),
}

/// A cache of images' content, by target digest. The content of a digest never changes; what is damaged may be
/// replaced.
#[derive(Debug, Default)]
pub(crate) struct InfoCache {
    infos: Mutex<CachedInfos>,
}

#[derive(Debug, Default)]
struct CachedInfos {
    by_target: HashMap<Digest, Arc<ImageInfo>>,
    /// Size of the documents of all cached images.
    bytes: u64,
    damaged: HashMap<Digest, DamagedContent>,
}

#[derive(Debug)]
struct DamagedContent {
    fault: Error,
    /// When it is read again.
    again: Instant,
}

// === impl RecordContent ===

impl RecordContent {
    fn of_document(error: registry::Error) -> Self {
        use registry::Error as E;
        let is_foreign = match &error {
            E::UnsupportedMediaType { .. }
            | E::NoMatchingPlatform { .. }
            | E::TooLarge { .. }
            | E::NotFound { .. }
            | E::InvalidReference { .. } => true,
            E::Protocol { .. }
            | E::DigestMismatch { .. }
            | E::SizeMismatch { .. }
            | E::InvalidConfig { .. }
            | E::Unauthorized { .. }
            | E::Denied { .. }
            | E::Unavailable { .. }
            | E::RateLimited { .. } => false,
        };
        let error = from_registry(error);
        if is_foreign { Self::Foreign(error) } else { Self::Damaged(error) }
    }

    /// `of_index`: an index names the document, which other clients store without the parts for this platform.
    ///
    /// # Errors
    /// If containerd did not answer.
    fn of_failure(failure: ReadFailure, of_index: bool) -> Result<Self> {
        match failure {
            ReadFailure::Unanswered(error) => Err(error),
            ReadFailure::TooLarge(error) => Ok(Self::Foreign(error)),
            ReadFailure::Absent(error) if of_index => Ok(Self::Foreign(error)),
            ReadFailure::Absent(error) | ReadFailure::Damaged(error) => Ok(Self::Damaged(error)),
        }
    }
}

// === impl CachedInfos ===

impl CachedInfos {
    /// Caches an image. Over the limit the largest images are evicted, and read again each time: they are
    /// few, and this way no image evicts one that is smaller than itself.
    fn insert(&mut self, target: &Digest, info: &Arc<ImageInfo>) {
        if self.by_target.insert(target.clone(), Arc::clone(info)).is_some() {
            return;
        }
        self.bytes = self.bytes.saturating_add(info.document_bytes());
        while self.bytes > CACHE_BYTES {
            let largest = self.by_target.iter().max_by_key(|(_, info)| info.document_bytes());
            let Some(largest) = largest.map(|(target, _)| target.clone()) else { break };
            self.remove(&largest);
        }
    }

    fn remove(&mut self, target: &Digest) {
        if let Some(info) = self.by_target.remove(target) {
            self.bytes = self.bytes.saturating_sub(info.document_bytes());
        }
    }

    /// Keeps what reading this target has shown. Returns whether it was not known to be damaged before.
    fn keep(&mut self, target: &Digest, content: &RecordContent) -> bool {
        match content {
            RecordContent::Image(info) => self.insert(target, info),
            RecordContent::Foreign(_) => {}
            RecordContent::Damaged(fault) => {
                let damaged = DamagedContent { fault: fault.clone(), again: Instant::now() + DAMAGED_AGE };
                return self.damaged.insert(target.clone(), damaged).is_none();
            }
        }
        self.damaged.remove(target);
        false
    }
}

// === impl InfoCache ===

impl InfoCache {
    fn infos(&self) -> MutexGuard<'_, CachedInfos> {
        self.infos.lock()
    }

    /// Evicts all images but these, and forgets what was damaged of others.
    pub(super) fn retain(&self, targets: &BTreeSet<Digest>) {
        let mut infos = self.infos();
        infos.by_target.retain(|target, _| targets.contains(target));
        infos.damaged.retain(|target, _| targets.contains(target));
        infos.bytes = infos.by_target.values().fold(0, |sum, info| sum.saturating_add(info.document_bytes()));
    }

    /// Reads what is damaged again the next time: a pull may have replaced it.
    pub(super) fn check_damaged_again(&self) {
        let now = Instant::now();
        self.infos().damaged.values_mut().for_each(|damaged| damaged.again = now);
    }

    /// The content of a record: cached, or read from the content store.
    ///
    /// # Errors
    /// If containerd does not answer. What is wrong with the content is no error.
    pub(super) async fn look(&self, client: &Client, target: &Digest) -> Result<RecordContent> {
        {
            let infos = self.infos();
            if let Some(info) = infos.by_target.get(target) {
                return Ok(RecordContent::Image(Arc::clone(info)));
            }
            if let Some(damaged) = infos.damaged.get(target).filter(|damaged| Instant::now() < damaged.again)
            {
                return Ok(RecordContent::Damaged(damaged.fault.clone()));
            }
        }
        let content = read_content(client, target).await?;
        if self.infos().keep(target, &content)
            && let RecordContent::Damaged(fault) = &content
        {
            tracing::warn!(
                %target,
                error = fault.report(),
                "the content of an image is damaged: no task can be created from it until it is pulled again; it can be removed by its name"
            );
        }
        Ok(content)
    }

    /// The content of an image that was just stored.
    ///
    /// # Errors
    /// `NotFound` if a part is not in the content store; `InvalidArgument` if it is not an image for this
    /// platform; `Internal` if it is damaged.
    pub(super) async fn load(&self, client: &Client, target: &Digest) -> Result<Arc<ImageInfo>> {
        match self.look(client, target).await? {
            RecordContent::Image(info) => Ok(info),
            RecordContent::Foreign(error) | RecordContent::Damaged(error) => Err(error),
        }
    }
}

async fn read_content(client: &Client, target: &Digest) -> Result<RecordContent> {
    let mut digest = target.clone();
    for _ in 0..MAX_DEPTH {
        let bytes = match blob::read(client, &digest).await {
            Ok(bytes) => bytes,
            Err(failure) => return RecordContent::of_failure(failure, digest != *target),
        };
        let manifest = match Manifest::parse(&digest.to_string(), None, &bytes) {
            Ok((_, manifest)) => manifest,
            Err(error) => return Ok(RecordContent::of_document(error)),
        };
        match manifest {
            Manifest::Index(index) => {
                match index.select(&digest.to_string(), &Platforms::of_this_machine()) {
                    Ok(entry) => digest = entry.digest.clone(),
                    Err(error) => return Ok(RecordContent::of_document(error)),
                }
            }
            Manifest::Image(image) => {
                let config = match blob::read(client, &image.config.digest).await {
                    Ok(config) => config,
                    Err(failure) => return RecordContent::of_failure(failure, false),
                };
                let parsed = match ImageConfig::parse(&digest.to_string(), &config) {
                    Ok(parsed) => parsed,
                    Err(error) => return Ok(RecordContent::of_document(error)),
                };
                let manifest_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
                return Ok(RecordContent::Image(Arc::new(ImageInfo {
                    id: ImageId::new(image.config.digest.to_string()),
                    config: parsed,
                    config_digest: image.config.digest,
                    config_bytes: u64::try_from(config.len()).unwrap_or(u64::MAX),
                    manifest_bytes,
                    size_bytes: total_bytes(&image.layers)
                        .saturating_add(image.config.size)
                        .saturating_add(manifest_bytes),
                    layers: image.layers,
                })));
            }
        }
    }
    let error = Error::invalid(target, format!("indexes nest deeper than {MAX_DEPTH}"));
    Ok(RecordContent::Foreign(error))
}

#[cfg(test)]
mod tests;
