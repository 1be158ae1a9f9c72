//! Images, as seen by one owner.

use std::fs::File;

use super::Scope;
use crate::error::{Error, Result};
use crate::id::Owner;
use crate::image::{Image, ImageId, LoadRequest, PullProgress, PullRequest};
use crate::object::TaskDetails;
use crate::operation::{OperationKind, Subject};
use crate::stats::DiskUsage;

impl Scope {
    /// Pulls an image; this owner holds it from then on. See
    /// [`ImageStore::pull`](crate::image::ImageStore::pull).
    ///
    /// # Errors
    /// Those of [`ImageStore::pull`](crate::image::ImageStore::pull).
    pub async fn pull_image(&self, request: &PullRequest) -> Result<ImageId> {
        let backend = &self.gateway.ready()?.backend;
        if request.owner != self.owner {
            return Err(Error::internal(format!(
                "an image for {} was asked for by {}",
                request.owner, self.owner
            )));
        }
        let operation = self.begin(OperationKind::PullImage, Subject::argument(&request.reference));
        operation.run(self.gateway.shared.pull_counts.count(backend.images().pull(request))).await
    }

    /// Loads an image from an archive; only this owner holds it from then on. See
    /// [`ImageStore::load`](crate::image::ImageStore::load).
    ///
    /// # Errors
    /// Those of [`ImageStore::load`](crate::image::ImageStore::load).
    pub async fn load_image(&self, archive: File, reference: String, handler: String) -> Result<ImageId> {
        let backend = &self.gateway.ready()?.backend;
        let operation = self.begin(OperationKind::LoadImage, Subject::argument(&reference));
        let request = LoadRequest { archive, reference, handler, owner: self.owner };
        operation.run(backend.images().load(request)).await
    }

    /// The progress of a pull of this request that is in flight. See
    /// [`ImageStore::progress`](crate::image::ImageStore::progress).
    #[must_use]
    pub fn pull_progress(&self, request: &PullRequest) -> Option<PullProgress> {
        self.gateway.shared.backend.images().progress(request)
    }

    /// The image with this id, id prefix, or reference. `None` if the node does not have it, or if this owner
    /// may not use it before it has pulled it itself.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the store cannot be read.
    pub async fn image(&self, reference: &str) -> Result<Option<Image>> {
        let found = self.gateway.ready()?.backend.images().get(reference).await?;
        Ok(found.filter(|image| image.is_open_to(self.owner)).map(|image| self.as_seen_by_owner(image)))
    }

    /// The configuration of an image that this owner may use, as JSON.
    ///
    /// # Errors
    /// `NotFound` if this owner cannot use it or the node does not have it; those of
    /// [`ImageStore::config`](crate::image::ImageStore::config).
    pub async fn image_config(&self, id: &ImageId) -> Result<String> {
        let Some(image) = self.image(id.as_str()).await? else {
            return Err(Error::not_found(format!(
                "image {id} is not on this node, or is not {}'s to use",
                self.owner
            )));
        };
        self.gateway.ready()?.backend.images().config(&image.id).await
    }

    /// All images of the node, of all holders.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the store cannot be read.
    pub async fn images(&self) -> Result<Vec<Image>> {
        let images = self.gateway.ready()?.backend.images().list().await?;
        Ok(images.into_iter().map(|image| self.as_seen_by_owner(image)).collect())
    }

    /// Releases this owner's hold on an image and removes it under all names that no other owner holds,
    /// unless another owner's tasks use it or are being created from it. Idempotent. Cancel-safe: the work
    /// continues, because a call that is given up halfway may take effect after a later pull.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the store cannot be written.
    pub async fn remove_image(&self, reference: &str) -> Result<()> {
        self.gateway.ready()?;
        let operation = self.begin(OperationKind::RemoveImage, Subject::argument(reference));
        let what = format!("removal of image {reference}");
        let reference = reference.to_owned();
        let scope = self.clone();
        let work = operation.run(async move {
            let in_use =
                |image: &ImageId, is_named: &dyn Fn(&str) -> bool| scope.used_by_others(image, is_named);
            let images = scope.gateway.shared.backend.images();
            images.remove(&reference, scope.owner, &in_use).await
        });
        self.gateway.run_detached(what, work).await
    }

    /// Disk usage of images.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if it cannot be read.
    pub async fn image_usage(&self) -> Result<Vec<DiskUsage>> {
        self.gateway.ready()?.backend.images().usage().await
    }

    /// The image as this owner sees it: pinned if the owner could not remove it, so that it does not try.
    fn as_seen_by_owner(&self, image: Image) -> Image {
        let others_alone =
            !image.imported && !image.holders.is_empty() && !image.holders.contains_key(&self.owner);
        let pinned = image.pinned || others_alone || self.used_by_others(&image.id, &|_| false);
        Image { pinned, ..image }
    }

    /// Whether tasks of other owners were created from this image or have it as a volume, or are being created
    /// from a reference for which `is_named` is true.
    fn used_by_others(&self, image: &ImageId, is_named: &dyn Fn(&str) -> bool) -> bool {
        let shared = &self.gateway.shared;
        // First: a task that is created meanwhile is in the table before it stops being in creation.
        if shared.images_in_creation.used_by_others(self.owner, is_named) {
            return true;
        }
        let uses = |details: &TaskDetails| {
            details.image_id == *image || details.volume_images.iter().any(|volume| volume == image)
        };
        Owner::ALL
            .into_iter()
            .filter(|owner| *owner != self.owner)
            .any(|owner| shared.table.tasks(owner).iter().any(|task| uses(&task.details)))
    }
}
