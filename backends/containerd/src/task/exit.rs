//! The exit of a task: observed, persisted in its container object, and only then deleted from containerd.
//!
//! An exit that cannot be persisted, mostly because the disk is full, is reported all the same: until it is
//! persisted, containerd keeps the process, and with it the exit status that it got from the shim, where the
//! next daemon process finds it. A removal, which frees space, deletes the process all the same, and so does the
//! undo of a failed start: the exit is in a note then, until it is persisted or the removal has succeeded.

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

/// How long the cleanup after an exit may delay the report of the exit; after that it continues in the
/// background.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long output may still arrive after the shim was told to delete the process.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Observes and persists the exits of tasks, ends their processes, and finishes their logs.
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
    /// Waits for the exit of a task. Any number of callers share one wait; if the caller that drives it is
    /// cancelled, the next caller continues it.
    pub(crate) async fn wait_task(self: &Arc<Self>, id: TaskId) -> Result<Exit> {
        let entry = self.started_task(id)?;
        let _turn = entry.exit_calls.report.lock().await;
        if let Some(exit) = entry.reported_exit() {
            return Ok(exit);
        }
        let exit = self.reap(&entry).await?;
        entry.apply(LifecycleEvent::ExitReported);
        Ok(exit)
    }

    /// The same, but does not wait for the cleanup.
    pub(crate) async fn wait_end(&self, id: TaskId) -> Result<()> {
        let entry = self.started_task(id)?;
        if entry.reported_exit().is_none() {
            // If the exit cannot be persisted, the caller of `wait_task` has that retried.
            self.observe_exit(&entry).await?;
        }
        Ok(())
    }

    fn started_task(&self, id: TaskId) -> Result<Arc<TaskEntry>> {
        let entry = self.table.get(id)?;
        if entry.reported_exit().is_none() && entry.started().is_none() {
            return Err(Error::failed_precondition(format!("task {id} has not been started")));
        }
        Ok(entry)
    }

    /// The exit of a task, and the error if it could not be persisted.
    async fn observe_exit(&self, entry: &TaskEntry) -> Result<(Exit, Option<Error>)> {
        let observed = self.observed_exit(entry).await?;
        // Boxed, like everything that follows an exit: the future that waits for the exit exists for each
        // task, perhaps for years, and has to be small.
        match Box::pin(self.persist_exit_once(entry, || observed.clone())).await {
            Ok(recorded) => Ok((recorded, None)),
            Err(error) => Ok((observed, Some(error))),
        }
    }

    /// The exit of a task, once it is known: persisted or not.
    async fn observed_exit(&self, entry: &TaskEntry) -> Result<Exit> {
        let _turn = entry.exit_calls.observe.lock().await;
        if let Some(exit) = entry.exit() {
            return Ok(exit);
        }
        let exit = self.await_exit(entry).await?;
        entry.apply(LifecycleEvent::ExitObserved(exit.clone()));
        Ok(exit)
    }

    /// Adopts an exit that recovery has found, and persists it: now, or later if containerd cannot store it, for instance
    /// on a full or read-only disk. The task stays in the lists either way.
    ///
    /// # Errors
    /// If containerd did not answer: what it would have said of the task is not known.
    pub(crate) async fn adopt_exit(
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
                tracing::warn!(task.id = %entry.id, error = error.report(), "an exit found by recovery cannot be persisted: the cleanup queue retries it");
                Ok(())
            }
            done => done,
        }
    }

    /// Persists the exit of a process, unless one is persisted already; returns the persisted one. An exit
    /// that was observed before takes precedence over `end`.
    pub(crate) async fn persist_exit(&self, entry: &TaskEntry, end: ProcessExit) -> Result<Exit> {
        if let Some(exit) = entry.persisted_exit() {
            return Ok(exit);
        }
        let ended = self.exit_from_end(entry, end).await;
        self.persist_exit_once(entry, || entry.unpersisted_exit().unwrap_or(ended)).await
    }

    /// Persists the observed exit of a task, if there is one and none is persisted. Idempotent.
    pub(crate) async fn persist_observed_exit(&self, entry: &TaskEntry) -> Result<()> {
        let Some(observed) = entry.unpersisted_exit() else { return Ok(()) };
        self.persist_exit_once(entry, || observed).await.map(drop)
    }

    /// Persists an exit unless one is persisted: the first caller wins. If the container object is gone,
    /// nothing has to be persisted.
    async fn persist_exit_once(&self, entry: &TaskEntry, exit: impl FnOnce() -> Exit) -> Result<Exit> {
        let _turn = entry.exit_calls.persist.lock().await;
        if let Some(exit) = entry.persisted_exit() {
            return Ok(exit);
        }
        let exit = exit();
        let started = entry.started().map(|started| started.at);
        ignore_not_found(self.write_exit_label(entry, &exit, started).await)?;
        entry.apply(LifecycleEvent::ExitPersisted(exit.clone()));
        Ok(exit)
    }

    /// Returns an observed exit even if persisting it fails, or if the cleanup takes longer than allowed:
    /// both are then done later.
    async fn reap(self: &Arc<Self>, entry: &Arc<TaskEntry>) -> Result<Exit> {
        let (exit, unrecorded) = self.observe_exit(entry).await?;
        if let Some(error) = unrecorded {
            tracing::warn!(task.id = %entry.id, error = error.report(), "cannot persist the exit of a task: the cleanup queue retries it and then cleans up");
            self.cleanup.enqueue(ExitCleanup::new(self, Arc::clone(entry)));
            return Ok(exit);
        }
        self.context.faults.reach(CrashPoint::TaskExitRecorded)?;
        let exits = Arc::clone(self);
        let ended = Arc::clone(entry);
        let clearing = self.reapers.spawn(async move {
            if let Err(error) = exits.clean_up_process(&ended).await {
                tracing::warn!(task.id = %ended.id, error = error.report(), "cannot clean up after the exit of a task: the cleanup queue retries it");
                exits.cleanup.enqueue(ExitCleanup::new(&exits, ended));
            }
        });
        match tokio::time::timeout(CLEANUP_TIMEOUT, clearing).await {
            Ok(cleared) => cleared.map_err(|fault| {
                Error::internal(format!("the cleanup after the exit of task {} was aborted", entry.id))
                    .with_source(fault)
            })?,
            Err(_) => {
                tracing::warn!(task.id = %entry.id, "the cleanup after the exit of a task takes longer than {CLEANUP_TIMEOUT:?}: it continues");
            }
        }
        Ok(exit)
    }

    /// Persists the observed exit and cleans up after it. Idempotent.
    ///
    /// While an exit cannot be persisted, containerd keeps it with the process that has exited. That of a failed start is
    /// in a note, and its process may run: it is ended all the same.
    pub(crate) async fn clean_up_exit(&self, entry: &TaskEntry) -> Result<()> {
        let persisted = self.persist_observed_exit(entry).await;
        let failed_start = entry.exit().is_some_and(|exit| matches!(exit.cause, ExitCause::StartFailed(_)));
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

    /// Waits without a deadline: a task may run for years. But once its main process has exited, its shim has
    /// to report that.
    async fn await_exit(&self, entry: &TaskEntry) -> Result<Exit> {
        let id = entry.id.to_string();
        loop {
            let known = tokio::select! {
                reported = self.reported_exit(entry) => reported.map(Some),
                () = self.exit_overdue(entry) => Box::pin(self.recover_missed_exit(entry)).await,
            };
            if let Some(exit) = known? {
                self.shims.unresponsive.clear(&id);
                return Ok(exit);
            }
        }
    }

    /// The exit of a task as containerd reports it.
    async fn reported_exit(&self, entry: &TaskEntry) -> Result<Exit> {
        let request = api::WaitRequest { container_id: entry.id.to_string(), exec_id: String::new() };
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
                        tracing::debug!(task.id = %entry.id, error = error.report(), "containerd is unavailable while waiting for the exit of a task: waiting for its return");
                        self.health.wait_regained().await;
                    }
                    error => return Err(error),
                },
            }
        };
        let end = ProcessExit {
            code: i32::try_from(answer.exit_status).unwrap_or(i32::MAX),
            at: answer.exited_at.and_then(|at| SystemTime::try_from(at).ok()),
        };
        // Boxed: see [`Exits::observe_exit`].
        Ok(Box::pin(self.exit_from_end(entry, end)).await)
    }

    /// The exit of a task whose process ended with `end`. Cancel-safe.
    pub(crate) async fn exit_from_end(&self, entry: &TaskEntry, end: ProcessExit) -> Exit {
        let finished_at = entry.not_before_start(end.at.unwrap_or_else(SystemTime::now));
        let killed = self.task_cgroups.was_oom_killed(entry, end.code).await;
        let cause = if killed { ExitCause::OomKilled } else { ExitCause::Exited };
        Exit { code: end.code, finished_at, cause }
    }

    /// Writes the exit of a task into its container object, as a label.
    pub(crate) async fn write_exit_label(
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
        self.client.update_container(container, vec![format!("labels.{EXIT}")]).await
    }

    /// Has the logkeeper write the rest of a task's output and close its FIFOs. Idempotent. If this fails,
    /// the output stays in the FIFOs, which this daemon holds open, until the call is repeated.
    ///
    /// # Errors
    /// The logkeeper cannot be reached, or fails.
    pub(crate) async fn finish_log(&self, entry: &TaskEntry) -> Result<()> {
        self.logkeeper_up_for(entry)?;
        if entry.uses_logkeeper() && !entry.is_output_finished() {
            self.logkeeper.finish(&entry.id.to_string(), DRAIN_TIMEOUT).await.map_err(from_logkeeper)?;
            entry.set_output_finished();
        }
        Ok(())
    }

    /// Checks, for a task that needs the logkeeper, that it answers, as far as is known.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    pub(super) fn logkeeper_up_for(&self, entry: &TaskEntry) -> Result<()> {
        if entry.uses_logkeeper() { self.health.check_logkeeper() } else { Ok(()) }
    }

    pub(crate) async fn reopen_log(&self, id: TaskId) -> Result<()> {
        let entry = self.table.get(id)?;
        if !matches!(entry.record().output, OutputRecord::Log(_)) {
            return Err(Error::failed_precondition(format!("task {id} has no log file")));
        }
        self.logkeeper.reopen(&id.to_string()).await.map_err(from_logkeeper)
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

/// Notes an exit in a file for recovery, if containerd cannot store it and its process is removed: clients are told of it
/// now, so the next daemon process has to know of it too.
pub(super) async fn note_exit(entry: &TaskEntry, exit: &Exit, started: Option<SystemTime>) {
    let path = entry.dirs.exit_note();
    let text = ExitRecord::from_core(exit, started).to_label();
    match tokio::fs::write(&path, text).await {
        Ok(()) => switchyard_crash_points::reach(CrashPoint::ExitNoted),
        Err(fault) => {
            tracing::error!(task.id = %entry.id, error = %fault, "cannot note an exit that containerd cannot store: it would be unknown after a kill of this daemon");
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
        Self { exits: Weak::clone(&exits.weak), entry }
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
