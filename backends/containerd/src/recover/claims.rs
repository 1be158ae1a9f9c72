//! Claims of objects on parts of the node, which nobody else may get: also of those whose creation was cut off, and of those
//! that cannot be read.

use std::collections::HashMap;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use switchyard_core::Result;
use switchyard_core::backend::{ClaimHolder, Remnant, UnreadableKind};
use switchyard_core::id::SandboxId;
use switchyard_core::spec::HostPorts;

use super::decide::{facts_of, unreadable};
use super::found::FoundSandbox;
use super::inventory::Snapshots;
use super::plan::{LeftAlone, RecoveryPlan};
use super::process_query::ProcessQuery;
use crate::base::fs::blocking;
use crate::network::kept_ports::KeptPorts;
use crate::network::ports_of_journal;
use crate::record::{HostPortsRecord, NetworkRecord, identity_of};
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

    /// Takes over the sockets by which a predecessor has kept ports.
    pub(super) async fn inherit_kept_ports(&self) {
        let settings = self.context.settings();
        self.network.kept_ports.inherit(&settings.logkeeper).await;
    }

    /// Keeps the ports again that a predecessor has forwarded to a sandbox.
    pub(super) async fn keep_ports(&self, id: SandboxId, entry: &SandboxEntry) {
        let record = &entry.record;
        let (Ok(owner), NetworkRecord::Pod) = (record.meta.owner(), &record.network) else {
            return;
        };
        let ports = record.host_ports.as_ref().map(HostPortsRecord::to_core);
        let ports = ports.unwrap_or_default().ports;
        if ports.is_empty() || !KeptPorts::are_kept_for(owner) {
            return;
        }
        // Of one that was stopped nothing is forwarded any more.
        let journal = entry.dirs.cni_journal();
        if tokio::fs::try_exists(journal).await.unwrap_or(false) {
            self.network.keep_ports(id, owner, ports).await;
        }
    }

    /// Reports the objects that are left alone, each with what it holds: what its identity says, the images below its
    /// snapshots, and of a sandbox without host ports those in the journal of its network; and with what containerd says
    /// of it.
    ///
    /// # Errors
    /// If containerd itself stops answering meanwhile, or its images cannot be read.
    pub(super) async fn add_unreadable(
        &self,
        containers: HashMap<String, Arc<api::Container>>,
        snapshots: &Snapshots,
        plan: &mut RecoveryPlan,
    ) -> Result<()> {
        let left_alone = std::mem::take(&mut plan.left_alone);
        if left_alone.is_empty() {
            return Ok(());
        }
        let queries = left_alone
            .iter()
            .map(|left| ProcessQuery::of_shim(&left.id));
        let processes = self.query_processes(queries.collect()).await?;
        // Without them, images that are in use could be removed.
        let images = self.storage.images.by_top_layer().await?;
        for LeftAlone { id, kind, reason } in left_alone {
            let container = containers.get(&id);
            let facts = container
                .map(|container| facts_of(container, processes.of(&id)))
                .unwrap_or_default();
            let mut identity = container
                .map(|container| identity_of(&container.labels, &container.extensions))
                .unwrap_or_default();
            let ports = &mut identity.claims.host_ports;
            match (kind, id.parse::<SandboxId>()) {
                (UnreadableKind::Sandbox, Ok(sandbox)) if ports.ports.is_empty() => {
                    *ports = self.mapped_ports(sandbox).await;
                }
                (UnreadableKind::Sandbox, _) => {}
                // A task may use any volume.
                (UnreadableKind::Task | UnreadableKind::Unknown, _) => {
                    self.storage.volumes.mark_unreadable(&id);
                }
            }
            if let Some(container) = container {
                let layers = snapshots.top_layers(container);
                let used = layers.filter_map(|layer| images.get(layer)).flatten();
                identity.claims.images = used.cloned().collect();
            }
            let projects = std::mem::take(&mut identity.projects);
            let held = unreadable(id, kind, identity, reason, facts);
            let ClaimHolder { owner, task, .. } = held.holder();
            self.storage.projects.hold(task, owner, &projects);
            tracing::error!(
                object = held.id,
                reason = held.reason,
                holds_all = !held.claims.is_complete,
                "{held} cannot be read: leaving it alone, and giving nothing to others that it holds"
            );
            plan.recovered.unreadable.push(held);
        }
        Ok(())
    }

    /// The host ports in the journal of a sandbox's network; none if the journal cannot be read, which is
    /// logged.
    async fn mapped_ports(&self, id: SandboxId) -> HostPorts {
        let journal = self.context.layout.sandbox(id).cni_journal();
        let read = blocking(move || ports_of_journal(&journal)).await;
        read.unwrap_or_else(|error| {
            tracing::warn!(
                sandbox = %id,
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
