//! The directory that contains our kubelet.sock and the plugins' own sockets.
//!
//! One daemon at a time serves it, the one that has the lock on the directory: another one is refused until that has ended. A
//! socket on which somebody listens is recognised without it, but of two daemons that start at once, one could look before the
//! other listens, and remove its socket afterwards. A kubelet takes no lock. One that serves is found by its
//! socket; one that starts later removes ours, as it does with every socket of its directory.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use nix::unistd::geteuid;
use switchyard_core::{Error, Result};
use switchyard_linux::files::if_present;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, sleep_until};

/// The name of the registry's socket; it is compiled into plugins.
pub(crate) const REGISTRY: &str = "kubelet.sock";

/// Pause between two attempts to connect to a plugin that does not listen yet.
const ATTEMPT: Duration = Duration::from_millis(50);

/// The socket of the registry.
#[derive(Debug)]
pub(crate) struct RegistrySocket {
    pub(crate) listener: UnixListener,
    /// The lock on the directory.
    _lock: File,
}

/// Creates the directory, locks it, removes the sockets in it, and listens in it, as a kubelet does when it starts.
/// Plugins notice by this that they have to register, both those that watch their own socket and those that
/// watch kubelet.sock. Other files are kept.
///
/// # Errors
/// `FailedPrecondition` if other users can write to the directory, or if another process serves it;
/// `Unavailable` if it cannot be created.
pub(crate) async fn open(directory: &Path) -> Result<RegistrySocket> {
    let fail = |what: &str| {
        let text = format!(
            "cannot {what} {}, the directory for vendors' device plugins",
            directory.display()
        );
        move |source: io::Error| Error::unavailable(text).with_source(source)
    };
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(fail("create"))?;
    let found = fs::symlink_metadata(directory).map_err(fail("stat"))?;
    if !found.is_dir() || !is_trusted(found.uid()) || found.mode() & 0o022 != 0 {
        return Err(Error::failed_precondition(format!(
            "{} is not a directory that belongs to root and is writable by root alone: set devices.host.directory to another one, or chmod it",
            directory.display()
        )));
    }
    let registry = directory.join(REGISTRY);
    let taken = |by: &str| {
        Error::failed_precondition(format!(
            "{by} serves {} already: set devices.host.directory to another directory",
            registry.display()
        ))
    };
    let lock = File::open(directory).map_err(fail("open"))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(taken("another daemon")),
        Err(TryLockError::Error(source)) => return Err(fail("lock")(source)),
    }
    if UnixStream::connect(&registry).await.is_ok() {
        return Err(taken("a kubelet or another daemon"));
    }
    for entry in fs::read_dir(directory).map_err(fail("read"))?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            if_present(fs::remove_file(entry.path())).map_err(fail("clear"))?;
        }
    }
    let listener = UnixListener::bind(&registry).map_err(fail("listen in"))?;
    fs::set_permissions(&registry, fs::Permissions::from_mode(0o600)).map_err(fail("listen in"))?;
    Ok(RegistrySocket {
        listener,
        _lock: lock,
    })
}

/// Connects to a plugin's socket in the directory; until `deadline`, the socket need not exist yet. `name`
/// must have been checked. Cancel-safe.
///
/// # Errors
/// `InvalidArgument` if the file is not a socket; `Unavailable` if no process listens on it, or one of
/// another user than root.
pub(crate) async fn connect(directory: &Path, name: &str, deadline: Instant) -> Result<UnixStream> {
    let path = directory.join(name);
    loop {
        let failed = match fs::symlink_metadata(&path) {
            // A symbolic link could lead out of the directory.
            Ok(found) if !found.file_type().is_socket() => {
                return Err(Error::invalid(
                    "endpoint",
                    format!("{} is not a socket", path.display()),
                ));
            }
            Ok(_) => match UnixStream::connect(&path).await {
                Ok(stream) if is_allowed(&stream) => return Ok(stream),
                Ok(_) => {
                    return Err(Error::unavailable(format!(
                        "{} is served by a process that is not root's",
                        path.display()
                    )));
                }
                Err(error) => error,
            },
            Err(error) => error,
        };
        if Instant::now() + ATTEMPT >= deadline {
            let text = format!(
                "no process listens on {}: a plugin must serve before it registers",
                path.display()
            );
            return Err(Error::unavailable(text).with_source(failed));
        }
        sleep_until(Instant::now() + ATTEMPT).await;
    }
}

/// Returns whether the peer is root, or the user that the daemon runs as.
pub(crate) fn is_allowed(stream: &UnixStream) -> bool {
    stream.peer_cred().is_ok_and(|peer| is_trusted(peer.uid()))
}

fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener as Listener;

    use switchyard_core::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn stale_sockets_are_removed_and_other_files_kept() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("a/plugins");
        drop(open(&directory).await.unwrap());
        drop(Listener::bind(directory.join("vendor.sock")).unwrap());
        fs::write(directory.join("notes"), "").unwrap();
        let _listener = open(&directory).await.unwrap();
        let mut left: Vec<_> = fs::read_dir(&directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, [REGISTRY, "notes"]);
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    }

    #[tokio::test]
    async fn foreign_directory_is_left_untouched() {
        let dir = tempfile::tempdir().unwrap();
        let _kubelet = Listener::bind(dir.path().join(REGISTRY)).unwrap();
        let vendor = dir.path().join("vendor.sock");
        drop(Listener::bind(&vendor).unwrap());
        let error = open(dir.path()).await.unwrap_err();
        assert!(
            error.report().contains("serves") && vendor.exists(),
            "{error:?}"
        );
        let open_to_all = dir.path().join("all");
        fs::create_dir(&open_to_all).unwrap();
        fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(
            open(&open_to_all).await.unwrap_err().kind(),
            ErrorKind::FailedPrecondition
        );
    }

    /// As if it looked while the first one has not made its socket yet.
    #[tokio::test]
    async fn second_daemon_is_refused_although_it_finds_no_socket() {
        let dir = tempfile::tempdir().unwrap();
        let first = open(dir.path()).await.unwrap();
        fs::remove_file(dir.path().join(REGISTRY)).unwrap();
        let error = open(dir.path()).await.unwrap_err();
        assert!(
            error.report().starts_with("another daemon serves"),
            "{error:?}"
        );
        drop(first);
        open(dir.path()).await.unwrap();
    }

    #[tokio::test]
    async fn non_socket_is_not_connected_to() {
        let dir = tempfile::tempdir().unwrap();
        let _listener = Listener::bind(dir.path().join("real.sock")).unwrap();
        symlink(dir.path().join("real.sock"), dir.path().join("link.sock")).unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let soon = || Instant::now() + Duration::from_millis(120);
        connect(dir.path(), "real.sock", soon()).await.unwrap();
        for name in ["link.sock", "file"] {
            assert_eq!(
                connect(dir.path(), name, soon()).await.unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
        }
        let error = connect(dir.path(), "none.sock", soon()).await.unwrap_err();
        assert!(error.report().contains("none.sock"), "{error:?}");
    }
}
