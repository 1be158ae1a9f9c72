//! Processors and memory: cores that tasks have for themselves, and what all tasks reserve together.
//!
//! Orchestrators plan by themselves: each keeps its own tasks apart, and knows nothing of another's. So cores are held by an owner against
//! other owners, and amounts are summed over all of them.

use std::collections::BTreeMap;

use super::refusal::{Holder, Reason, Refusal, Resource};
use crate::id::{Owner, SandboxId, TaskId};
use crate::spec::{CpuSet, Reserved};

/// What becomes of a task that reserves more than the node has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overcommit {
    /// It is made.
    Off,
    /// It is made, and that is told.
    #[default]
    Warn,
    /// It is refused.
    Enforce,
}

/// What tasks have of the node's processors and memory.
#[derive(Debug, Clone, Default)]
pub struct Compute {
    /// All that the node has; `None` while that is not known.
    capacity: Option<Reserved>,
    policy: Overcommit,
    tasks: BTreeMap<TaskId, ComputeHolder>,
    /// What the tasks of each owner reserve together.
    reserved: BTreeMap<Owner, Reserved>,
    /// The last warning about each owner's cores that somebody else has for itself: it is told once.
    warned: BTreeMap<Owner, Refusal>,
}

/// A task that has something of the node's processors and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComputeHolder {
    /// Whose it is.
    pub owner: Owner,
    /// Its sandbox.
    pub sandbox: SandboxId,
    /// The name of that.
    pub name: String,
    /// The processors that it is bound to.
    pub cpus: Cpus,
    /// What is kept for it. Nothing once it has ended.
    pub reserved: Reserved,
}

/// The processors that a task is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Cpus {
    /// All that there are.
    #[default]
    Any,
    /// These, with others.
    Shared(CpuSet),
    /// These, and nobody else is to run there.
    Exclusive(CpuSet),
}

// === impl Compute ===

impl Compute {
    /// Nothing is given out yet of what the node has.
    #[must_use]
    pub fn new(capacity: Option<Reserved>, policy: Overcommit) -> Self {
        Self { capacity, policy, ..Self::default() }
    }

    /// Gives a task what it claims. What it had before is given back. What is given although it should not be, is in the answer.
    ///
    /// # Errors
    /// Cores that a task of another owner has for itself, if these are to be the task's own; more than the node has left, if that is
    /// enforced. Nothing has changed then.
    pub fn claim(&mut self, id: TaskId, holder: ComputeHolder) -> Result<Vec<Refusal>, Refusal> {
        if let (Cpus::Exclusive(_), Some(refusal)) = (&holder.cpus, self.conflict(&holder)) {
            return Err(refusal);
        }
        self.change(id, holder)
    }

    /// Gives a running task what it claims from now on, as [`Compute::claim`] does; but cores are given to it also if somebody else has
    /// them: its orchestrator has done so already.
    ///
    /// # Errors
    /// More than the node has left, if that is enforced. Nothing has changed then.
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
            Some(refusal) if self.warned.get(&holder.owner) != Some(&refusal) => {
                self.warned.insert(holder.owner, refusal.clone());
                warnings.push(refusal);
            }
            Some(_) | None => {}
        }
        self.record(id, holder);
        Ok(warnings)
    }

    /// Puts down what a task has already. What it had before is given back.
    pub fn record(&mut self, id: TaskId, holder: ComputeHolder) {
        self.release(id);
        if holder.cpus == Cpus::Any && holder.reserved == Reserved::default() {
            return;
        }
        let sum = self.reserved.entry(holder.owner).or_default();
        *sum = sum.plus(holder.reserved);
        self.tasks.insert(id, holder);
    }

    /// A task has ended: nothing is kept for it any more but its cores, on which its orchestrator may start it or its like anew.
    pub fn end(&mut self, id: TaskId) {
        let Some(holder) = self.tasks.get_mut(&id) else { return };
        let owner = holder.owner;
        let reserved = std::mem::take(&mut holder.reserved);
        self.unreserve(owner, reserved);
    }

    /// Takes back all that a task has.
    pub fn release(&mut self, id: TaskId) {
        if let Some(holder) = self.tasks.remove(&id) {
            self.unreserve(holder.owner, holder.reserved);
        }
    }

    /// Takes back all that the tasks of a sandbox have, which has stopped.
    pub fn release_sandbox(&mut self, sandbox: SandboxId) {
        let own = self.tasks.iter().filter(|(_, holder)| holder.sandbox == sandbox);
        for id in own.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.release(id);
        }
    }

    /// All that the node has, as far as that is known.
    #[must_use]
    pub const fn capacity(&self) -> Option<Reserved> {
        self.capacity
    }

    /// What the tasks of each owner reserve together.
    #[must_use]
    pub const fn reserved(&self) -> &BTreeMap<Owner, Reserved> {
        &self.reserved
    }

    /// The tasks that have cores for themselves, and these.
    pub fn exclusive(&self) -> impl Iterator<Item = (TaskId, &ComputeHolder, &CpuSet)> {
        self.tasks.iter().filter_map(|(id, holder)| match &holder.cpus {
            Cpus::Exclusive(cpus) => Some((*id, holder, cpus)),
            Cpus::Any | Cpus::Shared(_) => None,
        })
    }

    /// Cores that tasks of two owners have for themselves, with both: found at recovery.
    #[must_use]
    pub fn conflicts(&self) -> Vec<(CpuSet, Holder, Holder)> {
        let mut found = Vec::new();
        for (id, one, cores) in self.exclusive() {
            for (_, other, theirs) in self.exclusive().filter(|(other, _, _)| *other > id) {
                let both = cores.intersection(theirs);
                if one.owner != other.owner && !both.is_empty() {
                    found.push((both, one.named(), other.named()));
                }
            }
        }
        found
    }

    /// Cores of a task that one of another owner has for itself.
    fn conflict(&self, asks: &ComputeHolder) -> Option<Refusal> {
        let (Cpus::Shared(wanted) | Cpus::Exclusive(wanted)) = &asks.cpus else { return None };
        self.exclusive().find_map(|(_, holder, cores)| common(asks, holder, wanted, cores, Reason::Held))
    }

    /// Cores that a task is to have for itself, and on which those of another owner run.
    fn overlap(&self, asks: &ComputeHolder) -> Option<Refusal> {
        let Cpus::Exclusive(wanted) = &asks.cpus else { return None };
        self.tasks.values().find_map(|holder| match &holder.cpus {
            Cpus::Shared(cores) => common(asks, holder, wanted, cores, Reason::Shared),
            Cpus::Any | Cpus::Exclusive(_) => None,
        })
    }

    /// The amount that with this task is more than the node has, if the task adds to it. With the policy to warn only of the task with
    /// which it begins to be more.
    fn over_capacity(&self, id: TaskId, asks: &ComputeHolder) -> Option<Refusal> {
        let capacity = self.capacity?;
        let now = self.reserved.values().fold(Reserved::default(), |sum, own| sum.plus(*own));
        let before = self.tasks.get(&id).map(|holder| holder.reserved).unwrap_or_default();
        let then = now.minus(before).plus(asks.reserved);
        let over = |now: u64, then: u64, most: u64| {
            then > most && then > now && (now <= most || self.policy == Overcommit::Enforce)
        };
        let resource = if over(now.cpu_milli, then.cpu_milli, capacity.cpu_milli) {
            Resource::Cpu { milli: asks.reserved.cpu_milli }
        } else if over(now.memory_bytes, then.memory_bytes, capacity.memory_bytes) {
            Resource::Memory { bytes: asks.reserved.memory_bytes }
        } else {
            return None;
        };
        let reason = Reason::Overcommitted { capacity, reserved: self.reserved.clone() };
        Some(Refusal { owner: asks.owner, resource, reason, holder: None })
    }

    fn unreserve(&mut self, owner: Owner, reserved: Reserved) {
        let Some(sum) = self.reserved.get_mut(&owner) else { return };
        *sum = sum.minus(reserved);
        if *sum == Reserved::default() {
            self.reserved.remove(&owner);
        }
    }
}

/// That two tasks of different owners are bound to the same cores, if they are.
fn common(
    asks: &ComputeHolder,
    holder: &ComputeHolder,
    wanted: &CpuSet,
    theirs: &CpuSet,
    reason: Reason,
) -> Option<Refusal> {
    let both = wanted.intersection(theirs);
    (asks.owner != holder.owner && !both.is_empty()).then(|| Refusal {
        owner: asks.owner,
        resource: Resource::Cores(both),
        reason,
        holder: Some(Box::new(holder.named())),
    })
}

// === impl ComputeHolder ===

impl ComputeHolder {
    fn named(&self) -> Holder {
        Holder { owner: self.owner, sandbox: Some(self.sandbox), name: self.name.clone() }
    }
}

#[cfg(test)]
mod tests;
