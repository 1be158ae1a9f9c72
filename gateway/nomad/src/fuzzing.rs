//! What holds for any bytes that agents and jobs send. Called by fuzz targets and tests alone.

use crate::from_proto::any_bytes;

/// Reads bytes as the configuration of the plugin and of a task, in MessagePack.
///
/// # Panics
/// A task of an operator who allows nothing special gets more of the host than it may.
pub fn configs(data: &[u8]) {
    any_bytes::check(data);
}
