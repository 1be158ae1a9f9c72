//! Release of images that no task uses any more.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::Result;
use switchyard_core::gateway::Scope;
use switchyard_core::id::Owner;
use switchyard_core::image::ImageId;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::session::Sessions;

/// Releases images that no Nomad task uses, some time after the last task was removed. It is not recorded
/// whose tasks they were: while an agent is connected that keeps its images (`gc.image = false`), all images
/// are kept.
#[derive(Debug)]
pub(crate) struct ImageGc {
    scope: Scope,
    sessions: Sessions,
    due: Mutex<BTreeMap<ImageId, Instant>>,
    /// Signalled when a release was scheduled.
    changed: Notify,
}

impl ImageGc {
    pub(crate) fn new(scope: Scope, sessions: Sessions) -> Self {
        Self {
            scope,
            sessions,
            due: Mutex::default(),
            changed: Notify::new(),
        }
    }

    fn due(&self) -> MutexGuard<'_, BTreeMap<ImageId, Instant>> {
        self.due.lock()
    }

    /// A task is about to be created from this image: cancels its scheduled release.
    pub(crate) fn cancel(&self, image: &ImageId) {
        self.due().remove(image);
    }

    /// A task that used this image was removed: the image is released after `delay`, unless another task uses
    /// it then.
    pub(crate) fn schedule(&self, image: &ImageId, delay: Duration) {
        if self.is_used(image) {
            return;
        }
        let Some(at) = Instant::now().checked_add(delay) else {
            return;
        };
        self.due().insert(image.clone(), at);
        self.changed.notify_one();
    }

    /// Schedules the release of all images that Nomad holds and none of its tasks use: the schedule of a
    /// predecessor is lost.
    ///
    /// # Errors
    /// Those of [`ScopedImages::list`](switchyard_core::gateway::ScopedImages::list).
    pub(crate) async fn schedule_unused(&self, delay: Duration) -> Result<()> {
        for image in self.scope.images().list().await? {
            if image.holders.contains_key(&Owner::Nomad) && !self.due().contains_key(&image.id) {
                self.schedule(&image.id, delay);
            }
        }
        Ok(())
    }

    /// Releases images when they are due, while it is polled. Cancel-safe.
    pub(crate) async fn run(&self) {
        loop {
            let next = self.due().values().min().copied();
            let wait = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = wait => {}
                () = self.changed.notified() => {}
            }
            for image in self.take_due() {
                self.release(&image).await;
            }
        }
    }

    fn take_due(&self) -> Vec<ImageId> {
        let mut due = self.due();
        let now = Instant::now();
        let ready: Vec<_> = due
            .iter()
            .filter(|(_, at)| **at <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for image in &ready {
            due.remove(image);
        }
        ready
    }

    async fn release(&self, image: &ImageId) {
        if self.is_used(image) || self.is_disabled() {
            return;
        }
        let removed = async {
            match self.scope.images().find(image.as_str()).await? {
                Some(found) if found.holders.contains_key(&Owner::Nomad) => {
                    self.scope.images().remove(image.as_str()).await?;
                    Ok(true)
                }
                // Nomad has not pulled it, for example an image imported by an operator: others remove it.
                Some(_) | None => Ok(false),
            }
        };
        let removed: Result<bool> = removed.await;
        match removed {
            Ok(true) => tracing::info!(%image, "released an image that no Nomad task uses"),
            Ok(false) => {}
            // It is scheduled again when an agent comes back, or the next task that uses it is removed.
            Err(error) => {
                tracing::warn!(%image, error = error.report(), "cannot release an image that no Nomad task uses");
            }
        }
    }

    /// Returns whether an agent is connected that keeps its images.
    fn is_disabled(&self) -> bool {
        self.sessions
            .all()
            .iter()
            .any(|session| !session.config.gc.image)
    }

    /// Returns whether a task uses this image; before recovery `true`.
    fn is_used(&self, image: &ImageId) -> bool {
        let Ok(tasks) = self.scope.tasks().list() else {
            return true;
        };
        tasks.iter().any(|task| {
            let details = &task.details;
            details.image_id == *image || details.volume_images.iter().any(|volume| volume == image)
        })
    }
}
