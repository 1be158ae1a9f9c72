//! Layers that a remote snapshotter provides, which are neither downloaded nor unpacked.
//!
//! Before anything is downloaded, the layers are prepared from the lowest on until the snapshotter does not provide one. That
//! one and those above it are downloaded concurrently, as they are for other snapshotters: whether the snapshotter provides
//! one of them can be asked only when its parent exists. The download of one that it has provided until then is left out.
//!
//! Two pulls of an image may ask at the same time: a snapshotter that provides a layer twice keeps one of them. What a kill
//! leaves is what it leaves of an unpacking: snapshots under the lease of the pull, of which the active one is removed by the
//! next start.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use switchyard_core::{Error, Result};

use super::super::unpack::{ActiveSnapshot, UnpackTarget, exists};
use super::{Downloads, LayerFailure, LayerPipeline, LayerSource};

/// Maximum number of tries to prepare a snapshot of which the snapshotter says that it exists, and that is not found.
const TRIES: u32 = 3;

impl LayerPipeline {
    /// Asks a remote snapshotter for the layers, and checks the free space for those that remain. Cancel-safe.
    pub(super) async fn provide_layers(&self) -> Result<()> {
        if self.plan.remote.is_none() {
            return Ok(());
        }
        let mut first = self.chain.len();
        for number in 0..self.chain.len() {
            let target = self.target(number);
            if exists(&target.client, &target.snapshotter, &target.name).await? {
                continue;
            }
            if let Some(extract) = self.prepare_remote(number, &target).await? {
                *self.prepared.lock() = Some((number, extract));
                first = number;
                break;
            }
        }
        tracing::debug!(
            snapshotter = self.plan.snapshotter,
            "the snapshotter has the lowest {first} of {} layers of an image",
            self.chain.len()
        );
        if let LayerSource::Registry(downloads) = &self.source
            && let Some(disk) = &downloads.content_disk
        {
            disk.check(&self.client, &self.plan.layers[first..]).await?;
        }
        Ok(())
    }

    /// Prepares the snapshot of the layer `number`, whose parent exists. `None` if the snapshotter provides it.
    async fn prepare_remote(
        &self,
        number: usize,
        target: &UnpackTarget,
    ) -> Result<Option<ActiveSnapshot>> {
        for _ in 0..TRIES {
            if let Some(extract) = target.prepare(self.parent(number)).await? {
                return Ok(Some(extract));
            }
            if exists(&target.client, &target.snapshotter, &target.name).await? {
                return Ok(None);
            }
        }
        Err(Error::unavailable(format!(
            "the snapshotter {} says that it has the snapshot {} of layer {}, and does not list it: is it in order?",
            target.snapshotter, target.name, target.layer.digest
        )))
    }

    /// The snapshot below that of the layer `number`; empty for the lowest.
    fn parent(&self, number: usize) -> &str {
        number
            .checked_sub(1)
            .map_or("", |below| self.chain[below].as_str())
    }

    /// Downloads the layer `number`, unless a remote snapshotter has provided it.
    pub(super) async fn download_unless_provided(
        self: &Arc<Self>,
        number: usize,
        downloads: &Downloads,
    ) -> Result<()> {
        if self.is_provided(number).await? {
            let layer = &self.plan.layers[number];
            let received = self.inflight.counters.of(&layer.digest);
            received.store(layer.size, Ordering::Relaxed);
            return Ok(());
        }
        self.download(number, downloads).await
    }

    /// Returns whether nobody needs the content of the layer `number`. One that is known to be damaged is needed: somebody
    /// wanted to unpack it for another snapshotter.
    async fn is_provided(&self, number: usize) -> Result<bool> {
        let layer = std::slice::from_ref(&self.plan.layers[number]);
        if self.plan.remote.is_none() || self.inflight.repairs.has_damaged(layer) {
            return Ok(false);
        }
        exists(&self.client, &self.plan.snapshotter, &self.chain[number]).await
    }

    /// Creates the snapshot of the layer `number` in a remote snapshotter, which is asked before the layer is waited for.
    pub(super) async fn make_remote_snapshot(
        self: &Arc<Self>,
        number: usize,
        target: &UnpackTarget,
    ) -> Result<(), LayerFailure> {
        if let Some(below) = number.checked_sub(1) {
            self.ensure_snapshot(below).await?;
        }
        let mut extract = None;
        if !self.is_prepared(number) {
            extract = self.prepare_remote(number, target).await?;
            if extract.is_none() {
                return Ok(());
            }
        }
        if let Err(failure) = self.wait_downloaded(number).await {
            if let Some(extract) = extract {
                target.discard(&extract).await;
            }
            return Err(failure);
        }
        let seen = self.inflight.repairs.replaced();
        let unpacked = match extract.or_else(|| self.take_prepared(number)) {
            Some(extract) => target.unpack_into(extract).await,
            None => target.unpack_on(self.parent(number)).await,
        };
        if let Err(error) = unpacked {
            self.repair_after(error, number, seen).await?;
            target.unpack_on(self.parent(number)).await?;
        }
        Ok(())
    }

    /// Returns whether the snapshot of the layer `number` is the one that was prepared before the downloads. It is taken only
    /// when the layer is there: what gives up before that leaves it to [`LayerPipeline::discard_prepared`].
    fn is_prepared(&self, number: usize) -> bool {
        let prepared = self.prepared.lock();
        prepared.as_ref().is_some_and(|(of, _)| *of == number)
    }

    fn take_prepared(&self, number: usize) -> Option<ActiveSnapshot> {
        let mut prepared = self.prepared.lock();
        prepared
            .take_if(|(of, _)| *of == number)
            .map(|(_, extract)| extract)
    }

    /// Removes the snapshot that was prepared, if it was not used: another pull has made that of the layer, or this one has
    /// failed.
    pub(super) async fn discard_prepared(&self) {
        let prepared = self.prepared.lock().take();
        if let Some((number, extract)) = prepared {
            self.target(number).discard(&extract).await;
        }
    }
}

#[cfg(test)]
mod tests;
