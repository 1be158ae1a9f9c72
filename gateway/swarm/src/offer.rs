//! What of the node is offered to the scheduler of a swarm.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_core::gateway::Scope;
use switchyard_core::spec::Reserved;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::life::State;
use crate::session::description::NodeFacts;

/// How often it is looked at what other owners reserve: managers are told of a change every ten seconds at most.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// The tasks of a node that are not known to have ended, with what they reserve.
#[derive(Debug, Default)]
pub(crate) struct Reservations(BTreeMap<String, Reserved>);

// === impl Reservations ===

impl Reservations {
    /// A task is assigned. One that has ended, or is to end, reserves nothing; after a restart the manager lists those too.
    pub(crate) fn put(&mut self, task: &swarm::Task) {
        let has_ended =
            task.status.as_ref().is_some_and(|status| State::from_wire(status.state).is_terminal());
        if has_ended || State::from_wire(task.desired_state) >= State::Shutdown {
            return;
        }
        let resources = task.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let reserved = resources.and_then(|resources| resources.reservations.as_ref());
        let Some(reserved) = reserved else { return };
        let amount = Reserved {
            cpu_milli: u64::try_from(reserved.nano_cpus).unwrap_or(0).div_ceil(1_000_000),
            memory_bytes: u64::try_from(reserved.memory_bytes).unwrap_or(0),
        };
        self.0.insert(task.id.clone(), amount);
    }

    /// A task has ended, or is not assigned any more.
    pub(crate) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }

    /// What all of them reserve.
    pub(crate) fn sum(&self) -> Reserved {
        self.0.values().fold(Reserved::default(), |sum, reserved| sum.plus(*reserved))
    }
}

/// The facts with the processors and memory that tasks of the swarm may have: those that no other owner has reserved,
/// but never less than the tasks reserve that are assigned here. A manager ends tasks that do not fit the node any more,
/// whoever has taken the place.
pub(crate) fn offered(
    facts: &NodeFacts,
    capacity: Reserved,
    others: Reserved,
    assigned: Reserved,
) -> NodeFacts {
    let free = capacity.minus(others);
    let amount = |free: u64, assigned: u64, factor: u64| {
        i64::try_from(free.max(assigned).saturating_mul(factor)).unwrap_or(i64::MAX)
    };
    NodeFacts {
        nano_cpus: amount(free.cpu_milli, assigned.cpu_milli, 1_000_000),
        memory_bytes: amount(free.memory_bytes, assigned.memory_bytes, 1),
        ..facts.clone()
    }
}

/// Keeps what managers are told up to date, until nobody listens any more. Cancel-safe.
pub(crate) async fn keep(
    scope: Scope,
    facts: NodeFacts,
    reservations: Arc<Mutex<Reservations>>,
    told: watch::Sender<NodeFacts>,
) {
    // Before, other owners seem to reserve nothing.
    scope.recovered().await;
    loop {
        if let Some(capacity) = scope.capacity() {
            let offered = offered(&facts, capacity, scope.reserved_by_others(), reservations.lock().sum());
            told.send_if_modified(|told| {
                let is_other = *told != offered;
                *told = offered;
                is_other
            });
        }
        tokio::select! {
            () = told.closed() => return,
            () = scope.ended() => return,
            () = sleep(LOOK_PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn amount(cpu_milli: u64, memory_bytes: u64) -> Reserved {
        Reserved { cpu_milli, memory_bytes }
    }

    fn task(id: &str, nano_cpus: i64, memory_bytes: i64) -> swarm::Task {
        let reservations = Some(swarm::Resources { nano_cpus, memory_bytes, ..swarm::Resources::default() });
        let resources = Some(swarm::ResourceRequirements { reservations, ..Default::default() });
        let spec = Some(swarm::TaskSpec { resources, ..swarm::TaskSpec::default() });
        swarm::Task { id: id.to_owned(), spec, ..swarm::Task::default() }
    }

    #[test]
    fn other_owners_take_from_what_is_offered_but_not_from_assigned_tasks() {
        let offer = |others, assigned| {
            let facts = offered(&NodeFacts::default(), amount(4000, 8 << 30), others, assigned);
            (facts.nano_cpus, facts.memory_bytes)
        };
        assert_eq!(offer(amount(0, 0), amount(1000, 1 << 30)), (4_000_000_000, 8 << 30));
        assert_eq!(offer(amount(1500, 2 << 30), amount(1000, 1 << 30)), (2_500_000_000, 6 << 30));
        // A pod that takes everything.
        assert_eq!(offer(amount(9000, 9 << 30), amount(1000, 1 << 30)), (1_000_000_000, 1 << 30));
        let endless = offered(&NodeFacts::default(), amount(u64::MAX, u64::MAX), amount(0, 0), amount(0, 0));
        assert_eq!((endless.nano_cpus, endless.memory_bytes), (i64::MAX, i64::MAX));
    }

    #[test]
    fn ended_tasks_reserve_nothing() {
        let mut reservations = Reservations::default();
        let ended = swarm::TaskStatus { state: swarm::TaskState::Complete.into(), ..Default::default() };
        reservations.put(&swarm::Task { status: Some(ended), ..task("job", 1_000_000, 1) });
        let desired_state = swarm::TaskState::Shutdown.into();
        reservations.put(&swarm::Task { desired_state, ..task("old", 1_000_000, 1) });
        assert_eq!(reservations.sum(), amount(0, 0));
    }

    #[test]
    fn tasks_reserve_until_they_end() {
        let mut reservations = Reservations::default();
        reservations.put(&task("a", 500_000_001, 100));
        reservations.put(&task("b", -1, i64::MIN));
        reservations.put(&swarm::Task { id: "c".into(), ..swarm::Task::default() });
        reservations.put(&task("a", 500_000_001, 100));
        assert_eq!(reservations.sum(), amount(501, 100));
        reservations.remove("a");
        assert_eq!(reservations.sum(), amount(0, 0));
    }
}
