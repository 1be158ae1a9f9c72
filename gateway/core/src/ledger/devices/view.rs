//! How an owner sees the devices: its own slots as they are, those of others as unhealthy.

use std::sync::Arc;

use super::Devices;
use crate::device::{Device, DeviceGroup, Health, Inventory};
use crate::id::Owner;

/// What is told while it is not known what was given out before. The same each time: whoever is told something else takes it for news.
const RECOVERING: &str = "the gateway is still recovering what its predecessor left";

/// What is told of a slot beyond what an owner may have.
const QUOTA: &str = "its owner may not have more of them";

impl Devices {
    /// The slots as an owner sees them, each as a device of its own; `None` until the hardware was looked at.
    ///
    /// An owner with a quota sees as many free slots as it may still have: the first ones, or, if it is not Kubernetes, the last, so that
    /// two owners seldom go for the same one.
    #[must_use]
    pub fn view(&self, owner: Owner) -> Option<Arc<Inventory>> {
        let known = self.known.as_ref()?;
        let groups = known.groups.iter().map(|group| self.view_of(owner, group)).collect();
        Some(Arc::new(Inventory { groups }))
    }

    fn view_of(&self, owner: Owner, group: &DeviceGroup) -> DeviceGroup {
        let mut left = group.quota.get(&owner).map(|quota| quota.saturating_sub(self.held_of(owner, group)));
        let mut devices: Vec<Device> = group
            .devices
            .iter()
            .flat_map(|device| device.slots(group.shares).map(move |slot| (device, slot)))
            .map(|(device, slot)| {
                let health = self.health(owner, device, &slot);
                let aliases = if group.shares <= 1 { device.aliases.clone() } else { Vec::new() };
                Device { id: slot, aliases, health, ..device.clone() }
            })
            .collect();
        let mut limit = |device: &mut Device| {
            let free = device.health == Health::Healthy && !self.is_held_by(owner, &device.id);
            let Some(left) = left.as_mut().filter(|_| free) else { return };
            match left.checked_sub(1) {
                Some(less) => *left = less,
                None => device.health = Health::Unhealthy(QUOTA.to_owned()),
            }
        };
        if owner == Owner::Kubernetes {
            devices.iter_mut().for_each(&mut limit);
        } else {
            devices.iter_mut().rev().for_each(&mut limit);
        }
        DeviceGroup { devices, ..group.clone() }
    }

    fn health(&self, owner: Owner, device: &Device, slot: &str) -> Health {
        if !self.whole {
            return Health::Unhealthy(RECOVERING.to_owned());
        }
        match (&device.health, self.foreign_holder(owner, slot)) {
            (health @ (Health::Unhealthy(_) | Health::Gone), _) => health.clone(),
            (Health::Healthy, Some(holder)) => Health::Unhealthy(format!("it is held by {}", holder.owner)),
            (Health::Healthy, None) => Health::Healthy,
        }
    }
}
