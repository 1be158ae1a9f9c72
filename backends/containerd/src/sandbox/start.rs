//! Starts a stopped sandbox again, with the same id, tasks and addresses.
//!
//! The record is set to the phase `starting` first. If the daemon is killed from there on, the next one takes
//! the sandbox for broken, and a stop releases whatever was created.

use std::sync::Arc;

use switchyard_core::Result;
use switchyard_core::id::SandboxId;
use switchyard_core::object::SandboxDetails;
use switchyard_core::spec::SandboxSpec;

use super::{SandboxChange, SandboxEntry, wanted_namespaces};
use crate::base::crash_points::CrashPoint;
use crate::base::error::from_namespaces;
use crate::record::{HostPortsRecord, SandboxPhase};
use crate::sandbox::Sandboxes;

impl Sandboxes {
    pub(crate) async fn start_sandbox(
        &self,
        id: SandboxId,
        spec: &SandboxSpec,
    ) -> Result<SandboxDetails> {
        let stopped = self.table.get(id)?;
        let want = wanted_namespaces(spec, &stopped.record);
        want.check().map_err(from_namespaces)?;
        if spec.users.is_some() {
            self.node
                .check_userns(spec, &self.context.runtime(&spec.handler)?)
                .await?;
        }
        {
            let _turn = self.releases.lock(id).await;
            // Its journal stays if the disk was read-only when it was stopped.
            let has_journal = tokio::fs::try_exists(stopped.dirs.cni_journal())
                .await
                .unwrap_or(true);
            // As it is after a release that was under way.
            let now = self.table.get(id)?;
            if has_journal || !now.lifecycle.is_released() {
                // Or it was found stopped rather than stopped by us, or the rollback of a start failed.
                self.release_in_turn(id, Some(&now)).await?;
                // What is left to do behind the stop must not undo what follows.
                self.table.change(id, SandboxChange::Released);
            }
        }
        if stopped.record.infra {
            self.shims.wait_containerd_cleanup(&id.to_string()).await?;
        }
        let mut record = stopped.record.clone();
        let dirs = stopped.dirs.clone();
        record.boot.clone_from(&self.context.boot);
        record.host_ports = Some(HostPortsRecord::from_core(&spec.host_ports));
        let mut entry = SandboxEntry::new(record, dirs);
        entry.record.groups = self.claim_groups(id, &entry).await?;
        let started = async {
            self.record_sandbox(id, &entry.record, SandboxPhase::Starting)
                .await?;
            self.context.faults.reach(CrashPoint::SandboxStarting)?;
            self.bring_up_sandbox(id, spec, want, &mut entry).await
        };
        let started = started.await;
        let details = entry.details();
        self.table.lock().insert(id, Arc::new(entry));
        if let Err(error) = started {
            self.unreleased.add(id);
            if let Err(undo) = self.stop_sandbox(id).await {
                tracing::warn!(sandbox = %id, error = undo.report(), "the rollback of a failed sandbox start failed: the sandbox is released when it is started or removed");
            }
            return Err(error);
        }
        Ok(details)
    }
}
