//! Sockets that keep published ports: a program of the node that wants to listen on one is told that it is in use, as by
//! Docker's daemon. Without them it would listen, and get nothing, since the port is translated before the kernel looks for
//! a socket.
//!
//! For tasks of Nomad and Swarm alone: a program of the node that runs beside a pod on containerd has to run beside it here.
//! The logkeeper stores duplicates of them in one bundle, so that they outlive the daemon. Its successor takes them out, and
//! closes those of sandboxes that have ended meanwhile.
//!
//! A socket that is stored stays open here, without a sandbox, until the logkeeper has a bundle without it: until then a task
//! that gets the port next could not bind one.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use switchyard_core::backoff::Backoff;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::spec::{HostPort, Protocol};
use switchyard_linux::descriptor_bundle::{bundle, unbundle};
use switchyard_linux::listeners::{BoundPort, Transport};
use switchyard_linux::report;
use switchyard_logkeeper::{Error as LogkeeperError, StoreClient, TakenDescriptor};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// The most sockets; and at most a quarter of the files that the daemon may open.
const MOST: u64 = 4096;

/// The most sockets in the bundle. The kernel counts descriptors that are in the queue of a socket by user: where root has
/// more than a process may open, often 1024, that process of root can pass none, unless it is privileged.
const BUNDLED_MOST: usize = 768;

/// The name of the bundle in the logkeeper's store, which later versions know too.
const BUNDLE: &str = "ports";

/// Limit for taking the bundle of the predecessor. Without it the ports are free, or kept for a minute by nobody.
const TAKE_LIMIT: Duration = Duration::from_secs(1);

/// The first and the longest pause until a logkeeper that does not store the bundle is asked again.
const RETRY: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Protocol and address on which a program would listen.
type Place = (Transport, SocketAddr);

/// The sockets that keep ports, by address, with the sandboxes to which the port leads.
#[derive(Debug)]
pub(crate) struct KeptPorts {
    most: usize,
    bundled_most: usize,
    sockets: Mutex<BTreeMap<Place, KeptPort>>,
    /// Notified when the bundle is to be stored again.
    changed: Notify,
    /// True while a logkeeper may have a bundle of this daemon.
    is_stored: AtomicBool,
}

#[derive(Debug)]
struct KeptPort {
    socket: BoundPort,
    /// Its number among the sockets of the node.
    inode: Option<u64>,
    /// More than one while a task is started again and its predecessor still ends; none until the logkeeper has a bundle
    /// without it.
    sandboxes: BTreeSet<SandboxId>,
}

// === impl KeptPorts ===

impl KeptPorts {
    /// Without sockets.
    pub(crate) fn new() -> Self {
        let files = getrlimit(Resource::Nofile).current;
        let most = files.map_or(MOST, |files| MOST.min(files / 4));
        Self::with_most(usize::try_from(most).unwrap_or(usize::MAX))
    }

    fn with_most(most: usize) -> Self {
        Self {
            most,
            bundled_most: BUNDLED_MOST,
            sockets: Mutex::default(),
            changed: Notify::new(),
            is_stored: AtomicBool::new(false),
        }
    }

    /// Returns whether ports of an owner's sandboxes are kept.
    pub(crate) const fn are_kept_for(owner: Owner) -> bool {
        match owner {
            Owner::Nomad | Owner::Swarm => true,
            Owner::Kubernetes | Owner::Host => false,
        }
    }

    /// Keeps these ports for a sandbox, and returns those on which a program of the node has been faster. What cannot be
    /// kept for another reason is not: an address that the node does not have, or too many sockets. Idempotent. Blocks for
    /// some microseconds for each port.
    pub(crate) fn keep(&self, id: SandboxId, ports: &[HostPort]) -> Vec<HostPort> {
        let mut occupied = Vec::new();
        let mut sockets = self.sockets.lock();
        for port in ports {
            for place in places(port) {
                if let Some(kept) = sockets.get_mut(&place) {
                    kept.sandboxes.insert(id);
                    continue;
                }
                if sockets.len() >= self.most {
                    continue;
                }
                match BoundPort::bind(place.0, place.1) {
                    Ok(socket) => {
                        let mut kept = KeptPort::new(socket);
                        kept.sandboxes.insert(id);
                        sockets.insert(place, kept);
                    }
                    Err(fault) if fault.kind() == io::ErrorKind::AddrInUse => {
                        occupied.push(*port);
                    }
                    Err(_) => {}
                }
            }
        }
        drop(sockets);
        self.changed.notify_one();
        occupied.dedup();
        occupied
    }

    /// Closes the sockets of a sandbox that no other one has, those that are stored soon. Idempotent.
    pub(crate) fn release(&self, id: SandboxId) {
        let mut has_changed = false;
        let mut sockets = self.sockets.lock();
        // With the lock, as a bundle is made: one that is on its way has the socket, or this is not stored.
        let is_stored = self.is_stored.load(Ordering::Relaxed);
        sockets.retain(|_, kept| {
            let is_released = kept.sandboxes.remove(&id);
            has_changed |= is_released;
            let is_last = is_released && kept.sandboxes.is_empty();
            is_stored || !is_last
        });
        drop(sockets);
        if has_changed {
            self.changed.notify_one();
        }
    }

    /// Takes over the sockets that a predecessor has stored in this logkeeper. Recovery then keeps those that it finds
    /// sandboxes for. Nothing if the logkeeper does not answer at once.
    pub(crate) async fn inherit(&self, logkeeper: &Path) {
        match timeout(TAKE_LIMIT, take(logkeeper)).await {
            Ok(Ok(descriptors)) => self.adopt(descriptors),
            Ok(Err(reason)) => {
                tracing::debug!(reason, "ports are not kept over the start of the daemon");
            }
            Err(_elapsed) => {
                tracing::warn!(limit = ?TAKE_LIMIT, "the logkeeper does not answer: ports that the predecessor has kept are kept for a minute at most");
            }
        }
    }

    fn adopt(&self, descriptors: Vec<OwnedFd>) {
        let mut sockets = self.sockets.lock();
        for descriptor in descriptors {
            if let Ok((transport, address, socket)) = BoundPort::of(descriptor) {
                let place = (transport, address);
                sockets
                    .entry(place)
                    .or_insert_with(|| KeptPort::new(socket));
            }
        }
    }

    /// Keeps a bundle of the sockets stored in the logkeeper, from the end of recovery on, until `stop`.
    pub(crate) async fn store(
        self: Arc<Self>,
        logkeeper: PathBuf,
        recovered: CancellationToken,
        stop: CancellationToken,
    ) {
        tokio::select! {
            () = self.store_forever(&logkeeper, &recovered) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Never ends.
    async fn store_forever(&self, logkeeper: &Path, recovered: &CancellationToken) {
        recovered.cancelled().await;
        let mut backoff = Backoff::new(RETRY.0, RETRY.1);
        loop {
            // A node without published ports has nothing to store.
            while self.sockets.lock().is_empty() {
                self.changed.notified().await;
            }
            let has_bundle = match self.store_while_connected(logkeeper, &mut backoff).await {
                Ok(has_bundle) => has_bundle,
                Err(error) => {
                    let is_possible = may_have_bundle(&error);
                    let error = report(&error);
                    tracing::debug!(
                        error,
                        "the logkeeper does not store the sockets of published ports"
                    );
                    is_possible
                }
            };
            if !has_bundle {
                self.is_stored.store(false, Ordering::Relaxed);
            }
            if !self.is_stored.load(Ordering::Relaxed) {
                self.forget(None);
            }
            backoff.wait().await;
        }
    }

    /// Stores a bundle after each change, until the connection to the logkeeper ends. Returns whether it may have one then.
    async fn store_while_connected(
        &self,
        logkeeper: &Path,
        backoff: &mut Backoff,
    ) -> Result<bool, LogkeeperError> {
        let Some(mut store) = StoreClient::connect(logkeeper).await? else {
            return Ok(false);
        };
        loop {
            // Before the bundle is made: a socket that is released while it is on its way stays open here.
            self.is_stored.store(true, Ordering::Relaxed);
            let (bundled, released) = match self.bundle() {
                Ok(bundle) => bundle,
                Err(fault) => {
                    let error = report(&fault);
                    tracing::debug!(error, "cannot bundle the sockets of published ports");
                    return Ok(true);
                }
            };
            store.put(BUNDLE, "", bundled.as_fd()).await?;
            backoff.reset();
            self.forget(Some(&released));
            tokio::select! {
                () = self.changed.notified() => {}
                // It has ended, or has closed the connection and holds the bundle for a minute.
                () = store.broken() => return Ok(true),
            }
        }
    }

    /// A bundle of the sockets that sandboxes have, those of TCP first, and the places of the others.
    fn bundle(&self) -> io::Result<(OwnedFd, BTreeSet<Place>)> {
        let sockets = self.sockets.lock();
        let released = sockets
            .iter()
            .filter(|(_, kept)| kept.sandboxes.is_empty())
            .map(|(place, _)| *place)
            .collect();
        let open: Vec<BorrowedFd<'_>> = sockets
            .values()
            .filter(|kept| !kept.sandboxes.is_empty())
            .map(|kept| kept.socket.as_fd())
            .take(self.bundled_most)
            .collect();
        Ok((bundle(&open)?, released))
    }

    /// Closes the sockets that no sandbox has; those of these places, or all.
    fn forget(&self, places: Option<&BTreeSet<Place>>) {
        self.sockets.lock().retain(|place, kept| {
            let is_meant = places.is_none_or(|places| places.contains(place));
            !(is_meant && kept.sandboxes.is_empty())
        });
    }

    /// The numbers of the sockets here: they are no programs of the node, whatever they are bound to.
    pub(crate) fn inodes(&self) -> HashSet<u64> {
        let sockets = self.sockets.lock();
        sockets.values().filter_map(|kept| kept.inode).collect()
    }

    /// Returns whether an address of this port is kept, so that no program of the node listens on it.
    pub(crate) fn has(&self, port: &HostPort) -> bool {
        let sockets = self.sockets.lock();
        places(port).iter().any(|place| sockets.contains_key(place))
    }
}

// === impl KeptPort ===

impl KeptPort {
    /// Without sandboxes.
    fn new(socket: BoundPort) -> Self {
        Self {
            inode: socket.inode().ok(),
            socket,
            sandboxes: BTreeSet::new(),
        }
    }
}

/// Returns whether a logkeeper may have a bundle of this daemon after this error. One that does not answer still holds what it
/// has got, so that nobody else could bind those ports.
fn may_have_bundle(error: &LogkeeperError) -> bool {
    match error {
        // There is no logkeeper.
        LogkeeperError::Unavailable { source, .. } => !matches!(
            source.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
        ),
        // A bundle that is there is replaced, whatever else is stored.
        LogkeeperError::Refused { .. } => false,
        LogkeeperError::Deadline { .. }
        | LogkeeperError::Encoding { .. }
        | LogkeeperError::File { .. }
        | LogkeeperError::StateInUse(_)
        | LogkeeperError::SocketInUse(_)
        | LogkeeperError::UnfitStateDir { .. }
        | LogkeeperError::Process(_) => true,
    }
}

/// The sockets in the bundle that a predecessor has stored. The reason is for the log.
async fn take(logkeeper: &Path) -> Result<Vec<OwnedFd>, String> {
    let error = |error: LogkeeperError| report(&error);
    let Some(mut store) = StoreClient::connect(logkeeper).await.map_err(error)? else {
        return Ok(Vec::new());
    };
    match store.take(BUNDLE).await.map_err(error)? {
        Some(TakenDescriptor { descriptor, .. }) => {
            unbundle(&descriptor).map_err(|fault| report(&fault))
        }
        None => Ok(Vec::new()),
    }
}

/// The protocol, if sockets of it are looked for and kept.
pub(super) const fn transport(protocol: Protocol) -> Option<Transport> {
    match protocol {
        Protocol::Tcp => Some(Transport::Tcp),
        Protocol::Udp => Some(Transport::Udp),
        Protocol::Sctp => None,
    }
}

/// Returns where a program would listen on this port; nowhere if its sockets are not looked for.
pub(super) fn places(port: &HostPort) -> Vec<Place> {
    let Some(transport) = transport(port.protocol) else {
        return Vec::new();
    };
    let place = |ip| (transport, SocketAddr::new(ip, port.port));
    match port.ip {
        Some(ip) => vec![place(ip.to_canonical())],
        None => vec![
            place(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
            place(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
        ],
    }
}

#[cfg(test)]
mod tests;
