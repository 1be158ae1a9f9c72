//! Removal of layers whose files a power cut may have lost, before a task runs on them.

use std::collections::HashSet;

use containerd_client::services::v1::snapshots as snap;
use switchyard_steps::{Step, reach};

use super::inventory::Snapshots;
use crate::client::{QUICK, call, ignore_not_found};
use crate::image::layer_sync::{LostLayers, find_lost_layers, find_unsynced};
use crate::image::reader::view_prefix;
use crate::image::unpack::extract_prefix;
use crate::recover::Recovery;

impl Recovery {
    /// Removes layers that were not synced before an earlier boot ended, together with the snapshots on top
    /// of them. An image that misses them is unpacked again at its next use. `earlier` are the ids of our
    /// tasks that exited with an earlier boot; their snapshots are removed too. A layer with any other active
    /// snapshot on top is kept: the snapshot may be in use by another client of this containerd, which may
    /// run before this daemon does.
    pub(super) async fn remove_lost_layers(&self, snapshots: &Snapshots, earlier: &HashSet<String>) {
        let cut_off = [extract_prefix(&self.client), view_prefix(&self.client)];
        let ended = |key: &str| {
            earlier.contains(key) || cut_off.iter().any(|prefix| key.starts_with(prefix.as_str()))
        };
        for (snapshotter, layers) in snapshots.listed() {
            self.storage.images.sync_unsynced(snapshotter, find_unsynced(layers, &self.context.boot));
            let LostLayers { removable, in_use } = find_lost_layers(layers, &self.context.boot, ended);
            if !in_use.is_empty() {
                tracing::warn!(
                    snapshotter,
                    layers = ?in_use,
                    "layers may lack files since a power cut, and are in use: remove and pull their images again"
                );
            }
            for key in removable {
                tracing::info!(
                    snapshotter,
                    key,
                    "removing a snapshot whose files may not have been synced before a power cut"
                );
                let what = format!("remove snapshot {key}");
                let request = snap::RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key };
                let removed = call(&what, QUICK, self.client.snapshots().remove(request)).await;
                match ignore_not_found(removed) {
                    Ok(()) => self.report_cleaned("layer"),
                    Err(error) => tracing::warn!(
                        error = error.report(),
                        "cannot remove a snapshot that may lack files since a power cut: remove and pull its image again"
                    ),
                }
                reach(Step::RecoveryLayerGone);
            }
        }
    }
}
