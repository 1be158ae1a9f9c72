//! The plan of a Nomad task: its image, sandbox and task in the gateway's types.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_core::device::Reservation;
use switchyard_core::image::Credentials;
use switchyard_core::spec::{SandboxSpec, TaskSpec};
use switchyard_core::{Error, SpecPart};

/// Everything that is needed to start a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The image.
    pub(crate) image: ImageRequest,
    /// The sandbox; each task has its own.
    pub(crate) sandbox: SandboxSpec,
    /// The task in it.
    pub(crate) task: TaskSpec,
    /// The network information for the agent: the ports inside, by label.
    pub(crate) ports: Vec<NamedPort>,
    /// Mounts whose sources must not lead out of the allocation directory; resolved before the task is
    /// created.
    pub(crate) confined: Vec<ConfinedMount>,
    /// The key of the job, or the field of the request, that each part of the specification comes from.
    pub(crate) keys: Vec<(SpecPart, String)>,
    /// The task of the same allocation whose network it joins, by its name in the job. The sandbox's own network stands
    /// for that until it is known.
    pub(crate) sibling: Option<String>,
    /// Warnings for the author of the job.
    pub(crate) warnings: Vec<String>,
}

/// A mount whose source may contain links that a task created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConfinedMount {
    /// Its index among the task's mounts.
    pub(crate) mount: usize,
    /// The directory that it must not lead out of.
    pub(crate) root: PathBuf,
    /// The configuration key of the mount.
    pub(crate) field: String,
}

/// The image to obtain before the task is created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageRequest {
    /// Its name, as requested from the registry.
    pub(crate) reference: String,
    /// A tar archive to load it from instead, in the task's directory; relative to its `local`.
    pub(crate) load: Option<String>,
    /// Pull even if the node has the image: on request, or because its tag is mutable.
    pub(crate) always: bool,
    /// The total timeout of the pull.
    pub(crate) timeout: Duration,
    /// The timeout of the pull without progress.
    pub(crate) activity_timeout: Duration,
    /// The task's own credentials; without them the session's configuration determines where to look.
    pub(crate) credentials: Option<Credentials>,
    /// Pull without credentials if looking for them fails.
    pub(crate) soft_fail: bool,
}

/// A port of a task's own network, with the agent's label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPort {
    /// The label in the job.
    pub(crate) label: String,
    /// Port on the host.
    pub(crate) host_port: u16,
    /// Port in the task.
    pub(crate) container_port: u16,
    /// The host address that it is published on.
    pub(crate) host_ip: Option<IpAddr>,
}

// === impl Plan ===

impl Plan {
    /// An error about a part of the specification, with the key of the job that the part comes from.
    pub(crate) fn named(&self, error: Error) -> Error {
        let key = self
            .keys
            .iter()
            .find(|(part, _)| Some(*part) == error.part());
        match key {
            Some((_, key)) => error.context(key.clone()),
            None => error,
        }
    }

    /// Adds what the task's device leases give it. Entries of the task itself take precedence. Idempotent.
    ///
    /// An agent forwards the device plugin's answer when it first starts a task. After a restart the agent
    /// has forgotten everything except the variables (nomad#9473); and neither mounts nor CDI names are part
    /// of its answers.
    pub(crate) fn with_reservations(mut self, reserved: Vec<Reservation>) -> Self {
        for reservation in reserved {
            // The agent forwards the variables itself.
            Reservation {
                env: BTreeMap::new(),
                ..reservation
            }
            .add_to(&mut self.task);
        }
        self
    }
}
