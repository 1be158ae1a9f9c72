//! A unix socket on which the plugin of one resource is served: one socket for each resource, since no call
//! names the resource.
//!
//! Each registration has a new socket with a new name. A kubelet deletes all sockets of its directory when it
//! starts, and a kubelet that knows a path from an earlier registration may confuse the two.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use nix::unistd::geteuid;
use switchyard_authority::AuthorityFilter;
use switchyard_core::{Error, Result};
use switchyard_linux::files::if_present;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::config::SOCKET_NAME_MAX;

/// Prefix of the names of our sockets.
const PREFIX: &str = "switchyard-";

/// The most connections that an endpoint serves at once. A kubelet has one, and for a moment a second one.
const CONNECTIONS_MAX: usize = 16;

/// The most concurrent calls on one connection; further ones wait in the client.
const CALLS_MAX: u32 = 256;

/// Limit for calls to finish after the endpoint was dropped.
const CLOSE: Duration = Duration::from_secs(2);

/// Pause before the next connection is accepted after an accept failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection of a kubelet; the filter accepts any `:authority` that a kubelet sends.
type Connection = AuthorityFilter<UnixStream, OwnedSemaphorePermit>;

/// A socket that is served. Dropping it removes its file, gives calls in flight 2 s to finish, and ends
/// the streams.
#[derive(Debug)]
pub(crate) struct Endpoint {
    path: PathBuf,
    _stop: DropGuard,
}

// === impl Endpoint ===

impl Endpoint {
    /// Creates a socket for a resource in a directory, and serves the routes that `routes` returns. When the
    /// endpoint is dropped, `ended` is cancelled, and the streams must end with it.
    ///
    /// # Errors
    /// `Unavailable` if the socket cannot be created.
    pub(crate) fn open(
        directory: &Path,
        resource: &str,
        tasks: &TaskTracker,
        ended: CancellationToken,
        routes: impl FnOnce() -> Routes + Send + 'static,
    ) -> Result<Self> {
        let path = directory.join(socket_name(resource)?);
        let fail = |source: io::Error| {
            Error::unavailable(format!(
                "cannot listen on {} for {resource}",
                path.display()
            ))
            .with_source(source)
        };
        let listener = UnixListener::bind(&path).map_err(fail)?;
        let endpoint = Self {
            path: path.clone(),
            _stop: ended.clone().drop_guard(),
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).map_err(fail)?;
        tasks.spawn(async move {
            // The socket listens already, and connections wait in its backlog: other tasks get to send their
            // calls to the kubelet first.
            tokio::task::yield_now().await;
            let server = Server::builder()
                .max_concurrent_streams(CALLS_MAX)
                // Calls that a kubelet has given up must not end its others.
                .http2_max_pending_accept_reset_streams(usize::try_from(CALLS_MAX).ok())
                .add_routes(routes());
            let server =
                server.serve_with_incoming_shutdown(incoming(listener), ended.clone().cancelled_owned());
            let deadline = async {
                ended.cancelled().await;
                tokio::time::sleep(CLOSE).await;
            };
            tokio::select! {
                end = server => if let Err(error) = end {
                    tracing::warn!(socket = %path.display(), %error, "a device plugin's server ended");
                },
                () = deadline => {}
            }
        });
        Ok(endpoint)
    }

    /// The path of the socket.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The name of the socket in its directory.
    pub(crate) fn name(&self) -> String {
        self.path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // A kubelet that starts removes all sockets first.
        if let Err(error) = if_present(fs::remove_file(&self.path)) {
            tracing::debug!(socket = %self.path.display(), %error, "cannot remove a socket");
        }
    }
}

/// Removes the sockets that a killed daemon has left behind in a directory. A socket on which a process
/// listens belongs to another daemon and is kept.
pub(crate) async fn remove_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else {
        return;
    };
    for entry in entries.flatten() {
        let named = entry
            .file_name()
            .to_str()
            .is_some_and(|name| name.starts_with(PREFIX));
        if !named || !entry.file_type().is_ok_and(|kind| kind.is_socket()) {
            continue;
        }
        let connected = UnixStream::connect(entry.path()).await;
        let refused =
            connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused);
        if refused && let Err(error) = fs::remove_file(entry.path()) {
            tracing::debug!(socket = %entry.path().display(), %error, "cannot remove the socket of a predecessor");
        }
    }
}

/// A name that was not used before, and that names the resource for the operator.
fn socket_name(resource: &str) -> Result<String> {
    let mut random = [0; 6];
    getrandom::fill(&mut random)
        .map_err(|error| Error::internal("no random numbers").with_source(error))?;
    let end = format!("-{}.sock", hex::encode(random));
    let word = |c: char| {
        if c.is_ascii_alphanumeric() || c == '.' {
            c
        } else {
            '_'
        }
    };
    let room = SOCKET_NAME_MAX - PREFIX.len() - end.len();
    let label: String = resource.chars().map(word).take(room).collect();
    Ok(format!("{PREFIX}{label}{end}"))
}

/// The connections of a listener, each with a permit of [`CONNECTIONS_MAX`].
fn incoming(listener: UnixListener) -> impl Stream<Item = io::Result<Connection>> {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    futures::stream::unfold((listener, places), |(listener, places)| async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) if !is_allowed(&stream) => {
                    tracing::warn!(
                        "refused a connection to a device plugin from a process that is not root"
                    );
                }
                Ok((stream, _)) => {
                    // A connection beyond the limit is closed: it must not keep a kubelet waiting.
                    if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                        return Some((
                            Ok(AuthorityFilter::with_guard(stream, place)),
                            (listener, places),
                        ));
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection to a device plugin");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    })
}

/// Returns whether the peer is root, or the user that the daemon runs as.
fn is_allowed(stream: &UnixStream) -> bool {
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == 0 || peer.uid() == geteuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(directory: &Path, tasks: &TaskTracker) -> Result<Endpoint> {
        Endpoint::open(
            directory,
            "acme.com/tpu",
            tasks,
            CancellationToken::new(),
            Routes::default,
        )
    }

    #[test]
    fn a_name_is_new_each_time_short_and_has_no_path_in_it() {
        for resource in ["acme.com/tpu", &"x".repeat(400), "../../etc/ü"] {
            let one = socket_name(resource).unwrap();
            let two = socket_name(resource).unwrap();
            assert_ne!(one, two);
            assert!(one.len() <= SOCKET_NAME_MAX && !one.contains('/'), "{one}");
        }
        assert!(
            socket_name("acme.com/tpu")
                .unwrap()
                .starts_with("switchyard-acme.com_tpu-")
        );
    }

    #[tokio::test]
    async fn only_sockets_of_ours_that_nobody_listens_on_are_stale() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        drop(std::os::unix::net::UnixListener::bind(path("switchyard-old.sock")).unwrap());
        drop(std::os::unix::net::UnixListener::bind(path("vendor.sock")).unwrap());
        let _live = std::os::unix::net::UnixListener::bind(path("switchyard-live.sock")).unwrap();
        fs::write(path("switchyard-file.sock"), "").unwrap();
        remove_stale(dir.path()).await;
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(
            left,
            [
                "switchyard-file.sock",
                "switchyard-live.sock",
                "vendor.sock"
            ]
        );
    }

    #[tokio::test]
    async fn a_socket_goes_with_its_endpoint() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = TaskTracker::new();
        let endpoint = open(dir.path(), &tasks).unwrap();
        let path = endpoint.path().to_owned();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(path, dir.path().join(endpoint.name()));
        UnixStream::connect(&path).await.unwrap();
        drop(endpoint);
        assert!(!path.exists());
        tasks.close();
        tasks.wait().await;
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _entered = runtime.enter();
        let opened = open(Path::new("/no/such"), &TaskTracker::new());
        let error = opened.unwrap_err().report();
        assert!(
            error.contains("/no/such/switchyard-") && error.contains("acme.com/tpu"),
            "{error}"
        );
    }
}
