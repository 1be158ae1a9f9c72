//! The exit of a task: observed, persisted in its container object, and only then deleted from containerd.
//!
//! An exit that cannot be persisted, mostly because the disk is full, is reported all the same: until it is
//! persisted, containerd keeps the process, and with it the exit status that it got from the shim, where the
//! next daemon process finds it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use containerd_client::services::v1 as api;
use switchyard_cgroup::Kills;
use switchyard_core::backend::Started;
use switchyard_core::id::TaskId;
use switchyard_core::spec::Signal;
use switchyard_core::state::{Exit, ExitCause};
use switchyard_core::{Error, ErrorKind, Result};

use super::TaskEntry;
use super::cleanup::{TaskCleanup, TaskCleanupKind};
use super::oom::oom_killed;
use super::process::Sent;
use super::start::from_logkeeper;
use crate::backend::Inner;
use crate::client::ignore_not_found;
use crate::disks::tolerate_full_disk;
use crate::error::from_status;
use crate::process_state::ProcessExit;
use crate::record::{EXIT, ExitRecord, OutputRecord};
use crate::steps::Step;

/// How long the cleanup after an exit may delay the report of the exit; after that it continues in the
/// background.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long output may still arrive after the shim was told to delete the process.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Inner {
    /// Sends a signal to a task. A signal that a newly started task would lose is delayed until the task can
    /// receive it, for a bounded time.
    pub(crate) async fn signal_task(&self, id: TaskId, signal: Signal) -> Result<()> {
        let Ok(entry) = self.task(id) else { return Ok(()) };
        if signal == Signal::KILL {
            entry.killed.store(true, Ordering::Release);
        }
        entry.wait_signalable(signal).await;
        // Without a process namespace of its own a task's children outlive its main process.
        let all = signal == Signal::KILL && entry.record().shares_pid;
        if !all && entry.signal_process(signal) == Sent::Done {
            return Ok(());
        }
        let request = api::KillRequest {
            container_id: id.to_string(),
            exec_id: String::new(),
            signal: u32::from(signal.number()),
            all,
        };
        let what = format!("signal task {id}");
        ignore_not_found(
            self.call_with_shim_timeout(&id.to_string(), &what, self.client.tasks().kill(request)).await,
        )
    }

    /// Waits for the exit of a task. Any number of callers share one wait; if the caller that drives it is
    /// cancelled, the next caller continues it.
    pub(crate) async fn wait_task(self: &Arc<Self>, id: TaskId) -> Result<Exit> {
        let entry = self.started_task(id)?;
        entry.final_exit.get_or_try_init(|| self.reap(&entry)).await.cloned()
    }

    /// The same, but does not wait for the cleanup.
    pub(crate) async fn wait_end(&self, id: TaskId) -> Result<()> {
        let entry = self.started_task(id)?;
        if entry.final_exit().is_none() {
            // If the exit cannot be persisted, the caller of `wait_task` has that retried.
            self.observe_exit(&entry).await?;
        }
        Ok(())
    }

    fn started_task(&self, id: TaskId) -> Result<Arc<TaskEntry>> {
        let entry = self.task(id)?;
        if entry.final_exit().is_none() && entry.started().is_none() {
            return Err(Error::failed_precondition(format!("task {id} has not been started")));
        }
        Ok(entry)
    }

    /// The exit of a task, and the error if it could not be persisted.
    async fn observe_exit(&self, entry: &TaskEntry) -> Result<(Exit, Option<Error>)> {
        let observed = entry.observed_exit.get_or_try_init(|| self.await_exit(entry)).await?;
        // Boxed, like everything that follows an exit: the future that waits for the exit exists for each
        // task, perhaps for years, and has to be small.
        match Box::pin(self.persist_exit_once(entry, || observed.clone())).await {
            Ok(recorded) => Ok((recorded, None)),
            Err(error) => Ok((observed.clone(), Some(error))),
        }
    }

    /// Adopts an exit that recovery has found, and persists it: now, or later if the disk is full.
    pub(crate) async fn adopt_exit(
        &self,
        entry: &TaskEntry,
        exit: &Exit,
        started: Option<SystemTime>,
    ) -> Result<()> {
        if entry.started().is_none() {
            entry.set_started(started.map(|at| Started { pid: 0, at }));
        }
        // Not set before: only recovery calls this, on a new entry.
        let _ = entry.observed_exit.set(exit.clone());
        tolerate_full_disk(
            self.persist_observed_exit(entry).await,
            "the disk is full: an exit found by recovery is persisted later",
        )
    }

    /// Persists the exit of a process, unless one is persisted already; returns the persisted one. An exit
    /// that was observed before takes precedence over `end`.
    pub(crate) async fn persist_exit(&self, entry: &TaskEntry, end: ProcessExit) -> Result<Exit> {
        self.persist_exit_once(entry, || {
            entry.observed_exit.get().cloned().unwrap_or_else(|| self.exit_from_end(entry, end))
        })
        .await
    }

    /// Persists the observed exit of a task, if there is one and none is persisted. Idempotent.
    pub(crate) async fn persist_observed_exit(&self, entry: &TaskEntry) -> Result<()> {
        let Some(observed) = entry.observed_exit.get() else { return Ok(()) };
        self.persist_exit_once(entry, || observed.clone()).await.map(drop)
    }

    /// Persists an exit unless one is persisted: the first caller wins. If the container object is gone,
    /// nothing has to be persisted.
    async fn persist_exit_once(&self, entry: &TaskEntry, exit: impl FnOnce() -> Exit) -> Result<Exit> {
        let recorded = entry.persisted_exit.get_or_try_init(|| async {
            let exit = exit();
            let started = entry.started().map(|started| started.at);
            ignore_not_found(self.write_exit_label(entry, &exit, started).await)?;
            Ok::<_, Error>(exit)
        });
        recorded.await.cloned()
    }

    /// Returns an observed exit even if persisting it fails, or if the cleanup takes longer than allowed:
    /// both are then done later.
    async fn reap(self: &Arc<Self>, entry: &Arc<TaskEntry>) -> Result<Exit> {
        let (exit, unrecorded) = self.observe_exit(entry).await?;
        if let Some(error) = unrecorded {
            tracing::warn!(task.id = %entry.id, error = error.report(), "cannot persist the exit of a task: the cleanup queue retries it and then cleans up");
            self.cleanup.enqueue(TaskCleanup::new(self, Arc::clone(entry), TaskCleanupKind::Exit));
            return Ok(exit);
        }
        self.faults.reach(Step::TaskExitRecorded)?;
        let inner = Arc::clone(self);
        let ended = Arc::clone(entry);
        let clearing = self.exit_cleanups.spawn(async move {
            if let Err(error) = inner.clean_up_process(&ended).await {
                tracing::warn!(task.id = %ended.id, error = error.report(), "cannot clean up after the exit of a task: the cleanup queue retries it");
                inner.cleanup.enqueue(TaskCleanup::new(&inner, ended, TaskCleanupKind::Exit));
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
    pub(crate) async fn clean_up_exit(&self, entry: &TaskEntry) -> Result<()> {
        self.persist_observed_exit(entry).await?;
        self.clean_up_process(entry).await
    }

    /// Deletes an exited process from containerd, and has its log written to the end. Idempotent.
    async fn clean_up_process(&self, entry: &TaskEntry) -> Result<()> {
        let _guard = entry.lock_process().await;
        if entry.may_have_process() {
            self.end_task_process(entry, false).await?;
        }
        self.faults.reach(Step::TaskDeleted)?;
        entry.release_process();
        // Staged mounts are left only if the undo of a failed start was interrupted by a kill or an outage.
        self.unstage(entry).await?;
        self.finish_log(entry).await?;
        self.faults.reach(Step::TaskLogFinished)
    }

    /// Waits for the cleanups after exits that are in progress. Cancel-safe.
    pub(crate) async fn wind_up(&self) {
        self.exit_cleanups.close();
        self.exit_cleanups.wait().await;
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
                self.unresponsive_shims.clear(&id);
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
        Ok(self.exit_from_end(
            entry,
            ProcessExit {
                code: i32::try_from(answer.exit_status).unwrap_or(i32::MAX),
                at: answer.exited_at.and_then(|at| SystemTime::try_from(at).ok()),
            },
        ))
    }

    /// The exit of a task whose process ended with `end`.
    pub(crate) fn exit_from_end(&self, entry: &TaskEntry, end: ProcessExit) -> Exit {
        let finished_at = entry.not_before_start(end.at.unwrap_or_else(SystemTime::now));
        let killed = self.was_oom_killed(entry, end.code);
        let cause = if killed { ExitCause::OomKilled } else { ExitCause::Exited };
        Exit { code: end.code, finished_at, cause }
    }

    /// Whether the OOM killer has killed a process of a task that exited with `code`.
    fn was_oom_killed(&self, entry: &TaskEntry, code: i32) -> bool {
        let watch = entry.oom.lock().unwrap_or_else(PoisonError::into_inner);
        let kills = match watch.as_ref() {
            Some(watch) => watch.kills(),
            None => match self.cgroup_location(&entry.record()) {
                Some(group) => self
                    .cgroups
                    .oom_kills(&group)
                    .map(|counted| Kills { counted: counted.unwrap_or(0), doubtful: false }),
                None => Ok(Kills::default()),
            },
        };
        let kills = kills.unwrap_or_else(|fault| {
            tracing::warn!(task.id = %entry.id, error = %fault, "cannot read the OOM kills of a task: its exit is not reported as an OOM kill");
            Kills::default()
        });
        oom_killed(kills, code, entry.killed.load(Ordering::Acquire))
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
        self.update_container(container, vec![format!("labels.{EXIT}")]).await
    }

    /// Has the logkeeper write the rest of a task's output and close its FIFOs. Idempotent. If this fails,
    /// the output stays in the FIFOs, which this daemon holds open, until the call is repeated.
    ///
    /// # Errors
    /// The logkeeper cannot be reached, or fails.
    pub(crate) async fn finish_log(&self, entry: &TaskEntry) -> Result<()> {
        self.logkeeper_up_for(entry)?;
        if entry.uses_logkeeper() && !entry.log_finished.load(Ordering::Acquire) {
            self.logkeeper.finish(&entry.id.to_string(), DRAIN_TIMEOUT).await.map_err(from_logkeeper)?;
            entry.log_finished.store(true, Ordering::Release);
            entry.output_fifos.lock().unwrap_or_else(PoisonError::into_inner).take();
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
        let entry = self.task(id)?;
        if !matches!(entry.record().output, OutputRecord::Log(_)) {
            return Err(Error::failed_precondition(format!("task {id} has no log file")));
        }
        self.logkeeper.reopen(&id.to_string()).await.map_err(from_logkeeper)
    }
}
