//! The life of a task: creation, start, exit and removal.

use std::sync::Arc;

use switchyard_core::id::TaskId;
use switchyard_core::{Error, Result};

use crate::backend::Inner;

mod attach;
mod checkpoint;
mod cleanup;
mod create;
mod entry;
mod exit;
mod fifos;
mod freeze;
mod hung;
mod inputs;
pub(crate) mod leaf;
mod oom;
mod oom_watch;
mod pod_shim;
mod pod_shim_wait;
mod process;
mod quota;
mod remove;
mod score;
mod shim_client;
mod signalable;
pub(crate) mod stage;
mod start;
mod throttle;
mod unread;
mod update;
mod volumes;

pub(crate) use cleanup::{TaskCleanup, TaskCleanupKind};
pub(crate) use entry::TaskEntry;
pub(crate) use fifos::keep_open;
pub(crate) use freeze::ExecPermit;
pub(crate) use pod_shim::PodShims;
pub(crate) use process::{ProcessHandle, process_ended};
pub(crate) use start::{log_spec, make_fifos, mark_started, open_output_fifos};

impl Inner {
    pub(crate) fn task(&self, id: TaskId) -> Result<Arc<TaskEntry>> {
        let found = self.tasks().get(&id).cloned();
        found.ok_or_else(|| Error::not_found(format!("task {id} does not exist")))
    }
}
