//! Images that tasks were made from lately: one look at each of two records tells whether what is known of them still holds.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use containerd_client::services::v1 as api;
use switchyard_core::id::Owner;
use switchyard_core::{ErrorKind, Result};
use switchyard_registry::{Digest, Reference};

use super::index::Named;
use super::{Runnable, unpack};
use crate::client::{Client, QUICK, call};

/// How many are remembered.
const REMEMBERED: usize = 256;

/// What a reference led to.
#[derive(Debug, Default)]
pub(super) struct Recent {
    known: Mutex<HashMap<Key, Known>>,
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
    /// Remembers what a reference led to, unless it is the beginning of an id, which another image may come to share.
    pub(super) fn remember(&self, key: Key, record: &Named, runnable: &Runnable) {
        let reference = key.reference.as_str();
        let name = reference.parse::<Reference>().map(|reference| reference.to_string());
        let exact = reference == record.name
            || reference == record.info.id.as_str()
            || name.is_ok_and(|name| name == record.name);
        if !exact {
            return;
        }
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let entry = Known { target: record.target.clone(), runnable: runnable.clone() };
        known.insert(key, entry);
    }

    /// Forgets everything: somebody lets go of an image.
    pub(super) fn forget(&self) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// What a reference led to, if it still does: its record is there with the same target, and its snapshot too, whoever may have
    /// been at them meanwhile.
    pub(super) async fn recall(&self, client: &Client, key: &Key) -> Result<Option<Runnable>> {
        let snapshotter = key.snapshotter.as_str();
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned();
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
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Ok(None)
    }
}
