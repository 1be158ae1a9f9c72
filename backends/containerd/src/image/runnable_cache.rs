//! Images that tasks were made from lately: one look at each of two records tells whether what is known of them still holds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use containerd_client::services::v1 as api;
use switchyard_core::id::Owner;
use switchyard_core::{ErrorKind, Result};
use switchyard_registry::{Digest, Reference};

use super::index::ImageRecord;
use super::{RunnableImage, unpack};
use crate::client::{Client, QUICK, call};

/// How many are remembered.
const MAX_ENTRIES: usize = 256;

/// An image with larger documents, in bytes, is not remembered but found anew each time.
const MAX_DOCUMENT_BYTES: u64 = 64 << 10;

/// What a reference led to.
#[derive(Debug, Default)]
pub(super) struct RunnableCache {
    state: Mutex<RunnableCacheState>,
}

#[derive(Debug, Default)]
struct RunnableCacheState {
    by_key: HashMap<RunnableKey, CachedImage>,
    /// How often everything was forgotten.
    generation: u64,
}

/// Somebody is letting go of an image: everything is forgotten before and after.
#[derive(Debug)]
pub(super) struct InvalidationGuard<'r>(&'r RunnableCache);

impl Drop for InvalidationGuard<'_> {
    fn drop(&mut self) {
        self.0.invalidate();
    }
}

/// What is asked for, for which snapshotter, and by whom: what one may use another may not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RunnableKey {
    reference: String,
    snapshotter: String,
    owner: Owner,
}

impl RunnableKey {
    pub(super) fn new(reference: &str, snapshotter: &str, owner: Owner) -> Self {
        Self { reference: reference.to_owned(), snapshotter: snapshotter.to_owned(), owner }
    }
}

#[derive(Debug, Clone)]
struct CachedImage {
    target: Digest,
    runnable: RunnableImage,
}

impl RunnableCache {
    /// How often everything was forgotten, to be asked before a record is read that is to be remembered.
    pub(super) fn generation(&self) -> u64 {
        self.lock().generation
    }

    /// Remembers what a reference led to, unless it is the beginning of an id, which another image may come to share, the image is a
    /// large one, or somebody has let go of an image since `generation`: the right may be one that was read before.
    pub(super) fn insert(
        &self,
        key: RunnableKey,
        record: &ImageRecord,
        runnable: &RunnableImage,
        generation: u64,
    ) {
        let reference = key.reference.as_str();
        let name = reference.parse::<Reference>().map(|reference| reference.to_string());
        let exact = reference == record.name
            || reference == record.info.id.as_str()
            || name.is_ok_and(|name| name == record.name);
        if !exact || runnable.info.document_bytes() > MAX_DOCUMENT_BYTES {
            return;
        }
        let mut known = self.lock();
        if known.generation != generation {
            return;
        }
        if known.by_key.len() >= MAX_ENTRIES {
            known.by_key.clear();
        }
        let entry = CachedImage { target: record.target.clone(), runnable: runnable.clone() };
        known.by_key.insert(key, entry);
    }

    /// Forgets everything now, and again when what it gives is dropped.
    pub(super) fn invalidate_around(&self) -> InvalidationGuard<'_> {
        self.invalidate();
        InvalidationGuard(self)
    }

    fn invalidate(&self) {
        let mut known = self.lock();
        known.by_key.clear();
        known.generation += 1;
    }

    fn lock(&self) -> MutexGuard<'_, RunnableCacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a reference led to, if it still does: its record is there with the same target, and its snapshot too, whoever may have
    /// been at them meanwhile.
    pub(super) async fn get_if_valid(
        &self,
        client: &Client,
        key: &RunnableKey,
    ) -> Result<Option<RunnableImage>> {
        let snapshotter = key.snapshotter.as_str();
        let known = self.lock().by_key.get(key).cloned();
        let Some(CachedImage { target, runnable }) = known else { return Ok(None) };
        let name = runnable.name.clone();
        let what = format!("look up image {name}");
        let mut images = client.images();
        let unpacked = async {
            match &runnable.top {
                Some(top) => unpack::exists(client, snapshotter, top).await,
                None => Ok(true),
            }
        };
        let (record, unpacked) =
            tokio::join!(call(&what, QUICK, images.get(api::GetImageRequest { name })), unpacked);
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
    use super::super::index::tests::named;
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_in_bytes() {
        let recent = RunnableCache::default();
        let small = named("docker.io/library/busybox:latest", 'a', 'b');
        let info = std::sync::Arc::unwrap_or_clone(small.info.clone());
        let large = super::super::ImageInfo { config_bytes: MAX_DOCUMENT_BYTES + 1, ..info };
        let large = ImageRecord { info: std::sync::Arc::new(large), ..small.clone() };
        let remember = |record: &ImageRecord, snapshotter: &str| {
            let info = std::sync::Arc::clone(&record.info);
            let runnable =
                RunnableImage { info, image_ref: String::new(), name: record.name.clone(), top: None };
            let key = RunnableKey::new(&record.name, snapshotter, Owner::Kubernetes);
            recent.insert(key, record, &runnable, recent.generation());
            recent.lock().by_key.len()
        };
        assert_eq!(remember(&large, "overlayfs"), 0);
        for number in 0..3 * MAX_ENTRIES {
            assert!(remember(&small, &number.to_string()) <= MAX_ENTRIES);
        }
    }

    #[test]
    fn what_was_read_before_somebody_let_go_is_not_remembered_after_it() {
        let recent = RunnableCache::default();
        let record = named("docker.io/library/busybox:latest", 'a', 'b');
        let info = std::sync::Arc::clone(&record.info);
        let runnable = RunnableImage { info, image_ref: String::new(), name: record.name.clone(), top: None };
        let remember = |generation| {
            let key = RunnableKey::new(&record.name, "overlayfs", Owner::Kubernetes);
            recent.insert(key, &record, &runnable, generation);
            recent.lock().by_key.len()
        };
        let before = recent.generation();
        assert_eq!(remember(before), 1);
        let forgetting = recent.invalidate_around();
        assert_eq!(remember(before), 0);
        let amid = recent.generation();
        assert_eq!(remember(amid), 1);
        drop(forgetting);
        assert_eq!(remember(amid), 0, "the labels may have been read before they went");
        assert_eq!(remember(recent.generation()), 1);
    }
}
