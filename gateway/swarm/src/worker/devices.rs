//! The devices of a task that the scheduler has chosen: leased before the task is created, and given up if it is not.

use std::time::Duration;

use switchyard_core::id::{InvalidSlotId, SlotId};
use switchyard_core::spec::{LeaseClaim, TaskSpec};
use switchyard_core::{Error, ErrorKind, Result};

use super::Worker;
use crate::plan::AssignedDevice;

/// Time for which a try waits for an earlier task that still has one of the devices.
const RELEASE_LIMIT: Duration = Duration::from_secs(10);

impl Worker {
    /// Leases devices of the node, and adds to a task what it gets with them. A device that an earlier try has leased
    /// already, also one of before a restart of the daemon, keeps its lease.
    ///
    /// # Errors
    /// `FailedPrecondition`, naming the holder if there is one, for a device that another owner has, that is
    /// unhealthy or that the node does not have (any more); `DeadlineExceeded` if an earlier task of the swarm does
    /// not end; `Unavailable` before the devices of the node are known.
    pub(super) async fn lease_devices(
        &mut self,
        task: &mut TaskSpec,
        devices: &[AssignedDevice],
    ) -> Result<()> {
        if devices.is_empty() {
            return Ok(());
        }
        let scope = &self.shared.scope;
        let slots = devices.iter().map(|device| device.id.parse());
        let slots: Vec<SlotId> = slots
            .collect::<Result<_, InvalidSlotId>>()
            .map_err(|fault| not_had(fault.into()))?;
        let leased = scope.devices().lease(&slots).await.map_err(not_had)?;
        self.leases = vec![LeaseClaim::new(leased.token)];
        scope
            .devices()
            .wait_until_free(&slots, RELEASE_LIMIT)
            .await?;
        leased.reservation.add_to(task);
        task.leases.clone_from(&self.leases);
        Ok(())
    }

    /// Gives up the leases with which no task was created. Idempotent.
    pub(super) fn give_up_leases(&self) {
        self.shared.scope.devices().start_failed(&self.leases);
    }
}

/// The error for devices that cannot be leased. One that is not found is no image, which would be pulled again.
fn not_had(error: Error) -> Error {
    let field = "assigned_generic_resources";
    if error.kind() == ErrorKind::NotFound {
        return Error::failed_precondition(format!("{field}: {}", error.status_text()));
    }
    error.context(field)
}
