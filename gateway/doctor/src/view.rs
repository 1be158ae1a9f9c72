//! The one way in which checks look at a node, so that tests can replace it.

use std::io;
use std::path::{Path, PathBuf};

use switchyard_config::{Config, ConfigError, DefaultsError, FoundDefaults, Loaded, Sources};
use switchyard_linux::host_features::HostFeatures;
use switchyard_linux::mounts::{MountTable, OWN_MOUNTS};

/// The largest file that is read, in bytes.
pub(super) const FILE_MAX: usize = 1 << 20;

/// The network devices of the node.
pub(super) const NETWORK_DEVICES: &str = "/sys/class/net";

/// The largest list of mounts that is read, in bytes: each running container has several lines.
const MOUNTS_MAX: usize = 16 << 20;

/// Maximum number of processes that are examined.
const PROCESSES_MAX: usize = 65_536;

/// The longest command line that is read, in bytes.
const ARGUMENTS_BYTES_MAX: usize = 64 << 10;

/// Maximum number of arguments of a process that are examined.
const ARGUMENTS_MAX: usize = 256;

/// A file as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    /// Its kind.
    pub kind: FileKind,
    /// Its permissions.
    pub mode: u32,
    /// Its owner, as this process sees it.
    pub uid: u32,
    /// The numbers of a character device.
    pub character_device: Option<(u64, u64)>,
}

/// The kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A socket.
    Socket,
    /// Anything else.
    Other,
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// Its size in bytes.
    pub bytes: u64,
    /// Space that can still be written, in bytes.
    pub free_bytes: u64,
    /// The number of its inodes; 0 if it has no fixed number.
    pub inodes: u64,
    /// Number of free inodes.
    pub free_inodes: u64,
}

/// A daemon's table of nf_tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkTable {
    /// Its family and name, as in `ip switchyard`.
    pub name: String,
    /// True if its sets, chains and rules are those that a daemon makes.
    pub intact: bool,
}

/// Output of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandOutput {
    /// Its exit status; `None` if a signal ended it.
    pub status: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// True if it printed more than is accepted, and was killed for it.
    pub is_cut: bool,
}

/// Reason why a command has no result.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It cannot be executed.
    #[error("cannot execute {program}")]
    Start {
        /// The program.
        program: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It did not end in time, and was killed.
    #[error("{0} did not end in time")]
    Deadline(String),
}

/// A process of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Its id.
    pub pid: i32,
    /// Its arguments, with the name of its program.
    pub args: Vec<String>,
}

/// A node. Nothing here changes it; everything is bounded in time and size.
pub trait NodeView: Send + Sync {
    /// The content of a regular file.
    ///
    /// # Errors
    /// `InvalidInput` if it is no regular file, `FileTooLarge` if it has more than `max` bytes.
    fn read(&self, path: &Path, max: usize) -> io::Result<Vec<u8>>;

    /// The names in a directory, sorted.
    ///
    /// # Errors
    /// The directory cannot be read.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// A file, through symbolic links.
    ///
    /// # Errors
    /// The file cannot be looked at: `NotFound` if it does not exist.
    fn stat(&self, path: &Path) -> io::Result<FileFacts>;

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// The path is no symbolic link.
    fn link(&self, path: &Path) -> io::Result<PathBuf>;

    /// The space of the file system that a path is on.
    ///
    /// # Errors
    /// There is no such path.
    fn space(&self, path: &Path) -> io::Result<DiskSpace>;

    /// Runs a command that changes nothing.
    ///
    /// # Errors
    /// [`CommandError`]; any exit status is a result.
    fn run(&self, program: &Path, args: &[&str]) -> Result<CommandOutput, CommandError>;

    /// Connects to a unix socket, and closes the connection.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens.
    fn connect(&self, socket: &Path) -> io::Result<()>;

    /// Returns whether root of the node itself runs this process. Nothing of another process may be read: a
    /// container chooses its arguments, and can block a reader of them for ever.
    fn is_own_root(&self, pid: i32) -> bool;

    /// Returns whether a group with this name, or a number, exists.
    fn has_group(&self, name: &str) -> bool;

    /// Finds the features that this process sees the kernel and the node offer to a daemon with this run directory. Changes nothing.
    fn host_features(&self, run: &Path) -> HostFeatures;

    /// The tables of nf_tables of all daemons in this network namespace. The kernel loads nf_tables for it, if it is a module.
    ///
    /// # Errors
    /// Why they cannot be read.
    fn network_tables(&self) -> Result<Vec<NetworkTable>, String>;

    /// The faults for which a daemon with this configuration and environment does not start on the node, but for groups
    /// that do not exist and [features](Self::host_features); none if this process may not read what the daemon reads.
    fn start_faults(&self, config: &Config, environment: &[(String, String)]) -> Vec<String>;

    /// The configuration of these sources, as a process that starts reads them.
    ///
    /// # Errors
    /// The configuration is invalid.
    fn load(&self, sources: &Sources) -> Result<Loaded, ConfigError>;

    /// The defaults of the networks of the node with this state directory.
    ///
    /// # Errors
    /// They are not known.
    fn network_defaults(&self, state: &Path) -> Result<FoundDefaults, DefaultsError>;

    /// A page of the daemon that listens on an admin socket.
    ///
    /// # Errors
    /// Why there is no answer.
    fn ask(&self, socket: &Path, page: &str) -> Result<Vec<u8>, String>;

    /// The paths that this process was not permitted to read so far.
    fn denied(&self) -> Vec<PathBuf>;
}

impl dyn NodeView + '_ {
    /// The content of a file as text; `None` if it cannot be read.
    pub(super) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = self.read(path.as_ref(), FILE_MAX).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The number in a file.
    pub(super) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.text(path)?.trim().parse().ok()
    }

    /// Returns whether a path exists.
    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.stat(path.as_ref()).is_ok()
    }

    /// Returns whether systemd manages this node.
    pub(super) fn has_systemd(&self) -> bool {
        self.exists("/run/systemd/system")
    }

    /// The file of a program: a path, or a name that is searched in these directories.
    pub(crate) fn program(&self, name: &str, dirs: &[PathBuf]) -> Option<PathBuf> {
        let candidates = if name.contains('/') {
            vec![PathBuf::from(name)]
        } else {
            dirs.iter().map(|dir| dir.join(name)).collect()
        };
        let is_program = |path: &PathBuf| {
            self.stat(path)
                .is_ok_and(|file| file.kind == FileKind::Regular && file.mode & 0o111 != 0)
        };
        candidates.into_iter().find(is_program)
    }

    /// The processes that root of the node itself runs, with their arguments; none of a container.
    pub(super) fn processes(&self) -> Vec<ProcessFacts> {
        let names = self.list(Path::new("/proc")).unwrap_or_default();
        let pids = names
            .iter()
            .filter_map(|name| name.parse::<i32>().ok())
            .take(PROCESSES_MAX);
        let pids = pids.filter(|pid| self.is_own_root(*pid));
        let process = |pid: i32| {
            let line = self
                .read(
                    Path::new(&format!("/proc/{pid}/cmdline")),
                    ARGUMENTS_BYTES_MAX,
                )
                .ok()?;
            let args = arguments(&line);
            (!args.is_empty()).then_some(ProcessFacts { pid, args })
        };
        pids.filter_map(process).collect()
    }

    /// The mounts that this process sees.
    pub(super) fn mounts(&self) -> MountTable {
        MountTable::from_text(
            self.read(Path::new(OWN_MOUNTS), MOUNTS_MAX)
                .unwrap_or_default(),
        )
    }
}

impl ProcessFacts {
    /// The name of its program, without directories.
    #[must_use]
    pub fn name(&self) -> &str {
        let program = self.args.first().map_or("", String::as_str);
        program.rsplit('/').next().unwrap_or(program)
    }

    /// The values of an option: of `--name value`, `--name=value`, and of those with one dash.
    #[must_use]
    pub fn values(&self, option: &str) -> Vec<&str> {
        let mut found = Vec::new();
        let mut args = self.args.iter().skip(1).map(String::as_str);
        while let Some(arg) = args.next() {
            let Some(bare) = arg.strip_prefix('-') else {
                continue;
            };
            let bare = bare.strip_prefix('-').unwrap_or(bare);
            match bare.split_once('=') {
                Some((name, value)) if name == option => found.push(value),
                Some(_) => {}
                None if bare == option => found.extend(args.next()),
                None => {}
            }
        }
        found
    }
}

/// The arguments in the content of a `/proc/<pid>/cmdline`.
fn arguments(line: &[u8]) -> Vec<String> {
    let args = line.split(|byte| *byte == 0).take(ARGUMENTS_MAX);
    let mut args: Vec<String> = args
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .collect();
    if args.last().is_some_and(String::is_empty) {
        args.pop();
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_in_all_forms() {
        let args = [
            "/usr/bin/x",
            "--config",
            "/a",
            "-config=/b",
            "--other=/c",
            "word",
            "--config",
        ];
        let process = ProcessFacts {
            pid: 1,
            args: args.map(str::to_owned).to_vec(),
        };
        assert_eq!(
            (process.name(), process.values("config")),
            ("x", vec!["/a", "/b"])
        );
    }
}
