//! Processes that the daemon needs and that outlive it: started when absent, adopted when a predecessor has
//! started them, restarted when they die, and left running when the daemon ends. Before one is started, those of
//! a predecessor that no pid file names any more are ended.
//!
//! ```text
//!            ┌─ pid file names a live process ─► adopted ─┐
//! look ──────┤                                            ├─► answers? ──yes──► up ──died──┐
//!            └─ it does not ──► started (detached) ───────┘      │ not in time             │
//!   ▲                                                            ▼                         │
//!   └───────────────── wait, longer each time ◄──────────── ended ◄─── or hung for too long ─┘
//! ```
//!
//! Longer than 500 lines because one supervision loop has all its steps here.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use nix::sys::signal::Signal;
use prometheus::IntCounter;
use switchyard_core::backoff::Backoff;
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::process::ProcessId;
use switchyard_operator::metrics::ProcessRestarts;
use switchyard_operator::status::Condition;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::detach::{ALREADY_RUNNING, read_pid_file};

pub mod containerd;
mod containerd_config;
mod log;
pub mod logkeeper;
mod oom_score;
mod predecessors;
pub mod restart;

use log::{OpenLog, last_line};
use restart::RestartRequests;

/// The death of a process that ran this long is not a failed start: it is restarted at once, without a
/// growing pause.
const STEADY: Duration = Duration::from_secs(1);

/// Timeouts and pauses; shorter in tests.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// For the process to answer after its start or adoption.
    pub answer: Duration,
    /// Between SIGTERM and SIGKILL.
    pub end: Duration,
    /// Between two probes, while it does not answer yet.
    pub poll: Duration,
    /// Between two checks whether a process that is not our child is alive.
    pub watch: Duration,
    /// Between two checks of its log's size.
    pub log: Duration,
    /// Before the second start; each further pause is twice as long.
    pub retry_min: Duration,
    /// The longest pause before a start.
    pub retry_max: Duration,
    /// Between two probes of a process that serves, and the timeout of each probe.
    pub probe_interval: Duration,
    /// After which a process that serves and does not answer is killed; `None` for never.
    pub hang: Option<Duration>,
}

/// The pause between two probes of a process that serves, unless a short hang timeout requires a shorter one.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

impl Timeouts {
    /// The timeouts of the configuration.
    #[must_use]
    pub fn of(config: &switchyard_config::ManagedConfig) -> Self {
        let hang = config.hang_timeout();
        let look = hang.map_or(PROBE_INTERVAL, |hang| (hang / 4).min(PROBE_INTERVAL));
        Self {
            answer: config.start_timeout(),
            probe_interval: look,
            hang,
            ..Self::default()
        }
    }
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            end: Duration::from_secs(10),
            poll: Duration::from_millis(10),
            watch: Duration::from_millis(500),
            log: Duration::from_secs(60),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(30),
            probe_interval: PROBE_INTERVAL,
            hang: Some(Duration::from_secs(60)),
        }
    }
}

/// Probes whether a process serves; returns its description.
pub type Probe = Arc<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>;

/// Writes the files that the program reads at its start.
pub type Prepare = Arc<dyn Fn() -> io::Result<()> + Send + Sync>;

/// Compares the configuration that a process has read with the one that it would be started with. Blocks.
pub type ConfigurationCheck = Arc<dyn Fn() -> Option<bool> + Send + Sync>;

/// A program to keep running.
#[derive(Clone)]
pub struct Program {
    /// Its name, one word, for messages.
    pub name: &'static str,
    /// Our own binary, which has the `detach` command.
    pub exe: PathBuf,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Its pid file.
    pub pid_file: PathBuf,
    /// The log file for its output.
    pub log: PathBuf,
    /// Writes its files; called before each start.
    pub prepare: Prepare,
    /// Returns whether a process that runs has read the configuration that `prepare` would write now; `None` if it has
    /// none, or that cannot be found out.
    pub is_configuration_current: ConfigurationCheck,
    /// Probes whether it serves.
    pub probe: Probe,
    /// Timeouts and pauses.
    pub timeouts: Timeouts,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Program")
            .field("name", &self.name)
            .field("command", &self.command)
            .finish_non_exhaustive()
    }
}

/// The state of a managed process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It is being started, or probed for the first time.
    Starting,
    /// It serves.
    Up {
        /// The process.
        process: ProcessId,
        /// True if a predecessor started it.
        adopted: bool,
        /// Its description of itself, such as a version.
        version: String,
        /// True if it has read the configuration that it would be started with now; `None` if that is not known.
        is_configuration_current: Option<bool>,
    },
    /// It runs, but does not answer any more.
    Hanging {
        /// The process.
        process: ProcessId,
        /// The error of the last probe.
        why: String,
    },
    /// It does not run, and will be restarted.
    Down(String),
}

impl State {
    /// The state as a part's condition.
    #[must_use]
    pub fn condition(&self) -> Condition {
        match self {
            Self::Starting => Condition::Down("is starting".into()),
            Self::Up {
                process, version, ..
            } => Condition::Up(format!("{version}, process {}", process.pid)),
            Self::Hanging { process, why } => Condition::Down(format!(
                "process {} runs and does not answer: {why}",
                process.pid
            )),
            Self::Down(why) => Condition::Down(why.clone()),
        }
    }
}

/// A running process, as the supervisor holds it.
struct Running {
    process: ProcessId,
    /// The handle of our child, which must be reaped; `None` for an adopted process, which is not our child.
    child: Option<Child>,
}

/// Keeps the program running until `stop`, which leaves it running; restarts it on request. `restarts` counts
/// its starts by cause, except for the first one.
pub async fn supervise(
    program: Program,
    state: watch::Sender<State>,
    mut requests: RestartRequests,
    restarts: ProcessRestarts,
    stop: CancellationToken,
) {
    // Counts the next start.
    let mut counter = None;
    let mut backoff = Backoff::new(program.timeouts.retry_min, program.timeouts.retry_max);
    loop {
        let began = Instant::now();
        let ended = tokio::select! {
            () = stop.cancelled() => return,
            ended = run_once(&program, &state, &mut requests, counter) => ended,
        };
        counter = Some(match &ended {
            Ok(()) => &restarts.requests,
            Err(_) => &restarts.failures,
        });
        let Err(ended) = ended else {
            state.send_replace(State::Starting);
            continue;
        };
        // A process that ran for long is restarted soon; one that fails at once ever later.
        if began.elapsed() >= STEADY {
            backoff.reset();
        }
        let wait = backoff.pause();
        tracing::warn!(program = program.name, reason = %ended, again_in = ?wait, "managed process is down");
        state.send_replace(State::Down(ended));
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Adopts or starts the process and supervises it until it ends, which was requested. `restarts` counts the
/// start, if it is one and not the first.
///
/// # Errors
/// The reason of its end, if that was not requested.
async fn run_once(
    program: &Program,
    state: &watch::Sender<State>,
    requests: &mut RestartRequests,
    restarts: Option<&IntCounter>,
) -> Result<(), String> {
    let (mut running, adopted) = adopt_or_start(program, requests, restarts).await?;
    let process = running.process;
    let up = match wait_ready(program, &mut running).await {
        Ok(version) => {
            tracing::info!(
                program = program.name,
                pid = process.pid,
                adopted,
                version,
                "managed process serves"
            );
            let is_configuration_current = (program.is_configuration_current)();
            if is_configuration_current == Some(false) {
                tracing::warn!(
                    program = program.name,
                    pid = process.pid,
                    "a managed process has read a former configuration: `switchyard restart {}` puts the present one in force while containers run",
                    program.name
                );
            }
            State::Up {
                process,
                adopted,
                version,
                is_configuration_current,
            }
        }
        Err(why) => {
            terminate(program, &mut running, &[Signal::SIGTERM, Signal::SIGKILL]).await;
            return Err(why);
        }
    };
    state.send_replace(up.clone());
    requests.serves(process);
    let why = tokio::select! {
        why = wait_exit(program, &mut running) => return Err(why),
        () = requests.next() => None,
        why = wait_hang(program, process, &up, state) => Some(why),
        never = log::rotate_periodically(&program.log, program.timeouts.log) => match never {},
    };
    let Some(why) = why else {
        tracing::info!(
            program = program.name,
            pid = process.pid,
            "restarting a managed process on request"
        );
        terminate(program, &mut running, &[Signal::SIGTERM, Signal::SIGKILL]).await;
        return Ok(());
    };
    // A process that hangs does not react to SIGTERM either.
    terminate(program, &mut running, &[Signal::SIGKILL]).await;
    Err(why)
}

/// Probes a process that serves and publishes its state; returns when it has not answered for the hang
/// timeout. The time is counted in probes, so that a pause of this daemon or of the whole node does not
/// count. Cancel-safe.
async fn wait_hang(
    program: &Program,
    process: ProcessId,
    up: &State,
    state: &watch::Sender<State>,
) -> String {
    let Timeouts {
        probe_interval: look,
        hang,
        ..
    } = program.timeouts;
    let mut silent = Duration::ZERO;
    loop {
        tokio::time::sleep(look).await;
        let asked = Instant::now();
        let why = match tokio::time::timeout(look, (program.probe)()).await {
            Ok(Ok(_)) => {
                if !silent.is_zero() {
                    tracing::info!(
                        program = program.name,
                        pid = process.pid,
                        "managed process answers again"
                    );
                    state.send_replace(up.clone());
                }
                silent = Duration::ZERO;
                continue;
            }
            Ok(Err(why)) => why,
            Err(_) => format!("no answer within {look:?}"),
        };
        if silent.is_zero() {
            tracing::warn!(
                program = program.name,
                pid = process.pid,
                reason = why,
                "managed process does not answer"
            );
        }
        // Bounded by the pause: time in which the node or this daemon was suspended does not count.
        silent += look + asked.elapsed().min(look);
        if let Some(hang) = hang.filter(|hang| silent >= *hang) {
            return format!("ran and did not answer for {hang:?}: {why}");
        }
        state.send_replace(State::Hanging { process, why });
    }
}

/// The live process in the pid file, or else a new one, which `restarts` counts. Nothing is ended or started if the file
/// cannot be read, because it may name a process that serves.
async fn adopt_or_start(
    program: &Program,
    requests: &mut RestartRequests,
    restarts: Option<&IntCounter>,
) -> Result<(Running, bool), String> {
    let named = || match read_pid_file(&program.pid_file) {
        Ok(process) => Ok(process.filter(ProcessId::is_alive)),
        Err(error) => Err(format!(
            "{} cannot be read: {error}: it may name a process that serves, which is adopted once it can be read",
            program.pid_file.display()
        )),
    };
    if let Some(process) = named()? {
        return Ok((
            Running {
                process,
                child: None,
            },
            true,
        ));
    }
    for process in predecessors::running(program).await? {
        // A predecessor may have been starting it meanwhile: the pid file is written before the command runs.
        if let Some(process) = named()? {
            return Ok((
                Running {
                    process,
                    child: None,
                },
                true,
            ));
        }
        predecessors::end(program, process).await?;
    }
    // After the last process was ended, before the new one starts: it serves the requests made until now.
    requests.starting();
    let log = prepare(program).map_err(|error| format!("its files cannot be written: {error}"))?;
    let OpenLog { path, file } = log;
    let mut child = Command::new(&program.exe)
        .arg("detach")
        .arg("--pid-file")
        .arg(&program.pid_file)
        .arg("--log")
        .arg(&path)
        .arg("--")
        .args(&program.command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(file)
        .spawn()
        .map_err(|error| format!("cannot start {}: {error}", program.exe.display()))?;
    reach(CrashPoint::ProcessSpawned);
    if let Some(restarts) = restarts {
        restarts.inc();
    }
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
    let process = pid.and_then(ProcessId::of);
    match process {
        Some(process) => Ok((
            Running {
                process,
                child: Some(child),
            },
            false,
        )),
        // The child has exited already.
        None => Err(match child.wait().await {
            Ok(status) => exit_reason(program, status),
            Err(error) => format!("cannot be waited for: {error}"),
        }),
    }
}

/// Writes the program's files; returns its log, which also gets the error if the start fails.
fn prepare(program: &Program) -> io::Result<OpenLog> {
    for path in [&program.pid_file, &program.log] {
        if let Some(dir) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)?;
        }
    }
    (program.prepare)()?;
    OpenLog::of_start(&program.log)
}

/// Creates a directory with its parents; sets the mode even if it existed. Nothing is written if that is so already,
/// since a full or read-only disk may refuse it.
pub(crate) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)?;
    if fs::metadata(path)?.permissions().mode() & 0o7777 == mode {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Waits until the process answers.
async fn wait_ready(program: &Program, running: &mut Running) -> Result<String, String> {
    let deadline = tokio::time::Instant::now() + program.timeouts.answer;
    let mut last = String::from("nothing");
    loop {
        match tokio::time::timeout_at(deadline, (program.probe)()).await {
            Ok(Ok(version)) => return Ok(version),
            Ok(Err(why)) => last = why,
            Err(_) => {}
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(format!(
                "did not answer within {:?}: {last}",
                program.timeouts.answer
            ));
        }
        if let Some(end) = try_exit(program, running).await {
            return Err(end);
        }
        tokio::time::sleep(program.timeouts.poll).await;
    }
}

async fn try_exit(program: &Program, running: &mut Running) -> Option<String> {
    match &mut running.child {
        Some(child) => match child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(exit_reason(program, status)),
            Err(error) => Some(format!("cannot be waited for: {error}")),
        },
        None => (!running.process.is_alive()).then(|| "ended".into()),
    }
}

/// Waits for the exit of a process that serves. Cancel-safe: the process keeps running.
async fn wait_exit(program: &Program, running: &mut Running) -> String {
    match &mut running.child {
        Some(child) => match child.wait().await {
            Ok(status) => exit_reason(program, status),
            Err(error) => format!("cannot be waited for: {error}"),
        },
        None => {
            while running.process.is_alive() {
                tokio::time::sleep(program.timeouts.watch).await;
            }
            "ended".into()
        }
    }
}

fn exit_reason(program: &Program, status: std::process::ExitStatus) -> String {
    if status.code() == Some(i32::from(ALREADY_RUNNING)) {
        return "another one was started meanwhile".into();
    }
    format!("ended with {status}: {}", last_line(&program.log))
}

/// Ends a process that does not answer, so that a new one can be started.
async fn terminate(program: &Program, running: &mut Running, signals: &[Signal]) {
    for &signal in signals {
        if !running.process.is_alive() {
            break;
        }
        tracing::warn!(program = program.name, pid = running.process.pid, %signal, "ending a managed process");
        if let Err(error) = running.process.signal(signal) {
            tracing::warn!(program = program.name, pid = running.process.pid, %error, "cannot send the signal");
        }
        // The next check also detects the exit, so a timeout here is not an error.
        let _ = tokio::time::timeout(program.timeouts.end, wait_exit(program, running)).await;
    }
}
