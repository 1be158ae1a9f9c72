//! What the backend writes into containerd about each sandbox and task, versioned and apart from the core's own types.
//!
//! A record is a JSON document in an extension of the container object. Labels hold what is looked up or changes often:
//! the owner and kind, the phase of a sandbox, and the exit of a task.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prost_types::Any;
use serde::{Deserialize, Serialize};
use switchyard_core::backend::{ResolvedUser, SandboxDetails, TaskDetails};
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::image::ImageId;
use switchyard_core::spec::{IdMap, IdRange, Meta, ProjectId, Signal, UserNamespace};
use switchyard_core::state::{Exit, ExitCause};
use switchyard_core::{Error, Result};
use switchyard_namespaces::Ns;

use crate::quota::QuotaRecord;
use crate::reserved::is_reserved;
use crate::task::leaf::LeafRecord;
use crate::task::stage::StagedRecord;

mod claims;
mod resources;

pub(crate) use claims::{ComputeRecord, HostPortsRecord, LeaseRecord};
pub(crate) use resources::{ResourcesRecord, ThrottleRecord};

/// The extension under which a record stands, and its type.
pub(crate) const EXTENSION: &str = "switchyard.io/record";
const RECORD_TYPE: &str = "switchyard.io/record.v1+json";

/// Labels of ours begin so; nobody else's do.
pub(crate) const PREFIX: &str = "switchyard.io/";

/// Label: which gateway made the object, where several share a containerd.
pub(crate) const INSTANCE: &str = "switchyard.io/instance";
/// Label: who asked for the object.
pub(crate) const OWNER: &str = "switchyard.io/owner";
/// Label: `sandbox` or `task`.
pub(crate) const KIND: &str = "switchyard.io/kind";
/// Label of a sandbox: how far it has come.
pub(crate) const PHASE: &str = "switchyard.io/phase";
/// Label of a task: how it ended.
pub(crate) const EXIT: &str = "switchyard.io/exit";
/// Label by which cAdvisor tells sandboxes from containers.
pub(crate) const CADVISOR_KIND: &str = "io.cri-containerd.kind";

/// How far a sandbox has come, as its label says.
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
        let all = [Self::Creating, Self::Ready, Self::Stopped, Self::Starting, Self::Removing];
        all.into_iter().find(|phase| phase.as_str() == text)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MetaRecord {
    owner: String,
    name: String,
    labels: BTreeMap<String, String>,
    created_at_ns: u64,
    /// The frontend's bytes, in hexadecimal.
    record: String,
}

/// How a sandbox's network is made, as far as later steps need to know.
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
    /// Whether it has a host name of its own; absent on older records, where that follows the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) own_uts: Option<bool>,
    pub(crate) host_ipc: bool,
    /// An infra process holds the process namespace, or is the runtime's sandbox.
    pub(crate) infra: bool,
    /// Tasks that ask for nothing else share the infra process's namespace.
    pub(crate) shared_pid: bool,
    pub(crate) privileged: bool,
    pub(crate) cgroup_parent: Option<PathBuf>,
    pub(crate) selinux: Option<[String; 4]>,
    pub(crate) ips: Vec<IpAddr>,
    /// The boot of the node in which it was made.
    #[serde(default)]
    pub(crate) boot: String,
    /// Groups above those of its tasks that were made for it, the deepest first.
    #[serde(default)]
    pub(crate) groups: Vec<PathBuf>,
    /// What its frontend put down since, in hexadecimal.
    #[serde(default)]
    pub(crate) note: String,
    /// Its user namespace, if it has one of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<UsersRecord>,
    /// The ports of the host that it has; absent on older records, where its network's journal says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) host_ports: Option<HostPortsRecord>,
}

/// What the ids of a user namespace are on the host: the first inside, the first on the host, how many.
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
    /// Standard input ends when the first attached client leaves.
    pub(crate) stdin_once: bool,
    pub(crate) tty: bool,
    /// The boot of the node in which it was made.
    pub(crate) boot: String,
    /// As in the OCI spec.
    pub(crate) cgroups_path: String,
    pub(crate) systemd_cgroup: bool,
    /// Somebody else made the cgroup and removes it.
    pub(crate) leaf: bool,
    /// What of it they had made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) theirs: Option<LeafRecord>,
    /// Whether all processes must be signalled to end it, because its process namespace is not its own.
    pub(crate) shares_pid: bool,
    /// The task whose process namespace it joins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    pub(crate) resources: ResourcesRecord,
    /// Its limits on block devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) throttles: Vec<ThrottleRecord>,
    /// The SELinux label of its files, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mount_label: Option<String>,
    /// The score that its runtime gives a new process, if that is not the one of its limits: they were changed since it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) made_score: Option<i32>,
    /// What is put in place for the runtime while it makes the container.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) staged: Vec<StagedRecord>,
    /// Its named volumes, by their paths below the directory of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volumes: Vec<String>,
    /// The directories that its image declares as volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) image_volumes: Vec<PathBuf>,
    /// The images that it has as volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) volume_images: Vec<String>,
    /// What limits its directories on disk, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quota: Option<QuotaRecord>,
    /// The leases of devices that it was made with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) leases: Vec<LeaseRecord>,
    /// What of the node's processors and memory is kept for it, if something is.
    #[serde(default, skip_serializing_if = "ComputeRecord::is_nothing")]
    pub(crate) compute: ComputeRecord,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum OutputRecord {
    Discard,
    Live,
    Log(PathBuf),
    Fifos { stdout: PathBuf, stderr: PathBuf },
}

/// The exit of a task, as its label holds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExitRecord {
    code: i32,
    at_ns: u64,
    /// When it had started; absent if it never ran.
    started_ns: Option<u64>,
    #[serde(default)]
    oom: bool,
    #[serde(default)]
    lost: bool,
    /// Why it never ran.
    #[serde(default)]
    start_failed: Option<String>,
}

/// Longest reason of a failed start that is kept; a label holds 4096 bytes with its key.
const REASON_LIMIT: usize = 2048;

/// A time as ns since the epoch; times before it are 0.
pub(crate) fn to_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// The time so many ns after the epoch.
pub(crate) fn from_ns(ns: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(ns)
}

/// A record as an extension.
pub(crate) fn encode<T: Serialize>(record: &T) -> Any {
    let value = serde_json::to_vec(record).expect("records hold nothing that JSON cannot");
    Any { type_url: RECORD_TYPE.to_owned(), value }
}

/// The record of a container object.
///
/// # Errors
/// `Internal` if there is none or it cannot be read; the text says which object.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(
    id: &str,
    extensions: &std::collections::HashMap<String, Any>,
) -> Result<T> {
    let any = extensions
        .get(EXTENSION)
        .ok_or_else(|| Error::internal(format!("container {id} has no extension {EXTENSION}")))?;
    if any.type_url != RECORD_TYPE {
        return Err(Error::internal(format!(
            "container {id} has a record of the unknown type {:?}",
            any.type_url
        )));
    }
    serde_json::from_slice(&any.value).map_err(|fault| {
        Error::internal(format!("the record of container {id} cannot be read")).with_source(fault)
    })
}

// === impl MetaRecord ===

impl MetaRecord {
    pub(crate) fn from_core(meta: &Meta) -> Self {
        let Meta { owner, name, labels, created_at, record } = meta;
        Self {
            owner: owner.as_str().to_owned(),
            name: name.clone(),
            labels: labels.clone(),
            created_at_ns: to_ns(*created_at),
            record: hex::encode(record),
        }
    }

    pub(crate) fn to_core(&self) -> Result<Arc<Meta>> {
        let Self { owner, name, labels, created_at_ns, record } = self;
        let owner = Owner::parse(owner)
            .ok_or_else(|| Error::internal(format!("unknown owner {owner:?} on record")))?;
        let record = hex::decode(record)
            .map_err(|fault| Error::internal(format!("record of {name:?}")).with_source(fault))?;
        let meta = Meta {
            owner,
            name: name.clone(),
            labels: labels.clone(),
            created_at: from_ns(*created_at_ns),
            record,
        };
        Ok(Arc::new(meta))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The labels of the client.
    pub(crate) const fn labels(&self) -> &BTreeMap<String, String> {
        &self.labels
    }

    /// When the object was made.
    pub(crate) fn created_at(&self) -> SystemTime {
        from_ns(self.created_at_ns)
    }
}

// === impl SandboxRecord ===

impl SandboxRecord {
    /// Whether it has a namespace of this kind of its own, which is pinned. Whoever makes, joins or looks for its namespaces asks here.
    pub(crate) fn owns(&self, ns: Ns) -> bool {
        match ns {
            Ns::User => self.users.is_some(),
            Ns::Net => matches!(self.network, NetworkRecord::Pod | NetworkRecord::Isolated),
            Ns::Ipc => !self.host_ipc,
            Ns::Uts => self.own_uts.unwrap_or(self.network != NetworkRecord::Host),
        }
    }

    pub(crate) fn details(&self, netns: Option<PathBuf>, pid: Option<u32>) -> SandboxDetails {
        // Written by us, so that it is well formed.
        let note = hex::decode(&self.note).unwrap_or_default();
        let host_ports = self.host_ports.as_ref().map(HostPortsRecord::to_core).unwrap_or_default();
        SandboxDetails { ips: self.ips.clone(), netns, pid, note, host_ports }
    }
}

// === impl UsersRecord ===

impl UsersRecord {
    pub(crate) fn from_core(users: &UserNamespace) -> Self {
        Self { uids: crate::userns::id_ranges(&users.uids), gids: crate::userns::id_ranges(&users.gids) }
    }

    /// `None` for what can never have been a user namespace.
    pub(crate) fn to_core(&self) -> Option<UserNamespace> {
        let map = |ranges: &[[u32; 3]]| {
            let range =
                |[inside, host, length]: &[u32; 3]| IdRange { inside: *inside, host: *host, length: *length };
            IdMap::new(ranges.iter().map(range).collect()).ok()
        };
        Some(UserNamespace { uids: map(&self.uids)?, gids: map(&self.gids)? })
    }
}

// === impl TaskRecord ===

impl TaskRecord {
    /// What the path of the cgroup of each of its processes bears: the task's id, or all of the path that somebody else has made.
    pub(crate) fn cgroup_marker(&self, id: &str) -> String {
        if self.leaf { self.cgroups_path.clone() } else { id.to_owned() }
    }

    /// The views of images that it has: the key of each, and what it is a view of.
    pub(crate) fn image_views(&self) -> Vec<(String, String)> {
        let views = self.staged.iter().filter_map(StagedRecord::view);
        views.map(|(_, key, top)| (key.to_owned(), top.to_owned())).collect()
    }

    pub(crate) fn sandbox_id(&self) -> Result<SandboxId> {
        self.sandbox.parse().map_err(|fault| {
            Error::internal(format!("task {:?} on record", self.meta.name())).with_source(fault)
        })
    }

    /// Whether its input ends with the first client that had it. A terminal has no end: closing it would hang up, and end the task.
    pub(crate) const fn stdin_ends_on_detach(&self) -> bool {
        self.stdin && self.stdin_once && !self.tty
    }

    pub(crate) fn details(&self) -> TaskDetails {
        TaskDetails {
            image_id: ImageId::new(self.image_id.clone()),
            image_ref: self.image_ref.clone(),
            image_volumes: self.image_volumes.clone(),
            volume_images: self.volume_images.iter().cloned().map(ImageId::new).collect(),
            user: ResolvedUser { uid: self.uid, gid: self.gid, groups: self.groups.clone() },
            stop_signal: Signal::new(self.stop_signal).unwrap_or(Signal::TERM),
            resources: self.resources.to_core(),
            throttles: self.throttles.iter().map(ThrottleRecord::to_core).collect(),
            log_path: match &self.output {
                OutputRecord::Log(path) => Some(path.clone()),
                OutputRecord::Discard | OutputRecord::Live | OutputRecord::Fifos { .. } => None,
            },
            project: self.quota.as_ref().and_then(|quota| ProjectId::new(quota.limits.first()?.project)),
            leases: self.leases.iter().filter_map(LeaseRecord::to_core).collect(),
            compute: self.compute.to_core(),
        }
    }
}

// === impl ExitRecord ===

impl ExitRecord {
    pub(crate) fn from_core(exit: &Exit, started_at: Option<SystemTime>) -> Self {
        let Exit { code, finished_at, cause } = exit;
        let start_failed = match cause {
            ExitCause::StartFailed(why) => Some(why.chars().take(REASON_LIMIT / 4).collect()),
            ExitCause::Exited | ExitCause::OomKilled | ExitCause::Lost => None,
        };
        Self {
            code: *code,
            at_ns: to_ns(*finished_at),
            started_ns: started_at.map(to_ns),
            oom: *cause == ExitCause::OomKilled,
            lost: *cause == ExitCause::Lost,
            start_failed,
        }
    }

    pub(crate) fn to_core(&self) -> (Exit, Option<SystemTime>) {
        let Self { code, at_ns, started_ns, oom, lost, start_failed } = self;
        let cause = match (start_failed, oom, lost) {
            (Some(why), _, _) => ExitCause::StartFailed(why.clone()),
            (None, true, _) => ExitCause::OomKilled,
            (None, false, true) => ExitCause::Lost,
            (None, false, false) => ExitCause::Exited,
        };
        (Exit { code: *code, finished_at: from_ns(*at_ns), cause }, started_ns.map(from_ns))
    }

    pub(crate) fn to_label(&self) -> String {
        serde_json::to_string(self).expect("an exit holds nothing that JSON cannot")
    }

    pub(crate) fn parse_label(label: &str) -> Option<Self> {
        serde_json::from_str(label).ok()
    }
}

/// Whose an object is, by its labels.
pub(crate) fn owner_of(labels: &std::collections::HashMap<String, String>) -> Option<Owner> {
    labels.get(OWNER).and_then(|word| Owner::parse(word))
}

/// The labels that an object gets: ours, and those of the client that cAdvisor and operators look for. What is reserved, or longer than
/// containerd takes, is in the record alone.
pub(crate) fn labels(meta: &Meta, kind: &str, instance: &str) -> std::collections::HashMap<String, String> {
    /// containerd's limit on a label, key and value together.
    const LIMIT: usize = 4096;
    let mut labels: std::collections::HashMap<String, String> = meta
        .labels
        .iter()
        .filter(|(key, value)| key.len() + value.len() <= LIMIT && !key.is_empty() && !is_reserved(key))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    labels.insert(OWNER.to_owned(), meta.owner.as_str().to_owned());
    labels.insert(INSTANCE.to_owned(), instance.to_owned());
    labels.insert(KIND.to_owned(), kind.to_owned());
    labels.insert(CADVISOR_KIND.to_owned(), if kind == "task" { "container" } else { kind }.to_owned());
    labels
}

#[cfg(test)]
mod tests;
