//! Volumes, which outlive the tasks that use them.

use std::sync::Arc;

use super::access::OwnerAccess;
use super::context::Context;
use crate::backend::NamedVolume;
use crate::error::Result;
use crate::operation::{OperationKind, Subject};

/// The volumes of all owners. They are the backend's.
#[derive(Debug)]
pub struct Volumes {
    context: Arc<Context>,
}

/// The volumes of one owner.
#[derive(Debug, Clone, Copy)]
pub struct ScopedVolumes<'s> {
    access: &'s OwnerAccess,
    volumes: &'s Arc<Volumes>,
}

// === impl Volumes ===

impl Volumes {
    pub(super) const fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    /// The volumes of all owners, ordered by owner and name. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` before recovery; `Internal` if they cannot be listed.
    pub async fn list(&self) -> Result<Vec<NamedVolume>> {
        self.context.ready()?.backend.volumes().await
    }
}

// === impl ScopedVolumes ===

impl<'s> ScopedVolumes<'s> {
    pub(super) const fn new(access: &'s OwnerAccess, volumes: &'s Arc<Volumes>) -> Self {
        Self { access, volumes }
    }

    /// Removes a volume of this owner. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of [`VolumeBackend::remove_volume`](crate::backend::VolumeBackend::remove_volume).
    pub async fn remove(self, name: String) -> Result<()> {
        self.access.ready()?;
        let volumes = Arc::clone(self.volumes);
        let owner = self.access.owner();
        let what = format!("removal of volume {name:?}");
        let operation = self
            .access
            .begin(OperationKind::RemoveVolume, Subject::argument(&name));
        let work =
            operation.run(async move { volumes.context.backend.remove_volume(owner, &name).await });
        self.access.context().run_detached(what, work).await
    }
}
