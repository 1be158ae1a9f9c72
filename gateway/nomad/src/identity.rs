//! Names, labels and records: how a Nomad task is recognised from what the gateway stores, also after a
//! restart.
//!
//! The sandbox and the task in it both have the id that Nomad gave the task as their name,
//! `<allocation>/<task>/<8 hex digits>`. Each start has a new id, so any other start of the same task was
//! never delivered to the agent, or given up by it. The record is small and contains no secret: of the
//! request it has only a digest, by which a repeated request is recognised.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use prost::Message;
use sha2::{Digest as _, Sha256};
use switchyard_core::id::Owner;
use switchyard_core::spec::{Meta, SandboxNetwork};
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::record;

use crate::plan::Plan;

/// Prefix of the names of sandboxes that are networks of allocations.
const NETWORK: &str = "network/";

/// The longest name in a request, in bytes: a task's name is a directory name, and its start id has two more
/// parts.
const NAME_MAX: usize = 1024;

/// The label with the allocation.
const ALLOC_LABEL: &str = "com.hashicorp.nomad.alloc_id";

/// The record of a sandbox and of the task in it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Record {
    /// Nomad's id of the task; empty for the network of an allocation.
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    /// Name in the job.
    #[prost(string, tag = "2")]
    pub(crate) task_name: String,
    /// Allocation id.
    #[prost(string, tag = "3")]
    pub(crate) alloc_id: String,
    /// Allocation directory on the host.
    #[prost(string, tag = "4")]
    pub(crate) alloc_dir: String,
    /// Node name as reported by the agent; empty before Nomad 1.2.
    #[prost(string, tag = "5")]
    pub(crate) node_id: String,
    /// SHA-256 of the request.
    #[prost(bytes = "vec", tag = "6")]
    pub(crate) digest: Vec<u8>,
    /// Ports inside, by label.
    #[prost(btree_map = "string, int32", tag = "7")]
    pub(crate) ports: BTreeMap<String, i32>,
    /// The requested host name of the network of an allocation.
    #[prost(string, tag = "8")]
    pub(crate) hostname: String,
    /// True if the task has a network of its own, created by the gateway.
    #[prost(bool, tag = "9")]
    pub(crate) own_network: bool,
    /// The namespace of the job; empty before Nomad 1.2, as in records of earlier versions.
    #[prost(string, tag = "10")]
    pub(crate) namespace: String,
    /// Job id, which is its name before Nomad 1.2; empty in records of earlier versions.
    #[prost(string, tag = "11")]
    pub(crate) job: String,
    /// Task group in the job; empty in records of earlier versions.
    #[prost(string, tag = "12")]
    pub(crate) group: String,
    /// The image as the job names it; empty in records of earlier versions.
    #[prost(string, tag = "13")]
    pub(crate) image: String,
}

/// Identifies an agent by the directory of its allocations. Not by the name of its node: an agent that has
/// lost all its state is another node in the same directory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Agent {
    allocs: String,
}

// === records ===

/// Checks that the record of a sandbox or task can be decoded, if it has one.
///
/// # Errors
/// The defect, for people.
pub fn check_request(meta: &Meta) -> Result<(), String> {
    record::check::<Record>(&meta.record)
}

impl Record {
    /// The record of the task of this request, without the results of its plan.
    pub(crate) fn new(request: &nomad::TaskConfig) -> Self {
        Self {
            id: request.id.clone(),
            task_name: request.name.clone(),
            alloc_id: request.alloc_id.clone(),
            alloc_dir: request.alloc_dir.clone(),
            node_id: request.node_id.clone(),
            digest: Sha256::digest(request.encode_to_vec()).to_vec(),
            namespace: cut(&request.namespace),
            job: cut(if request.job_id.is_empty() {
                &request.job_name
            } else {
                &request.job_id
            }),
            group: cut(&request.task_group_name),
            ..Self::default()
        }
    }

    /// Adds the image, and the plan's description of the network for the agent.
    pub(crate) fn with_plan(self, plan: &Plan) -> Self {
        let own_network = matches!(plan.sandbox.network, SandboxNetwork::Pod(_));
        let ports = plan
            .ports
            .iter()
            .map(|port| (port.label.clone(), i32::from(port.container_port)))
            .collect();
        Self {
            ports,
            own_network,
            image: plan.image.reference.clone(),
            ..self
        }
    }

    /// The record of the network of an allocation, with the agent that it belongs to if that is known.
    pub(crate) fn network(alloc_id: &str, hostname: &str, agent: Option<&Agent>) -> Self {
        Self {
            alloc_id: alloc_id.to_owned(),
            hostname: hostname.to_owned(),
            alloc_dir: agent
                .map(|agent| agent.dir_of(alloc_id).display().to_string())
                .unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The encoding that the core stores.
    pub(crate) fn encode(&self) -> Vec<u8> {
        record::encode(self)
    }

    /// The record of an object; empty if it has none. Recovery leaves an object alone whose record is of another version
    /// ([`check_request`]).
    pub(crate) fn of(meta: &Meta) -> Self {
        record::decode(&meta.record).unwrap_or_default()
    }

    /// The agent that the task belongs to; `None` if not known.
    pub(crate) fn agent(&self) -> Option<Agent> {
        Agent::new(&self.alloc_dir)
    }
}

impl Agent {
    /// The agent with this allocation directory.
    pub(crate) fn new(alloc_dir: &str) -> Option<Self> {
        let allocs = Path::new(alloc_dir).parent()?.to_str()?.to_owned();
        if allocs.is_empty() {
            return None;
        }
        Some(Self { allocs })
    }

    /// The directory of the agent's allocations.
    pub(crate) fn dir(&self) -> &Path {
        Path::new(&self.allocs)
    }

    /// The agent's directory for this allocation.
    pub(crate) fn dir_of(&self, alloc_id: &str) -> PathBuf {
        Path::new(&self.allocs).join(alloc_id)
    }
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.allocs)
    }
}

// === names ===

/// Checks the fields that identify the task of a request.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub(crate) fn check(request: &nomad::TaskConfig) -> Result<()> {
    check_name("task.id", &request.id)?;
    check_part("task.name", &request.name)?;
    check_part("task.alloc_id", &request.alloc_id)?;
    if is_network(&request.id) {
        return Err(Error::invalid(
            "task.id",
            format!("{:?} is no id of a task", request.id),
        ));
    }
    Ok(())
}

/// Checks a name given by an agent.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub(crate) fn check_name(field: &str, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid(field, "it is missing"));
    }
    if name.len() > NAME_MAX {
        return Err(Error::invalid(
            field,
            format!("it is longer than {NAME_MAX} bytes"),
        ));
    }
    if name.chars().any(char::is_control) {
        return Err(Error::invalid(
            field,
            format!("{name:?} has a character that is none to read"),
        ));
    }
    Ok(())
}

/// As [`check_name`], for a name that also becomes a part of paths: of directories, and of cgroups.
///
/// # Errors
/// `InvalidArgument`, naming the field.
pub(crate) fn check_part(field: &str, name: &str) -> Result<()> {
    check_name(field, name)?;
    if name.contains('/') || matches!(name, "." | "..") {
        return Err(Error::invalid(
            field,
            format!("{name:?} names no directory"),
        ));
    }
    Ok(())
}

/// At most [`NAME_MAX`] bytes of a name that is only shown.
fn cut(name: &str) -> String {
    name[..name.floor_char_boundary(NAME_MAX)].to_owned()
}

/// The key of a task: its allocation and name, common to all its starts.
pub(crate) fn task_key(id: &str) -> &str {
    match id.rsplit_once('/') {
        Some((task, start))
            if task.contains('/')
                && start.len() == 8
                && start.bytes().all(|b| b.is_ascii_hexdigit()) =>
        {
            task
        }
        Some(_) | None => id,
    }
}

/// The allocation of the task with this id.
pub(crate) fn allocation_of(id: &str) -> &str {
    id.split('/').next().unwrap_or_default()
}

/// The name in its job of the task with this id; empty if the id has another form.
pub(crate) fn task_name(id: &str) -> &str {
    id.split('/').nth(1).unwrap_or_default()
}

/// The name of the sandbox that is the network of an allocation.
pub(crate) fn network_name(alloc_id: &str) -> String {
    format!("{NETWORK}{alloc_id}")
}

/// Returns whether a sandbox is the network of an allocation.
pub(crate) fn is_network(name: &str) -> bool {
    name.starts_with(NETWORK)
}

// === what the core keeps ===

/// The metadata that the core stores with a task and its sandbox: as planned, with this record.
pub(crate) fn meta(record: &Record, planned: &Meta, now: SystemTime) -> Meta {
    let name = record.id.clone();
    let labels = planned.labels.clone();
    Meta {
        owner: Owner::Nomad,
        name,
        labels,
        created_at: now,
        record: record.encode(),
    }
}

/// The metadata that the core stores with the network of an allocation.
pub(crate) fn network_meta(
    alloc_id: &str,
    hostname: &str,
    agent: Option<&Agent>,
    now: SystemTime,
) -> Meta {
    Meta {
        owner: Owner::Nomad,
        name: network_name(alloc_id),
        labels: BTreeMap::from([(ALLOC_LABEL.to_owned(), alloc_id.to_owned())]),
        created_at: now,
        record: Record::network(alloc_id, hostname, agent).encode(),
    }
}

#[cfg(test)]
mod tests;
