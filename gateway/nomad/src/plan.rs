//! What a task of Nomad comes to in words of the gateway: a plan, made without touching anything.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_core::Result;
use switchyard_core::device::Reservation;
use switchyard_core::image::Credentials;
use switchyard_core::spec::{SandboxSpec, TaskSpec};
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::session::Session;

/// What is to be done to start a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The image.
    pub(crate) image: ImageRequest,
    /// The sandbox: one for each task.
    pub(crate) sandbox: SandboxSpec,
    /// The task in it.
    pub(crate) task: TaskSpec,
    /// What the agent is told of the network: the ports inside, by label.
    pub(crate) ports: Vec<NamedPort>,
    /// Mounts whose sources must lead nowhere but into the allocation's directory; to be seen to before the task is made.
    pub(crate) confined: Vec<ConfinedMount>,
    /// What there is to tell whoever wrote the job, and stops nothing.
    pub(crate) warnings: Vec<String>,
}

/// A mount whose source a task could have put a link into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfinedMount {
    /// Its number among those of the task.
    pub(crate) mount: usize,
    /// The directory that it must not lead out of.
    pub(crate) root: PathBuf,
    /// The key that asks for it.
    pub(crate) field: String,
}

/// An image to have before the task is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageRequest {
    /// Its name as the registry is asked for it.
    pub(crate) reference: String,
    /// A tar archive in the task's directory to load it from instead; relative to its `local`.
    pub(crate) load: Option<String>,
    /// It is pulled even if the node has it: by wish, or because its tag moves.
    pub(crate) always: bool,
    /// How long that may take in all.
    pub(crate) timeout: Duration,
    /// How long it may go without progress.
    pub(crate) activity_timeout: Duration,
    /// The task's own credentials; without them the session's configuration says where to look.
    pub(crate) credentials: Option<Credentials>,
    /// Goes on without credentials if looking for them fails.
    pub(crate) soft_fail: bool,
}

/// A port of a task's own network that the agent knows by a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPort {
    /// The label of the job.
    pub(crate) label: String,
    /// Outside.
    pub(crate) host_port: u16,
    /// Inside.
    pub(crate) container_port: u16,
    /// The address outside that it is published on.
    pub(crate) host_ip: Option<IpAddr>,
}

// === impl Plan ===

impl Plan {
    /// The plan of a task, with its cgroup and its mounts seen to. Blocks on the file system.
    ///
    /// # Errors
    /// Those of [`plan`](crate::from_proto::plan) and [`settle`](crate::paths::settle).
    pub(crate) fn make(task: &nomad::TaskConfig, session: &Session) -> Result<Self> {
        let mut plan = crate::from_proto::plan(task, session)?;
        crate::paths::resolve_cgroup(&mut plan, task);
        crate::paths::resolve_sources(&mut plan)?;
        Ok(plan)
    }

    /// The same with what the task's leases of devices give it. What the task has at the same place by itself stays. Idempotent.
    ///
    /// An agent passes on what the device plugin has answered when it starts a task for the first time; once it was started anew it has
    /// forgotten all but the variables (nomad#9473), and mounts and names of the Container Device Interface have no place in its answers.
    pub(crate) fn with_reservations(mut self, reserved: Vec<Reservation>) -> Self {
        for reservation in reserved {
            // The agent passes the variables on itself.
            Reservation { env: BTreeMap::new(), ..reservation }.add_to(&mut self.task);
        }
        self
    }
}
