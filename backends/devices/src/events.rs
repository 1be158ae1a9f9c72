//! Events that trigger a scan early: the kernel's uevents for devices, and inotify events for files in
//! directories. Both are optional, since the watch scans every two seconds anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The netlink group of the uevents that the kernel itself sends.
const KERNEL: u32 = 1;
/// The largest uevent: the kernel allows 2 KiB for variables, preceded by a path.
const UEVENT_MAX: usize = 8 << 10;
/// Maximum number of events in one read: the next scan sees the rest.
const READ_MAX: usize = 1024;

/// The event sources.
#[derive(Debug)]
pub(crate) struct Events {
    files: Option<(Arc<Files>, AsyncFd<OwnedFd>)>,
    devices: Option<AsyncFd<OwnedFd>>,
}

/// Watches directories for new files.
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
            tracing::info!(error = %fault, "cannot watch for {what}: the node is only scanned every two seconds");
        };
        Self {
            files: Files::open()
                .map_err(|fault| missing("new files", fault))
                .ok(),
            devices: uevents()
                .and_then(polled)
                .map_err(|fault| missing("new devices", fault))
                .ok(),
        }
    }

    /// The inotify watches, to set the directories.
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

    /// Discards the pending events. To be called before a scan, which sees their effects.
    pub(crate) fn clear(&self) {
        if let Some((files, _)) = &self.files {
            files.read();
        }
        if let Some(devices) = &self.devices {
            read_uevents(devices.get_ref());
        }
    }
}

/// Waits until `read`, which consumes all pending events, returns that they matter.
async fn readable(fd: &AsyncFd<OwnedFd>, read: impl Fn() -> bool) {
    loop {
        // It fails only when the runtime shuts down, and the watch with it.
        let Ok(mut ready) = fd.readable().await else {
            return pending().await;
        };
        let matters = read();
        ready.clear_ready();
        if matters {
            return;
        }
    }
}

/// Registers a descriptor with the runtime.
#[expect(
    deprecated,
    reason = "the other way is not safe code, and an OwnedFd is what this one needs to be sound"
)]
fn polled(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, Interest::READABLE)
}

fn uevents() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let kind = (
        AddressFamily::Netlink,
        SockType::Datagram,
        SockProtocol::NetlinkKObjectUEvent,
    );
    let socket = socket(kind.0, kind.1, flags, kind.2)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, KERNEL))?;
    Ok(socket)
}

/// Reads the pending uevents; returns whether any of them may concern a device of a group.
fn read_uevents(socket: &OwnedFd) -> bool {
    let mut buffer = vec![0; UEVENT_MAX];
    let mut matters = false;
    for _ in 0..READ_MAX {
        match recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => matters |= concerns_devices(&buffer[..len]),
            Err(Errno::EINTR) => {}
            // Some events were lost.
            Err(Errno::ENOBUFS) => matters = true,
            Err(_) => return matters,
        }
    }
    true
}

/// Returns whether a uevent concerns something that has, or may have, a device node; containers' network
/// interfaces do not.
fn concerns_devices(uevent: &[u8]) -> bool {
    let mut variables = uevent.split(|byte| *byte == 0);
    variables.any(|variable| {
        variable.starts_with(b"DEVNAME=")
            || variable == b"SUBSYSTEM=usb"
            || variable == b"SUBSYSTEM=pci"
    })
}

// === impl Files ===

impl Files {
    fn open() -> io::Result<(Arc<Self>, AsyncFd<OwnedFd>)> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        let fd = polled(inotify.as_fd().try_clone_to_owned()?)?;
        Ok((
            Arc::new(Self {
                inotify,
                watched: Mutex::default(),
            }),
            fd,
        ))
    }

    /// Watches these directories and no others; the flag selects whether rewritten files count as well.
    /// Blocks on the file system.
    pub(crate) fn watch(&self, dirs: &BTreeSet<(PathBuf, bool)>) {
        let mut watched = self.watched.lock();
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
            // An existing watch keeps its descriptor; a directory that was created again at the same path
            // gets a new one. Scans cover directories that cannot be watched.
            if let Ok(descriptor) = self.inotify.add_watch(dir, mask) {
                next.insert((dir.clone(), *rewritten), descriptor);
            }
        }
        let kept: BTreeSet<WatchDescriptor> = next.values().copied().collect();
        for descriptor in watched
            .values()
            .filter(|descriptor| !kept.contains(descriptor))
        {
            // This fails if the directory is gone, because the kernel has removed the watch then.
            let _ = self.inotify.rm_watch(*descriptor);
        }
        *watched = next;
    }

    /// Reads the pending events; returns whether there were any.
    fn read(&self) -> bool {
        let mut any = false;
        for _ in 0..READ_MAX {
            match self.inotify.read_events() {
                // The removal of a watch does not count.
                Ok(events) => {
                    any |= events
                        .iter()
                        .any(|event| !event.mask.contains(AddWatchFlags::IN_IGNORED))
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
        check(
            "add@/devices/x/ttyUSB0 ACTION=add SUBSYSTEM=tty DEVNAME=ttyUSB0 SEQNUM=1",
            true,
        );
        check(
            "bind@/devices/x/1-2 ACTION=bind SUBSYSTEM=usb SEQNUM=2",
            true,
        );
        check(
            "add@/devices/virtual/net/veth1 ACTION=add SUBSYSTEM=net INTERFACE=veth1",
            false,
        );
        check(
            "add@/devices/virtual/net/veth1/queues/rx-0 ACTION=add SUBSYSTEM=queues",
            false,
        );
        check("", false);
        assert!(!concerns_devices(&[0xff; UEVENT_MAX]));
    }

    #[tokio::test]
    async fn the_kernel_tells_of_a_device_that_changes() {
        let events = Events::open();
        // A write to this file makes the kernel send a uevent for an existing device.
        std::fs::write("/sys/devices/virtual/mem/null/uevent", "change")
            .expect("this test must run as root, with a /sys that can be written");
        let told = tokio::time::timeout(std::time::Duration::from_secs(20), events.changed()).await;
        told.expect("it is reported");
        events.clear();
    }
}
