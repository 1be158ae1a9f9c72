//! Invariants for arbitrary bytes from agents and jobs. Called only by fuzz targets and tests.

use crate::from_proto::any_bytes;

/// Decodes bytes as the configuration of the plugin and of a task, in MessagePack.
///
/// # Panics
/// A task of an operator who allows nothing special gets more access to the host than it may have.
pub fn configs(data: &[u8]) {
    any_bytes::check(data);
}
