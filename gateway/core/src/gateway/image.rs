//! Images: pulled, loaded and removed for their owners.

use std::fs::File;
use std::future::{Future, pending};
use std::sync::Arc;

use super::access::OwnerAccess;
use super::context::Context;
use crate::backend::{Blocker, Unreadable};
use crate::error::{Error, Result};
use crate::id::{Owner, TaskId};
use crate::image::{
    Image, ImageId, ImageKeepers, ImageStore, LoadRequest, PullProgress, PullRequest,
};
use crate::object::TaskDetails;
use crate::operation::{OperationKind, Subject};
use crate::spec::TaskSpec;
use crate::stats::DiskUsage;

mod in_creation;

use in_creation::{CreationGuard, ImagesInCreation};

/// The use of images by tasks. The images themselves are the backend's.
#[derive(Debug)]
pub struct Images {
    context: Arc<Context>,
    in_creation: ImagesInCreation,
}

/// The images, as seen by one owner.
#[derive(Debug, Clone, Copy)]
pub struct ScopedImages<'s> {
    access: &'s OwnerAccess,
    images: &'s Arc<Images>,
}

/// Treatment of an image that its owner removes while tasks of the same owner use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OwnUse {
    /// It is removed nevertheless: its orchestrator knows what it does.
    Ignored,
    /// Nothing is changed.
    Refused,
}

// === impl Images ===

impl Images {
    /// Without uses.
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            in_creation: ImagesInCreation::default(),
        }
    }

    /// The store of the images; they are not scoped to an owner.
    #[must_use]
    pub fn store(&self) -> &dyn ImageStore {
        self.context.backend.images()
    }

    /// Marks the images of a task as used, until it is in the table or is not created: to be called before the
    /// backend looks them up.
    pub(super) fn use_in_creation(&self, id: TaskId, spec: &TaskSpec) -> CreationGuard<'_> {
        self.in_creation.add(id, spec)
    }

    /// Checks that no object that cannot be read uses an image: its orchestrator does not know that it exists, and takes
    /// the image for unused.
    fn check_not_held(&self, image: &ImageId) -> Result<()> {
        let uses = |held: &Unreadable| held.claims.images.contains(image);
        self.context
            .check_unreadable(uses, || format!("image {image}"))
    }

    /// Returns whether tasks of one of these owners were created from this image or have it as a volume, or are
    /// being created from a reference for which `is_named` is true.
    fn is_used(
        &self,
        is_user: &dyn Fn(Owner) -> bool,
        image: &ImageId,
        is_named: &dyn Fn(&str) -> bool,
    ) -> bool {
        // First: a task that is created meanwhile is in the table before it stops being in creation.
        if self.in_creation.is_used(is_user, is_named) {
            return true;
        }
        let uses = |details: &TaskDetails| {
            details.image_id == *image || details.volume_images.iter().any(|volume| volume == image)
        };
        Owner::ALL
            .into_iter()
            .filter(|owner| is_user(*owner))
            .any(|owner| {
                self.context
                    .table
                    .tasks(owner)
                    .iter()
                    .any(|task| uses(&task.details))
            })
    }
}

// === impl ScopedImages ===

impl<'s> ScopedImages<'s> {
    pub(super) const fn new(access: &'s OwnerAccess, images: &'s Arc<Images>) -> Self {
        Self { access, images }
    }

    /// Pulls an image; this owner holds it from then on. See
    /// [`ImageStore::pull`](crate::image::ImageStore::pull).
    ///
    /// # Errors
    /// Those of [`ImageStore::pull`](crate::image::ImageStore::pull).
    pub async fn pull(self, request: &PullRequest) -> Result<ImageId> {
        self.pull_as(Subject::default(), request, pending()).await
    }

    /// As [`ScopedImages::pull`], but a pull that has not ended when `late` does fails with its error: to a caller that goes away
    /// instead, nobody would report that the registry hangs.
    ///
    /// # Errors
    /// Those of [`ScopedImages::pull`], and that of `late`.
    pub async fn pull_unless(
        self,
        request: &PullRequest,
        late: impl Future<Output = Error>,
    ) -> Result<ImageId> {
        self.pull_as(Subject::default(), request, late).await
    }

    /// As [`ScopedImages::pull`], for the sandbox with this name, if it is known: its operation names it.
    ///
    /// # Errors
    /// Those of [`ScopedImages::pull`].
    pub async fn pull_for(self, sandbox: &str, request: &PullRequest) -> Result<ImageId> {
        let table = &self.access.ready()?.table;
        let subject = table
            .sandbox_named(self.access.owner(), sandbox)
            .map_or_else(Subject::default, |sandbox| Subject::sandbox(&sandbox));
        self.pull_as(subject, request, pending()).await
    }

    async fn pull_as(
        self,
        subject: Subject,
        request: &PullRequest,
        late: impl Future<Output = Error>,
    ) -> Result<ImageId> {
        let backend = &self.access.ready()?.backend;
        if request.owner != self.access.owner() {
            return Err(Error::internal(format!(
                "an image for {} was asked for by {}",
                request.owner,
                self.access.owner()
            )));
        }
        let read_progress = {
            let backend = Arc::clone(backend);
            let request = request.clone();
            move || backend.images().progress(&request)
        };
        let operation = self
            .access
            .begin(
                OperationKind::PullImage,
                subject.with_argument(&request.reference),
            )
            .with_progress(read_progress);
        let work = async {
            match unless(backend.images().pull(request), late).await {
                Err(error) => Err(Blocker::explain_late(error, self.blockers()).await),
                pulled => pulled,
            }
        };
        operation.run(work).await
    }

    /// The process of the runtime that stores images, if it waits in the kernel: see
    /// [`StatsBackend::image_blockers`](crate::backend::StatsBackend::image_blockers).
    pub async fn blockers(self) -> Vec<Blocker> {
        self.access.context().backend.image_blockers().await
    }

    /// Loads an image from an archive; only this owner holds it from then on. It fails with the error of `late` if it has not ended
    /// when that does. See [`ImageStore::load`](crate::image::ImageStore::load).
    ///
    /// # Errors
    /// Those of [`ImageStore::load`](crate::image::ImageStore::load), and that of `late`.
    pub async fn load(
        self,
        archive: File,
        reference: String,
        handler: String,
        late: impl Future<Output = Error>,
    ) -> Result<ImageId> {
        let backend = &self.access.ready()?.backend;
        let operation = self
            .access
            .begin(OperationKind::LoadImage, Subject::argument(&reference));
        let request = LoadRequest {
            archive,
            reference,
            handler,
            owner: self.access.owner(),
        };
        operation
            .run(unless(backend.images().load(request), late))
            .await
    }

    /// The progress of a pull of this request that is in flight. See
    /// [`ImageStore::progress`](crate::image::ImageStore::progress).
    #[must_use]
    pub fn progress(self, request: &PullRequest) -> Option<PullProgress> {
        self.access.context().backend.images().progress(request)
    }

    /// The image with this id, id prefix, or reference. `None` if the node does not have it, or if this owner
    /// may not use it before it has pulled it itself.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the store cannot be read.
    pub async fn find(self, reference: &str) -> Result<Option<Image>> {
        let found = self.access.ready()?.backend.images().get(reference).await?;
        Ok(found
            .filter(|image| image.is_open_to(self.access.owner()))
            .map(|image| self.as_seen_by_owner(image)))
    }

    /// The configuration of an image that this owner may use, as JSON.
    ///
    /// # Errors
    /// `NotFound` if this owner cannot use it or the node does not have it; those of
    /// [`ImageStore::config`](crate::image::ImageStore::config).
    pub async fn config(self, id: &ImageId) -> Result<String> {
        let Some(image) = self.find(id.as_str()).await? else {
            return Err(Error::not_found(format!(
                "image {id} is not on this node, or is not {}'s to use",
                self.access.owner()
            )));
        };
        self.access
            .ready()?
            .backend
            .images()
            .config(&image.id)
            .await
    }

    /// All images of the node, of all holders.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the store cannot be read.
    pub async fn list(self) -> Result<Vec<Image>> {
        let images = self.access.ready()?.backend.images().list().await?;
        Ok(images
            .into_iter()
            .map(|image| self.as_seen_by_owner(image))
            .collect())
    }

    /// Releases this owner's hold on an image and removes it under all names that no other owner holds,
    /// unless another owner's tasks use it or are being created from it. Idempotent. Cancel-safe: the work
    /// continues, because a call that is given up halfway may take effect after a later pull.
    ///
    /// # Errors
    /// `FailedPrecondition` if an object that cannot be read uses the image; `Unavailable` before recovery, or if the
    /// store cannot be written.
    pub async fn remove(self, reference: &str) -> Result<()> {
        self.remove_with(reference, OwnUse::Ignored).await
    }

    /// As [`ScopedImages::remove`], unless tasks of this owner use the image, or are being created from it.
    ///
    /// # Errors
    /// Those of [`ScopedImages::remove`]; `FailedPrecondition` if this owner's tasks use the image.
    pub async fn remove_unused(self, reference: &str) -> Result<()> {
        self.remove_with(reference, OwnUse::Refused).await
    }

    async fn remove_with(self, reference: &str, own_use: OwnUse) -> Result<()> {
        self.access.ready()?;
        let operation = self
            .access
            .begin(OperationKind::RemoveImage, Subject::argument(reference));
        let what = format!("removal of image {reference}");
        let reference = reference.to_owned();
        let owner = self.access.owner();
        let images = Arc::clone(self.images);
        let work = operation.run(async move {
            let in_use = |image: &ImageId, is_named: &dyn Fn(&str) -> bool| -> Result<bool> {
                images.check_not_held(image)?;
                if own_use == OwnUse::Refused
                    && images.is_used(&|user| user == owner, image, is_named)
                {
                    return Err(Error::failed_precondition(format!(
                        "image {image} is used by tasks of {owner}: they have to be removed first"
                    )));
                }
                Ok(images.is_used(&|user| user != owner, image, is_named))
            };
            images.store().remove(&reference, owner, &in_use).await
        });
        self.access.context().run_detached(what, work).await
    }

    /// The images that this owner holds and none of its tasks uses, which
    /// [`remove_unused`](ScopedImages::remove_unused) would release. Those that are pinned are left out, and
    /// those of objects that cannot be read.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the store cannot be read.
    pub async fn unused(self) -> Result<Vec<Image>> {
        let owner = self.access.owner();
        let images = self.access.ready()?.backend.images().list().await?;
        let is_unused = |image: &Image| {
            image.holders.contains_key(&owner)
                && !image.pinned
                && self.images.check_not_held(&image.id).is_ok()
                && !self.is_used(&|user| user == owner, image)
        };
        Ok(images.into_iter().filter(is_unused).collect())
    }

    /// Returns the other owners that hold or use an image, which this owner may have removed; none also if the node does not
    /// have it.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if the store cannot be read.
    pub async fn other_keepers(self, reference: &str) -> Result<ImageKeepers> {
        let found = self.access.ready()?.backend.images().get(reference).await?;
        let Some(image) = found else {
            return Ok(ImageKeepers::default());
        };
        let owner = self.access.owner();
        let others = || Owner::ALL.into_iter().filter(move |other| *other != owner);
        Ok(ImageKeepers {
            holders: others()
                .filter(|other| image.holders.contains_key(other))
                .collect(),
            users: others()
                .filter(|other| self.is_used(&|user| user == *other, &image))
                .collect(),
        })
    }

    /// Returns whether tasks of one of these owners use an image, or are being created from its id or one of its names.
    fn is_used(self, is_user: &dyn Fn(Owner) -> bool, image: &Image) -> bool {
        let is_named = |reference: &str| {
            let mut names = image.repo_tags.iter().chain(&image.repo_digests);
            reference == image.id.as_str() || names.any(|name| name == reference)
        };
        self.images.is_used(is_user, &image.id, &is_named)
    }

    /// Disk usage of images.
    ///
    /// # Errors
    /// `Unavailable` before recovery, or if it cannot be read.
    pub async fn usage(self) -> Result<Vec<DiskUsage>> {
        self.access.ready()?.backend.images().usage().await
    }

    /// The image as this owner sees it: pinned if the owner could not remove it, so that it does not try.
    fn as_seen_by_owner(self, image: Image) -> Image {
        let others_alone = !image.imported
            && !image.holders.is_empty()
            && !image.holders.contains_key(&self.access.owner());
        let pinned = image.pinned
            || others_alone
            || self.images.check_not_held(&image.id).is_err()
            || self
                .images
                .is_used(&|user| user != self.access.owner(), &image.id, &|_| false);
        Image { pinned, ..image }
    }
}

/// The result of some work, or the error of `late` if that ends first: the work is given up then.
async fn unless<T>(
    work: impl Future<Output = Result<T>>,
    late: impl Future<Output = Error>,
) -> Result<T> {
    tokio::select! {
        biased;
        done = work => done,
        error = late => Err(error),
    }
}
