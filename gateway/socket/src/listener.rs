//! Unix sockets that only root and one group can use.
//!
//! The file's mode already excludes others. The peer's credentials are checked as well, because a socket's
//! directory may be shared by mistake and the mode changed by hand.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::Stream;
use nix::unistd::{Gid, Group, Uid, chown, getegid, geteuid};
use switchyard_authority::AuthorityFilter;
use tokio::net::unix::UCred;
use tokio::net::{UnixListener, UnixStream};

mod connection_limit;
mod inherited;
mod own;

pub use connection_limit::ConnectionPermit;
pub use inherited::{InheritedListener, SharedListener};
pub use own::{OwnConnections, OwnConnector, own_connections};

use connection_limit::ConnectionLimiter;
use switchyard_linux::files::if_present;

/// A connection of a gRPC client, with any `:authority`; it holds a permit of the socket's connection limit.
pub type GrpcConnection = AuthorityFilter<UnixStream, Option<ConnectionPermit>>;

/// Reason why a socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The socket cannot be created.
    #[error("cannot listen on {}", path.display())]
    Bind {
        /// The socket.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The path exists and is not a socket.
    #[error("cannot listen on {}: the path exists and is not a socket; remove it or choose another path", .0.display())]
    InTheWay(PathBuf),
    /// The group does not exist on this node.
    #[error(
        "group {0:?} does not exist: create it with groupadd, or set socket_group to another one"
    )]
    NoGroup(String),
}

/// A unix socket whose callers are checked. The file is removed when it is dropped, unless it is left to a successor.
#[derive(Debug)]
pub struct GuardedListener {
    listener: UnixListener,
    group: Option<Gid>,
    limiter: Option<ConnectionLimiter>,
    file: Arc<SocketFile>,
}

/// Removes a socket's file when dropped, if it is still the file that was created and not a successor's.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    is_left: AtomicBool,
}

impl GuardedListener {
    /// Listens on `path`, mode 0660, and replaces a predecessor's socket: the caller holds the lock of the
    /// directory.
    ///
    /// # Errors
    /// [`ListenError`]; the old file may be gone then.
    pub fn bind(path: &Path, group: Option<&str>) -> Result<Self, ListenError> {
        Self::inherit_or_bind(path, group, None)
    }

    /// Listens as [`GuardedListener::bind`], with the listener of a predecessor if that is bound to the file at `path`:
    /// then the clients who wait there are served, and the file is left at the end, see [`SocketFile::leave`].
    ///
    /// # Errors
    /// As for [`GuardedListener::bind`].
    pub fn inherit_or_bind(
        path: &Path,
        group: Option<&str>,
        inherited: Option<InheritedListener>,
    ) -> Result<Self, ListenError> {
        let fail = |source| ListenError::Bind {
            path: path.to_owned(),
            source,
        };
        let group = group.map(find_group).transpose()?;
        let inherited = inherited.and_then(|inherited| inherited.at(path));
        let is_inherited = inherited.is_some();
        let listener = match inherited {
            Some(listener) => listener,
            None => bind_file(path)?,
        };
        // The predecessor may have given the file another group.
        let file_group = group.or_else(|| is_inherited.then(getegid));
        switchyard_crash_points::reach(switchyard_crash_points::CrashPoint::SocketBound);
        let file = Arc::new(SocketFile {
            path: path.to_owned(),
            identity: identity(path),
            // Others may keep the listener open, and this start may fail.
            is_left: AtomicBool::new(is_inherited),
        });
        // A connection before these calls is harmless: each is admitted by the credentials of its peer.
        chown(path, None, file_group).map_err(|errno| fail(errno.into()))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660)).map_err(fail)?;
        Ok(Self {
            listener,
            group,
            limiter: None,
            file,
        })
    }

    /// Limits the concurrent gRPC connections, and those of one process to half of the limit; `key` is the
    /// configuration key of the limit, for messages. Further connections are closed when they arrive.
    #[must_use]
    pub fn with_limit(self, connections: usize, key: &'static str) -> Self {
        Self {
            limiter: Some(ConnectionLimiter::new(connections, key)),
            ..self
        }
    }

    /// The socket's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// The socket's file, to remove it while a server still holds the listener.
    #[must_use]
    pub fn file(&self) -> Arc<SocketFile> {
        Arc::clone(&self.file)
    }

    /// A duplicate of the listener, which can be kept for a successor.
    ///
    /// # Errors
    /// There are no more descriptors, or the socket's file was removed.
    pub fn share(&self) -> Result<SharedListener, ListenError> {
        SharedListener::of(&self.listener, self.file()).map_err(|source| ListenError::Bind {
            path: self.path().to_owned(),
            source,
        })
    }

    /// Accepts the next connection of a permitted peer. Cancel-safe.
    pub async fn accept(&mut self) -> UnixStream {
        let mut has_warned = false;
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => match stream.peer_cred() {
                    Ok(peer) if self.allows(&peer) => return stream,
                    Ok(peer) => {
                        tracing::warn!(socket = %self.path().display(), uid = peer.uid(), pid = peer.pid(), "refused a connection of a peer that may not use this socket");
                    }
                    Err(error) => {
                        tracing::warn!(socket = %self.path().display(), %error, "refused a connection without peer credentials");
                    }
                },
                Err(error) => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!(socket = %self.path().display(), %error, "cannot accept a connection; trying again");
                    }
                    // The reason is most likely the limit on open files, which does not go away at once.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// The stream of connections for a gRPC server; those of the daemon itself hold no permit.
    pub fn into_stream(
        self,
        own: OwnConnections,
    ) -> impl Stream<Item = io::Result<GrpcConnection>> {
        futures::stream::unfold((self, own), |(mut listener, mut own)| async move {
            let connection = tokio::select! {
                connection = listener.accept_grpc() => connection,
                stream = own.next() => AuthorityFilter::with_guard(stream, None),
            };
            Some((Ok(connection), (listener, own)))
        })
    }

    /// Accepts the next connection of a permitted peer within the connection limit. Cancel-safe.
    async fn accept_grpc(&mut self) -> GrpcConnection {
        loop {
            let stream = self.accept().await;
            let Some(places) = &self.limiter else {
                return AuthorityFilter::with_guard(stream, None);
            };
            let process = stream.peer_cred().ok().and_then(|peer| peer.pid());
            if let Some(place) = places.acquire(process) {
                return AuthorityFilter::with_guard(stream, Some(place));
            }
        }
    }

    fn allows(&self, peer: &UCred) -> bool {
        let uid = Uid::from_raw(peer.uid());
        uid.is_root()
            || uid == geteuid()
            || self.group.is_some_and(|group| {
                peer.gid() == group.as_raw()
                    // SO_PEERCRED has no supplementary groups.
                    || peer.pid().is_some_and(|pid| groups_of(pid, peer.uid()).contains(&group.as_raw()))
            })
    }
}

/// Binds a socket to `path`, in the place of one that is there.
fn bind_file(path: &Path) -> Result<UnixListener, ListenError> {
    let fail = |source| ListenError::Bind {
        path: path.to_owned(),
        source,
    };
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(fail)?;
    }
    match if_present(fs::symlink_metadata(path)).map_err(fail)? {
        Some(meta) if meta.file_type().is_socket() => fs::remove_file(path).map_err(fail)?,
        Some(_) => return Err(ListenError::InTheWay(path.to_owned())),
        None => {}
    }
    UnixListener::bind(path).map_err(fail)
}

impl SocketFile {
    /// Sets whether the file is left where it is when it would be removed, since somebody keeps its listener open.
    pub fn leave(&self, is_left: bool) {
        self.is_left.store(is_left, Ordering::Relaxed);
    }

    /// Removes the file, if it is still the one that was created, and is not left. Idempotent.
    pub fn remove(&self) {
        if self.is_left.load(Ordering::Relaxed) {
            return;
        }
        // Another daemon may have bound a socket of its own at the path.
        let ours = self.identity.is_some() && identity(&self.path) == self.identity;
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::warn!(socket = %self.path.display(), %error, "cannot remove the socket");
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        self.remove();
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path)
        .ok()
        .map(|meta| (meta.dev(), meta.ino()))
}

/// Returns whether a group with this name, or a number, exists on this node.
#[must_use]
pub fn has_group(name: &str) -> bool {
    find_group(name).is_ok()
}

fn find_group(name: &str) -> Result<Gid, ListenError> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    Group::from_name(name)
        .ok()
        .flatten()
        .map(|group| group.gid)
        .ok_or_else(|| ListenError::NoGroup(name.into()))
}

/// The supplementary groups of a user's process; empty if it has exited.
///
/// The kernel knows those of the peer at the time of connect (SO_PEERGROUPS), but no crate reads a list of
/// any length by getsockopt without `unsafe` on our side. A later process that reuses the pid is detected by
/// its user, unless it has the same user and so the same rights.
fn groups_of(pid: i32, uid: u32) -> Vec<u32> {
    groups_in(
        &fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(),
        uid,
    )
}

/// The groups in the text of a `/proc/<pid>/status`, if the process has this effective user. Pure.
fn groups_in(status: &str, uid: u32) -> Vec<u32> {
    let numbers = |key: &str| -> Vec<u32> {
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .unwrap_or_default();
        line.split_whitespace()
            .filter_map(|number| number.parse().ok())
            .collect()
    };
    // Uid: real, effective, saved, of the file system.
    if numbers("Uid:").get(1) == Some(&uid) {
        numbers("Groups:")
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn stale_socket_is_replaced_and_own_socket_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/a.sock");
        let stale = GuardedListener::bind(&path, None).unwrap();
        std::mem::forget(stale.file);
        drop(stale.listener);
        assert!(path.exists());
        let mut listener = GuardedListener::bind(&path, None).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o660
        );
        let (client, _server) = tokio::join!(UnixStream::connect(&path), listener.accept());
        client.unwrap();
        drop(listener);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn socket_of_a_successor_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let first = GuardedListener::bind(&path, None).unwrap();
        let second = GuardedListener::bind(&path, None).unwrap();
        first.file().remove();
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn clients_of_a_listener_that_is_inherited_are_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let former = GuardedListener::bind(&path, None).unwrap();
        let shared = former.share().unwrap();
        shared.file().leave(true);
        drop(former);
        let waiting = UnixStream::connect(&path).await.unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let inherited = InheritedListener::new(shared.duplicate().unwrap(), shared.note().into());
        drop(shared);
        let mut later = GuardedListener::inherit_or_bind(&path, None, Some(inherited)).unwrap();
        later.accept().await;
        drop(waiting);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o660);
        let file = later.file();
        drop(later);
        assert!(
            path.exists(),
            "whoever has kept the listener may still do so"
        );
        file.leave(false);
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn listener_of_another_file_is_not_inherited() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["a.sock", "b.sock"].map(|name| dir.path().join(name));
        let former = GuardedListener::bind(&path, None).unwrap();
        let shared = former.share().unwrap();
        let inherited =
            || InheritedListener::new(shared.duplicate().unwrap(), shared.note().to_owned());
        let elsewhere = GuardedListener::inherit_or_bind(&other, None, Some(inherited())).unwrap();
        assert!(!path.exists(), "nobody serves it any more");
        let replaced = GuardedListener::bind(&path, None).unwrap();
        let mut again = GuardedListener::inherit_or_bind(&path, None, Some(inherited())).unwrap();
        drop((former, replaced));
        let (client, _server) = tokio::join!(UnixStream::connect(&path), again.accept());
        client.unwrap();
        drop(elsewhere);
        assert!(path.exists() && !other.exists());
    }

    #[tokio::test]
    async fn non_socket_file_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        fs::write(&path, "precious").unwrap();
        let error = GuardedListener::bind(&path, None).unwrap_err();
        assert!(matches!(error, ListenError::InTheWay(_)), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn unknown_socket_group_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let error =
            GuardedListener::bind(&dir.path().join("a.sock"), Some("no-such-group")).unwrap_err();
        assert!(error.to_string().contains("\"no-such-group\""), "{error}");
    }

    #[test]
    fn groups_of_a_live_process_are_read() {
        let own = i32::try_from(std::process::id()).unwrap();
        let uid = geteuid().as_raw();
        assert_eq!(groups_of(0, uid), Vec::<u32>::new());
        let expected: Vec<u32> = nix::unistd::getgroups()
            .unwrap()
            .into_iter()
            .map(Gid::as_raw)
            .collect();
        assert_eq!(groups_of(own, uid), expected);
    }

    #[test]
    fn groups_of_another_users_process_are_not_used() {
        let status =
            "Name:\tsh\nUid:\t1000\t1001\t1000\t1000\nGid:\t5\t5\t5\t5\nGroups:\t5 27 999 \n";
        assert_eq!(groups_in(status, 1001), [5, 27, 999]);
        assert_eq!(groups_in(status, 1000), Vec::<u32>::new());
        assert_eq!(groups_in("", 0), Vec::<u32>::new());
    }
}
