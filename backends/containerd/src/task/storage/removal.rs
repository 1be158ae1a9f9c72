//! Removes and lists named volumes.

use std::sync::Arc;

use switchyard_core::Result;
use switchyard_core::backend::NamedVolume;
use switchyard_core::id::Owner;
use switchyard_steps::{Step, reach};

use crate::base::fs::blocking;
use crate::task::storage::Storage;

impl Storage {
    /// Removes a volume. Idempotent.
    pub(crate) async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()> {
        let volumes = Arc::clone(&self.volumes);
        let name = name.to_owned();
        if let Some(aside) = blocking(move || volumes.unpublish(owner, &name)).await? {
            reach(Step::VolumeUnnamed);
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
