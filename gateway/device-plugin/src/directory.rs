//! Sees a kubelet come: one task that watches the kubelet's directory for `kubelet.sock`.
//!
//! A kubelet that starts deletes all sockets in its directory, makes `kubelet.sock`, and admits its pods 8 to 85 ms later. A pod whose
//! containers have ended and whose devices nobody has registered by then is rejected for good, so it is inotify that tells of the socket,
//! and not a look now and then.
//! There is such a look besides, each second: for a directory that was mounted over, which no event tells of.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::transport::Channel;

use crate::registration;
use crate::urgency::Urgent;

/// The kubelet's socket, in its directory.
const KUBELET: &str = "kubelet.sock";

/// Between two looks for what no event tells of.
const POLL: Duration = Duration::from_secs(1);

/// Before the next attempt to watch after one that failed.
const RETRY: Duration = Duration::from_millis(50);

/// What is made in the directory, and what is done to the directory.
const INSIDE: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// The watch is of another directory than the one that the path leads to.
const GONE: ReadFlags =
    ReadFlags::DELETE_SELF.union(ReadFlags::MOVE_SELF).union(ReadFlags::IGNORED).union(ReadFlags::UNMOUNT);

/// How many bytes of events are read at once. One takes up to 272.
const BUFFER: usize = 4096;

/// A kubelet that has made its socket.
#[derive(Debug, Clone)]
pub(crate) struct Kubelet {
    /// Another one for each socket that was made, ascending.
    pub(crate) generation: u64,
    /// Connects when it is first used, and again after the connection has ended.
    pub(crate) channel: Channel,
    /// Which resources are registered with it first.
    pub(crate) urgent: Urgent,
}

/// The newest kubelet; `None` while there is no socket.
pub(crate) type Kubelets = watch::Receiver<Option<Kubelet>>;

/// What tells files of one name apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    made: (i64, i64),
}

/// What is known of the socket.
struct SocketWatcher<'a> {
    directory: &'a Path,
    last_seen: Option<Identity>,
    generation: u64,
    kubelets: &'a watch::Sender<Option<Kubelet>>,
    urgent: &'a (dyn Fn() -> BTreeSet<String> + Send + Sync),
}

/// An inotify instance that tokio waits for.
struct Events(AsyncFd<OwnedFd>);

/// Something that happened in a directory, or to it.
struct Event {
    flags: ReadFlags,
    /// It is about the kubelet's socket.
    of_kubelet: bool,
}

/// Follows the kubelet's socket in this directory, which need not be there yet, for as long as it is polled. `urgent` are the resources
/// that are to be registered first with a kubelet that comes now. Cancel-safe.
pub(crate) async fn follow(
    directory: PathBuf,
    told: watch::Sender<Option<Kubelet>>,
    urgent: impl Fn() -> BTreeSet<String> + Send + Sync,
) {
    let mut follower = SocketWatcher {
        directory: &directory,
        last_seen: None,
        generation: 0,
        kubelets: &told,
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
                    tracing::warn!(directory = %directory.display(), %error, "the kubelet's directory cannot be watched, and is looked at each second");
                }
                follower.check_socket();
                tokio::time::sleep(POLL).await;
            }
        }
    }
}

/// Returns when a directory may have been made, at the latest after a moment.
async fn wait_for(directory: &Path) {
    let nearest = directory.ancestors().skip(1).find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    match Events::of(nearest) {
        // It, or a directory on the way to it, may have been made before the watch was.
        Ok(events) if !directory.exists() => {
            let _ = timeout(POLL, events.next()).await;
        }
        Ok(_) => {}
        Err(_) => tokio::time::sleep(RETRY).await,
    }
}

// === impl Follower ===

impl SocketWatcher<'_> {
    /// Follows the events of the directory until it is another one.
    async fn watch_events(&mut self, events: &Events) {
        let watched = identity(self.directory);
        self.check_socket();
        loop {
            match timeout(POLL, events.next()).await {
                Ok(Ok(events)) => {
                    for Event { flags: what, of_kubelet } in events {
                        if what.intersects(GONE) {
                            self.check_socket();
                            return;
                        }
                        if of_kubelet && what.intersects(ReadFlags::DELETE | ReadFlags::MOVED_FROM) {
                            // The next one may be the same to every look: numbers and times are used again.
                            self.last_seen = None;
                        }
                        if of_kubelet || what.contains(ReadFlags::QUEUE_OVERFLOW) {
                            self.check_socket();
                        }
                    }
                }
                Ok(Err(error)) => {
                    tracing::warn!(directory = %self.directory.display(), %error, "the watch of the kubelet's directory broke off and is made anew");
                    tokio::time::sleep(RETRY).await;
                    return;
                }
                Err(_) => {
                    // Mounts and unmounts over the directory.
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

    /// Tells what is there, if it is another than before.
    fn check_socket(&mut self) {
        let path = self.directory.join(KUBELET);
        let now = fs::symlink_metadata(&path).ok().filter(|found| found.file_type().is_socket());
        let now = now.as_ref().map(Identity::of);
        if now == self.last_seen && (now.is_some() || self.kubelets.borrow().is_none()) {
            return;
        }
        self.last_seen = now;
        self.kubelets.send_replace(now.map(|_| {
            self.generation += 1;
            tracing::debug!(socket = %path.display(), generation = self.generation, "a kubelet has made its socket");
            Kubelet {
                generation: self.generation,
                channel: registration::channel(path),
                urgent: Urgent::new((self.urgent)()),
            }
        }));
    }
}

// === impl Identity ===

impl Identity {
    fn of(metadata: &fs::Metadata) -> Self {
        let made = (metadata.mtime(), metadata.mtime_nsec());
        Self { device: metadata.dev(), inode: metadata.ino(), made }
    }

    /// Which directory it is, whatever happens in it.
    const fn device_and_inode(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().as_ref().map(Identity::of)
}

// === impl Events ===

impl Events {
    /// Events of a directory that is there.
    #[expect(
        deprecated,
        reason = "the other way is not safe code, and an OwnedFd is what this one needs to be sound"
    )]
    fn of(directory: &Path) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&inotify, directory, INSIDE)?;
        Ok(Self(AsyncFd::with_interest(inotify, Interest::READABLE)?))
    }

    /// The next events, in their order. Cancel-safe.
    async fn next(&self) -> io::Result<Vec<Event>> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(events) = ready.try_io(|inotify| read(inotify.get_ref())) {
                return events;
            }
        }
    }
}

/// The events that there are.
///
/// # Errors
/// `WouldBlock` if there are none.
fn read(inotify: &OwnedFd) -> io::Result<Vec<Event>> {
    let mut buffer = [const { MaybeUninit::uninit() }; BUFFER];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    while events.is_empty() || !reader.is_buffer_empty() {
        let event = reader.next()?;
        let of_kubelet = event.file_name().is_some_and(|name| name.to_bytes() == KUBELET.as_bytes());
        events.push(Event { flags: event.events(), of_kubelet });
    }
    Ok(events)
}

#[cfg(test)]
mod tests;
