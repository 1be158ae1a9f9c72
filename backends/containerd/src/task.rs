//! The life of a task: creation, start, exit and removal.
//!
//! ```text
//! Tasks          creates, starts, updates, signals and removes
//!  ├── Exits        observes, persists and reports exits, ends processes, finishes logs
//!  │    ├── TaskCgroups   cpusets, OOM scores, block I/O limits, freezing
//!  │    └── Storage       snapshots, views, volumes, quotas, staged mounts
//!  └── TaskTable    what this daemon knows of each task
//! Attachments    clients that follow the streams of a running task
//! Checkpoints    dumps a running task into an archive
//! ```

use std::sync::{Arc, Weak};

use crate::blockers::Blockers;
use crate::cgroups::Cgroups;
use crate::cleanup::CleanupQueue;
use crate::client::Client;
use crate::context::Context;
use crate::node::Node;
use crate::processes::Processes;
use crate::sandbox::Sandboxes;
use crate::shims::Shims;

pub(crate) mod attach;
pub(crate) mod cgroups;
pub(crate) mod checkpoint;
pub(crate) mod cleanup;
mod create;
mod entry;
pub(crate) mod exit;
mod fifos;
mod freeze;
mod hung;
mod inputs;
mod lifecycle;
mod logs;
mod net_admin;
mod pod_shims;
mod process;
mod remove;
mod rootfs;
mod signalable;
mod spec_request;
pub(crate) mod start;
pub(crate) mod storage;
pub(crate) mod table;
mod update;

pub(crate) use entry::TaskEntry;
use exit::Exits;
pub(crate) use fifos::{keep_open, make_fifos};
pub(crate) use freeze::{ExecPermit, StartPlace};
pub(crate) use lifecycle::LifecycleEvent;
pub(crate) use logs::{end_log, log_spec, open_output_fifos};
pub(crate) use process::{ProcessHandle, process_ended};
use storage::Storage;
use table::TaskTable;

use self::cgroups::TaskCgroups;

/// Creates, starts, updates, signals and removes tasks.
#[derive(Debug)]
pub(crate) struct Tasks {
    /// This object, for cleanups that outlive the call that queues them.
    pub(crate) weak: Weak<Self>,
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) table: Arc<TaskTable>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) exits: Arc<Exits>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) task_cgroups: Arc<TaskCgroups>,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) shims: Arc<Shims>,
    pub(crate) node: Arc<Node>,
    pub(crate) blockers: Arc<Blockers>,
    pub(crate) cleanup: Arc<CleanupQueue>,
}
