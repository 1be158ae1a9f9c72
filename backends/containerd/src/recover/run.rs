//! The order of recovery: what exists is read, its fate decided, and the decision carried out.
//!
//! Longer than 500 lines because the steps of one recovery stand here in their order.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use futures::{StreamExt, stream};
use switchyard_core::backend::{Recovered, Started, UnreadableKind};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::state::{Exit, SandboxState, TaskState};
use switchyard_core::{Error, Result};
use switchyard_crash_points::{CrashPoint, reach};

use super::decide::{SandboxFacts, TaskFacts, TaskFate, sandbox_fate, task_fate};
use super::found::{FoundSandbox, FoundTask, outdated_objects};
use super::given_up::mark_given_up;
use super::inventory::{Inventory, Snapshots};
use super::outdated::OutdatedObjectCleanup;
use super::plan::{DecidedTask, RecoveryPlan, SandboxPresence};
use super::process_query::ProcessStates;
use super::timings::RecoveryTimings;
use super::{CONCURRENCY, Recovery, claims, garbage};
use crate::base::error::{from_namespaces, is_unanswered};
use crate::client::process_state::ProcessState;
use crate::record::SandboxPhase;
use crate::sandbox::{SandboxChange, SandboxCleanup, SandboxEntry, SandboxRelease};
use crate::task::{LifecycleEvent, TaskEntry};

/// The result of recovering a sandbox.
#[derive(Debug)]
enum RestoredSandbox {
    /// It is in the table of sandboxes again.
    Restored(Box<Sandbox>),
    /// A predecessor was killed while it created this sandbox: it has to be removed.
    Unfinished(Arc<SandboxEntry>),
}

impl Recovery {
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<Recovered> {
        let mut phases = RecoveryTimings::begin();
        let bridge_holders = self.recover_networks().await?;
        phases.done("plugins");
        let label = self.context.snapshots_label();
        self.features.refresh(&self.client, label).await;
        phases.done("abilities");
        let Inventory {
            sandboxes,
            tasks,
            containers,
            all,
            unrecognized,
            snapshots,
        } = self.list_inventory().await?;
        self.forget_all();
        reach(CrashPoint::RecoveryLooked);
        self.inherit_kept_ports().await;
        phases.done("inventory");

        let known: HashSet<TaskId> = tasks.iter().map(|(id, _)| *id).collect();
        let mut sandboxes = self.read_sandboxes(sandboxes);
        let mut tasks = self.read_tasks(tasks).await;
        mark_given_up(&mut sandboxes, &mut tasks, &containers, &snapshots);
        let files_lost = self.have_lost_files(&tasks);
        phases.done("records");
        let processes = self
            .query_processes(self.process_queries(&sandboxes, &tasks))
            .await?;
        phases.done("processes");

        let mut plan = RecoveryPlan::default();
        for (id, reason) in unrecognized {
            plan.leave_alone(id, UnreadableKind::Unknown, reason);
        }
        for object in outdated_objects(&sandboxes, &tasks) {
            plan.cleanup
                .push(Box::new(OutdatedObjectCleanup::new(&self.client, object)));
        }
        for (id, mut found) in sandboxes {
            if let Ok(found) = &mut found {
                self.fill_in_host_ports(id, found).await;
                self.keep_ports(id, &found.entry).await;
            }
            self.recover_sandbox(id, found, processes.of(&id.to_string()), &mut plan);
            self.finish_stop_of_predecessor(id, &mut plan).await;
        }
        self.recover_tasks(tasks, &processes, &snapshots, &mut plan)
            .await?;
        self.add_unreadable(containers, &snapshots, &mut plan)
            .await?;
        phases.done("tasks");
        // After `recover_tasks` persisted exits: a task with a persisted exit is kept even without its
        // snapshot.
        self.remove_lost_layers(&snapshots, &mut plan).await;
        phases.done("layers");
        reach(CrashPoint::RecoveryTasks);
        let garbage = self
            .find_garbage(&snapshots, &all, bridge_holders, &mut plan)
            .await;
        if garbage.may_run() || files_lost {
            self.shims.end_orphans_at_start().await;
        }
        // Only after the orphans were ended: while such a call may be under way, no shim is an orphan for certain.
        plan.lost_starts
            .drain(..)
            .for_each(|id| self.shims.predecessor_calls.insert(id));
        phases.done("debris");
        reach(CrashPoint::RecoverySandboxes);
        self.add_cleanups(&mut plan).await;
        phases.done("exits");
        plan.report(&*self.context.observer);
        tracing::info!(
            took = ?phases.total(),
            sandboxes = plan.recovered.sandboxes.len(),
            tasks = plan.recovered.tasks.len(),
            shims_asked = processes.queried,
            shims_silent = processes.unresponsive,
            %phases,
            "recovered what a predecessor left"
        );
        Ok(self.start_background_work(plan, garbage, known).await)
    }

    /// Finds what predecessors have of networks, and returns the holders of the bridges of clusters.
    async fn recover_networks(&self) -> Result<Vec<SandboxId>> {
        self.network.find_predecessor_plugins().await?;
        self.network.cluster_bridges.load().await
    }

    /// Queues the cleanup of what calls and exits of a predecessor have left.
    async fn add_cleanups(&self, plan: &mut RecoveryPlan) {
        for cleanup in self
            .processes
            .sync_protected_exits(|| self.tasks.table.exits_to_protect())
            .await
        {
            plan.cleanup.push(Box::new(cleanup));
        }
        for cleanup in self.predecessor_calls.remove_stale_waits().await {
            plan.cleanup.push(Box::new(cleanup));
        }
        for cleanup in self.cgroups.load_busy_cgroups().await {
            plan.remove("cgroup", cleanup, &self.context.observer);
        }
    }

    /// Forgets what an earlier try has found.
    fn forget_all(&self) {
        self.sandboxes.table.lock().clear();
        self.tasks.table.lock().clear();
        self.storage.volumes.clear();
        self.storage.projects.clear();
        self.shims.predecessor_calls.clear();
        self.sandboxes.unreleased.clear();
    }

    /// Starts the work that requests need not wait for. Requests may be served from here on.
    async fn start_background_work(
        self: &Arc<Self>,
        plan: RecoveryPlan,
        garbage: garbage::StartupGarbage,
        known: HashSet<TaskId>,
    ) -> Recovered {
        let RecoveryPlan {
            recovered,
            cleanup,
            running_tasks,
            ..
        } = plan;
        // Before the cleanups, some of which hold the same lock while they wait for a shim: recovery would wait
        // for each shim that does not answer.
        for entry in running_tasks {
            self.attachments.end_taken_input(&entry);
            let recovery = Arc::clone(self);
            let guard = entry.lock_process().await;
            self.tracker.spawn(async move {
                let _guard = guard;
                recovery.resume_log(&entry).await;
            });
        }
        for item in cleanup {
            self.cleanup.spawn(item, &self.tracker);
        }
        let recovery = Arc::clone(self);
        self.tracker.spawn(async move {
            recovery.network.native.sweep().await;
            recovery.clear_garbage(garbage, &known).await;
            reach(CrashPoint::RecoveryDebris);
            recovery.network.collect_garbage().await;
        });
        self.execs.predecessor_fifos.close();
        self.recovered.cancel();
        recovered
    }

    /// Queues the release of the network and namespaces of a stopped sandbox if a predecessor was killed behind its answer: a
    /// namespace is there, the last of which goes last. A journal alone has stayed on a read-only disk: its addresses may be
    /// those of others by now.
    async fn finish_stop_of_predecessor(&self, id: SandboxId, plan: &mut RecoveryPlan) {
        let is_stopped =
            |sandbox: &Sandbox| sandbox.id == id && sandbox.state == SandboxState::Stopped;
        // The one that was restored just now.
        if !plan.recovered.sandboxes.last().is_some_and(is_stopped) {
            return;
        }
        let Ok(entry) = self.sandboxes.table.get(id) else {
            return;
        };
        if !entry.pins().any(is_there) {
            return;
        }
        // The journal goes when plugins are done: from then on others may have its ports.
        let journal = entry.dirs.cni_journal();
        if tokio::fs::try_exists(journal).await.unwrap_or(true) {
            self.sandboxes.unreleased.add(id);
            plan.recovered.remnants.extend(claims::remnant(id, &entry));
        }
        self.sandboxes.table.change(id, SandboxChange::InfraEnded);
        plan.cleanup
            .push(Box::new(SandboxRelease::new(&self.sandboxes, id)));
    }

    /// Restores a sandbox, or queues its removal if a predecessor was killed while it created it.
    fn recover_sandbox(
        &self,
        id: SandboxId,
        found: Result<FoundSandbox>,
        process: ProcessState,
        plan: &mut RecoveryPlan,
    ) {
        match found.and_then(|found| self.restore_sandbox(id, found, process)) {
            Ok(RestoredSandbox::Restored(sandbox)) => {
                plan.sandboxes.insert(id, SandboxPresence::Present);
                if self
                    .sandboxes
                    .table
                    .get(id)
                    .is_ok_and(|entry| entry.lifecycle.is_removal_recorded())
                {
                    plan.recovered.removals.push(id);
                }
                plan.recovered.sandboxes.push(*sandbox);
            }
            Ok(RestoredSandbox::Unfinished(entry)) => {
                tracing::info!(sandbox = %id, "removing a sandbox whose creation was cut off");
                self.shims.predecessor_calls.insert(id.to_string());
                self.sandboxes.unreleased.add(id);
                plan.recovered.remnants.extend(claims::remnant(id, &entry));
                let cleanup = SandboxCleanup::new(&self.sandboxes, id, entry);
                plan.remove("sandbox", cleanup, &self.context.observer);
            }
            Err(error) => {
                plan.sandboxes.insert(id, SandboxPresence::Unreadable);
                plan.leave_alone(id, UnreadableKind::Sandbox, error.report());
            }
        }
    }

    /// Puts a sandbox into the table of sandboxes, unless a predecessor was killed while it created it.
    fn restore_sandbox(
        &self,
        id: SandboxId,
        found: FoundSandbox,
        process: ProcessState,
    ) -> Result<RestoredSandbox> {
        let FoundSandbox {
            phase,
            mut entry,
            outdated: _,
        } = found;
        if let ProcessState::Running { pid } | ProcessState::Unanswered { pid } = process {
            entry.lifecycle = entry.lifecycle.after(SandboxChange::InfraStarted(pid));
        }
        self.sandboxes.adopt_groups(id, &entry);
        self.sandboxes.adopt_level(id, &entry);
        if matches!(phase, SandboxPhase::Starting | SandboxPhase::Removing) {
            // A predecessor call may still be creating or deleting its infra process.
            self.shims.predecessor_calls.insert(id.to_string());
        }
        let record = &entry.record;
        let infra = entry.infra_pid().is_some() || !record.infra;
        let facts = SandboxFacts {
            phase,
            pinned: is_pinned(&entry),
            infra,
        };
        let Some(state) = sandbox_fate(facts) else {
            return Ok(RestoredSandbox::Unfinished(Arc::new(entry)));
        };
        let mut details = entry.details();
        if state == SandboxState::Stopped {
            (details.ips, details.pid) = (Vec::new(), None);
        }
        let sandbox = Sandbox {
            id,
            meta: record.meta.to_core()?,
            handler: record.handler.clone(),
            details,
            state,
        };
        self.sandboxes.table.lock().insert(id, Arc::new(entry));
        Ok(RestoredSandbox::Restored(Box::new(sandbox)))
    }

    async fn recover_tasks(
        &self,
        tasks: Vec<(TaskId, Result<FoundTask>)>,
        processes: &ProcessStates,
        snapshots: &Snapshots,
        plan: &mut RecoveryPlan,
    ) -> Result<()> {
        let sandboxes = std::mem::take(&mut plan.sandboxes);
        let outcomes: Vec<_> = stream::iter(tasks)
            .map(|(id, found)| {
                let sandboxes = &sandboxes;
                async move {
                    let process = processes.of(&id.to_string());
                    let recovered = async {
                        self.recover_task(id, found?, process, snapshots, sandboxes)
                            .await
                    };
                    (id, recovered.await)
                }
            })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await;
        for (id, outcome) in outcomes {
            match outcome {
                Ok(task) => plan.add_task(self, task),
                // containerd did not answer, which says nothing about the task. Without this task the table
                // would be wrong, so recovery fails and is tried again.
                Err(error) if is_unanswered(&error) => return Err(error),
                Err(error) => {
                    plan.leave_alone(id, UnreadableKind::Task, error.report());
                }
            }
        }
        Ok(())
    }

    /// Decides the fate of a task and carries out the part that requests must wait for.
    async fn recover_task(
        &self,
        id: TaskId,
        found: FoundTask,
        process: ProcessState,
        snapshots: &Snapshots,
        sandboxes: &HashMap<SandboxId, SandboxPresence>,
    ) -> Result<DecidedTask> {
        let may_have_snapshot = snapshots.may_have(&found.snapshotter, &id.to_string());
        let finished = !found.given_up && found.is_complete(may_have_snapshot);
        let FoundTask {
            sandbox,
            record,
            dirs,
            snapshotter,
            exit,
            noted,
            files,
            files_lost,
            given_up: _,
            outdated: _,
        } = found;
        let meta = record.meta.to_core()?;
        let details = record.details();
        if let Some(quota) = &record.quota {
            self.storage.projects.adopt(id, meta.owner, quota);
        }
        let presence = sandboxes.get(&sandbox).copied();
        if presence == Some(SandboxPresence::Unreadable) {
            return Err(Error::internal(format!(
                "sandbox {sandbox} of task {id} cannot be read"
            )));
        }
        let facts = TaskFacts {
            sandbox: presence == Some(SandboxPresence::Present),
            finished,
            this_boot: record.boot == self.context.boot,
            exit: exit.map(|exit| exit.to_core()),
            started_at: files.started.map(|started| started.at),
            begun: files.begun,
            files_lost,
            process,
        };
        self.storage.volumes.adopt(id, &record.volumes);
        let entry = Arc::new(TaskEntry::new(id, sandbox, dirs, &snapshotter, record));
        let fate = task_fate(&facts, SystemTime::now());
        if matches!(fate, TaskFate::Reap { .. } | TaskFate::Lost(_)) {
            // Before it is persisted, which the next attempt finds if this one fails.
            self.found_exits.lock().insert(id);
        }
        if fate != TaskFate::Created {
            // A predecessor may have launched it.
            entry.apply(LifecycleEvent::Launched);
        }
        if let TaskFate::Exited(exit, started_at) = &fate {
            if noted {
                self.exits
                    .persist_found_exit(&entry, exit, *started_at)
                    .await?;
            } else {
                entry.apply(LifecycleEvent::ExitPersisted(exit.clone()));
            }
        }
        let state = self
            .apply_fate(&entry, &fate, files.begun && files.started.is_none())
            .await?;
        let task = state.map(|state| Task {
            id,
            sandbox,
            meta,
            details,
            state,
        });
        let lost_start = files_lost && matches!(fate, TaskFate::Lost(_) | TaskFate::Exited(..));
        Ok(DecidedTask {
            entry,
            fate,
            files,
            lost_start,
            task,
        })
    }

    /// Carries out the part of a task's fate that requests must wait for. Returns its state; `None` if it has
    /// to be removed. `start_interrupted`: a start was begun and is not known to have finished.
    async fn apply_fate(
        &self,
        entry: &Arc<TaskEntry>,
        fate: &TaskFate,
        start_interrupted: bool,
    ) -> Result<Option<TaskState>> {
        let id = entry.id.to_string();
        Ok(Some(match fate {
            TaskFate::Destroy => {
                if start_interrupted {
                    self.shims.predecessor_calls.insert(id);
                }
                return Ok(None);
            }
            TaskFate::Created => TaskState::Created,
            TaskFate::StartPending => {
                self.shims.predecessor_calls.insert(id);
                // The predecessor call may come to nothing, and then a client asks for the start again.
                entry.keep_fifos_open();
                TaskState::Unattended
            }
            TaskFate::Running(started) => {
                self.adopt(entry, *started);
                TaskState::Running {
                    pid: started.pid,
                    started_at: started.at,
                }
            }
            TaskFate::Reap { started_at, end } => {
                let now = SystemTime::now();
                entry.set_started(Started {
                    pid: 0,
                    at: started_at.unwrap_or(now),
                });
                let exit = self.exits.exit_of_process(entry, *end).await;
                self.exits
                    .persist_found_exit(entry, &exit, Some(started_at.unwrap_or(now)))
                    .await?;
                entry.apply(LifecycleEvent::ExitReported);
                let at = started_at.unwrap_or_else(|| now.min(exit.finished_at));
                TaskState::Exited {
                    started_at: Some(at),
                    exit,
                }
            }
            TaskFate::Lost(started_at) => {
                let now = SystemTime::now();
                let exit = Exit::lost(started_at.map_or(now, |at| now.max(at)));
                self.exits
                    .persist_found_exit(entry, &exit, *started_at)
                    .await?;
                entry.apply(LifecycleEvent::ExitReported);
                TaskState::Exited {
                    started_at: *started_at,
                    exit,
                }
            }
            TaskFate::Exited(exit, started_at) => {
                entry.apply(LifecycleEvent::ExitReported);
                TaskState::Exited {
                    started_at: *started_at,
                    exit: exit.clone(),
                }
            }
        }))
    }

    /// Takes over a running process from a predecessor, except for its log: see [`Recovery::resume_log`].
    pub(super) fn adopt(&self, entry: &Arc<TaskEntry>, started: Started) {
        entry.set_started(started);
        self.exits.open_main_process(entry, started.pid);
        self.exits.note_shim(entry);
        self.task_cgroups.watch_oom(entry);
        self.execs.end_predecessor_execs(entry);
        if entry.uses_logkeeper()
            && let Some(spec) = crate::task::log_spec(entry)
            && let Err(error) = crate::task::open_output_fifos(entry, &spec)
        {
            tracing::warn!(task = %entry.id, error = error.report(), "cannot hold the output FIFOs of a task open: output may be lost while the logkeeper is away");
        }
    }

    /// Has the logkeeper write the log of a running task again, in case the logkeeper does not know of it.
    pub(super) async fn resume_log(&self, entry: &Arc<TaskEntry>) {
        let Some(spec) = crate::task::log_spec(entry)
            .filter(|_| entry.uses_logkeeper() && entry.reported_exit().is_none())
        else {
            return;
        };
        if let Err(fault) = self.logkeeper.open(&spec).await {
            tracing::warn!(task = %entry.id, error = %fault, "cannot have the logkeeper resume the log of a task");
        }
    }
}

/// Returns whether all namespaces that a sandbox owns are pinned.
fn is_pinned(entry: &SandboxEntry) -> bool {
    entry.pins().all(is_there)
}

/// Returns whether a namespace is pinned here. A pin that cannot be examined counts as present: if the pod were reported as
/// gone, its orchestrator would start another one while this one runs. An operation that needs the pin fails with the cause.
fn is_there(pin: PathBuf) -> bool {
    switchyard_namespaces::is_namespace_file(&pin)
        .map_err(from_namespaces)
        .unwrap_or_else(|error| {
            tracing::warn!(
                error = error.report(),
                "cannot look at a namespace of a pod: it counts as there"
            );
            true
        })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;
    use crate::base::layout::Layout;
    use crate::sandbox::SandboxLifecycle;

    #[test]
    fn sandbox_whose_pins_cannot_be_looked_at_is_not_one_without_them() {
        let dir = tempfile::tempdir().unwrap();
        let record = serde_json::from_str(include_str!("../record/golden/sandbox.json")).unwrap();
        let dirs = Layout::new(dir.path(), dir.path()).sandbox(SandboxId::random());
        let entry = SandboxEntry {
            record,
            dirs,
            lifecycle: SandboxLifecycle::NEW,
        };
        let pins: Vec<_> = entry.pins().collect();
        assert!(
            !pins.is_empty() && !is_pinned(&entry) && !entry.pins().any(is_there),
            "after a reboot there are none"
        );
        std::fs::create_dir_all(&entry.dirs.pins).unwrap();
        for pin in &pins {
            symlink(Path::new("/proc/self/ns/net"), pin).unwrap();
        }
        assert!(is_pinned(&entry));
        std::fs::remove_file(&pins[0]).unwrap();
        symlink(&pins[0], &pins[0]).unwrap();
        assert!(is_pinned(&entry));
        std::fs::remove_file(&pins[1]).unwrap();
        assert!(!is_pinned(&entry), "another one is gone for certain");
        assert!(entry.pins().any(is_there), "one is left of a stop");
        for pin in &pins {
            let _ = std::fs::remove_file(pin);
            std::fs::write(pin, "").unwrap();
        }
        assert!(
            !entry.pins().any(is_there),
            "a stop was cut off before the last file went, and behind the last namespace"
        );
    }
}
