//! Host ports that sandboxes claim and that no other sandbox may get: also of sandboxes whose creation was
//! cut off, and of those that cannot be read.

use std::collections::HashMap;

use switchyard_core::backend::Remnant;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::HostPorts;

use super::found::FoundSandbox;
use super::plan::{RecoveryPlan, SandboxPresence};
use crate::base::fs::blocking;
use crate::network::ports_of_journal;
use crate::record::HostPortsRecord;
use crate::recover::Recovery;
use crate::sandbox::SandboxEntry;

impl Recovery {
    /// Completes a record that an earlier version wrote without host ports: they are those in the journal of
    /// its network.
    pub(super) async fn fill_in_host_ports(&self, id: SandboxId, found: &mut FoundSandbox) {
        let record = &mut found.entry.record;
        if record.host_ports.is_none() {
            record.host_ports = Some(HostPortsRecord::from_core(&self.mapped_ports(id).await));
        }
    }

    /// Reports sandboxes that cannot be read as remnants, each with the host ports in the journal of its
    /// network.
    pub(super) async fn add_unreadable(
        &self,
        owners: &HashMap<SandboxId, Owner>,
        plan: &mut RecoveryPlan,
    ) {
        for (id, owner) in owners {
            if matches!(plan.sandboxes.get(id), Some(SandboxPresence::Unreadable)) {
                let name = id.to_string();
                let host_ports = self.mapped_ports(*id).await;
                self.sandboxes.unreleased.add(*id);
                plan.recovered.remnants.push(Remnant {
                    id: *id,
                    owner: *owner,
                    name,
                    host_ports,
                });
            }
        }
    }

    /// The host ports in the journal of a sandbox's network; none if the journal cannot be read, which is
    /// logged.
    async fn mapped_ports(&self, id: SandboxId) -> HostPorts {
        let journal = self.context.layout.sandbox(id).cni_journal();
        let read = blocking(move || ports_of_journal(&journal)).await;
        read.unwrap_or_else(|error| {
            tracing::warn!(
                sandbox.id = %id,
                error = error.report(),
                "cannot read which host ports a sandbox has: other sandboxes may be given the same"
            );
            HostPorts::default()
        })
    }
}

/// Returns the claims of a sandbox whose creation was cut off, until it has been removed; `None` if its
/// record does not contain its owner.
pub(super) fn remnant(id: SandboxId, entry: &SandboxEntry) -> Option<Remnant> {
    let meta = entry.record.meta.to_core().ok()?;
    let host_ports = entry
        .record
        .host_ports
        .as_ref()
        .map(HostPortsRecord::to_core)
        .unwrap_or_default();
    Some(Remnant {
        id,
        owner: meta.owner,
        name: meta.name.clone(),
        host_ports,
    })
}
