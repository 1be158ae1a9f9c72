//! Where a launcher listens: a socket of its own that only root and its own user can use.

use std::fmt;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream as Probe;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::Stream;
use nix::unistd::{Uid, geteuid};
use switchyard_authority::AuthorityFilter;
use tokio::net::{UnixListener, UnixStream};

use super::{Launch, handshake};

/// The longest path of a unix socket that the kernel takes, without its final NUL.
const SOCKET_PATH_MAX: usize = 107;

/// What the names of sockets end in.
const SUFFIX: &str = ".sock";

/// What the agent says of sockets in its plugin's environment. Nomad says nothing; other hosts of go-plugin may.
#[derive(Debug, Clone, Default)]
pub struct SocketEnv {
    /// Where the socket is to be.
    pub socket_dir: Option<PathBuf>,
    /// It asks whether one connection can carry several.
    pub multiplex: bool,
}

/// No directory can hold the socket.
#[derive(Debug)]
pub struct SocketError {
    tried: Vec<(PathBuf, io::Error)>,
}

/// A socket that is listened on; its file goes when this is dropped.
#[derive(Debug)]
pub(super) struct PluginSocket {
    listener: UnixListener,
    file: SocketFile,
    multiplex: bool,
}

#[derive(Debug)]
struct SocketFile(PathBuf);

// === impl Host ===

impl SocketEnv {
    /// What this process was started with.
    #[must_use]
    pub fn from_env() -> Self {
        let given = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            socket_dir: given("PLUGIN_UNIX_SOCKET_DIR").map(PathBuf::from),
            multiplex: given("PLUGIN_MULTIPLEX_GRPC").is_some(),
        }
    }
}

// === impl Place ===

impl PluginSocket {
    /// Listens beside the daemon's socket, or where the host wants it, or else below the directory for temporary files. What killed
    /// launchers have left there is removed.
    pub(super) fn bind(launch: &Launch) -> Result<Self, SocketError> {
        let beside = launch.daemon.parent().map(|run| run.join("launchers"));
        let elsewhere = std::env::temp_dir().join(format!("switchyard-{}", geteuid()));
        let mut tried = Vec::new();
        for dir in launch.socket_env.socket_dir.clone().into_iter().chain(beside).chain([elsewhere]) {
            match Self::bind_in(&dir, launch) {
                Ok(place) => return Ok(place),
                Err(error) => tried.push((dir, error)),
            }
        }
        Err(SocketError { tried })
    }

    fn bind_in(dir: &Path, launch: &Launch) -> io::Result<Self> {
        let path = dir.join(format!("{}-{}{SUFFIX}", launch.role.as_str(), std::process::id()));
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidFilename, "the path is too long for a socket"));
        }
        make_private(dir)?;
        remove_stale(dir);
        // One of our own number can only be a predecessor's, from before it was given out again.
        remove(&path)?;
        let listener = UnixListener::bind(&path)?;
        let file = SocketFile(path);
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, file, multiplex: launch.socket_env.multiplex })
    }

    /// What the agent is told.
    pub(super) fn line(&self) -> String {
        handshake::line(&self.file.0, self.multiplex)
    }

    /// Its callers, without end. They may come and go, or not call at all. The file is removed with the stream.
    pub(super) fn into_incoming(self) -> impl Stream<Item = io::Result<AuthorityFilter<UnixStream>>> {
        futures::stream::unfold(self, |place| async move {
            let stream = accept(&place.listener).await;
            Some((Ok(AuthorityFilter::new(stream)), place))
        })
    }
}

async fn accept(listener: &UnixListener) -> UnixStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.peer_cred() {
                Ok(peer) if may_call(Uid::from_raw(peer.uid())) => return stream,
                Ok(peer) => tracing::warn!(
                    uid = peer.uid(),
                    pid = peer.pid(),
                    "a caller is refused: only root may call"
                ),
                Err(error) => tracing::warn!(%error, "a caller without credentials is refused"),
            },
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection, and tries until it can");
                // The reason is most likely a limit on files, which does not go away at once.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn may_call(uid: Uid) -> bool {
    uid.is_root() || uid == geteuid()
}

/// Makes a directory that nobody else can use; one that is there must be such.
fn make_private(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        // The daemon's own directory, if the daemon has never run since the node was started.
        DirBuilder::new().recursive(true).mode(0o711).create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let meta = fs::symlink_metadata(dir)?;
    if meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "others than its owner may write there"))
}

/// Removes the sockets of launchers that were killed. A socket that anybody listens on is left alone, and so is one whose process
/// lives: it may be about to listen.
fn remove_stale(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let pid = name.strip_suffix(SUFFIX).and_then(|name| name.rsplit('-').next()?.parse::<u32>().ok());
        let dead = pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        let refused =
            || Probe::connect(&path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if dead && refused() {
            // Another launcher may do the same at the same time.
            let _ = remove(&path);
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

// === impl File ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nobody is left to tell: what stays is swept by the next launcher.
        let _ = remove(&self.0);
    }
}

// === impl PlaceError ===

impl fmt::Display for SocketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no directory can hold it")?;
        for (index, (dir, error)) in self.tried.iter().enumerate() {
            let mark = if index == 0 { ": " } else { ", " };
            write!(f, "{mark}{} ({error})", dir.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for SocketError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launcher::Role;

    fn launch(run: &Path) -> Launch {
        Launch {
            role: Role::Driver,
            name: None,
            daemon: run.join("nomad.sock"),
            version: "0.0.1",
            socket_env: SocketEnv::default(),
        }
    }

    #[tokio::test]
    async fn a_socket_is_made_where_the_daemon_has_never_been_and_goes_with_its_launcher() {
        let dir = tempfile::tempdir().unwrap();
        let place = PluginSocket::bind(&launch(&dir.path().join("run"))).unwrap();
        let socket = dir.path().join(format!("run/launchers/driver-{}.sock", std::process::id()));
        assert_eq!(place.line(), format!("1|2|unix|{}|grpc|\n", socket.display()));
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        drop(place);
        assert!(!socket.exists());
    }

    #[tokio::test]
    async fn what_killed_launchers_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let launchers = dir.path().join("launchers");
        make_private(&launchers).unwrap();
        // No process has this number: the kernel's limit is 2^22.
        let stale = launchers.join("driver-4194305.sock");
        drop(std::os::unix::net::UnixListener::bind(&stale).unwrap());
        let listened = launchers.join("driver-4194306.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&listened).unwrap();
        let other = launchers.join("notes");
        fs::write(&other, "").unwrap();
        let _place = PluginSocket::bind(&launch(dir.path())).unwrap();
        assert!(!stale.exists());
        assert!(listened.exists() && other.exists());
    }

    #[tokio::test]
    async fn a_directory_that_others_may_write_to_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let launchers = dir.path().join("launchers");
        fs::create_dir(&launchers).unwrap();
        fs::set_permissions(&launchers, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(make_private(&launchers).is_err());
        fs::set_permissions(&launchers, fs::Permissions::from_mode(0o755)).unwrap();
        make_private(&launchers).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&launchers, &link).unwrap();
        assert!(make_private(&link).is_err());
    }
}
