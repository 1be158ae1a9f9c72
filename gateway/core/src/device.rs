//! Devices of the node that tasks may be given: what there is, in groups of like ones, and what a task gets that is given some.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::error::{Error, Result};
use crate::spec::DeviceNode;

/// The devices there are.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Inventory {
    /// In groups of like ones. An id is in one group alone.
    pub groups: Vec<DeviceGroup>,
}

/// What there is, as somebody keeps it up to date; `None` until it was looked for once. The newest counts.
pub type Inventories = watch::Receiver<Option<Arc<Inventory>>>;

/// Like devices.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceGroup {
    /// Who makes them.
    pub vendor: String,
    /// What they are, as `gpu`.
    pub kind: String,
    /// Their model.
    pub name: String,
    /// Facts about all of them, by name.
    pub attributes: BTreeMap<String, Fact>,
    /// The devices, by id in ascending order.
    pub devices: Vec<Device>,
    /// The variable that tells a task which of them it has; empty for none.
    pub variable: String,
    /// Nodes that a task with any of them gets besides.
    pub shared: Vec<DeviceNode>,
}

/// A device.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its name among all of the node's, the same after a restart.
    pub id: String,
    /// What a task gets that has it.
    pub node: DeviceNode,
    /// Whether it can be given to a task.
    pub health: Health,
    /// Its address on the PCI bus, as `0000:3b:00.0`, if it has one.
    pub pci_bus_id: Option<String>,
    /// What it has carried since the node has started, if the kernel counts that.
    pub traffic: Option<Traffic>,
}

/// Whether a device can be given to a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It can.
    Healthy,
    /// It cannot, for this reason.
    Unhealthy(String),
}

/// What a block device has carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
}

/// A fact about devices.
#[derive(Debug, Clone, PartialEq)]
pub enum Fact {
    /// A whole number, of this unit; empty for none.
    Whole(i64, String),
    /// Another number, of this unit; empty for none.
    Number(f64, String),
    /// Yes or no.
    Flag(bool),
    /// A text.
    Text(String),
}

/// What a task gets that is given devices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reservation {
    /// Variables.
    pub env: BTreeMap<String, String>,
    /// Nodes, each once.
    pub nodes: Vec<DeviceNode>,
}

/// Units that a fact may have.
const UNITS: [&str; 20] = [
    "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "kB", "KB", "MB", "GB", "TB", "PB", "EB", "MHz", "GHz", "mW",
    "W", "kW", "MW", "GW",
];

// === impl Inventory ===

impl Inventory {
    /// What a task gets that is given these devices. Nothing is kept of it: the same question has the same answer.
    ///
    /// # Errors
    /// `InvalidArgument` if none is named; `NotFound` for one that is not there (any more); `FailedPrecondition` for one that cannot be
    /// given now.
    pub fn reserve(&self, ids: &[String]) -> Result<Reservation> {
        if ids.is_empty() {
            return Err(Error::invalid("device_ids", "none is named"));
        }
        let wanted: BTreeSet<&String> = ids.iter().collect();
        let mut given = Reservation::default();
        let mut seen = BTreeSet::new();
        for group in &self.groups {
            let own: Vec<&Device> =
                group.devices.iter().filter(|device| wanted.contains(&device.id)).collect();
            if own.is_empty() {
                continue;
            }
            for device in &own {
                if let Health::Unhealthy(why) = &device.health {
                    let text = format!("device {} cannot be given to a task: {why}", device.id);
                    return Err(Error::failed_precondition(text));
                }
                seen.insert(&device.id);
            }
            if !group.variable.is_empty() {
                let paths: Vec<_> =
                    own.iter().map(|device| device.node.container_path.display().to_string()).collect();
                given.env.insert(group.variable.clone(), paths.join(","));
            }
            for node in own.iter().map(|device| &device.node).chain(&group.shared) {
                if !given.nodes.contains(node) {
                    given.nodes.push(node.clone());
                }
            }
        }
        match wanted.difference(&seen).next() {
            Some(id) => Err(Error::not_found(format!(
                "device {id} is not on this node, or not any more: does a group of devices.groups name it?"
            ))),
            None => Ok(given),
        }
    }
}

// === impl Fact ===

impl Fact {
    /// What a text says: a number with or without a unit, `true` or `false`, or else itself.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let text = text.trim();
        let (number, unit) = text.rsplit_once(' ').unwrap_or((text, ""));
        let per_second = unit.strip_suffix("/s").filter(|unit| unit.ends_with('B'));
        if unit.is_empty() || UNITS.contains(&per_second.unwrap_or(unit)) {
            if let Ok(number) = number.trim().parse() {
                return Self::Whole(number, unit.to_owned());
            }
            if let Some(number) = number.trim().parse().ok().filter(|number: &f64| number.is_finite()) {
                return Self::Number(number, unit.to_owned());
            }
        }
        text.parse().map_or_else(|_| Self::Text(text.to_owned()), Self::Flag)
    }
}

/// A device node that is inside as it is outside.
#[must_use]
pub fn node(path: PathBuf, permissions: &str) -> DeviceNode {
    DeviceNode { container_path: path.clone(), host_path: path, permissions: permissions.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn group(name: &str, paths: &[&str]) -> DeviceGroup {
        let device = |path: &&str| Device {
            id: (*path).to_owned(),
            node: node(PathBuf::from(*path), "rw"),
            health: Health::Healthy,
            pci_bus_id: None,
            traffic: None,
        };
        DeviceGroup {
            vendor: "acme".to_owned(),
            kind: "tpu".to_owned(),
            name: name.to_owned(),
            attributes: BTreeMap::new(),
            devices: paths.iter().map(device).collect(),
            variable: format!("{}_DEVICES", name.to_uppercase()),
            shared: vec![node("/dev/acmectl".into(), "rwm")],
        }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_reservation_is_the_same_each_time_and_has_everything_once() {
        let inventory =
            Inventory { groups: vec![group("one", &["/dev/a0", "/dev/a1"]), group("two", &["/dev/b0"])] };
        let asked = ids(&["/dev/b0", "/dev/a1", "/dev/a0", "/dev/a1"]);
        let given = inventory.reserve(&asked).unwrap();
        assert_eq!(inventory.reserve(&asked).unwrap(), given);
        let expected = [("ONE_DEVICES", "/dev/a0,/dev/a1"), ("TWO_DEVICES", "/dev/b0")];
        assert_eq!(given.env, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let nodes: Vec<_> = given.nodes.iter().map(|node| node.host_path.to_str().unwrap()).collect();
        assert_eq!(nodes, ["/dev/a0", "/dev/a1", "/dev/acmectl", "/dev/b0"]);
    }

    #[test]
    fn what_is_not_there_or_not_well_is_refused() {
        let mut inventory = Inventory { groups: vec![group("one", &["/dev/a0"])] };
        let refused =
            |inventory: &Inventory, asked: &[&str]| inventory.reserve(&ids(asked)).unwrap_err().kind();
        assert_eq!(refused(&inventory, &[]), ErrorKind::InvalidArgument);
        assert_eq!(refused(&inventory, &["/dev/a0", "/dev/a9"]), ErrorKind::NotFound);
        inventory.groups[0].devices[0].health = Health::Unhealthy("it burns".to_owned());
        assert_eq!(refused(&inventory, &["/dev/a0"]), ErrorKind::FailedPrecondition);
    }

    #[test]
    fn a_fact_is_what_its_text_says() {
        let check = |text: &str, expected: Fact| assert_eq!(Fact::parse(text), expected, "{text}");
        check("16 GiB", Fact::Whole(16, "GiB".to_owned()));
        check("1.5 GHz", Fact::Number(1.5, "GHz".to_owned()));
        check("900 GB/s", Fact::Whole(900, "GB/s".to_owned()));
        check("7", Fact::Whole(7, String::new()));
        check("true", Fact::Flag(true));
        for text in ["16 furlongs", "7 W/s", "v2", "", "NaN", "inf GiB"] {
            check(text, Fact::Text(text.to_owned()));
        }
    }
}
