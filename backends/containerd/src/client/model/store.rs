//! The store of the model of containerd, and the effects of calls on it.
//!
//! Longer than 500 lines because the parts of one store share its private fields.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types;
use prost_types::{FieldMask, Timestamp};
use switchyard_proto::containerd::services::content::v1 as content;
pub(super) use switchyard_proto::containerd::services::content::v1::{
    WriteContentRequest as Write, WriteContentResponse as Written,
};
pub(super) use switchyard_proto::containerd::services::snapshots::v1::CommitSnapshotRequest as Commit;
use switchyard_registry::Digest;
use tonic::Status;

type ModelAnswer<T> = Result<T, Status>;
type ModelLabels = HashMap<String, String>;

/// The database and the disk of the model.
#[derive(Debug, Default)]
pub(crate) struct Store {
    pub(crate) images: BTreeMap<String, api::Image>,
    /// Every state that an image record has had, in order.
    pub(crate) image_history: Vec<api::Image>,
    /// The blobs that the database has: their labels.
    pub(crate) blobs: BTreeMap<String, ModelLabels>,
    /// The files of blobs, by digest.
    pub(crate) files: BTreeMap<String, Bytes>,
    /// Blobs of other namespaces: their files stay.
    pub(crate) elsewhere: BTreeSet<String>,
    pub(crate) snapshots: BTreeMap<(String, String), snap::Info>,
    /// The snapshotters; `overlayfs` if there is none.
    pub(crate) snapshotters: BTreeSet<String>,
    /// The digests of the layers that the snapshotters other than `overlayfs` provide.
    pub(crate) provided: BTreeSet<String>,
    /// The leases, with the blobs that each protects.
    pub(crate) leases: BTreeMap<String, BTreeSet<String>>,
    writes: BTreeMap<String, Vec<u8>>,
    locked: BTreeSet<String>,
    clock: i64,
}

pub(super) fn name_of_new(request: &api::CreateImageRequest) -> String {
    request
        .image
        .as_ref()
        .map(|image| image.name.clone())
        .unwrap_or_default()
}

pub(super) fn name_of_changed(request: &api::UpdateImageRequest) -> String {
    request
        .image
        .as_ref()
        .map(|image| image.name.clone())
        .unwrap_or_default()
}

pub(super) fn digest_of_changed(request: &api::UpdateRequest) -> String {
    request
        .info
        .as_ref()
        .map(|info| info.digest.clone())
        .unwrap_or_default()
}

pub(super) fn digest_of_applied(request: &api::ApplyRequest) -> String {
    request
        .diff
        .as_ref()
        .map(|diff| diff.digest.clone())
        .unwrap_or_default()
}

pub(super) fn added_to_lease(request: &api::AddResourceRequest) -> String {
    request
        .resource
        .as_ref()
        .map(|resource| resource.id.clone())
        .unwrap_or_default()
}

pub(super) fn name_of_relabelled(request: &snap::UpdateSnapshotRequest) -> String {
    request
        .info
        .as_ref()
        .map(|info| info.name.clone())
        .unwrap_or_default()
}

/// Changes the labels that the mask names; an empty value removes a label.
fn relabel(labels: &mut ModelLabels, new: &ModelLabels, mask: Option<FieldMask>) {
    for path in mask.map(|mask| mask.paths).unwrap_or_default() {
        let Some(key) = path.strip_prefix("labels.") else {
            continue;
        };
        match new.get(key).filter(|value| !value.is_empty()) {
            Some(value) => drop(labels.insert(key.to_owned(), value.clone())),
            None => drop(labels.remove(key)),
        }
    }
}

// === images ===

impl Store {
    pub(super) fn list_images(
        &mut self,
        _: api::ListImagesRequest,
    ) -> ModelAnswer<api::ListImagesResponse> {
        Ok(api::ListImagesResponse {
            images: self.images.values().cloned().collect(),
        })
    }

    pub(super) fn get_image(
        &mut self,
        request: api::GetImageRequest,
    ) -> ModelAnswer<api::GetImageResponse> {
        let image = self.images.get(&request.name).cloned();
        let image = image
            .ok_or_else(|| Status::not_found(format!("image {:?}: not found", request.name)))?;
        Ok(api::GetImageResponse { image: Some(image) })
    }

    pub(super) fn create_image(
        &mut self,
        request: api::CreateImageRequest,
    ) -> ModelAnswer<api::CreateImageResponse> {
        let image = request.image.unwrap_or_default();
        if self.images.contains_key(&image.name) {
            return Err(Status::already_exists(image.name));
        }
        self.image_history.push(image.clone());
        self.images.insert(image.name.clone(), image.clone());
        Ok(api::CreateImageResponse { image: Some(image) })
    }

    pub(super) fn update_image(
        &mut self,
        request: api::UpdateImageRequest,
    ) -> ModelAnswer<api::UpdateImageResponse> {
        let new = request.image.unwrap_or_default();
        let image = self
            .images
            .get_mut(&new.name)
            .ok_or_else(|| Status::not_found(new.name.clone()))?;
        let mask = request.update_mask;
        if mask
            .as_ref()
            .is_some_and(|mask| mask.paths.iter().any(|path| path == "target"))
        {
            image.target.clone_from(&new.target);
        }
        relabel(&mut image.labels, &new.labels, mask);
        let image = image.clone();
        self.image_history.push(image.clone());
        Ok(api::UpdateImageResponse { image: Some(image) })
    }

    /// As containerd 2.x: not if it has another target than the request names.
    pub(super) fn delete_image(&mut self, request: api::DeleteImageRequest) -> ModelAnswer<()> {
        let target = |target: &Option<types::Descriptor>| {
            target.as_ref().map(|target| target.digest.clone())
        };
        let found = self
            .images
            .get(&request.name)
            .and_then(|image| target(&image.target));
        if target(&request.target).is_some_and(|wanted| Some(wanted) != found) {
            return Err(Status::not_found(format!(
                "image {:?} has another target",
                request.name
            )));
        }
        self.images
            .remove(&request.name)
            .map(drop)
            .ok_or_else(|| Status::not_found(request.name))
    }
}

// === content ===

impl Store {
    /// Stores a blob; its digest.
    pub(crate) fn add_blob(&mut self, bytes: impl Into<Bytes>) -> Digest {
        let bytes = bytes.into();
        let digest = Digest::sha256(&bytes);
        self.blobs.insert(digest.to_string(), ModelLabels::new());
        self.files.insert(digest.to_string(), bytes);
        digest
    }

    pub(super) fn blob_info(
        &mut self,
        request: api::InfoRequest,
    ) -> ModelAnswer<api::InfoResponse> {
        let labels = self.blobs.get(&request.digest).cloned();
        let labels = labels.ok_or_else(|| Status::not_found(request.digest.clone()))?;
        Ok(api::InfoResponse {
            info: Some(api::Info {
                digest: request.digest,
                labels,
                ..Default::default()
            }),
        })
    }

    pub(super) fn update_blob(
        &mut self,
        request: api::UpdateRequest,
    ) -> ModelAnswer<api::UpdateResponse> {
        let new = request.info.unwrap_or_default();
        let labels = self
            .blobs
            .get_mut(&new.digest)
            .ok_or_else(|| Status::not_found(new.digest.clone()))?;
        relabel(labels, &new.labels, request.update_mask);
        Ok(api::UpdateResponse::default())
    }

    /// The file stays until garbage is collected.
    pub(super) fn delete_blob(&mut self, request: api::DeleteContentRequest) -> ModelAnswer<()> {
        self.blobs
            .remove(&request.digest)
            .map(drop)
            .ok_or_else(|| Status::not_found(request.digest))
    }

    pub(super) fn read_blob(
        &mut self,
        request: api::ReadContentRequest,
    ) -> ModelAnswer<api::ReadContentResponse> {
        let file = self
            .files
            .get(&request.digest)
            .filter(|_| self.blobs.contains_key(&request.digest));
        let data = file
            .ok_or_else(|| Status::not_found(request.digest))?
            .to_vec();
        Ok(api::ReadContentResponse { offset: 0, data })
    }

    pub(super) fn list_blobs(
        &mut self,
        _: api::ListContentRequest,
    ) -> ModelAnswer<api::ListContentResponse> {
        let size = |digest: &str| self.files.get(digest).map_or(0, Bytes::len);
        let info = |digest: &String| api::Info {
            digest: digest.clone(),
            size: i64::try_from(size(digest)).unwrap(),
            ..Default::default()
        };
        Ok(api::ListContentResponse {
            info: self.blobs.keys().map(info).collect(),
        })
    }

    pub(super) fn write_status(
        &mut self,
        request: api::StatusRequest,
    ) -> ModelAnswer<api::StatusResponse> {
        let written = self
            .writes
            .get(&request.r#ref)
            .ok_or_else(|| Status::not_found(&request.r#ref))?;
        let offset = i64::try_from(written.len()).unwrap();
        Ok(api::StatusResponse {
            status: Some(api::Status {
                offset,
                ..Default::default()
            }),
        })
    }

    pub(super) fn abort_write(&mut self, request: api::AbortRequest) -> ModelAnswer<()> {
        self.writes
            .remove(&request.r#ref)
            .map(drop)
            .ok_or_else(|| Status::not_found(request.r#ref))
    }

    /// Locks a write for one stream. A blob that is there is put under the lease, as the one that is written.
    pub(super) fn open_write(&mut self, first: &Write, lease: &str) -> ModelAnswer<()> {
        if let Some(protected) = self.leases.get_mut(lease) {
            protected.insert(first.expected.clone());
        }
        if self.blobs.contains_key(&first.expected) {
            return Err(Status::already_exists(format!(
                "content {}",
                first.expected
            )));
        }
        if !self.locked.insert(first.r#ref.clone()) {
            return Err(Status::unavailable(format!(
                "ref {} locked: unavailable",
                first.r#ref
            )));
        }
        self.writes.entry(first.r#ref.clone()).or_default();
        Ok(())
    }

    pub(super) fn unlock_write(&mut self, name: &str) {
        self.locked.remove(name);
    }

    pub(super) fn write(&mut self, name: &str, message: Write) -> ModelAnswer<Written> {
        let action = message.action();
        let data = self
            .writes
            .get_mut(name)
            .ok_or_else(|| Status::not_found(name))?;
        if message.action() != content::WriteAction::Stat {
            data.truncate(usize::try_from(message.offset).unwrap());
            data.extend_from_slice(&message.data);
        }
        let offset = i64::try_from(data.len()).unwrap();
        let mut written = Written {
            action: action.into(),
            offset,
            ..Default::default()
        };
        if action == content::WriteAction::Commit {
            let digest = Digest::sha256(data).to_string();
            if !message.expected.is_empty() && message.expected != digest {
                return Err(Status::failed_precondition("unexpected commit digest"));
            }
            let data = Bytes::from(self.writes.remove(name).unwrap_or_default());
            self.blobs
                .insert(digest.clone(), message.labels.into_iter().collect());
            // As in containerd: a file that is there is taken for the same.
            self.files.entry(digest.clone()).or_insert(data);
            written.digest = digest;
        }
        Ok(written)
    }

    pub(super) fn apply(&mut self, request: api::ApplyRequest) -> ModelAnswer<api::ApplyResponse> {
        let digest = request.diff.unwrap_or_default().digest;
        let file = self
            .files
            .get(&digest)
            .filter(|_| self.blobs.contains_key(&digest));
        let file = file.ok_or_else(|| Status::not_found(format!("content {digest}")))?;
        if Digest::sha256(file).to_string() != digest {
            return Err(Status::unknown("failed to extract layer: unexpected EOF"));
        }
        // The layers of tests are not compressed.
        let applied = types::Descriptor {
            digest,
            ..Default::default()
        };
        Ok(api::ApplyResponse {
            applied: Some(applied),
        })
    }
}

// === leases ===

impl Store {
    pub(super) fn create_lease(
        &mut self,
        request: api::CreateRequest,
    ) -> ModelAnswer<api::CreateResponse> {
        self.leases.entry(request.id).or_default();
        Ok(api::CreateResponse::default())
    }

    pub(super) fn add_resource(&mut self, request: api::AddResourceRequest) -> ModelAnswer<()> {
        let resource = request.resource.unwrap_or_default();
        if resource.r#type != "content" {
            return Err(Status::unimplemented(resource.r#type));
        }
        let lease = self
            .leases
            .get_mut(&request.id)
            .ok_or_else(|| Status::not_found(request.id))?;
        lease.insert(resource.id);
        Ok(())
    }

    /// With `sync`, garbage is collected.
    pub(super) fn delete_lease(&mut self, request: api::DeleteRequest) -> ModelAnswer<()> {
        if self.leases.remove(&request.id).is_none() {
            return Err(Status::not_found(request.id));
        }
        if request.sync {
            self.collect_garbage();
        }
        Ok(())
    }

    /// Removes the blobs that no image record and no lease refers to, also by labels, and the files of blobs
    /// that are gone. Snapshots stay.
    fn collect_garbage(&mut self) {
        let targets = self
            .images
            .values()
            .filter_map(|image| Some(image.target.as_ref()?.digest.clone()));
        let mut next: Vec<String> = targets
            .chain(self.leases.values().flatten().cloned())
            .collect();
        let mut used = BTreeSet::new();
        while let Some(digest) = next.pop() {
            let labels = self.blobs.get(&digest).into_iter().flatten();
            if used.insert(digest) {
                let references =
                    labels.filter(|(key, _)| key.starts_with("containerd.io/gc.ref.content"));
                next.extend(references.map(|(_, digest)| digest.clone()));
            }
        }
        self.blobs.retain(|digest, _| used.contains(digest));
        self.files
            .retain(|digest, _| self.blobs.contains_key(digest) || self.elsewhere.contains(digest));
    }
}

// === snapshots ===

impl Store {
    /// Stores a committed snapshot.
    pub(crate) fn add_snapshot(
        &mut self,
        snapshotter: &str,
        name: &str,
        parent: &str,
        labels: ModelLabels,
    ) {
        self.clock += 1;
        let info = snap::Info {
            name: name.to_owned(),
            parent: parent.to_owned(),
            kind: snap::Kind::Committed.into(),
            created_at: Some(Timestamp {
                seconds: self.clock,
                nanos: 0,
            }),
            labels,
            ..Default::default()
        };
        self.snapshots
            .insert((snapshotter.to_owned(), name.to_owned()), info);
    }

    /// Stores an active snapshot.
    pub(crate) fn add_active(&mut self, snapshotter: &str, key: &str, parent: &str) {
        let request = snap::PrepareSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            key: key.to_owned(),
            parent: parent.to_owned(),
            labels: ModelLabels::new(),
        };
        self.prepare_snapshot(request).unwrap();
    }

    fn snapshot(&mut self, snapshotter: &str, key: &str) -> ModelAnswer<&mut snap::Info> {
        let of = (snapshotter.to_owned(), key.to_owned());
        self.snapshots
            .get_mut(&of)
            .ok_or_else(|| Status::not_found(format!("snapshot {key} does not exist")))
    }

    pub(super) fn stat_snapshot(
        &mut self,
        request: snap::StatSnapshotRequest,
    ) -> ModelAnswer<snap::StatSnapshotResponse> {
        let info = self.snapshot(&request.snapshotter, &request.key)?.clone();
        Ok(snap::StatSnapshotResponse { info: Some(info) })
    }

    pub(super) fn prepare_snapshot(
        &mut self,
        request: snap::PrepareSnapshotRequest,
    ) -> ModelAnswer<snap::PrepareSnapshotResponse> {
        if !request.parent.is_empty() {
            self.snapshot(&request.snapshotter, &request.parent)?;
        }
        let layer = request
            .labels
            .get("containerd.io/snapshot/cri.layer-digest");
        if request.snapshotter != "overlayfs"
            && layer.is_some_and(|layer| self.provided.contains(layer))
        {
            let name = request.labels["containerd.io/snapshot.ref"].clone();
            let (snapshotter, parent) = (&request.snapshotter, &request.parent);
            self.add_snapshot(snapshotter, &name, parent, request.labels.clone());
            return Err(Status::already_exists(format!("target snapshot {name:?}")));
        }
        let info = snap::Info {
            name: request.key.clone(),
            parent: request.parent,
            kind: snap::Kind::Active.into(),
            labels: request.labels,
            ..Default::default()
        };
        self.snapshots
            .insert((request.snapshotter, request.key), info);
        Ok(snap::PrepareSnapshotResponse::default())
    }

    pub(super) fn commit_snapshot(&mut self, request: Commit) -> ModelAnswer<()> {
        if self.snapshot(&request.snapshotter, &request.name).is_ok() {
            return Err(Status::already_exists(format!("snapshot {}", request.name)));
        }
        let mut parent = self
            .snapshot(&request.snapshotter, &request.key)?
            .parent
            .clone();
        if !request.parent.is_empty() {
            parent = request.parent;
        }
        self.snapshots
            .remove(&(request.snapshotter.clone(), request.key));
        self.add_snapshot(
            &request.snapshotter,
            &request.name,
            &parent,
            request.labels.into_iter().collect(),
        );
        Ok(())
    }

    pub(super) fn remove_snapshot(
        &mut self,
        request: snap::RemoveSnapshotRequest,
    ) -> ModelAnswer<()> {
        self.snapshot(&request.snapshotter, &request.key)?;
        if self
            .snapshots
            .values()
            .any(|info| info.parent == request.key)
        {
            return Err(Status::failed_precondition(
                "cannot remove snapshot with child",
            ));
        }
        self.snapshots.remove(&(request.snapshotter, request.key));
        Ok(())
    }

    pub(super) fn update_snapshot(
        &mut self,
        request: snap::UpdateSnapshotRequest,
    ) -> ModelAnswer<snap::UpdateSnapshotResponse> {
        let new = request.info.unwrap_or_default();
        let info = self.snapshot(&request.snapshotter, &new.name)?;
        relabel(&mut info.labels, &new.labels, request.update_mask);
        Ok(snap::UpdateSnapshotResponse {
            info: Some(info.clone()),
        })
    }

    pub(super) fn snapshot_usage(
        &mut self,
        request: snap::UsageRequest,
    ) -> ModelAnswer<snap::UsageResponse> {
        self.snapshot(&request.snapshotter, &request.key)?;
        Ok(snap::UsageResponse { size: 1, inodes: 1 })
    }

    pub(super) fn list_snapshots(
        &mut self,
        request: snap::ListSnapshotsRequest,
    ) -> ModelAnswer<snap::ListSnapshotsResponse> {
        let wanted = request.snapshotter;
        if wanted != "overlayfs" && !self.snapshotters.contains(&wanted) {
            return Err(Status::invalid_argument(format!(
                "snapshotter not loaded: {wanted}"
            )));
        }
        let of = self
            .snapshots
            .iter()
            .filter(|((snapshotter, _), _)| *snapshotter == wanted);
        Ok(snap::ListSnapshotsResponse {
            info: of.map(|(_, info)| info.clone()).collect(),
        })
    }
}
