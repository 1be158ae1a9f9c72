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
use switchyard_registry::{
    self as registry, Digest, ImageConfig, Manifest, Platforms, total_bytes,
};
use tokio::time::Instant;

use super::blob::{self, ReadFailure};
use super::index::{ImageInfo, child_label};
use super::shared_types::from_registry;
use crate::client::Client;

/// The limit on the documents of all cached images together, in bytes: enough for about two thousand common
/// images.
const CACHE_BYTES: u64 = 16 << 20;

/// Time for which damaged or foreign content is not read again: a disk that fails may take its time for each
/// read.
const UNUSABLE_AGE: Duration = Duration::from_secs(60);

/// Maximum nesting of image indexes.
const MAX_DEPTH: usize = 4;

/// The content of an image record.
#[derive(Debug, Clone)]
pub(super) enum RecordContent {
    /// An image for this platform.
    Image(Arc<ImageInfo>),
    /// No image for this platform, or none at all. Other clients also store images without the parts for this
    /// platform.
    Foreign(Error),
    /// A document is damaged: it is missing, cannot be read, or has another digest.
    Damaged(Error),
}

/// A cache of images' content, by target digest. The content of a digest never changes; what is damaged may be
/// replaced.
#[derive(Debug, Default)]
pub(crate) struct InfoCache {
    infos: Mutex<CachedInfos>,
}

/// The content of image records as it was read a short time ago.
#[derive(Debug)]
pub(super) struct KnownContents {
    by_target: HashMap<Digest, RecordContent>,
    /// [`CachedInfos::repairs`] before it was read.
    repairs: u64,
}

#[derive(Debug, Default)]
struct CachedInfos {
    by_target: HashMap<Digest, Arc<ImageInfo>>,
    /// Size of the documents of all cached images.
    bytes: u64,
    /// Damaged and foreign content.
    unusable: HashMap<Digest, UnusableContent>,
    /// Number of pulls that may have replaced damaged content.
    repairs: u64,
}

#[derive(Debug)]
struct UnusableContent {
    content: RecordContent,
    /// Time of the next read.
    again: Instant,
}

// === impl RecordContent ===

impl RecordContent {
    /// A document that has its digest was published as it is: another client has stored it, and a pull brings
    /// the same again.
    fn of_document(error: registry::Error) -> Self {
        Self::Foreign(from_registry(error))
    }

    /// Interprets a document that cannot be read. `index` is the one that names it, if there is one: other
    /// clients store indexes without the images that these name, also for this platform; a pull of ours does
    /// not, and labels the index with the parts that it has stored.
    ///
    /// # Errors
    /// If containerd did not answer.
    async fn of_failure(
        client: &Client,
        failure: ReadFailure,
        digest: &Digest,
        index: Option<&Digest>,
    ) -> Result<Self> {
        match (failure, index) {
            (ReadFailure::Unanswered(error), _) => Err(error),
            (ReadFailure::TooLarge(error), _) => Ok(Self::Foreign(error)),
            (ReadFailure::Absent(error), Some(index)) => {
                let labels = blob::labels_of(client, index).await?.unwrap_or_default();
                let stored = labels.contains_key(&child_label(digest));
                Ok(if stored {
                    Self::Damaged(error)
                } else {
                    Self::Foreign(error)
                })
            }
            (ReadFailure::Absent(error), None) | (ReadFailure::Damaged(error), _) => {
                Ok(Self::Damaged(error))
            }
        }
    }
}

// === impl CachedInfos ===

impl CachedInfos {
    /// Caches an image. Over the limit the largest images are evicted, and read again each time: they are
    /// few, and this way no image evicts one that is smaller than itself.
    fn insert(&mut self, target: &Digest, info: &Arc<ImageInfo>) {
        if self
            .by_target
            .insert(target.clone(), Arc::clone(info))
            .is_some()
        {
            return;
        }
        self.bytes = self.bytes.saturating_add(info.document_bytes());
        while self.bytes > CACHE_BYTES {
            let largest = self
                .by_target
                .iter()
                .max_by_key(|(_, info)| info.document_bytes());
            let Some(largest) = largest.map(|(target, _)| target.clone()) else {
                break;
            };
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
        let before = match content {
            RecordContent::Image(info) => {
                self.insert(target, info);
                self.unusable.remove(target)
            }
            RecordContent::Foreign(_) | RecordContent::Damaged(_) => {
                let again = Instant::now() + UNUSABLE_AGE;
                self.unusable.insert(
                    target.clone(),
                    UnusableContent {
                        content: content.clone(),
                        again,
                    },
                )
            }
        };
        let is_damaged = |content: &RecordContent| matches!(content, RecordContent::Damaged(_));
        is_damaged(content) && !before.is_some_and(|before| is_damaged(&before.content))
    }
}

// === impl InfoCache ===

impl InfoCache {
    fn infos(&self) -> MutexGuard<'_, CachedInfos> {
        self.infos.lock()
    }

    /// Evicts all images but these, and forgets what was damaged or foreign of others.
    pub(super) fn retain(&self, targets: &BTreeSet<Digest>) {
        let mut infos = self.infos();
        infos.by_target.retain(|target, _| targets.contains(target));
        infos.unusable.retain(|target, _| targets.contains(target));
        infos.bytes = infos
            .by_target
            .values()
            .fold(0, |sum, info| sum.saturating_add(info.document_bytes()));
    }

    /// Reads what is damaged or foreign again the next time: a pull may have replaced it.
    pub(super) fn check_all_again(&self) {
        let now = Instant::now();
        let mut infos = self.infos();
        infos.repairs += 1;
        infos
            .unusable
            .values_mut()
            .for_each(|unusable| unusable.again = now);
    }

    /// Before anything was read.
    pub(super) fn nothing_known(&self) -> KnownContents {
        KnownContents {
            by_target: HashMap::new(),
            repairs: self.infos().repairs,
        }
    }

    /// Reads this target once more, damaged or foreign as it may have been a short time ago.
    ///
    /// # Errors
    /// If containerd does not answer.
    pub(super) async fn check_again(
        &self,
        client: &Client,
        target: &Digest,
        known: &mut KnownContents,
    ) -> Result<()> {
        if let Some(unusable) = self.infos().unusable.get_mut(target) {
            unusable.again = Instant::now();
        }
        known.by_target.remove(target);
        self.look_known(client, target, known).await.map(drop)
    }

    /// As [`InfoCache::look`], but what is known already is not read. What was damaged or foreign is read again
    /// if a pull may have replaced it since.
    pub(super) async fn look_known(
        &self,
        client: &Client,
        target: &Digest,
        known: &mut KnownContents,
    ) -> Result<RecordContent> {
        let is_repaired = self.infos().repairs != known.repairs;
        let content = match known.by_target.get(target) {
            Some(content) if !is_repaired || matches!(content, RecordContent::Image(_)) => {
                content.clone()
            }
            Some(_) | None => self.look(client, target).await?,
        };
        known.by_target.insert(target.clone(), content.clone());
        Ok(content)
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
            let unusable = infos.unusable.get(target);
            if let Some(unusable) = unusable.filter(|unusable| Instant::now() < unusable.again) {
                return Ok(unusable.content.clone());
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
    let mut index = None;
    for _ in 0..MAX_DEPTH {
        let bytes = match blob::read(client, &digest).await {
            Ok(bytes) => bytes,
            Err(failure) => {
                return RecordContent::of_failure(client, failure, &digest, index.as_ref()).await;
            }
        };
        let manifest = match Manifest::parse(&digest.to_string(), None, &bytes) {
            Ok((_, manifest)) => manifest,
            Err(error) => return Ok(RecordContent::of_document(error)),
        };
        match manifest {
            Manifest::Index(parsed) => {
                match parsed.select(&digest.to_string(), &Platforms::of_this_machine()) {
                    Ok(entry) => index = Some(std::mem::replace(&mut digest, entry.digest.clone())),
                    Err(error) => return Ok(RecordContent::of_document(error)),
                }
            }
            Manifest::Image(image) => {
                let config = match blob::read(client, &image.config.digest).await {
                    Ok(config) => config,
                    Err(failure) => {
                        // Without the index: a manifest that is stored must have its configuration, so
                        // absence is damage.
                        return RecordContent::of_failure(
                            client,
                            failure,
                            &image.config.digest,
                            None,
                        )
                        .await;
                    }
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
                    manifest: digest,
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
