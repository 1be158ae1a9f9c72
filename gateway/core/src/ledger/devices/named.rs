//! Devices that a task names directly, by the path of a node or by a CDI name, without a lease.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::{Devices, Lease, LeaseState, Refusal, RefusalReason};
use crate::device::{Device, DeviceGroup, Health};
use crate::id::{LeaseToken, Owner, SandboxId, SlotId};
use crate::spec::LeaseClaim;

/// The devices that a task names.
#[derive(Debug, Clone, Copy)]
pub struct DeviceNames<'a> {
    /// Host nodes, by the paths in their group.
    pub nodes: &'a [&'a Path],
    /// CDI names.
    pub cdi: &'a [String],
}

impl Devices {
    /// Leases the devices that a task names to its sandbox, each device under a token of its own; for a
    /// device that the sandbox has already, the claim refers to the existing lease. Devices that are in no
    /// group of the node, and nodes common to several devices, are not leased.
    ///
    /// # Errors
    /// [`RefusalReason::Held`] for a device all of whose slots are held by others. Nothing has changed then.
    pub fn lease_named(
        &mut self,
        owner: Owner,
        named: DeviceNames<'_>,
        (sandbox, name): (SandboxId, &str),
    ) -> Result<Vec<LeaseClaim>, Refusal> {
        let mut claims = Vec::new();
        let mut fresh = Vec::new();
        for slots in self.slots_of_named(named) {
            if let Some(claim) = slots.iter().find_map(|slot| self.claim_in(slot, sandbox)) {
                claims.push(claim);
                continue;
            }
            let free = |slot: &&SlotId| {
                self.check_free(owner, std::slice::from_ref(*slot), sandbox)
                    .is_ok()
            };
            match slots.iter().find(free) {
                Some(slot) => {
                    let token = LeaseToken::random();
                    fresh.push(LeaseClaim {
                        token,
                        slots: vec![slot.clone()],
                        named: true,
                    });
                }
                None => self.check_free(owner, &slots, sandbox)?,
            }
        }
        for claim in &fresh {
            let lease = Lease::bound(owner, claim.slots.clone(), sandbox, name.to_owned());
            self.insert(
                claim.token,
                Lease {
                    named: true,
                    ..lease
                },
            );
        }
        claims.append(&mut fresh);
        Ok(claims)
    }

    /// Binds to a sandbox again what one of its tasks was created with: under the lease, or, if that is not
    /// known any more, by its slots. Idempotent.
    ///
    /// # Errors
    /// [`RefusalReason::Held`] if another holder has one of the slots. Nothing has changed then.
    pub fn reclaim(
        &mut self,
        owner: Owner,
        claim: &LeaseClaim,
        (sandbox, name): (SandboxId, String),
    ) -> Result<(), Refusal> {
        match self.bind(owner, claim.token, sandbox, &name) {
            Err(refusal) if refusal.reason == RefusalReason::Lost => {}
            other => return other.map(drop),
        }
        self.check_free(owner, &claim.slots, sandbox)?;
        let lease = Lease::bound(owner, claim.slots.clone(), sandbox, name);
        self.record(
            claim.token,
            Lease {
                named: claim.named,
                ..lease
            },
        );
        Ok(())
    }

    /// The leases that are bound to a sandbox.
    #[must_use]
    pub fn of_sandbox(&self, this: SandboxId) -> Vec<LeaseToken> {
        let bound = |lease: &Lease| matches!(lease.state, LeaseState::Bound { sandbox, .. } if sandbox == this);
        self.leases
            .iter()
            .filter(|(_, lease)| bound(lease))
            .map(|(token, _)| *token)
            .collect()
    }

    /// The slots of each named device, each device once.
    fn slots_of_named(&self, named: DeviceNames<'_>) -> Vec<Vec<SlotId>> {
        let groups = || self.known.iter().flat_map(|known| &known.groups);
        let present: Vec<(&Arc<DeviceGroup>, &Device)> = groups()
            .flat_map(|group| group.devices.iter().map(move |device| (group, device)))
            .filter(|(_, device)| device.health != Health::Gone)
            .collect();
        let mut found: BTreeMap<&str, Vec<SlotId>> = BTreeMap::new();
        for path in named.nodes {
            let having: Vec<_> = present
                .iter()
                .filter(|(_, device)| is_at(device, path))
                .collect();
            let healthy: Vec<_> = having
                .iter()
                .filter(|(_, device)| device.health == Health::Healthy)
                .collect();
            // A node of several devices, such as a control device, belongs to none of them alone.
            let one = match (healthy.as_slice(), having.as_slice()) {
                ([one], _) => **one,
                ([], [one, ..]) => *one,
                ([], []) | ([_, _, ..], _) => continue,
            };
            found.insert(&one.1.id, one.1.slots(one.0.shares).collect());
        }
        for (group, device) in present
            .iter()
            .filter(|(_, device)| is_named(device, named.cdi))
        {
            found.insert(&device.id, device.slots(group.shares).collect());
        }
        found.into_values().collect()
    }

    /// The claim of the lease under which a sandbox has a slot.
    pub(super) fn claim_in(&self, slot: &SlotId, this: SandboxId) -> Option<LeaseClaim> {
        let bound = |lease: &Lease| matches!(lease.state, LeaseState::Bound { sandbox, .. } if sandbox == this);
        let (token, lease) = self.on_slot(slot).find(|(_, lease)| bound(lease))?;
        Some(LeaseClaim {
            token,
            slots: lease.slots.clone(),
            named: lease.named,
        })
    }
}

/// Returns whether a device has the node with this path.
fn is_at(device: &Device, path: &Path) -> bool {
    device.nodes.iter().any(|node| node.host_path == path)
        || device.aliases.iter().any(|alias| Path::new(alias) == path)
}

/// Returns whether one of these names is a name of the device, or the `all` name of its kind.
fn is_named(device: &Device, names: &[String]) -> bool {
    let all = |name: &String| {
        name.split_once('=')
            .is_some_and(|(kind, _)| names.contains(&format!("{kind}=all")))
    };
    device
        .cdi
        .iter()
        .any(|name| names.contains(name) || all(name))
        || device.aliases.iter().any(|alias| names.contains(alias))
}
