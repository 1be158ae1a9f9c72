//! The parts of the backend, of recovery and of the ledger, as the gateway reports them.

use std::sync::Arc;

use switchyard_core::backend::{Condition as BackendCondition, Unreadable};
use switchyard_core::gateway::Gateway;
use tokio::sync::watch;

use crate::status::{Condition, Part};

/// Objects that cannot be read in the description of the part.
const UNREADABLE_SHOWN: usize = 3;

/// The parts, in the order of display. Takes as long as the backend's own status.
pub(super) async fn read(
    gateway: &Gateway,
    recovery_error: &watch::Receiver<Option<String>>,
) -> Vec<Part> {
    let status = gateway.fresh_status().await;
    let mut parts = vec![Part::needed(
        "runtime",
        condition(status.runtime, status.version),
    )];
    // Not needed: pods with the host's network must be able to start without it, since they install the network. A node
    // on which nobody uses it may have none.
    if status.network == BackendCondition::True || gateway.has_network_user() {
        parts.push(Part::optional(
            "network",
            condition(status.network, "configured".into()),
        ));
    }
    parts.extend([
        // Not needed: a kubelet whose runtime is not ready stops and removes no containers, which would
        // free space.
        Part::optional(
            "disk",
            condition(status.disk, "can be written and has space".into()),
        ),
        Part::needed("recovery", recovery(gateway, recovery_error)),
        // Not needed: containers without devices can be created without it.
        Part::optional("devices", devices(gateway)),
    ]);
    // Needed, so that a roll-out stops; no orchestrator takes the node for down because of it.
    parts.extend(objects(&gateway.unreadable()).map(|down| Part::needed("objects", down)));
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

/// The condition of the objects; `None` if all can be read.
fn objects(unreadable: &[Arc<Unreadable>]) -> Option<Condition> {
    if unreadable.is_empty() {
        return None;
    }
    let shown = unreadable.iter().take(UNREADABLE_SHOWN);
    let mut texts: Vec<_> = shown
        .map(|held| format!("{held}: {}", held.reason))
        .collect();
    if let Some(more @ 1..) = unreadable.len().checked_sub(UNREADABLE_SHOWN) {
        texts.push(format!("and {more} more, which `switchyard ps` lists"));
    }
    Some(Condition::Down(format!(
        "what cannot be read is left alone, and nothing that it holds is given out: {}",
        texts.join("; ")
    )))
}

/// The condition of device allocation.
fn devices(gateway: &Gateway) -> Condition {
    if gateway.devices().is_withheld() {
        let why = "an object that cannot be read may hold any of them, so that none is given out";
        return Condition::Down(why.into());
    }
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

#[cfg(test)]
mod tests {
    use switchyard_core::backend::{HeldClaims, ObjectFacts, UnreadableKind};
    use switchyard_core::id::Owner;

    use super::*;

    #[test]
    fn objects_that_cannot_be_read_are_named_and_many_are_counted() {
        let held = Arc::new(Unreadable {
            id: "ab".repeat(32),
            kind: UnreadableKind::Task,
            owner: Some(Owner::Nomad),
            name: "a/web/1".to_owned(),
            sandbox: None,
            reason: "of version 9".to_owned(),
            claims: HeldClaims::default(),
            facts: ObjectFacts::default(),
        });
        assert_eq!(objects(&[]), None);
        let text = |count: usize| match objects(&vec![Arc::clone(&held); count]) {
            Some(Condition::Down(text)) => text,
            other => panic!("{other:?}"),
        };
        let one = "task abababababab of nomad (a/web/1): of version 9";
        assert!(text(1).ends_with(&format!(": {one}")), "{}", text(1));
        assert!(text(3).ends_with(one), "{}", text(3));
        assert!(text(5).contains("and 2 more"), "{}", text(5));
    }
}
