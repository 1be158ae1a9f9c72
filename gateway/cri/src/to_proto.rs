//! Converts the task model to wire messages.
//!
//! What CRI requires to be echoed comes from the record of the request. Without one, most of it is filled in
//! from the labels that the core stores.

mod checkpoint;
mod container;
mod image;
mod info;
mod metrics;
mod node;
mod resources;
mod sandbox;
mod signal;
mod stats;
mod time;

pub(crate) use checkpoint::checkpoint_notes;
pub(crate) use container::{
    container, container_state, container_status, labelled_container, written_image,
};
pub(crate) use image::{image, image_fs_info};
pub(crate) use info::{container_info, image_info, sandbox_info, status_info};
pub(crate) use metrics::{CommonLabels, container_metrics, descriptors, sandbox_metrics};
pub(crate) use node::{runtime_config, status};
pub(crate) use sandbox::{labelled_pod, pod_sandbox, sandbox_state, sandbox_status};
pub(crate) use stats::{container_stats, sandbox_stats};
pub(crate) use time::nanoseconds;

#[cfg(test)]
pub(crate) mod tests;
