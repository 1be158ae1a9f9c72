//! From the task model to the wire.
//!
//! What CRI wants echoed comes from the record of the request; where a record cannot be read (another version of this program wrote
//! it) the labels that the core keeps say most of it.

use std::time::{SystemTime, UNIX_EPOCH};

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

pub(crate) use checkpoint::checkpoint_notes;
pub(crate) use container::{container, container_state, container_status};
pub(crate) use image::{image, image_fs_info};
pub(crate) use info::{container_info, image_info, sandbox_info, status_info};
pub(crate) use metrics::{CommonLabels, container_metrics, descriptors, sandbox_metrics};
pub(crate) use node::{runtime_config, status};
pub(crate) use sandbox::{pod_sandbox, sandbox_state, sandbox_status};
pub(crate) use stats::{container_stats, sandbox_stats};

/// Nanoseconds since 1970; a time before it or beyond the year 2262 is the nearest that can be said.
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests;
