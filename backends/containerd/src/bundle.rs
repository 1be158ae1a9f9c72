//! What containerd keeps of a task outside of its database: a bundle, a shim, the runtime's notes.
//!
//! containerd tells that a task is gone before it has taken all of this away, and forgets some of it when it is called off or killed
//! in the middle. Beside a containerd of our own we can tell: nothing of a container is gone before its bundle is.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use switchyard_core::{Error, Result};
use switchyard_namespaces::tasks::unmount_tree;

use crate::backend::Inner;
use crate::config::ContainerdMode;
use crate::container_id::ContainerId;
use crate::fs::remove_tree;
use crate::sandbox::from_namespaces;

/// How long containerd may take to take a bundle away after it has said that the task is gone: it gives its helper five seconds.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The containers whose processes are being made just now: a shim that containerd does not know may be theirs.
#[derive(Debug, Default)]
pub(crate) struct CreatesInFlight {
    ids: Mutex<HashSet<String>>,
}

/// Says, until it is dropped, that a process is being made.
#[derive(Debug)]
pub(crate) struct CreateGuard<'m> {
    creates: &'m CreatesInFlight,
    id: String,
}

// === impl Making ===

impl CreatesInFlight {
    fn ids(&self) -> MutexGuard<'_, HashSet<String>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, id: &str) -> CreateGuard<'_> {
        self.ids().insert(id.to_owned());
        CreateGuard { creates: self, id: id.to_owned() }
    }

    pub(crate) fn current(&self) -> HashSet<String> {
        self.ids().clone()
    }
}

impl Drop for CreateGuard<'_> {
    fn drop(&mut self) {
        self.creates.ids().remove(&self.id);
    }
}

impl Inner {
    /// Where a managed containerd keeps its bundles; elsewhere that is nobody's business.
    pub(crate) fn bundles(&self) -> Option<PathBuf> {
        let namespace = &self.settings.containerd.namespace;
        let managed = self.settings.containerd.mode == ContainerdMode::Managed;
        managed
            .then(|| self.settings.run.join("containerd/state/io.containerd.runtime.v2.task").join(namespace))
    }

    /// Whether containerd has a bundle of this container; `None` if that cannot be known.
    pub(crate) fn has_bundle(&self, id: &ContainerId) -> Option<bool> {
        self.bundles().map(|bundles| bundles.join(&**id).exists())
    }

    /// Waits until containerd has taken away what belonged to a task that it says is gone, and takes away itself what containerd
    /// has forgotten. Idempotent.
    pub(crate) async fn await_bundle_removal(&self, id: &ContainerId) -> Result<()> {
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        while self.has_bundle(id) == Some(true) {
            if Instant::now() > deadline {
                tracing::warn!(%id, "containerd has forgotten a bundle: removing it");
                return self.clear_bundle(id).await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Ends the shim of a container that containerd does not know and removes its bundle. Idempotent.
    pub(crate) async fn clear_bundle(&self, id: &ContainerId) -> Result<()> {
        let Some(bundle) = self.bundles().map(|bundles| bundles.join(&**id)) else { return Ok(()) };
        self.end_shims_of(id).await?;
        unmount_tree(bundle.clone()).await.map_err(from_namespaces)?;
        self.trees.remove(&bundle).await?;
        let namespace = &self.settings.containerd.namespace;
        let work = Path::new("containerd/root/io.containerd.runtime.v2.task").join(namespace).join(&**id);
        self.trees.remove(&self.settings.state.join(work)).await?;
        remove_tree(&self.settings.run.join("oci").join(namespace).join(&**id)).await
    }

    /// Ends the shim that was started for a container, unless it serves others of its pod.
    async fn end_shims_of(&self, id: &ContainerId) -> Result<()> {
        for shim in self.orphan_shims_of(id).await? {
            self.terminate_shim(shim).await?;
        }
        Ok(())
    }

    /// The bundles of containers of ours that there are.
    pub(crate) fn list_bundles(&self) -> Result<Vec<ContainerId>> {
        let Some(bundles) = self.bundles() else { return Ok(Vec::new()) };
        let entries = match std::fs::read_dir(&bundles) {
            Ok(entries) => entries,
            Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(fault) => {
                return Err(Error::internal(format!("list {}", bundles.display())).with_source(fault));
            }
        };
        // containerd renames a bundle to a hidden name before it removes it. Whatever else is there is not for us to remove.
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }
}
