//! A task that the gateway has and cannot read, as after a rollback (ADR 74): it runs on, and is left alone.

use std::sync::Arc;

use switchyard_core::backend::Unreadable;

use super::Worker;

impl Worker {
    /// Leaves the task alone if one of its objects cannot be read, until it is not assigned any more; returns whether that
    /// is so. Nothing is reported: its manager keeps the state that it knows, and gives the task no successor. Nothing of it
    /// is removed either: once a version that reads it runs, the task is taken up or removed as any other.
    pub(super) async fn hold(&mut self) -> bool {
        let found = self.shared.scope.sandboxes().unreadable();
        // Only before recovery, for which the agent waits.
        let Some(held) = found.ok().and_then(|found| unreadable_of(&self.id, &found)) else {
            return false;
        };
        let error = held.refusal(&format!("task {}", self.id));
        tracing::warn!(
            swarm_task = self.id,
            error = error.report(),
            "a task cannot be read: it is left as it is, and its manager is sent nothing about it"
        );
        self.task = None;
        // An error says that nobody can want anything any more.
        let _ = self.wanted.wait_for(|wanted| wanted.removed).await;
        true
    }
}

/// The first of these objects that belongs to a task: sandbox and task bear its id.
fn unreadable_of(id: &str, unreadable: &[Arc<Unreadable>]) -> Option<Arc<Unreadable>> {
    unreadable.iter().find(|held| held.name == id).cloned()
}

#[cfg(test)]
mod tests {
    use switchyard_core::backend::{HeldClaims, ObjectFacts, UnreadableKind};
    use switchyard_core::id::Owner;

    use super::*;

    #[test]
    fn task_is_held_by_an_object_that_bears_its_id_and_by_no_other() {
        let held = |name: &str| {
            Arc::new(Unreadable {
                id: format!("object of {name:?}"),
                kind: UnreadableKind::Unknown,
                owner: Some(Owner::Swarm),
                name: name.to_owned(),
                sandbox: None,
                reason: "of version 9".to_owned(),
                claims: HeldClaims::default(),
                facts: ObjectFacts::default(),
            })
        };
        let all = [held(""), held("t1"), held("t2")];
        let of = |id: &str| unreadable_of(id, &all).map(|held| held.id.clone());
        assert_eq!(of("t2").as_deref(), Some("object of \"t2\""));
        assert_eq!((of("t"), of("t3")), (None, None));
    }
}
