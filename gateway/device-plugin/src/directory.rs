//! Notices when a kubelet starts: one task that watches the kubelet's directory for `kubelet.sock`.
//!
//! A kubelet that starts deletes all sockets in its directory, creates `kubelet.sock`, and admits its pods 8
//! to 85 ms later. A pod whose containers have exited and whose resource is not registered by then is
//! rejected for good. Polling would be too slow, so the socket is watched with inotify. The task also polls
//! once a second, because a mount over the directory causes no inotify event.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use switchyard_core::gateway::ResourceUse;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::channel::channel;
use crate::urgency::Urgent;

/// The kubelet's socket, in its directory.
const KUBELET: &str = "kubelet.sock";

/// Pause between two checks for changes that cause no event.
const POLL: Duration = Duration::from_secs(1);

/// Pause before the next attempt to watch the directory, after one that failed.
const RETRY: Duration = Duration::from_millis(50);

/// The watched events: changes in the directory, and changes of the directory itself.
const INSIDE: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// The events after which the path may lead to another directory than the watched one.
const GONE: ReadFlags = ReadFlags::DELETE_SELF
    .union(ReadFlags::MOVE_SELF)
    .union(ReadFlags::IGNORED)
    .union(ReadFlags::UNMOUNT);

/// The size of the buffer for events, in bytes. One event takes up to 272.
const BUFFER: usize = 4096;

/// A kubelet, known by the socket that it has created.
#[derive(Debug, Clone)]
pub(crate) struct Kubelet {
    /// Increases with each socket that is created.
    pub(crate) generation: u64,
    /// Connects on first use, and again after the connection has ended.
    pub(crate) channel: Channel,
    /// The resources that are registered with it first.
    pub(crate) urgent: Urgent,
}

/// The newest kubelet; `None` while there is no socket.
pub(crate) type Kubelets = watch::Receiver<Option<Kubelet>>;

/// Distinguishes files of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

/// The state of the watch of the socket.
struct SocketWatcher<'a> {
    directory: &'a Path,
    last_seen: Option<Identity>,
    generation: u64,
    kubelets: &'a watch::Sender<Option<Kubelet>>,
    urgent: &'a (dyn Fn() -> BTreeMap<String, ResourceUse> + Send + Sync),
}

/// An inotify instance, polled by tokio.
struct Events(AsyncFd<OwnedFd>);

/// An event in a directory, or of the directory itself.
struct Event {
    flags: ReadFlags,
    /// The event concerns kubelet.sock.
    of_kubelet: bool,
}

/// Follows the kubelet's socket in this directory, which need not exist yet, for as long as the future is
/// polled. `urgent` returns the resources that are to be registered first with a kubelet that starts now.
/// Cancel-safe.
pub(crate) async fn follow(
    directory: PathBuf,
    sender: watch::Sender<Option<Kubelet>>,
    urgent: impl Fn() -> BTreeMap<String, ResourceUse> + Send + Sync,
) {
    let mut follower = SocketWatcher {
        directory: &directory,
        last_seen: None,
        generation: 0,
        kubelets: &sender,
        urgent: &urgent,
    };
    let mut warned = false;
    loop {
        match Events::of(&directory) {
            Ok(events) => {
                warned = false;
                follower.watch_events(&events).await;
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                follower.check_socket();
                wait_for(&directory).await;
            }
            Err(error) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(directory = %directory.display(), %error, "cannot watch the kubelet's directory; it is polled each second instead");
                }
                follower.check_socket();
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// Returns when the directory may have been created, and after [`POLL`] at the latest.
async fn wait_for(directory: &Path) {
    let nearest = directory
        .ancestors()
        .skip(1)
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"));
    match Events::of(nearest) {
        // The directory, or one of its parents, may have been created before the watch was in place.
        Ok(events) if !directory.exists() => {
            let _ = timeout(POLL, events.next()).await;
        }
        Ok(_) => {}
        Err(_) => tokio::time::sleep(RETRY).await,
    }
}

// === impl SocketWatcher ===

impl SocketWatcher<'_> {
    /// Follows the events of the directory until the path leads to another directory.
    async fn watch_events(&mut self, events: &Events) {
        let watched = identity(self.directory);
        self.check_socket();
        loop {
            match timeout(POLL, events.next()).await {
                Ok(Ok(events)) => {
                    for Event {
                        flags: what,
                        of_kubelet,
                    } in events
                    {
                        if what.intersects(GONE) {
                            self.check_socket();
                            return;
                        }
                        if of_kubelet && what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM)
                        {
                            // The next socket may have the same identity: inode numbers are reused, and
                            // timestamps may be equal.
                            self.last_seen = None;
                        }
                        if of_kubelet || what.contains(ReadFlags::QUEUE_OVERFLOW) {
                            self.check_socket();
                        }
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(directory = %self.directory.display(), %error, "the watch of the kubelet's directory failed and is set up again");
                    tokio::time::sleep(RETRY).await;
                    return;
                }
                Err(_) => {
                    // Detects mounts over the directory, and unmounts.
                    if identity(self.directory).map(Identity::device_and_inode)
                        != watched.map(Identity::device_and_inode)
                    {
                        return;
                    }
                    self.check_socket();
                }
            }
        }
    }

    /// Publishes the current socket, if it is another one than before.
    fn check_socket(&mut self) {
        let path = self.directory.join(KUBELET);
        let now = fs::symlink_metadata(&path)
            .ok()
            .filter(|found| found.file_type().is_socket());
        let now = now.as_ref().map(Identity::of);
        if now == self.last_seen && (now.is_some() || self.kubelets.borrow().is_none()) {
            return;
        }
        self.last_seen = now;
        self.kubelets.send_replace(now.map(|_| {
            self.generation += 1;
            tracing::debug!(socket = %path.display(), generation = self.generation, "a kubelet has created its socket");
            Kubelet {
                generation: self.generation,
                channel: channel(path),
                urgent: Urgent::new((self.urgent)()),
            }
        }));
    }
}

// === impl Identity ===

impl Identity {
    fn of(metadata: &fs::Metadata) -> Self {
        let made = (metadata.mtime(), metadata.mtime_nsec());
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            made,
        }
    }

    /// Identifies a directory, independent of changes of its contents.
    const fn device_and_inode(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().as_ref().map(Identity::of)
}

// === impl Events ===

impl Events {
    /// Watches an existing directory.
    #[expect(
        deprecated,
        reason = "the other way is not safe code, and an OwnedFd is what this one needs to be sound"
    )]
    fn of(directory: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, directory, INSIDE)?;
        Ok(Self(AsyncFd::with_interest(inotify, Interest::READABLE)?))
    }

    /// The next events, in order. Cancel-safe.
    async fn next(&self) -> io::Result<Vec<Event>> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(events) = ready.try_io(|inotify| read(inotify.get_ref())) {
                return events;
            }
        }
    }
}

/// Reads the events that are queued.
///
/// # Errors
/// `WouldBlock` if there are none.
fn read(inotify: &OwnedFd) -> io::Result<Vec<Event>> {
    let mut buffer = [const { MaybeUninit::uninit() }; BUFFER];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    while events.is_empty() || !reader.is_buffer_empty() {
        let event = reader.next()?;
        let of_kubelet = event
            .file_name()
            .is_some_and(|name| name.to_bytes() == KUBELET.as_bytes());
        events.push(Event {
            flags: event.events(),
            of_kubelet,
        });
    }
    Ok(events)
}

#[cfg(test)]
mod tests;
