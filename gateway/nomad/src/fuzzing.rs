//! Invariants for arbitrary bytes from agents and jobs. Called only by fuzz targets and tests.

use prost::Message;
use switchyard_core::spec::TaskSpec;
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::from_proto::any_bytes;

/// Decodes bytes as the configuration of the plugin and of a task, in MessagePack.
///
/// # Panics
/// A task of an operator who allows nothing special gets more access to the host than it may have.
pub fn configs(data: &[u8]) {
    any_bytes::check(data);
}

/// Plans the task that the bytes encode.
///
/// # Errors
/// The bytes encode no task, or the task is refused.
pub fn task_spec(data: &[u8]) -> Result<TaskSpec> {
    let task = nomad::TaskConfig::decode(data)
        .map_err(|error| Error::invalid("task", "it is no message").with_source(error))?;
    Ok(any_bytes::planned(&task)?.task)
}
