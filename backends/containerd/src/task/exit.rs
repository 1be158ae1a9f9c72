//! The exit of a task. It goes through five states:
//!
//! ```text
//!                                  ┌──────────────── 6 ───────────────┐
//!                                  │                                  ▼
//!  start ─ 1 ─► protected ─ 2 ─► observed ─ 3 ─► persisted ─ 4 ─► reported
//!                                  │                ▲                 ▲
//!                                  └─ 5 ─► noted ─7─┘                 │
//!                                            └─────────── 8 ──────────┘
//! ```
//!
//! - **protected**: the task runs, and a record in containerd's sandbox store keeps its exit status from being
//!   lost if containerd is down when it exits (`processes/protected_exits.rs`).
//! - **observed**: this daemon knows the exit: from containerd's `Wait`, from the state of the process, or from
//!   the zombies of a shim that hangs (`task/hung.rs`). In memory only; containerd has the exit status as long
//!   as it has the process.
//! - **noted**: in a file of the run directory, because containerd cannot store the exit and its process is
//!   deleted all the same: by a removal, which frees space, or by the undo of a failed start.
//! - **persisted**: in a label of the container object. The first exit that is persisted stands.
//! - **reported**: clients get it. In memory only; recovery reports each exit that it finds.
//!
//! A kill of the daemon after an arrow leaves what the third column says, and the next daemon process continues:
//!
//! | | by | left by a kill | continued by |
//! |---|---|---|---|
//! | 1 | `protect_exit`, while the program is started | a protection without a running task, or the reverse | `sync_protected_exits` |
//! | 2 | `observe_exit` | the exited process | recovery, which queries its state and persists the exit |
//! | 3 | `persist_exit` | the label, the process, a log that is not finished | recovery, and [`ExitCleanup`] |
//! | 4 | `clean_up_process`: process and protection deleted, log finished | the label, and what is not cleaned up yet | the same |
//! | 5 | `note_exit` | the note, and the process, which may run after a failed start | the same |
//! | 6 | `wait_task`, if containerd cannot store the label | as after 2 | as after 2 |
//! | 7 | [`ExitCleanup`]; `undo_start`, repeated | the label, which takes precedence over the note | as after 3 |
//! | 8 | `undo_start` | as after 5 | as after 5 |
//!
//! After 6 the cleanup queue of the same daemon repeats 3 until it succeeds, and then cleans up. The note is
//! deleted with the run directory. The failure of a start is persisted or noted at once.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use containerd_client::services::v1 as api;
use futures::future::BoxFuture;
use switchyard_core::backend::Started;
use switchyard_core::id::TaskId;
use switchyard_core::state::{Exit, ExitCause};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_logkeeper as logkeeper;
use tokio_util::task::TaskTracker;

use super::logs::from_logkeeper;
use super::{LifecycleEvent, TaskEntry};
use crate::base::crash_points::CrashPoint;
use crate::base::error::{from_status, is_unanswered};
use crate::base::fs::blocking;
use crate::cleanup::{Cleanup, CleanupQueue, upgrade};
use crate::client::health::Health;
use crate::client::process_state::ProcessExit;
use crate::client::{Client, ignore_not_found};
use crate::context::Context;
use crate::processes::Processes;
use crate::record::{EXIT, ExitRecord, LeafRecord, OutputRecord};
use crate::sandbox::Sandboxes;
use crate::shims::Shims;
use crate::task::cgroups::TaskCgroups;
use crate::task::storage::Storage;
use crate::task::table::TaskTable;

/// Limit for which the cleanup after an exit may delay the report of the exit; after that it continues in the
/// background.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit for output to arrive after the shim was asked to delete the process.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Observes, persists and reports the exits of tasks, ends their processes, and finishes their logs.
#[derive(Debug)]
pub(crate) struct Exits {
    /// This object, for cleanups that outlive the call that queues them.
    pub(crate) weak: Weak<Self>,
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) health: Health,
    pub(crate) logkeeper: Arc<logkeeper::Client>,
    pub(crate) table: Arc<TaskTable>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) task_cgroups: Arc<TaskCgroups>,
    pub(crate) processes: Arc<Processes>,
    pub(crate) shims: Arc<Shims>,
    pub(crate) cleanup: Arc<CleanupQueue>,
    /// Deletions in containerd after a process exit. containerd cancels a call whose caller has gone, so each
    /// deletion runs as a task of its own and not in the future of a waiting client.
    pub(crate) reapers: TaskTracker,
}

impl Exits {
    /// Waits for the exit of a task. It is returned even if it cannot be persisted, or if the cleanup takes
    /// longer than allowed: both are then done later. Any number of callers share one wait; if the caller that
    /// drives it is cancelled, the next caller continues it.
    pub(crate) async fn wait_task(self: &Arc<Self>, id: TaskId) -> Result<Exit> {
        let entry = self.started_task(id)?;
        let _turn = entry.exit_locks.report.lock().await;
        if let Some(exit) = entry.reported_exit() {
            return Ok(exit);
        }
        let observed = self.observe_exit(&entry).await?;
        // Boxed, like everything that follows an exit: the future that waits for the exit exists for each
        // task, perhaps for years, and has to be small.
        let exit = match Box::pin(self.persist_exit(&entry, observed.clone())).await {
            Ok(persisted) => {
                Box::pin(self.clean_up_in_time(&entry)).await?;
                persisted
            }
            Err(error) => {
                tracing::warn!(task = %entry.id, error = error.report(), "cannot persist the exit of a task: the cleanup queue retries it and then cleans up");
                self.cleanup
                    .enqueue(ExitCleanup::new(self, Arc::clone(&entry)));
                observed
            }
        };
        entry.apply(LifecycleEvent::ExitReported);
        Ok(exit)
    }

    /// The same, but does not wait for the cleanup.
    pub(crate) async fn wait_end(&self, id: TaskId) -> Result<()> {
        let entry = self.started_task(id)?;
        if entry.reported_exit().is_none() {
            let observed = self.observe_exit(&entry).await?;
            // If the exit cannot be persisted, the caller of `wait_task` has that retried.
            let _ = Box::pin(self.persist_exit(&entry, observed)).await;
        }
        Ok(())
    }

    fn started_task(&self, id: TaskId) -> Result<Arc<TaskEntry>> {
        let entry = self.table.get(id)?;
        if entry.reported_exit().is_none() && entry.started().is_none() {
            return Err(Error::failed_precondition(format!(
                "task {id} has not been started"
            )));
        }
        Ok(entry)
    }

    /// Waits until the exit of a task is observed. Without a deadline: a task may run for years. But once its
    /// main process has exited, its shim has to report that to containerd.
    async fn observe_exit(&self, entry: &TaskEntry) -> Result<Exit> {
        let _turn = entry.exit_locks.observe.lock().await;
        if let Some(exit) = entry.exit() {
            return Ok(exit);
        }
        let exit = loop {
            let observed = tokio::select! {
                exit = self.exit_from_containerd(entry) => exit.map(Some),
                () = self.exit_overdue(entry) => Box::pin(self.observe_overdue_exit(entry)).await,
            };
            if let Some(exit) = observed? {
                break exit;
            }
        };
        self.shims.unresponsive.clear(&entry.id.to_string());
        entry.apply(LifecycleEvent::ExitObserved(exit.clone()));
        Ok(exit)
    }

    /// The exit of a task as containerd reports it once its process has exited.
    async fn exit_from_containerd(&self, entry: &TaskEntry) -> Result<Exit> {
        let request = api::WaitRequest {
            container_id: entry.id.to_string(),
            exec_id: String::new(),
        };
        let what = format!("wait for task {}", entry.id);
        let answer = loop {
            match self.client.task_queries().wait(request.clone()).await {
                Ok(answer) => break answer.into_inner(),
                Err(status) => match from_status(&what, status) {
                    // containerd does not know the process any more, so the exit status is lost.
                    error if error.kind() == ErrorKind::NotFound => {
                        return Ok(Exit::lost(entry.not_before_start(SystemTime::now())));
                    }
                    error if error.kind() == ErrorKind::Unavailable => {
                        tracing::debug!(task = %entry.id, error = error.report(), "containerd is unavailable while waiting for the exit of a task: waiting for its return");
                        self.health.wait_regained().await;
                    }
                    error => return Err(error),
                },
            }
        };
        let process = ProcessExit {
            code: i32::try_from(answer.exit_status).unwrap_or(i32::MAX),
            at: answer
                .exited_at
                .and_then(|at| SystemTime::try_from(at).ok()),
        };
        // Boxed: see [`Exits::wait_task`].
        Ok(Box::pin(self.exit_of_process(entry, process)).await)
    }

    /// The exit of a task whose process exited like this. Cancel-safe.
    pub(crate) async fn exit_of_process(&self, entry: &TaskEntry, process: ProcessExit) -> Exit {
        let finished_at = entry.not_before_start(process.at.unwrap_or_else(SystemTime::now));
        let killed = self.task_cgroups.was_oom_killed(entry, process.code).await;
        let cause = if killed {
            ExitCause::OomKilled
        } else {
            ExitCause::Exited
        };
        Exit {
            code: process.code,
            finished_at,
            cause,
        }
    }

    /// Persists the exit of a task: the observed one, or else `found`. Returns the persisted one, which may be
    /// an earlier one. If the container object is gone, nothing has to be persisted.
    pub(super) async fn persist_exit(&self, entry: &TaskEntry, found: Exit) -> Result<Exit> {
        let _turn = entry.exit_locks.persist.lock().await;
        if let Some(exit) = entry.persisted_exit() {
            return Ok(exit);
        }
        let exit = entry.unpersisted_exit().unwrap_or(found);
        let started = entry.started().map(|started| started.at);
        ignore_not_found(self.write_exit_label(entry, &exit, started).await)?;
        entry.apply(LifecycleEvent::ExitPersisted(exit.clone()));
        Ok(exit)
    }

    /// Persists the observed exit of a task, if there is one and none is persisted. Idempotent.
    pub(super) async fn persist_observed_exit(&self, entry: &TaskEntry) -> Result<()> {
        let Some(observed) = entry.unpersisted_exit() else {
            return Ok(());
        };
        self.persist_exit(entry, observed).await.map(drop)
    }

    /// Persists an exit that recovery has found: now, or later if containerd cannot store it, for instance on a
    /// full or read-only disk. The task stays in the lists either way.
    ///
    /// # Errors
    /// If containerd did not answer: what it would have said of the task is not known.
    pub(crate) async fn persist_found_exit(
        &self,
        entry: &TaskEntry,
        exit: &Exit,
        started: Option<SystemTime>,
    ) -> Result<()> {
        if let Some(at) = started
            && entry.started().is_none()
        {
            entry.set_started(Started { pid: 0, at });
        }
        entry.apply(LifecycleEvent::ExitObserved(exit.clone()));
        match self.persist_observed_exit(entry).await {
            Err(error) if !is_unanswered(&error) => {
                tracing::warn!(task = %entry.id, error = error.report(), "an exit found by recovery cannot be persisted: the cleanup queue retries it");
                Ok(())
            }
            done => done,
        }
    }

    /// Writes the exit of a task into its container object, as a label.
    pub(super) async fn write_exit_label(
        &self,
        entry: &TaskEntry,
        exit: &Exit,
        started: Option<SystemTime>,
    ) -> Result<()> {
        let label = ExitRecord::from_core(exit, started).to_label();
        let container = api::Container {
            id: entry.id.to_string(),
            labels: std::iter::once((EXIT.to_owned(), label)).collect(),
            ..Default::default()
        };
        self.client
            .update_container(container, vec![format!("labels.{EXIT}")])
            .await
    }

    /// Cleans up after a persisted exit. What takes longer than allowed continues in the background.
    async fn clean_up_in_time(self: &Arc<Self>, entry: &Arc<TaskEntry>) -> Result<()> {
        self.context.faults.reach(CrashPoint::TaskExitPersisted)?;
        let exits = Arc::clone(self);
        let ended = Arc::clone(entry);
        let clearing = self.reapers.spawn(async move {
            if let Err(error) = exits.clean_up_process(&ended).await {
                tracing::warn!(task = %ended.id, error = error.report(), "cannot clean up after the exit of a task: the cleanup queue retries it");
                exits.cleanup.enqueue(ExitCleanup::new(&exits, ended));
            }
        });
        match tokio::time::timeout(CLEANUP_TIMEOUT, clearing).await {
            Ok(cleared) => cleared.map_err(|fault| {
                Error::internal(format!(
                    "the cleanup after the exit of task {} was aborted",
                    entry.id
                ))
                .with_source(fault)
            }),
            Err(_) => {
                tracing::warn!(task = %entry.id, "the cleanup after the exit of a task takes longer than {CLEANUP_TIMEOUT:?}: it continues");
                Ok(())
            }
        }
    }

    /// Persists the observed exit and cleans up after it. Idempotent.
    ///
    /// While an exit cannot be persisted, containerd keeps it with the process that has exited. That of a failed start is
    /// in a note, and its process may run: it is ended all the same.
    pub(crate) async fn clean_up_exit(&self, entry: &TaskEntry) -> Result<()> {
        let persisted = self.persist_observed_exit(entry).await;
        let failed_start = entry
            .exit()
            .is_some_and(|exit| matches!(exit.cause, ExitCause::StartFailed(_)));
        if persisted.is_ok() || failed_start {
            self.clean_up_process(entry).await?;
        }
        persisted
    }

    /// Deletes an exited process from containerd, and has its log written to the end. Idempotent.
    async fn clean_up_process(&self, entry: &TaskEntry) -> Result<()> {
        let _guard = entry.lock_process().await;
        if entry.may_have_process() {
            self.end_task_process(entry, false).await?;
        }
        self.context.faults.reach(CrashPoint::TaskDeleted)?;
        // Staged mounts are left only if the undo of a failed start was interrupted by a kill or an outage.
        self.storage.unstage(entry).await?;
        self.finish_log(entry).await?;
        self.context.faults.reach(CrashPoint::TaskLogFinished)
    }

    /// Waits for the cleanups after exits that are in progress. Cancel-safe.
    pub(crate) async fn wind_up(&self) {
        self.reapers.close();
        self.reapers.wait().await;
    }

    /// Has the logkeeper write the rest of a task's output and close its FIFOs. Idempotent. If this fails,
    /// the output stays in the FIFOs, which this daemon holds open, until the call is repeated.
    ///
    /// # Errors
    /// The logkeeper cannot be reached, or fails.
    pub(crate) async fn finish_log(&self, entry: &TaskEntry) -> Result<()> {
        self.logkeeper_up_for(entry)?;
        if entry.uses_logkeeper() && !entry.is_output_finished() {
            self.logkeeper
                .finish(&entry.id.to_string(), DRAIN_TIMEOUT)
                .await
                .map_err(from_logkeeper)?;
            entry.set_output_finished();
        }
        Ok(())
    }

    /// Checks, for a task that needs the logkeeper, that it answers, as far as is known.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(super) fn logkeeper_up_for(&self, entry: &TaskEntry) -> Result<()> {
        if entry.uses_logkeeper() {
            self.health.check_logkeeper()
        } else {
            Ok(())
        }
    }

    pub(crate) async fn reopen_log(&self, id: TaskId) -> Result<()> {
        let entry = self.table.get(id)?;
        if !matches!(entry.record().output, OutputRecord::Log(_)) {
            return Err(Error::failed_precondition(format!(
                "task {id} has no log file"
            )));
        }
        self.logkeeper
            .reopen(&id.to_string())
            .await
            .map_err(from_logkeeper)
    }

    /// Ends the process of a task, deletes it from containerd, and restores the cgroup if a client has made
    /// it: a runtime removes it with the process, or when the creation of one has `failed`. Idempotent.
    pub(crate) async fn end_task_process(&self, entry: &TaskEntry, failed: bool) -> Result<()> {
        let _guard = self.lock_pod(entry).await;
        let ended = self.processes.end_process(&entry.id.into()).await?;
        let (theirs, group) = {
            let record = entry.record();
            (record.theirs.clone(), record.group())
        };
        if let Some((LeafRecord { kept, cpuset: _ }, group)) = theirs.zip(group) {
            let cgroups = Arc::clone(&self.task_cgroups.reader);
            blocking(move || {
                if ended || failed {
                    cgroups.recreate(&kept)?;
                }
                cgroups.keep_only(&group, &kept).map_err(Error::from)
            })
            .await?;
        }
        entry.apply(LifecycleEvent::ProcessDeleted);
        Ok(())
    }

    /// Opens a handle of a task's main process, so that signals reach it without running the runtime. Only
    /// for runc-like shims: what others report as a process may not be one of this node.
    pub(crate) fn open_main_process(&self, entry: &TaskEntry, pid: u32) {
        let handler = entry.record().handler.clone();
        if self.context.has_host_processes(&handler) {
            entry.open_process(pid);
        }
    }
}

/// Notes an exit in a file for recovery, because containerd cannot store it and its process is deleted: it is
/// reported to clients now, so the next daemon process has to know of it too.
pub(super) async fn note_exit(entry: &TaskEntry, exit: &Exit, started: Option<SystemTime>) {
    let path = entry.dirs.exit_note();
    let text = ExitRecord::from_core(exit, started).to_label();
    match tokio::fs::write(&path, text).await {
        Ok(()) => switchyard_crash_points::reach(CrashPoint::ExitNoted),
        Err(fault) => {
            tracing::error!(task = %entry.id, error = %fault, "cannot note an exit that containerd cannot store: it would be unknown after a kill of this daemon");
        }
    }
}

/// Removes the containerd task and the log after an exit, and persists the exit if it is not persisted yet.
#[derive(Debug)]
pub(crate) struct ExitCleanup {
    exits: Weak<Exits>,
    entry: Arc<TaskEntry>,
}

impl ExitCleanup {
    pub(crate) fn new(exits: &Exits, entry: Arc<TaskEntry>) -> Self {
        Self {
            exits: Weak::clone(&exits.weak),
            entry,
        }
    }
}

impl Cleanup for ExitCleanup {
    fn description(&self) -> String {
        format!("process of task {}", self.entry.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { upgrade(&self.exits)?.clean_up_exit(&self.entry).await })
    }
}
