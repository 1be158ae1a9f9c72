//! The content of the ledger, as `/v1/devices` shows it.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use switchyard_core::device::{DynamicDevice, Health};
use switchyard_core::gateway::LedgerReport;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::ledger::{Compute, GroupReport, PortHolder, SlotHolder, SlotReport};
use switchyard_core::spec::Reserved;

use crate::dynamic::DynamicView;
use crate::plugins::HostView;

/// Devices and host ports, with their holders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicesView {
    /// True if slots can be allocated, which requires that earlier allocations have been recovered.
    pub ready: bool,
    /// The groups of devices.
    pub groups: Vec<GroupView>,
    /// The slots, each with its holders.
    pub slots: Vec<SlotView>,
    /// The host ports that sandboxes hold.
    pub ports: Vec<PortView>,
    /// Processors and memory.
    pub compute: ComputeView,
    /// Vendors' device plugins; `None` while they are not hosted.
    pub host: Option<HostView>,
    /// Numbers of requests that were refused since the daemon started.
    pub refusals: Vec<RefusalView>,
    /// The devices that pods have by dynamic resource allocation (DRA), as the kubelet lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dynamic: Vec<DynamicView>,
}

/// A group of devices of the same kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupView {
    /// The vendor.
    pub vendor: String,
    /// The type.
    #[serde(rename = "type")]
    pub kind: String,
    /// The name, such as a model.
    pub name: String,
    /// The resource name for kubelets; empty if the group is not offered to kubelets.
    pub resource: String,
    /// Number of slots.
    pub capacity: usize,
    /// Number of free and healthy slots.
    pub free: usize,
    /// Number of slots that each owner holds, for owners with at least one.
    pub held: Vec<HeldView>,
}

/// The slots of an owner in a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldView {
    /// The owner.
    pub owner: String,
    /// Number of slots.
    pub slots: usize,
}

/// A slot of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotView {
    /// Its id.
    pub id: String,
    /// The id of the device.
    pub device: String,
    /// The vendor, type and name of its group, separated by slashes; empty if it is in none.
    pub group: String,
    /// True if the device is healthy.
    pub healthy: bool,
    /// Reason why it is unhealthy; empty if it is healthy.
    pub reason: String,
    /// Its holders: none, one, or several if recovery found it so.
    pub holders: Vec<HolderView>,
}

/// A holder of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// The owner.
    pub owner: String,
    /// The sandbox; `None` while no task was created with the lease, or when the sandbox has stopped.
    pub sandbox: Option<String>,
    /// The name of the sandbox; empty without one.
    pub name: String,
    /// The name that its owner's users give it, on one line; empty if that is not known.
    #[serde(default)]
    pub display_name: String,
    /// `unbound`: no task was created with the lease; `contestable`: nor within `devices.lease_minutes`;
    /// `bound`: the sandbox uses it; `grace`: the sandbox that used it has stopped, and may be restarted.
    pub state: String,
    /// The token of the lease.
    pub token: String,
}

/// A host port that a sandbox holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortView {
    /// The port.
    pub port: u16,
    /// `tcp`, `udp` or `sctp`.
    pub protocol: String,
    /// The address; `None` for all.
    pub address: Option<IpAddr>,
    /// The owner of the sandbox.
    pub owner: String,
    /// The sandbox.
    pub sandbox: String,
    /// Its name.
    pub name: String,
    /// The name that its owner's users give it, on one line; empty if that is not known.
    #[serde(default)]
    pub display_name: String,
    /// The claim group: sandboxes of one owner with the same group share the port.
    pub group: String,
}

/// The reservations of the node's processors and memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeView {
    /// The capacity of the node; `None` if it is not known.
    pub capacity: Option<AmountView>,
    /// The sum of the reservations of each owner's running tasks.
    pub reserved: Vec<ReservedView>,
    /// The tasks with exclusive processors.
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

/// The reservations of an owner's tasks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservedView {
    /// The owner.
    pub owner: String,
    /// The amount.
    #[serde(flatten)]
    pub amount: AmountView,
}

/// A task with exclusive processors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExclusiveView {
    /// The processors, such as `0-3,8`.
    pub cpus: String,
    /// Their number.
    pub count: u64,
    /// The owner.
    pub owner: String,
    /// The task.
    pub task: String,
    /// Its sandbox.
    pub sandbox: String,
    /// The name of the sandbox.
    pub name: String,
    /// The name that its owner's users give it, on one line; empty if that is not known.
    #[serde(default)]
    pub display_name: String,
}

/// Number of refused requests of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalView {
    /// The owner that requested it.
    pub owner: String,
    /// The requested resource: `port`, `device`, `core`, `cpu` or `memory`.
    pub resource: String,
    /// The reason, in one word.
    pub reason: String,
    /// Number of refusals.
    pub count: u64,
}

// === impl DevicesView ===

impl DevicesView {
    /// Converts the report of the ledger; `host` is the registration host, if there is one.
    #[must_use]
    pub fn of(report: &LedgerReport, host: Option<HostView>) -> Self {
        let devices = report.devices.report();
        let mut ports: Vec<PortView> = report
            .ports
            .iter()
            .flat_map(|(id, holder)| ports_of(*id, holder))
            .collect();
        ports.sort_by(|a, b| {
            (a.port, &a.protocol, a.address, &a.sandbox).cmp(&(
                b.port,
                &b.protocol,
                b.address,
                &b.sandbox,
            ))
        });
        let refusals = report
            .refusals
            .iter()
            .map(|((owner, resource, reason), count)| RefusalView {
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
            host,
            refusals: refusals.collect(),
            dynamic: Vec::new(),
        }
    }

    /// Adds the devices that pods have by dynamic resource allocation.
    #[must_use]
    pub fn with_dynamic(mut self, devices: &[DynamicDevice]) -> Self {
        self.dynamic = devices.iter().cloned().map(Into::into).collect();
        self
    }

    /// Adds what people call the sandboxes; `name` gives it by the id of a sandbox.
    #[must_use]
    pub fn with_display_names(mut self, name: impl Fn(&str) -> Option<String>) -> Self {
        let name = |id: &str| name(id).unwrap_or_default();
        for holder in self.slots.iter_mut().flat_map(|slot| &mut slot.holders) {
            holder.display_name = holder.sandbox.as_deref().map(name).unwrap_or_default();
        }
        for port in &mut self.ports {
            port.display_name = name(&port.sandbox);
        }
        for exclusive in &mut self.compute.exclusive {
            exclusive.display_name = name(&exclusive.sandbox);
        }
        self
    }

    /// Keeps the holdings and the refusals of one owner.
    #[must_use]
    pub fn of_owner(mut self, owner: Owner) -> Self {
        let owner = owner.as_str();
        for slot in &mut self.slots {
            slot.holders.retain(|holder| holder.owner == owner);
        }
        self.slots.retain(|slot| !slot.holders.is_empty());
        for group in &mut self.groups {
            group.held.retain(|held| held.owner == owner);
        }
        self.ports.retain(|port| port.owner == owner);
        self.compute
            .reserved
            .retain(|reserved| reserved.owner == owner);
        self.compute
            .exclusive
            .retain(|exclusive| exclusive.owner == owner);
        self.refusals.retain(|refusal| refusal.owner == owner);
        // Vendors' plugins serve all owners.
        self.host = None;
        if owner != Owner::Kubernetes.as_str() {
            self.dynamic.clear();
        }
        self
    }
}

// === impl ComputeView ===

impl ComputeView {
    fn of(compute: &Compute) -> Self {
        let reserved = compute.reserved().iter();
        let reserved = reserved.map(|(owner, amount)| ReservedView {
            owner: owner.to_string(),
            amount: (*amount).into(),
        });
        let exclusive = compute
            .exclusive()
            .map(|(task, holder, cpus)| ExclusiveView {
                cpus: cpus.to_string(),
                count: cpus.count(),
                owner: holder.owner.to_string(),
                task: task.to_string(),
                sandbox: holder.sandbox.to_string(),
                name: holder.name.clone(),
                display_name: String::new(),
            });
        Self {
            capacity: compute.capacity().map(Into::into),
            reserved: reserved.collect(),
            exclusive: exclusive.collect(),
        }
    }
}

impl From<Reserved> for AmountView {
    fn from(
        Reserved {
            cpu_milli,
            memory_bytes,
        }: Reserved,
    ) -> Self {
        Self {
            cpu_milli,
            memory_bytes,
        }
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
        display_name: String::new(),
        group: holder.claims.group.clone(),
    })
}

// === impl GroupView ===

impl From<GroupReport> for GroupView {
    fn from(
        GroupReport {
            vendor,
            kind,
            name,
            resource,
            capacity,
            free,
            held,
        }: GroupReport,
    ) -> Self {
        let held = held.into_iter().map(|(owner, slots)| HeldView {
            owner: owner.to_string(),
            slots,
        });
        Self {
            vendor,
            kind,
            name,
            resource,
            capacity,
            free,
            held: held.collect(),
        }
    }
}

impl GroupView {
    /// The vendor, type and name, separated by slashes.
    #[must_use]
    pub fn title(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

// === impl SlotView ===

impl From<SlotReport> for SlotView {
    fn from(
        SlotReport {
            id,
            device,
            group,
            health,
            holders,
        }: SlotReport,
    ) -> Self {
        let reason = health.fault().unwrap_or_default().to_owned();
        let healthy = health == Health::Healthy;
        let holders = holders.into_iter().map(Into::into).collect();
        Self {
            id: id.into(),
            device,
            group,
            healthy,
            reason,
            holders,
        }
    }
}

// === impl HolderView ===

impl From<SlotHolder> for HolderView {
    fn from(
        SlotHolder {
            owner,
            sandbox,
            name,
            state,
            token,
        }: SlotHolder,
    ) -> Self {
        Self {
            owner: owner.to_string(),
            sandbox: sandbox.map(|id| id.to_string()),
            name,
            display_name: String::new(),
            state: state.to_owned(),
            token: token.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn answer_of_the_first_version_is_read_and_written() {
        let golden: Value = serde_json::from_str(include_str!("golden/devices.json")).unwrap();
        let read: DevicesView = serde_json::from_value(golden.clone()).unwrap();
        let group = &read.groups[0];
        assert_eq!(
            (group.title().as_str(), group.capacity, group.free),
            ("acme/tpu/v2", 2, 1)
        );
        let [held, free] = read.slots.as_slice() else {
            panic!("{read:?}")
        };
        assert!(!held.healthy && free.healthy && free.holders.is_empty());
        assert_eq!(held.holders[0].state, "bound");
        let port = &read.ports[0];
        assert_eq!(port.address, Some("fd00::7".parse().unwrap()));
        assert_eq!(read.compute.reserved[0].amount.cpu_milli, 500);
        assert_eq!(read.compute.exclusive[0].cpus, "2-3");
        let host = read.host.as_ref().expect("plugins are hosted");
        assert!(host.fault.is_none() && host.plugins[0].last_error.is_some());
        let of_swarm = read.clone().of_owner(Owner::Swarm);
        assert!(of_swarm.slots.is_empty() && of_swarm.ports.is_empty());
        assert_eq!(of_swarm.refusals[0].count, 3);
        assert_eq!(serde_json::to_value(&read).unwrap(), golden);
        let mut later = golden;
        later["slots"][0]["of_a_later_version"] = Value::from(1);
        assert_eq!(serde_json::from_value::<DevicesView>(later).unwrap(), read);
    }

    #[test]
    fn devices_of_claims_are_those_of_kubernetes() {
        let device = DynamicDevice {
            pod: "shop/web".to_owned(),
            container: "app".to_owned(),
            claim: "shop/gpus".to_owned(),
            driver: "gpu.acme.com".to_owned(),
            pool: "node1".to_owned(),
            device: "gpu-0".to_owned(),
            cdi: vec!["gpu.acme.com/claim=1".to_owned()],
        };
        let view = DevicesView::default().with_dynamic(&[device]);
        let text = serde_json::to_string(&view).unwrap();
        assert_eq!(serde_json::from_str::<DevicesView>(&text).unwrap(), view);
        for owner in Owner::ALL {
            let shown = view.clone().of_owner(owner).dynamic;
            assert_eq!(
                shown.len(),
                usize::from(owner == Owner::Kubernetes),
                "{owner}"
            );
        }
    }
}
