//! Further processes in a running task.
//!
//! Output comes through FIFOs that are opened before the process is made, and read once it runs: only then does the shim hold the
//! other ends, so that the end of the stream is the end of the output.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use containerd_client::services::v1 as api;
use switchyard_core::backend::{ExecControl, ExecProcess};
use switchyard_core::id::TaskId;
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_core::stream::{Sink, Source};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_runtime_spec::process::exec_process;
use switchyard_steps::{Step, reach};
use tokio::net::unix::pipe;
use tokio::sync::OnceCell;

use crate::backend::Inner;
use crate::client::{Client, PROCESS_TYPE, QUICK, SLOW, call, gone_is_done, json_any};
use crate::error::from_status;
use crate::image::lease::getrandom_fill;
use crate::input::{End, Input};
use crate::task::{TaskEntry, make_fifos};
use crate::text::{io_error, remove_tree};

/// Their ids, and their directories, begin so.
const PREFIX: &str = "exec-";
/// How long a process that nobody wants any more may take to be gone.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks whether children of one that has ended still write.
const LOOK: Duration = Duration::from_millis(250);

/// Between two tries to end one, while its task runs.
const AGAIN: Duration = Duration::from_secs(1);

/// A further process: what is needed to end it and clear it away.
struct Exec {
    inner: Arc<Inner>,
    task: String,
    id: String,
    dir: PathBuf,
    exit: OnceCell<i32>,
    deleted: OnceCell<()>,
}

/// Control over a further process; the last one to go ends it.
struct Control {
    exec: Arc<Exec>,
}

/// Starts a further process. Cancel-safe: a start that nobody waits for any more comes to its end, and the process to its own;
/// breaking it off half way would leave the shim with FIFOs that nobody opens.
pub(crate) async fn start(inner: &Arc<Inner>, task: TaskId, spec: &ExecSpec) -> Result<ExecProcess> {
    let (starting, spec) = (Arc::clone(inner), spec.clone());
    let started = inner.tracker.spawn(async move { start_now(&starting, task, &spec).await }).await;
    started.unwrap_or_else(|fault| {
        Err(Error::internal(format!("exec in task {task} broke off")).with_source(fault))
    })
}

async fn start_now(inner: &Arc<Inner>, task: TaskId, spec: &ExecSpec) -> Result<ExecProcess> {
    let entry = inner.task(task)?;
    if entry.started().is_none() || entry.exit().is_some() {
        return Err(Error::failed_precondition(format!("task {task} does not run")));
    }
    let _expected_move = inner.expect_move();
    let stored = inner.stored_process(&entry).await?;
    let mut warnings = Vec::new();
    let process = exec_process(&stored, spec, &mut warnings)?;
    for warning in warnings {
        tracing::debug!(task.id = %task, warning, "exec");
    }
    let mut random = [0; 16];
    getrandom_fill(&mut random);
    let id = format!("{PREFIX}{}", hex::encode(random));
    let dir = entry.dirs.run.join(&id);
    let exec = Arc::new(Exec {
        inner: Arc::clone(inner),
        task: task.to_string(),
        id,
        dir,
        exit: OnceCell::new(),
        deleted: OnceCell::new(),
    });
    // From here on dropping the control clears everything away, whatever has been made.
    let control = Control { exec: Arc::clone(&exec) };
    let wanted = [("stdout", true), ("stderr", !spec.tty), ("stdin", spec.stdin)];
    let fifos = wanted.into_iter().filter(|(_, wanted)| *wanted).map(|(name, _)| exec.dir.join(name));
    make_fifos(exec.dir.clone(), fifos.collect()).await?;
    let stdout = exec.output("stdout")?;
    let stderr = if spec.tty { None } else { Some(exec.output("stderr")?) };
    let stdin = if spec.stdin { Some(exec.input()?) } else { None };
    reach(Step::ExecFifos);
    exec.run(spec, &process).await?;
    Ok(ExecProcess {
        stdin: stdin
            .map(End::open)
            .map(|end| match spec.tty {
                true => Input::terminal(end),
                false => Input::new(end, move || exec.close_input_soon()),
            })
            .map(|input| Box::new(input) as Sink),
        stdout: Some(stdout.into()),
        stderr: stderr.map(Source::from),
        control: Box::new(control),
    })
}

impl Inner {
    /// Ends the further processes that a predecessor started in a running task, in the background: nobody waits for them any more.
    pub(crate) fn clear_execs(&self, task: &TaskEntry) {
        let entries = std::fs::read_dir(&task.dirs.run).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
        for dir in dirs.map(|entry| entry.path()) {
            let (client, task) = (self.client.clone(), task.id.to_string());
            self.tracker.spawn(async move {
                tracing::info!(task.id = task, dir = %dir.display(), "ending an exec that nobody waits for");
                if let Err(error) = clear(&client, &task, &dir).await {
                    tracing::warn!(
                        task.id = task,
                        error = error.report(),
                        "an exec of a predecessor is left"
                    );
                }
            });
        }
    }
}

/// Ends and deletes a process of which only its directory is known, and then the directory.
async fn clear(client: &Client, task: &str, dir: &Path) -> Result<()> {
    let exec = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The shim may wait for the other end of one of them.
    let _held: Vec<_> = ["stdin", "stdout", "stderr"]
        .iter()
        .filter_map(|name| pipe::OpenOptions::new().read_write(true).open_receiver(dir.join(name)).ok())
        .collect();
    let what = format!("end an exec in task {task}");
    let delete = || api::DeleteProcessRequest { container_id: task.to_owned(), exec_id: exec.clone() };
    match call(&what, SLOW, client.tasks().delete_process(delete())).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // It runs.
        Err(error) if matches!(error.kind(), ErrorKind::FailedPrecondition | ErrorKind::Internal) => {
            let kill = api::KillRequest {
                container_id: task.to_owned(),
                exec_id: exec.clone(),
                signal: u32::from(Signal::KILL.number()),
                all: false,
            };
            gone_is_done(call(&what, QUICK, client.tasks().kill(kill)).await)?;
            let wait = api::WaitRequest { container_id: task.to_owned(), exec_id: exec.clone() };
            gone_is_done(call(&what, SLOW, client.tasks().wait(wait)).await)?;
            gone_is_done(call(&what, SLOW, client.tasks().delete_process(delete())).await)?;
        }
        Err(error) => return Err(error),
    }
    remove_tree(dir).await
}

impl Exec {
    fn output(&self, name: &str) -> Result<pipe::Receiver> {
        let path = self.dir.join(name);
        pipe::OpenOptions::new().open_receiver(&path).map_err(|fault| io_error("open", &path, fault))
    }

    /// Our end of standard input, which needs no reader to be opened.
    fn input(&self) -> Result<pipe::Sender> {
        let path = self.dir.join("stdin");
        pipe::OpenOptions::new()
            .read_write(true)
            .open_sender(&path)
            .map_err(|fault| io_error("open", &path, fault))
    }

    async fn run(&self, spec: &ExecSpec, process: &serde_json::Value) -> Result<()> {
        let path = |name: &str| self.dir.join(name).display().to_string();
        let request = api::ExecProcessRequest {
            container_id: self.task.clone(),
            stdin: if spec.stdin { path("stdin") } else { String::new() },
            stdout: path("stdout"),
            stderr: if spec.tty { String::new() } else { path("stderr") },
            terminal: spec.tty,
            spec: Some(json_any(PROCESS_TYPE, process)),
            exec_id: self.id.clone(),
        };
        let what = format!("exec in task {}", self.task);
        let inner = &self.inner;
        inner
            .of_shim(&self.task, &what, inner.client.tasks().exec(request))
            .await
            .map_err(|error| self.not_running(error))?;
        reach(Step::ExecCreated);
        let request = api::StartRequest { container_id: self.task.clone(), exec_id: self.id.clone() };
        inner
            .of_shim(&self.task, &what, inner.client.tasks().start(request))
            .await
            .map_err(|error| self.not_running(error))?;
        reach(Step::ExecStarted);
        Ok(())
    }

    /// A task that has ended between our look and the call is no missing object.
    fn not_running(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::NotFound {
            Error::failed_precondition(format!("task {} does not run any more", self.task)).with_source(error)
        } else {
            error
        }
    }

    async fn wait(&self) -> Result<i32> {
        let waited = self.exit.get_or_try_init(|| async {
            let request = api::WaitRequest { container_id: self.task.clone(), exec_id: self.id.clone() };
            match self.inner.client.waits().wait(request).await {
                Ok(answer) => Ok(i32::try_from(answer.into_inner().exit_status).unwrap_or(i32::MAX)),
                Err(status) => match from_status(&format!("wait for exec in task {}", self.task), status) {
                    // Its task has ended and taken it along.
                    error if error.kind() == ErrorKind::NotFound => {
                        Ok(128 + i32::from(Signal::KILL.number()))
                    }
                    error => Err(error),
                },
            }
        });
        waited.await.copied()
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        let request = api::KillRequest {
            container_id: self.task.clone(),
            exec_id: self.id.clone(),
            signal: u32::from(signal.number()),
            all: false,
        };
        let what = format!("signal exec in task {}", self.task);
        gone_is_done(self.inner.of_shim(&self.task, &what, self.inner.client.tasks().kill(request)).await)
    }

    /// Ends its input, in the background: whoever closes it waits for nothing.
    fn close_input_soon(self: Arc<Self>) {
        let inner = Arc::clone(&self.inner);
        inner.tracker.spawn(async move {
            if let Err(error) = self.close_input().await {
                tracing::debug!(
                    task.id = self.task,
                    error = error.report(),
                    "the input of an exec is not closed"
                );
            }
        });
    }

    async fn close_input(&self) -> Result<()> {
        let request =
            api::CloseIoRequest { container_id: self.task.clone(), exec_id: self.id.clone(), stdin: true };
        let what = format!("close the input of exec in task {}", self.task);
        gone_is_done(call(&what, QUICK, self.inner.client.tasks().close_io(request)).await)
    }

    async fn delete(&self) -> Result<()> {
        let done = self.deleted.get_or_try_init(|| async {
            let request =
                api::DeleteProcessRequest { container_id: self.task.clone(), exec_id: self.id.clone() };
            let what = format!("delete exec in task {}", self.task);
            gone_is_done(call(&what, SLOW, self.inner.client.tasks().delete_process(request)).await)?;
            reach(Step::ExecDeleted);
            remove_tree(&self.dir).await?;
            reach(Step::ExecGone);
            Ok(())
        });
        done.await.copied()
    }

    /// Whether the task it is in still runs, as far as is known: the process ends with it.
    fn is_in_running_task(&self) -> bool {
        let entry = self.task.parse().ok().and_then(|id| self.inner.task(id).ok());
        entry.is_some_and(|entry| entry.exit().is_none())
    }

    /// Whether something that it wrote waits to be read.
    fn has_output(&self) -> bool {
        let waits = |name: &str| {
            let fifo = std::fs::OpenOptions::new()
                .read(true)
                .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
                .open(self.dir.join(name));
            fifo.is_ok_and(|fifo| rustix::io::ioctl_fionread(fifo).is_ok_and(|bytes| bytes > 0))
        };
        waits("stdout") || waits("stderr")
    }

    /// Ends and deletes a process that nobody controls any more.
    async fn abandon(&self) -> Result<()> {
        if self.exit.initialized() {
            return self.delete().await;
        }
        let ended = async {
            loop {
                match self.signal(Signal::KILL).await {
                    // The shim is still making it, or has made it and was never told to start it.
                    Err(error) if error.kind() == ErrorKind::FailedPrecondition => {
                        if self.delete().await.is_ok() {
                            return Ok(());
                        }
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    other => break other?,
                }
            }
            gone_is_done(self.wait().await)
        };
        match tokio::time::timeout(END_PATIENCE, ended).await {
            Ok(ended) => ended?,
            Err(_) => return Err(Error::deadline(format!("exec in task {} outlives SIGKILL", self.task))),
        }
        self.delete().await
    }
}

#[async_trait]
impl ExecControl for Control {
    async fn wait(&self) -> Result<i32> {
        self.exec.wait().await
    }

    async fn signal(&self, signal: Signal) -> Result<()> {
        self.exec.signal(signal).await
    }

    async fn resize(&self, width: u16, height: u16) -> Result<()> {
        let request = api::ResizePtyRequest {
            container_id: self.exec.task.clone(),
            exec_id: self.exec.id.clone(),
            width: u32::from(width),
            height: u32::from(height),
        };
        let what = format!("resize the terminal of exec in task {}", self.exec.task);
        gone_is_done(call(&what, QUICK, self.exec.inner.client.tasks().resize_pty(request)).await)
    }

    async fn cut_output(&self, after: Duration) {
        let mut silent = Duration::ZERO;
        while silent < after {
            tokio::time::sleep(LOOK).await;
            // A reader that takes its time is no silence.
            if !self.exec.has_output() {
                silent += LOOK;
            }
        }
        // The shim lets go of the FIFOs with the process, and that is their end.
        if let Err(error) = self.exec.delete().await {
            tracing::warn!(
                task.id = self.exec.task,
                error = error.report(),
                "the output of an exec is not ended"
            );
        }
    }

    async fn delete(&self) -> Result<()> {
        self.exec.delete().await
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if self.exec.deleted.initialized() {
            return;
        }
        let exec = Arc::clone(&self.exec);
        self.exec.inner.tracker.spawn(async move {
            while let Err(error) = exec.abandon().await {
                tracing::warn!(
                    task.id = exec.task,
                    error = error.report(),
                    "a process in a task is not ended yet"
                );
                if !exec.is_in_running_task() {
                    break;
                }
                tokio::time::sleep(AGAIN).await;
            }
            // The task may have gone, and taken the process with it; its directory is ours all the same.
            if let Err(error) = remove_tree(&exec.dir).await {
                tracing::warn!(
                    task.id = exec.task,
                    error = error.report(),
                    "the directory of an exec is left"
                );
            }
        });
    }
}
