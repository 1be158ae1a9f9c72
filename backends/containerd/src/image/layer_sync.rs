//! Unpacked layers that may not be on disk yet.
//!
//! containerd does not sync the files of a layer before it says that the layer is there, and a power cut within half a minute leaves
//! some of them empty, for good: the snapshot counts as unpacked. To sync before the answer would hold up pulls. So each snapshot is
//! committed with a label that names this boot, which goes once its file system was synced. At a start in another boot, a layer with
//! the label is removed with all that is on top of it ([`lost`]), and unpacked anew from its content, which is synced, at next use.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use switchyard_core::threads::bulk;
use switchyard_core::{Error, Result};
use switchyard_steps::{Step, reach};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::client::{Client, QUICK, call, ignore_not_found, writable_dir};

/// The label of a snapshot that may not be on disk; its value is the boot that it was made in.
pub(crate) const UNSYNCED: &str = "switchyard.io/unsynced";
/// How long a disk may take.
const SYNC_TIMEOUT: Duration = Duration::from_secs(600);

/// Syncs what was unpacked, behind the answers.
#[derive(Debug, Clone)]
pub(crate) struct LayerSync {
    client: Client,
    boot: Arc<str>,
    tracker: TaskTracker,
}

/// A snapshot, as far as it matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotInfo {
    pub(crate) parent: String,
    /// Whether it is a layer; what is not committed was made for somebody to write or look into.
    pub(crate) committed: bool,
    /// The boot that it was made in, if it may not be on disk.
    pub(crate) unsynced: Option<String>,
}

/// What a power cut may have left without files.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LostLayers {
    /// To be removed, with what is on top; children come before their parents.
    pub(crate) removable: Vec<String>,
    /// Layers that may be in use since, and stay.
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

    /// Syncs the file system of these snapshots some time soon, and takes the label off them. If it does not come to that, the
    /// next start does it.
    pub(crate) fn spawn_sync(&self, snapshotter: &str, names: Vec<String>, dir: Option<PathBuf>) {
        if names.is_empty() {
            return;
        }
        // A daemon that ends drops what it was at, maybe outside of its runtime.
        let Ok(runtime) = Handle::try_current() else { return };
        let client = self.client.clone();
        let snapshotter = snapshotter.to_owned();
        let work = async move {
            if let Err(error) = sync_snapshots(&client, &snapshotter, &names, dir).await {
                tracing::warn!(
                    snapshotter,
                    error = error.report(),
                    "layers may not be on disk: after a power cut they are unpacked anew"
                );
            }
        };
        self.tracker.spawn_on(work, &runtime);
    }
}

/// The snapshots that one image has had made. They are synced when it is dropped.
#[derive(Debug)]
pub(crate) struct UnpackedSnapshots {
    layer_sync: LayerSync,
    snapshotter: String,
    snapshots: Mutex<(Vec<String>, Option<PathBuf>)>,
}

impl UnpackedSnapshots {
    pub(crate) fn new(flush: LayerSync, snapshotter: &str) -> Arc<Self> {
        Arc::new(Self { layer_sync: flush, snapshotter: snapshotter.to_owned(), snapshots: Mutex::default() })
    }

    /// The labels to commit a snapshot with.
    pub(crate) fn labels(&self) -> HashMap<String, String> {
        self.layer_sync.labels()
    }

    /// Takes note of a snapshot that was committed, and of the mounts that it was unpacked into.
    pub(crate) fn add(&self, name: &str, mounts: &[Mount]) {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.0.push(name.to_owned());
        snapshots.1 = writable_dir(mounts);
    }
}

impl Drop for UnpackedSnapshots {
    fn drop(&mut self) {
        let (names, dir) =
            std::mem::take(&mut *self.snapshots.lock().unwrap_or_else(PoisonError::into_inner));
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
        // Wherever they are, and if the one that was looked for is gone: they are on disk then.
        None => {
            nix::unistd::sync();
            Ok(())
        }
    });
    tokio::time::timeout(SYNC_TIMEOUT, synced)
        .await
        .map_err(|_| Error::deadline(format!("the disk took longer than {SYNC_TIMEOUT:?}")))??;
    reach(Step::LayersSynced);
    for name in names {
        let request = snap::UpdateSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            // A label without a value is taken off.
            info: Some(snap::Info {
                name: name.clone(),
                labels: HashMap::from([(UNSYNCED.to_owned(), String::new())]),
                ..Default::default()
            }),
            update_mask: Some(prost_types::FieldMask { paths: vec![format!("labels.{UNSYNCED}")] }),
        };
        // One that is gone, with its image, needs no label.
        ignore_not_found(
            call(&format!("update snapshot {name}"), QUICK, client.snapshots().update(request)).await,
        )?;
    }
    Ok(())
}

/// Decides about the snapshots of one snapshotter, all of which are `layers`, by name, in this `boot`. `ended` says of one that is
/// not committed whether nothing can be using it.
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
    let mut gone = BTreeSet::new();
    let mut used = Vec::new();
    for (name, _) in layers.iter().filter(|(_, layer)| suspect(layer)) {
        let mut tree = BTreeSet::new();
        let mut next = vec![name.as_str()];
        while let Some(name) = next.pop() {
            if tree.insert(name) {
                next.extend(children.get(name).into_iter().flatten());
            }
        }
        if tree.iter().all(|name| layers[*name].committed || ended(name)) {
            gone.extend(tree);
        } else {
            used.push(name.clone());
        }
    }
    let depth = |name: &str| {
        std::iter::successors(layers.get(name), |layer| layers.get(&layer.parent)).take(layers.len()).count()
    };
    let mut gone: Vec<String> = gone.into_iter().map(str::to_owned).collect();
    gone.sort_by_key(|name| std::cmp::Reverse(depth(name)));
    LostLayers { removable: gone, in_use: used }
}

/// The snapshots of one snapshotter that were made in this boot, by a daemon that did not come to sync them.
pub(crate) fn find_unsynced(layers: &BTreeMap<String, SnapshotInfo>, boot: &str) -> Vec<String> {
    let ours = layers.iter().filter(|(_, layer)| layer.unsynced.as_deref() == Some(boot));
    ours.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names, parents and boots; those with a `:` are committed.
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
        let LostLayers { removable: gone, in_use: used } = find_lost_layers(&found, "now", |_| true);
        assert_eq!((gone.len(), gone.last().map(String::as_str)), (4, Some(":z-app")), "{gone:?}");
        let at = |name: &str| gone.iter().position(|other| other == name).unwrap();
        assert!(at("c-task") < at(":b-top") && at("a-task") < at(":z-app"), "{gone:?}");
        assert!(used.is_empty());
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
