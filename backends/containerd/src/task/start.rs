//! The start of a task.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use containerd_client::services::v1 as api;
use switchyard_core::backend::{Blocker, Started, Withdrawal};
use switchyard_core::id::TaskId;
use switchyard_core::operation::{plain_step, step};
use switchyard_core::state::Exit;
use switchyard_core::{Error, ErrorKind, Reason, Result};
use switchyard_logkeeper as logkeeper;

use super::cleanup::{TaskCleanup, TaskCleanupKind};
use super::exit::note_exit;
use super::logs::{from_logkeeper, log_spec, open_output_fifos};
use super::rootfs::check_root;
use super::storage::stage::labelled;
use super::{LifecycleEvent, TaskEntry, fifos};
use crate::base::crash_points::CrashPoint;
use crate::base::disks::full_disk_behind;
use crate::base::fs::{blocking, create_private_dir, io_error};
use crate::base::null_device;
use crate::client::{SLOW, call};
use crate::record::{OutputRecord, to_ns};
use crate::task::Tasks;
use crate::task::fifos::make_fifos;

/// Maximum number of times that a creation is retried because the shim of the pod exited meanwhile.
const CREATE_RETRIES: u32 = 3;

/// The length of the mark of a start, in bytes.
const MARK_LEN: usize = 64;

/// The destination of output that is discarded.
const DEV_NULL: &str = "/dev/null";

/// The standard streams of a process, as the shim takes them.
#[derive(Debug, Default)]
struct Streams {
    stdin: String,
    stdout: String,
    stderr: String,
    /// The log that the logkeeper has to open, if it reads the output.
    log: Option<logkeeper::LogSpec>,
    /// Read ends of FIFOs made by a client, held until the shim has opened these FIFOs.
    readers: Vec<File>,
}

impl Tasks {
    pub(crate) async fn start_task(&self, id: TaskId, withdrawal: &Withdrawal) -> Result<Started> {
        let entry = self.table.get(id)?;
        let guard = plain_step("wait_for_process_lock", entry.lock_process()).await;
        // Nothing has been done yet: a task whose start is refused here can be started later.
        let ready = self
            .wait_ready(&entry)
            .await
            .and_then(|()| withdrawal.check(id));
        ready.map_err(|error| error.with_reason(Reason::NotBegun))?;
        match self.launch(&entry, withdrawal).await {
            Ok(started) => Ok(started),
            Err(error) => {
                let error = full_disk_behind(error, self.context.layout.run()).await;
                // Before the undo, which ends what it can.
                let error = self.explained(&entry, error).await;
                drop(guard);
                let exit = Exit::start_failed(SystemTime::now(), error.report());
                if let Err(undo) = self.undo_start(&entry, &exit).await {
                    tracing::warn!(task = %id, error = undo.report(), "cannot undo a failed start, or cannot record its failure: the cleanup queue retries it");
                    self.cleanup.enqueue(TaskCleanup::new(
                        self,
                        Arc::clone(&entry),
                        TaskCleanupKind::FailedStart(exit),
                    ));
                }
                Err(error)
            }
        }
    }

    /// An error of a start. If containerd has not answered, it names the processes that wait in the kernel.
    async fn explained(&self, entry: &TaskEntry, error: Error) -> Error {
        let look = async {
            let group = entry.record().group();
            let id = entry.id.to_string();
            let sandbox = entry.sandbox.to_string();
            let mut blockers = self.blockers.of_task(&id, &sandbox, group).await;
            blockers.retain(|blocker| blocker.wait.is_uninterruptible());
            blockers
        };
        Blocker::explain_late(error, look).await
    }

    /// Checks that what a start needs is there, and waits for a logkeeper that is busy.
    ///
    /// # Errors
    /// `Unavailable` with the reason.
    async fn wait_ready(&self, entry: &TaskEntry) -> Result<()> {
        self.exits.health.check_containerd()?;
        if entry.uses_logkeeper() {
            plain_step("wait_for_logkeeper", self.exits.health.wait_logkeeper()).await?;
        }
        Ok(())
    }

    async fn launch(&self, entry: &TaskEntry, withdrawal: &Withdrawal) -> Result<Started> {
        // Before anything can fail: the failure of a start that has begun is recorded.
        entry.apply(LifecycleEvent::Launched);
        self.check_target(entry)?;
        let expected_move = self.cgroups.expect_move();
        let Streams {
            stdin,
            stdout,
            stderr,
            log,
            readers,
        } = step("make_fifos", self.streams(entry)).await?;
        let sandbox = self.sandboxes.table.get(entry.sandbox)?;
        let tty = entry.record().tty;
        let runtime = self.context.runtime(&sandbox.record.handler)?;
        let systemd = entry.record().systemd_cgroup;
        let mounts = labelled(
            self.storage.mounts_of(entry).await?,
            entry.record().mount_label.as_deref(),
        );
        let rootfs = step(
            "stage_mounts",
            self.storage.stage(entry, sandbox.users(), mounts),
        )
        .await?;
        let request = api::CreateTaskRequest {
            container_id: entry.id.to_string(),
            rootfs,
            stdin,
            stdout,
            stderr,
            terminal: tty,
            options: self
                .context
                .runtime_options(&runtime, systemd, sandbox.users().as_ref()),
            ..Default::default()
        };
        // This daemon already holds the read ends of the FIFOs, so the process can be created while the
        // logkeeper opens them. Both calls are completed before an error is returned, so that the undo does
        // not race with either.
        let opened = step("open_log", self.open_log(log.as_ref()));
        let (logged, created) = tokio::join!(opened, self.make_process(entry, request, withdrawal));
        drop(readers);
        logged?;
        let pid = created?;
        self.context.faults.reach(CrashPoint::TaskCreated)?;
        // The process exists already: it is the init of the runtime, which waits for `Start` to execute the
        // task's program.
        if self.context.has_host_processes(&sandbox.record.handler) {
            check_root(entry.id, pid).await?;
        }
        if let Err(error) = self.task_cgroups.rescore_main(entry, pid).await {
            tracing::warn!(task = %entry.id, error = error.report(), "cannot set the OOM score of a task: it may keep that of its shim");
        }
        self.task_cgroups.join_cpuset(entry).await?;
        drop(expected_move);
        // If the target still runs, it had the pid all the time, so its namespace is the one that was joined.
        self.check_target(entry)?;
        step("unstage_mounts", self.storage.unstage(entry)).await?;
        step("reserve_record", reserve_mark(entry)).await?;
        self.context.faults.reach(CrashPoint::TaskUnstaged)?;
        self.task_cgroups.watch_oom(entry);
        // From here on the program runs.
        withdrawal.check(entry.id)?;
        // Taken before the call, so that the exit of a task that exits at once is not earlier than its start.
        // The clock may have been set back since the task was created: no start is earlier than the creation.
        let at = SystemTime::now().max(entry.record().meta.created_at());
        let request = api::StartRequest {
            container_id: entry.id.to_string(),
            exec_id: String::new(),
        };
        let id = entry.id.to_string();
        let what = format!("start task {id}");
        let mut tasks = self.client.tasks();
        let start = step("start_process", call(&what, SLOW, tasks.start(request)));
        let (answer, ()) = tokio::join!(start, self.processes.protect_exit(&id, &runtime));
        let answer = answer?;
        self.context.faults.reach(CrashPoint::TaskStarted)?;
        let started = Started {
            pid: answer.pid,
            at,
        };
        step("write_record", mark_started(entry, started)).await?;
        self.context.faults.reach(CrashPoint::TaskMarked)?;
        entry.set_started(started);
        Ok(started)
    }

    /// Has the logkeeper open a task's output, if it reads that.
    async fn open_log(&self, log: Option<&logkeeper::LogSpec>) -> Result<()> {
        let Some(spec) = log else { return Ok(()) };
        self.exits
            .logkeeper
            .open(spec)
            .await
            .map_err(from_logkeeper)?;
        self.context.faults.reach(CrashPoint::TaskLogged)
    }

    /// Has containerd create the process, while no other process of its pod is created or ended, and opens a
    /// handle of it. Returns its pid.
    async fn make_process(
        &self,
        entry: &TaskEntry,
        request: api::CreateTaskRequest,
        withdrawal: &Withdrawal,
    ) -> Result<u32> {
        let locked = async {
            let pod_guard = self.exits.lock_pod(entry).await;
            if pod_guard.is_some() {
                self.exits.await_last_shim(entry).await;
            }
            pod_guard
        };
        let _pod_guard = plain_step("wait_for_pod_shim", locked).await;
        // That wait is as long as the start of another container of the pod.
        withdrawal.check(entry.id)?;
        let pid = step("create_process", self.create_process(entry, request)).await?;
        self.exits.open_main_process(entry, pid);
        self.exits.note_shim(entry);
        Ok(pid)
    }

    /// Has containerd create the process; returns its pid. It is retried in these cases:
    ///
    /// If containerd refuses with `AlreadyExists`, an interrupted creation left the task incomplete inside
    /// containerd: it is deleted by its id, and the creation is retried once. The same is done if an earlier
    /// process of the task has been ended: what containerd still removes of that one has the same id.
    ///
    /// The tasks of a pod share a shim, which exits with the last of them. If it exits during the creation,
    /// the process is created in the next shim.
    async fn create_process(
        &self,
        entry: &TaskEntry,
        request: api::CreateTaskRequest,
    ) -> Result<u32> {
        let what = format!("create task {}", entry.id);
        let _in_flight = self
            .exits
            .shims
            .creates_in_flight
            .begin(&request.container_id);
        let mut more = CREATE_RETRIES;
        let mut cleared = false;
        loop {
            let created = call(&what, SLOW, self.client.tasks().create(request.clone())).await;
            // Before the program runs.
            null_device::give_back();
            match created {
                Err(error) if more > 0 && error.reason() == Some(Reason::ShimExited) => {
                    tracing::info!(task = %entry.id, error = error.report(), "the pod's shim exited during the creation of a task: retrying in the next shim");
                    more -= 1;
                }
                Err(error)
                    if !cleared
                        && (error.kind() == ErrorKind::AlreadyExists
                            || entry.process_ended_before()) =>
                {
                    let report = error.report();
                    tracing::warn!(task = %entry.id, error = report, "containerd has an incomplete task of this id: deleting it");
                    self.processes.end_process(&entry.id.into()).await?;
                    self.shims
                        .wait_containerd_cleanup(&entry.id.to_string())
                        .await?;
                    cleared = true;
                }
                other => return other.map(|created| created.pid),
            }
        }
    }

    /// Creates a task's FIFOs and opens their read ends, before anything can write to them.
    async fn streams(&self, entry: &TaskEntry) -> Result<Streams> {
        let (output, tty, stdin) = {
            let record = entry.record();
            (record.output.clone(), record.tty, record.stdin)
        };
        let text = |path: &Path| path.display().to_string();
        let mut streams = Streams::default();
        let mut fifos = Vec::new();
        if stdin {
            streams.stdin = text(&entry.dirs.stdin());
            fifos.push(entry.dirs.stdin());
        }
        // A task without a log starts without the logkeeper too; clients cannot attach to its output then.
        let logkeeper_down =
            output == OutputRecord::Live && self.exits.health.check_logkeeper().is_err();
        match if logkeeper_down {
            OutputRecord::Discard
        } else {
            output
        } {
            // The shim needs either all three streams or none, and a terminal always has an output.
            OutputRecord::Discard if stdin || tty => {
                streams.stdout = DEV_NULL.to_owned();
                streams.stderr = if tty {
                    String::new()
                } else {
                    DEV_NULL.to_owned()
                };
            }
            OutputRecord::Discard => {}
            OutputRecord::Fifos { stdout, stderr } => {
                streams.stdout = text(&stdout);
                streams.stderr = if tty { String::new() } else { text(&stderr) };
                let taken = if tty {
                    vec![stdout]
                } else {
                    vec![stdout, stderr]
                };
                streams.readers = blocking(move || fifos::open_readers(&taken)).await?;
            }
            OutputRecord::Log(_) | OutputRecord::Live => {}
        }
        if let Some(spec) = log_spec(entry).filter(|_| !logkeeper_down) {
            let paths = [&spec.stdout, &spec.stderr];
            fifos.extend(paths.into_iter().flatten().cloned());
            [streams.stdout, streams.stderr] =
                paths.map(|path| path.as_deref().map(text).unwrap_or_default());
            streams.log = Some(spec);
        }
        make_fifos(entry.dirs.run.clone(), fifos).await?;
        if let Some(spec) = &streams.log {
            self.context.faults.reach(CrashPoint::TaskFifos)?;
            open_output_fifos(entry, spec)?;
        }
        Ok(streams)
    }

    /// Undoes a start and persists that it failed. The process is ended whether that can be persisted or not:
    /// its exit is reported to clients, which start another instance.
    pub(crate) async fn undo_start(&self, entry: &TaskEntry, exit: &Exit) -> Result<()> {
        let _guard = entry.lock_process().await;
        // The failure is persisted first, or noted: if the undo is interrupted, recovery does not take the rest for a
        // running task.
        let persisted = self.exits.write_exit_label(entry, exit, None).await;
        match &persisted {
            Ok(()) => switchyard_crash_points::reach(CrashPoint::StartRefused),
            // The task was removed meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => return persisted,
            Err(_) if entry.exit().is_none() && entry.may_have_process() => {
                // A start that failed early has made no directory yet.
                if let Err(error) = create_private_dir(&entry.dirs.run).await {
                    tracing::debug!(task = %entry.id, error = error.report(), "a failed start has no directory for its note");
                }
                note_exit(entry, exit, None).await;
                entry.apply(LifecycleEvent::ExitObserved(exit.clone()));
                entry.apply(LifecycleEvent::ExitReported);
            }
            Err(_) => {}
        }
        if entry.may_have_process() {
            self.exits.end_task_process(entry, true).await?;
        }
        if let Err(error) = self.exits.finish_log(entry).await {
            tracing::warn!(task = %entry.id, error = error.report(), "cannot finish the log of a failed start: it is closed later");
        }
        self.storage.unstage(entry).await?;
        // The note is in the directory that is removed.
        persisted?;
        crate::base::fs::remove_tree(&entry.dirs.run).await?;
        entry.apply(LifecycleEvent::StartFailed(exit.clone()));
        Ok(())
    }
}

/// Takes the space for [`mark_started`], before the program runs: otherwise a disk that is full by then would end a
/// program that has begun. A blank mark is none.
async fn reserve_mark(entry: &TaskEntry) -> Result<()> {
    let path = entry.dirs.started();
    tokio::fs::write(&path, [b' '; MARK_LEN])
        .await
        .map_err(|fault| io_error("write", &path, fault))
}

/// Writes the time and the pid of a start to a file, for recovery. Needs no space if the file has been reserved.
pub(crate) async fn mark_started(entry: &TaskEntry, started: Started) -> Result<()> {
    let path = entry.dirs.started();
    blocking(move || {
        let mut options = File::options();
        let opened = options.write(true).create(true).truncate(false).open(&path);
        // One write within one page, which a kill cannot tear.
        opened
            .and_then(|mut file| file.write_all(mark_text(started).as_bytes()))
            .map_err(|fault| io_error("write", &path, fault))
    })
    .await
}

/// The text of the mark, which fills what is reserved.
fn mark_text(started: Started) -> String {
    let text = format!("{} {}", to_ns(started.at), started.pid);
    format!("{text:<MARK_LEN$}")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn mark_is_written_as_the_first_version_reads_it() {
        let started = Started {
            pid: 4711,
            at: SystemTime::UNIX_EPOCH + Duration::from_nanos(1_764_547_200_000_000_007),
        };
        let golden = "1764547200000000007 4711";
        assert_eq!(mark_text(started), format!("{golden:<64}"));
    }

    #[test]
    fn longest_mark_has_room_in_what_is_reserved() {
        assert!(format!("{} {}", u64::MAX, u32::MAX).len() <= MARK_LEN);
    }
}
