//! Volumes, which outlive the tasks that use them.

use super::{Gateway, Scope};
use crate::backend::NamedVolume;
use crate::error::Result;
use crate::operation::{OperationKind, Subject};

impl Gateway {
    /// The volumes of all owners, ordered by owner and name. Cancel-safe.
    ///
    /// # Errors
    /// `Unavailable` before recovery; `Internal` if they cannot be listed.
    pub async fn volumes(&self) -> Result<Vec<NamedVolume>> {
        self.ready()?;
        self.shared.backend.volumes().await
    }
}

impl Scope {
    /// Removes a volume of this owner. Idempotent. Cancel-safe: the work continues.
    ///
    /// # Errors
    /// Those of [`VolumeBackend::remove_volume`](crate::backend::VolumeBackend::remove_volume).
    pub async fn remove_volume(&self, name: String) -> Result<()> {
        self.gateway.ready()?;
        let gateway = self.gateway.clone();
        let owner = self.owner;
        let what = format!("removal of volume {name:?}");
        let operation = self.begin(OperationKind::RemoveVolume, Subject::argument(&name));
        let work = operation.run(async move { gateway.shared.backend.remove_volume(owner, &name).await });
        self.gateway.run_detached(what, work).await
    }
}
