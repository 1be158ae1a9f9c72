//! A cache of images that tasks were created from lately. Two calls to containerd, for the image record and
//! for the snapshot, show whether an entry is still valid.

use std::collections::HashMap;

use containerd_client::services::v1 as api;
use parking_lot::{Mutex, MutexGuard};
use switchyard_core::id::Owner;
use switchyard_core::image::ImageReference;
use switchyard_core::{ErrorKind, Result};
use switchyard_registry::Digest;

use super::shared_types::RunnableImage;
use super::unpack;
use crate::client::{Client, QUICK, call};

/// Maximum number of cached images.
const MAX_ENTRIES: usize = 256;

/// The size in bytes of the documents of an image above which the image is not cached.
const MAX_DOCUMENT_BYTES: u64 = 64 << 10;

/// The images that references were resolved to.
#[derive(Debug, Default)]
pub(super) struct RunnableCache {
    state: Mutex<RunnableCacheState>,
}

#[derive(Debug, Default)]
struct RunnableCacheState {
    by_key: HashMap<RunnableKey, CachedImage>,
    /// Number of invalidations of the cache.
    generation: u64,
}

/// Exists while an image is removed. The cache is invalidated before, and again when this is dropped.
#[derive(Debug)]
pub(super) struct InvalidationGuard<'r>(&'r RunnableCache);

impl Drop for InvalidationGuard<'_> {
    fn drop(&mut self) {
        self.0.invalidate();
    }
}

/// The key of an entry: reference, snapshotter, and owner, because not every owner may use every image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RunnableKey {
    pub(super) reference: String,
    pub(super) snapshotter: String,
    pub(super) owner: Owner,
}

/// An image as it was found in its records.
#[derive(Debug)]
pub(super) struct FoundRunnable {
    pub(super) runnable: RunnableImage,
    /// The target of the record.
    pub(super) target: Digest,
    /// The value of [`RunnableCache::generation`] before the records were read.
    pub(super) generation: u64,
}

impl RunnableKey {
    pub(super) fn new(reference: &str, snapshotter: &str, owner: Owner) -> Self {
        Self {
            reference: reference.to_owned(),
            snapshotter: snapshotter.to_owned(),
            owner,
        }
    }
}

#[derive(Debug, Clone)]
struct CachedImage {
    target: Digest,
    runnable: RunnableImage,
}

impl RunnableCache {
    /// Returns the number of invalidations. To be read before the records from which an entry is made.
    pub(super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Caches the image that a reference was resolved to. Not if the reference is the beginning of an id,
    /// which may become ambiguous; not if the documents of the image are large; and not if the cache was
    /// invalidated since the records were read: then the owner's right to the image may have been read before
    /// it was removed.
    pub(super) fn insert(&self, key: RunnableKey, found: &FoundRunnable) {
        let FoundRunnable {
            runnable,
            target,
            generation,
        } = found;
        let reference = key.reference.as_str();
        let name = reference
            .parse::<ImageReference>()
            .map(|reference| reference.to_string());
        let exact = reference == runnable.name
            || reference == runnable.info.id.as_str()
            || name.is_ok_and(|name| name == runnable.name);
        if !exact || runnable.info.document_bytes() > MAX_DOCUMENT_BYTES {
            return;
        }
        let mut state = self.lock();
        if state.generation != *generation {
            return;
        }
        // Cleared as a whole, so that no order of use has to be kept.
        if state.by_key.len() >= MAX_ENTRIES {
            state.by_key.clear();
        }
        state.by_key.insert(
            key,
            CachedImage {
                target: target.clone(),
                runnable: runnable.clone(),
            },
        );
    }

    /// Invalidates the cache now, and again when the guard is dropped.
    pub(super) fn invalidate_around(&self) -> InvalidationGuard<'_> {
        self.invalidate();
        InvalidationGuard(self)
    }

    pub(super) fn invalidate(&self) {
        let mut state = self.lock();
        state.by_key.clear();
        state.generation += 1;
    }

    fn lock(&self) -> MutexGuard<'_, RunnableCacheState> {
        self.state.lock()
    }

    /// The cached image, if it is still valid: its image record exists with the same target, and so does its
    /// snapshot. Other clients of containerd may have changed either.
    pub(super) async fn get_if_valid(
        &self,
        client: &Client,
        key: &RunnableKey,
    ) -> Result<Option<RunnableImage>> {
        let snapshotter = key.snapshotter.as_str();
        let cached = self.lock().by_key.get(key).cloned();
        let Some(CachedImage { target, runnable }) = cached else {
            return Ok(None);
        };
        let name = runnable.name.clone();
        let what = format!("look up image {name}");
        let mut images = client.images();
        let unpacked = async {
            match &runnable.top {
                Some(top) => unpack::exists(client, snapshotter, top).await,
                None => Ok(true),
            }
        };
        let (record, unpacked) = tokio::join!(
            call(&what, QUICK, images.get(api::GetImageRequest { name })),
            unpacked
        );
        let same = match record {
            Ok(record) => record
                .image
                .and_then(|image| image.target)
                .is_some_and(|found| found.digest == target.to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if same && unpacked? {
            return Ok(Some(runnable));
        }
        self.lock().by_key.remove(key);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::ImageInfo;
    use super::super::index::tests::named;
    use super::*;

    fn found(info: &Arc<ImageInfo>, generation: u64) -> FoundRunnable {
        let record = named("docker.io/library/busybox:latest", 'a', 'b');
        let runnable = RunnableImage {
            info: Arc::clone(info),
            image_ref: String::new(),
            name: record.name.clone(),
            top: None,
        };
        FoundRunnable {
            runnable,
            target: record.target,
            generation,
        }
    }

    fn insert(cache: &RunnableCache, snapshotter: &str, found: &FoundRunnable) -> usize {
        let key = RunnableKey::new(&found.runnable.name, snapshotter, Owner::Kubernetes);
        cache.insert(key, found);
        cache.lock().by_key.len()
    }

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_in_bytes() {
        let cache = RunnableCache::default();
        let small = named("docker.io/library/busybox:latest", 'a', 'b').info;
        let large = Arc::new(ImageInfo {
            config_bytes: MAX_DOCUMENT_BYTES + 1,
            ..Arc::unwrap_or_clone(small.clone())
        });
        assert_eq!(
            insert(&cache, "overlayfs", &found(&large, cache.generation())),
            0
        );
        for number in 0..3 * MAX_ENTRIES {
            let found = found(&small, cache.generation());
            assert!(insert(&cache, &number.to_string(), &found) <= MAX_ENTRIES);
        }
    }

    #[test]
    fn what_was_read_before_somebody_let_go_is_not_remembered_after_it() {
        let cache = RunnableCache::default();
        let info = named("docker.io/library/busybox:latest", 'a', 'b').info;
        let insert = |generation| insert(&cache, "overlayfs", &found(&info, generation));
        let before = cache.generation();
        assert_eq!(insert(before), 1);
        let guard = cache.invalidate_around();
        assert_eq!(insert(before), 0);
        let during = cache.generation();
        assert_eq!(insert(during), 1);
        drop(guard);
        assert_eq!(
            insert(during),
            0,
            "the labels may have been read before they were removed"
        );
        assert_eq!(insert(cache.generation()), 1);
    }
}
