//! Processors and memory: cores that tasks have exclusively, and the sum of what all tasks reserve.
//!
//! Orchestrators schedule independently: each separates its own tasks and does not know those of others. So
//! exclusive cores of one owner are protected only against other owners, and reservations are summed over all
//! owners.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::{Holder, Refusal, RefusalReason, Resource};
use crate::id::{Owner, SandboxId, TaskId};
use crate::spec::{CpuSet, Reserved};

/// The policy for a task that reserves more than the node has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overcommit {
    /// It is created.
    Off,
    /// It is created, and a warning is logged.
    #[default]
    Warn,
    /// It is refused.
    Enforce,
}

/// The tasks' claims of processors and memory.
#[derive(Debug, Clone, Default)]
pub struct Compute {
    /// All that the node has; `None` if not known.
    capacity: Option<Reserved>,
    policy: Overcommit,
    tasks: BTreeMap<TaskId, ComputeHolder>,
    /// The sum of the reservations of each owner.
    reserved: BTreeMap<Owner, Reserved>,
    /// The last warning about overlapping cores of each owner; the same warning is not repeated.
    warned: BTreeMap<Owner, Refusal>,
    /// Tasks that cannot be read: their owners do not know of them, and may assign their cores again.
    held: BTreeSet<TaskId>,
    /// Something that cannot be read may have any processor exclusively.
    withheld: bool,
}

/// A task's claim of processors and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeHolder {
    /// The owner of the task.
    pub owner: Owner,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The name of that sandbox.
    pub name: String,
    /// The processors that it is bound to.
    pub cpus: Cpus,
    /// The reservation; zero once the task has exited.
    pub reserved: Reserved,
}

/// The processors that a task may run on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cpus {
    /// All processors of the node.
    #[default]
    Any,
    /// These, shared with others.
    Shared(CpuSet),
    /// These, exclusively.
    Exclusive(CpuSet),
}

// === impl Compute ===

impl Compute {
    /// Without claims.
    #[must_use]
    pub fn new(capacity: Option<Reserved>, policy: Overcommit) -> Self {
        Self {
            capacity,
            policy,
            ..Self::default()
        }
    }

    /// Sets what happens to tasks from now on that reserve more than is left. What is reserved already stays.
    pub fn set_policy(&mut self, policy: Overcommit) {
        self.policy = policy;
    }

    /// Records the claim of a task; it replaces an earlier claim of the same task. Returns warnings about
    /// claims that are granted although they conflict.
    ///
    /// # Errors
    /// The task claims exclusive cores that a task of another owner has exclusively, or that are withheld; or
    /// more is claimed than the node has left and [`Overcommit::Enforce`] is set. Nothing has changed then.
    pub fn claim(&mut self, id: TaskId, holder: ComputeHolder) -> Result<Vec<Refusal>, Refusal> {
        if let (Cpus::Exclusive(_), Some(refusal)) = (&holder.cpus, self.conflict(&holder)) {
            return Err(refusal);
        }
        let had = self.tasks.get(&id).map(|held| &held.cpus);
        if let Cpus::Exclusive(wanted) = &holder.cpus
            && self.withheld
            && had != Some(&holder.cpus)
        {
            return Err(Refusal {
                owner: holder.owner,
                resource: Resource::Cores(wanted.clone()),
                reason: RefusalReason::Withheld,
                holder: None,
            });
        }
        self.change(id, holder)
    }

    /// Grants no processor exclusively from now on, except to tasks that have it already.
    pub fn withhold(&mut self) {
        self.withheld = true;
    }

    /// Replaces the claim of a running task, as [`Compute::claim`]; but conflicting cores are granted with a
    /// warning, because the orchestrator has assigned them already.
    ///
    /// # Errors
    /// More is claimed than the node has left, and [`Overcommit::Enforce`] is set. Nothing has changed then.
    pub fn change(&mut self, id: TaskId, holder: ComputeHolder) -> Result<Vec<Refusal>, Refusal> {
        let mut warnings = Vec::new();
        if let Some(refusal) = self.over_capacity(id, &holder) {
            match self.policy {
                Overcommit::Off => {}
                Overcommit::Warn => warnings.push(refusal),
                Overcommit::Enforce => return Err(refusal),
            }
        }
        match self.conflict(&holder).or_else(|| self.overlap(&holder)) {
            // A conflict is warned of once, not with each update of the task.
            Some(refusal) if self.warned.get(&holder.owner) != Some(&refusal) => {
                self.warned.insert(holder.owner, refusal.clone());
                warnings.push(refusal);
            }
            Some(_) | None => {}
        }
        self.record(id, holder);
        Ok(warnings)
    }

    /// Records a claim without checks; it replaces an earlier claim of the same task.
    pub fn record(&mut self, id: TaskId, holder: ComputeHolder) {
        self.release(id);
        if holder.cpus == Cpus::Any && holder.reserved == Reserved::default() {
            return;
        }
        let sum = self.reserved.entry(holder.owner).or_default();
        *sum = sum.plus(holder.reserved);
        self.tasks.insert(id, holder);
    }

    /// Records the claim of a task that cannot be read, for good: its exclusive cores are protected against its owner
    /// too.
    pub fn hold(&mut self, id: TaskId, holder: ComputeHolder) {
        self.record(id, holder);
        self.held.insert(id);
    }

    /// A task has exited: releases its reservation but keeps its cores, on which its orchestrator may start
    /// it or a successor again.
    pub fn end(&mut self, id: TaskId) {
        let Some(holder) = self.tasks.get_mut(&id) else {
            return;
        };
        let owner = holder.owner;
        let reserved = std::mem::take(&mut holder.reserved);
        self.unreserve(owner, reserved);
    }

    /// Releases the whole claim of a task.
    pub fn release(&mut self, id: TaskId) {
        if let Some(holder) = self.tasks.remove(&id) {
            self.unreserve(holder.owner, holder.reserved);
        }
    }

    /// Releases the claims of all tasks of a sandbox that has stopped.
    pub fn release_sandbox(&mut self, sandbox: SandboxId) {
        let own = self
            .tasks
            .iter()
            .filter(|(_, holder)| holder.sandbox == sandbox);
        for id in own.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.release(id);
        }
    }

    /// All that the node has; `None` if not known.
    #[must_use]
    pub const fn capacity(&self) -> Option<Reserved> {
        self.capacity
    }

    /// The sum of the reservations of each owner.
    #[must_use]
    pub const fn reserved(&self) -> &BTreeMap<Owner, Reserved> {
        &self.reserved
    }

    /// The tasks with exclusive cores, and these cores.
    pub fn exclusive(&self) -> impl Iterator<Item = (TaskId, &ComputeHolder, &CpuSet)> {
        self.tasks
            .iter()
            .filter_map(|(id, holder)| match &holder.cpus {
                Cpus::Exclusive(cpus) => Some((*id, holder, cpus)),
                Cpus::Any | Cpus::Shared(_) => None,
            })
    }

    /// Cores that tasks of two owners both have exclusively, with both holders; possible only after recovery.
    #[must_use]
    pub fn conflicts(&self) -> Vec<(CpuSet, Holder, Holder)> {
        let mut found = Vec::new();
        for (id, one, cores) in self.exclusive() {
            // Each pair once.
            for (_, other, theirs) in self.exclusive().filter(|(other, _, _)| *other > id) {
                let both = cores.intersection(theirs);
                if one.owner != other.owner && !both.is_empty() {
                    found.push((both, one.named(), other.named()));
                }
            }
        }
        found
    }

    /// The refusal if a task of another owner, or one that cannot be read, has one of the requested cores
    /// exclusively.
    fn conflict(&self, asks: &ComputeHolder) -> Option<Refusal> {
        let (Cpus::Shared(wanted) | Cpus::Exclusive(wanted)) = &asks.cpus else {
            return None;
        };
        self.exclusive()
            .filter(|(id, holder, _)| holder.owner != asks.owner || self.held.contains(id))
            .find_map(|(_, holder, cores)| common(asks, holder, wanted, cores, RefusalReason::Held))
    }

    /// The refusal if cores are requested exclusively and tasks of another owner run on them.
    fn overlap(&self, asks: &ComputeHolder) -> Option<Refusal> {
        let Cpus::Exclusive(wanted) = &asks.cpus else {
            return None;
        };
        let mut others = self
            .tasks
            .values()
            .filter(|holder| holder.owner != asks.owner);
        others.find_map(|holder| match &holder.cpus {
            Cpus::Shared(cores) => common(asks, holder, wanted, cores, RefusalReason::Shared),
            Cpus::Any | Cpus::Exclusive(_) => None,
        })
    }

    /// The refusal if this task's reservation increases a sum that exceeds the node's capacity. Unless the
    /// policy is [`Overcommit::Enforce`], only the task that first exceeds the capacity is reported.
    fn over_capacity(&self, id: TaskId, asks: &ComputeHolder) -> Option<Refusal> {
        let capacity = self.capacity?;
        let now = self
            .reserved
            .values()
            .fold(Reserved::default(), |sum, own| sum.plus(*own));
        let before = self
            .tasks
            .get(&id)
            .map(|holder| holder.reserved)
            .unwrap_or_default();
        let then = now.minus(before).plus(asks.reserved);
        // A change that lowers the sum is never refused, even while it exceeds the capacity.
        let over = |now: u64, then: u64, most: u64| {
            then > most && then > now && (now <= most || self.policy == Overcommit::Enforce)
        };
        let resource = if over(now.cpu_milli, then.cpu_milli, capacity.cpu_milli) {
            Resource::Cpu {
                milli: asks.reserved.cpu_milli,
            }
        } else if over(now.memory_bytes, then.memory_bytes, capacity.memory_bytes) {
            Resource::Memory {
                bytes: asks.reserved.memory_bytes,
            }
        } else {
            return None;
        };
        let reason = RefusalReason::Overcommitted {
            capacity,
            reserved: self.reserved.clone(),
        };
        Some(Refusal {
            owner: asks.owner,
            resource,
            reason,
            holder: None,
        })
    }

    fn unreserve(&mut self, owner: Owner, reserved: Reserved) {
        let Some(sum) = self.reserved.get_mut(&owner) else {
            return;
        };
        *sum = sum.minus(reserved);
        if *sum == Reserved::default() {
            self.reserved.remove(&owner);
        }
    }
}

/// The refusal if two tasks are bound to common cores.
fn common(
    asks: &ComputeHolder,
    holder: &ComputeHolder,
    wanted: &CpuSet,
    theirs: &CpuSet,
    reason: RefusalReason,
) -> Option<Refusal> {
    let both = wanted.intersection(theirs);
    (!both.is_empty()).then(|| Refusal {
        owner: asks.owner,
        resource: Resource::Cores(both),
        reason,
        holder: Some(Box::new(holder.named())),
    })
}

// === impl ComputeHolder ===

impl ComputeHolder {
    fn named(&self) -> Holder {
        Holder {
            owner: self.owner,
            sandbox: Some(self.sandbox),
            name: self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
