//! The resources of devices that an owner uses: a kubelet that starts is registered with these first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::id::{LeaseToken, Owner, SandboxId, SlotId};
use crate::ledger::{Devices, LeaseState};
use crate::object::{Sandbox, Task};
use crate::state::SandboxState;

/// The use of a resource. The variants are ordered by urgency for the orchestrator, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResourceUse {
    /// A device of it is leased, or was assigned to a task of which no attempt runs: its orchestrator may be about to
    /// start one.
    Waiting,
    /// A device of it was assigned to a task that has ended, but nothing indicates that it is started again: another
    /// attempt runs, or all sandboxes of its group are stopped.
    Ended,
    /// Every task with a device of it runs, and none is a further attempt.
    Running,
}

/// The attempts to run one task.
#[derive(Debug, Default)]
struct Attempts<'a> {
    /// One of them runs.
    some_run: bool,
    /// One of them does not run.
    some_ended: bool,
    /// The slots of all of them.
    slots: BTreeSet<&'a SlotId>,
}

/// The sandboxes that replace each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group<'a> {
    /// Those of this group.
    Named(&'a str),
    /// A sandbox that belongs to no group.
    Single(SandboxId),
}

/// Returns the use of each resource by an owner with these objects. Tasks in the sandboxes of one group are
/// attempts of one task if they have the same value of `task_label`.
pub(super) fn resources_in_use(
    devices: &Devices,
    owner: Owner,
    (tasks, sandboxes): (&[Arc<Task>], &[Arc<Sandbox>]),
    task_label: &str,
) -> BTreeMap<String, ResourceUse> {
    let mut slots = slots_of_tasks(tasks, sandboxes, task_label);
    let with_task: BTreeSet<LeaseToken> = tasks
        .iter()
        .flat_map(|task| &task.details.leases)
        .map(|claim| claim.token)
        .collect();
    for (token, lease) in devices.leases().filter(|(_, lease)| lease.owner == owner) {
        let waits = match lease.state {
            LeaseState::Unbound { .. } | LeaseState::Released { grace: true } => true,
            // Without a task, one is being created.
            LeaseState::Bound { .. } => !with_task.contains(&token),
            // The lease is over; only its token is remembered.
            LeaseState::Released { grace: false } => false,
        };
        if waits {
            slots.extend(lease.slots.iter().map(|slot| (slot, ResourceUse::Waiting)));
        }
    }
    let mut resources = BTreeMap::new();
    for (slot, slot_use) in slots {
        if let Some(resource) = devices
            .resource_of(slot)
            .filter(|resource| !resource.is_empty())
        {
            let resource_use = resources.entry(resource.to_owned()).or_insert(slot_use);
            *resource_use = slot_use.min(*resource_use);
        }
    }
    resources
}

/// The slots that these tasks were created with, each with its most urgent use.
fn slots_of_tasks<'a>(
    tasks: &'a [Arc<Task>],
    sandboxes: &'a [Arc<Sandbox>],
    task_label: &str,
) -> BTreeMap<&'a SlotId, ResourceUse> {
    let groups: BTreeMap<SandboxId, Group<'_>> = sandboxes
        .iter()
        .map(|sandbox| (sandbox.id, Group::of(sandbox)))
        .collect();
    let stopped = |sandbox: &Sandbox| {
        matches!(
            sandbox.state,
            SandboxState::Stopped | SandboxState::Removing
        )
    };
    let live: BTreeSet<Group<'_>> = sandboxes
        .iter()
        .filter(|sandbox| !stopped(sandbox))
        .map(|sandbox| Group::of(sandbox))
        .collect();
    let mut by_name: BTreeMap<(Group<'_>, &str), Attempts<'_>> = BTreeMap::new();
    for task in tasks {
        // The sandbox may have been removed since the tasks were listed.
        let group = groups
            .get(&task.sandbox)
            .copied()
            .unwrap_or(Group::Single(task.sandbox));
        let name = task.meta.labels.get(task_label).unwrap_or(&task.meta.name);
        let attempts = by_name.entry((group, name)).or_default();
        if task.state.is_running() {
            attempts.some_run = true;
        } else {
            attempts.some_ended = true;
        }
        attempts
            .slots
            .extend(task.details.leases.iter().flat_map(|claim| &claim.slots));
    }
    let mut slots = BTreeMap::new();
    for ((group, _), attempts) in by_name {
        let task_use = attempts.task_use(live.contains(&group));
        for slot in attempts.slots {
            let slot_use = slots.entry(slot).or_insert(task_use);
            *slot_use = task_use.min(*slot_use);
        }
    }
    slots
}

// === impl Attempts ===

impl Attempts<'_> {
    /// Returns the use of its slots by the task. `live`: a sandbox of its group is not stopped.
    ///
    /// Times do not matter: at most one attempt runs, and it is the newest one unless the clock was set back.
    const fn task_use(&self, live: bool) -> ResourceUse {
        match (self.some_run, self.some_ended) {
            (true, false) => ResourceUse::Running,
            (false, _) if live => ResourceUse::Waiting,
            (false, _) | (true, true) => ResourceUse::Ended,
        }
    }
}

// === impl Group ===

impl<'a> Group<'a> {
    /// The group under which a sandbox claims host ports, which it has even without such a port.
    fn of(sandbox: &'a Sandbox) -> Self {
        match sandbox.details.host_ports.group.as_str() {
            "" => Self::Single(sandbox.id),
            group => Self::Named(group),
        }
    }
}
