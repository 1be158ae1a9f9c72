//! Starting a task.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::SystemTime;

use containerd_client::services::v1 as api;
use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use nix::sys::stat::Mode;
use switchyard_core::backend::Started;
use switchyard_core::id::TaskId;
use switchyard_core::state::Exit;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_logkeeper as logkeeper;

use super::TaskEntry;
use crate::backend::Inner;
use crate::client::{QUICK, SLOW, call};
use crate::record::{OutputRecord, to_ns};
use crate::steps::Step;
use crate::text::{blocking, io_error, make_dir};

/// The most bytes of one line in a log file; longer ones are split, as everybody who reads such files expects.
const MAX_LOG_LINE: u32 = 16 << 10;

/// Where output goes that nobody wants.
const NULL: &str = "/dev/null";

/// The standard streams of a process, as the shim takes them.
#[derive(Debug, Default)]
struct Streams {
    stdin: String,
    stdout: String,
    stderr: String,
}

impl Inner {
    pub(crate) async fn start_task(&self, id: TaskId) -> Result<Started> {
        let entry = self.task(id)?;
        match self.launch(&entry).await {
            Ok(started) => Ok(started),
            Err(error) => {
                if let Err(undo) = self.undo_start(&entry, &error).await {
                    tracing::error!(task.id = %id, error = undo.report(), "a failed start is left for recovery");
                }
                Err(error)
            }
        }
    }

    async fn launch(&self, entry: &TaskEntry) -> Result<Started> {
        self.keeper_up_for(entry)?;
        entry.set_launched();
        make_dir(&entry.dirs.run).await?;
        let streams = self.streams(entry).await?;
        let (sandbox, tty) = (self.sandbox(entry.sandbox)?, entry.record().tty);
        let runtime = self.runtime(&sandbox.record.handler)?;
        let systemd = entry.record().systemd_cgroup;
        let request = api::CreateTaskRequest {
            container_id: entry.id.to_string(),
            rootfs: self.mounts_of(entry).await?,
            stdin: streams.stdin,
            stdout: streams.stdout,
            stderr: streams.stderr,
            terminal: tty,
            options: self.runtime_options(runtime, systemd),
            ..Default::default()
        };
        self.create_process(entry, request).await?;
        self.faults.reach(Step::TaskCreated)?;
        self.watch_oom(entry);
        // Taken before the call, so that a task that ends at once does not end before it began.
        let at = SystemTime::now();
        let request = api::StartRequest { container_id: entry.id.to_string(), exec_id: String::new() };
        let answer =
            call(&format!("start task {}", entry.id), SLOW, self.client.tasks().start(request)).await?;
        self.faults.reach(Step::TaskStarted)?;
        let started = Started { pid: answer.pid, at };
        let (path, text) = (entry.dirs.started(), to_ns(started.at).to_string());
        tokio::fs::write(&path, text).await.map_err(|fault| io_error("write", &path, fault))?;
        self.faults.reach(Step::TaskMarked)?;
        entry.set_started(Some(started));
        Ok(started)
    }

    /// Has containerd create the process. A task that containerd denies to have and refuses to create is one that a break-off
    /// left half-made inside of it: it is deleted by name, and creation tried once more.
    async fn create_process(&self, entry: &TaskEntry, request: api::CreateTaskRequest) -> Result<()> {
        let what = format!("create task {}", entry.id);
        match call(&what, SLOW, self.client.tasks().create(request.clone())).await {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                tracing::warn!(task.id = %entry.id, "containerd holds a remnant of this task: deleting it");
                self.end_process(&entry.id.to_string()).await?;
                call(&what, SLOW, self.client.tasks().create(request)).await.map(drop)
            }
            other => other.map(drop),
        }
    }

    /// Opens the way to the counter of OOM kills before the process runs, because it may be gone right after the process is.
    pub(crate) fn watch_oom(&self, entry: &TaskEntry) {
        let Some(group) = self.cgroup_location(&entry.record()) else { return };
        match self.cgroups.watch_oom(&group) {
            Ok(watch) => *entry.oom.lock().unwrap_or_else(PoisonError::into_inner) = watch,
            Err(fault) => {
                tracing::warn!(task.id = %entry.id, error = %fault, "OOM kills of a task are not watched")
            }
        }
    }

    async fn mounts_of(&self, entry: &TaskEntry) -> Result<Vec<Mount>> {
        let known = entry.mounts.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mounts) = known {
            return Ok(mounts);
        }
        let request =
            snap::MountsRequest { snapshotter: entry.snapshotter.clone(), key: entry.id.to_string() };
        let what = format!("look up the mounts of snapshot {}", entry.id);
        Ok(call(&what, QUICK, self.client.snapshots().mounts(request)).await?.mounts)
    }

    /// Makes a task's FIFOs and has the logkeeper hold them before anything can write to them.
    async fn streams(&self, entry: &TaskEntry) -> Result<Streams> {
        let (output, tty, stdin, stdin_once) = {
            let record = entry.record();
            (record.output.clone(), record.tty, record.stdin, record.stdin_once)
        };
        let mut streams = Streams::default();
        if stdin {
            let path = entry.dirs.stdin();
            make_fifo(&path).await?;
            streams.stdin = path.display().to_string();
            if !stdin_once {
                hold_stdin(entry)?;
            }
        }
        match output {
            // The shim takes all three streams or none, and a terminal always has an output.
            OutputRecord::Discard if stdin || tty => {
                streams.stdout = NULL.to_owned();
                streams.stderr = if tty { String::new() } else { NULL.to_owned() };
            }
            OutputRecord::Discard => {}
            OutputRecord::Fifos { stdout, stderr } => {
                streams.stdout = stdout.display().to_string();
                streams.stderr = if tty { String::new() } else { stderr.display().to_string() };
            }
            OutputRecord::Log(log) => {
                let (stdout, stderr) = (entry.dirs.stdout(), entry.dirs.stderr());
                make_fifo(&stdout).await?;
                streams.stdout = stdout.display().to_string();
                if !tty {
                    make_fifo(&stderr).await?;
                    streams.stderr = stderr.display().to_string();
                }
                self.faults.reach(Step::TaskFifos)?;
                let spec = log_spec(entry, log, tty);
                hold_output(entry, &spec)?;
                self.logkeeper.open(&spec).await.map_err(from_logkeeper)?;
                self.faults.reach(Step::TaskLogged)?;
            }
        }
        Ok(streams)
    }

    /// Undoes a start and puts on record that it failed.
    async fn undo_start(&self, entry: &TaskEntry, cause: &Error) -> Result<()> {
        let exit = Exit::start_failed(SystemTime::now(), cause.report());
        // First the word that it never ran: whatever else is cut off, nobody takes what is left for a running task.
        self.record_exit(entry, &exit, None).await?;
        switchyard_steps::reach(Step::StartRefused);
        self.end_process(&entry.id.to_string()).await?;
        entry.set_cleared();
        if let Err(error) = self.finish_log(entry).await {
            tracing::warn!(task.id = %entry.id, error = error.report(), "the log of a failed start is let go of later");
        }
        entry.stdin.lock().unwrap_or_else(PoisonError::into_inner).take();
        entry.oom.lock().unwrap_or_else(PoisonError::into_inner).take();
        crate::text::remove_tree(&entry.dirs.run).await?;
        entry.set_exit(exit);
        Ok(())
    }
}

/// What the logkeeper is told of a task.
pub(crate) fn log_spec(entry: &TaskEntry, log: PathBuf, tty: bool) -> logkeeper::LogSpec {
    logkeeper::LogSpec {
        id: entry.id.to_string(),
        stdout: Some(entry.dirs.stdout()),
        stderr: (!tty).then(|| entry.dirs.stderr()),
        log,
        tty,
        max_line: MAX_LOG_LINE,
    }
}

/// Keeps a task's output FIFOs from being emptied by the kernel while the logkeeper is away.
pub(crate) fn hold_output(entry: &TaskEntry, spec: &logkeeper::LogSpec) -> Result<()> {
    let hold =
        logkeeper::Hold::open(spec).map_err(|fault| io_error("hold the FIFOs in", &entry.dirs.run, fault))?;
    *entry.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(hold);
    Ok(())
}

/// Keeps a task's standard input open from now on.
pub(crate) fn hold_stdin(entry: &TaskEntry) -> Result<()> {
    let path = entry.dirs.stdin();
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::fcntl::OFlag::O_NONBLOCK.bits())
        .open(&path)
        .map_err(|fault| io_error("open", &path, fault))?;
    *entry.stdin.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
    Ok(())
}

/// Makes a FIFO that only we and the shim may open; one that is there is kept.
pub(crate) async fn make_fifo(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    blocking(move || match nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR) {
        Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(()),
        Err(fault) => Err(io_error("make the FIFO", &path, fault.into())),
    })
    .await
}

/// What an error of the logkeeper means to the gateway.
pub(crate) fn from_logkeeper(error: logkeeper::Error) -> Error {
    let kind = match &error {
        logkeeper::Error::Refused { fault, .. } => match fault.kind {
            logkeeper::protocol::FaultKind::InvalidArgument => ErrorKind::InvalidArgument,
            logkeeper::protocol::FaultKind::NotFound => ErrorKind::NotFound,
            logkeeper::protocol::FaultKind::Busy => ErrorKind::Unavailable,
            logkeeper::protocol::FaultKind::Conflict
            | logkeeper::protocol::FaultKind::Io
            | logkeeper::protocol::FaultKind::Unsupported => {
                crate::text::full_or(ErrorKind::Internal, &error)
            }
        },
        logkeeper::Error::Deadline { .. } | logkeeper::Error::Unavailable { .. } => ErrorKind::Unavailable,
        logkeeper::Error::File { .. }
        | logkeeper::Error::StateInUse(_)
        | logkeeper::Error::SocketInUse(_)
        | logkeeper::Error::UnfitStateDir { .. }
        | logkeeper::Error::Process(_)
        | logkeeper::Error::Encoding { .. } => ErrorKind::Internal,
    };
    Error::new(kind, "logkeeper").with_source(error)
}
