//! What sandboxes hold of the node that others must not get: also those that were never finished, and those that cannot be read.

use std::collections::HashMap;

use switchyard_core::backend::Remnant;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::HostPorts;

use super::found::FoundSandbox;
use super::{RecoveryPlan, SandboxPresence};
use crate::backend::Inner;
use crate::fs::blocking;
use crate::record::HostPortsRecord;
use crate::sandbox::{SandboxEntry, ports_of_journal};

impl Inner {
    /// Completes a record that an earlier version wrote: the ports are those that were to be mapped.
    pub(super) async fn fill_in_host_ports(&self, id: SandboxId, found: &mut FoundSandbox) {
        let record = &mut found.entry.record;
        if record.host_ports.is_none() {
            record.host_ports = Some(HostPortsRecord::from_core(&self.mapped_ports(id).await));
        }
    }

    /// Notes the sandboxes that cannot be read: each holds what its network's journal says.
    pub(super) async fn add_unreadable(&self, owners: &HashMap<SandboxId, Owner>, plan: &mut RecoveryPlan) {
        for (id, owner) in owners {
            if matches!(plan.sandboxes.get(id), Some(SandboxPresence::Unreadable)) {
                let name = id.to_string();
                let host_ports = self.mapped_ports(*id).await;
                self.cleanup.unreleased.add(*id);
                plan.recovered.remnants.push(Remnant { id: *id, owner: *owner, name, host_ports });
            }
        }
    }

    async fn mapped_ports(&self, id: SandboxId) -> HostPorts {
        let journal = self.layout.sandbox(id).cni_journal();
        let read = blocking(move || ports_of_journal(&journal)).await;
        read.unwrap_or_else(|error| {
            tracing::warn!(sandbox.id = %id, error = error.report(), "it is not known which ports of the host a sandbox has");
            HostPorts::default()
        })
    }
}

/// What is held by a sandbox that was never finished, until it is cleared away; `None` if nobody knows whose it is.
pub(super) fn remnant(id: SandboxId, entry: &SandboxEntry) -> Option<Remnant> {
    let meta = entry.record.meta.to_core().ok()?;
    let host_ports = entry.record.host_ports.as_ref().map(HostPortsRecord::to_core).unwrap_or_default();
    Some(Remnant { id, owner: meta.owner, name: meta.name.clone(), host_ports })
}
