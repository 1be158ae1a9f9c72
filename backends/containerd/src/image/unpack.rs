//! Unpacking a layer into a snapshot with containerd's diff service: on top of the layer below, or detached
//! from it.

use std::collections::HashMap;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types;
use switchyard_core::trace::{Span, traced};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_proto::containerd::services::snapshots::v1::CommitSnapshotRequest;
use switchyard_registry::{Descriptor, Digest};

use super::content::{Labels, add_labels};
use super::detached::DetachedLayer;
use super::layer_sync::UnpackedSnapshots;
use super::snapshots::{self, extract_prefix};
use crate::client::{Client, QUICK, UNPACK, call, ignore_not_found};

/// Returns whether a snapshot of this name exists.
pub(crate) async fn exists(client: &Client, snapshotter: &str, name: &str) -> Result<bool> {
    Ok(snapshots::stat(client, snapshotter, name).await?.is_some())
}

/// A snapshot to be created from a layer.
pub(crate) struct UnpackTarget {
    /// Makes its calls under a lease.
    pub(crate) client: Client,
    pub(crate) snapshotter: String,
    pub(crate) name: String,
    pub(crate) layer: Descriptor,
    pub(crate) diff_id: Digest,
    /// Labels that a remote snapshotter needs ([`RemoteImage::labels`](super::remote_layers::RemoteImage::labels)); empty for others.
    pub(crate) labels: Labels,
    pub(crate) unpacked: Arc<UnpackedSnapshots>,
}

/// A snapshot that is not committed yet.
pub(crate) struct ActiveSnapshot {
    key: String,
    mounts: Vec<types::Mount>,
}

impl UnpackTarget {
    /// Unpacks the layer on top of the snapshot `parent`, which exists; empty for the lowest layer.
    pub(crate) async fn unpack_on(&self, parent: &str) -> Result<()> {
        match self.prepare(parent).await? {
            Some(extract) => self.unpack_into(extract).await,
            None => Ok(()),
        }
    }

    /// Unpacks the layer into a snapshot that was prepared for it on top of the layer below.
    pub(super) async fn unpack_into(&self, extract: ActiveSnapshot) -> Result<()> {
        let mounts = extract.mounts.clone();
        match self.apply(mounts).await {
            Ok(()) => self.commit(extract, "").await,
            Err(error) => {
                self.discard(&extract).await;
                Err(error)
            }
        }
    }

    /// Unpacks the layer without those below it, for [`UnpackTarget::commit_rebased`].
    ///
    /// `None`, with nothing left behind, if the snapshot exists already, if the layer can only be unpacked
    /// correctly on top of those below, or if the snapshotter does not keep its files in plain directories.
    pub(crate) async fn unpack_detached(&self) -> Result<Option<ActiveSnapshot>> {
        let Some(extract) = self.prepare("").await? else {
            return Ok(None);
        };
        let Some(detached) = DetachedLayer::of(&extract.mounts) else {
            self.discard(&extract).await;
            return Ok(None);
        };
        if let Err(error) = self.apply(detached.mounts()).await {
            self.discard(&extract).await;
            return Err(error);
        }
        if detached.lists_all_dirs().await {
            return Ok(Some(extract));
        }
        tracing::debug!(
            snapshot = self.name,
            "a layer does not list all its directories: unpacking it on top of its parent"
        );
        self.discard(&extract).await;
        Ok(None)
    }

    /// Commits a layer that was unpacked detached, on top of `parent`.
    pub(crate) async fn commit_rebased(&self, extract: ActiveSnapshot, parent: &str) -> Result<()> {
        self.commit(extract, parent).await
    }

    /// Prepares an active snapshot. `None` if the committed snapshot exists already, as it does if a remote
    /// snapshotter provides the layer.
    pub(super) async fn prepare(&self, parent: &str) -> Result<Option<ActiveSnapshot>> {
        let key = format!(
            "{} {}",
            snapshots::new_key(&self.client, &extract_prefix(&self.client)),
            self.name
        );
        let mut labels = self.labels.clone();
        labels.insert("containerd.io/snapshot.ref".to_owned(), self.name.clone());
        let request = snap::PrepareSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            key: key.clone(),
            parent: parent.to_owned(),
            labels,
        };
        let what = format!("prepare snapshot {}", self.name);
        // A remote snapshotter may download the layer before it answers.
        let limit = if self.labels.is_empty() {
            QUICK
        } else {
            UNPACK
        };
        match call(&what, limit, self.client.snapshots().prepare(request)).await {
            Ok(response) => {
                reach(CrashPoint::LayerPrepared);
                Ok(Some(ActiveSnapshot {
                    key,
                    mounts: response.mounts,
                }))
            }
            // The key is random, so that only the snapshot of the label can exist.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Has containerd unpack the layer into these mounts, and compares the digest of the result with the diff
    /// id.
    async fn apply(&self, mounts: Vec<types::Mount>) -> Result<()> {
        let describe =
            |span: &mut Span| span.set_with("switchyard.layer", || self.layer.digest.to_string());
        traced("unpack_layer", describe, self.apply_diff(mounts)).await
    }

    async fn apply_diff(&self, mounts: Vec<types::Mount>) -> Result<()> {
        let layer = &self.layer;
        let diff_id = &self.diff_id;
        let diff = types::Descriptor {
            media_type: layer.media_type.clone(),
            digest: layer.digest.to_string(),
            size: i64::try_from(layer.size).map_err(|_| {
                Error::invalid("layer", format!("{} is impossibly large", layer.digest))
            })?,
            ..Default::default()
        };
        let request = api::ApplyRequest {
            diff: Some(diff),
            mounts,
            ..Default::default()
        };
        let what = format!("unpack layer {}", layer.digest);
        let applied = call(&what, UNPACK, self.client.diff().apply(request))
            .await?
            .applied
            .unwrap_or_default();
        if applied.digest == diff_id.to_string() {
            reach(CrashPoint::LayerApplied);
            return Ok(());
        }
        Err(Error::invalid(
            "image",
            format!(
                "layer {} unpacks to {}, not to {diff_id} as its configuration says",
                layer.digest, applied.digest
            ),
        ))
    }

    /// Commits the snapshot under its name; with a `parent` that is not empty, on top of that.
    async fn commit(&self, extract: ActiveSnapshot, parent: &str) -> Result<()> {
        // A snapshotter reads them again when a container is created on this snapshot.
        let own = self.unpacked.labels();
        let request = CommitSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            name: self.name.clone(),
            key: extract.key.clone(),
            parent: parent.to_owned(),
            labels: self.labels.clone().into_iter().chain(own).collect(),
        };
        let what = format!("commit snapshot {}", self.name);
        let turn = self.unpacked.lock(&self.name).await;
        let committed = call(&what, QUICK, self.client.snapshot_commits().commit(request)).await;
        drop(turn);
        match committed {
            Ok(_) => self.unpacked.add(&self.name, &extract.mounts),
            Err(error) => {
                self.discard(&extract).await;
                // `AlreadyExists`: another client has committed the same snapshot meanwhile.
                if error.kind() != ErrorKind::AlreadyExists {
                    return Err(error);
                }
            }
        }
        reach(CrashPoint::LayerUnpacked);
        // Also after `AlreadyExists`: the other client may not have labelled this blob.
        let label = HashMap::from([(
            "containerd.io/uncompressed".to_owned(),
            self.diff_id.to_string(),
        )]);
        add_labels(&self.client, &self.layer.digest, label).await
    }

    /// Removes an active snapshot. What cannot be removed is only logged.
    pub(super) async fn discard(&self, extract: &ActiveSnapshot) {
        let key = &extract.key;
        let request = snap::RemoveSnapshotRequest {
            snapshotter: self.snapshotter.clone(),
            key: key.clone(),
        };
        let removed = call(
            &format!("remove snapshot {key}"),
            QUICK,
            self.client.snapshots().remove(request),
        )
        .await;
        if let Err(error) = ignore_not_found(removed) {
            tracing::warn!(
                snapshot = key,
                error = error.report(),
                "cannot remove an unfinished snapshot: containerd collects it after the lease is deleted"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::image::index::chain_ids;

    #[test]
    fn the_chain_is_the_one_of_the_image_specification() {
        let digest = |byte: &str| {
            format!("sha256:{}", byte.repeat(64))
                .parse::<Digest>()
                .unwrap()
        };
        let chain = chain_ids(&[digest("a"), digest("b")]);
        assert_eq!(chain[0], digest("a").to_string());
        let second = format!("{} {}", digest("a"), digest("b"));
        assert_eq!(
            chain[1],
            format!("sha256:{}", hex::encode(Sha256::digest(second.as_bytes())))
        );
        assert!(chain_ids(&[]).is_empty());
    }
}
