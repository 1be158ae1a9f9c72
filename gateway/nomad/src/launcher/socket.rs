//! The launcher's socket, accessible only to root and the launcher's own user.
//!
//! Its name has the launcher's process id, which a launcher in another pid namespace may have too, if agents in containers share
//! the directory. So a socket of this name on which a process listens is left alone, and the next directory is tried; and a
//! launcher removes its socket before it stops listening. Of two launchers that start at once, one may still look before the
//! other one listens, and remove that one's socket afterwards: the agent of that one cannot connect, and starts another launcher.

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
use switchyard_linux::files::if_present;
use tokio::net::{UnixListener, UnixStream};

use super::handshake;
use super::launch::Launch;

/// The longest path of a unix socket that the kernel accepts, without the final NUL.
const SOCKET_PATH_MAX: usize = 107;

/// Suffix of socket names.
const SUFFIX: &str = ".sock";

/// No directory is usable for the socket.
#[derive(Debug)]
pub struct SocketError {
    tried: Vec<(PathBuf, io::Error)>,
}

/// A listening socket; its file is removed on drop.
#[derive(Debug)]
pub(super) struct PluginSocket {
    // Dropped first: once nobody listens, another launcher may have its own socket at this path, and would lose it.
    file: SocketFile,
    listener: UnixListener,
    multiplex: bool,
}

#[derive(Debug)]
struct SocketFile(PathBuf);

// === impl PluginSocket ===

impl PluginSocket {
    /// Listens beside the daemon's socket, or where the host asks for it, or else below the directory for
    /// temporary files. Removes the sockets there that killed launchers left behind.
    pub(super) fn bind(launch: &Launch) -> Result<Self, SocketError> {
        let beside = launch.daemon.parent().map(|run| run.join("launchers"));
        let elsewhere = std::env::temp_dir().join(format!("switchyard-{}", geteuid()));
        let mut tried = Vec::new();
        for dir in launch
            .socket_env
            .socket_dir
            .clone()
            .into_iter()
            .chain(beside)
            .chain([elsewhere])
        {
            match Self::bind_in(&dir, launch) {
                Ok(socket) => return Ok(socket),
                Err(error) => tried.push((dir, error)),
            }
        }
        Err(SocketError { tried })
    }

    fn bind_in(dir: &Path, launch: &Launch) -> io::Result<Self> {
        let path = dir.join(format!(
            "{}-{}{SUFFIX}",
            launch.role.as_str(),
            std::process::id()
        ));
        if path.as_os_str().len() > SOCKET_PATH_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidFilename,
                "the path is too long for a socket",
            ));
        }
        make_private(dir)?;
        remove_stale(dir);
        if Probe::connect(&path).is_ok() {
            let why =
                "a launcher of another pid namespace listens on the socket for this process id";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
        }
        // Otherwise an earlier process with the same id has left it.
        remove(&path)?;
        let listener = UnixListener::bind(&path)?;
        let file = SocketFile(path);
        fs::set_permissions(&file.0, fs::Permissions::from_mode(0o600))?;
        Ok(Self {
            listener,
            file,
            multiplex: launch.socket_env.multiplex,
        })
    }

    /// The handshake line for the agent.
    pub(super) fn line(&self) -> String {
        handshake::line(&self.file.0, self.multiplex)
    }

    /// The accepted connections, without end; there may be any number, or none. The file is removed when the
    /// stream is dropped.
    pub(super) fn into_incoming(
        self,
    ) -> impl Stream<Item = io::Result<AuthorityFilter<UnixStream>>> {
        futures::stream::unfold(self, |socket| async move {
            let stream = accept(&socket.listener).await;
            Some((Ok(AuthorityFilter::new(stream)), socket))
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
                tracing::warn!(%error, "cannot accept a connection: retrying");
                // The reason is most likely a limit on open files, which persists for a while.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

fn may_call(uid: Uid) -> bool {
    uid.is_root() || uid == geteuid()
}

/// Creates a directory that only its owner can use; an existing one must have such permissions.
fn make_private(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        // The daemon's own directory, in case the daemon has not run since boot.
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let meta = fs::symlink_metadata(dir)?;
    if meta.is_dir() && meta.uid() == geteuid().as_raw() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "others than its owner may write there",
    ))
}

/// Removes the sockets of killed launchers. Keeps a socket that a process listens on, and one whose process
/// lives, since it may be about to listen.
fn remove_stale(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let pid = name
            .strip_suffix(SUFFIX)
            .and_then(|name| name.rsplit('-').next()?.parse::<u32>().ok());
        let dead = pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        let refused = || {
            Probe::connect(&path)
                .is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if dead && refused() {
            // Another launcher may do the same concurrently.
            let _ = remove(&path);
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    if_present(fs::remove_file(path)).map(drop)
}

// === impl SocketFile ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Errors are ignored: the next launcher removes a socket that stays.
        let _ = remove(&self.0);
    }
}

// === impl SocketError ===

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
    use crate::launcher::launch::{Role, SocketEnv};

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
    async fn launcher_socket_is_created_without_daemon_and_removed_at_exit() {
        let dir = tempfile::tempdir().unwrap();
        let socket = PluginSocket::bind(&launch(&dir.path().join("run"))).unwrap();
        let path = dir
            .path()
            .join(format!("run/launchers/driver-{}.sock", std::process::id()));
        assert_eq!(
            socket.line(),
            format!("1|2|unix|{}|grpc|\n", path.display())
        );
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        drop(socket);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_sockets_of_dead_launchers_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let launchers = dir.path().join("launchers");
        make_private(&launchers).unwrap();
        // No process has this id: the kernel's limit is 2^22.
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
    async fn socket_of_the_same_process_id_is_replaced_unless_somebody_listens() {
        let dir = tempfile::tempdir().unwrap();
        let launchers = dir.path().join("launchers");
        make_private(&launchers).unwrap();
        let path = launchers.join(format!("driver-{}.sock", std::process::id()));
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        drop(PluginSocket::bind_in(&launchers, &launch(dir.path())).unwrap());
        let _other = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let error = PluginSocket::bind_in(&launchers, &launch(dir.path())).unwrap_err();
        assert!(
            error.kind() == io::ErrorKind::AddrInUse && path.exists(),
            "{error}"
        );
    }

    #[tokio::test]
    async fn socket_is_removed_before_its_launcher_stops_listening() {
        let dir = tempfile::tempdir().unwrap();
        let launchers = dir.path().join("launchers");
        for round in 0..100 {
            let socket = PluginSocket::bind_in(&launchers, &launch(dir.path())).unwrap();
            let path = socket.file.0.clone();
            let (connected, wait) = std::sync::mpsc::channel();
            let other = std::thread::spawn(move || {
                while Probe::connect(&path).is_ok() {
                    let _ = connected.send(());
                }
                // As a launcher with the same process id does it then.
                fs::remove_file(&path).is_ok()
            });
            wait.recv().unwrap();
            drop(socket);
            let found_stale = other.join().unwrap();
            assert!(
                !found_stale,
                "round {round}: a socket without a listener was still there"
            );
        }
    }

    #[tokio::test]
    async fn writable_or_linked_socket_directory_is_rejected() {
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
