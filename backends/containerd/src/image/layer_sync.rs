//! Syncing unpacked layers to disk.
//!
//! containerd commits a snapshot without syncing the files of the layer. A power cut within about half a
//! minute leaves some of them empty for good, because the snapshot counts as unpacked. Syncing before a pull
//! is answered would delay pulls. So each snapshot is committed with a label that names the current boot, and
//! the label is removed once the file system was synced. When the daemon starts in another boot, a layer that
//! still has the label is removed with all snapshots on top of it ([`lost_layers`](super::lost_layers)), and is unpacked
//! again at its next use from the content store, whose blobs containerd does sync.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use parking_lot::Mutex;
use prost_types::Timestamp;
use switchyard_core::keyed_lock::{KeyedLock, KeyedLockGuard};
use switchyard_core::threads::bulk;
use switchyard_core::{Error, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::mounts::{self, MountTable};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use super::snapshots::{self, UNSYNCED};
use super::usage;
use crate::base::fs::io_error;
use crate::base::mount::writable_dir;
use crate::client::{Client, QUICK, call, ignore_not_found};

mod file_systems;

use file_systems::on_disks;

/// Limit for syncing a file system.
const SYNC_TIMEOUT: Duration = Duration::from_secs(600);

/// Syncs unpacked snapshots in the background, after the pull has been answered, and removes lost layers.
/// Clones share everything.
#[derive(Debug, Clone)]
pub(crate) struct LayerSync {
    pub(super) client: Client,
    pub(super) boot: Arc<str>,
    tracker: TaskTracker,
    /// Serialises the creation of a snapshot with the removal of its label, by snapshotter and name.
    commits: Arc<KeyedLock<(String, String)>>,
    /// One sync at a time: a file system that hangs keeps one thread, not one for each pull.
    syncing: Arc<Semaphore>,
    /// The ids of our tasks that exited with an earlier boot; held while lost layers are removed.
    pub(super) ended: Arc<tokio::sync::Mutex<HashSet<String>>>,
}

impl LayerSync {
    pub(crate) fn new(client: Client, boot: &str, tracker: TaskTracker) -> Self {
        Self {
            client,
            boot: boot.into(),
            tracker,
            commits: Arc::default(),
            syncing: Arc::new(Semaphore::new(1)),
            ended: Arc::default(),
        }
    }

    /// The labels to commit a snapshot with.
    fn labels(&self) -> HashMap<String, String> {
        HashMap::from([(UNSYNCED.to_owned(), self.boot.to_string())])
    }

    /// Syncs the file system of these snapshots in the background, and then removes their labels. `dir`: a
    /// directory on that file system; `None` for the one that the snapshotter's own directory is on. If the
    /// daemon is killed before that, the next one does it.
    pub(crate) fn spawn_sync(&self, snapshotter: &str, names: Vec<String>, dir: Option<PathBuf>) {
        if names.is_empty() {
            return;
        }
        // During shutdown this may run, from a `Drop`, outside of the Tokio runtime: then the next start
        // syncs.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let sync = self.clone();
        let snapshotter = snapshotter.to_owned();
        let work = async move {
            if let Err(error) = sync.sync_snapshots(&snapshotter, names, dir).await {
                tracing::warn!(
                    snapshotter,
                    error = error.report(),
                    "cannot sync unpacked layers to disk: after a power cut they are unpacked again"
                );
            }
        };
        self.tracker.spawn_on(work, &runtime);
    }

    async fn sync_snapshots(
        &self,
        snapshotter: &str,
        names: Vec<String>,
        dir: Option<PathBuf>,
    ) -> Result<()> {
        let mut made = Vec::with_capacity(names.len());
        for name in names {
            // A snapshot that was removed with its image needs no sync.
            if let Some(info) = snapshots::stat(&self.client, snapshotter, &name).await? {
                made.push((name, info.created_at));
            }
        }
        self.sync_file_system(snapshotter, dir).await?;
        reach(CrashPoint::LayersSynced);
        for (name, created_at) in made {
            self.remove_label(snapshotter, &name, created_at.as_ref())
                .await?;
        }
        Ok(())
    }

    /// Removes the label of a snapshot that was created at this time. One of the same name that was created
    /// since then, as when its image was removed and pulled again, was not synced.
    async fn remove_label(
        &self,
        snapshotter: &str,
        name: &str,
        created_at: Option<&Timestamp>,
    ) -> Result<()> {
        let _turn = self
            .commits
            .lock((snapshotter.to_owned(), name.to_owned()))
            .await;
        let found = snapshots::stat(&self.client, snapshotter, name).await?;
        if found.is_none_or(|info| info.created_at.as_ref() != created_at) {
            return Ok(());
        }
        let request = snap::UpdateSnapshotRequest {
            snapshotter: snapshotter.to_owned(),
            // containerd removes a label that is set to the empty string.
            info: Some(snap::Info {
                name: name.to_owned(),
                labels: HashMap::from([(UNSYNCED.to_owned(), String::new())]),
                ..Default::default()
            }),
            update_mask: Some(prost_types::FieldMask {
                paths: vec![format!("labels.{UNSYNCED}")],
            }),
        };
        let what = format!("update snapshot {name}");
        ignore_not_found(call(&what, QUICK, self.client.snapshots().update(request)).await)
    }

    /// Syncs the file system of a snapshotter.
    async fn sync_file_system(&self, snapshotter: &str, dir: Option<PathBuf>) -> Result<()> {
        let late = |_| {
            Error::deadline(format!(
                "syncing the layers of {snapshotter} to disk took longer than {SYNC_TIMEOUT:?}: does its file system hang?"
            ))
        };
        let permit = timeout(SYNC_TIMEOUT, Arc::clone(&self.syncing).acquire_owned())
            .await
            .map_err(late)?;
        let permit =
            permit.map_err(|closed| Error::internal("wait for other syncs").with_source(closed))?;
        // For a directory that is not known, or that is gone with its image.
        let roots = usage::roots(&self.client).await.inspect_err(|error| {
            tracing::debug!(
                error = error.report(),
                "the root of a snapshotter is not known"
            );
        });
        let root = roots.unwrap_or_default().remove(snapshotter);
        let synced = bulk(move || {
            let _until_it_ends = permit;
            sync_dirs(dir, root)
        });
        timeout(SYNC_TIMEOUT, synced).await.map_err(late)?
    }
}

/// Syncs the file system of this directory; without it, those of the snapshotter's root; without that, those of
/// all disks. Never those of other nodes: one that does not answer would keep this thread. Blocks.
fn sync_dirs(dir: Option<PathBuf>, root: Option<PathBuf>) -> Result<()> {
    let mut opened = open_all(dir.as_slice());
    if opened.is_empty() {
        // Snapshots may be on a file system of their own below the root.
        let dirs: Vec<_> = root
            .into_iter()
            .flat_map(|root| [root.join("snapshots"), root])
            .collect();
        opened = open_all(&dirs);
    }
    if opened.is_empty() {
        let table = MountTable::of_this_process()
            .map_err(|fault| io_error("read", Path::new(mounts::OWN_MOUNTS), fault))?;
        opened = open_all(&on_disks(&table));
    }
    opened.into_iter().try_for_each(|file| {
        nix::unistd::syncfs(file)
            .map_err(|fault| Error::internal("sync the file system of layers").with_source(fault))
    })
}

fn open_all(dirs: &[PathBuf]) -> Vec<File> {
    dirs.iter().filter_map(|dir| File::open(dir).ok()).collect()
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
        Arc::new(Self {
            layer_sync,
            snapshotter: snapshotter.to_owned(),
            snapshots: Mutex::default(),
        })
    }

    /// The labels to commit a snapshot with.
    pub(crate) fn labels(&self) -> HashMap<String, String> {
        self.layer_sync.labels()
    }

    /// Waits until nobody removes the label of a snapshot of this name. To be held while it is committed.
    pub(crate) async fn lock(&self, name: &str) -> KeyedLockGuard {
        self.layer_sync
            .commits
            .lock((self.snapshotter.clone(), name.to_owned()))
            .await
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

#[cfg(test)]
mod tests;
