//! Turns a request to start a task into a plan that can be carried out on this node, and prepares the node for
//! it.

use switchyard_core::Result;
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::plan::Plan;
use crate::session::Session;
use crate::{from_proto, paths};

/// The plan of a task, with its cgroup and the sources of its mounts resolved on the node. Creates directories
/// below the allocation directory that are to be mounted and are missing. Blocks on the file system.
/// Idempotent.
///
/// # Errors
/// Those of [`from_proto::plan`] and [`paths::resolve_sources`].
pub(crate) fn prepare(task: &nomad::TaskConfig, session: &Session) -> Result<Plan> {
    let mut plan = from_proto::plan(task, session)?;
    paths::resolve_cgroup(&mut plan, task);
    paths::resolve_sources(&mut plan)?;
    Ok(plan)
}
