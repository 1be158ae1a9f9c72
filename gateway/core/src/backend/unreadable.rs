//! Objects that a backend has found and cannot read, because a later version wrote them or they are damaged.
//!
//! They may run. They are left alone, and what they hold is given to nobody until a version that can read them
//! runs, or they are gone at a start of the daemon.

use std::fmt;

use crate::error::Error;
use crate::id::{Owner, SandboxId};
use crate::spec::{CpuSet, HostPorts, LeaseClaim, Reserved};

/// Characters of an id in an error.
const SHORT_ID: usize = 12;

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
    /// What it holds of the node.
    pub claims: HeldClaims,
}

/// The kind of an object that cannot be read.
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
    /// False if it may hold more: any device, and any processor exclusively.
    pub is_complete: bool,
}

// === impl Unreadable ===

impl Unreadable {
    /// The error for a request that it is in the way of. `what` is the name, or the object, that was asked for.
    #[must_use]
    pub fn refusal(&self, what: &str) -> Error {
        Error::failed_precondition(format!(
            "{what} is held by {self}, which this version cannot read: install the version that wrote it again, or \
             remove it as docs/alerts.md says under SwitchyardUnreadable"
        ))
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
