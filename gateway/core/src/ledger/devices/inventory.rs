//! The known devices: those of the newest hardware scan, and those of earlier scans that are gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Devices;
use super::positions::Positions;
use crate::device::{Device, DeviceGroup, Health, Inventory, Reservation, shared};
use crate::error::{Error, ErrorKind, Result};
use crate::id::SlotId;

/// The maximum number of remembered devices of a group that are gone.
const GONE_MAX: usize = 1024;

impl Devices {
    /// Takes over the result of a hardware scan. A device of an earlier scan that is missing now stays as
    /// [`Health::Gone`]: a kubelet crashes if its list of devices shrinks while it allocates one.
    ///
    /// An unchanged group is shared with the previous inventory.
    pub fn set_inventory(&mut self, seen: &Inventory) {
        let before = self.known.clone().unwrap_or_default();
        let groups = seen.groups.iter().map(|group| {
            let before = before.groups.iter().find(|known| known.is_same(group));
            with_gone(group, before)
        });
        let known = Inventory {
            groups: groups.collect(),
        };
        if self.known.is_some() && known.is_shared_with(&before) {
            return;
        }
        if !has_slots_of(&known, &before) {
            self.positions = Positions::of(&known.groups);
        }
        self.known = Some(Arc::new(known));
        self.rename_slots();
    }

    /// Returns the reservation of a task with these slots, with the devices as they are now.
    ///
    /// # Errors
    /// `Unavailable` before the hardware was scanned; `FailedPrecondition` for a device that is gone or
    /// unhealthy, since it may come back.
    pub fn reserve(&self, slots: &[SlotId]) -> Result<Reservation> {
        let known = self.known.as_ref();
        let known = known.ok_or_else(|| {
            Error::unavailable("the devices of the node have not been scanned yet")
        })?;
        let mut places: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        for slot in slots {
            match self.position(slot) {
                Some((group, device)) => drop(places.entry(group).or_default().insert(device)),
                // An id of an earlier version: only a search through all devices finds its device.
                None => return reserve_by_name(known, slots),
            }
        }
        let mut given = Reservation::default();
        for (group, devices) in places {
            let group = &known.groups[group];
            let devices: Vec<&Device> = devices
                .into_iter()
                .map(|device| &group.devices[device])
                .collect();
            given.extend(group, &devices)?;
        }
        Ok(given)
    }

    /// The resource of the slot's group, empty if it has none; `None` for an unknown slot.
    #[must_use]
    pub fn resource_of(&self, slot: &SlotId) -> Option<&str> {
        let (group, _) = self.position(slot)?;
        Some(&self.known.as_ref()?.groups.get(group)?.resource)
    }

    /// The indices in the known devices of the group and the device of a slot.
    pub(super) fn position(&self, slot: &SlotId) -> Option<(usize, usize)> {
        self.positions.find(&self.known.as_ref()?.groups, slot)
    }

    /// The present id of a slot: the same one, or that of the slot for which it is the id of an earlier
    /// version.
    pub(super) fn canonical(&self, slot: &SlotId) -> SlotId {
        if self.position(slot).is_some() {
            return slot.clone();
        }
        let groups = self.known.iter().flat_map(|known| &known.groups);
        let mut devices =
            groups.flat_map(|group| group.devices.iter().map(move |device| (group, device)));
        let named =
            devices.find(|(_, device)| device.aliases.iter().any(|alias| slot == alias.as_str()));
        named
            .and_then(|(group, device)| device.slots(group.shares).next())
            .unwrap_or_else(|| slot.clone())
    }

    /// The slots that a lease of `slot` holds now. Ids change: earlier versions used paths, a device gets a
    /// longer id when a second one of its kind appears, and the slots change with the number of shares of a
    /// device. If it is not clear which device `slot` was, all candidates are held.
    pub(super) fn held_slots(&self, slot: &SlotId) -> Vec<SlotId> {
        if self
            .device(slot)
            .is_some_and(|device| device.health != Health::Gone)
        {
            return vec![slot.clone()];
        }
        let devices = || {
            let groups = self.known.iter().flat_map(|known| &known.groups);
            groups.flat_map(|group| group.devices.iter().map(move |device| (group, device)))
        };
        let id = slot.device();
        let of = |(group, device): (&Arc<DeviceGroup>, &Device)| -> Vec<SlotId> {
            let same = device
                .slots(group.shares)
                .find(|other| other.number() == slot.number());
            same.map_or_else(|| device.slots(group.shares).collect(), |same| vec![same])
        };
        let known = devices().find(|(_, device)| device.id == id);
        let now: Vec<SlotId> = match known {
            Some((_, gone)) if gone.health == Health::Gone => devices()
                .find(|(_, device)| succeeds(device, gone))
                .map(of)
                .unwrap_or_default(),
            Some(known) => of(known),
            None => {
                let longer = |device: &Device| {
                    is_longer(&device.id, id)
                        || device.aliases.iter().any(|alias| slot == alias.as_str())
                };
                devices()
                    .filter(|(_, device)| longer(device))
                    .flat_map(of)
                    .collect()
            }
        };
        if now.is_empty() {
            vec![slot.clone()]
        } else {
            now
        }
    }

    /// Changes the slots of all leases to the present ids of their devices.
    fn rename_slots(&mut self) {
        let old = |slot: &SlotId| self.held_slots(slot) != std::slice::from_ref(slot);
        let leases: Vec<_> = self
            .leases
            .iter()
            .filter(|(_, lease)| lease.slots.iter().any(old))
            .collect();
        // Copied, because `record` changes the map.
        let leases: Vec<_> = leases
            .into_iter()
            .map(|(token, lease)| (*token, lease.clone()))
            .collect();
        for (token, lease) in leases {
            self.record(token, lease);
        }
    }
}

/// Returns whether `id` is `short` with a suffix that distinguishes devices of the same kind.
fn is_longer(id: &str, short: &str) -> bool {
    id.strip_prefix(short)
        .is_some_and(|rest| rest.starts_with('-'))
}

/// Returns whether `device` is the device `gone` under a new id: both have the same path, and one of the ids
/// is derived from that path, or they differ only in the suffix that distinguishes devices of the same kind.
fn succeeds(device: &Device, gone: &Device) -> bool {
    let path_of = |device: &Device| device.nodes.first().map(|node| node.host_path.clone());
    let by_path = |device: &Device| {
        let path = path_of(device)
            .map(|path| path.display().to_string())
            .unwrap_or_default();
        path.trim_start_matches("/dev/")
            .trim_start_matches('/')
            .replace('/', "_")
            == device.id
    };
    device.health != Health::Gone
        && path_of(device).is_some()
        && path_of(device) == path_of(gone)
        && (is_longer(&device.id, &gone.id)
            || is_longer(&gone.id, &device.id)
            || by_path(device)
            || by_path(gone))
}

/// Returns the reservation of a task with these devices, if some are named by ids of an earlier version.
fn reserve_by_name(known: &Inventory, slots: &[SlotId]) -> Result<Reservation> {
    known.reserve(slots).map_err(|error| {
        // A device that is gone may come back: the request is valid, and may be retried.
        if error.kind() == ErrorKind::NotFound {
            Error::failed_precondition(error.report())
        } else {
            error
        }
    })
}

/// A group with the devices that it has no more, as gone. Shared with the scan, or with the previous
/// inventory, where equal.
fn with_gone(group: &Arc<DeviceGroup>, before: Option<&Arc<DeviceGroup>>) -> Arc<DeviceGroup> {
    let is_sorted = group.devices.is_sorted_by(|one, next| one.id < next.id);
    if is_sorted && before.is_none_or(|before| has_ids_of(before, group)) {
        return shared(Arc::clone(group), before);
    }
    let seen: BTreeSet<&str> = group
        .devices
        .iter()
        .map(|device| device.id.as_str())
        .collect();
    let known = before.iter().flat_map(|before| &before.devices);
    let gone: Vec<&Device> = known
        .filter(|device| !seen.contains(device.id.as_str()))
        .take(GONE_MAX)
        .collect();
    if is_sorted && gone.is_empty() {
        return shared(Arc::clone(group), before);
    }
    let gone = gone.into_iter().map(|device| Device {
        health: Health::Gone,
        traffic: None,
        ..device.clone()
    });
    let all = group.devices.iter().cloned().chain(gone);
    let devices: BTreeMap<String, Device> = all.map(|device| (device.id.clone(), device)).collect();
    let devices = devices.into_values().collect();
    shared(
        Arc::new(DeviceGroup {
            devices,
            ..DeviceGroup::clone(group)
        }),
        before,
    )
}

/// Returns whether both have the same slots in the same positions.
fn has_slots_of(one: &Inventory, other: &Inventory) -> bool {
    let same = |(one, other): (&Arc<DeviceGroup>, &Arc<DeviceGroup>)| {
        one.shares == other.shares && has_ids_of(one, other)
    };
    one.groups.len() == other.groups.len() && one.groups.iter().zip(&other.groups).all(same)
}

/// Returns whether both have devices with the same ids in the same order.
fn has_ids_of(one: &Arc<DeviceGroup>, other: &Arc<DeviceGroup>) -> bool {
    let same = |(one, other): (&Device, &Device)| one.id == other.id;
    Arc::ptr_eq(one, other)
        || one.devices.len() == other.devices.len()
            && one.devices.iter().zip(&other.devices).all(same)
}

impl DeviceGroup {
    fn is_same(&self, other: &Self) -> bool {
        (&self.vendor, &self.kind, &self.name) == (&other.vendor, &other.kind, &other.name)
    }
}
