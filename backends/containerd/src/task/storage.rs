//! A task's storage: its snapshot, image views, volumes, the limits on them, and the labels of what it mounts.

use std::sync::Arc;

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use switchyard_core::Result;
use switchyard_core::blocking_pool::OwnerPools;

use super::TaskEntry;
use crate::base::trees::Trees;
use crate::client::{Client, QUICK, call};
use crate::context::Context;
use crate::image::ContainerdImageStore;
use crate::image::reader::ImageReader;

mod empty;
pub(crate) mod fill;
pub(crate) mod mounts;
pub(crate) mod plan;
pub(crate) mod projects;
pub(crate) mod quota;
mod relabel;
mod removal;
pub(crate) mod stage;
pub(crate) mod volumes;

use projects::Projects;
use volumes::Volumes;

/// The files of tasks.
#[derive(Debug)]
pub(crate) struct Storage {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) images: ContainerdImageStore,
    pub(crate) image_reader: ImageReader,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) trees: Arc<Trees>,
    /// Quota projects.
    pub(crate) projects: Projects,
    /// For access to file systems that may hang.
    pub(crate) blocking_pools: OwnerPools,
}

impl Storage {
    /// The mounts of a task's root file system.
    pub(crate) async fn mounts_of(&self, entry: &TaskEntry) -> Result<Vec<Mount>> {
        let known = entry.mounts.lock().take();
        if let Some(mounts) = known {
            return Ok(mounts);
        }
        let request = snap::MountsRequest {
            snapshotter: entry.snapshotter.clone(),
            key: entry.id.to_string(),
        };
        let what = format!("look up the mounts of snapshot {}", entry.id);
        Ok(call(&what, QUICK, self.client.snapshots().mounts(request))
            .await?
            .mounts)
    }
}
