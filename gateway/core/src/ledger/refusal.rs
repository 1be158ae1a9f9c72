//! Refusals: why a resource was not granted, in a form for metrics, events and errors.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::Error;
use crate::id::{InvalidSlotId, LeaseToken, Owner, SandboxId, SlotId};
use crate::spec::{CpuSet, HostPort, Reserved};

/// The text after the id of a slot that the node does not have.
const NOT_ON_THIS_NODE: &str =
    "is not on this node, or not any more: does a group of devices.groups name it?";

/// A refused request for a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The owner that requested it.
    pub owner: Owner,
    /// The resource.
    pub resource: Resource,
    /// The reason.
    pub reason: RefusalReason,
    /// The current holder, where there is one.
    pub holder: Option<Box<Holder>>,
}

/// A resource of the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// A port of the host.
    Port(HostPort),
    /// A slot of a device; `None` for a request that names none.
    Slot(Option<SlotId>),
    /// All slots of a lease.
    Lease(LeaseToken),
    /// Processors, exclusively.
    Cores(CpuSet),
    /// Processor time.
    Cpu {
        /// The amount, in thousandths of a processor.
        milli: u64,
    },
    /// Memory.
    Memory {
        /// The amount.
        bytes: u64,
    },
}

/// The reason of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalReason {
    /// Another holder has it.
    Held,
    /// Another holder uses it as well.
    Shared,
    /// A program of the node listens on it: this one, if it can be seen.
    Listening(Option<ListeningProcess>),
    /// It does not lead to the sandbox, for this reason.
    NotForwarded(&'static str),
    /// It is more than the node has left.
    Overcommitted {
        /// All that the node has.
        capacity: Reserved,
        /// Reservations of each owner.
        reserved: BTreeMap<Owner, Reserved>,
    },
    /// There is no such slot.
    Unknown,
    /// Its device is unhealthy, for this reason.
    Unhealthy(String),
    /// The owner's quota for its group is used up.
    Quota,
    /// The request is empty, or names more than one request may.
    TooMany,
    /// The maximum number of leases is reached.
    Full,
    /// The lease is not known, or no longer known.
    Lost,
    /// The leases of before the restart are not known yet.
    Recovering,
    /// Something that cannot be read may hold it.
    Withheld,
}

/// A process that listens on a port of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListeningProcess {
    /// The name of its program, which it can choose.
    pub name: String,
    /// Its id.
    pub pid: i32,
}

/// The holder of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its owner.
    pub owner: Owner,
    /// The sandbox that has it; `None` while it is leased and no sandbox uses it yet.
    pub sandbox: Option<SandboxId>,
    /// The name of that sandbox; empty if there is none.
    pub name: String,
}

// === impl Refusal ===

impl Refusal {
    /// The kind of the resource, for metrics.
    #[must_use]
    pub const fn resource(&self) -> &'static str {
        match self.resource {
            Resource::Port(_) => "port",
            Resource::Slot(_) | Resource::Lease(_) => "device",
            Resource::Cores(_) => "core",
            Resource::Cpu { .. } => "cpu",
            Resource::Memory { .. } => "memory",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resource {
            Resource::Port(port) => write!(f, "host port {port} ")?,
            Resource::Slot(slot) => {
                write!(f, "device {:?} ", slot.as_ref().map_or("", SlotId::as_str))?
            }
            Resource::Lease(token) => write!(f, "the lease {token} of devices ")?,
            Resource::Cores(cores) => write!(f, "the set {cores} of processors ")?,
            Resource::Cpu { .. } | Resource::Memory { .. } => write!(f, "{} ", self.amount())?,
        }
        match (&self.reason, &self.holder) {
            (RefusalReason::Held, Some(holder)) => write!(f, "is held by {holder}: it can be had when that has ended"),
            (RefusalReason::Held, None) => f.write_str("is held by another holder"),
            (RefusalReason::Shared, Some(holder)) => write!(f, "is used by {holder} as well"),
            (RefusalReason::Shared, None) => f.write_str("is used by another holder as well"),
            (RefusalReason::Listening(Some(ListeningProcess { name, pid })), _) => {
                write!(f, "is in use by the process {name:?} of the node (pid {pid}), which listens on it: stop that, or publish another port")
            }
            (RefusalReason::Listening(None), _) => {
                f.write_str("is in use by a process of the node that cannot be seen, which listens on it: publish another port")
            }
            (RefusalReason::NotForwarded(why), _) => write!(f, "cannot be forwarded: {why}"),
            (RefusalReason::Overcommitted { capacity, reserved }, _) => self.explain(f, *capacity, reserved),
            (RefusalReason::Unknown, _) => f.write_str(NOT_ON_THIS_NODE),
            (RefusalReason::Unhealthy(why), _) => write!(f, "cannot be given to a task: {why}"),
            (RefusalReason::Quota, _) => {
                write!(f, "is beyond what {} may have: see quota of its group in devices.groups, or of its resource in devices.host.resources", self.owner)
            }
            (RefusalReason::TooMany, _) => f.write_str("cannot be asked for: a request names between 1 and 1024 slots"),
            (RefusalReason::Full, _) => f.write_str("cannot be leased: there are too many leases"),
            (RefusalReason::Lost, _) => {
                f.write_str("is not known (any more): its devices may have been given to others meanwhile; request them again")
            }
            (RefusalReason::Recovering, _) => {
                f.write_str("cannot be given yet: the gateway is still recovering what its predecessor left")
            }
            (RefusalReason::Withheld, _) => {
                f.write_str("is not given to anybody while an object cannot be read that may hold it: `switchyard status` names it")
            }
        }
    }
}

impl Refusal {
    /// The requested amount of processors or memory, for people.
    fn amount(&self) -> String {
        match self.resource {
            Resource::Cpu { milli } => in_processors(milli),
            Resource::Memory { bytes } => in_mebibytes(bytes),
            Resource::Port(_) | Resource::Slot(_) | Resource::Lease(_) | Resource::Cores(_) => {
                String::new()
            }
        }
    }

    /// Describes why an amount is too large: the capacity, and the reservations of each owner.
    fn explain(
        &self,
        f: &mut fmt::Formatter<'_>,
        capacity: Reserved,
        reserved: &BTreeMap<Owner, Reserved>,
    ) -> fmt::Result {
        let of = |amount: Reserved| match self.resource {
            Resource::Memory { .. } => in_mebibytes(amount.memory_bytes),
            Resource::Cpu { .. }
            | Resource::Port(_)
            | Resource::Slot(_)
            | Resource::Lease(_)
            | Resource::Cores(_) => in_processors(amount.cpu_milli),
        };
        write!(f, "is more than is left of {}: ", of(capacity))?;
        for (index, (owner, amount)) in reserved.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{owner} has reserved {}", of(*amount))?;
        }
        if reserved.is_empty() {
            f.write_str("nothing is reserved")?;
        }
        Ok(())
    }
}

/// Thousandths of a processor, for people.
fn in_processors(milli: u64) -> String {
    let whole = milli / 1000;
    let rest = milli % 1000;
    let text = format!("{whole}.{rest:03}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    format!("{short} processors")
}

fn in_mebibytes(bytes: u64) -> String {
    format!("{} MiB of memory", bytes.div_ceil(1 << 20))
}

impl std::error::Error for Refusal {}

impl From<InvalidSlotId> for Error {
    /// The same error as for an id of the right form that the node does not have.
    fn from(invalid: InvalidSlotId) -> Self {
        Self::not_found(format!(
            "device {:?} {NOT_ON_THIS_NODE}",
            invalid.beginning()
        ))
    }
}

impl From<Refusal> for Error {
    /// A refused resource may become available later, except one that is not on the node.
    fn from(refusal: Refusal) -> Self {
        let text = refusal.to_string();
        match refusal.reason {
            RefusalReason::Unknown => Self::not_found(text),
            RefusalReason::TooMany => Self::invalid("device_ids", text),
            RefusalReason::Full => Self::exhausted(text),
            RefusalReason::Recovering => Self::unavailable(text),
            RefusalReason::Held
            | RefusalReason::Shared
            | RefusalReason::Listening(_)
            | RefusalReason::NotForwarded(_)
            | RefusalReason::Overcommitted { .. }
            | RefusalReason::Unhealthy(_)
            | RefusalReason::Quota
            | RefusalReason::Lost
            | RefusalReason::Withheld => Self::failed_precondition(text),
        }
    }
}

// === impl RefusalReason ===

impl RefusalReason {
    /// The name in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Shared => "shared",
            Self::Listening(_) => "listening",
            Self::NotForwarded(_) => "not_forwarded",
            Self::Overcommitted { .. } => "overcommitted",
            Self::Unknown => "unknown",
            Self::Unhealthy(_) => "unhealthy",
            Self::Quota => "quota",
            Self::TooMany => "too_many",
            Self::Full => "full",
            Self::Lost => "lost",
            Self::Recovering => "recovering",
            Self::Withheld => "withheld",
        }
    }
}

// === impl Holder ===

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sandbox {
            Some(id) => write!(
                f,
                "{} of {} (sandbox {})",
                self.name,
                self.owner,
                &id.to_string()[..12]
            ),
            None => write!(f, "{}, for something that is not made yet", self.owner),
        }
    }
}
