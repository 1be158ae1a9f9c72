//! The request to start a task, with the context of its session.

use std::path::PathBuf;

use switchyard_core::Result;
use switchyard_docker_options::fields::absolute;
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::identity;
use crate::session::Session;
use crate::task_config::TaskOptions;

/// The input of a plan.
pub(super) struct TaskRequest<'a> {
    pub(super) task: &'a nomad::TaskConfig,
    pub(super) options: &'a TaskOptions,
    pub(super) session: &'a Session,
    /// The allocation directory.
    pub(super) alloc_dir: PathBuf,
    /// The task's directory in it.
    pub(super) task_dir: PathBuf,
}

// === impl TaskRequest ===

impl<'a> TaskRequest<'a> {
    pub(super) fn new(
        task: &'a nomad::TaskConfig,
        options: &'a TaskOptions,
        session: &'a Session,
    ) -> Result<Self> {
        identity::check(task)?;
        let alloc_dir = absolute("task.alloc_dir", &task.alloc_dir)?;
        let task_dir = alloc_dir.join(&task.name);
        Ok(Self {
            task,
            options,
            session,
            alloc_dir,
            task_dir,
        })
    }
}
