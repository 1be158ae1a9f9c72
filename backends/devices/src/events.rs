//! What wakes the watch before its time: the kernel tells of devices by uevents, and of files in directories by inotify. Either may be
//! missing; the watch looks every two seconds anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The group of uevents that the kernel sends itself.
const KERNEL: u32 = 1;
/// The largest uevent: the kernel has 2 KiB for variables, and a path before them.
const UEVENT_MAX: usize = 8 << 10;
/// How many events are read at a time: whatever comes after is seen by the next look.
const READ_MAX: usize = 1024;

/// What the kernel tells.
#[derive(Debug)]
pub(crate) struct Events {
    files: Option<(Arc<Files>, AsyncFd<OwnedFd>)>,
    devices: Option<AsyncFd<OwnedFd>>,
}

/// New files in directories.
#[derive(Debug)]
pub(crate) struct Files {
    inotify: Inotify,
    watched: Mutex<BTreeMap<(PathBuf, bool), WatchDescriptor>>,
}

// === impl Events ===

impl Events {
    /// Must be called within a tokio runtime.
    pub(crate) fn open() -> Self {
        let missing = |what: &str, fault: io::Error| {
            tracing::info!(error = %fault, "the kernel does not tell of {what}: the node is looked at every two seconds");
        };
        Self {
            files: Files::open().map_err(|fault| missing("new files", fault)).ok(),
            devices: uevents().and_then(polled).map_err(|fault| missing("new devices", fault)).ok(),
        }
    }

    /// Where the directories are named that are watched.
    pub(crate) fn files(&self) -> Option<Arc<Files>> {
        self.files.as_ref().map(|(files, _)| Arc::clone(files))
    }

    /// Waits until something may have changed. Cancel-safe.
    pub(crate) async fn changed(&self) {
        let files = async {
            match &self.files {
                Some((files, fd)) => readable(fd, || files.read()).await,
                None => pending().await,
            }
        };
        let devices = async {
            match &self.devices {
                Some(fd) => readable(fd, || read_uevents(fd.get_ref())).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = files => {}
            () = devices => {}
        }
    }

    /// Passes over what came until now. To be called before a look, which sees it.
    pub(crate) fn clear(&self) {
        if let Some((files, _)) = &self.files {
            files.read();
        }
        if let Some(devices) = &self.devices {
            read_uevents(devices.get_ref());
        }
    }
}

/// Waits until `read`, which takes all that came, says that it matters.
async fn readable(fd: &AsyncFd<OwnedFd>, read: impl Fn() -> bool) {
    loop {
        // It fails only when the runtime ends, and the watch with it.
        let Ok(mut ready) = fd.readable().await else { return pending().await };
        let matters = read();
        ready.clear_ready();
        if matters {
            return;
        }
    }
}

/// A descriptor that is waited for with the others of the runtime.
#[expect(
    deprecated,
    reason = "the other way is not safe code, and an OwnedFd is what this one needs to be sound"
)]
fn polled(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

fn uevents() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let kind = (AddressFamily::Netlink, SockType::Datagram, SockProtocol::NetlinkKObjectUEvent);
    let socket = socket(kind.0, kind.1, flags, kind.2)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
    Ok(socket)
}

/// Reads what came; says whether any of it may be about a device of a group.
fn read_uevents(socket: &OwnedFd) -> bool {
    let mut buffer = vec![0; UEVENT_MAX];
    let mut matters = false;
    for _ in 0..READ_MAX {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => matters |= concerns_devices(&buffer[..len]),
            Err(Errno::EINTR) => {}
            // Some were lost.
            Err(Errno::ENOBUFS) => matters = true,
            Err(_) => return matters,
        }
    }
    true
}

/// Whether a uevent is about something that has a node or may have some: a container's network interfaces have none.
fn concerns_devices(uevent: &[u8]) -> bool {
    let mut variables = uevent.split(|byte| *byte == 0);
    variables.any(|variable| {
        variable.starts_with(b"DEVNAME=") || variable == b"SUBSYSTEM=usb" || variable == b"SUBSYSTEM=pci"
    })
}

// === impl Files ===

impl Files {
    fn open() -> io::Result<(Arc<Self>, AsyncFd<OwnedFd>)> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let fd = polled(inotify.as_fd().try_clone_to_owned()?)?;
        Ok((Arc::new(Self { inotify, watched: Mutex::default() }), fd))
    }

    /// Watches these directories and no others; the flag says whether files that are written anew count as well. Blocks on the file
    /// system.
    pub(crate) fn watch(&self, dirs: &BTreeSet<(PathBuf, bool)>) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = BTreeMap::new();
        for (dir, rewritten) in dirs {
            let mut mask = AddWatchFlags::IN_CREATE
                | AddWatchFlags::IN_DELETE
                | AddWatchFlags::IN_MOVE
                | AddWatchFlags::IN_DELETE_SELF
                | AddWatchFlags::IN_MOVE_SELF
                | AddWatchFlags::IN_ONLYDIR;
            if *rewritten {
                mask |= AddWatchFlags::IN_CLOSE_WRITE;
            }
            // One that is watched already keeps its descriptor; one that was made anew under its name has another. A look sees what
            // cannot be watched.
            if let Ok(descriptor) = self.inotify.add_watch(dir, mask) {
                next.insert((dir.clone(), *rewritten), descriptor);
            }
        }
        let kept: BTreeSet<WatchDescriptor> = next.values().copied().collect();
        for descriptor in watched.values().filter(|descriptor| !kept.contains(descriptor)) {
            // The kernel has forgotten it already if the directory is gone.
            let _ = self.inotify.rm_watch(*descriptor);
        }
        *watched = next;
    }

    /// Reads what came; says whether there was anything.
    fn read(&self) -> bool {
        let mut any = false;
        for _ in 0..READ_MAX {
            match self.inotify.read_events() {
                // That a watch was taken away is no news.
                Ok(events) => {
                    any |= events.iter().any(|event| !event.mask.contains(AddWatchFlags::IN_IGNORED))
                }
                Err(Errno::EINTR) => {}
                Err(_) => return any,
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uevent_matters_if_it_is_about_something_with_a_node() {
        let check = |text: &str, expected: bool| {
            let uevent = text.replace(' ', "\0");
            assert_eq!(concerns_devices(uevent.as_bytes()), expected, "{text}");
        };
        check("add@/devices/x/ttyUSB0 ACTION=add SUBSYSTEM=tty DEVNAME=ttyUSB0 SEQNUM=1", true);
        check("bind@/devices/x/1-2 ACTION=bind SUBSYSTEM=usb SEQNUM=2", true);
        check("add@/devices/virtual/net/veth1 ACTION=add SUBSYSTEM=net INTERFACE=veth1", false);
        check("add@/devices/virtual/net/veth1/queues/rx-0 ACTION=add SUBSYSTEM=queues", false);
        check("", false);
        assert!(!concerns_devices(&[0xff; UEVENT_MAX]));
    }

    #[tokio::test]
    async fn the_kernel_tells_of_a_device_that_changes() {
        let events = Events::open();
        // A write to this file makes the kernel send the event of a device that is there.
        std::fs::write("/sys/devices/virtual/mem/null/uevent", "change")
            .expect("this test must run as root, with a /sys that can be written");
        let told = tokio::time::timeout(std::time::Duration::from_secs(20), events.changed()).await;
        told.expect("it is told");
        events.clear();
    }
}
