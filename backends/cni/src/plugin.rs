//! Runs one plugin: environment, configuration on stdin, bounded output, deadline (CNI specification, section
//! 2).

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Receiver;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{sleep, timeout};

use crate::attachment::Attachment;
use crate::error::Error;
use crate::verb::Verb;

/// The longest result, in bytes.
const MAX_STDOUT: usize = 1 << 20;
/// Size of the end of the log output that is kept, in bytes.
const STDERR_TAIL: usize = 64 << 10;
/// Size of the log output in an error, in characters.
const SHOWN: usize = 1000;
/// Time for which pipes are read after the plugin itself has exited: a child that it left running may keep
/// them open for ever.
const PIPE_GRACE: Duration = Duration::from_secs(1);
/// Time for a killed plugin to exit. One that takes longer hangs in the kernel, and is reaped later.
const REAP_GRACE: Duration = Duration::from_secs(5);
/// Number of attempts with a plugin file that is just being written, and the first pause, which is doubled
/// each time.
const BUSY_TRIES: u32 = 6;
const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// The PATH of plugins if the daemon was started without one; some plugins run iptables and the like.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Timeouts of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One run of one plugin.
    pub plugin: Duration,
    /// Detaching the whole chain after a failed ADD.
    pub undo: Duration,
}

/// The directories of the plugins, their time limits, and an observer of their runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plugins {
    dirs: Arc<[PathBuf]>,
    limits: Limits,
    observer: Option<Arc<dyn PluginObserver>>,
}

/// An observer of each run of a plugin. Its methods must not block.
pub trait PluginObserver: Send + Sync + fmt::Debug {
    /// Reports that a plugin is about to run. The returned function is called at the end of the run, and
    /// dropped unused if the run is given up.
    fn began(&self, plugin: &str, verb: Verb) -> Option<RunEnd>;
}

/// Receives the end of one run of a plugin: the reason of its failure, if it failed.
pub type RunEnd = Box<dyn FnOnce(Option<&Error>) + Send>;

/// One run of one plugin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) plugin: &'a str,
    pub(crate) network: &'a str,
    pub(crate) verb: Verb,
    pub(crate) attachment: &'a Attachment,
    pub(crate) config: &'a [u8],
}

/// A plugin that runs, with our ends of its pipes.
struct RunningPlugin {
    child: Child,
    stdin: ChildStdin,
    stdout: Receiver,
    stderr: Receiver,
}

/// The output and exit status of a plugin.
#[derive(Debug)]
struct PluginOutput {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Reason why the output of a plugin could not be read to its end.
enum OutputError {
    Io(io::Error),
    TooLarge,
}

/// The process group of a running plugin, killed when this is dropped: plugins start others, such as IPAM
/// plugins.
struct ProcessGroup(Option<Pid>);

/// The specification's form of an error.
#[derive(Deserialize)]
struct WireError {
    code: u64,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            plugin: Duration::from_secs(60),
            undo: Duration::from_secs(60),
        }
    }
}

impl Plugins {
    /// Plugins are looked up in `dirs`; the first directory that has one is used.
    #[must_use]
    pub fn new(dirs: impl IntoIterator<Item = PathBuf>, limits: Limits) -> Self {
        Self {
            dirs: dirs.into_iter().collect(),
            limits,
            observer: None,
        }
    }

    /// The same, with an observer of each run.
    #[must_use]
    pub fn observed(self, observer: Arc<dyn PluginObserver>) -> Self {
        Self {
            observer: Some(observer),
            ..self
        }
    }

    /// Time limits of plugins.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The file of a plugin of the network `network`.
    ///
    /// # Errors
    /// [`Error::PluginNotFound`].
    pub fn find(&self, network: &str, plugin: &str) -> Result<PathBuf, Error> {
        self.dirs
            .iter()
            .map(|dir| dir.join(plugin))
            .find(|path| path.is_file())
            .ok_or_else(|| Error::PluginNotFound {
                plugin: plugin.to_owned(),
                network: network.to_owned(),
                dirs: self.dirs.to_vec(),
            })
    }

    /// Runs a plugin and returns what it wrote to stdout.
    ///
    /// Cancel safety: dropping the future kills the plugin with its process group; how far it got is unknown,
    /// so DEL has to follow. A child that left the process group is not killed. If this process ends instead, the
    /// plugin runs to its end: a plugin that is killed during DEL leaves rules that no later DEL finds. So a process
    /// that ends must not drop the future first.
    pub(crate) async fn call(&self, call: Call<'_>) -> Result<Vec<u8>, Error> {
        let end = self
            .observer
            .as_ref()
            .and_then(|observer| observer.began(call.plugin, call.verb));
        let result = self.run(call).await;
        if let Some(end) = end {
            end(result.as_ref().err());
        }
        result
    }

    async fn run(&self, call: Call<'_>) -> Result<Vec<u8>, Error> {
        let run = |source| Error::Run {
            plugin: call.plugin.to_owned(),
            verb: call.verb,
            source,
        };
        let path = self.find(call.network, call.plugin)?;
        let RunningPlugin {
            mut child,
            stdin,
            stdout,
            stderr,
        } = self.start(&path, call).await.map_err(run)?;
        let mut group = ProcessGroup(
            child
                .id()
                .and_then(|id| i32::try_from(id).ok())
                .map(Pid::from_raw),
        );
        let printed = communicate(&mut child, write_config(stdin, call.config), stdout, stderr);
        let result = timeout(self.limits.plugin, printed).await;
        let plugin = call.plugin.to_owned();
        let verb = call.verb;
        match result {
            Ok(Ok(printed)) => {
                // The plugin is reaped, so its process id may be reused: the group must not be killed any
                // more.
                group.0 = None;
                if printed.status.success() {
                    Ok(printed.stdout)
                } else {
                    Err(failure(call, &printed))
                }
            }
            Ok(Err(broken)) => {
                group.end(&mut child).await;
                Err(match broken {
                    OutputError::Io(source) => run(source),
                    OutputError::TooLarge => Error::TooMuchOutput {
                        plugin,
                        verb,
                        limit: MAX_STDOUT,
                    },
                })
            }
            Err(_) => {
                group.end(&mut child).await;
                Err(Error::Deadline {
                    plugin,
                    verb,
                    after: self.limits.plugin,
                })
            }
        }
    }

    async fn start(&self, path: &Path, call: Call<'_>) -> io::Result<RunningPlugin> {
        let (stdout, to_stdout) = output_pipe()?;
        let (stderr, to_stderr) = output_pipe()?;
        let mut command = self.command(path, call);
        command.stdout(to_stdout).stderr(to_stderr);
        let mut child = spawn(&mut command).await?;
        let stdin = child
            .stdin
            .take()
            .ok_or_else(|| io::Error::other("the pipe to its stdin is missing"))?;
        Ok(RunningPlugin {
            child,
            stdin,
            stdout,
            stderr,
        })
    }

    /// A plugin gets the variables of the specification and PATH, and nothing else of the daemon's
    /// environment.
    fn command(&self, path: &Path, call: Call<'_>) -> Command {
        let dirs = env::join_paths(self.dirs.iter()).unwrap_or_else(|_| {
            // A directory with a colon in its name cannot be in CNI_PATH; the plugin's own directory is the
            // best guess.
            path.parent()
                .unwrap_or(Path::new("/"))
                .as_os_str()
                .to_owned()
        });
        let netns = call
            .attachment
            .netns
            .clone()
            .map(PathBuf::into_os_string)
            .unwrap_or_default();
        let mut command = Command::new(path);
        command
            .env_clear()
            .env(
                "PATH",
                env::var_os("PATH").unwrap_or_else(|| OsString::from(DEFAULT_PATH)),
            )
            .env("CNI_COMMAND", call.verb.as_str())
            .env("CNI_CONTAINERID", &call.attachment.container_id)
            .env("CNI_NETNS", netns)
            .env("CNI_IFNAME", &call.attachment.ifname)
            .env("CNI_ARGS", call.attachment.args_text())
            .env("CNI_PATH", dirs)
            .current_dir("/")
            .stdin(Stdio::piped())
            // A kill of the group reaches the programs that the plugin runs.
            .process_group(0)
            .kill_on_drop(true);
        command
    }
}

/// Starts a plugin; retries for a moment if an installer is just writing the file.
async fn spawn(command: &mut Command) -> io::Result<Child> {
    let mut pause = BUSY_PAUSE;
    for _ in 1..BUSY_TRIES {
        match command.spawn() {
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => sleep(pause).await,
            done => return done,
        }
        pause *= 2;
    }
    command.spawn()
}

/// A pipe for the output of a plugin: our end, and the plugin's. The plugin's end is a reading end too, so that a
/// plugin that outlives this process is not ended by SIGPIPE when it writes its next line. Our end still sees the end
/// of the output, when the last process that has the plugin's end has closed it.
fn output_pipe() -> io::Result<(Receiver, Stdio)> {
    let (read, write) = io::pipe()?;
    let path = format!("/proc/self/fd/{}", write.as_raw_fd());
    let both = OpenOptions::new().read(true).write(true).open(path)?;
    Ok((Receiver::from_owned_fd(OwnedFd::from(read))?, both.into()))
}

/// Has the configuration written to a plugin by `write`, and reads its output until it has exited.
async fn communicate(
    child: &mut Child,
    write: impl Future<Output = Result<(), OutputError>>,
    out: Receiver,
    err: Receiver,
) -> Result<PluginOutput, OutputError> {
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let status = {
        let pipes = async {
            tokio::try_join!(
                write,
                read_limited(out, &mut stdout),
                read_tail(err, &mut stderr)
            )
            .map(drop)
        };
        tokio::pin!(pipes);
        tokio::select! {
            done = &mut pipes => {
                done?;
                child.wait().await.map_err(OutputError::Io)?
            }
            status = child.wait() => {
                // The rest of the output can be read at once; only a child of the plugin can keep the pipes
                // open.
                if let Ok(done) = timeout(PIPE_GRACE, &mut pipes).await {
                    done?;
                }
                status.map_err(OutputError::Io)?
            }
        }
    };
    Ok(PluginOutput {
        status,
        stdout,
        stderr,
    })
}

/// Writes the configuration. It is not an error if the plugin does not read all of it.
async fn write_config(mut stdin: ChildStdin, config: &[u8]) -> Result<(), OutputError> {
    match stdin.write_all(config).await {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(OutputError::Io(e)),
        _ => Ok(()),
    }
}

/// Reads up to the limit, and fails beyond it.
async fn read_limited(from: impl AsyncRead + Unpin, into: &mut Vec<u8>) -> Result<(), OutputError> {
    let limit = u64::try_from(MAX_STDOUT).map_err(|_| OutputError::TooLarge)?;
    from.take(limit + 1)
        .read_to_end(into)
        .await
        .map_err(OutputError::Io)?;
    if into.len() > MAX_STDOUT {
        Err(OutputError::TooLarge)
    } else {
        Ok(())
    }
}

/// Reads to the end and keeps the last part.
async fn read_tail(
    mut from: impl AsyncRead + Unpin,
    into: &mut Vec<u8>,
) -> Result<(), OutputError> {
    while from.read_buf(into).await.map_err(OutputError::Io)? > 0 {
        if into.len() > 2 * STDERR_TAIL {
            into.drain(..into.len() - STDERR_TAIL);
        }
    }
    into.drain(..into.len().saturating_sub(STDERR_TAIL));
    Ok(())
}

/// The error for a failed plugin: its own message if it used the specification's form.
fn failure(call: Call<'_>, printed: &PluginOutput) -> Error {
    let plugin = call.plugin.to_owned();
    let verb = call.verb;
    if let Ok(WireError { code, msg, details }) = serde_json::from_slice(&printed.stdout) {
        return Error::Refused {
            plugin,
            verb,
            code,
            msg,
            details,
        };
    }
    let words = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).trim().to_owned();
        let skip = text.chars().count().saturating_sub(SHOWN);
        text.chars().skip(skip).collect::<String>()
    };
    let output = [words(&printed.stderr), words(&printed.stdout)]
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_else(|| "it wrote nothing".to_owned());
    Error::Failed {
        plugin,
        verb,
        status: printed.status.to_string(),
        output,
    }
}

impl ProcessGroup {
    /// Kills the group and reaps the plugin.
    async fn end(&mut self, child: &mut Child) {
        self.kill();
        match timeout(REAP_GRACE, child.wait()).await {
            Ok(Ok(_)) => self.0 = None,
            Ok(Err(error)) => tracing::warn!(%error, "cannot wait for a killed network plugin"),
            Err(_) => tracing::warn!(
                pid = child.id(),
                "a killed network plugin hangs in the kernel"
            ),
        }
    }

    fn kill(&self) {
        let Some(group) = self.0 else { return };
        match killpg(group, Signal::SIGKILL) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(errno) => tracing::warn!(%group, %errno, "cannot kill a network plugin"),
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // The group is set only while the plugin has not been reaped, so the process id is still its own.
        self.kill();
    }
}
