//! Limits on commands in tasks: how many run in one task, and how much output of all commands is held for
//! their callers.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};
use crate::id::{Owner, TaskId};

/// Bytes of each stream that are held without a share of the budget: as much as the answers of most probes,
/// so that no command with much output makes them fail.
const UNCOUNTED: usize = 16 << 10;

/// The part of the budget that one task has at most, and the part that belongs to each owner alone, as divisors.
const TASK_PART: usize = 4;
const OWNER_PART: usize = 8;

/// Limit for a command to wait for the place of one that has ended, whose process is deleted after its
/// answer.
const PLACE_WAIT: Duration = Duration::from_secs(1);

/// The number of commands that run in each task, with those that could not be ended yet.
#[derive(Debug, Clone, Default)]
pub(super) struct CommandCounts(Arc<Places>);

#[derive(Debug, Default)]
struct Places {
    running: Mutex<HashMap<TaskId, usize>>,
    /// Notified whenever a place becomes free.
    freed: Notify,
}

/// Counts one command of a task until it is dropped.
#[derive(Debug)]
pub(super) struct CommandPermit {
    commands: CommandCounts,
    task: TaskId,
}

/// The output that is held for callers, in bytes. A task has at most a part of it, and each owner a part that no other owner
/// can use (ADR 66).
#[derive(Debug, Clone, Default)]
pub(super) struct OutputBudget(Arc<Mutex<HeldOutput>>);

/// The bytes that each task and owner holds.
#[derive(Debug, Default)]
struct HeldOutput {
    owners: BTreeMap<Owner, usize>,
    tasks: HashMap<TaskId, usize>,
}

/// One stream's share of the budget; released on drop.
#[derive(Debug)]
pub(super) struct OutputCharge {
    budget: OutputBudget,
    owner: Owner,
    task: TaskId,
    limit: usize,
    bytes: usize,
}

/// The share of the budget for output that an answer occupies, until this is dropped.
#[derive(Debug)]
pub struct OutputShare {
    _streams: [OutputCharge; 2],
}

// === impl CommandCounts ===

impl CommandCounts {
    /// Counts one more command in a task, as soon as there is a place. Cancel-safe.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is none within [`PLACE_WAIT`].
    pub(super) async fn acquire(&self, task: TaskId, limit: usize) -> Result<CommandPermit> {
        let acquired = async {
            loop {
                let freed = self.0.freed.notified();
                if let Some(permit) = self.try_acquire(task, limit) {
                    return permit;
                }
                freed.await;
            }
        };
        timeout(PLACE_WAIT, acquired).await.map_err(|_| {
            let text = format!(
                "{limit} commands run in the container or could not be ended yet, which is the limit: see exec.max_per_container"
            );
            Error::new(ErrorKind::ResourceExhausted, text)
        })
    }

    fn try_acquire(&self, task: TaskId, limit: usize) -> Option<CommandPermit> {
        let mut running = self.0.running.lock();
        let count = running.get(&task).copied().unwrap_or_default();
        if count >= limit {
            return None;
        }
        running.insert(task, count + 1);
        Some(CommandPermit {
            commands: self.clone(),
            task,
        })
    }
}

impl Drop for CommandPermit {
    fn drop(&mut self) {
        let mut running = self.commands.0.running.lock();
        if let Some(count) = running.get_mut(&self.task) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.task);
            }
        }
        self.commands.0.freed.notify_waiters();
    }
}

// === impl OutputBudget ===

impl OutputBudget {
    /// An empty charge for a command in a task, to be resized; `limit` is the size of the whole budget.
    pub(super) fn charge(&self, owner: Owner, task: TaskId, limit: usize) -> OutputCharge {
        OutputCharge {
            budget: self.clone(),
            owner,
            task,
            limit,
            bytes: 0,
        }
    }
}

// === impl HeldOutput ===

impl HeldOutput {
    /// Returns the reason why so many bytes more of a task would be too many; `None` if they are not. Pure.
    fn refusal(&self, owner: Owner, task: TaskId, more: usize, limit: usize) -> Option<String> {
        let of_task = self
            .tasks
            .get(&task)
            .copied()
            .unwrap_or_default()
            .saturating_add(more);
        let task_limit = limit / TASK_PART;
        if of_task > task_limit {
            return Some(format!(
                "of the commands in one container, {task_limit} bytes of output are held"
            ));
        }
        let own = limit / OWNER_PART;
        let common = limit.saturating_sub(own.saturating_mul(Owner::ALL.len()));
        let held = |of: Owner| self.owners.get(&of).copied().unwrap_or_default();
        let beyond_own = |of: Owner| {
            let bytes = if of == owner {
                held(of).saturating_add(more)
            } else {
                held(of)
            };
            bytes.saturating_sub(own)
        };
        let shared = Owner::ALL
            .into_iter()
            .map(beyond_own)
            .fold(0, usize::saturating_add);
        if shared > common && beyond_own(owner) > 0 {
            return Some(format!(
                "of all commands, {limit} bytes of output are held, {own} of them for each orchestrator alone"
            ));
        }
        None
    }

    /// Replaces the counted bytes of a task.
    fn replace(&mut self, owner: Owner, task: TaskId, before: usize, after: usize) {
        let of_owner = self.owners.entry(owner).or_default();
        *of_owner = of_owner.saturating_sub(before).saturating_add(after);
        let of_task = self.tasks.entry(task).or_default();
        *of_task = of_task.saturating_sub(before).saturating_add(after);
        if *of_task == 0 {
            self.tasks.remove(&task);
        }
    }
}

// === impl OutputCharge ===

impl OutputCharge {
    /// Changes the charge to a stream of which `bytes` bytes are held.
    ///
    /// # Errors
    /// `ResourceExhausted` if that exceeds what the task, its owner or all together may hold; then nothing has changed.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<()> {
        let counted = bytes.saturating_sub(UNCOUNTED);
        let mut held = self.budget.0.lock();
        let more = counted.saturating_sub(self.bytes);
        let refusal = (more > 0)
            .then(|| held.refusal(self.owner, self.task, more, self.limit))
            .flatten();
        if let Some(why) = refusal {
            let text = format!(
                "the command has written {bytes} bytes, which with those of others is too much: {why}; it was killed: see \
                 exec.max_output_bytes"
            );
            return Err(Error::new(ErrorKind::ResourceExhausted, text));
        }
        held.replace(self.owner, self.task, self.bytes, counted);
        self.bytes = counted;
        Ok(())
    }
}

impl Drop for OutputCharge {
    fn drop(&mut self) {
        self.budget
            .0
            .lock()
            .replace(self.owner, self.task, self.bytes, 0);
    }
}

// === impl OutputShare ===

impl OutputShare {
    /// The share of an answer with these two streams.
    pub(super) const fn new(stdout: OutputCharge, stderr: OutputCharge) -> Self {
        Self {
            _streams: [stdout, stderr],
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::poll;

    use super::*;

    /// Small parts: a task has 4, each owner 2 of its own, and 8 are for all.
    const LIMIT: usize = 16;

    fn task(number: u8) -> TaskId {
        TaskId::from_bytes([number; 32])
    }

    /// A charge with so many bytes beyond those that are not counted.
    fn held(
        budget: &OutputBudget,
        (owner, task_number): (Owner, u8),
        bytes: usize,
    ) -> Result<OutputCharge> {
        let mut charge = budget.charge(owner, task(task_number), LIMIT);
        charge.resize(UNCOUNTED + bytes).map(|()| charge)
    }

    #[track_caller]
    fn assert_refused<T: std::fmt::Debug>(charge: Result<T>, why: &str) {
        let error = charge.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        assert!(error.report().contains(why), "{}", error.report());
    }

    #[test]
    fn one_task_and_one_owner_leave_the_parts_of_others() {
        let budget = OutputBudget::default();
        let mut charges = vec![held(&budget, (Owner::Kubernetes, 1), 4).unwrap()];
        assert_refused(held(&budget, (Owner::Kubernetes, 1), 1), "in one container");
        charges.push(held(&budget, (Owner::Kubernetes, 2), 4).unwrap());
        charges.push(held(&budget, (Owner::Kubernetes, 3), 2).unwrap());
        // Its own part and the common one are used up.
        assert_refused(
            held(&budget, (Owner::Kubernetes, 4), 1),
            "for each orchestrator alone",
        );
        for (owner, number) in [(Owner::Nomad, 5), (Owner::Swarm, 6), (Owner::Host, 7)] {
            charges.push(held(&budget, (owner, number), 2).unwrap());
            assert_refused(
                held(&budget, (owner, number), 1),
                "for each orchestrator alone",
            );
        }
        drop(charges);
        let held = budget.0.lock();
        assert!(
            held.tasks.is_empty() && held.owners.values().all(|bytes| *bytes == 0),
            "{held:?}"
        );
    }

    #[test]
    fn what_others_write_refuses_no_small_output() {
        let budget = OutputBudget::default();
        let _charges = [1, 2, 3].map(|number| {
            held(
                &budget,
                (Owner::Nomad, number),
                if number < 3 { 4 } else { 2 },
            )
            .unwrap()
        });
        let mut probe = budget.charge(Owner::Nomad, task(1), LIMIT);
        probe.resize(UNCOUNTED).unwrap();
        assert_refused(probe.resize(UNCOUNTED + 1), "too much");
        probe.resize(1).unwrap();
    }

    #[test]
    fn smaller_charge_returns_its_bytes() {
        let budget = OutputBudget::default();
        let mut one = held(&budget, (Owner::Swarm, 1), 4).unwrap();
        one.resize(UNCOUNTED + 1).unwrap();
        let other = held(&budget, (Owner::Swarm, 1), 3).unwrap();
        assert_refused(one.resize(UNCOUNTED + 2), "in one container");
        drop(other);
        one.resize(UNCOUNTED + 4).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn execs_count_for_their_task_until_dropped() {
        let commands = CommandCounts::default();
        let [one, other] = [1, 2].map(task);
        let mut places = Vec::new();
        for _ in 0..2 {
            places.push(commands.acquire(one, 2).await.unwrap());
        }
        assert_eq!(
            commands.acquire(one, 2).await.unwrap_err().kind(),
            ErrorKind::ResourceExhausted
        );
        drop(commands.acquire(other, 2).await.unwrap());
        let mut waits = pin!(commands.acquire(one, 2));
        assert!(poll!(&mut waits).is_pending());
        places.pop();
        drop(waits.await.unwrap());
        drop(places);
        assert!(commands.0.running.lock().is_empty());
    }
}
