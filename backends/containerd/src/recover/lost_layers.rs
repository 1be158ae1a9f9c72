//! Layers that a power cut may have left without their files are removed before anybody runs on them.

use std::collections::HashSet;

use containerd_client::services::v1::snapshots as snap;
use switchyard_steps::{Step, reach};

use super::inventory::Snapshots;
use crate::backend::Inner;
use crate::client::{QUICK, call, ignore_not_found};
use crate::image::layer_sync::{LostLayers, find_lost_layers, find_unsynced};
use crate::image::unpack::extract_prefix;
use crate::image_reader::view_prefix;

impl Inner {
    /// Removes layers that were not synced before another boot ended, with what is on top of them: `earlier` are tasks of ours that
    /// ended with that boot. An image that misses them is unpacked anew at its next use. Under anything else they are left alone:
    /// it may run, others may use this containerd before we are there.
    pub(super) async fn remove_lost_layers(&self, snapshots: &Snapshots, earlier: &HashSet<String>) {
        let cut_off = [extract_prefix(&self.client), view_prefix(&self.client)];
        let ended = |key: &str| {
            earlier.contains(key) || cut_off.iter().any(|prefix| key.starts_with(prefix.as_str()))
        };
        for (snapshotter, layers) in snapshots.listed() {
            self.images.sync_unsynced(snapshotter, find_unsynced(layers, &self.boot));
            let LostLayers { removable: gone, in_use: used } = find_lost_layers(layers, &self.boot, ended);
            if !used.is_empty() {
                tracing::warn!(
                    snapshotter,
                    layers = ?used,
                    "layers may lack files since a power cut, and are in use: remove and pull their images again"
                );
            }
            for key in gone {
                tracing::info!(snapshotter, key, "removing a snapshot that may not have got to disk");
                let what = format!("remove snapshot {key}");
                let request = snap::RemoveSnapshotRequest { snapshotter: snapshotter.to_owned(), key };
                let removed = call(&what, QUICK, self.client.snapshots().remove(request)).await;
                if let Err(error) = ignore_not_found(removed) {
                    tracing::warn!(
                        error = error.report(),
                        "an image may lack files since a power cut: remove and pull it again"
                    );
                }
                reach(Step::RecoveryLayerGone);
            }
        }
    }
}
