//! Objects that a backend has found and cannot read, because a later version wrote them or they are damaged.
//!
//! They may run. They are left alone, and what they hold is given to nobody until a version that can read them
//! runs, or they are gone at a start of the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::SystemTime;

use crate::error::Error;
use crate::id::{Owner, SandboxId, TaskId};
use crate::image::ImageId;
use crate::spec::{CpuSet, HostPorts, LeaseClaim, Meta, Reserved};

/// Characters of an id in an error.
const SHORT_ID: usize = 12;

/// Checks the request that a frontend has stored with an object ([`Meta::record`]), which only that frontend can read.
/// An error is the defect, for people: the object counts as one that cannot be read.
pub type CheckRequest = fn(UnreadableKind, &Meta) -> Result<(), String>;

/// An object that exists and cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its id in the runtime, which need not have the form of those that this version gives.
    pub id: String,
    /// Its kind.
    pub kind: UnreadableKind,
    /// Its owner; `None` if that is not known, or of a later version.
    pub owner: Option<Owner>,
    /// Its name; empty if that is not known.
    pub name: String,
    /// The sandbox of a task, if that is known.
    pub sandbox: Option<SandboxId>,
    /// For people: what cannot be read.
    pub reason: String,
    /// Resources of the node that it holds.
    pub claims: HeldClaims,
    /// The facts that the runtime has of it.
    pub facts: ObjectFacts,
}

/// The facts that the runtime itself has of an object, whatever version has made it, as of the start of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectFacts {
    /// The labels that its client asked for.
    pub labels: BTreeMap<String, String>,
    /// The reference of a task's image; empty if there is none.
    pub image: String,
    /// The time of its creation, if that is known.
    pub created_at: Option<SystemTime>,
    /// A task that runs, or may; a sandbox that is ready.
    pub runs: bool,
}

/// The kind of an object that cannot be read, or that is checked for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnreadableKind {
    /// A sandbox.
    Sandbox,
    /// A task.
    Task,
    /// Not known.
    Unknown,
}

/// The resources that an object holds which cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeldClaims {
    /// Its host ports.
    pub host_ports: HostPorts,
    /// Its device leases, with their slots.
    pub leases: Vec<LeaseClaim>,
    /// The processors that it has exclusively.
    pub exclusive_cpus: Option<CpuSet>,
    /// Its reservation.
    pub reserved: Reserved,
    /// The images that it was made from or has as volumes, as far as they are known: nobody removes one.
    pub images: BTreeSet<ImageId>,
    /// False if it may hold more: any device, and any processor exclusively.
    pub is_complete: bool,
}

/// The holder on record of what such an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimHolder {
    /// The owner.
    pub owner: Owner,
    /// The sandbox: not that of a task, but one of its own, which nobody can stop.
    pub sandbox: SandboxId,
    /// The task.
    pub task: TaskId,
}

// === impl Unreadable ===

impl Unreadable {
    /// Advice, for people.
    pub const REMEDY: &'static str = "install the version that wrote it again, or remove it as docs/alerts.md says under SwitchyardUnreadable";

    /// The error for a request that it is in the way of. `what` is the name, or the object, that was asked for.
    #[must_use]
    pub fn refusal(&self, what: &str) -> Error {
        Error::failed_precondition(format!(
            "{what} is held by {self}, which this version cannot read: {}",
            Self::REMEDY
        ))
    }

    /// The error for a request about this object.
    #[must_use]
    pub fn defect(&self) -> Error {
        Error::failed_precondition(format!("this version cannot read {self}: {}", Self::REMEDY))
    }

    /// The holder of its claims, whatever is known of it. What no orchestrator of this version can have made is the
    /// operator's to look after.
    #[must_use]
    pub fn holder(&self) -> ClaimHolder {
        // Ids of tasks have the form of those of sandboxes. One of another form, of a later version, says nothing here.
        ClaimHolder {
            owner: self.owner.unwrap_or(Owner::Host),
            sandbox: self.id.parse().unwrap_or_else(|_| SandboxId::random()),
            task: self.id.parse().unwrap_or_else(|_| TaskId::random()),
        }
    }

    /// Returns whether it may be the object of this kind with this name.
    #[must_use]
    pub fn may_be(&self, kind: UnreadableKind, owner: Owner, name: &str) -> bool {
        self.has_kind(kind) && self.owner == Some(owner) && self.name == name
    }

    /// Returns whether it may be of this kind.
    #[must_use]
    pub fn has_kind(&self, kind: UnreadableKind) -> bool {
        self.kind == kind || self.kind == UnreadableKind::Unknown
    }
}

/// Its kind, id, owner and name, on one line: a name may have any characters.
impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id: String = self.id.chars().take(SHORT_ID).collect();
        let owner = self.owner.map_or("an unknown owner", Owner::as_str);
        write!(f, "{} {id} of {owner}", self.kind.as_str())?;
        if !self.name.is_empty() {
            write!(f, " ({})", self.name.escape_debug())?;
        }
        Ok(())
    }
}

// === impl UnreadableKind ===

impl UnreadableKind {
    /// The kind as one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sandbox => "sandbox",
            Self::Task => "task",
            Self::Unknown => "container",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_has_a_holder_of_its_claims() {
        let id = TaskId::from_bytes([2; 32]);
        let held = |id: &str, owner| Unreadable {
            id: id.to_owned(),
            kind: UnreadableKind::Task,
            owner,
            name: String::new(),
            sandbox: Some(SandboxId::from_bytes([1; 32])),
            reason: String::new(),
            claims: HeldClaims::default(),
            facts: ObjectFacts::default(),
        };
        let known = held(&id.to_string(), Some(Owner::Nomad)).holder();
        let expected = ClaimHolder {
            owner: Owner::Nomad,
            sandbox: SandboxId::from_bytes([2; 32]),
            task: id,
        };
        assert_eq!(known, expected);
        let one = held("of another form", None).holder();
        let other = held("and of one more", None).holder();
        assert_eq!((one.owner, other.owner), (Owner::Host, Owner::Host));
        assert_ne!(one.task, other.task);
    }
}
