//! What the ledger has given to whom, as `/v1/devices` gives it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use switchyard_core::device::Health;
use switchyard_core::gateway::LedgerReport;
use switchyard_core::id::SandboxId;
use switchyard_core::ledger::{Compute, GroupReport, PortHolder, SlotHolder, SlotReport};
use switchyard_core::spec::Reserved;

use super::HostView;

/// Devices and ports of the host, and who has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicesView {
    /// Whether slots are given out: it is known what was given out before.
    pub ready: bool,
    /// The groups of devices.
    pub groups: Vec<GroupView>,
    /// The slots, each with who has it.
    pub slots: Vec<SlotView>,
    /// The ports of the host that somebody has.
    pub ports: Vec<PortView>,
    /// Processors and memory.
    pub compute: ComputeView,
    /// Device plugins of vendors; nothing while they are not hosted.
    pub host: Option<HostView>,
    /// How often something was refused since the daemon began.
    pub refusals: Vec<RefusalView>,
}

/// A group of like devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// Who makes them.
    pub vendor: String,
    /// What they are.
    #[serde(rename = "type")]
    pub kind: String,
    /// Their model.
    pub name: String,
    /// What kubelets call them; empty if they are not offered to kubelets.
    pub resource: String,
    /// How many slots there are.
    pub capacity: usize,
    /// How many of them nobody has, and can be given out.
    pub free: usize,
    /// How many of them each owner has that has any.
    pub held: Vec<HeldView>,
}

/// What an owner has of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldView {
    /// The owner.
    pub owner: String,
    /// How many slots.
    pub slots: usize,
}

/// A slot of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotView {
    /// Its id.
    pub id: String,
    /// The id of the device.
    pub device: String,
    /// The vendor, type and name of its group with slashes between them; empty if it is of none.
    pub group: String,
    /// Whether the device can be given to a task.
    pub healthy: bool,
    /// Why not; empty if it can.
    pub reason: String,
    /// Who has it: nobody, one, or more if they were found so.
    pub holders: Vec<HolderView>,
}

/// Who has a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// The owner.
    pub owner: String,
    /// The sandbox; nothing while no task was made with it, or when the sandbox has stopped.
    pub sandbox: Option<String>,
    /// The name of the sandbox; empty without one.
    pub name: String,
    /// `unbound`: nothing was made with it; `contestable`: nor will be, it seems; `bound`: the sandbox has it; `grace`: what had it has
    /// stopped, and may be restarted.
    pub state: String,
    /// The token of the lease.
    pub token: String,
}

/// A port of the host that a sandbox has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// The port.
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The address; nothing for all.
    pub address: Option<IpAddr>,
    /// Who made the sandbox.
    pub owner: String,
    /// The sandbox.
    pub sandbox: String,
    /// Its name.
    pub name: String,
    /// Within this group of its owner the port is one claim.
    pub group: String,
}

/// What is given out of the node's processors and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeView {
    /// All that the node has; nothing if that is not known.
    pub capacity: Option<AmountView>,
    /// What the running tasks of each owner reserve together.
    pub reserved: Vec<ReservedView>,
    /// The tasks that have processors for themselves.
    pub exclusive: Vec<ExclusiveView>,
}

/// An amount of processors and memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AmountView {
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// What an owner's tasks reserve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedView {
    /// The owner.
    pub owner: String,
    /// How much.
    #[serde(flatten)]
    pub amount: AmountView,
}

/// A task that has processors for itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusiveView {
    /// The processors, as `0-3,8`.
    pub cpus: String,
    /// How many they are.
    pub count: u64,
    /// Whose it is.
    pub owner: String,
    /// The task.
    pub task: String,
    /// Its sandbox.
    pub sandbox: String,
    /// The name of that.
    pub name: String,
}

/// How often something was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// Who asked.
    pub owner: String,
    /// The kind of what was asked for: `port`, `device`, `core`, `cpu` or `memory`.
    pub resource: String,
    /// Why not, in one word.
    pub reason: String,
    /// How often.
    pub count: u64,
}

// === impl Devices ===

impl DevicesView {
    /// The view of what the ledger says, and the host of vendors' plugins, if there is one.
    #[must_use]
    pub fn of(report: &LedgerReport, plugins: Option<switchyard_device_host::Report>) -> Self {
        let devices = report.devices.report();
        let mut ports: Vec<PortView> =
            report.ports.iter().flat_map(|(id, holder)| ports_of(*id, holder)).collect();
        ports.sort_by(|a, b| {
            (a.port, &a.protocol, a.address, &a.sandbox).cmp(&(b.port, &b.protocol, b.address, &b.sandbox))
        });
        let refusals = report.refusals.iter().map(|((owner, resource, reason), count)| RefusalView {
            owner: owner.to_string(),
            resource: (*resource).to_owned(),
            reason: (*reason).to_owned(),
            count: *count,
        });
        Self {
            ready: report.devices.is_recovered(),
            groups: devices.groups.into_iter().map(Into::into).collect(),
            slots: devices.slots.into_iter().map(Into::into).collect(),
            ports,
            compute: ComputeView::of(&report.compute),
            host: plugins.map(Into::into),
            refusals: refusals.collect(),
        }
    }
}

// === impl ComputeView ===

impl ComputeView {
    fn of(compute: &Compute) -> Self {
        let reserved = compute.reserved().iter();
        let reserved = reserved
            .map(|(owner, amount)| ReservedView { owner: owner.to_string(), amount: (*amount).into() });
        let exclusive = compute.exclusive().map(|(task, holder, cpus)| ExclusiveView {
            cpus: cpus.to_string(),
            count: cpus.count(),
            owner: holder.owner.to_string(),
            task: task.to_string(),
            sandbox: holder.sandbox.to_string(),
            name: holder.name.clone(),
        });
        Self {
            capacity: compute.capacity().map(Into::into),
            reserved: reserved.collect(),
            exclusive: exclusive.collect(),
        }
    }
}

impl From<Reserved> for AmountView {
    fn from(Reserved { cpu_milli, memory_bytes }: Reserved) -> Self {
        Self { cpu_milli, memory_bytes }
    }
}

fn ports_of(id: SandboxId, holder: &PortHolder) -> impl Iterator<Item = PortView> + '_ {
    holder.claims.ports.iter().map(move |port| PortView {
        port: port.port,
        protocol: port.protocol.as_str().to_owned(),
        address: port.ip,
        owner: holder.owner.to_string(),
        sandbox: id.to_string(),
        name: holder.name.clone(),
        group: holder.claims.group.clone(),
    })
}

// === impl GroupView ===

impl From<GroupReport> for GroupView {
    fn from(GroupReport { vendor, kind, name, resource, capacity, free, held }: GroupReport) -> Self {
        let held = held.into_iter().map(|(owner, slots)| HeldView { owner: owner.to_string(), slots });
        Self { vendor, kind, name, resource, capacity, free, held: held.collect() }
    }
}

impl GroupView {
    /// The vendor, type and name, with slashes between them.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

// === impl SlotView ===

impl From<SlotReport> for SlotView {
    fn from(SlotReport { id, device, group, health, holders }: SlotReport) -> Self {
        let reason = health.fault().unwrap_or_default().to_owned();
        let healthy = health == Health::Healthy;
        Self { id, device, group, healthy, reason, holders: holders.into_iter().map(Into::into).collect() }
    }
}

// === impl HolderView ===

impl From<SlotHolder> for HolderView {
    fn from(SlotHolder { owner, sandbox, name, state, token }: SlotHolder) -> Self {
        Self {
            owner: owner.to_string(),
            sandbox: sandbox.map(|id| id.to_string()),
            name,
            state: state.to_owned(),
            token: token.to_string(),
        }
    }
}
