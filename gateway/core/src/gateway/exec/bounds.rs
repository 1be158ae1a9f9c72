//! Limits on commands in tasks: how many run in one task, and how much output of all commands is held for
//! their callers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;

use crate::backend::ExecControl;
use crate::error::{Error, ErrorKind, Result};
use crate::id::TaskId;
use crate::spec::Signal;

/// The number of commands that run in each task.
#[derive(Debug, Clone, Default)]
pub(in crate::gateway) struct CommandCounts(Arc<Mutex<HashMap<TaskId, usize>>>);

/// Counts one command of a task until it is dropped.
#[derive(Debug)]
pub(super) struct CommandPermit {
    commands: CommandCounts,
    task: TaskId,
}

/// Control over a counted command.
pub(super) struct CountedControl {
    control: Box<dyn ExecControl>,
    _permit: CommandPermit,
}

/// The number of bytes of output held for callers.
#[derive(Debug, Default)]
pub(in crate::gateway) struct OutputBudget(AtomicUsize);

/// One stream's share of the budget; released on drop.
#[derive(Debug)]
pub(super) struct OutputCharge<'a> {
    budget: &'a OutputBudget,
    limit: usize,
    bytes: usize,
}

// === impl CommandCounts ===

impl CommandCounts {
    /// Counts one more command in a task.
    ///
    /// # Errors
    /// `ResourceExhausted` if the limit is reached.
    pub(super) fn acquire(&self, task: TaskId, limit: usize) -> Result<CommandPermit> {
        let mut running = self.0.lock();
        let count = running.entry(task).or_default();
        if *count >= limit {
            let text = format!(
                "{count} commands run in the container, which is the limit: see exec.max_per_container"
            );
            return Err(Error::new(ErrorKind::ResourceExhausted, text));
        }
        *count += 1;
        Ok(CommandPermit { commands: self.clone(), task })
    }
}

impl Drop for CommandPermit {
    fn drop(&mut self) {
        let mut running = self.commands.0.lock();
        if let Some(count) = running.get_mut(&self.task) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.task);
            }
        }
    }
}

// === impl CountedControl ===

impl CountedControl {
    pub(super) fn new(control: Box<dyn ExecControl>, place: CommandPermit) -> Self {
        Self { control, _permit: place }
    }
}

impl ExecControl for CountedControl {
    fn wait(&self) -> BoxFuture<'_, Result<i32>> {
        Box::pin(self.control.wait())
    }

    fn signal(&self, signal: Signal) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.control.signal(signal))
    }

    fn resize(&self, width: u16, height: u16) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.control.resize(width, height))
    }

    fn cut_output(&self, after: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.control.cut_output(after).await;
        })
    }

    fn delete(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.control.delete())
    }
}

// === impl OutputBudget ===

impl OutputBudget {
    /// An empty charge, to be resized.
    pub(super) const fn charge(&self, limit: usize) -> OutputCharge<'_> {
        OutputCharge { budget: self, limit, bytes: 0 }
    }
}

impl OutputCharge<'_> {
    /// Changes the charge to `bytes`.
    ///
    /// # Errors
    /// `ResourceExhausted` if all charges together would exceed the limit; then nothing has changed.
    pub(super) fn resize(&mut self, bytes: usize) -> Result<()> {
        let limit = self.limit;
        let before = self.bytes;
        let change = |all: usize| {
            let all = all.saturating_sub(before).saturating_add(bytes);
            (bytes <= before || all <= limit).then_some(all)
        };
        if self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change).is_err() {
            let text = format!(
                "the command has written {bytes} bytes, and with those of others that is more than the {limit} that are \
                 collected at a time: it was killed; see exec.max_output_bytes"
            );
            return Err(Error::new(ErrorKind::ResourceExhausted, text));
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for OutputCharge<'_> {
    fn drop(&mut self) {
        self.budget.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_shared_and_returned_on_drop() {
        let budget = OutputBudget::default();
        let mut one = budget.charge(10);
        let mut other = budget.charge(10);
        one.resize(6).unwrap();
        other.resize(4).unwrap();
        assert_eq!(other.resize(5).unwrap_err().kind(), ErrorKind::ResourceExhausted);
        one.resize(3).unwrap();
        other.resize(7).unwrap();
        drop(one);
        other.resize(10).unwrap();
        drop(other);
        assert_eq!(budget.0.into_inner(), 0);
    }

    #[test]
    fn execs_count_for_their_task_until_dropped() {
        let commands = CommandCounts::default();
        let [one, other] = [1, 2].map(|byte| TaskId::from_bytes([byte; 32]));
        let places: Vec<_> = (0..2).map(|_| commands.acquire(one, 2).unwrap()).collect();
        assert_eq!(commands.acquire(one, 2).unwrap_err().kind(), ErrorKind::ResourceExhausted);
        drop(commands.acquire(other, 2).unwrap());
        drop(places);
        drop(commands.acquire(one, 2).unwrap());
        assert!(commands.0.lock().is_empty());
    }
}
