//! Devices of the node that tasks can be given: the inventory, in groups of identical devices, and what a
//! task with devices gets.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::id::{Owner, SlotId};
use crate::spec::{DeviceNode, EnvVar, Mount, TaskSpec};

mod provider;
pub mod quota;
pub mod resource;

pub use provider::DeviceProvider;

/// The devices of the node.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// The groups of identical devices. A device id is in one group only. An unchanged group is shared with
    /// the previous inventory, so that data derived from it can be reused.
    pub groups: Vec<Arc<DeviceGroup>>,
}

/// The inventory, kept up to date by its sender; `None` before the first scan. Only the newest value matters.
pub type Inventories = watch::Receiver<Option<Arc<Inventory>>>;

/// Identical devices.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceGroup {
    /// Their vendor.
    pub vendor: String,
    /// Their type, for example `gpu`.
    pub kind: String,
    /// Their model.
    pub name: String,
    /// Their resource name for kubelets, for example `acme.com/tpu`; empty if they are not offered to
    /// kubelets.
    pub resource: String,
    /// Attributes common to all of them, by name.
    pub attributes: BTreeMap<String, Fact>,
    /// Number of tasks that may share one device, at least 1.
    pub shares: u16,
    /// The maximum number of slots of each owner; an owner without an entry may hold all.
    pub quota: BTreeMap<Owner, usize>,
    /// The slots that are recommended to a kubelet.
    pub placement: SlotPlacement,
    /// The devices, by id in ascending order.
    pub devices: Vec<Device>,
    /// The environment variable that lists a task's devices; empty for none.
    pub variable: String,
    /// Further environment variables for a task with any of them.
    pub env: BTreeMap<String, String>,
    /// Further nodes for a task with any of them.
    pub shared: Vec<DeviceNode>,
    /// Mounts for a task with any of them.
    pub mounts: Vec<Mount>,
}

/// The slots that are preferred if several are possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SlotPlacement {
    /// Those of devices that are already in use.
    #[default]
    Packed,
    /// Those of the least used devices.
    Spread,
}

/// A device: assigned to tasks as a unit, although it may have several nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its id, unique on the node. It is the same after a reboot and in another slot or port, as far as the
    /// device has something to identify it by. At most [`DEVICE_ID_MAX`] of the characters `A-Z a-z 0-9 . _ :
    /// -`.
    pub id: String,
    /// Ids under which earlier versions offered it. They are accepted from running tasks and no longer
    /// offered.
    pub aliases: Vec<String>,
    /// The nodes that a task with it gets, each once.
    pub nodes: Vec<DeviceNode>,
    /// CDI names of the devices that a task with it gets.
    pub cdi: Vec<String>,
    /// Its health, which decides whether it can be allocated to a task.
    pub health: Health,
    /// Its PCI address, for example `0000:3b:00.0`, if it has one.
    pub pci_bus_id: Option<String>,
    /// Its NUMA node, if the kernel reports one.
    pub numa_node: Option<u32>,
    /// Its traffic since the node booted, if the kernel counts it.
    pub traffic: Option<Traffic>,
}

/// The longest device id, in bytes: a slot id has up to 7 more, and kubelets accept 63.
pub const DEVICE_ID_MAX: usize = 56;

/// The longest id of a slot of the inventory, in bytes. Ids of earlier versions may be longer.
pub const OFFERED_SLOT_ID_MAX: usize = DEVICE_ID_MAX + 7;

/// The health of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It can be allocated to a task.
    Healthy,
    /// It cannot, for this reason.
    Unhealthy(String),
    /// It was present before and is not any more.
    Gone,
}

/// The traffic of a block device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// An attribute of devices.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// A whole number with a unit; the unit may be empty.
    Whole(i64, String),
    /// Another number with a unit; the unit may be empty.
    Number(f64, String),
    /// Yes or no.
    Flag(bool),
    /// A text.
    Text(String),
}

/// The environment, nodes, mounts and CDI names that a task with devices gets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservation {
    /// Environment variables.
    pub env: BTreeMap<String, String>,
    /// Nodes, each once.
    pub nodes: Vec<DeviceNode>,
    /// Mounts, each destination once.
    pub mounts: Vec<Mount>,
    /// CDI names, each once.
    pub cdi: Vec<String>,
}

/// A device that a container of an orchestrator has by dynamic resource allocation (DRA), which its driver prepares and
/// no ledger counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DynamicDevice {
    /// The pod, `NAMESPACE/NAME`.
    pub pod: String,
    /// The container.
    pub container: String,
    /// The resource claim, `NAMESPACE/NAME`.
    pub claim: String,
    /// The driver.
    pub driver: String,
    /// The pool of the driver.
    pub pool: String,
    /// The name of the device in the pool.
    pub device: String,
    /// CDI names of what the container gets for it.
    pub cdi: Vec<String>,
}

/// The units of an attribute.
const UNITS: [&str; 20] = [
    "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "kB", "KB", "MB", "GB", "TB", "PB", "EB", "MHz",
    "GHz", "mW", "W", "kW", "MW", "GW",
];

// === impl Inventory ===

impl Inventory {
    /// An inventory of these groups.
    #[must_use]
    pub fn of(groups: impl IntoIterator<Item = DeviceGroup>) -> Self {
        Self {
            groups: groups.into_iter().map(Arc::new).collect(),
        }
    }

    /// The same inventory, but sharing with `before` the groups that are equal at the same index.
    #[must_use]
    pub fn reusing_groups(self, before: &Self) -> Self {
        let groups = self.groups.into_iter().enumerate();
        let groups = groups
            .map(|(at, group)| shared(group, before.groups.get(at)))
            .collect();
        Self { groups }
    }

    /// Returns whether all groups are the same `Arc`s as in `other`. Contents are not compared: false does
    /// not mean different.
    #[must_use]
    pub fn is_shared_with(&self, other: &Self) -> bool {
        self.groups.len() == other.groups.len()
            && self
                .groups
                .iter()
                .zip(&other.groups)
                .all(|(one, other)| Arc::ptr_eq(one, other))
    }

    /// Returns the reservation of a task with these devices or slots. It changes nothing: the same arguments
    /// give the same result.
    ///
    /// # Errors
    /// `InvalidArgument` if `ids` is empty; `NotFound` for a device that is not (or no longer) known;
    /// `FailedPrecondition` for one that cannot be given to a task now.
    pub fn reserve(&self, ids: &[SlotId]) -> Result<Reservation> {
        if ids.is_empty() {
            return Err(Error::invalid("device_ids", "it is empty"));
        }
        let wanted: BTreeSet<&str> = ids.iter().map(SlotId::device).collect();
        let mut given = Reservation::default();
        let mut seen = BTreeSet::new();
        for group in &self.groups {
            let own: Vec<&Device> = group
                .devices
                .iter()
                .filter(|device| device.has_id_or_alias(&wanted))
                .collect();
            given.extend(group, &own)?;
            for device in &own {
                seen.extend(
                    std::iter::once(device.id.as_str())
                        .chain(device.aliases.iter().map(String::as_str)),
                );
            }
        }
        match wanted.iter().find(|id| !seen.contains(**id)) {
            Some(id) => Err(Error::not_found(format!(
                "device {id} is not on this node, or not any more: does a group of devices.groups name it?"
            ))),
            None => Ok(given),
        }
    }
}

// === impl DeviceGroup ===

impl DeviceGroup {
    /// A group without devices, without shares, and not offered to kubelets.
    #[must_use]
    pub fn new(vendor: &str, kind: &str, name: &str) -> Self {
        Self {
            vendor: vendor.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            resource: String::new(),
            attributes: BTreeMap::new(),
            shares: 1,
            quota: BTreeMap::new(),
            placement: SlotPlacement::default(),
            devices: Vec::new(),
            variable: String::new(),
            env: BTreeMap::new(),
            shared: Vec::new(),
            mounts: Vec::new(),
        }
    }
}

// === impl Health ===

impl Health {
    /// Returns the reason why it cannot be allocated to a task; `None` if it can.
    #[must_use]
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::Healthy => None,
            Self::Unhealthy(why) => Some(why),
            Self::Gone => Some("it is not there any more"),
        }
    }
}

// === impl Device ===

impl Device {
    /// A healthy device with one node.
    #[must_use]
    pub fn new(id: &str, node: DeviceNode) -> Self {
        Self {
            nodes: vec![node],
            ..Self::without_nodes(id.to_owned())
        }
    }

    /// A healthy device without nodes, for which a provider supplies what a task gets.
    #[must_use]
    pub const fn without_nodes(id: String) -> Self {
        Self {
            id,
            aliases: Vec::new(),
            nodes: Vec::new(),
            cdi: Vec::new(),
            health: Health::Healthy,
            pci_bus_id: None,
            numa_node: None,
            traffic: None,
        }
    }

    /// The ids of its slots; it has `shares` slots.
    pub fn slots(&self, shares: u16) -> impl Iterator<Item = SlotId> + '_ {
        (0..shares.max(1)).map(move |number| match shares {
            0 | 1 => SlotId::of_whole(&self.id),
            2.. => SlotId::of_share(&self.id, number),
        })
    }

    fn has_id_or_alias(&self, ids: &BTreeSet<&str>) -> bool {
        ids.contains(self.id.as_str())
            || self
                .aliases
                .iter()
                .any(|alias| ids.contains(alias.as_str()))
    }
}

// === impl Reservation ===

impl Reservation {
    /// Adds what a task with these devices of a group gets; nothing if `devices` is empty.
    ///
    /// # Errors
    /// `FailedPrecondition` for a device that cannot be given to a task now.
    pub(crate) fn extend(&mut self, group: &DeviceGroup, devices: &[&Device]) -> Result<()> {
        for device in devices {
            if let Some(why) = device.health.fault() {
                let text = format!("device {} cannot be given to a task: {why}", device.id);
                return Err(Error::failed_precondition(text));
            }
        }
        if !devices.is_empty() {
            self.add(group, devices);
        }
        Ok(())
    }

    /// Adds this to a task. Entries of the task itself take precedence. Idempotent.
    pub fn add_to(self, task: &mut TaskSpec) {
        let Self {
            env,
            nodes,
            mounts,
            cdi,
        } = self;
        for (name, value) in env {
            if !task.env.iter().any(|own| own.name == name) {
                task.env.push(EnvVar {
                    name,
                    value: value.into_bytes(),
                });
            }
        }
        for node in nodes {
            if !task
                .devices
                .iter()
                .any(|own| own.container_path == node.container_path)
            {
                task.devices.push(node);
            }
        }
        for mount in mounts {
            if !task
                .mounts
                .iter()
                .any(|own| own.destination == mount.destination)
            {
                task.mounts.push(mount);
            }
        }
        for name in cdi {
            if !task.cdi_devices.contains(&name) {
                task.cdi_devices.push(name);
            }
        }
    }

    /// Adds what a task with these devices of a group gets.
    fn add(&mut self, group: &DeviceGroup, devices: &[&Device]) {
        let paths = |device: &&Device| {
            let nodes = device
                .nodes
                .iter()
                .take(1)
                .map(|node| node.container_path.display().to_string());
            nodes
                .chain(
                    device
                        .cdi
                        .iter()
                        .filter(|_| device.nodes.is_empty())
                        .cloned(),
                )
                .collect::<Vec<_>>()
        };
        self.env.extend(group.env.clone());
        if !group.variable.is_empty() {
            let paths: Vec<String> = devices.iter().flat_map(paths).collect();
            self.env.insert(group.variable.clone(), paths.join(","));
        }
        for node in devices
            .iter()
            .flat_map(|device| &device.nodes)
            .chain(&group.shared)
        {
            if !self.nodes.contains(node) {
                self.nodes.push(node.clone());
            }
        }
        for name in devices.iter().flat_map(|device| &device.cdi) {
            if !self.cdi.contains(name) {
                self.cdi.push(name.clone());
            }
        }
        for mount in &group.mounts {
            if !self
                .mounts
                .iter()
                .any(|known| known.destination == mount.destination)
            {
                self.mounts.push(mount.clone());
            }
        }
    }
}

// === impl Fact ===

impl Fact {
    /// Parses a text: a number with or without a unit, `true` or `false`, or else a text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let (number, unit) = text.rsplit_once(' ').unwrap_or((text, ""));
        let per_second = unit.strip_suffix("/s").filter(|unit| unit.ends_with('B'));
        if unit.is_empty() || UNITS.contains(&per_second.unwrap_or(unit)) {
            if let Ok(number) = number.trim().parse() {
                return Self::Whole(number, unit.to_owned());
            }
            if let Some(number) = number
                .trim()
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite())
            {
                return Self::Number(number, unit.to_owned());
            }
        }
        text.parse()
            .map_or_else(|_| Self::Text(text.to_owned()), Self::Flag)
    }
}

/// `group`, or `before` if both are equal.
pub(crate) fn shared(
    group: Arc<DeviceGroup>,
    before: Option<&Arc<DeviceGroup>>,
) -> Arc<DeviceGroup> {
    match before {
        Some(before) if Arc::ptr_eq(before, &group) || **before == *group => Arc::clone(before),
        Some(_) | None => group,
    }
}

/// A device node with the same path inside and outside.
#[must_use]
pub fn node(path: PathBuf, permissions: &str) -> DeviceNode {
    DeviceNode {
        container_path: path.clone(),
        host_path: path,
        permissions: permissions.to_owned(),
    }
}

#[cfg(test)]
mod tests;
