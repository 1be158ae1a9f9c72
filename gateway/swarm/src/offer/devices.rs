//! The devices that are offered to the scheduler: named generic resources whose kind is the group and whose
//! value is the slot.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use switchyard_core::device::{DeviceGroup, Health, Inventory};

use crate::plan::AssignedDevice;

/// Maximum number of devices that are offered. Managers store them with every description of the node, in one
/// message of raft, which is limited to 1.5 MiB; a device takes up to 400 bytes.
pub(super) const OFFERED_MAX: usize = 1024;

/// The devices that tasks of the swarm may have, of the swarm's own view of the node: a slot that another owner has is
/// unhealthy there, and so are those beyond the swarm's quota.
pub(super) fn free(inventory: &Inventory) -> Vec<AssignedDevice> {
    let mut devices = Vec::new();
    for group in &inventory.groups {
        let kind = kind(group);
        // The devices of a view are slots.
        let healthy = group
            .devices
            .iter()
            .filter(|device| device.health == Health::Healthy);
        devices.extend(healthy.map(|slot| AssignedDevice {
            kind: kind.clone(),
            id: slot.id.clone(),
        }));
    }
    devices
}

/// The kind of the generic resource that a group is: its resource, or `vendor/type/name`. A resource has one slash, so
/// that no two groups have the same kind. Characters that `docker service create --generic-resource KIND=NUMBER` takes
/// for its own are written as `%` and two hexadecimal digits, and so are all others that are not plain.
pub(super) fn kind(group: &DeviceGroup) -> String {
    if !group.resource.is_empty() {
        return group.resource.clone();
    }
    [&group.vendor, &group.kind, &group.name]
        .map(|part| plain(part))
        .join("/")
}

fn plain(part: &str) -> String {
    let mut written = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
            written.push(char::from(byte));
        } else {
            // A text can always be written to.
            let _ = write!(written, "%{byte:02X}");
        }
    }
    written
}

/// The devices that are offered, as kinds and values: those of tasks of the swarm, and as many of the free ones as
/// there may be. A scheduler takes the first ones; as kubelets do so too, these are the last here. Also returns how
/// many are left out.
pub(super) fn offered(
    free: impl IntoIterator<Item = AssignedDevice>,
    assigned: BTreeSet<AssignedDevice>,
) -> (Vec<(String, String)>, usize) {
    let mut all = assigned;
    let mut left_out = 0;
    for device in free {
        if all.contains(&device) {
            continue;
        }
        if all.len() < OFFERED_MAX {
            all.insert(device);
        } else {
            left_out += 1;
        }
    }
    // Only a manager that assigns what was not offered exceeds the limit by itself.
    left_out += all.len().saturating_sub(OFFERED_MAX);
    let named = all
        .into_iter()
        .rev()
        .take(OFFERED_MAX)
        .map(|AssignedDevice { kind, id }| (kind, id));
    (named.collect(), left_out)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use switchyard_core::device::Device;

    use super::*;

    fn device(kind: &str, id: &str) -> AssignedDevice {
        AssignedDevice {
            kind: kind.to_owned(),
            id: id.to_owned(),
        }
    }

    #[test]
    fn kinds_are_distinct_words_that_the_docker_client_takes() {
        let group = |vendor: &str, kind_of: &str, name: &str| {
            kind(&DeviceGroup::new(vendor, kind_of, name))
        };
        assert_eq!(group("acme", "tpu", "v2"), "acme/tpu/v2");
        assert_eq!(group("a=b", "x,y%", "ü"), "a%3Db/x%2Cy%25/%C3%BC");
        let resource = "acme.com/tpu".to_owned();
        assert_eq!(
            kind(&DeviceGroup {
                resource,
                ..DeviceGroup::new("a", "b", "c")
            }),
            "acme.com/tpu"
        );
    }

    #[test]
    fn only_healthy_slots_are_free() {
        let sick = Health::Unhealthy("it is held by nomad".to_owned());
        let devices = vec![
            Device::without_nodes("a0".to_owned()),
            Device {
                health: sick,
                ..Device::without_nodes("a1".to_owned())
            },
            Device {
                health: Health::Gone,
                ..Device::without_nodes("a2".to_owned())
            },
        ];
        let group = DeviceGroup {
            devices,
            ..DeviceGroup::new("acme", "tpu", "v2")
        };
        assert_eq!(
            free(&Inventory {
                groups: vec![Arc::new(group)]
            }),
            [device("acme/tpu/v2", "a0")]
        );
    }

    #[test]
    fn devices_of_tasks_are_always_offered_and_the_rest_up_to_a_limit() {
        let assigned = || BTreeSet::from([device("k", "held"), device("k", "a1")]);
        let (named, left_out) = offered(vec![device("k", "a0"), device("k", "a1")], assigned());
        let ids: Vec<&str> = named.iter().map(|(_, id)| id.as_str()).collect();
        assert_eq!((ids, left_out), (vec!["held", "a1", "a0"], 0));
        let many = (0..OFFERED_MAX).map(|number| device("k", &format!("b{number:04}")));
        let (named, left_out) = offered(many, assigned());
        assert_eq!((named.len(), left_out), (OFFERED_MAX, 2));
        assert!(
            assigned()
                .into_iter()
                .all(|device| named.contains(&(device.kind, device.id)))
        );
        // A manager that assigns everything.
        let many = (0..OFFERED_MAX + 5).map(|number| device("k", &format!("b{number:04}")));
        let (named, left_out) = offered(Vec::new(), many.collect());
        assert_eq!((named.len(), left_out), (OFFERED_MAX, 5));
    }
}
