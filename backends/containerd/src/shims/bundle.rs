//! The objects of a task that containerd keeps outside of its database: a bundle, a shim, and the state
//! directory of the runtime.
//!
//! containerd reports a task as deleted before it has removed all of this, and leaks some of it when its call
//! is cancelled or it is killed in the middle. With a managed containerd, whose directories are known,
//! nothing of a container counts as removed before its bundle is.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use switchyard_core::Result;
use switchyard_namespaces::tasks::unmount_tree;

use crate::base::config::ContainerdMode;
use crate::base::container_id::ContainerId;
use crate::base::error::from_namespaces;
use crate::base::fs::{ids_below, remove_tree};
use crate::shims::Shims;

/// Limit for containerd to remove a bundle after it has reported the task as deleted. It gives its helper,
/// the shim's `delete` command, five seconds.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for listing the directories of bundles.
pub(crate) const LIST_LIMIT: Duration = Duration::from_secs(30);
/// The interval between two checks for the bundle.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The bundles that a scan has found.
#[derive(Debug, Default)]
pub(super) struct FoundBundles {
    /// The containers that have one.
    pub(super) ids: BTreeSet<ContainerId>,
    /// The directories that could not be listed, each with the reason.
    pub(super) unlisted: BTreeMap<PathBuf, String>,
}

impl Shims {
    /// Returns the directory in which a managed containerd keeps the runtime's files of a container beside
    /// its bundle.
    fn work_dirs(&self) -> PathBuf {
        let settings = self.context.settings();
        settings
            .state
            .join("containerd/root/io.containerd.runtime.v2.task")
            .join(&settings.containerd.namespace)
    }

    /// Returns the directory of a managed containerd's bundles; `None` for an external one, whose directories
    /// are not known.
    pub(crate) fn bundles(&self) -> Option<PathBuf> {
        let namespace = &self.context.settings().containerd.namespace;
        let managed = self.context.settings().containerd.mode == ContainerdMode::Managed;
        managed.then(|| {
            self.context
                .settings()
                .run
                .join("containerd/state/io.containerd.runtime.v2.task")
                .join(namespace)
        })
    }

    /// Returns whether containerd has a bundle of this container; `None` with an external containerd.
    pub(crate) fn has_bundle(&self, id: &ContainerId) -> Option<bool> {
        self.bundles().map(|bundles| bundles.join(&**id).exists())
    }

    /// Waits until containerd has removed the bundle of a task that it reports as deleted. A bundle that is
    /// still there after [`REMOVAL_TIMEOUT`] is removed here. Idempotent.
    pub(crate) async fn await_bundle_removal(&self, id: &ContainerId) -> Result<()> {
        let deadline = Instant::now() + REMOVAL_TIMEOUT;
        while self.has_bundle(id) == Some(true) {
            if Instant::now() > deadline {
                tracing::warn!(object = %id, "containerd did not remove a bundle: removing it");
                return self.clear_bundle(id).await;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Terminates the shim of a container that containerd does not know, and removes its bundle. Idempotent.
    pub(crate) async fn clear_bundle(&self, id: &ContainerId) -> Result<()> {
        if self.bundles().is_some() {
            self.end_shims_of(id).await?;
        }
        self.remove_bundle(id).await
    }

    /// Removes the bundle of a container that has no shim, and what the runtime stores of it. Idempotent.
    pub(super) async fn remove_bundle(&self, id: &ContainerId) -> Result<()> {
        let Some(bundle) = self.bundles().map(|bundles| bundles.join(&**id)) else {
            return Ok(());
        };
        unmount_tree(bundle.clone())
            .await
            .map_err(from_namespaces)?;
        self.trees.remove(&bundle).await?;
        let namespace = &self.context.settings().containerd.namespace;
        remove_tree(
            &self
                .context
                .settings()
                .run
                .join("oci")
                .join(namespace)
                .join(&**id),
        )
        .await?;
        // Last, because its disk may fail.
        self.trees.remove(&self.work_dirs().join(&**id)).await
    }

    /// Terminates the shim that was started for a container, unless it serves other containers of its pod.
    async fn end_shims_of(&self, id: &ContainerId) -> Result<()> {
        for shim in self.orphan_shims_of(id).await? {
            self.terminate_shim(shim).await?;
        }
        Ok(())
    }

    /// The ids of the containers of which a managed containerd has a bundle, or the directory beside it, which stays
    /// if its disk could not be written when the bundle was removed. Names that are no ids are left out: containerd
    /// renames a bundle to a hidden name before it removes it, and other entries are not ours to remove. A disk that hangs
    /// occupies one thread, however often this is called. Cancel-safe.
    pub(super) async fn list_bundles(&self) -> FoundBundles {
        let mut found = FoundBundles::default();
        let Some(bundles) = self.bundles() else {
            return found;
        };
        for dir in [bundles, self.work_dirs()] {
            let listed = dir.clone();
            match self
                .files
                .run(dir.display().to_string(), move || ids_below(&listed))
                .await
            {
                Ok(ids) => found.ids.extend(ids.into_values()),
                Err(error) => {
                    found.unlisted.insert(dir, error.report());
                }
            }
        }
        found
    }
}
