//! One exec: its creation, its end and its cleanup.
//!
//! The shim is called directly where possible (ADR 19), and through containerd otherwise; both have the same
//! state.
//!
//! ```text
//! Exec ─► Start ─► Wait ─► Delete        over one connection to the shim
//!  ├ meanwhile: the logkeeper holds the connection too, so that Start completes even if we are killed
//!  └ signal, resize, close input         through containerd: their latency does not matter
//! ```
//!
//! Longer than 500 lines because an exec is followed here from its creation to its cleanup.

use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::types::v1::Status as State;
use parking_lot::Mutex;
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_core::{Error, ErrorKind, Result, operation};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_proto::containerd::task::v2 as task;
use tokio::net::unix::pipe;
use tokio::sync::{OnceCell, oneshot};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Response, Status};

use super::ending::ExecPlaces;
use crate::base::error::from_status;
use crate::base::fs::{io_error, remove_tree};
use crate::base::null_device;
use crate::client::retries::Retries;
use crate::client::{PROCESS_TYPE, QUICK, SLOW, call, ignore_not_found, json_any};
use crate::exec::Execs;
use crate::shims::direct::{Answer, ExecRef, ShimClient, SocketGuard};
use crate::task::{ExecPermit, ProcessHandle, TaskEntry, process_ended};

/// Limit for an abandoned start to continue, in this daemon, or with the connection held by the logkeeper
/// after a kill of this daemon. After that the shim aborts it.
const START_TIMEOUT: Duration = Duration::from_secs(180);

/// An exec: what is needed to end it and to clean up after it.
pub(super) struct Exec {
    pub(super) execs: Arc<Execs>,
    pub(super) task: String,
    /// The text that the cgroup path of its task's processes contains.
    mark: String,
    pub(super) id: String,
    pub(super) dir: PathBuf,
    connection: Mutex<ShimConnection>,
    /// A handle of the process, from its start on, if it is a process of this node.
    process: OnceLock<ProcessHandle>,
    exit: OnceCell<i32>,
    deleted: OnceCell<()>,
    places: Mutex<ExecPlaces>,
    /// The turn to try again to end one of the execs of its task.
    pub(super) ending_turn: Arc<tokio::sync::Mutex<Retries>>,
}

/// The connection to the shim, between calls.
pub(super) enum ShimConnection {
    /// There is none, or a call is using it: containerd is called instead.
    None,
    /// `Wait` has been sent, and its response has not been received.
    AwaitingExit(ShimClient),
    /// No call is outstanding.
    Idle(ShimClient),
}

/// Gives back the connection that waits for an exit, however the wait ends.
struct ExitWait<'a> {
    exec: &'a Exec,
    shim: Option<ShimClient>,
}

// === impl Exec ===

impl Exec {
    pub(super) fn new(
        execs: &Arc<Execs>,
        task: &TaskEntry,
        id: String,
        dir: PathBuf,
        places: ExecPlaces,
    ) -> Self {
        let connection = Mutex::new(ShimConnection::None);
        Self {
            execs: Arc::clone(execs),
            task: task.id.to_string(),
            mark: task.cgroup_mark(),
            id,
            dir,
            connection,
            process: OnceLock::new(),
            exit: OnceCell::new(),
            deleted: OnceCell::new(),
            places: Mutex::new(places),
            ending_turn: task.exec_permits.ending_turn(),
        }
    }

    /// Returns whether its exit is known.
    pub(super) fn has_exited(&self) -> bool {
        self.exit.initialized()
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.deleted.initialized()
    }

    pub(super) fn output(&self, name: &str) -> Result<pipe::Receiver> {
        let path = self.dir.join(name);
        pipe::OpenOptions::new()
            .open_receiver(&path)
            .map_err(|fault| io_error("open", &path, fault))
    }

    /// Our end of standard input, opened read-write so that the open needs no reader.
    pub(super) fn input(&self) -> Result<pipe::Sender> {
        let path = self.dir.join("stdin");
        pipe::OpenOptions::new()
            .read_write(true)
            .open_sender(&path)
            .map_err(|fault| io_error("open", &path, fault))
    }

    /// Creates the process and starts it. The task is not frozen before the start is complete, even if the
    /// caller is gone.
    pub(super) async fn run(
        &self,
        spec: &ExecSpec,
        process: &serde_json::Value,
        mut shim: Option<ShimClient>,
        permit: ExecPermit,
        gone: &CancellationToken,
    ) -> Result<()> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let request = task::ExecProcessRequest {
            id: self.task.clone(),
            exec_id: self.id.clone(),
            terminal: spec.tty,
            stdin: if spec.stdin {
                path("stdin")
            } else {
                String::new()
            },
            stdout: path("stdout"),
            stderr: if spec.tty {
                String::new()
            } else {
                path("stderr")
            },
            spec: Some(json_any(PROCESS_TYPE, process)),
        };
        let what = format!("exec in task {}", self.task);
        let execs = &self.execs;
        let socket = shim.as_ref().and_then(|shim| shim.socket().ok());
        let share = async { execs.lifelines.share_socket(socket?).await };
        let created =
            execs
                .shims
                .call_with_shim_timeout(&self.task, &what, self.create(&mut shim, request));
        let (created, socket_guard) = tokio::join!(created, share);
        created.map_err(|error| self.not_running(error))?;
        reach(CrashPoint::ExecCreated);
        if gone.is_cancelled() {
            // A start cannot be withdrawn once the shim has been asked.
            return Err(Error::unavailable("nobody waits for the command any more"));
        }
        let started = execs.shims.call_with_shim_timeout(
            &self.task,
            &what,
            self.launch(shim.zip(socket_guard), permit),
        );
        started.await.map_err(|error| self.not_running(error))?;
        self.places.lock().started();
        reach(CrashPoint::ExecStarted);
        Ok(())
    }

    async fn create(
        &self,
        shim: &mut Option<ShimClient>,
        request: task::ExecProcessRequest,
    ) -> std::result::Result<Response<()>, Status> {
        let mut unsure = false;
        if let Some(direct) = shim {
            match direct.exec(&request).await {
                Answer::Done(()) => return Ok(Response::new(())),
                Answer::Refused(status) => return Err(status),
                Answer::Lost => (*shim, unsure) = (None, true),
            }
        }
        let request = api::ExecProcessRequest {
            container_id: request.id,
            stdin: request.stdin,
            stdout: request.stdout,
            stderr: request.stderr,
            terminal: request.terminal,
            spec: request.spec,
            exec_id: request.exec_id,
        };
        match self.execs.client.tasks().exec(request).await {
            // The shim received the direct call, and only its answer was lost: nobody else uses this id.
            Err(status) if unsure && status.code() == Code::AlreadyExists => Ok(Response::new(())),
            other => other,
        }
    }

    /// Starts the process. If this is dropped, the start is completed in the background: the shim would abort
    /// it if the connection were closed.
    async fn launch(
        &self,
        direct: Option<(ShimClient, SocketGuard)>,
        permit: ExecPermit,
    ) -> std::result::Result<Response<()>, Status> {
        let permit = Arc::new(permit);
        if let Some((mut shim, socket_guard)) = direct {
            let task = self.task.clone();
            let exec = self.id.clone();
            let permit = Arc::clone(&permit);
            let (sender, receiver) = oneshot::channel();
            // The span of `Wait`, which begins here, ends with the process or when nobody waits for it any more.
            self.execs.tracker.spawn(operation::inherit(async move {
                let process = ExecRef {
                    task: &task,
                    exec: &exec,
                };
                // The caller has given up long before this timeout.
                let answer = timeout(START_TIMEOUT, start(&mut shim, process))
                    .await
                    .unwrap_or(Answer::Lost);
                null_device::give_back();
                // The receiver is gone if the caller has given up.
                let _ = sender.send((shim, answer));
                drop((socket_guard, permit));
            }));
            match receiver.await {
                Ok((shim, Answer::Done(pid))) => {
                    self.set_connection(ShimConnection::AwaitingExit(shim));
                    self.open_process(pid);
                    return Ok(Response::new(()));
                }
                Ok((_, Answer::Refused(status))) => return Err(status),
                Ok((_, Answer::Lost)) | Err(_) => {
                    if self.was_started().await? {
                        return Ok(Response::new(()));
                    }
                    // No retry through containerd: a shim that has failed to start a process and is asked
                    // again exits with all its containers.
                    let text =
                        "its shim was asked to start the process and did not report the result";
                    return Err(Status::unavailable(text));
                }
            }
        }
        let request = api::StartRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
        };
        let started = self.execs.client.tasks().start(request).await;
        null_device::give_back();
        self.open_process(started?.into_inner().pid);
        Ok(Response::new(()))
    }

    /// Opens a handle of the started process, unless it has exited.
    fn open_process(&self, pid: u32) {
        if let Some(process) = ProcessHandle::open(pid, &self.mark) {
            // Not set before: a process is started once.
            let _ = self.process.set(process);
        }
    }

    /// Returns whether a requested start was completed, and only its answer was lost.
    async fn was_started(&self) -> std::result::Result<bool, Status> {
        let request = api::GetRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
        };
        let answer = self.execs.client.tasks().get(request).await?.into_inner();
        Ok(answer
            .process
            .is_some_and(|process| process.status() != State::Created))
    }

    /// If the task has ended between our check and the call, that is a failed precondition, not a missing
    /// object.
    fn not_running(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::NotFound {
            Error::failed_precondition(format!("task {} does not run any more", self.task))
                .with_source(error)
        } else {
            error
        }
    }

    /// Waits for the exit of the process; returns its exit code. Cancel-safe.
    ///
    /// # Errors
    /// Those of containerd; `DeadlineExceeded` if the process has exited and its exit was not reported within
    /// the shim timeout.
    pub(super) async fn wait(&self) -> Result<i32> {
        let waited = self.exit.get_or_try_init(|| async {
            tokio::select! {
                biased;
                observed = self.observe_exit() => observed,
                error = self.exit_overdue() => Err(error),
            }
        });
        waited.await.copied()
    }

    async fn observe_exit(&self) -> Result<i32> {
        if let Some(code) = self.exit_from_shim().await {
            return Ok(code);
        }
        let request = api::WaitRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
        };
        match self.execs.client.task_queries().wait(request).await {
            Ok(answer) => Ok(exit_code(answer.into_inner().exit_status)),
            Err(status) => {
                match from_status(&format!("wait for exec in task {}", self.task), status) {
                    // The process was killed when its task ended.
                    error if error.kind() == ErrorKind::NotFound => {
                        Ok(128 + i32::from(Signal::KILL.number()))
                    }
                    error => Err(error),
                }
            }
        }
    }

    /// Returns once the process has exited and its exit was not reported within the shim timeout. Never
    /// returns if the process is not visible.
    async fn exit_overdue(&self) -> Error {
        let seen = match self.process.get().and_then(ProcessHandle::pidfd) {
            Some(process) => process_ended(process).await.is_ok(),
            None => false,
        };
        if !seen {
            return std::future::pending().await;
        }
        let limit = self.execs.context.settings().containerd.shim_timeout();
        tokio::time::sleep(limit).await;
        self.execs.shims.unresponsive.note(&self.task);
        Error::deadline(format!(
            "exec in task {} has exited, but its shim has not reported its exit status or the rest of its output within {limit:?} (containerd.shim_timeout_seconds)",
            self.task
        ))
    }

    /// Its exit code, if the shim reports it over the direct connection. One caller at a time.
    async fn exit_from_shim(&self) -> Option<i32> {
        let mut waiting = ExitWait {
            exec: self,
            shim: None,
        };
        waiting.shim = match self.take_connection() {
            ShimConnection::AwaitingExit(shim) => Some(shim),
            ShimConnection::None | ShimConnection::Idle(_) => None,
        };
        let answer = waiting.shim.as_mut()?.recv_exit().await;
        let shim = waiting.shim.take()?;
        match answer {
            Answer::Done(status) => {
                self.set_connection(ShimConnection::Idle(shim));
                Some(exit_code(status))
            }
            // Whatever the reason is, containerd is called next and reports it.
            Answer::Refused(_) | Answer::Lost => None,
        }
    }

    pub(super) async fn signal(&self, signal: Signal) -> Result<()> {
        let request = api::KillRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
            signal: u32::from(signal.number()),
            all: false,
        };
        let what = format!("signal exec in task {}", self.task);
        ignore_not_found(
            self.execs
                .shims
                .call_with_shim_timeout(&self.task, &what, self.execs.client.tasks().kill(request))
                .await,
        )
    }

    pub(super) async fn resize(&self, width: u16, height: u16) -> Result<()> {
        let request = api::ResizePtyRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
            width: u32::from(width),
            height: u32::from(height),
        };
        let what = format!("resize the terminal of exec in task {}", self.task);
        ignore_not_found(call(&what, QUICK, self.execs.client.tasks().resize_pty(request)).await)
    }

    /// Closes its input, in the background: the client that closes it does not wait.
    pub(super) fn close_input_soon(self: Arc<Self>) {
        let tracker = self.execs.tracker.clone();
        tracker.spawn(async move {
            if let Err(error) = self.close_input().await {
                tracing::debug!(
                    task = self.task,
                    error = error.report(),
                    "cannot close the input of an exec"
                );
            }
        });
    }

    async fn close_input(&self) -> Result<()> {
        let request = api::CloseIoRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
            stdin: true,
        };
        let what = format!("close the input of exec in task {}", self.task);
        ignore_not_found(call(&what, QUICK, self.execs.client.tasks().close_io(request)).await)
    }

    /// Deletes the process from the shim, and removes its directory. Idempotent.
    pub(super) async fn delete(&self) -> Result<()> {
        let done = self.deleted.get_or_try_init(|| async {
            let what = format!("delete exec in task {}", self.task);
            ignore_not_found(call(&what, SLOW, self.delete_in_shim()).await)?;
            reach(CrashPoint::ExecDeleted);
            remove_tree(&self.dir).await?;
            *self.places.lock() = ExecPlaces::default();
            reach(CrashPoint::ExecGone);
            Ok(())
        });
        done.await.copied()
    }

    async fn delete_in_shim(&self) -> std::result::Result<Response<()>, Status> {
        if let ShimConnection::Idle(mut shim) = self.take_connection() {
            let asked = shim.delete(ExecRef {
                task: &self.task,
                exec: &self.id,
            });
            // A shim that takes longer may still answer containerd.
            let limit = self.execs.context.settings().containerd.shim_timeout();
            match timeout(limit, asked).await.unwrap_or(Answer::Lost) {
                Answer::Done(()) => return Ok(Response::new(())),
                Answer::Refused(status) => return Err(status),
                Answer::Lost => {}
            }
        }
        let request = api::DeleteProcessRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
        };
        self.execs
            .client
            .tasks()
            .delete_process(request)
            .await
            .map(|_| Response::new(()))
    }

    /// Returns whether its task still runs, as far as is known: the process ends with the task.
    pub(super) fn is_in_running_task(&self) -> bool {
        let entry = self
            .task
            .parse()
            .ok()
            .and_then(|id| self.execs.tasks.table.get(id).ok());
        entry.is_some_and(|entry| entry.reported_exit().is_none())
    }

    /// Returns whether its FIFOs contain output that has not been read.
    pub(super) fn has_output(&self) -> bool {
        let waits = |name: &str| {
            let fifo = std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
                .open(self.dir.join(name));
            fifo.is_ok_and(|fifo| rustix::io::ioctl_fionread(fifo).is_ok_and(|bytes| bytes > 0))
        };
        waits("stdout") || waits("stderr")
    }

    fn set_connection(&self, connection: ShimConnection) {
        *self.connection.lock() = connection;
    }

    pub(super) fn take_connection(&self) -> ShimConnection {
        std::mem::replace(&mut *self.connection.lock(), ShimConnection::None)
    }
}

/// Has a shim start a process, and sends `Wait` for its exit.
async fn start(shim: &mut ShimClient, process: ExecRef<'_>) -> Answer<u32> {
    match shim.send_start(process).await {
        Answer::Done(()) => reach(CrashPoint::ExecAsked),
        Answer::Refused(status) => return Answer::Refused(status),
        Answer::Lost => return Answer::Lost,
    }
    let started = shim.recv_started().await;
    let Answer::Done(pid) = started else {
        return started;
    };
    match shim.send_wait(process).await {
        Answer::Done(()) => Answer::Done(pid),
        Answer::Refused(status) => Answer::Refused(status),
        Answer::Lost => Answer::Lost,
    }
}

fn exit_code(status: u32) -> i32 {
    i32::try_from(status).unwrap_or(i32::MAX)
}

// === impl ExitWait ===

impl Drop for ExitWait<'_> {
    fn drop(&mut self) {
        if let Some(shim) = self.shim.take() {
            self.exec.set_connection(ShimConnection::AwaitingExit(shim));
        }
    }
}
