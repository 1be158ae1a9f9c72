//! Syncing unpacked layers to disk.
//!
//! containerd commits a snapshot without syncing the files of the layer. A power cut within about half a
//! minute leaves some of them empty for good, because the snapshot counts as unpacked. Syncing before a pull
//! is answered would delay pulls. So each snapshot is committed with a label that names the current boot, and
//! the label is removed once the file system was synced. When the daemon starts in another boot, a layer that
//! still has the label is removed with all snapshots on top of it ([`find_lost_layers`]), and is unpacked
//! again at its next use from the content store, whose blobs containerd does sync.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use parking_lot::Mutex;
use switchyard_core::threads::bulk;
use switchyard_core::{Error, Result};
use switchyard_steps::{Step, reach};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::base::mount::writable_dir;
use crate::client::{Client, QUICK, call, ignore_not_found};

/// The label of a snapshot that may not be on disk; its value is the id of the boot in which it was created.
pub(crate) const UNSYNCED: &str = "switchyard.io/unsynced";
/// How long syncing a file system may take.
const SYNC_TIMEOUT: Duration = Duration::from_secs(600);

/// Syncs unpacked snapshots in the background, after the pull has been answered.
#[derive(Debug, Clone)]
pub(crate) struct LayerSync {
    client: Client,
    boot: Arc<str>,
    tracker: TaskTracker,
}

/// The properties of a snapshot that matter for lost layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotInfo {
    pub(crate) parent: String,
    /// Whether it is committed, and so a layer. One that is not is active or a view, and may be in use.
    pub(crate) committed: bool,
    /// The id of the boot in which it was created, if it may not be on disk.
    pub(crate) unsynced: Option<String>,
}

/// Snapshots whose files a power cut may have lost.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LostLayers {
    /// Layers to remove, with all snapshots on top of them; children come before their parents.
    pub(crate) removable: Vec<String>,
    /// Layers to keep, because a snapshot on top of them may be in use.
    pub(crate) in_use: Vec<String>,
}

impl LayerSync {
    pub(crate) fn new(client: Client, boot: &str, tracker: TaskTracker) -> Self {
        Self { client, boot: boot.into(), tracker }
    }

    /// The labels to commit a snapshot with.
    fn labels(&self) -> HashMap<String, String> {
        HashMap::from([(UNSYNCED.to_owned(), self.boot.to_string())])
    }

    /// Syncs the file system of these snapshots in the background, and then removes their labels. `dir`: a
    /// directory on that file system; `None` syncs all file systems. If the daemon is killed before that, the
    /// next one does it.
    pub(crate) fn spawn_sync(&self, snapshotter: &str, names: Vec<String>, dir: Option<PathBuf>) {
        if names.is_empty() {
            return;
        }
        // During shutdown this may run, from a `Drop`, outside of the Tokio runtime: then the next start
        // syncs.
        let Ok(runtime) = Handle::try_current() else { return };
        let client = self.client.clone();
        let snapshotter = snapshotter.to_owned();
        let work = async move {
            if let Err(error) = sync_snapshots(&client, &snapshotter, &names, dir).await {
                tracing::warn!(
                    snapshotter,
                    error = error.report(),
                    "cannot sync unpacked layers to disk: after a power cut they are unpacked again"
                );
            }
        };
        self.tracker.spawn_on(work, &runtime);
    }
}

/// The snapshots that were unpacked for one image. They are synced when this is dropped.
#[derive(Debug)]
pub(crate) struct UnpackedSnapshots {
    layer_sync: LayerSync,
    snapshotter: String,
    snapshots: Mutex<(Vec<String>, Option<PathBuf>)>,
}

impl UnpackedSnapshots {
    pub(crate) fn new(layer_sync: LayerSync, snapshotter: &str) -> Arc<Self> {
        Arc::new(Self { layer_sync, snapshotter: snapshotter.to_owned(), snapshots: Mutex::default() })
    }

    /// The labels to commit a snapshot with.
    pub(crate) fn labels(&self) -> HashMap<String, String> {
        self.layer_sync.labels()
    }

    /// Adds a committed snapshot. `mounts`: those that it was unpacked into.
    pub(crate) fn add(&self, name: &str, mounts: &[Mount]) {
        let mut snapshots = self.snapshots.lock();
        snapshots.0.push(name.to_owned());
        snapshots.1 = writable_dir(mounts);
    }
}

impl Drop for UnpackedSnapshots {
    fn drop(&mut self) {
        let (names, dir) = std::mem::take(&mut *self.snapshots.lock());
        self.layer_sync.spawn_sync(&self.snapshotter, names, dir);
    }
}

async fn sync_snapshots(
    client: &Client,
    snapshotter: &str,
    names: &[String],
    dir: Option<PathBuf>,
) -> Result<()> {
    let synced = bulk(move || match dir.as_ref().and_then(|dir| std::fs::File::open(dir).ok()) {
        Some(file) => nix::unistd::syncfs(file)
            .map_err(|fault| Error::internal("sync the file system of layers").with_source(fault)),
        // The file system is not known, or the directory is gone: sync all file systems.
        None => {
            nix::unistd::sync();
            Ok(())
        }
    });
    tokio::time::timeout(SYNC_TIMEOUT, synced).await.map_err(|_| {
        Error::deadline(format!("syncing the layers to disk took longer than {SYNC_TIMEOUT:?}"))
    })??;
    reach(Step::LayersSynced);
    for name in names {
        let request = snap::UpdateSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            // containerd removes a label that is set to the empty string.
            info: Some(snap::Info {
                name: name.clone(),
                labels: HashMap::from([(UNSYNCED.to_owned(), String::new())]),
                ..Default::default()
            }),
            update_mask: Some(prost_types::FieldMask { paths: vec![format!("labels.{UNSYNCED}")] }),
        };
        // A snapshot that was removed with its image needs no update.
        ignore_not_found(
            call(&format!("update snapshot {name}"), QUICK, client.snapshots().update(request)).await,
        )?;
    }
    Ok(())
}

/// Finds the lost layers of a snapshotter. `layers` are all its snapshots by name, `boot` is the id of the
/// current boot, and `ended` tells whether an uncommitted snapshot is certainly not in use.
pub(crate) fn find_lost_layers(
    layers: &BTreeMap<String, SnapshotInfo>,
    boot: &str,
    ended: impl Fn(&str) -> bool,
) -> LostLayers {
    let mut children: HashMap<&str, Vec<&str>> = HashMap::new();
    for (name, layer) in layers {
        children.entry(layer.parent.as_str()).or_default().push(name);
    }
    let suspect =
        |layer: &SnapshotInfo| layer.unsynced.as_deref().is_some_and(|made| !made.is_empty() && made != boot);
    let mut removable = BTreeSet::new();
    let mut in_use = Vec::new();
    for (name, _) in layers.iter().filter(|(_, layer)| suspect(layer)) {
        let mut tree = BTreeSet::new();
        let mut next = vec![name.as_str()];
        while let Some(name) = next.pop() {
            if tree.insert(name) {
                next.extend(children.get(name).into_iter().flatten());
            }
        }
        if tree.iter().all(|name| layers[*name].committed || ended(name)) {
            removable.extend(tree);
        } else {
            in_use.push(name.clone());
        }
    }
    let depth = |name: &str| {
        std::iter::successors(layers.get(name), |layer| layers.get(&layer.parent)).take(layers.len()).count()
    };
    let mut removable: Vec<String> = removable.into_iter().map(str::to_owned).collect();
    removable.sort_by_key(|name| std::cmp::Reverse(depth(name)));
    LostLayers { removable, in_use }
}

/// The snapshots that a predecessor created in this boot and that may not be synced.
pub(crate) fn find_unsynced(layers: &BTreeMap<String, SnapshotInfo>, boot: &str) -> Vec<String> {
    let ours = layers.iter().filter(|(_, layer)| layer.unsynced.as_deref() == Some(boot));
    ours.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Snapshots by name, parent and boot; those with a `:` in the name are committed.
    fn layers(list: &[(&str, &str, Option<&str>)]) -> BTreeMap<String, SnapshotInfo> {
        let layer = |(name, parent, unsynced): &(&str, &str, Option<&str>)| {
            let parent = (*parent).to_owned();
            let unsynced = unsynced.map(str::to_owned);
            ((*name).to_owned(), SnapshotInfo { parent, committed: name.contains(':'), unsynced })
        };
        list.iter().map(layer).collect()
    }

    #[test]
    fn what_was_not_synced_before_a_reboot_goes_with_all_on_top_of_it() {
        let found = layers(&[
            (":base", "", None),
            (":z-app", ":base", Some("before")),
            ("a-task", ":z-app", None),
            (":b-top", ":z-app", Some("before")),
            ("c-task", ":b-top", None),
            (":other", ":base", Some("now")),
            (":synced", ":base", Some("")),
        ]);
        let LostLayers { removable, in_use } = find_lost_layers(&found, "now", |_| true);
        assert_eq!(
            (removable.len(), removable.last().map(String::as_str)),
            (4, Some(":z-app")),
            "{removable:?}"
        );
        let at = |name: &str| removable.iter().position(|other| other == name).unwrap();
        assert!(at("c-task") < at(":b-top") && at("a-task") < at(":z-app"), "{removable:?}");
        assert!(in_use.is_empty());
        assert_eq!(find_unsynced(&found, "now"), [":other"]);
        assert_eq!(find_lost_layers(&found, "before", |_| true).removable, [":other"]);
    }

    #[test]
    fn what_may_run_on_a_layer_keeps_it_and_those_below() {
        let found = layers(&[
            (":base", "", Some("before")),
            (":app", ":base", Some("before")),
            ("running", ":app", None),
            ("ended", ":app", None),
            (":unused", ":base", Some("before")),
        ]);
        let expected =
            LostLayers { removable: vec![":unused".into()], in_use: vec![":app".into(), ":base".into()] };
        assert_eq!(find_lost_layers(&found, "now", |name| name == "ended"), expected);
    }

    #[test]
    fn a_ring_of_parents_ends() {
        let found = layers(&[(":a", ":b", Some("x")), (":b", ":a", None)]);
        assert_eq!(find_lost_layers(&found, "now", |_| true).removable.len(), 2);
    }

    #[test]
    fn the_directory_is_that_of_the_new_layer() {
        let mount = |kind: &str, source: &str, options: &[&str]| Mount {
            r#type: kind.to_owned(),
            source: source.to_owned(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..Default::default()
        };
        assert_eq!(writable_dir(&[mount("bind", "/s/1/fs", &["rw"])]), Some("/s/1/fs".into()));
        let overlay =
            mount("overlay", "overlay", &["workdir=/s/2/work", "upperdir=/s/2/fs", "lowerdir=/s/1/fs"]);
        assert_eq!(writable_dir(&[overlay]), Some("/s/2/fs".into()));
        assert_eq!(writable_dir(&[mount("ext4", "/dev/dm-3", &[])]), None);
    }
}
