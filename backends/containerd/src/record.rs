//! The records that the backend stores with the container objects of sandboxes and tasks. They are versioned,
//! and separate from the types of the core.
//!
//! A record is a JSON document in an extension of the container object. Labels hold what is used in filters
//! or changes often: the owner and the kind, the phase of a sandbox, and the exit of a task. A second extension has
//! what an earlier version must know of the object: its identity.
//!
//! Fields that a later version has added to a record or its `meta` stay when it is written again; those inside its other
//! parts do not.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use prost_types::Any;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use switchyard_core::id::SandboxId;
use switchyard_core::image::ImageId;
use switchyard_core::object::{ResolvedUser, SandboxDetails, TaskDetails};
use switchyard_core::spec::{IdMap, IdRange, ProjectId, Signal, UserNamespace};
use switchyard_core::{Error, Result};
use switchyard_namespaces::Ns;

mod cgroups;
mod claims;
mod exit;
mod identity;
mod labels;
mod meta;
mod newer;
mod quota;
mod resources;
mod staged;

pub(crate) use cgroups::{CpusetRecord, LeafRecord};
pub(crate) use claims::{ComputeRecord, HostPortsRecord, LeaseRecord};
pub(crate) use exit::ExitRecord;
#[cfg(feature = "fuzzing")]
pub(crate) use identity::{IDENTITY, IDENTITY_TYPE};
pub(crate) use identity::{
    Identity, LaterIdentity, extension_paths, identity_of, later_identity, sandbox_extensions,
    task_extensions,
};
pub(crate) use labels::labels;
pub(crate) use meta::MetaRecord;
pub(crate) use newer::phase_written;
pub(crate) use quota::{LimitRecord, QuotaRecord};
pub(crate) use resources::{ResourcesRecord, ThrottleRecord};
pub(crate) use staged::{NfsRecord, StagedRecord, view_labels, viewed_keys};

/// The key of the extension that holds the record, and the type URL of its value.
pub(crate) const EXTENSION: &str = "switchyard.io/record";
const RECORD_TYPE: &str = "switchyard.io/record.v1+json";

/// The prefix of all labels of this program, and of no others.
pub(crate) const PREFIX: &str = "switchyard.io/";

/// Label: the gateway that created the object, as several may share a containerd.
pub(crate) const INSTANCE: &str = "switchyard.io/instance";
/// Label: the owner of the object, which is the orchestrator that asked for it.
pub(crate) const OWNER: &str = "switchyard.io/owner";
/// Label: `sandbox` or `task`.
pub(crate) const KIND: &str = "switchyard.io/kind";
/// Label of a sandbox: its [`SandboxPhase`].
pub(crate) const PHASE: &str = "switchyard.io/phase";
/// Label of a task: its persisted exit, an [`ExitRecord`].
pub(crate) const EXIT: &str = "switchyard.io/exit";
/// Label by which cAdvisor distinguishes sandboxes from containers.
pub(crate) const CADVISOR_KIND: &str = "io.cri-containerd.kind";

/// The phase of a sandbox's life, as in its label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SandboxPhase {
    Creating,
    Ready,
    Stopped,
    Starting,
    Removing,
}

impl SandboxPhase {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Ready => "ready",
            Self::Stopped => "stopped",
            Self::Starting => "starting",
            Self::Removing => "removing",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let all = [
            Self::Creating,
            Self::Ready,
            Self::Stopped,
            Self::Starting,
            Self::Removing,
        ];
        let word = newer::phase_read(text);
        all.into_iter().find(|phase| phase.as_str() == word)
    }
}

/// The network of a sandbox, as far as later operations need to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum NetworkRecord {
    Host,
    Pod,
    Isolated,
    Joined(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub(crate) meta: MetaRecord,
    pub(crate) handler: String,
    pub(crate) hostname: String,
    pub(crate) network: NetworkRecord,
    /// True if it has a UTS namespace of its own. Absent in older records, where a sandbox has one unless it
    /// uses the host's network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) own_uts: Option<bool>,
    pub(crate) host_ipc: bool,
    /// It has an infra process, which holds the process namespace or is the sandbox of its runtime.
    pub(crate) infra: bool,
    /// Tasks share the process namespace of the infra process unless they ask for another one.
    pub(crate) shared_pid: bool,
    pub(crate) privileged: bool,
    pub(crate) cgroup_parent: Option<PathBuf>,
    pub(crate) selinux: Option<[String; 4]>,
    pub(crate) ips: Vec<IpAddr>,
    /// The id of the boot in which it was created.
    #[serde(default)]
    pub(crate) boot: String,
    /// Cgroups above those of its tasks that were created for it, the deepest first.
    #[serde(default)]
    pub(crate) groups: Vec<PathBuf>,
    /// Opaque bytes that its frontend has stored since its creation, in hexadecimal.
    #[serde(default)]
    pub(crate) note: String,
    /// Its user namespace, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<UsersRecord>,
    /// Its host ports. Absent in older records, where they are in the journal of its network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host_ports: Option<HostPortsRecord>,
    #[serde(flatten)]
    pub(crate) unknown: Map<String, Value>,
    /// The parts of its identity that a later version has written.
    #[serde(skip)]
    pub(crate) later: LaterIdentity,
}

/// The id mappings of a user namespace, as ranges: first id inside, first id on the host, number of ids.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UsersRecord {
    uids: Vec<[u32; 3]>,
    gids: Vec<[u32; 3]>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TaskRecord {
    pub(crate) meta: MetaRecord,
    pub(crate) sandbox: String,
    pub(crate) handler: String,
    pub(crate) image_id: String,
    pub(crate) image_ref: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    pub(crate) stop_signal: u8,
    pub(crate) output: OutputRecord,
    pub(crate) stdin: bool,
    /// Standard input is closed when the first attached client detaches.
    pub(crate) stdin_once: bool,
    pub(crate) tty: bool,
    /// The id of the boot in which it was created.
    pub(crate) boot: String,
    /// The epoch of the run directory in which it was created. Absent in older records, and if it was not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) epoch: Option<String>,
    /// `linux.cgroupsPath` of the OCI runtime spec.
    pub(crate) cgroups_path: String,
    pub(crate) systemd_cgroup: bool,
    /// The client created the cgroup and removes it.
    pub(crate) leaf: bool,
    /// That cgroup as it was before the task; see `leaf`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) theirs: Option<LeafRecord>,
    /// It shares its process namespace, so that all its processes must be signalled to terminate it.
    pub(crate) shares_pid: bool,
    /// The task whose process namespace it joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    pub(crate) resources: ResourcesRecord,
    /// Its I/O limits on block devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) throttles: Vec<ThrottleRecord>,
    /// The SELinux label of its files, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mount_label: Option<String>,
    /// The OOM score adjustment that its runtime gives new processes, if `resources` has another one because
    /// it was updated after the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made_score: Option<i32>,
    /// Files that are staged for the runtime while it creates the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) staged: Vec<StagedRecord>,
    /// NFS exports that are staged for the runtime too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) nfs: Vec<NfsRecord>,
    /// Its named volumes, by their paths relative to the directory of all volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<String>,
    /// The directories that its image declares as volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) image_volumes: Vec<PathBuf>,
    /// The ids of the images that are mounted into it as volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volume_images: Vec<String>,
    /// The disk limits of its directories, if some were asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quota: Option<QuotaRecord>,
    /// The leases of devices that it was created with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) leases: Vec<LeaseRecord>,
    /// The CPU and memory of the node that are reserved for it.
    #[serde(default, skip_serializing_if = "ComputeRecord::is_nothing")]
    pub(crate) compute: ComputeRecord,
    #[serde(flatten)]
    pub(crate) unknown: Map<String, Value>,
    /// The parts of its identity that a later version has written.
    #[serde(skip)]
    pub(crate) later: LaterIdentity,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputRecord {
    Discard,
    Live,
    Log(PathBuf),
    Fifos { stdout: PathBuf, stderr: PathBuf },
}

/// A time in nanoseconds since the Unix epoch; times before the epoch become 0.
pub(crate) fn to_ns(time: SystemTime) -> u64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The inverse of [`to_ns`].
pub(crate) fn from_ns(ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
}

/// Encodes a record as the value of an extension.
pub(crate) fn encode<T: Serialize>(record: &T) -> Any {
    let value = serde_json::to_vec(record).expect("records hold nothing that JSON cannot");
    Any {
        type_url: RECORD_TYPE.to_owned(),
        value,
    }
}

/// Decodes the record in the extensions of a container object, whose `id` is for errors.
///
/// # Errors
/// `Internal` if there is no record, or if it cannot be decoded.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(
    id: &str,
    extensions: &std::collections::HashMap<String, Any>,
) -> Result<T> {
    let any = extensions
        .get(EXTENSION)
        .ok_or_else(|| Error::internal(format!("container {id} has no extension {EXTENSION}")))?;
    if any.type_url != RECORD_TYPE && !newer::reads(&any.type_url) {
        return Err(Error::internal(format!(
            "container {id} has a record of the unknown type {:?}",
            any.type_url
        )));
    }
    serde_json::from_slice(&any.value).map_err(|fault| {
        Error::internal(format!("cannot decode the record of container {id}")).with_source(fault)
    })
}

// === impl SandboxRecord ===

impl SandboxRecord {
    /// Returns whether it has a namespace of this kind of its own, which is pinned. All code that creates,
    /// joins or looks up its namespaces uses this.
    pub(crate) fn owns(&self, ns: Ns) -> bool {
        match ns {
            Ns::User => self.users.is_some(),
            Ns::Net => matches!(self.network, NetworkRecord::Pod | NetworkRecord::Isolated),
            Ns::Ipc => !self.host_ipc,
            Ns::Uts => self.own_uts.unwrap_or(self.network != NetworkRecord::Host),
        }
    }

    pub(crate) fn details(&self, netns: Option<PathBuf>, pid: Option<u32>) -> SandboxDetails {
        // This program wrote it, so it is valid hexadecimal.
        let note = hex::decode(&self.note).unwrap_or_default();
        let host_ports = self
            .host_ports
            .as_ref()
            .map(HostPortsRecord::to_core)
            .unwrap_or_default();
        SandboxDetails {
            ips: self.ips.clone(),
            netns,
            pid,
            note,
            host_ports,
        }
    }
}

/// A map as the namespaces crate takes it: ranges of inside, host and length.
pub(crate) fn id_ranges(map: &IdMap) -> Vec<[u32; 3]> {
    map.ranges()
        .iter()
        .map(|range| [range.inside, range.host, range.length])
        .collect()
}

// === impl UsersRecord ===

impl UsersRecord {
    pub(crate) fn from_core(users: &UserNamespace) -> Self {
        Self {
            uids: id_ranges(&users.uids),
            gids: id_ranges(&users.gids),
        }
    }

    /// `None` if the ranges are not valid as the mappings of a user namespace.
    pub(crate) fn to_core(&self) -> Option<UserNamespace> {
        let map = |ranges: &[[u32; 3]]| {
            let range = |[inside, host, length]: &[u32; 3]| IdRange {
                inside: *inside,
                host: *host,
                length: *length,
            };
            IdMap::new(ranges.iter().map(range).collect()).ok()
        };
        Some(UserNamespace {
            uids: map(&self.uids)?,
            gids: map(&self.gids)?,
        })
    }
}

// === impl TaskRecord ===

impl TaskRecord {
    /// Returns the text that the cgroup path of each of its processes contains: the id of the task, or the
    /// whole path of a cgroup that the client created.
    pub(crate) fn cgroup_marker(&self, id: &str) -> String {
        if self.leaf {
            self.cgroups_path.clone()
        } else {
            id.to_owned()
        }
    }

    /// Its views of images: the key of each view, and the name of the snapshot that it shows.
    pub(crate) fn image_views(&self) -> Vec<(String, String)> {
        let views = self.staged.iter().filter_map(StagedRecord::view);
        views
            .map(|(_, key, top)| (key.to_owned(), top.to_owned()))
            .collect()
    }

    pub(crate) fn sandbox_id(&self) -> Result<SandboxId> {
        self.sandbox.parse().map_err(|fault| {
            Error::internal(format!(
                "record of task {:?}: its sandbox id",
                self.meta.name()
            ))
            .with_source(fault)
        })
    }

    /// Returns whether its standard input is closed when the first attached client detaches. Not with a
    /// terminal: closing that would hang up, which terminates the task.
    pub(crate) const fn stdin_ends_on_detach(&self) -> bool {
        self.stdin && self.stdin_once && !self.tty
    }

    pub(crate) fn details(&self) -> TaskDetails {
        TaskDetails {
            image_id: ImageId::new(self.image_id.clone()),
            image_ref: self.image_ref.clone(),
            image_volumes: self.image_volumes.clone(),
            volume_images: self
                .volume_images
                .iter()
                .cloned()
                .map(ImageId::new)
                .collect(),
            user: ResolvedUser {
                uid: self.uid,
                gid: self.gid,
                groups: self.groups.clone(),
            },
            stop_signal: Signal::new(self.stop_signal).unwrap_or(Signal::TERM),
            resources: self.resources.to_core(),
            throttles: self.throttles.iter().map(ThrottleRecord::to_core).collect(),
            log_path: match &self.output {
                OutputRecord::Log(path) => Some(path.clone()),
                OutputRecord::Discard | OutputRecord::Live | OutputRecord::Fifos { .. } => None,
            },
            project: self
                .quota
                .as_ref()
                .and_then(|quota| ProjectId::new(quota.limits.first()?.project)),
            leases: self
                .leases
                .iter()
                .filter_map(LeaseRecord::to_core)
                .collect(),
            compute: self.compute.to_core(),
            warnings: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests;
