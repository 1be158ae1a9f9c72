//! Replacing layers that are damaged in the content store.

use switchyard_core::{Error, Result};

use super::super::blob::{self, LayerCheck};
use super::super::content::Labels;
use super::{LayerPipeline, LayerSource};

impl LayerPipeline {
    /// Replaces the layer `number` if it was found to be damaged before, also if nothing has to be unpacked.
    pub(super) async fn repair_known_damage(&self, number: usize) -> Result<()> {
        let repairs = &self.inflight.repairs;
        if repairs.has_damaged(std::slice::from_ref(&self.plan.layers[number])) {
            self.repair(number, repairs.replaced()).await?;
        }
        Ok(())
    }

    /// Replaces the layer `number` if it is damaged. Returns whether it was, also by another pull since `seen`.
    async fn repair(&self, number: usize, seen: u64) -> Result<bool> {
        let repairs = &self.inflight.repairs;
        let digest = &self.plan.layers[number].digest;
        match repairs.check_layer(&self.client, digest, seen).await? {
            LayerCheck::Intact { replaced } => Ok(replaced),
            LayerCheck::Damaged { turn: _turn, fault } => {
                if matches!(self.source, LayerSource::Stored) {
                    return Err(repairs.mark_damaged(digest, fault));
                }
                tracing::warn!(%digest, error = fault.report(), "a layer is damaged in containerd's content store: replacing it");
                let labels =
                    blob::drop_blob(&self.client, &self.lease, digest, Labels::new()).await?;
                self.fetch(number, labels).await?;
                repairs.mark_replaced(digest);
                Ok(true)
            }
        }
    }

    /// Decides whether an unpacking of the layer `number` that has failed is to be tried once more: if the
    /// layer was damaged and has been replaced.
    ///
    /// # Errors
    /// The error of the unpacking if it was not, or that of the replacement.
    pub(super) async fn repair_after(&self, error: Error, number: usize, seen: u64) -> Result<()> {
        if blob::may_be_damage(&error) && self.repair(number, seen).await? {
            Ok(())
        } else {
            Err(error)
        }
    }
}
