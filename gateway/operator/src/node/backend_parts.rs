//! The parts of the backend, of recovery and of the ledger, as the gateway reports them.

use switchyard_core::backend::Condition as BackendCondition;
use switchyard_core::gateway::Gateway;
use tokio::sync::watch;

use crate::status::{Condition, Part};

/// The parts, in the order of display. Takes as long as the backend's own status.
pub(super) async fn read(
    gateway: &Gateway,
    recovery_error: &watch::Receiver<Option<String>>,
) -> Vec<Part> {
    let status = gateway.fresh_status().await;
    let mut parts = vec![
        Part::needed("runtime", condition(status.runtime, status.version)),
        // Not needed: pods with the host's network must be able to start without it, since they install
        // the network.
        Part::optional("network", condition(status.network, "configured".into())),
        // Not needed: a kubelet whose runtime is not ready stops and removes no containers, which would
        // free space.
        Part::optional(
            "disk",
            condition(status.disk, "can be written and has space".into()),
        ),
        Part::needed("recovery", recovery(gateway, recovery_error)),
        // Not needed: containers without devices can be created without it.
        Part::optional("devices", devices(gateway)),
    ];
    // Not needed: all handlers with another snapshotter work without those that do not answer.
    if status.snapshotters != BackendCondition::True {
        parts.push(Part::optional(
            "snapshotters",
            condition(status.snapshotters, String::new()),
        ));
    }
    parts
}

fn recovery(gateway: &Gateway, error: &watch::Receiver<Option<String>>) -> Condition {
    if gateway.is_recovered() {
        return Condition::Up("done".into());
    }
    let error = error.borrow().clone();
    Condition::Down(
        error.unwrap_or_else(|| "what a predecessor left is being recovered".to_owned()),
    )
}

/// The condition of device allocation.
fn devices(gateway: &Gateway) -> Condition {
    match (gateway.devices().is_recovered(), gateway.is_recovered()) {
        (true, _) => Condition::Up("can be given out".into()),
        (false, false) => Condition::Down("it is not known yet which were given out before".into()),
        (false, true) => Condition::Down(
            "the leases of before cannot be read, so that none is given out: see the log".into(),
        ),
    }
}

fn condition(backend: BackendCondition, detail: String) -> Condition {
    match backend {
        BackendCondition::True => Condition::Up(detail),
        BackendCondition::False { reason, message } => {
            Condition::Down(format!("{reason}: {message}"))
        }
    }
}
