//! Images that tasks were made from lately: one look at each of two records tells whether what is known of them still holds.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use containerd_client::services::v1 as api;
use switchyard_core::id::Owner;
use switchyard_core::{ErrorKind, Result};
use switchyard_registry::{Digest, Reference};

use super::index::Named;
use super::{Runnable, unpack};
use crate::client::{Client, QUICK, call};

/// How many are remembered.
const REMEMBERED: usize = 256;

/// An image with larger documents, in bytes, is not remembered but found anew each time.
const REMEMBERED_BYTES: u64 = 64 << 10;

/// What a reference led to.
#[derive(Debug, Default)]
pub(super) struct Recent {
    known: Mutex<All>,
}

#[derive(Debug, Default)]
struct All {
    by_key: HashMap<Key, Known>,
    /// How often everything was forgotten.
    generation: u64,
}

/// Somebody is letting go of an image: everything is forgotten before and after.
#[derive(Debug)]
pub(super) struct Forgetting<'r>(&'r Recent);

impl Drop for Forgetting<'_> {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// What is asked for, for which snapshotter, and by whom: what one may use another may not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    reference: String,
    snapshotter: String,
    owner: Owner,
}

impl Key {
    pub(super) fn new(reference: &str, snapshotter: &str, owner: Owner) -> Self {
        Self { reference: reference.to_owned(), snapshotter: snapshotter.to_owned(), owner }
    }
}

#[derive(Debug, Clone)]
struct Known {
    target: Digest,
    runnable: Runnable,
}

impl Recent {
    /// How often everything was forgotten, to be asked before a record is read that is to be remembered.
    pub(super) fn generation(&self) -> u64 {
        self.known().generation
    }

    /// Remembers what a reference led to, unless it is the beginning of an id, which another image may come to share, the image is a
    /// large one, or somebody has let go of an image since `generation`: the right may be one that was read before.
    pub(super) fn remember(&self, key: Key, record: &Named, runnable: &Runnable, generation: u64) {
        let reference = key.reference.as_str();
        let name = reference.parse::<Reference>().map(|reference| reference.to_string());
        let exact = reference == record.name
            || reference == record.info.id.as_str()
            || name.is_ok_and(|name| name == record.name);
        if !exact || runnable.info.read_bytes() > REMEMBERED_BYTES {
            return;
        }
        let mut known = self.known();
        if known.generation != generation {
            return;
        }
        if known.by_key.len() >= REMEMBERED {
            known.by_key.clear();
        }
        let entry = Known { target: record.target.clone(), runnable: runnable.clone() };
        known.by_key.insert(key, entry);
    }

    /// Forgets everything now, and again when what it gives is dropped.
    pub(super) fn forget_around(&self) -> Forgetting<'_> {
        self.forget();
        Forgetting(self)
    }

    fn forget(&self) {
        let mut known = self.known();
        known.by_key.clear();
        known.generation += 1;
    }

    fn known(&self) -> MutexGuard<'_, All> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a reference led to, if it still does: its record is there with the same target, and its snapshot too, whoever may have
    /// been at them meanwhile.
    pub(super) async fn recall(&self, client: &Client, key: &Key) -> Result<Option<Runnable>> {
        let snapshotter = key.snapshotter.as_str();
        let known = self.known().by_key.get(key).cloned();
        let Some(Known { target, runnable }) = known else { return Ok(None) };
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
        self.known().by_key.remove(key);
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::super::index::tests::named;
    use super::*;

    #[test]
    fn what_is_remembered_is_bounded_in_number_and_in_bytes() {
        let recent = Recent::default();
        let small = named("docker.io/library/busybox:latest", 'a', 'b');
        let info = std::sync::Arc::unwrap_or_clone(small.info.clone());
        let large = super::super::ImageInfo { config_bytes: REMEMBERED_BYTES + 1, ..info };
        let large = Named { info: std::sync::Arc::new(large), ..small.clone() };
        let remember = |record: &Named, snapshotter: &str| {
            let info = std::sync::Arc::clone(&record.info);
            let runnable = Runnable { info, image_ref: String::new(), name: record.name.clone(), top: None };
            let key = Key::new(&record.name, snapshotter, Owner::Kubernetes);
            recent.remember(key, record, &runnable, recent.generation());
            recent.known().by_key.len()
        };
        assert_eq!(remember(&large, "overlayfs"), 0);
        for number in 0..3 * REMEMBERED {
            assert!(remember(&small, &number.to_string()) <= REMEMBERED);
        }
    }

    #[test]
    fn what_was_read_before_somebody_let_go_is_not_remembered_after_it() {
        let recent = Recent::default();
        let record = named("docker.io/library/busybox:latest", 'a', 'b');
        let info = std::sync::Arc::clone(&record.info);
        let runnable = Runnable { info, image_ref: String::new(), name: record.name.clone(), top: None };
        let remember = |generation| {
            let key = Key::new(&record.name, "overlayfs", Owner::Kubernetes);
            recent.remember(key, &record, &runnable, generation);
            recent.known().by_key.len()
        };
        let before = recent.generation();
        assert_eq!(remember(before), 1);
        let forgetting = recent.forget_around();
        assert_eq!(remember(before), 0);
        let amid = recent.generation();
        assert_eq!(remember(amid), 1);
        drop(forgetting);
        assert_eq!(remember(amid), 0, "the labels may have been read before they went");
        assert_eq!(remember(recent.generation()), 1);
    }
}
