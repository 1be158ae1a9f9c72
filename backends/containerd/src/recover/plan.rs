//! The plan of recovery: its findings, and the work that is left until requests are served.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use switchyard_core::backend::{BackendObserver, Recovered, RecoveryResult, UnreadableKind};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::object::Task;
use switchyard_core::state::SandboxState;

use super::Recovery;
use super::decide::TaskFate;
use super::found::TaskFiles;
use crate::cleanup::{Cleanup, RecoveryCleanup};
use crate::task::TaskEntry;
use crate::task::checkpoint::CheckpointCleanup;
use crate::task::cleanup::{TaskCleanup, TaskCleanupKind};
use crate::task::exit::ExitCleanup;

/// Presence of the sandbox that a task belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SandboxPresence {
    /// Its container object exists and was read.
    Present,
    /// Its container object exists and cannot be read.
    Unreadable,
}

/// A task whose fate is decided.
#[derive(Debug)]
pub(super) struct DecidedTask {
    pub(super) entry: Arc<TaskEntry>,
    pub(super) fate: TaskFate,
    pub(super) files: TaskFiles,
    /// It counts as exited because its files were lost, in this recovery or in an earlier one, and a predecessor call may be
    /// starting it.
    pub(super) lost_start: bool,
    /// Its entry for the core; `None` if it has to be removed.
    pub(super) task: Option<Task>,
}

/// Recovery's findings, and the work that remains for the background while requests are served.
#[derive(Debug, Default)]
pub(super) struct RecoveryPlan {
    pub(super) recovered: Recovered,
    pub(super) sandboxes: HashMap<SandboxId, SandboxPresence>,
    pub(super) cleanup: Vec<Box<dyn Cleanup>>,
    pub(super) running_tasks: Vec<Arc<TaskEntry>>,
    /// Ids of tasks that were created in earlier boots of the node. Their processes have exited, whatever
    /// else is known of them.
    pub(super) from_earlier_boots: HashSet<String>,
    /// Ids of tasks that a predecessor call may be starting although they count as exited.
    pub(super) lost_starts: Vec<String>,
    /// Tasks that ran, or may have run, whose process is gone, and whose exit nobody has observed.
    pub(super) newly_lost: HashSet<TaskId>,
    /// Objects that are left alone because they cannot be read.
    pub(super) left_alone: Vec<LeftAlone>,
}

/// An object that cannot be read.
#[derive(Debug)]
pub(super) struct LeftAlone {
    pub(super) id: String,
    pub(super) kind: UnreadableKind,
    /// Description of what cannot be read.
    pub(super) reason: String,
}

impl RecoveryPlan {
    /// Leaves an object alone that cannot be read.
    pub(super) fn leave_alone(
        &mut self,
        id: impl ToString,
        kind: UnreadableKind,
        reason: impl Into<String>,
    ) {
        self.left_alone.push(LeftAlone {
            id: id.to_string(),
            kind,
            reason: reason.into(),
        });
    }

    /// Queues the removal of what is left of an object of this kind; it is reported to `observer` when it is
    /// done.
    pub(super) fn remove(
        &mut self,
        kind: &'static str,
        cleanup: impl Cleanup + 'static,
        observer: &Arc<dyn BackendObserver>,
    ) {
        let observer = Arc::clone(observer);
        self.cleanup.push(Box::new(RecoveryCleanup {
            kind,
            cleanup: Box::new(cleanup),
            observer,
        }));
    }

    /// Reports what was adopted, recovered and left alone. Removals report themselves.
    pub(super) fn report(&self, observer: &dyn BackendObserver) {
        let result = |runs| {
            if runs {
                RecoveryResult::Adopted
            } else {
                RecoveryResult::Recovered
            }
        };
        for sandbox in &self.recovered.sandboxes {
            observer.recovered("sandbox", result(sandbox.state == SandboxState::Ready));
        }
        for task in &self.recovered.tasks {
            let outcome = if self.newly_lost.contains(&task.id) {
                RecoveryResult::Lost
            } else {
                result(task.state.is_running())
            };
            observer.recovered("task", outcome);
        }
        for held in &self.recovered.unreadable {
            observer.recovered(held.kind.as_str(), RecoveryResult::Unreadable);
        }
    }

    /// Puts a task into the table of tasks, unless it has to be removed, and queues the work that remains on
    /// it.
    pub(super) fn add_task(&mut self, recovery: &Recovery, decided: DecidedTask) {
        let DecidedTask {
            entry,
            fate,
            files,
            lost_start,
            task,
        } = decided;
        if entry.record().boot != recovery.context.boot && !matches!(fate, TaskFate::Running(_)) {
            self.from_earlier_boots.insert(entry.id.to_string());
        }
        let Some(task) = task else {
            tracing::info!(task = %entry.id, "removing a task whose creation was cut off, or that has no sandbox");
            let cleanup = TaskCleanup::new(&recovery.tasks, entry, TaskCleanupKind::Creation);
            self.remove("task", cleanup, &recovery.context.observer);
            return;
        };
        if recovery.found_exits.lock().contains(&entry.id) {
            self.recovered.found_exits.push(entry.id);
        }
        if matches!(fate, TaskFate::Lost(_)) {
            self.newly_lost.insert(entry.id);
        }
        match fate {
            TaskFate::Destroy | TaskFate::Created | TaskFate::StartPending => {}
            TaskFate::Running(_) => {
                if files.limits_pending {
                    self.cleanup.push(Box::new(TaskCleanup::new(
                        &recovery.tasks,
                        Arc::clone(&entry),
                        TaskCleanupKind::Limits,
                    )));
                }
                self.running_tasks.push(Arc::clone(&entry));
            }
            TaskFate::Reap { .. } | TaskFate::Lost(_) | TaskFate::Exited(..) => {
                if lost_start {
                    self.lost_starts.push(entry.id.to_string());
                }
                // The cleanup waits for a predecessor call that may be starting the task, and ends what that has started.
                if lost_start || entry.unpersisted_exit().is_some() || files.begun {
                    self.cleanup.push(Box::new(ExitCleanup::new(
                        &recovery.exits,
                        Arc::clone(&entry),
                    )));
                }
            }
        }
        if files.checkpointed {
            entry.exec_permits.adopt_frozen();
            self.cleanup.push(Box::new(CheckpointCleanup::new(
                &recovery.checkpoints,
                Arc::clone(&entry),
            )));
        }
        recovery.tasks.table.lock().insert(entry.id, entry);
        self.recovered.tasks.push(task);
    }
}
