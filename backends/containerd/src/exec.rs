//! Execs: further processes in a running task.
//!
//! Output comes through FIFOs that are opened before the process is created, and read once it runs: only then
//! does the shim hold the other ends, so that the end of file is the end of the output.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use switchyard_core::backend::{ExecControl, ExecPlace, ExecProcess, cut_by};
use switchyard_core::id::TaskId;
use switchyard_core::operation;
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_core::stream::{Sink, Source};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_runtime_spec::process::exec_process;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::predecessor_fifos::EXEC_DIR_PREFIX;
use crate::base::disks::full_disk_behind;
use crate::base::fs::remove_tree;
use crate::base::input::{StdinPipe, StdinWriter};
use crate::base::random::fill_random;
use crate::cgroups::Cgroups;
use crate::cleanup::CleanupQueue;
use crate::client::Client;
use crate::client::health::Health;
use crate::context::Context;
use crate::exec::predecessor_fifos::PredecessorFifos;
use crate::shims::Shims;
use crate::shims::direct::{Lifelines, ShimClient};
use crate::task::cgroups::TaskCgroups;
use crate::task::{ExecPermit, TaskEntry, Tasks, make_fifos};

mod discard;
mod ending;
pub(crate) mod predecessor;
pub(crate) mod predecessor_fifos;
mod process;

use ending::{ExecPlaces, end_abandoned};
use process::Exec;

/// The pause between two checks whether children of an exited process still write.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of concurrent process starts on this node.
const STARTS: usize = 16;

/// The control of an exec; dropping it ends the process.
struct Control {
    exec: Arc<Exec>,
}

/// Starts further processes in running tasks, and ends those of a predecessor.
#[derive(Debug)]
pub(crate) struct Execs {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) health: Health,
    pub(crate) tasks: Arc<Tasks>,
    pub(crate) task_cgroups: Arc<TaskCgroups>,
    pub(crate) cgroups: Arc<Cgroups>,
    pub(crate) shims: Arc<Shims>,
    /// The connections that the logkeeper holds open with this daemon.
    pub(crate) lifelines: Arc<Lifelines>,
    pub(crate) predecessor_fifos: PredecessorFifos,
    pub(crate) cleanup: Arc<CleanupQueue>,
    pub(crate) tracker: TaskTracker,
    pub(crate) places: StartPlaces,
}

/// The places for starts on this node.
#[derive(Debug, Clone)]
pub(crate) struct StartPlaces(Arc<Semaphore>);

impl Default for StartPlaces {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STARTS)))
    }
}

impl Execs {
    /// Starts an exec, once it has a place and the task is not frozen. Cancel-safe: a start that waits is withdrawn; one that
    /// was requested of the shim is completed, and its process then ended; if it were interrupted, the shim would block on
    /// FIFOs that nobody opens.
    pub(crate) async fn start(
        self: &Arc<Self>,
        task: TaskId,
        spec: &ExecSpec,
        held: ExecPlace,
    ) -> Result<ExecProcess> {
        let entry = self.tasks.table.get(task)?;
        let (start_place, permit) = entry
            .exec_permits
            .acquire(self.context.settings().containerd.shim_timeout())
            .await?;
        let places = ExecPlaces::new(held, start_place);
        let place = Arc::clone(&self.places.0).acquire_owned().await;
        let starting = Arc::clone(self);
        let spec = spec.clone();
        let caller = CancellationToken::new();
        let gone = caller.clone();
        // Dropped with this future, when the caller has gone.
        let _present = caller.drop_guard();
        let start = async move {
            let started = starting
                .start_now(task, &spec, (places, permit), &gone)
                .await;
            drop(place);
            started
        };
        let started = self
            .tracker
            .spawn(operation::inherit(start))
            .await
            .unwrap_or_else(|fault| {
                Err(
                    Error::internal(format!("the start of an exec in task {task} was aborted"))
                        .with_source(fault),
                )
            });
        // A deadline that the client sees would be one of its command, which has not begun.
        started.map_err(|error| {
            if error.kind() == ErrorKind::DeadlineExceeded {
                Error::unavailable("the command was not started in time").with_source(error)
            } else {
                error
            }
        })
    }

    async fn start_now(
        self: &Arc<Self>,
        task: TaskId,
        spec: &ExecSpec,
        (places, permit): (ExecPlaces, ExecPermit),
        gone: &CancellationToken,
    ) -> Result<ExecProcess> {
        let entry = self.tasks.table.get(task)?;
        if !entry.runs() {
            return Err(Error::failed_precondition(format!(
                "task {task} does not run"
            )));
        }
        self.health.check_containerd()?;
        let _expected_move = self.cgroups.expect_move();
        let stored = self.tasks.stored_process(&entry).await?;
        let mut warnings = Vec::new();
        let process = exec_process(&stored, spec, &mut warnings)?;
        for warning in warnings {
            tracing::debug!(%task, warning, "exec");
        }
        let mut random = [0; 16];
        fill_random(&mut random);
        let id = format!("{EXEC_DIR_PREFIX}{}", hex::encode(random));
        let dir = entry.dirs.run.join(&id);
        let exec = Arc::new(Exec::new(self, &entry, id, dir, places));
        // From here on dropping `control` cleans up whatever has been created.
        let control = Control {
            exec: Arc::clone(&exec),
        };
        let wanted = [
            ("stdout", true),
            ("stderr", !spec.tty),
            ("stdin", spec.stdin),
        ];
        let fifos = wanted
            .into_iter()
            .filter(|(_, wanted)| *wanted)
            .map(|(name, _)| exec.dir.join(name));
        let create_fifos = make_fifos(exec.dir.clone(), fifos.collect());
        let (created, shim) = tokio::join!(create_fifos, self.connect_shim(&entry));
        created?;
        let stdout = exec.output("stdout")?;
        let stderr = if spec.tty {
            None
        } else {
            Some(exec.output("stderr")?)
        };
        let stdin = if spec.stdin {
            Some(exec.input()?)
        } else {
            None
        };
        reach(CrashPoint::ExecFifos);
        if let Err(error) = self.task_cgroups.sync_cpuset(&entry).await {
            tracing::debug!(%task, error = error.report(), "cannot prepare the cpuset for an exec: it begins on other processors than its task");
        }
        if let Err(error) = exec.run(spec, &process, shim, permit, gone).await {
            return Err(full_disk_behind(error, self.context.layout.run()).await);
        }
        if let Err(error) = self.task_cgroups.join_cpuset(&entry).await {
            tracing::warn!(%task, error = error.report(), "cannot move an exec into the cpuset of its task: it runs on other processors");
        }
        if let Err(error) = self.task_cgroups.rescore_new_processes(&entry).await {
            tracing::warn!(%task, error = error.report(), "cannot set the OOM score of an exec: it has the score from the creation of its task");
        }
        Ok(ExecProcess {
            stdin: stdin
                .map(StdinPipe::open)
                .map(|end| match spec.tty {
                    true => StdinWriter::terminal(end),
                    false => StdinWriter::new(end, move || exec.close_input_soon()),
                })
                .map(|input| Box::new(input) as Sink),
            stdout: Some(stdout.into()),
            stderr: stderr.map(Source::from),
            control: Box::new(control),
        })
    }

    /// Connects to the shim of a running task; does not wait. `None` if containerd is to be asked instead.
    /// Cancel-safe.
    async fn connect_shim(&self, entry: &TaskEntry) -> Option<ShimClient> {
        self.shims
            .connect(&entry.id.to_string(), &entry.shim()?)
            .await
    }
}

impl ExecControl for Control {
    fn wait(&self) -> BoxFuture<'_, Result<i32>> {
        Box::pin(self.exec.wait())
    }

    fn signal(&self, signal: Signal) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.exec.signal(signal))
    }

    fn resize(&self, width: u16, height: u16) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.exec.resize(width, height))
    }

    fn cut_output(&self, after: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut quiet = Duration::ZERO;
            while quiet < after {
                tokio::time::sleep(POLL_INTERVAL).await;
                // Unread output means that the reader is slow, not that the writers have stopped.
                if !self.exec.has_output() {
                    quiet += POLL_INTERVAL;
                }
            }
            // The shim closes the FIFOs when the process is deleted, which is their end of file: two seconds later, or up to ten if only
            // containerd can be asked.
            if let Some(error) = cut_by(self.exec.delete()).await {
                tracing::warn!(
                    task = self.exec.task,
                    error,
                    "cannot end the output of an exec"
                );
            }
        })
    }

    fn delete(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(self.exec.delete())
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.exec.is_deleted() {
            return;
        }
        let exec = Arc::clone(&self.exec);
        self.exec.execs.tracker.spawn(async move {
            if exec.has_exited() {
                end_abandoned(&exec).await;
            } else {
                tokio::select! {
                    () = exec.discard_output() => {}
                    () = end_abandoned(&exec) => {}
                }
            }
            // The task may have ended, and the process with it; the directory has to be removed all the same.
            if let Err(error) = remove_tree(&exec.dir).await {
                tracing::warn!(
                    task = exec.task,
                    error = error.report(),
                    "cannot remove the directory of an exec"
                );
            }
        });
    }
}
