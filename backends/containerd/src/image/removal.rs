//! Removal of an image: which of its records go is decided and carried out under the lock of the records.

use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::types;
use switchyard_core::backoff::Backoff;
use switchyard_core::id::Owner;
use switchyard_core::image::InUse;
use switchyard_core::{ErrorKind, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_registry::Digest;

use super::index::{self, ImageRecord, ImageRecords};
use super::infos::KnownContents;
use super::record_lock::ChangeGuard;
use super::{ContainerdImageStore, holders};
use crate::client::{COLLECTION, Client, QUICK, call, ignore_not_found};

/// The effects of a removal.
#[derive(Debug, Default)]
struct ImageRemoval<'r> {
    /// The records that are kept for others, without the label of the owner.
    released: Vec<&'r ImageRecord>,
    /// The names and targets of the records that are deleted. The name that was asked for comes last, so that
    /// the same request finishes a removal that was cut off.
    deleted: Vec<(&'r str, &'r Digest)>,
}

/// Decides what is removed for this owner. Nothing, if nothing has that name. Of a damaged image all names go
/// that have the same target, whoever holds it: nobody can use it, and it is known to no list.
///
/// # Errors
/// `InvalidArgument` if the reference is the beginning of several ids; that of `in_use`.
fn plan<'r>(
    records: &'r ImageRecords,
    reference: &str,
    owner: Owner,
    in_use: &InUse<'_>,
) -> Result<ImageRemoval<'r>> {
    let mut removal = ImageRemoval::default();
    let ImageRecords { usable, damaged } = records;
    let Some(found) = index::find(usable, reference)? else {
        if let Some(found) = index::find_damaged(damaged, reference) {
            let others = damaged
                .iter()
                .filter(|other| other.target == found.target && other.name != found.name);
            let names = others.chain([found]);
            removal.deleted = names
                .map(|record| (record.name.as_str(), &record.target))
                .collect();
        }
        return Ok(removal);
    };
    let id = &found.info.id;
    let is_named = |other: &str| {
        // The beginning of several ids is no name of any of them.
        index::find(usable, other)
            .is_ok_and(|other| other.is_some_and(|other| other.info.id == *id))
    };
    let in_use = in_use(id, &is_named)?;
    let others = usable
        .iter()
        .filter(|record| record.info.id == *id && record.name != found.name);
    for record in others.chain([found]) {
        match holders::removal_action(&record.holders, owner, in_use) {
            holders::RemovalAction::Delete => removal.deleted.push((&record.name, &record.target)),
            holders::RemovalAction::Release => removal.released.push(record),
            holders::RemovalAction::Keep => {}
        }
    }
    Ok(removal)
}

impl ContainerdImageStore {
    /// Carries out [`ImageStore::remove`](switchyard_core::image::ImageStore::remove).
    ///
    /// The content is read before the lock is taken, as a disk that fails may take its time; under the lock
    /// only containerd's database is used, unless records came or a pull ended in between. Damage, for which
    /// names of other owners are deleted, is checked again.
    pub(super) async fn remove_image(
        &self,
        reference: &str,
        owner: Owner,
        in_use: &InUse<'_>,
    ) -> Result<()> {
        // Who removes an image may need the space.
        self.leases.end_all_kept().await;
        let mut known = self.read_contents(reference).await?;
        let lock = self
            .record_lock
            .change(&format!("remove image {reference}"))
            .await?;
        let records = self.records_with(&mut known).await?;
        let ImageRemoval { released, deleted } = plan(&records, reference, owner, in_use)?;
        // What is cached of this image may depend on the access right that is removed here.
        let _guard = self.runnable_cache.invalidate_around();
        for record in released {
            self.release_hold(record, owner).await?;
        }
        if let Some(((last, target), others)) = deleted.split_last() {
            for (name, target) in others {
                delete(&self.client, name, target, false).await?;
            }
            self.delete_last(last, target, lock).await?;
        }
        self.usage.invalidate();
        Ok(())
    }

    /// The content of all records. That of this reference is read again if it was found to be damaged before.
    async fn read_contents(&self, reference: &str) -> Result<KnownContents> {
        let mut known = self.infos.nothing_known();
        let ImageRecords { usable, damaged } = self.records_with(&mut known).await?;
        if index::find(&usable, reference)?.is_none()
            && let Some(found) = index::find_damaged(&damaged, reference)
        {
            self.infos
                .check_again(&self.client, &found.target, &mut known)
                .await?;
        }
        Ok(known)
    }

    /// Deletes the last record of a removal, and waits for containerd's garbage collection, so that the space
    /// is free when this returns. The lock is held until the record is gone: the collection may take as long
    /// as the removal of many files, and everybody else's pulls and tasks would wait for it.
    async fn delete_last(&self, name: &str, target: &Digest, lock: ChangeGuard) -> Result<()> {
        let deletion = delete(&self.client, name, target, true);
        tokio::pin!(deletion);
        tokio::select! {
            biased;
            deleted = &mut deletion => return deleted,
            () = gone(&self.client, name) => drop(lock),
        }
        deletion.await
    }

    /// Removes the label of a holder from an image record and keeps the record. A single update, so that a
    /// kill leaves no record that gives access to more owners than before.
    async fn release_hold(&self, record: &ImageRecord, owner: Owner) -> Result<()> {
        let labels = holders::release_labels(&record.holders, owner, &record.target);
        let paths = labels.keys().map(|key| format!("labels.{key}")).collect();
        let image = api::Image {
            name: record.name.clone(),
            labels,
            // The mask leaves the target as it is, but containerd 1.7 and later crash on a request without
            // one.
            target: Some(descriptor(&record.target)),
            ..Default::default()
        };
        let mask = prost_types::FieldMask { paths };
        let request = api::UpdateImageRequest {
            image: Some(image),
            update_mask: Some(mask),
            ..Default::default()
        };
        let what = format!("remove the holder of image {}", record.name);
        ignore_not_found(call(&what, QUICK, self.client.images().update(request)).await)?;
        reach(CrashPoint::ImageLetGo);
        Ok(())
    }
}

/// Deletes a record. containerd 2.x does so only if it still has this target: another client may have moved
/// the name. With `sync` this returns after a garbage collection.
async fn delete(client: &Client, name: &str, target: &Digest, sync: bool) -> Result<()> {
    let target = Some(descriptor(target));
    let request = api::DeleteImageRequest {
        name: name.to_owned(),
        sync,
        target,
    };
    let what = format!("remove image {name}");
    ignore_not_found(call(&what, COLLECTION, client.images().delete(request)).await)?;
    reach(CrashPoint::ImageUnnamed);
    Ok(())
}

/// Waits until there is no record of this name.
async fn gone(client: &Client, name: &str) {
    let mut backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(500));
    let what = format!("look up image {name}");
    loop {
        backoff.wait().await;
        let request = api::GetImageRequest {
            name: name.to_owned(),
        };
        let found = call(&what, QUICK, client.images().get(request)).await;
        if found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            return;
        }
    }
}

/// A target that has only its digest.
fn descriptor(digest: &Digest) -> types::Descriptor {
    types::Descriptor {
        digest: digest.to_string(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
