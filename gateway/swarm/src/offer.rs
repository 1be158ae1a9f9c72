//! The node's resources that are offered to the scheduler of a swarm.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_core::device::Inventories;
use switchyard_core::gateway::Scope;
use switchyard_core::object::Task;
use switchyard_core::reload::Reloadable;
use switchyard_core::spec::Reserved;
use switchyard_core::state::TaskState;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::from_proto::named_devices;
use crate::life::State;
use crate::plan::AssignedDevice;
use crate::record::Record;
use crate::session::description::NodeFacts;

mod devices;
mod enforcement;

pub use devices::{DeviceKinds, default_kind};
pub use enforcement::DeviceCheck;
use enforcement::Enforcement;

/// The interval at which the reservations of other owners are read. Managers get a change every ten seconds at most.
const LOOK_PAUSE: Duration = Duration::from_secs(5);

/// Limit for which the first offer waits for the first scan of the node's devices.
const SCAN_LIMIT: Duration = Duration::from_secs(10);

/// Keeps the offer to managers up to date, for as long as it lives.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The number of the last request for a new offer.
    asked: watch::Sender<u64>,
    /// The number of the last request that an offer has answered.
    answered: watch::Receiver<u64>,
    _keep: AbortOnDropHandle<()>,
}

/// The tasks of a node that are not known to have ended, with what they reserve.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    tasks: BTreeMap<String, Claimed>,
    enforcement: Enforcement,
}

/// Resources of the node that tasks reserve.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Claimed {
    /// Processors and memory.
    amount: Reserved,
    /// Devices that the scheduler has assigned.
    devices: BTreeSet<AssignedDevice>,
    /// Slots that services have named, of which the scheduler does not know.
    named: BTreeSet<String>,
}

/// Resources that may be offered.
#[derive(Debug, Clone, Default)]
struct NodeCapacity {
    /// Everything that the node has.
    all: Reserved,
    /// Reservations of other owners.
    others: Reserved,
    /// The devices that no other owner has.
    devices: Vec<AssignedDevice>,
}

// === impl Offer ===

impl Offer {
    /// Begins to publish the offer. Needs a runtime.
    pub(crate) fn begin(
        scope: Scope,
        (facts, kinds): (NodeFacts, Reloadable<DeviceKinds>),
        reservations: Arc<Mutex<Reservations>>,
        told: watch::Sender<NodeFacts>,
    ) -> Self {
        let (asked, requests) = watch::channel(0);
        let (answers, answered) = watch::channel(0);
        let keep = tokio::spawn(keep(
            scope,
            (facts, kinds),
            reservations,
            (told, requests, answers),
        ));
        Self {
            asked,
            answered,
            _keep: AbortOnDropHandle::new(keep),
        }
    }

    /// Waits for an offer of what is known now. Cancel-safe.
    pub(crate) async fn renewed(&self) {
        let mut number = 0;
        self.asked.send_modify(|asked| {
            *asked += 1;
            number = *asked;
        });
        let mut answered = self.answered.clone();
        // Without a sender the gateway ends.
        let _ = answered.wait_for(|answered| *answered >= number).await;
    }
}

// === impl Reservations ===

impl Reservations {
    /// A task is assigned. One that has ended, or is to end, reserves nothing; after a restart the manager lists those too.
    pub(crate) fn put(&mut self, task: &swarm::Task) {
        let has_ended = task
            .status
            .as_ref()
            .is_some_and(|status| State::from_wire(status.state).is_terminal());
        if has_ended || State::from_wire(task.desired_state) >= State::Shutdown {
            return;
        }
        let resources = task.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let reserved = resources.and_then(|resources| resources.reservations.as_ref());
        let amount = reserved.map_or_else(Reserved::default, |reserved| Reserved {
            cpu_milli: u64::try_from(reserved.nano_cpus)
                .unwrap_or(0)
                .div_ceil(1_000_000),
            memory_bytes: u64::try_from(reserved.memory_bytes).unwrap_or(0),
        });
        let devices = named_devices(task).take(devices::OFFERED_MAX).collect();
        let claimed = Claimed {
            amount,
            devices,
            named: BTreeSet::new(),
        };
        if claimed != Claimed::default() {
            self.tasks.insert(task.id.clone(), claimed);
        }
    }

    /// Notes a task that a manager has sent while it knew these facts. Returns what is concluded of it about the check of
    /// the managers, to be logged.
    pub(crate) fn observe(&mut self, task: &swarm::Task, told: &NodeFacts) -> Option<DeviceCheck> {
        self.enforcement.observe(task, told)
    }

    /// Begins with what the daemon before has concluded about the check of the managers.
    pub(crate) fn resume_device_check(&mut self, kept: DeviceCheck) {
        self.enforcement.resume(kept);
    }

    /// Returns a receiver for what is concluded about the check of the managers.
    pub(crate) fn device_check(&self) -> watch::Receiver<Option<DeviceCheck>> {
        self.enforcement.learned()
    }

    /// A task has ended, or is not assigned any more.
    pub(crate) fn remove(&mut self, id: &str) {
        self.tasks.remove(id);
    }

    /// Returns the sum of all reservations.
    fn sum(&self) -> Claimed {
        self.tasks.values().fold(Claimed::default(), Claimed::plus)
    }
}

// === impl Claimed ===

impl Claimed {
    /// Returns the resources that a task holds according to its object; none if it has exited.
    fn of_object(task: &Task) -> Self {
        match task.state {
            TaskState::Exited { .. } | TaskState::Removing { .. } => Self::default(),
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Running { .. }
            | TaskState::Stopping { .. } => Self {
                amount: task.details.compute.reserved,
                devices: Record::of(&task.meta)
                    .devices
                    .into_iter()
                    .map(AssignedDevice::from)
                    .collect(),
                named: slots_by_name(task),
            },
        }
    }

    /// The sum.
    fn plus(mut self, other: &Self) -> Self {
        self.amount = self.amount.plus(other.amount);
        self.devices.extend(other.devices.iter().cloned());
        self.named.extend(other.named.iter().cloned());
        self
    }

    /// The same, with the devices as those of which the scheduler must not know.
    fn without_devices(mut self) -> Self {
        self.named.extend(
            std::mem::take(&mut self.devices)
                .into_iter()
                .map(|device| device.id),
        );
        self
    }

    /// The larger amounts, and the devices of both.
    fn or(mut self, other: Self) -> Self {
        self.amount = Reserved {
            cpu_milli: self.amount.cpu_milli.max(other.amount.cpu_milli),
            memory_bytes: self.amount.memory_bytes.max(other.amount.memory_bytes),
        };
        self.devices.extend(other.devices);
        self.named.extend(other.named);
        self
    }
}

/// The slots that a task has because its service names the devices.
fn slots_by_name(task: &Task) -> BTreeSet<String> {
    let by_name = task.details.leases.iter().filter(|claim| claim.named);
    by_name
        .flat_map(|claim| claim.slots.iter().map(ToString::to_string))
        .collect()
}

/// The facts with what tasks of the swarm may have: the processors, memory and devices that no other owner has, but
/// never less than its tasks reserve that are here. A manager ends tasks that do not fit the node any more, whoever
/// has taken the place. Also returns how many devices are left out because there are too many.
fn offered(facts: &NodeFacts, node: NodeCapacity, claimed: Claimed) -> (NodeFacts, usize) {
    let NodeCapacity {
        all,
        others,
        devices,
    } = node;
    let free = all.minus(others);
    let amount = |free: u64, claimed: u64, factor: u64| {
        i64::try_from(free.max(claimed).saturating_mul(factor)).unwrap_or(i64::MAX)
    };
    let Claimed {
        amount: reserved,
        devices: assigned,
        named,
    } = claimed;
    let devices = devices
        .into_iter()
        .filter(|device| !named.contains(&device.id));
    let (named, left_out) = devices::offered(devices, assigned);
    let facts = NodeFacts {
        nano_cpus: amount(free.cpu_milli, reserved.cpu_milli, 1_000_000),
        memory_bytes: amount(free.memory_bytes, reserved.memory_bytes, 1),
        named,
        ..facts.clone()
    };
    (facts, left_out)
}

/// Keeps the published facts up to date, until nobody listens any more. Cancel-safe.
async fn keep(
    scope: Scope,
    (facts, kinds): (NodeFacts, Reloadable<DeviceKinds>),
    reservations: Arc<Mutex<Reservations>>,
    (told, mut requests, answers): (
        watch::Sender<NodeFacts>,
        watch::Receiver<u64>,
        watch::Sender<u64>,
    ),
) {
    // Before, other owners seem to reserve nothing.
    scope.recovered().await;
    // While it is followed, it is kept up to date.
    let mut devices = scope.devices().subscribe();
    if timeout(SCAN_LIMIT, devices.wait_for(Option::is_some))
        .await
        .is_err()
    {
        tracing::warn!(
            "the devices of the node are not known yet: none are offered to the swarm until they are"
        );
    }
    let mut known_left_out = 0;
    loop {
        let request = *requests.borrow_and_update();
        let claimed = claimed(&scope, &reservations);
        let (offered, left_out) =
            offered(&facts, capacity(&scope, &devices, &kinds.get()), claimed);
        if left_out != known_left_out {
            known_left_out = left_out;
            let most = devices::OFFERED_MAX;
            tracing::warn!(
                left_out,
                most,
                "there are more devices than are offered to a swarm"
            );
        }
        told.send_if_modified(|told| {
            let is_other = *told != offered;
            *told = offered;
            is_other
        });
        answers.send_replace(request);
        tokio::select! {
            () = told.closed() => return,
            () = scope.ended() => return,
            () = sleep(LOOK_PAUSE) => {}
            changed = requests.changed() => if changed.is_err() { return },
        }
    }
}

/// Returns the node's resources at the moment.
fn capacity(scope: &Scope, devices: &Inventories, kinds: &DeviceKinds) -> NodeCapacity {
    let devices = devices.borrow().clone();
    NodeCapacity {
        all: scope.claims().capacity().unwrap_or_default(),
        others: scope.claims().reserved_by_others(),
        devices: devices
            .map(|inventory| devices::free(&inventory, kinds))
            .unwrap_or_default(),
    }
}

/// Returns the resources that tasks of the swarm reserve: assigned and running ones. After a restart of the
/// daemon the latter are known before the managers have sent the assignments.
fn claimed(scope: &Scope, reservations: &Mutex<Reservations>) -> Claimed {
    let objects = scope.tasks().list().unwrap_or_default();
    let held = objects.iter().map(|task| Claimed::of_object(task));
    let held = held.fold(Claimed::default(), |sum, claimed| sum.plus(&claimed));
    let reservations = reservations.lock();
    let claimed = reservations.sum().or(held);
    if reservations.enforcement.is_inverted() {
        claimed.without_devices()
    } else {
        claimed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn amount(cpu_milli: u64, memory_bytes: u64) -> Reserved {
        Reserved {
            cpu_milli,
            memory_bytes,
        }
    }

    fn task(id: &str, nano_cpus: i64, memory_bytes: i64) -> swarm::Task {
        let reservations = Some(swarm::Resources {
            nano_cpus,
            memory_bytes,
            ..swarm::Resources::default()
        });
        let resources = Some(swarm::ResourceRequirements {
            reservations,
            ..Default::default()
        });
        let spec = Some(swarm::TaskSpec {
            resources,
            ..swarm::TaskSpec::default()
        });
        swarm::Task {
            id: id.to_owned(),
            spec,
            ..swarm::Task::default()
        }
    }

    #[test]
    fn other_owners_take_from_what_is_offered_but_not_from_assigned_tasks() {
        let offer = |others, amount_of_tasks| {
            let node = NodeCapacity {
                all: amount(4000, 8 << 30),
                others,
                devices: Vec::new(),
            };
            let claimed = Claimed {
                amount: amount_of_tasks,
                ..Claimed::default()
            };
            let (facts, _) = offered(&NodeFacts::default(), node, claimed);
            (facts.nano_cpus, facts.memory_bytes)
        };
        assert_eq!(
            offer(amount(0, 0), amount(1000, 1 << 30)),
            (4_000_000_000, 8 << 30)
        );
        assert_eq!(
            offer(amount(1500, 2 << 30), amount(1000, 1 << 30)),
            (2_500_000_000, 6 << 30)
        );
        // A pod that takes everything.
        assert_eq!(
            offer(amount(9000, 9 << 30), amount(1000, 1 << 30)),
            (1_000_000_000, 1 << 30)
        );
        let node = NodeCapacity {
            all: amount(u64::MAX, u64::MAX),
            ..NodeCapacity::default()
        };
        let (endless, _) = offered(&NodeFacts::default(), node, Claimed::default());
        assert_eq!(
            (endless.nano_cpus, endless.memory_bytes),
            (i64::MAX, i64::MAX)
        );
    }

    #[test]
    fn ended_tasks_reserve_nothing() {
        let mut reservations = Reservations::default();
        let ended = swarm::TaskStatus {
            state: swarm::TaskState::Complete.into(),
            ..Default::default()
        };
        reservations.put(&swarm::Task {
            status: Some(ended),
            ..task("job", 1_000_000, 1)
        });
        let desired_state = swarm::TaskState::Shutdown.into();
        reservations.put(&swarm::Task {
            desired_state,
            ..task("old", 1_000_000, 1)
        });
        assert_eq!(reservations.sum(), Claimed::default());
    }

    #[test]
    fn tasks_reserve_until_they_end() {
        let mut reservations = Reservations::default();
        reservations.put(&task("a", 500_000_001, 100));
        reservations.put(&task("b", -1, i64::MIN));
        reservations.put(&swarm::Task {
            id: "c".into(),
            ..swarm::Task::default()
        });
        reservations.put(&task("a", 500_000_001, 100));
        assert_eq!(reservations.sum().amount, amount(501, 100));
        reservations.remove("a");
        assert_eq!(reservations.sum(), Claimed::default());
    }

    #[test]
    fn tasks_reserve_the_devices_that_are_assigned_to_them() {
        let named = swarm::NamedGenericResource {
            kind: "acme.com/tpu".into(),
            value: "a0".into(),
        };
        let resource = Some(swarm::generic_resource::Resource::NamedResourceSpec(named));
        let assigned_generic_resources = vec![swarm::GenericResource { resource }];
        let mut reservations = Reservations::default();
        reservations.put(&swarm::Task {
            assigned_generic_resources,
            ..task("a", 0, 0)
        });
        let device = AssignedDevice {
            kind: "acme.com/tpu".into(),
            id: "a0".into(),
        };
        let both = reservations.sum().or(Claimed {
            amount: amount(1, 2),
            ..Claimed::default()
        });
        let devices = BTreeSet::from([device]);
        assert_eq!(
            both,
            Claimed {
                amount: amount(1, 2),
                devices,
                ..Claimed::default()
            }
        );
        reservations.remove("a");
        assert_eq!(reservations.sum(), Claimed::default());
    }
}
