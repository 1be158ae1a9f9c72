//! Removal of layers whose files a power cut may have lost, before a task runs on them; and of what predecessors
//! left in a snapshotter that did not answer at the start.

use std::future::ready;
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use switchyard_core::Result;

use super::inventory::Snapshots;
use super::plan::RecoveryPlan;
use crate::cleanup::{Cleanup, upgrade};
use crate::image::snapshots::{self, remove_all, stale_keys};
use crate::recover::Recovery;

impl Recovery {
    /// Removes layers that were not synced before an earlier boot ended, together with the snapshots on top
    /// of them. An image that misses them is unpacked again at its next use. What is left to do in
    /// snapshotters that do not answer is added to the plan.
    pub(super) async fn remove_lost_layers(
        self: &Arc<Self>,
        snapshots: &Snapshots,
        plan: &mut RecoveryPlan,
    ) {
        let layer_sync = self.storage.images.layer_sync();
        layer_sync.set_ended(&plan.from_earlier_boots).await;
        for (snapshotter, layers) in snapshots.listed() {
            let removed = || self.report_cleaned("layer");
            // Requests are not served yet, so nothing has been unpacked since the list was made.
            let listed = layer_sync
                .recover_layers(snapshotter, ready(Ok(layers)), &removed)
                .await;
            if let Err(error) = listed {
                tracing::warn!(
                    snapshotter,
                    error = error.report(),
                    "cannot remove lost layers"
                );
            }
        }
        for snapshotter in snapshots.unlisted() {
            plan.cleanup
                .push(Box::new(SnapshotterCleanup::new(self, snapshotter)));
        }
    }

    /// Returns whether tasks are to be created in a snapshotter, or exist in it.
    fn needs_snapshotter(&self, snapshotter: &str) -> bool {
        self.storage
            .images
            .policy()
            .snapshotters
            .all()
            .contains(snapshotter)
            || self
                .tasks
                .table
                .lock()
                .values()
                .any(|entry| entry.snapshotter == snapshotter)
    }
}

/// The remaining cleanup of a snapshotter that did not answer when the daemon started.
#[derive(Debug)]
struct SnapshotterCleanup {
    recovery: Weak<Recovery>,
    snapshotter: String,
}

impl SnapshotterCleanup {
    fn new(recovery: &Arc<Recovery>, snapshotter: &str) -> Self {
        Self {
            recovery: Arc::downgrade(recovery),
            snapshotter: snapshotter.to_owned(),
        }
    }
}

impl Cleanup for SnapshotterCleanup {
    fn description(&self) -> String {
        format!(
            "what predecessors left in the snapshotter {}",
            self.snapshotter
        )
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let recovery = upgrade(&self.recovery)?;
            let snapshotter = self.snapshotter.as_str();
            let client = &recovery.client;
            let images = &recovery.storage.images;
            if !recovery.needs_snapshotter(snapshotter) {
                // It may never answer again. If it is configured again, the next start clears it.
                tracing::info!(
                    snapshotter,
                    "nothing uses a snapshotter that does not answer: forgetting it"
                );
                images.snapshotters().forget(snapshotter);
                return Ok(());
            }
            let list = snapshots::list(client, snapshotter);
            let list = async { images.snapshotters().ask(client, snapshotter, list).await? };
            let removed = || recovery.report_cleaned("layer");
            let layers = images
                .layer_sync()
                .recover_layers(snapshotter, list, &removed)
                .await?;
            // Requests have been served since: this daemon may have views and unpackings of its own there.
            let stale = stale_keys(client, &layers);
            remove_all(client, snapshotter, &stale, &|| {
                recovery.report_cleaned("snapshot")
            })
            .await
        })
    }
}
