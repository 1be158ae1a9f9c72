//! Runs one plugin: environment, configuration on stdin, bounded output, deadline (CNI specification, section 2).

use std::env;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use switchyard_linux::{self as linux, GroupLeader};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::Receiver;
use tokio::process::{ChildStdin, Command};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::attachment::Attachment;
use crate::error::Error;
use crate::program_path::program_path;
use crate::verb::{GC_OF, Verb};

/// The longest result, in bytes.
const MAX_STDOUT: usize = 1 << 20;
/// Size of the end of the log output that is kept, in bytes.
const STDERR_TAIL: usize = 64 << 10;
/// Size of the log output in an error, in characters.
const SHOWN: usize = 1000;
/// Time for which pipes are read after the plugin itself has exited: a child that it left running may keep
/// them open for ever.
const PIPE_GRACE: Duration = Duration::from_secs(1);
/// The maximum of threads that look up or start the plugins of one [`Plugins`] at a time: a directory whose file system
/// hangs takes no more.
pub(crate) const PLUGIN_THREADS: usize = 4;
/// Number of attempts with a plugin file that is just being written, and the first pause, which is doubled
/// each time.
const BUSY_TRIES: u32 = 6;
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// Timeouts of plugins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// One run of one plugin, with its lookup and start.
    pub plugin: Duration,
    /// Detaching the whole chain after a failed ADD.
    pub undo: Duration,
}

/// The directories of the plugins, their time limits, and an observer of their runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Plugins {
    dirs: Arc<[PathBuf]>,
    limits: Limits,
    /// Permits of the threads that access the directories.
    threads: Arc<Semaphore>,
    observer: Option<Arc<dyn PluginObserver>>,
    instance: Option<Arc<Path>>,
}

/// An observer of each run of a plugin. Its methods must not block.
pub trait PluginObserver: Send + Sync + fmt::Debug {
    /// Reports that a plugin is about to run. The returned function is called at the end of the run, and
    /// dropped unused if the run is given up.
    fn began(&self, plugin: &str, verb: Verb) -> RunEnd;
}

/// Receives the end of one run of a plugin: the reason of its failure, if it failed.
pub type RunEnd = Box<dyn FnOnce(Option<&Error>) + Send>;

/// One run of one plugin.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) plugin: &'a str,
    pub(crate) network: &'a str,
    pub(crate) verb: Verb,
    /// `None` for a command about the network as a whole.
    pub(crate) attachment: Option<&'a Attachment>,
    pub(crate) config: &'a [u8],
}

/// Our ends of a plugin's pipes.
struct Pipes {
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

/// Reason why a plugin has no output and exit status.
#[derive(Debug)]
enum OutputError {
    Io(io::Error),
    TooLarge,
    /// It had not exited at its deadline.
    Late,
}

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
            threads: Arc::new(Semaphore::new(PLUGIN_THREADS)),
            observer: None,
            instance: None,
        }
    }

    /// The same, with a directory that only who runs them has: GC gets it as [`GC_OF`], by which it can be found after a crash.
    #[must_use]
    pub fn of_instance(self, dir: &Path) -> Self {
        Self {
            instance: Some(dir.into()),
            ..self
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

    /// The file of a plugin of the network `network`. Blocks on the file system, and on one that hangs for ever.
    ///
    /// # Errors
    /// [`Error::PluginNotFound`].
    pub(crate) fn find(&self, network: &str, plugin: &str) -> Result<PathBuf, Error> {
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
            .map(|observer| observer.began(call.plugin, call.verb));
        let result = self.run(call).await;
        if let Some(end) = end {
            end(result.as_ref().err());
        }
        result
    }

    /// Looks a plugin up, starts it, writes the configuration to it, and reads its output until it has exited, all
    /// within the time limit of one run. One that does not exit in time, or writes too much, is killed.
    async fn run(&self, call: Call<'_>) -> Result<Vec<u8>, Error> {
        let deadline = Instant::now() + self.limits.plugin;
        let (mut process, pipes) = self.start(call, deadline).await?;
        let error = match communicate(&mut process, pipes, call.config, deadline).await {
            Ok(output) if output.status.success() => return Ok(output.stdout),
            Ok(output) => return Err(failure(call, &output)),
            Err(error) => error,
        };
        process.kill_and_reap().await;
        let plugin = call.plugin.to_owned();
        let verb = call.verb;
        Err(match error {
            OutputError::Io(source) => Error::Run {
                plugin,
                verb,
                source,
            },
            OutputError::TooLarge => Error::TooMuchOutput {
                plugin,
                verb,
                limit: MAX_STDOUT,
            },
            OutputError::Late => Error::Deadline {
                plugin,
                verb,
                after: self.limits.plugin,
            },
        })
    }

    /// Looks a plugin up and starts it.
    async fn start(
        &self,
        call: Call<'_>,
        deadline: Instant,
    ) -> Result<(GroupLeader, Pipes), Error> {
        let not_run = |source| Error::Run {
            plugin: call.plugin.to_owned(),
            verb: call.verb,
            source,
        };
        let plugins = self.clone();
        let network = call.network.to_owned();
        let plugin = call.plugin.to_owned();
        let lookup = move || plugins.find(&network, &plugin);
        let path = self.access_dirs(call.network, deadline, lookup).await??;
        let (stdout, to_stdout) = output_pipe().map_err(not_run)?;
        let (stderr, to_stderr) = output_pipe().map_err(not_run)?;
        let mut command = self.command(&path, call);
        command.stdout(to_stdout).stderr(to_stderr);
        let started = self.spawn(command, call.network, deadline).await?;
        let mut process = started.map_err(not_run)?;
        let stdin = process
            .take_stdin()
            .ok_or_else(|| not_run(io::Error::other("the pipe to its stdin is missing")))?;
        let pipes = Pipes {
            stdin,
            stdout,
            stderr,
        };
        Ok((process, pipes))
    }

    /// Starts a plugin; retries for a moment if an installer is just writing the file. One that starts only after the
    /// deadline is killed, and gets no configuration.
    async fn spawn(
        &self,
        mut command: Command,
        network: &str,
        deadline: Instant,
    ) -> Result<io::Result<GroupLeader>, Error> {
        let mut pause = BUSY_PAUSE;
        for _ in 1..BUSY_TRIES {
            let attempt = move || {
                let started = GroupLeader::start(&mut command);
                (command, started)
            };
            let started;
            (command, started) = self.access_dirs(network, deadline, attempt).await?;
            match started {
                Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => sleep(pause).await,
                done => return Ok(done),
            }
            pause *= 2;
        }
        let last = move || GroupLeader::start(&mut command);
        self.access_dirs(network, deadline, last).await
    }

    /// Runs `access`, which reads or executes files in the directories of the plugins, on a thread, and waits for it
    /// until `deadline`. If the file system hangs, the thread keeps its permit until it answers.
    ///
    /// # Errors
    /// [`Error::PluginDirs`].
    pub(crate) async fn access_dirs<T: Send + 'static>(
        &self,
        network: &str,
        deadline: Instant,
        access: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let accessed = on_thread(&self.threads, deadline, access).await;
        accessed.map_err(|source| Error::PluginDirs {
            network: network.to_owned(),
            dirs: self.dirs.to_vec(),
            source,
        })
    }

    /// A plugin gets the variables of the specification and PATH, and nothing else of the daemon's
    /// environment. GC also gets whose it is.
    fn command(&self, path: &Path, call: Call<'_>) -> Command {
        let dirs = env::join_paths(self.dirs.iter()).unwrap_or_else(|_| {
            // A directory with a colon in its name cannot be in CNI_PATH; the plugin's own directory is the
            // best guess.
            path.parent()
                .unwrap_or(Path::new("/"))
                .as_os_str()
                .to_owned()
        });
        let mut command = Command::new(path);
        command
            .env_clear()
            .env("PATH", program_path())
            .env("CNI_COMMAND", call.verb.as_str())
            .env("CNI_PATH", dirs)
            .current_dir("/")
            .stdin(Stdio::piped());
        if let Some(attachment) = call.attachment {
            let netns = attachment.netns.clone();
            command
                .env("CNI_CONTAINERID", &attachment.container_id)
                .env(
                    "CNI_NETNS",
                    netns.map(PathBuf::into_os_string).unwrap_or_default(),
                )
                .env("CNI_IFNAME", &attachment.ifname)
                .env("CNI_ARGS", attachment.args_text());
        }
        if let (Verb::Gc, Some(instance)) = (call.verb, &self.instance) {
            command.env(GC_OF, instance.as_os_str());
        }
        command
    }
}

/// Runs `access`, which may hang on a file system, on a thread for blocking calls, and waits for it until `deadline`. It
/// takes a permit of `threads`, which a thread that hangs keeps until it returns.
///
/// # Errors
/// There was no answer in time, or `access` panicked.
pub(crate) async fn on_thread<T: Send + 'static>(
    threads: &Arc<Semaphore>,
    deadline: Instant,
    access: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let limit = deadline.saturating_duration_since(Instant::now());
    let threads = Arc::clone(threads);
    let accessed = async {
        let permit = threads.acquire_owned().await.map_err(io::Error::other)?;
        let access = move || {
            let _until_it_returns = permit;
            Ok(access())
        };
        linux::blocking("an access to the files of network plugins", access).await
    };
    timeout_at(deadline, accessed).await.unwrap_or_else(|_| {
        let why = format!(
            "no answer within {:.1} s: does a file system hang?",
            limit.as_secs_f32()
        );
        Err(io::Error::new(ErrorKind::TimedOut, why))
    })
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

/// Writes the configuration to a plugin, and reads its output until it has exited, before the deadline.
async fn communicate(
    process: &mut GroupLeader,
    pipes: Pipes,
    config: &[u8],
    deadline: Instant,
) -> Result<PluginOutput, OutputError> {
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let status = {
        let transfer = async {
            tokio::try_join!(
                write_config(pipes.stdin, config),
                read_limited(pipes.stdout, &mut stdout),
                read_tail(pipes.stderr, &mut stderr)
            )
            .map(drop)
        };
        tokio::pin!(transfer);
        let exit = async {
            tokio::select! {
                done = &mut transfer => {
                    done?;
                    Ok((process.wait().await, true))
                }
                status = process.wait() => Ok((status, false)),
            }
        };
        let exited = timeout_at(deadline, exit).await;
        let (status, is_read) = exited.unwrap_or(Err(OutputError::Late))?;
        // The rest of the output can be read at once; only a child of the plugin can keep the pipes open. The plugin
        // itself was in time.
        if !is_read && let Ok(done) = timeout(PIPE_GRACE, &mut transfer).await {
            done?;
        }
        status.map_err(OutputError::Io)?
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
fn failure(call: Call<'_>, output: &PluginOutput) -> Error {
    let plugin = call.plugin.to_owned();
    let verb = call.verb;
    if let Ok(WireError { code, msg, details }) = serde_json::from_slice(&output.stdout) {
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
    let shown = [words(&output.stderr), words(&output.stdout)]
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or_else(|| "it wrote nothing".to_owned());
    Error::Failed {
        plugin,
        verb,
        status: output.status.to_string(),
        output: shown,
    }
}

#[cfg(test)]
mod tests;
