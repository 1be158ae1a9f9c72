//! Devices that a task names by itself, by the path of a node or by a name of the Container Device Interface, with no lease of them.

use std::path::Path;

use super::{Devices, Lease, LeaseState, Reason, Refusal, Resource};
use crate::device::Device;
use crate::id::{LeaseToken, Owner, SandboxId};
use crate::spec::LeaseClaim;

/// What a task names.
#[derive(Debug, Clone, Copy)]
pub struct Named<'a> {
    /// Nodes of the host.
    pub nodes: &'a [&'a Path],
    /// Names of the Container Device Interface.
    pub cdi: &'a [String],
}

impl Devices {
    /// Leases what a task names to the sandbox that it is made in, each device under a token of its own, unless that sandbox has the device
    /// already. What is in no group of the node's devices is nobody's, and is not leased.
    ///
    /// # Errors
    /// [`Reason::Held`] for a device of which all slots are somebody else's. Nothing has changed then.
    pub fn lease_named(
        &mut self,
        owner: Owner,
        named: Named<'_>,
        (sandbox, name): (SandboxId, &str),
    ) -> Result<Vec<LeaseClaim>, Refusal> {
        let mut claims = Vec::new();
        let wanted: Vec<Vec<String>> = self.slots_of_named(named);
        for slots in wanted {
            if slots.iter().any(|slot| self.is_in(slot, sandbox)) {
                continue;
            }
            let held = |slot: &String| {
                self.foreign_holder(owner, slot).or_else(|| self.other_sandbox(slot, sandbox))
            };
            match slots.iter().find(|slot| held(slot).is_none()) {
                Some(slot) => claims.push(LeaseClaim {
                    token: LeaseToken::random(),
                    slots: vec![slot.clone()],
                    named: true,
                }),
                None => {
                    let Some(slot) = slots.first() else { continue };
                    let (resource, holder) = (Resource::Slot(slot.clone()), held(slot).map(Box::new));
                    return Err(Refusal { owner, resource, reason: Reason::Held, holder });
                }
            }
        }
        for claim in &claims {
            let lease = Lease::bound(owner, claim.slots.clone(), sandbox, name.to_owned());
            self.insert(claim.token, lease);
        }
        Ok(claims)
    }

    /// The slots of each device that is named, once.
    fn slots_of_named(&self, named: Named<'_>) -> Vec<Vec<String>> {
        let groups = self.known.iter().flat_map(|known| &known.groups);
        let devices = groups.flat_map(|group| group.devices.iter().map(move |device| (group, device)));
        let wanted = devices.filter(|(_, device)| named.has(device));
        wanted.map(|(group, device)| device.slots(group.shares).collect()).collect()
    }

    fn is_in(&self, slot: &str, this: SandboxId) -> bool {
        let mut leases = self.on_slot(slot);
        leases.any(|(_, lease)| matches!(lease.state, LeaseState::Bound { sandbox, .. } if sandbox == this))
    }
}

// === impl Named ===

impl Named<'_> {
    fn has(&self, device: &Device) -> bool {
        let is_path = |path: &Path| self.nodes.contains(&path);
        device.nodes.iter().any(|node| is_path(&node.host_path))
            || device.aliases.iter().any(|alias| is_path(Path::new(alias)))
            || device.cdi.iter().any(|name| self.cdi.contains(name))
    }
}
