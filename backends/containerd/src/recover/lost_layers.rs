//! Removal of layers whose files a power cut may have lost, before a task runs on them; and of what predecessors
//! left in a snapshotter that did not answer at the start.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use containerd_client::services::v1::snapshots as snap;
use futures::future::BoxFuture;
use switchyard_core::Result;

use super::inventory::Snapshots;
use crate::cleanup::{Cleanup, upgrade};
use crate::client::{QUICK, call, ignore_not_found};
use crate::image::snapshots::{self, is_stale};
use crate::recover::Recovery;

impl Recovery {
    /// Removes layers that were not synced before an earlier boot ended, together with the snapshots on top
    /// of them. An image that misses them is unpacked again at its next use. `earlier` are the ids of our
    /// tasks that exited with an earlier boot.
    pub(super) async fn remove_lost_layers(&self, snapshots: &Snapshots, earlier: &HashSet<String>) {
        let layer_sync = self.storage.images.layer_sync();
        for (snapshotter, layers) in snapshots.listed() {
            let removed = || self.report_cleaned("layer");
            layer_sync.recover_layers(snapshotter, layers, earlier, &removed).await;
        }
    }
}

/// What is left to do in a snapshotter that did not answer when the daemon started.
#[derive(Debug)]
pub(super) struct SnapshotterCleanup {
    recovery: Weak<Recovery>,
    snapshotter: String,
    /// The ids of our tasks that exited with an earlier boot.
    earlier: HashSet<String>,
}

impl SnapshotterCleanup {
    pub(super) fn new(recovery: &Arc<Recovery>, snapshotter: &str, earlier: &HashSet<String>) -> Self {
        Self {
            recovery: Arc::downgrade(recovery),
            snapshotter: snapshotter.to_owned(),
            earlier: earlier.clone(),
        }
    }
}

impl Cleanup for SnapshotterCleanup {
    fn description(&self) -> String {
        format!("what predecessors left in the snapshotter {}", self.snapshotter)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let recovery = upgrade(&self.recovery)?;
            let Self { recovery: _, snapshotter, earlier } = self;
            let client = &recovery.client;
            let images = &recovery.storage.images;
            let list = snapshots::list(client, snapshotter);
            let layers = images.snapshotters().ask(client, snapshotter, list).await??;
            let removed = || recovery.report_cleaned("layer");
            images.layer_sync().recover_layers(snapshotter, &layers, earlier, &removed).await;
            // Requests have been served since: this daemon may have views and unpackings of its own there.
            for key in layers.keys().filter(|key| is_stale(client, key)) {
                let what = format!("remove snapshot {key}");
                let request =
                    snap::RemoveSnapshotRequest { snapshotter: snapshotter.clone(), key: key.clone() };
                ignore_not_found(call(&what, QUICK, client.snapshots().remove(request)).await)?;
                recovery.report_cleaned("snapshot");
            }
            Ok(())
        })
    }
}
