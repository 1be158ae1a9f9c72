//! Sandboxes and tasks, as the table keeps them and everybody reads them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use crate::id::{SandboxId, TaskId};
use crate::image::ImageId;
use crate::spec::{
    ComputeClaim, HostPorts, LeaseClaim, Meta, ProjectId, Resources, Signal, Throttle,
};
use crate::state::{SandboxState, TaskState};

/// A snapshot of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// Its id.
    pub id: SandboxId,
    /// Owner, name, and the frontend's data.
    pub meta: Arc<Meta>,
    /// Its runtime handler; empty for the default.
    pub handler: String,
    /// The result of its creation.
    pub details: SandboxDetails,
    /// Its state.
    pub state: SandboxState,
}

/// A snapshot of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// The sandbox it belongs to.
    pub sandbox: SandboxId,
    /// Owner, name, and the frontend's data.
    pub meta: Arc<Meta>,
    /// The result of its creation.
    pub details: TaskDetails,
    /// Its state.
    pub state: TaskState,
}

/// The result of creating a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SandboxDetails {
    /// Its addresses, the primary one first; none with the host's network.
    pub ips: Vec<IpAddr>,
    /// Its network namespace, unless it is the host's.
    pub netns: Option<PathBuf>,
    /// Process id of the sandbox's own process, if it has one.
    pub pid: Option<u32>,
    /// The frontend's data that was stored after creation with
    /// [`SandboxBackend::amend_sandbox`](crate::backend::SandboxBackend::amend_sandbox); opaque bytes, as
    /// [`Meta::record`](crate::spec::Meta::record).
    pub note: Vec<u8>,
    /// The host ports that it was created with.
    pub host_ports: HostPorts,
}

/// The result of creating a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDetails {
    /// The image it was created from.
    pub image_id: ImageId,
    /// The image's name by digest, or its id if it has none.
    pub image_ref: String,
    /// The directories that its image declares as volumes.
    pub image_volumes: Vec<PathBuf>,
    /// The images mounted into it as volumes.
    pub volume_images: Vec<ImageId>,
    /// The user that its main process runs as.
    pub user: ResolvedUser,
    /// The first signal sent to stop it.
    pub stop_signal: Signal,
    /// The limits in force.
    pub resources: Resources,
    /// The block device limits in force.
    pub throttles: Vec<Throttle>,
    /// Its log file.
    pub log_path: Option<PathBuf>,
    /// The quota project of its root file system, or of its first limited volume if that has none; `None` if
    /// nothing is limited.
    pub project: Option<ProjectId>,
    /// The device leases that it was created with.
    pub leases: Vec<LeaseClaim>,
    /// The share of the node's processors and memory that is reserved for it.
    pub compute: ComputeClaim,
    /// Parts of its specification that this node could not fulfil in full, for people. Known only where it was created: a
    /// recovered task has none.
    pub warnings: Vec<String>,
}

/// A user, by numeric ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedUser {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All supplementary groups.
    pub groups: Vec<u32>,
}
