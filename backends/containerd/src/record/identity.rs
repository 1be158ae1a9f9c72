//! The identity of an object: its owner, its name, and what it claims of the node, in an extension of its own,
//! so that a version that cannot read the record can still count the object.
//!
//! The format only grows. Fields and kinds of claims are added; none is removed, or gets another meaning. A
//! reader ignores fields that it does not know. A claim that it does not understand may be of any device or
//! processor: none is given out then.
//!
//! It is written in the same call to containerd as the record, from which it is made. Fields and claims that a later
//! version has added to it are written again as they were; fields inside a claim of this version are not.

use std::collections::HashMap;

use prost_types::Any;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use switchyard_core::backend::HeldClaims;
use switchyard_core::id::SandboxId;
use switchyard_core::spec::{CpuSet, HostPorts, LeaseClaim, Reserved};

use super::{
    EXTENSION, HostPortsRecord, KIND, LeaseRecord, OWNER, SandboxRecord, TaskRecord, decode,
    encode, newer,
};

/// The key of the extension that holds the identity, and the type URL of its value.
pub(crate) const IDENTITY: &str = "switchyard.io/identity";
pub(crate) const IDENTITY_TYPE: &str = "switchyard.io/identity+json";

/// The extension's value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct IdentityRecord {
    owner: String,
    name: String,
    /// The sandbox of a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
    /// Each a [`ClaimRecord`], or of a later version.
    #[serde(default)]
    claims: Vec<Value>,
    #[serde(flatten)]
    unknown: Map<String, Value>,
}

/// A claim of the node's resources.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ClaimRecord {
    /// Host ports of a sandbox.
    HostPorts(HostPortsRecord),
    /// A lease of devices of a task.
    Devices(LeaseRecord),
    /// The reservation of a task.
    Compute {
        /// Thousandths of a processor.
        cpu_milli: u64,
        /// Memory.
        memory_bytes: u64,
    },
    /// Processors that a task has alone, in the kernel's list format.
    ExclusiveCpus {
        /// The list.
        cpus: String,
    },
    /// Project ids of a task's disk limits.
    Projects {
        /// The ids.
        ids: Vec<u32>,
    },
}

/// The meaning of a [`ClaimRecord`].
enum Claim {
    HostPorts(HostPorts),
    Devices(LeaseClaim),
    Compute(Reserved),
    ExclusiveCpus(CpuSet),
    Projects(Vec<u32>),
}

/// Fields that a later version has written into the identity of an object whose record can be read.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct LaterIdentity {
    claims: Vec<Value>,
    unknown: Map<String, Value>,
}

/// Facts that are known of an object without its record.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Identity {
    /// The word for its owner, which may be of a later version; empty if it is not known.
    pub(crate) owner: String,
    /// Its name; empty if it is not known.
    pub(crate) name: String,
    /// The sandbox of a task.
    pub(crate) sandbox: Option<SandboxId>,
    /// Parts of the node that it holds.
    pub(crate) claims: HeldClaims,
    /// The project ids of its disk limits.
    pub(crate) projects: Vec<u32>,
}

// === writing ===

/// The extensions of a sandbox's container object.
pub(crate) fn sandbox_extensions(record: &SandboxRecord) -> HashMap<String, Any> {
    let extensions = extensions(encode(record), &IdentityRecord::of_sandbox(record));
    newer::written(record.meta.labels(), extensions, EXTENSION)
}

/// The extensions of a task's container object.
pub(crate) fn task_extensions(record: &TaskRecord) -> HashMap<String, Any> {
    let extensions = extensions(encode(record), &IdentityRecord::of_task(record));
    newer::written(record.meta.labels(), extensions, EXTENSION)
}

/// The extensions in the mask of an update.
pub(crate) fn extension_paths() -> [String; 2] {
    [EXTENSION, IDENTITY].map(|key| format!("extensions.{key}"))
}

fn extensions(record: Any, identity: &IdentityRecord) -> HashMap<String, Any> {
    let value = serde_json::to_vec(identity).expect("an identity holds nothing that JSON cannot");
    let identity = Any {
        type_url: IDENTITY_TYPE.to_owned(),
        value,
    };
    HashMap::from([
        (EXTENSION.to_owned(), record),
        (IDENTITY.to_owned(), identity),
    ])
}

// === reading ===

/// Returns what is known of an object whose record, labels or id cannot be read: what its identity says, which objects of
/// earlier versions lack; else what its record says, if it is the only part that can be read; else the owner in
/// its labels.
pub(crate) fn identity_of(
    labels: &HashMap<String, String>,
    extensions: &HashMap<String, Any>,
) -> Identity {
    let identity = IdentityRecord::find(extensions).or_else(|| {
        let kind = labels.get(KIND).map(String::as_str);
        match kind {
            Some("sandbox") => decode::<SandboxRecord>("", extensions)
                .ok()
                .as_ref()
                .map(IdentityRecord::of_sandbox),
            Some("task") => decode::<TaskRecord>("", extensions)
                .ok()
                .as_ref()
                .map(IdentityRecord::of_task),
            Some(_) | None => None,
        }
    });
    identity.map_or_else(
        || Identity {
            owner: labels.get(OWNER).cloned().unwrap_or_default(),
            ..Identity::default()
        },
        IdentityRecord::into_identity,
    )
}

/// Returns what a later version has written into the identity of an object whose record can be read.
pub(crate) fn later_identity(extensions: &HashMap<String, Any>) -> LaterIdentity {
    let Some(IdentityRecord {
        owner: _,
        name: _,
        sandbox: _,
        mut claims,
        unknown,
    }) = IdentityRecord::find(extensions)
    else {
        return LaterIdentity::default();
    };
    claims.retain(|claim| understood(claim).is_none());
    LaterIdentity { claims, unknown }
}

/// The meaning of a claim; `None` if it is of a later version, or its value is.
fn understood(value: &Value) -> Option<Claim> {
    Some(match ClaimRecord::deserialize(value).ok()? {
        ClaimRecord::HostPorts(ports) => Claim::HostPorts(ports.to_core()),
        ClaimRecord::Devices(lease) => Claim::Devices(lease.to_core()?),
        ClaimRecord::Compute {
            cpu_milli,
            memory_bytes,
        } => Claim::Compute(Reserved {
            cpu_milli,
            memory_bytes,
        }),
        ClaimRecord::ExclusiveCpus { cpus } => Claim::ExclusiveCpus(cpus.parse().ok()?),
        ClaimRecord::Projects { ids } => Claim::Projects(ids),
    })
}

// === impl IdentityRecord ===

impl IdentityRecord {
    fn of_sandbox(record: &SandboxRecord) -> Self {
        let ports = record.host_ports.clone().map(ClaimRecord::HostPorts);
        Self {
            owner: record.meta.owner.clone(),
            name: record.meta.name.clone(),
            sandbox: None,
            claims: record.later.with(ports),
            unknown: record.later.unknown.clone(),
        }
    }

    fn of_task(record: &TaskRecord) -> Self {
        let leases = record.leases.iter().cloned().map(ClaimRecord::Devices);
        let Reserved {
            cpu_milli,
            memory_bytes,
        } = record.compute.to_core().reserved;
        let compute = (cpu_milli, memory_bytes) != (0, 0);
        let compute = compute.then_some(ClaimRecord::Compute {
            cpu_milli,
            memory_bytes,
        });
        let is_exclusive = record.compute.to_core().exclusive_cpus;
        let cpus = record.resources.to_core().cpuset_cpus;
        let cpus = cpus
            .filter(|_| is_exclusive)
            .map(|list| ClaimRecord::ExclusiveCpus {
                cpus: list.as_str().to_owned(),
            });
        let projects = record.quota.as_ref().map(|quota| ClaimRecord::Projects {
            ids: quota.limits.iter().map(|limit| limit.project).collect(),
        });
        Self {
            owner: record.meta.owner.clone(),
            name: record.meta.name.clone(),
            sandbox: Some(record.sandbox.clone()),
            claims: record
                .later
                .with(leases.chain(compute).chain(cpus).chain(projects)),
            unknown: record.later.unknown.clone(),
        }
    }

    /// The identity in the extensions of a container object; `None` if there is none, or if it cannot be read.
    fn find(extensions: &HashMap<String, Any>) -> Option<Self> {
        let any = extensions.get(IDENTITY)?;
        if any.type_url != IDENTITY_TYPE {
            return None;
        }
        serde_json::from_slice(&any.value).ok()
    }

    fn into_identity(self) -> Identity {
        let mut claims = HeldClaims {
            is_complete: true,
            ..HeldClaims::default()
        };
        let mut projects = Vec::new();
        for claim in &self.claims {
            match understood(claim) {
                Some(Claim::HostPorts(HostPorts { group, ports })) => {
                    claims.host_ports.group = group;
                    claims.host_ports.ports.extend(ports);
                }
                Some(Claim::Devices(lease)) => claims.leases.push(lease),
                Some(Claim::Compute(reserved)) => claims.reserved = reserved,
                Some(Claim::ExclusiveCpus(cpus)) => claims.exclusive_cpus = Some(cpus),
                Some(Claim::Projects(ids)) => projects.extend(ids),
                None => claims.is_complete = false,
            }
        }
        Identity {
            owner: self.owner,
            name: self.name,
            sandbox: self.sandbox.and_then(|id| id.parse().ok()),
            claims,
            projects,
        }
    }
}

// === impl LaterIdentity ===

impl LaterIdentity {
    /// These claims, and then those of a later version. One that is also in the record, such as a lease with a token of a
    /// later form, is written once.
    fn with(&self, claims: impl IntoIterator<Item = ClaimRecord>) -> Vec<Value> {
        let own = claims.into_iter().map(|claim| {
            serde_json::to_value(claim).expect("a claim holds nothing that JSON cannot")
        });
        let mut all: Vec<Value> = own.collect();
        let later = self.claims.iter().filter(|claim| !all.contains(claim));
        let later: Vec<Value> = later.cloned().collect();
        all.extend(later);
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const OF_SANDBOX: &str = include_str!("golden/identity-sandbox.json");
    const OF_TASK: &str = include_str!("golden/identity-task.json");

    fn sandbox() -> SandboxRecord {
        serde_json::from_str(include_str!("golden/sandbox.json")).unwrap()
    }

    fn task() -> TaskRecord {
        serde_json::from_str(include_str!("golden/task.json")).unwrap()
    }

    fn json_of(extensions: &HashMap<String, Any>) -> Value {
        serde_json::from_slice(&extensions[IDENTITY].value).unwrap()
    }

    /// Extensions with an identity alone, as of an object whose record cannot be read.
    fn alone(identity: &Value) -> HashMap<String, Any> {
        let any = Any {
            type_url: IDENTITY_TYPE.to_owned(),
            value: serde_json::to_vec(identity).unwrap(),
        };
        HashMap::from([(IDENTITY.to_owned(), any)])
    }

    #[test]
    fn identities_of_this_format_are_made_of_records_and_read_without_them() {
        let golden: Value = serde_json::from_str(OF_SANDBOX).unwrap();
        let written = sandbox_extensions(&sandbox());
        assert_eq!(json_of(&written), golden);
        let read = identity_of(&HashMap::new(), &alone(&golden));
        assert_eq!(
            (read.owner.as_str(), read.name.as_str(), read.sandbox),
            ("kubernetes", "web_default_0af1_0", None)
        );
        assert_eq!(
            read.claims.host_ports,
            sandbox().host_ports.unwrap().to_core()
        );
        assert!(read.claims.is_complete);

        let golden: Value = serde_json::from_str(OF_TASK).unwrap();
        assert_eq!(json_of(&task_extensions(&task())), golden);
        let read = identity_of(&HashMap::new(), &alone(&golden));
        assert_eq!(
            read.sandbox,
            Some(task().sandbox.parse::<SandboxId>().unwrap())
        );
        assert_eq!(read.claims.leases, task().details().leases);
        assert_eq!(read.claims.reserved.cpu_milli, 1500);
        assert_eq!(read.claims.exclusive_cpus, "0-1".parse().ok());
        assert_eq!(
            (read.projects, read.claims.is_complete),
            (vec![70_000], true)
        );
    }

    #[test]
    fn what_a_later_version_adds_is_not_taken_for_less() {
        let mut later: Value = serde_json::from_str(OF_TASK).unwrap();
        later["region"] = json!("north");
        later["claims"][0]["since"] = json!(7);
        let read = identity_of(&HashMap::new(), &alone(&later));
        assert!(read.claims.is_complete, "fields may be ignored");
        assert_eq!(read.claims.leases.len(), 2);
        for claim in [
            json!({"kind": "fabric", "link": 3}),
            json!({"kind": "exclusive_cpus", "cpus": {"node": 0}}),
            json!({"kind": "devices", "token": "x", "slots": []}),
            json!("gpu0"),
        ] {
            let mut later = later.clone();
            later["claims"].as_array_mut().unwrap().push(claim.clone());
            let read = identity_of(&HashMap::new(), &alone(&later));
            assert!(!read.claims.is_complete, "{claim}");
            assert_eq!(read.claims.leases.len(), 2, "{claim}: the others count");
        }
    }

    #[test]
    fn what_a_later_version_has_added_is_written_again() {
        let mut later: Value = serde_json::from_str(OF_TASK).unwrap();
        later["region"] = json!("north");
        let fabric = json!({"kind": "fabric", "link": 3});
        let lease = json!({"kind": "devices", "token": "x", "slots": []});
        let claims = later["claims"].as_array_mut().unwrap();
        claims.extend([fabric, lease.clone()]);
        let mut record = task();
        record.later = later_identity(&alone(&later));
        assert_eq!(json_of(&task_extensions(&record)), later);
        record.leases = vec![serde_json::from_value(lease).unwrap()];
        let written = task_extensions(&record);
        record.later = later_identity(&written);
        let written = json_of(&written);
        assert_eq!(written["region"], "north");
        assert_eq!(written["claims"].as_array().unwrap().len(), 5);
        assert_eq!(json_of(&task_extensions(&record)), written);
    }

    #[test]
    fn an_object_of_an_earlier_version_is_identified_by_its_record() {
        let labels = |kind: &str| HashMap::from([(KIND.to_owned(), kind.to_owned())]);
        let mut extensions = sandbox_extensions(&sandbox());
        let whole = identity_of(&labels("sandbox"), &extensions);
        extensions.remove(IDENTITY);
        assert_eq!(identity_of(&labels("sandbox"), &extensions), whole);
        let mut extensions = task_extensions(&task());
        let whole = identity_of(&labels("task"), &extensions);
        extensions.get_mut(IDENTITY).unwrap().value.truncate(9);
        assert_eq!(identity_of(&labels("task"), &extensions), whole);
        extensions.get_mut(EXTENSION).unwrap().value.truncate(9);
        let mut labels = labels("task");
        labels.insert(OWNER.to_owned(), "swarm".to_owned());
        let nothing = Identity {
            owner: "swarm".to_owned(),
            ..Identity::default()
        };
        assert_eq!(identity_of(&labels, &extensions), nothing);
        assert!(!nothing.claims.is_complete);
    }

    proptest! {
        #[test]
        fn an_object_with_other_bytes_may_hold_anything(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let any = Any { type_url: IDENTITY_TYPE.to_owned(), value: bytes };
            let extensions = HashMap::from([(IDENTITY.to_owned(), any)]);
            let read = identity_of(&HashMap::new(), &extensions);
            prop_assert!(!read.claims.is_complete);
        }
    }
}
