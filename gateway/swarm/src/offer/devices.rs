//! The devices that are offered to the scheduler: named generic resources whose kind is the group, or what the
//! configuration calls it, and whose value is the slot.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use switchyard_core::device::{DeviceGroup, Health, Inventory};

use crate::plan::AssignedDevice;

/// Maximum number of devices that are offered. Managers store them with every description of the node, in one
/// message of raft, which is limited to 1.5 MiB; a device takes up to 400 bytes.
pub(super) const OFFERED_MAX: usize = 1024;

/// The kinds that the configuration gives groups, by their [`default_kind`]. Several groups may have one kind: a slot has
/// its own id.
pub type DeviceKinds = BTreeMap<String, String>;

/// The devices that tasks of the swarm may have, of the swarm's own view of the node: a slot that another owner has is
/// unhealthy there, and so are those beyond the swarm's quota.
pub(super) fn free(inventory: &Inventory, kinds: &DeviceKinds) -> Vec<AssignedDevice> {
    let mut devices = Vec::new();
    for group in &inventory.groups {
        let kind = kind(group, kinds);
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

/// The kind of the generic resource that a group is.
fn kind(group: &DeviceGroup, kinds: &DeviceKinds) -> String {
    let DeviceGroup {
        vendor,
        kind,
        name,
        resource,
        ..
    } = group;
    let default = default_kind(resource, [vendor, kind, name]);
    kinds.get(&default).cloned().unwrap_or(default)
}

/// The kind of a group that the configuration gives none: its resource, or `vendor/type/name`. A resource has one slash, so
/// that no two groups have the same kind. Characters that `docker service create --generic-resource KIND=NUMBER` takes
/// for its own are written as `%` and two hexadecimal digits, and so are all others that are not plain.
#[must_use]
pub fn default_kind(resource: &str, name: [&str; 3]) -> String {
    if resource.is_empty() {
        name.map(plain).join("/")
    } else {
        resource.to_owned()
    }
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
    // Also under another kind, which its group had when it was assigned.
    let taken: BTreeSet<String> = assigned.iter().map(|device| device.id.clone()).collect();
    let mut all = assigned;
    let mut left_out = 0;
    for device in free {
        if taken.contains(&device.id) || all.contains(&device) {
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
        let none = DeviceKinds::new();
        let group = |vendor: &str, kind_of: &str, name: &str| {
            kind(&DeviceGroup::new(vendor, kind_of, name), &none)
        };
        assert_eq!(group("acme", "tpu", "v2"), "acme/tpu/v2");
        assert_eq!(group("a=b", "x,y%", "ü"), "a%3Db/x%2Cy%25/%C3%BC");
        let resource = "acme.com/tpu".to_owned();
        assert_eq!(
            kind(
                &DeviceGroup {
                    resource,
                    ..DeviceGroup::new("a", "b", "c")
                },
                &none
            ),
            "acme.com/tpu"
        );
    }

    #[test]
    fn group_has_the_kind_of_the_configuration() {
        let with_resource = |resource: &str| DeviceGroup {
            resource: resource.to_owned(),
            ..DeviceGroup::new("acme", "tpu", "v2")
        };
        let kinds = DeviceKinds::from(
            [
                ("nvidia.com/gpu", "NVIDIA-GPU"),
                ("acme/tpu/v2", "tpu"),
                ("acme.com/tpu", "tpu"),
            ]
            .map(|(of, kind)| (of.to_owned(), kind.to_owned())),
        );
        for (resource, expected) in [
            ("nvidia.com/gpu", "NVIDIA-GPU"),
            ("", "tpu"),
            ("acme.com/tpu", "tpu"),
            ("other.com/nic", "other.com/nic"),
        ] {
            assert_eq!(kind(&with_resource(resource), &kinds), expected);
        }
    }

    #[test]
    fn device_of_a_task_is_not_offered_again_under_the_new_kind_of_its_group() {
        let assigned = BTreeSet::from([device("acme.com/tpu", "a0")]);
        let free = vec![device("tpu", "a0"), device("tpu", "a1")];
        let (mut named, left_out) = offered(free, assigned);
        named.sort();
        let expected = [("acme.com/tpu", "a0"), ("tpu", "a1")];
        let expected = expected.map(|(kind, id)| (kind.to_owned(), id.to_owned()));
        assert_eq!((named, left_out), (expected.to_vec(), 0));
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
            free(
                &Inventory {
                    groups: vec![Arc::new(group)]
                },
                &DeviceKinds::new()
            ),
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
