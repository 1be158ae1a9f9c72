//! What there is: the newest look at the hardware, with what earlier looks saw.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Devices;
use crate::device::{Device, DeviceGroup, Health, Inventory, Reservation, device_of};
use crate::error::{Error, ErrorKind, Result};

/// As many devices of a group as are remembered that are there no more.
const VANISHED_MAX: usize = 1024;

/// Why a device is not well that was there once.
pub(super) const VANISHED: &str = "it is not there any more";

impl Devices {
    /// Puts down what there is. A device that was there before stays, unhealthy: a kubelet that is told of one less while it gives it out
    /// crashes.
    pub fn set_inventory(&mut self, seen: &Inventory) {
        let groups: Vec<DeviceGroup> = seen
            .groups
            .iter()
            .map(|group| {
                let before =
                    self.known.iter().flat_map(|known| &known.groups).find(|known| known.is_same(group));
                with_vanished(group, before.map_or(&[], |before| &before.devices))
            })
            .collect();
        self.places = Arc::new(places(&groups));
        self.known = Some(Arc::new(Inventory { groups }));
        self.rename_slots();
    }

    /// What a task gets that has these slots, as their devices are now.
    ///
    /// # Errors
    /// `Unavailable` before the hardware was looked at; `FailedPrecondition` for a device that is not there any more or not well: it may come
    /// back.
    pub fn reserve(&self, slots: &[String]) -> Result<Reservation> {
        let known = self.known.as_ref();
        let known =
            known.ok_or_else(|| Error::unavailable("the devices of the node are still being looked for"))?;
        known.reserve(slots).map_err(|error| {
            if error.kind() == ErrorKind::NotFound {
                Error::failed_precondition(error.report())
            } else {
                error
            }
        })
    }

    /// The id of the slot that a text names: an id of its own, or that by which an earlier version offered the device.
    pub(super) fn canonical(&self, slot: &str) -> String {
        if self.places.contains_key(slot) {
            return slot.to_owned();
        }
        let groups = self.known.iter().flat_map(|known| &known.groups);
        let mut devices = groups.flat_map(|group| group.devices.iter().map(move |device| (group, device)));
        let named = devices.find(|(_, device)| device.aliases.iter().any(|alias| alias == slot));
        named.and_then(|(group, device)| device.slots(group.shares).next()).unwrap_or_else(|| slot.to_owned())
    }

    /// Leases that were put down before there was a look at the hardware may bear old ids.
    fn rename_slots(&mut self) {
        let old = |slot: &String| !self.places.contains_key(slot) && self.canonical(slot) != *slot;
        let leases: Vec<_> = self.leases.iter().filter(|(_, lease)| lease.slots.iter().any(old)).collect();
        let leases: Vec<_> = leases.into_iter().map(|(token, lease)| (*token, lease.clone())).collect();
        for (token, lease) in leases {
            self.hold(token, lease);
        }
    }
}

/// A group with those devices that it has no more, as unhealthy ones.
fn with_vanished(group: &DeviceGroup, before: &[Device]) -> DeviceGroup {
    let mut devices: BTreeMap<&str, Device> =
        group.devices.iter().map(|device| (device.id.as_str(), device.clone())).collect();
    let gone = before.iter().filter(|device| !group.devices.iter().any(|now| now.id == device.id));
    for device in gone.take(VANISHED_MAX) {
        let health = Health::Unhealthy(VANISHED.to_owned());
        devices.insert(&device.id, Device { health, traffic: None, ..device.clone() });
    }
    let devices = devices.into_values().collect();
    DeviceGroup { devices, ..group.clone() }
}

/// Where each slot is found.
fn places(groups: &[DeviceGroup]) -> BTreeMap<String, (usize, usize)> {
    let mut places = BTreeMap::new();
    for (number, group) in groups.iter().enumerate() {
        for (at, device) in group.devices.iter().enumerate() {
            for slot in device.slots(group.shares) {
                debug_assert!(group.shares <= 1 || device_of(&slot) == device.id);
                places.entry(slot).or_insert((number, at));
            }
        }
    }
    places
}

impl DeviceGroup {
    fn is_same(&self, other: &Self) -> bool {
        (&self.vendor, &self.kind, &self.name) == (&other.vendor, &other.kind, &other.name)
    }
}
