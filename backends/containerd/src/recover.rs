//! Start-up: what a predecessor left is adopted if it is whole, finished if it can be, and cleaned up if not.
//!
//! Everything is found by the container objects and by what is named after them. An object that cannot be read is left alone and
//! told of: it may belong to a newer version.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use containerd_client::services::v1 as api;
use futures::{StreamExt, stream};
use switchyard_core::backend::{Recovered, Started};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::state::{Exit, SandboxState, TaskState};
use switchyard_core::table::{Sandbox, Task};
use switchyard_core::{Error, Result};
use switchyard_steps::{Step, reach};

use crate::backend::Inner;
use crate::health::Contact;
use crate::leftovers::Leftover;
use crate::record::{
    self, EXIT, ExitRecord, NetworkRecord, OutputRecord, PHASE, Phase, SandboxRecord, TaskRecord, from_ns,
};
use crate::sandbox::SandboxEntry;
use crate::task::TaskEntry;

mod debris;
mod decide;
mod inventory;
mod plugins;
mod shims;

use decide::{Process, SandboxFacts, TaskFacts, TaskFate, sandbox_fate, task_fate};
use inventory::Inventory;

/// How many objects are worked on at once.
const AT_ONCE: usize = 16;

/// How long recovery looks at one end that nobody has seen; afterwards it is watched like a task that runs.
const REAP: Duration = Duration::from_secs(5);

/// What is known of the sandbox that a task belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Home {
    /// It is there.
    Stands,
    /// It is there and cannot be read.
    Unreadable,
}

impl Inner {
    pub(crate) async fn recover(&self) -> Result<Recovered> {
        self.end_plugins().await?;
        self.abilities.refresh(&self.client).await;
        let inventory = self.take_inventory().await?;
        let Inventory { sandboxes, tasks, processes, snapshots } = inventory;
        self.sandboxes().clear();
        self.tasks().clear();
        reach(Step::RecoveryLooked);

        let mut recovered = Recovered::default();
        let mut unfinished = Vec::new();
        let mut homes = HashMap::new();
        for (id, container) in sandboxes {
            match self.recover_sandbox(id, &container, &processes) {
                Ok(Some(sandbox)) => {
                    homes.insert(id, Home::Stands);
                    recovered.sandboxes.push(sandbox);
                }
                Ok(None) => unfinished.push(id),
                Err(error) => {
                    homes.insert(id, Home::Unreadable);
                    tracing::error!(sandbox.id = %id, error = error.report(), "a sandbox cannot be read: it and its tasks are left alone");
                }
            }
        }
        let known: HashSet<TaskId> = tasks.iter().map(|(id, _)| *id).collect();
        let outcomes: Vec<_> = stream::iter(tasks)
            .map(|(id, container)| {
                let process = processes.get(&container.id).copied().unwrap_or(Process::None);
                let snapshot = snapshots.may_have(&container.snapshotter, &container.id);
                let homes = &homes;
                async move { (id, self.recover_task(id, &container, process, snapshot, homes).await) }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (id, outcome) in outcomes {
            match outcome {
                Ok(Some(task)) => recovered.tasks.push(task),
                Ok(None) => {}
                Err(error) if matches!(self.health.now(), Contact::Down { .. }) => return Err(error),
                Err(error) => {
                    tracing::error!(task.id = %id, error = error.report(), "a task cannot be recovered and is left alone");
                }
            }
        }
        reach(Step::RecoveryTasks);
        for id in unfinished {
            tracing::info!(sandbox.id = %id, "removing a sandbox that was never finished");
            if let Err(error) = self.destroy_sandbox(id).await {
                tracing::warn!(sandbox.id = %id, error = error.report(), "an unfinished sandbox is cleared away later");
                self.leftovers.keep(Leftover::Sandbox(id, None));
            }
        }
        reach(Step::RecoverySandboxes);
        self.settle_kept().await?;
        self.clear_debris(&snapshots, &known).await?;
        reach(Step::RecoveryDebris);
        Ok(recovered)
    }

    /// Puts a sandbox back in its place; `None` if it was never finished.
    fn recover_sandbox(
        &self,
        id: SandboxId,
        container: &api::Container,
        processes: &HashMap<String, Process>,
    ) -> Result<Option<Sandbox>> {
        let phase = container.labels.get(PHASE).map(String::as_str).unwrap_or_default();
        let phase = Phase::parse(phase)
            .ok_or_else(|| Error::internal(format!("sandbox {id} is in the unknown phase {phase:?}")))?;
        let record: SandboxRecord = record::decode(&container.id, &container.extensions)?;
        let pid = match processes.get(&container.id) {
            Some(Process::Running { pid } | Process::Unanswered { pid }) => Some(*pid),
            Some(Process::None | Process::Created | Process::Stopped) | None => None,
        };
        let entry = SandboxEntry { dirs: self.layout.sandbox(id), pid, record, released: false };
        let record = &entry.record;
        let facts = SandboxFacts { phase, pinned: is_pinned(&entry), infra: pid.is_some() || !record.infra };
        let Some(state) = sandbox_fate(facts) else { return Ok(None) };
        let mut details = entry.details();
        if state == SandboxState::Stopped {
            (details.ips, details.pid) = (Vec::new(), None);
        }
        let sandbox =
            Sandbox { id, meta: record.meta.to_core()?, handler: record.handler.clone(), details, state };
        self.sandboxes().insert(id, Arc::new(entry));
        Ok(Some(sandbox))
    }

    /// Puts a task back in its place; `None` if it had to go.
    async fn recover_task(
        &self,
        id: TaskId,
        container: &api::Container,
        process: Process,
        snapshot: bool,
        homes: &HashMap<SandboxId, Home>,
    ) -> Result<Option<Task>> {
        let record: TaskRecord = record::decode(&container.id, &container.extensions)?;
        let sandbox = record.sandbox_id()?;
        let home = homes.get(&sandbox).copied();
        if home == Some(Home::Unreadable) {
            return Err(Error::internal(format!("sandbox {sandbox} of task {id} cannot be read")));
        }
        let exit = container.labels.get(EXIT).and_then(|label| ExitRecord::parse_label(label));
        let dirs = self.layout.task(id);
        let facts = TaskFacts {
            sandbox: home == Some(Home::Stands),
            snapshot,
            this_boot: record.boot == self.boot,
            exit: exit.map(|exit| exit.to_core()),
            started_at: read_started(dirs.started()).await,
            process,
        };
        let (meta, details) = (record.meta.to_core()?, record.details());
        let entry = Arc::new(TaskEntry::new(id, sandbox, dirs, &container.snapshotter, record));
        // A predecessor may have launched it; what is decided below says whether it has ended.
        entry.set_launched();
        let fate = task_fate(&facts, SystemTime::now());
        let Some(state) = self.settle(&entry, fate, process).await? else { return Ok(None) };
        self.tasks().insert(id, entry);
        Ok(Some(Task { id, sandbox, meta, details, state }))
    }

    /// Does what was decided about a task, and gives its state; `None` if it is gone.
    async fn settle(
        &self,
        entry: &Arc<TaskEntry>,
        fate: TaskFate,
        process: Process,
    ) -> Result<Option<TaskState>> {
        Ok(Some(match fate {
            TaskFate::Destroy => {
                tracing::info!(task.id = %entry.id, "removing a task that was never finished");
                self.destroy_task(entry).await?;
                return Ok(None);
            }
            TaskFate::Created => {
                if process != Process::None {
                    self.end_process(&entry.id.to_string()).await?;
                }
                entry.set_cleared();
                // Not kept for later: by then it may run, and its start has the logkeeper take the same log up again.
                if let Err(error) = self.finish_log(entry).await {
                    tracing::warn!(task.id = %entry.id, error = error.report(), "the log of an undone start stays open");
                }
                crate::text::remove_tree(&entry.dirs.run).await?;
                TaskState::Created
            }
            TaskFate::Running(started) => {
                entry.set_started(Some(started));
                self.watch_oom(entry);
                self.resume_log(entry).await;
                self.clear_execs(entry);
                let holds = {
                    let record = entry.record();
                    record.stdin && !record.stdin_once
                };
                if holds && let Err(error) = crate::task::hold_stdin(entry) {
                    tracing::warn!(task.id = %entry.id, error = error.report(), "standard input is not held open");
                }
                TaskState::Running { pid: started.pid, started_at: started.at }
            }
            TaskFate::Reap(started_at) => {
                let now = SystemTime::now();
                entry.set_started(Some(Started { pid: 0, at: started_at.unwrap_or(now) }));
                match tokio::time::timeout(REAP, self.reap_now(entry)).await {
                    Ok(exit) => {
                        let exit = exit?;
                        let at = started_at.unwrap_or_else(|| now.min(exit.finished_at));
                        TaskState::Exited { started_at: Some(at), exit }
                    }
                    Err(_) => TaskState::Running { pid: 0, started_at: started_at.unwrap_or(now) },
                }
            }
            TaskFate::Lost(started_at) => {
                let now = SystemTime::now();
                let exit = Exit::lost(started_at.map_or(now, |at| now.max(at)));
                self.record_exit(entry, &exit, started_at).await?;
                self.finish_log_in_time(entry).await;
                entry.set_exit(exit.clone());
                TaskState::Exited { started_at, exit }
            }
            TaskFate::Exited(exit, started_at) => {
                if process != Process::None {
                    self.end_process(&entry.id.to_string()).await?;
                }
                entry.set_cleared();
                self.finish_log_in_time(entry).await;
                entry.set_exit(exit.clone());
                TaskState::Exited { started_at, exit }
            }
        }))
    }
}

impl Inner {
    /// Has the logkeeper go on with a running task's log, should it not know of it, and holds the FIFOs.
    async fn resume_log(&self, entry: &Arc<TaskEntry>) {
        let (output, tty) = {
            let record = entry.record();
            (record.output.clone(), record.tty)
        };
        let OutputRecord::Log(log) = output else { return };
        let spec = crate::task::log_spec(entry, log, tty);
        if let Err(error) = crate::task::hold_output(entry, &spec) {
            tracing::warn!(task.id = %entry.id, error = error.report(), "the output of a task is not held");
        }
        if let Err(fault) = self.logkeeper.open(&spec).await {
            tracing::warn!(task.id = %entry.id, error = %fault, "the log of a task may not go on");
        }
    }
}

/// Whether the namespaces that a sandbox should have are there.
fn is_pinned(entry: &SandboxEntry) -> bool {
    use switchyard_namespaces::{Ns, is_namespace_file};
    let record = &entry.record;
    let own_net = matches!(record.network, NetworkRecord::Pod | NetworkRecord::Isolated);
    let wanted =
        [(Ns::Net, own_net), (Ns::Ipc, !record.host_ipc), (Ns::Uts, record.network != NetworkRecord::Host)];
    wanted
        .into_iter()
        .filter(|(_, wanted)| *wanted)
        .all(|(ns, _)| is_namespace_file(&entry.dirs.pins.join(ns.file_name())).unwrap_or(false))
}

async fn read_started(path: PathBuf) -> Option<SystemTime> {
    let text = tokio::fs::read_to_string(path).await.ok()?;
    text.trim().parse().ok().map(from_ns)
}

/// Names of the directories below `dir` that are ids.
fn ids_below<I: FromStr>(dir: &std::path::Path) -> Result<BTreeMap<String, I>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(fault) => return Err(crate::text::io_error("list", dir, fault)),
    };
    let mut ids = BTreeMap::new();
    for entry in entries {
        let entry =
            entry.map_err(|fault| Error::internal(format!("list {}", dir.display())).with_source(fault))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Ok(id) = name.parse() {
            ids.insert(name, id);
        }
    }
    Ok(ids)
}
