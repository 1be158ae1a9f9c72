//! Start-up: what a predecessor left is adopted if it is whole, finished if it can be, and cleaned up if not.
//!
//! Everything is found by the container objects and by what is named after them. An object that cannot be read is left alone and
//! told of: it may belong to a newer version.
//!
//! Requests wait for what must be known of each object, and for nothing else: what has to be cleared away is found before they are
//! served, so that it is told from what is made then, and cleared away afterwards.

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
    self, EXIT, ExitRecord, NetworkRecord, PHASE, Phase, SandboxRecord, TaskRecord, from_ns,
};
use crate::sandbox::SandboxEntry;
use crate::task::TaskEntry;

mod debris;
mod decide;
mod inventory;
mod lost;
mod plugins;
mod settle;
pub(crate) mod shims;
mod waits;

use decide::{Process, SandboxFacts, TaskFacts, TaskFate, must_ask, sandbox_fate, task_fate};
use inventory::Inventory;

/// How many objects are worked on at once.
const AT_ONCE: usize = 16;

/// How long a shim may take to say how its task is; a task that nothing is said of counts as running, and is watched.
const ASK: Duration = Duration::from_millis(250);

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

/// What is found, and what is left to do about it while requests are served.
#[derive(Debug, Default)]
struct Finding {
    recovered: Recovered,
    homes: HashMap<SandboxId, Home>,
    clear: Vec<Leftover>,
    running: Vec<Arc<TaskEntry>>,
    /// Ids of tasks of earlier boots: they have ended, whatever else is known of them.
    earlier: HashSet<String>,
}

impl Inner {
    pub(crate) async fn recover(self: &Arc<Self>) -> Result<Recovered> {
        self.take_plugins().await?;
        self.abilities.refresh(&self.client).await;
        let Inventory { sandboxes, tasks, all, snapshots } = self.take_inventory().await?;
        self.sandboxes().clear();
        self.tasks().clear();
        self.inherited().clear();
        reach(Step::RecoveryLooked);

        let mut finding = Finding::default();
        self.recover_sandboxes(sandboxes, &mut finding).await?;
        let known: HashSet<TaskId> = tasks.iter().map(|(id, _)| *id).collect();
        let homes = std::mem::take(&mut finding.homes);
        let outcomes: Vec<_> = stream::iter(tasks)
            .map(|(id, container)| {
                let snapshot = snapshots.may_have(&container.snapshotter, &container.id);
                let homes = &homes;
                async move { (id, self.recover_task(id, &container, snapshot, homes).await) }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (id, outcome) in outcomes {
            match outcome {
                Ok((entry, fate, task)) => finding.place(self, entry, &fate, task),
                Err(error) if matches!(self.health.now(), Contact::Down { .. }) => return Err(error),
                Err(error) => {
                    tracing::error!(task.id = %id, error = error.report(), "a task cannot be recovered and is left alone");
                }
            }
        }
        // Only now: a task whose end is on record is listed without its snapshot too.
        self.remove_lost_layers(&snapshots, &finding.earlier).await;
        reach(Step::RecoveryTasks);
        let debris = self.find_debris(&snapshots, &all).await?;
        reach(Step::RecoverySandboxes);
        self.settle_kept().await?;
        self.end_old_waits().await?;

        // From here on requests may be served.
        let Finding { recovered, homes: _, clear, running, earlier: _ } = finding;
        for leftover in clear {
            self.clear_soon(leftover);
        }
        for entry in running {
            self.end_taken_input(&entry);
            let (inner, turn) = (Arc::clone(self), entry.take_turn().await);
            self.tracker.spawn(async move {
                let _turn = turn;
                inner.resume_log(&entry).await;
            });
        }
        let inner = Arc::clone(self);
        self.tracker.spawn(async move {
            inner.clear_debris(debris, &known).await;
            reach(Step::RecoveryDebris);
        });
        self.recovered.cancel();
        Ok(recovered)
    }

    async fn recover_sandboxes(
        &self,
        sandboxes: Vec<(SandboxId, api::Container)>,
        finding: &mut Finding,
    ) -> Result<()> {
        let outcomes: Vec<_> = stream::iter(sandboxes)
            .map(|(id, container)| async move { (id, self.recover_sandbox(id, &container).await) })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        for (id, outcome) in outcomes {
            match outcome {
                Ok(Some(sandbox)) => {
                    finding.homes.insert(id, Home::Stands);
                    finding.recovered.sandboxes.push(sandbox);
                }
                Ok(None) => {
                    tracing::info!(sandbox.id = %id, "removing a sandbox that was never finished");
                    self.inherited().insert(id.to_string());
                    finding.clear.push(Leftover::Sandbox(id, None));
                }
                Err(error) if matches!(self.health.now(), Contact::Down { .. }) => return Err(error),
                Err(error) => {
                    finding.homes.insert(id, Home::Unreadable);
                    tracing::error!(sandbox.id = %id, error = error.report(), "a sandbox cannot be read: it and its tasks are left alone");
                }
            }
        }
        Ok(())
    }

    /// Puts a sandbox back in its place; `None` if it was never finished.
    async fn recover_sandbox(&self, id: SandboxId, container: &api::Container) -> Result<Option<Sandbox>> {
        let phase = container.labels.get(PHASE).map(String::as_str).unwrap_or_default();
        let phase = Phase::parse(phase)
            .ok_or_else(|| Error::internal(format!("sandbox {id} is in the unknown phase {phase:?}")))?;
        let record: SandboxRecord = record::decode(&container.id, &container.extensions)?;
        let process = if record.infra && phase == Phase::Ready {
            self.ask(&container.id, None).await?
        } else {
            Process::None
        };
        let pid = match process {
            Process::Running { pid } | Process::Unanswered { pid } => Some(pid),
            Process::None | Process::Created | Process::Stopped => None,
        };
        let entry = SandboxEntry { dirs: self.layout.sandbox(id), pid, record, released: false };
        self.adopt_groups(id, &entry);
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

    /// Asks how a container's process is. `pid` is what is known of one that does not answer.
    async fn ask(&self, id: &str, pid: Option<u32>) -> Result<Process> {
        match tokio::time::timeout(ASK, self.process_now(id)).await {
            Ok(Ok(process)) => Ok(process),
            Ok(Err(error)) if matches!(self.health.now(), Contact::Down { .. }) => Err(error),
            Ok(Err(error)) => {
                tracing::warn!(id, error = error.report(), "how a process is cannot be known now");
                Ok(Process::Unanswered { pid: pid.unwrap_or(0) })
            }
            Err(_) => {
                tracing::warn!(id, limit = ?ASK, "a shim does not answer");
                Ok(Process::Unanswered { pid: pid.unwrap_or(0) })
            }
        }
    }

    /// Decides about a task and does what requests must wait for; `None` if it has to go.
    async fn recover_task(
        &self,
        id: TaskId,
        container: &api::Container,
        snapshot: bool,
        homes: &HashMap<SandboxId, Home>,
    ) -> Result<(Arc<TaskEntry>, TaskFate, Option<Task>)> {
        let record: TaskRecord = record::decode(&container.id, &container.extensions)?;
        let sandbox = record.sandbox_id()?;
        let home = homes.get(&sandbox).copied();
        if home == Some(Home::Unreadable) {
            return Err(Error::internal(format!("sandbox {sandbox} of task {id} cannot be read")));
        }
        let exit = container.labels.get(EXIT).and_then(|label| ExitRecord::parse_label(label));
        let dirs = self.layout.task(id);
        let noted = match exit {
            None => read_failure(dirs.failed()).await,
            Some(_) => None,
        };
        let unrecorded = noted.is_some();
        let exit = exit.or(noted);
        let started = read_started(dirs.started()).await;
        let begun = dirs.run.exists();
        let process = if must_ask(exit.is_some(), begun, started.is_some()) {
            self.ask(&container.id, started.map(|started| started.pid)).await?
        } else {
            Process::None
        };
        let facts = TaskFacts {
            sandbox: home == Some(Home::Stands),
            snapshot,
            this_boot: record.boot == self.boot,
            exit: exit.map(|exit| exit.to_core()),
            started_at: started.map(|started| started.at),
            begun,
            process,
        };
        let (meta, details) = (record.meta.to_core()?, record.details());
        let entry = Arc::new(TaskEntry::new(id, sandbox, dirs, &container.snapshotter, record));
        // A predecessor may have launched it; what is decided below says whether it has ended.
        entry.set_launched();
        let fate = task_fate(&facts, SystemTime::now());
        if let (true, TaskFate::Exited(exit, started_at)) = (unrecorded, &fate) {
            self.record_exit(&entry, exit, *started_at).await?;
        }
        let state = self.take_over(&entry, &fate, begun && started.is_none()).await?;
        Ok((entry, fate, state.map(|state| Task { id, sandbox, meta, details, state })))
    }

    /// Does what requests must wait for about a task, and gives its state; `None` if it has to go. `cut` says that a start was begun
    /// and not finished.
    async fn take_over(
        &self,
        entry: &Arc<TaskEntry>,
        fate: &TaskFate,
        cut: bool,
    ) -> Result<Option<TaskState>> {
        let id = entry.id.to_string();
        Ok(Some(match fate {
            TaskFate::Destroy => {
                if cut {
                    self.inherited().insert(id);
                }
                return Ok(None);
            }
            TaskFate::Created => {
                entry.set_cleared();
                TaskState::Created
            }
            TaskFate::Unsettled => {
                self.inherited().insert(id);
                TaskState::Created
            }
            TaskFate::Running(started) => {
                self.adopt(entry, *started);
                TaskState::Running { pid: started.pid, started_at: started.at }
            }
            TaskFate::Reap(started_at) => {
                let now = SystemTime::now();
                entry.set_started(Some(Started { pid: 0, at: started_at.unwrap_or(now) }));
                match tokio::time::timeout(REAP, self.recorded_exit(entry)).await {
                    Ok(exit) => {
                        let exit = exit?;
                        entry.set_exit(exit.clone());
                        let at = started_at.unwrap_or_else(|| now.min(exit.finished_at));
                        TaskState::Exited { started_at: Some(at), exit }
                    }
                    Err(_) => TaskState::Running { pid: 0, started_at: started_at.unwrap_or(now) },
                }
            }
            TaskFate::Lost(started_at) => {
                let now = SystemTime::now();
                let exit = Exit::lost(started_at.map_or(now, |at| now.max(at)));
                self.record_exit(entry, &exit, *started_at).await?;
                entry.set_exit(exit.clone());
                TaskState::Exited { started_at: *started_at, exit }
            }
            TaskFate::Exited(exit, started_at) => {
                entry.set_exit(exit.clone());
                TaskState::Exited { started_at: *started_at, exit: exit.clone() }
            }
        }))
    }

    /// Takes care of a process that runs; its log is seen to apart.
    fn adopt(&self, entry: &Arc<TaskEntry>, started: Started) {
        entry.set_started(Some(started));
        self.hold_main(entry, started.pid);
        self.watch_oom(entry);
        self.clear_execs(entry);
        if entry.is_kept()
            && let Some(spec) = crate::task::log_spec(entry)
            && let Err(error) = crate::task::hold_output(entry, &spec)
        {
            tracing::warn!(task.id = %entry.id, error = error.report(), "the output of a task is not held");
        }
    }

    /// Has the logkeeper go on with a running task's log, should it not know of it.
    async fn resume_log(&self, entry: &Arc<TaskEntry>) {
        let Some(spec) = crate::task::log_spec(entry).filter(|_| entry.is_kept() && entry.exit().is_none())
        else {
            return;
        };
        if let Err(fault) = self.logkeeper.open(&spec).await {
            tracing::warn!(task.id = %entry.id, error = %fault, "the log of a task may not go on");
        }
    }
}

impl Finding {
    /// Puts a task where it belongs, and notes what is left to do about it.
    fn place(&mut self, inner: &Inner, entry: Arc<TaskEntry>, fate: &TaskFate, task: Option<Task>) {
        if entry.record().boot != inner.boot && !matches!(fate, TaskFate::Running(_)) {
            self.earlier.insert(entry.id.to_string());
        }
        let Some(task) = task else {
            tracing::info!(task.id = %entry.id, "removing a task that was never finished");
            self.clear.push(Leftover::Task(entry));
            return;
        };
        match fate {
            TaskFate::Destroy | TaskFate::Created => {}
            TaskFate::Unsettled => self.recovered.unsettled.push(entry.id),
            TaskFate::Running(_) => self.running.push(Arc::clone(&entry)),
            TaskFate::Reap(_) | TaskFate::Lost(_) | TaskFate::Exited(..) => {
                if entry.exit().is_some() && entry.dirs.run.exists() {
                    self.clear.push(Leftover::Ended(Arc::clone(&entry)));
                }
            }
        }
        inner.tasks().insert(entry.id, entry);
        self.recovered.tasks.push(task);
    }
}

/// Whether the namespaces that a sandbox should have are there.
fn is_pinned(entry: &SandboxEntry) -> bool {
    use switchyard_namespaces::{Ns, is_namespace_file};
    let record = &entry.record;
    let own_net = matches!(record.network, NetworkRecord::Pod | NetworkRecord::Isolated);
    let wanted = [
        (Ns::User, record.users.is_some()),
        (Ns::Net, own_net),
        (Ns::Ipc, !record.host_ipc),
        (Ns::Uts, record.network != NetworkRecord::Host),
    ];
    wanted
        .into_iter()
        .filter(|(_, wanted)| *wanted)
        .all(|(ns, _)| is_namespace_file(&entry.dirs.pins.join(ns.file_name())).unwrap_or(false))
}

/// When a task was started and as which process, by the file that a start leaves; older daemons wrote no process.
async fn read_started(path: PathBuf) -> Option<Started> {
    let text = tokio::fs::read_to_string(path).await.ok()?;
    let mut words = text.split_whitespace();
    let at = from_ns(words.next()?.parse().ok()?);
    let pid = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    Some(Started { pid, at })
}

/// How a start failed that containerd could not be told of.
async fn read_failure(path: PathBuf) -> Option<ExitRecord> {
    ExitRecord::parse_label(&tokio::fs::read_to_string(path).await.ok()?)
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
