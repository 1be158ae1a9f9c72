//! Claims, removes and lists named volumes.

use std::sync::Arc;

use switchyard_core::Result;
use switchyard_core::backend::NamedVolume;
use switchyard_core::id::{Owner, TaskId};
use switchyard_crash_points::{CrashPoint, reach};

use crate::base::fs::blocking;
use crate::task::storage::Storage;

impl Storage {
    /// Claims the volumes that a new task uses: none of them can be removed from here on.
    pub(crate) async fn claim_volumes(&self, id: TaskId, names: &[String]) -> Result<()> {
        if names.is_empty() {
            return Ok(());
        }
        let volumes = Arc::clone(&self.volumes);
        let names = names.to_vec();
        blocking(move || {
            volumes.claim(id, &names);
            Ok(())
        })
        .await
    }

    /// Removes a volume. Idempotent.
    pub(crate) async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()> {
        let volumes = Arc::clone(&self.volumes);
        let name = name.to_owned();
        if let Some(aside) = blocking(move || volumes.unpublish(owner, &name)).await? {
            reach(CrashPoint::VolumeUnnamed);
            self.trees.remove(&aside).await?;
        }
        Ok(())
    }

    /// The volumes of all owners.
    pub(crate) async fn list_volumes(&self) -> Result<Vec<NamedVolume>> {
        let volumes = Arc::clone(&self.volumes);
        blocking(move || volumes.list()).await
    }
}
