//! The end of a task: seen, put on record, and only then forgotten by containerd.
//!
//! What cannot be put on record, for want of space as a rule, is told all the same: until it is on record containerd has it from the
//! shim, which is where the next of us would find it.

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
use super::oom::oom_killed;
use super::process::Sent;
use super::start::from_logkeeper;
use crate::backend::Inner;
use crate::cleanup::Cleanup;
use crate::client::ignore_not_found;
use crate::disks::tolerate_full_disk;
use crate::error::from_status;
use crate::record::{EXIT, ExitRecord, OutputRecord};
use crate::recover::ProcessExit;
use crate::steps::Step;

/// How long clearing up after an end may hold up the news of it; it goes on after that.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long output may still come after the shim has been told to let go.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

impl Inner {
    /// Sends a signal to a task. One that a task started a moment ago would lose waits until it would not, for a bounded time.
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

    /// Waits for the end of a task. Any number of callers share one wait; it goes on with the next caller if one leaves.
    pub(crate) async fn wait_task(self: &Arc<Self>, id: TaskId) -> Result<Exit> {
        let entry = self.started_task(id)?;
        entry.final_exit.get_or_try_init(|| self.reap(&entry)).await.cloned()
    }

    /// The same, but does not wait for the clearing up.
    pub(crate) async fn wait_end(&self, id: TaskId) -> Result<()> {
        let entry = self.started_task(id)?;
        if entry.final_exit().is_none() {
            // Whoever watches the task sees to it that it comes on record.
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

    /// The end of a task as it is told, and why it could not be put on record, if it could not.
    async fn observe_exit(&self, entry: &TaskEntry) -> Result<(Exit, Option<Error>)> {
        let observed = entry.observed_exit.get_or_try_init(|| self.await_exit(entry)).await?;
        // Boxed, as all that follows an end: what waits for it, for each task and perhaps for years, is to be small.
        match Box::pin(self.persist_exit_once(entry, || observed.clone())).await {
            Ok(recorded) => Ok((recorded, None)),
            Err(error) => Ok((observed.clone(), Some(error))),
        }
    }

    /// Notes an end that recovery has found, and puts it on record: now, or later if there is no space for it.
    pub(crate) async fn adopt_exit(
        &self,
        entry: &TaskEntry,
        exit: &Exit,
        started: Option<SystemTime>,
    ) -> Result<()> {
        if entry.started().is_none() {
            entry.set_started(started.map(|at| Started { pid: 0, at }));
        }
        // Only recovery does this, on a new entry.
        let _ = entry.observed_exit.set(exit.clone());
        tolerate_full_disk(
            self.persist_observed_exit(entry).await,
            "an end that was found is put on record later",
        )
    }

    /// Puts an end on record that was seen, unless one is; that which is. One that was told already is put on record as it was.
    pub(crate) async fn persist_exit(&self, entry: &TaskEntry, end: ProcessExit) -> Result<Exit> {
        self.persist_exit_once(entry, || {
            entry.observed_exit.get().cloned().unwrap_or_else(|| self.exit_from_end(entry, end))
        })
        .await
    }

    /// Puts the end of a task on record, if one was told and none is. Idempotent.
    pub(crate) async fn persist_observed_exit(&self, entry: &TaskEntry) -> Result<()> {
        let Some(told) = entry.observed_exit.get() else { return Ok(()) };
        self.persist_exit_once(entry, || told.clone()).await.map(drop)
    }

    /// Whoever comes first puts the end on record, and that counts. A task whose container object is gone needs none.
    async fn persist_exit_once(&self, entry: &TaskEntry, exit: impl FnOnce() -> Exit) -> Result<Exit> {
        let recorded = entry.persisted_exit.get_or_try_init(|| async {
            let exit = exit();
            let started = entry.started().map(|started| started.at);
            ignore_not_found(self.write_exit_label(entry, &exit, started).await)?;
            Ok::<_, Error>(exit)
        });
        recorded.await.cloned()
    }

    /// An end that was seen is told, even if putting it on record fails or clearing up after it takes longer: that is then done later.
    async fn reap(self: &Arc<Self>, entry: &Arc<TaskEntry>) -> Result<Exit> {
        let (exit, unrecorded) = self.observe_exit(entry).await?;
        if let Some(error) = unrecorded {
            tracing::warn!(task.id = %entry.id, error = error.report(), "an end is put on record later, and cleared up after");
            self.cleanup.enqueue(Cleanup::EndedTask(Arc::clone(entry)));
            return Ok(exit);
        }
        self.faults.reach(Step::TaskExitRecorded)?;
        let inner = Arc::clone(self);
        let ended = Arc::clone(entry);
        let clearing = self.exit_cleanups.spawn(async move {
            if let Err(error) = inner.clean_up_process(&ended).await {
                tracing::warn!(task.id = %ended.id, error = error.report(), "a task that has ended is cleared up later");
                inner.cleanup.enqueue(Cleanup::EndedTask(ended));
            }
        });
        match tokio::time::timeout(CLEANUP_TIMEOUT, clearing).await {
            Ok(cleared) => cleared.map_err(|fault| {
                Error::internal(format!("the clearing up after task {} broke off", entry.id))
                    .with_source(fault)
            })?,
            Err(_) => {
                tracing::warn!(task.id = %entry.id, "a task that has ended is not cleared up within {CLEANUP_TIMEOUT:?}: that goes on");
            }
        }
        Ok(exit)
    }

    /// Puts an end on record and clears up after it. Idempotent.
    pub(crate) async fn clean_up_exit(&self, entry: &TaskEntry) -> Result<()> {
        self.persist_observed_exit(entry).await?;
        self.clean_up_process(entry).await
    }

    /// Has containerd forget a process that has ended, and its log written to the end. Idempotent.
    async fn clean_up_process(&self, entry: &TaskEntry) -> Result<()> {
        let _turn = entry.lock_process().await;
        if entry.may_have_process() {
            self.end_task_process(entry, false).await?;
        }
        self.faults.reach(Step::TaskDeleted)?;
        entry.release_process();
        // There is something left only of a start that failed, and that a kill or an outage cut off.
        self.unstage(entry).await?;
        self.finish_log(entry).await?;
        self.faults.reach(Step::TaskLogFinished)
    }

    /// Waits for the clearing up that goes on. Cancel-safe.
    pub(crate) async fn wind_up(&self) {
        self.exit_cleanups.close();
        self.exit_cleanups.wait().await;
    }

    /// Waits, with no deadline: a task may run for years. But once its main process has ended, its shim has to tell of that.
    async fn await_exit(&self, entry: &TaskEntry) -> Result<Exit> {
        let id = entry.id.to_string();
        loop {
            let known = tokio::select! {
                told = self.reported_exit(entry) => told.map(Some),
                () = self.exit_overdue(entry) => Box::pin(self.recover_missed_exit(entry)).await,
            };
            if let Some(exit) = known? {
                self.unresponsive_shims.clear(&id);
                return Ok(exit);
            }
        }
    }

    /// The end of a task as containerd tells of it.
    async fn reported_exit(&self, entry: &TaskEntry) -> Result<Exit> {
        let request = api::WaitRequest { container_id: entry.id.to_string(), exec_id: String::new() };
        let what = format!("wait for task {}", entry.id);
        let answer = loop {
            match self.client.task_queries().wait(request.clone()).await {
                Ok(answer) => break answer.into_inner(),
                Err(status) => match from_status(&what, status) {
                    // containerd has lost it, and its exit code with it.
                    error if error.kind() == ErrorKind::NotFound => {
                        return Ok(Exit::lost(entry.not_before_start(SystemTime::now())));
                    }
                    error if error.kind() == ErrorKind::Unavailable => {
                        tracing::debug!(task.id = %entry.id, error = error.report(), "lost sight of a task");
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

    /// The exit of a task whose process has ended so.
    pub(crate) fn exit_from_end(&self, entry: &TaskEntry, end: ProcessExit) -> Exit {
        let finished_at = entry.not_before_start(end.at.unwrap_or_else(SystemTime::now));
        let killed = self.was_oom_killed(entry, end.code);
        let cause = if killed { ExitCause::OomKilled } else { ExitCause::Exited };
        Exit { code: end.code, finished_at, cause }
    }

    /// Whether the kernel has killed a process of a task that has ended with this code, for want of memory.
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
            tracing::warn!(task.id = %entry.id, error = %fault, "whether a task was killed for want of memory is not known");
            Kills::default()
        });
        oom_killed(kills, code, entry.killed.load(Ordering::Acquire))
    }

    /// Writes how a task ended into its container object.
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

    /// Has the logkeeper write what is left of a task's output and let go of it. Idempotent. If it fails, what was written
    /// waits in the held FIFOs until it is told again.
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

    /// Whether the logkeeper answers, as far as is known, for a task that needs it.
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
