//! The node that this process runs on.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http::Method;
use nix::sys::stat::{major, minor};
use nix::sys::statvfs::statvfs;
use nix::unistd::geteuid;
use parking_lot::Mutex;
use switchyard_config as config;
use switchyard_config::{Config, ConfigError, DefaultsError, FoundDefaults, Loaded, Sources};
use switchyard_linux::host_features::HostFeatures;
use switchyard_linux::report;
use switchyard_network::nft::{NftError, NftTables};
use switchyard_socket::channel::{self, RequestError};
use switchyard_socket::listener;

use super::command;
use super::view::{
    CommandError, CommandOutput, DiskSpace, FileFacts, FileKind, NetworkTable, NodeView,
};

/// Time limit of a command.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);

/// The most that a command may print, in bytes.
const COMMAND_MAX: usize = 4 << 20;

/// Time for a server to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Time for the daemon to answer: counting images alone may take two seconds.
const ASK_LIMIT: Duration = Duration::from_secs(10);

/// The same after it has not answered in time, until it answers: it hangs, and there are some twenty pages.
const ASK_AGAIN: Duration = Duration::from_secs(3);

/// The longest answer of the daemon that is read, in bytes.
const ANSWER_MAX: usize = 16 << 20;

/// Maximum number of entries of a directory that are read.
const ENTRIES_MAX: usize = 100_000;

/// Maximum number of remembered paths that could not be read.
const DENIED_MAX: usize = 20;

/// The directories in which programs are searched, after those of the daemon's `PATH`.
pub(crate) const PROGRAM_DIRS: [&str; 6] = [
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
];

/// The node that this process runs on.
#[derive(Debug, Default)]
pub struct LocalNode {
    denied: Mutex<BTreeSet<PathBuf>>,
    /// The sockets where a request got no answer in time.
    silent: Mutex<BTreeSet<PathBuf>>,
    start_check: Option<StartCheck>,
}

/// The daemon's own check of its start with a configuration and an environment. Returns the faults but for groups and features of the kernel.
pub type StartCheck = fn(&Config, &[(String, String)]) -> Vec<String>;

impl LocalNode {
    /// The node; without the daemon's check of its start, that has no fault.
    #[must_use]
    pub fn with_start_check(start_check: Option<StartCheck>) -> Self {
        Self {
            start_check,
            ..Self::default()
        }
    }

    /// The time for an answer at a socket.
    fn ask_limit(&self, socket: &Path) -> Duration {
        match self.silent.lock().contains(socket) {
            true => ASK_AGAIN,
            false => ASK_LIMIT,
        }
    }

    fn note_silence(&self, socket: &Path, is_silent: bool) {
        let mut silent = self.silent.lock();
        if is_silent {
            silent.insert(socket.to_owned());
        } else {
            silent.remove(socket);
        }
    }

    /// Notes it if this process was not permitted to look at a path.
    fn note<T>(&self, path: &Path, result: io::Result<T>) -> io::Result<T> {
        if result
            .as_ref()
            .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
        {
            let mut denied = self.denied.lock();
            if denied.len() < DENIED_MAX {
                denied.insert(path.to_owned());
            }
        }
        result
    }
}

impl NodeView for LocalNode {
    fn read(&self, path: &Path, max: usize) -> io::Result<Vec<u8>> {
        let max = u64::try_from(max).unwrap_or(u64::MAX);
        self.note(
            path,
            switchyard_node_files::read(path, max).map_err(io::Error::from),
        )
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let entries = self.note(dir, fs::read_dir(dir))?;
        let names = entries
            .take(ENTRIES_MAX)
            .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
        let mut names = names.collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    fn stat(&self, path: &Path) -> io::Result<FileFacts> {
        let meta = self.note(path, fs::metadata(path))?;
        let kind = match meta.file_type() {
            kind if kind.is_file() => FileKind::Regular,
            kind if kind.is_dir() => FileKind::Directory,
            kind if kind.is_socket() => FileKind::Socket,
            _ => FileKind::Other,
        };
        Ok(FileFacts {
            kind,
            mode: meta.permissions().mode() & 0o7777,
            uid: meta.uid(),
            character_device: meta
                .file_type()
                .is_char_device()
                .then(|| (major(meta.rdev()), minor(meta.rdev()))),
        })
    }

    fn link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn space(&self, path: &Path) -> io::Result<DiskSpace> {
        let found = self.note(path, statvfs(path).map_err(io::Error::from))?;
        let block: u64 = found.fragment_size();
        Ok(DiskSpace {
            bytes: found.blocks().saturating_mul(block),
            free_bytes: found.blocks_available().saturating_mul(block),
            inodes: found.files(),
            free_inodes: found.files_available(),
        })
    }

    fn run(&self, program: &Path, args: &[&str]) -> Result<CommandOutput, CommandError> {
        command::run(program, args, &search_path(), COMMAND_LIMIT, COMMAND_MAX)
    }

    fn connect(&self, socket: &Path) -> io::Result<()> {
        let connected = block_on(CONNECT_LIMIT, channel::is_attended(socket));
        let connected =
            connected.unwrap_or_else(|why| Err(io::Error::new(io::ErrorKind::TimedOut, why)));
        match connected {
            // Its queue is full, so somebody listens.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // The logkeeper has its listener.
            Ok(false) => Err(io::ErrorKind::ConnectionRefused.into()),
            connected => self.note(socket, connected.map(drop)),
        }
    }

    fn is_own_root(&self, pid: i32) -> bool {
        switchyard_linux::process::is_own_root(pid)
    }

    fn has_group(&self, name: &str) -> bool {
        listener::has_group(name)
    }

    fn host_features(&self, run: &Path) -> HostFeatures {
        HostFeatures::find(run)
    }

    fn network_tables(&self) -> Result<Vec<NetworkTable>, String> {
        read_tables().map_err(|error| report(&error))
    }

    fn start_faults(&self, config: &Config, environment: &[(String, String)]) -> Vec<String> {
        let check = self.start_check.filter(|_| geteuid().is_root());
        check.map_or_else(Vec::new, |check| check(config, environment))
    }

    fn load(&self, sources: &Sources) -> Result<Loaded, ConfigError> {
        config::load_for_start(sources)
    }

    fn network_defaults(&self, state: &Path) -> Result<FoundDefaults, DefaultsError> {
        config::find_network_defaults(state)
    }

    fn ask(&self, socket: &Path, page: &str) -> Result<Vec<u8>, String> {
        // A request would wait for the next daemon.
        self.connect(socket)
            .map_err(|source| RequestError::Connect {
                socket: socket.to_owned(),
                source,
            })
            .map_err(|error| report(&error))?;
        let asked = channel::request_up_to(socket, Method::GET, page, ANSWER_MAX);
        let answer = block_on(self.ask_limit(socket), asked);
        self.note_silence(socket, answer.is_err());
        let answer = answer?;
        let (status, body) = answer.map_err(|error| report(&error))?;
        if status.is_success() {
            Ok(body.to_vec())
        } else {
            Err(format!("{page} was answered with {status}"))
        }
    }

    fn denied(&self) -> Vec<PathBuf> {
        let others = (!geteuid().is_root()).then(|| PathBuf::from("/proc (the processes of root)"));
        self.denied.lock().iter().cloned().chain(others).collect()
    }
}

fn read_tables() -> Result<Vec<NetworkTable>, NftError> {
    let mut read = Vec::new();
    for (family, name) in NftTables::list()? {
        let found = NftTables::open(name.clone())?.read(family)?;
        read.extend(found.map(|found| NetworkTable {
            name: format!("{} {}", family.name(), name.as_str()),
            intact: found.is_intact(family),
        }));
    }
    Ok(read)
}

/// The `PATH` of commands.
pub(crate) fn search_path() -> OsString {
    PROGRAM_DIRS.join(":").into()
}

/// Runs a future on this thread, within a time.
fn block_on<F: Future>(limit: Duration, future: F) -> Result<F::Output, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("cannot start a thread: {error}"))?;
    let done = runtime.block_on(async { tokio::time::timeout(limit, future).await });
    done.map_err(|_| format!("no answer within {limit:?}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn server_that_was_silent_has_less_time_until_it_answers() {
        let node = LocalNode::default();
        let [hung, other] = ["/run/a.sock", "/run/b.sock"].map(Path::new);
        node.note_silence(hung, true);
        assert_eq!(node.ask_limit(hung), ASK_AGAIN);
        assert_eq!(node.ask_limit(other), ASK_LIMIT);
        node.note_silence(hung, false);
        assert_eq!(node.ask_limit(hung), ASK_LIMIT);
    }

    #[test]
    fn only_regular_files_within_the_limit_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let node = LocalNode::default();
        let file = dir.path().join("file");
        fs::write(&file, "12345").unwrap();
        assert_eq!(node.read(&file, 5).unwrap(), b"12345");
        assert_eq!(
            node.read(&file, 4).unwrap_err().kind(),
            io::ErrorKind::FileTooLarge
        );
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Without a writer, an ordinary open would wait for ever.
        assert_eq!(
            node.read(&fifo, 5).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert_eq!(
            node.read(Path::new("/dev/zero"), 5).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        assert!(node.read(dir.path(), 5).is_err());
        assert!(
            !node
                .read(Path::new("/proc/self/cmdline"), 1 << 20)
                .unwrap()
                .is_empty()
        );
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(node.link(&link).unwrap(), file);
        assert_eq!(node.list(dir.path()).unwrap(), ["fifo", "file", "link"]);
    }

    #[test]
    fn stale_socket_is_told_from_a_listener() {
        let dir = tempfile::tempdir().unwrap();
        let node = LocalNode::default();
        let path = dir.path().join("a.sock");
        let listener = UnixListener::bind(&path).unwrap();
        node.connect(&path).unwrap();
        assert_eq!(node.stat(&path).unwrap().kind, FileKind::Socket);
        drop(listener);
        assert_eq!(
            node.connect(&path).unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        assert!(node.ask(&path, "/statusz").is_err());
    }

    #[test]
    fn space_and_groups_are_those_of_the_node() {
        let node = LocalNode::default();
        let space = node.space(Path::new("/")).unwrap();
        assert!(space.bytes > 0 && space.free_bytes <= space.bytes);
        assert!(
            node.has_group("root") && node.has_group("4711") && !node.has_group("no-such-group")
        );
        assert!(node.space(Path::new("/no/such")).is_err());
    }
}
