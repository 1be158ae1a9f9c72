//! Stores named descriptors, such as listeners, for the daemon from one of its processes to the next: clients that connect
//! while no daemon runs wait in the queue of the listener instead of being refused.
//!
//! A descriptor belongs to the connection over which it was put. When that has ended, the descriptor is closed after
//! [`UNCLAIMED`], unless another connection has put one under its name by then: clients of a daemon that does not come
//! back are then refused. Taking one changes nothing, so that neither a start that fails nor a kill between taking and
//! putting loses it earlier, and a daemon that never comes to serve does not keep it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::sockopt::socket_type;
use rustix::net::{SocketAddrUnix, getsockname};
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use crate::passing;
use crate::protocol::{
    DescriptorEntry, Descriptors, Fault, FaultKind, MAX_DESCRIPTORS, MAX_NAME, MAX_NOTE,
};

/// Time for which a descriptor is stored after the connection over which it was put has ended: longer than a restart of
/// the daemon takes, and short enough for a client that waits for a daemon that has stopped for good.
const UNCLAIMED: Duration = Duration::from_secs(60);

/// Pause between two looks whether an unclaimed descriptor still has to be closed; no longer than the wait for that.
const LOOK: Duration = Duration::from_millis(250);

/// The stored descriptors, for all connections together. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct DescriptorStore {
    table: Arc<Mutex<DescriptorTable>>,
    unclaimed: Duration,
}

#[derive(Debug, Default)]
struct DescriptorTable {
    stored: BTreeMap<String, StoredDescriptor>,
    /// The connections that were counted so far.
    owners: u64,
}

#[derive(Debug)]
struct StoredDescriptor {
    descriptor: OwnedFd,
    note: String,
    /// The file that the socket is bound to, if any.
    file: Option<BoundFile>,
    owner: u64,
    claimed: bool,
}

/// The file of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BoundFile {
    path: PathBuf,
    /// Device and inode; `None` if it is gone.
    identity: Option<(u64, u64)>,
}

/// The store as one connection uses it.
#[derive(Debug)]
pub(crate) struct StoreAccess {
    store: DescriptorStore,
    owner: u64,
}

// === impl DescriptorStore ===

impl DescriptorStore {
    pub(crate) fn new() -> Self {
        Self::closing_after(UNCLAIMED)
    }

    fn closing_after(unclaimed: Duration) -> Self {
        Self {
            table: Arc::default(),
            unclaimed,
        }
    }

    /// The access of a connection that begins.
    pub(crate) fn access(&self) -> StoreAccess {
        let mut table = self.table.lock();
        table.owners += 1;
        StoreAccess {
            store: self.clone(),
            owner: table.owners,
        }
    }
}

// === impl StoreAccess ===

impl StoreAccess {
    /// Checks a request to store a descriptor, before it is received.
    pub(crate) fn check(&self, name: &str, note: &str) -> Result<(), Fault> {
        check(name, note)?;
        self.store.table.lock().check_place(name)
    }

    /// Receives the descriptor that comes with the next byte on `stream`, and stores it, see
    /// [`crate::protocol::Request::Put`].
    ///
    /// # Errors
    /// The connection must be closed then.
    pub(crate) async fn receive(
        &self,
        stream: &UnixStream,
        name: String,
        note: String,
    ) -> io::Result<Result<(), Fault>> {
        let refuse = |why: &str| Ok(Err(Fault::new(FaultKind::InvalidArgument, why)));
        let Some(descriptor) = passing::receive(stream).await? else {
            return refuse("no descriptor came with the byte");
        };
        // Closing another kind of file may block.
        if socket_type(&descriptor).is_err() {
            return refuse("the descriptor is not a socket");
        }
        Ok(self.put(name, note, descriptor))
    }

    /// Stores a descriptor, in the place of that with the same name.
    fn put(&self, name: String, note: String, descriptor: OwnedFd) -> Result<(), Fault> {
        let stored = StoredDescriptor {
            file: BoundFile::of(&descriptor),
            descriptor,
            note,
            owner: self.owner,
            claimed: true,
        };
        let former = {
            let mut table = self.store.table.lock();
            table.check_place(&name)?;
            table.stored.insert(name, stored)
        };
        // It is closed without the lock.
        drop(former);
        Ok(())
    }

    /// Returns a duplicate of a stored descriptor, with its note.
    pub(crate) fn take(&self, name: &str) -> Result<(String, OwnedFd), Fault> {
        let table = self.store.table.lock();
        let Some(stored) = table.stored.get(name) else {
            return Err(Fault::new(
                FaultKind::NotFound,
                format!("no descriptor {name:?}"),
            ));
        };
        let duplicate = stored.descriptor.try_clone().map_err(|error| {
            Fault::new(
                FaultKind::Io,
                format!("cannot duplicate descriptor {name:?}: {error}"),
            )
        })?;
        Ok((stored.note.clone(), duplicate))
    }

    /// Lists the stored descriptors.
    pub(crate) fn list(&self) -> Descriptors {
        let table = self.store.table.lock();
        let entries = table.stored.iter().map(|(name, stored)| DescriptorEntry {
            name: name.clone(),
            note: stored.note.clone(),
            claimed: stored.claimed,
        });
        Descriptors {
            entries: entries.collect(),
        }
    }

    /// Closes the descriptors of this connection, which has ended, after a while; returns when none is left or all belong
    /// to others. Cancel-safe: what is left then stays stored.
    pub(crate) async fn expire(&self) {
        self.disclaim();
        let end = Instant::now() + self.store.unclaimed;
        while self.owns_some() && Instant::now() < end {
            self.close_replaced();
            sleep(LOOK.min(self.store.unclaimed)).await;
        }
        let closed = self.remove_owned();
        for name in closed.keys() {
            tracing::info!(
                descriptor = name,
                "no daemon has stored a descriptor again: closing it"
            );
        }
    }

    /// Closes those whose file is another one by now: a daemon of an older version has bound a socket of its own, nobody
    /// finds the stored one any more, and nobody would answer those who wait there.
    fn close_replaced(&self) {
        let table = self.store.table.lock();
        let owned = table
            .stored
            .iter()
            .filter(|(_, stored)| stored.owner == self.owner);
        let files: Vec<(String, BoundFile)> = owned
            .filter_map(|(name, stored)| Some((name.clone(), stored.file.clone()?)))
            .collect();
        drop(table);
        // The files are looked at without the lock.
        for (name, file) in files {
            if file == BoundFile::at(&file.path) {
                continue;
            }
            let closed = {
                let mut table = self.store.table.lock();
                let is_same = |stored: &StoredDescriptor| {
                    stored.owner == self.owner && stored.file.as_ref() == Some(&file)
                };
                let is_same = table.stored.get(&name).is_some_and(is_same);
                is_same.then(|| table.stored.remove(&name)).flatten()
            };
            if closed.is_some() {
                tracing::info!(
                    descriptor = name,
                    "its file was replaced or removed: closing it"
                );
            }
        }
    }

    fn disclaim(&self) {
        let mut table = self.store.table.lock();
        let owned = table
            .stored
            .values_mut()
            .filter(|stored| stored.owner == self.owner);
        owned.for_each(|stored| stored.claimed = false);
    }

    fn owns_some(&self) -> bool {
        let table = self.store.table.lock();
        table
            .stored
            .values()
            .any(|stored| stored.owner == self.owner)
    }

    fn remove_owned(&self) -> BTreeMap<String, StoredDescriptor> {
        let mut table = self.store.table.lock();
        let all = std::mem::take(&mut table.stored);
        let mut owned = BTreeMap::new();
        for (name, stored) in all {
            let part = match stored.owner == self.owner {
                true => &mut owned,
                false => &mut table.stored,
            };
            part.insert(name, stored);
        }
        owned
    }
}

// === impl BoundFile ===

impl BoundFile {
    /// The file that this socket is bound to.
    fn of(descriptor: &OwnedFd) -> Option<Self> {
        let address = getsockname(descriptor).ok()?;
        let address = SocketAddrUnix::try_from(address).ok()?;
        let path = address.path_bytes()?;
        Some(Self::at(Path::new(OsStr::from_bytes(path))))
    }

    /// The file at this path. Blocks for a moment: sockets are on the file system of the logkeeper's own.
    fn at(path: &Path) -> Self {
        let meta = std::fs::symlink_metadata(path).ok();
        Self {
            path: path.to_owned(),
            identity: meta.map(|meta| (meta.dev(), meta.ino())),
        }
    }
}

// === impl DescriptorTable ===

impl DescriptorTable {
    /// Refuses a descriptor for which there is no place.
    fn check_place(&self, name: &str) -> Result<(), Fault> {
        if self.stored.contains_key(name) || self.stored.len() < MAX_DESCRIPTORS {
            return Ok(());
        }
        Err(Fault::new(
            FaultKind::Busy,
            format!("{MAX_DESCRIPTORS} descriptors are stored, which is the most"),
        ))
    }
}

/// Checks the name and the note of a descriptor. Pure.
pub(crate) fn check(name: &str, note: &str) -> Result<(), Fault> {
    let refuse = |message: String| Err(Fault::new(FaultKind::InvalidArgument, message));
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if !(1..=MAX_NAME).contains(&name.len()) || !name.bytes().all(is_allowed) {
        return refuse(format!(
            "name {name:?} must be 1 to {MAX_NAME} letters, digits, `.`, `_`, `-`"
        ));
    }
    let is_printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if note.len() > MAX_NOTE || !note.bytes().all(is_printable) {
        return refuse(format!(
            "the note of descriptor {name} must have at most {MAX_NOTE} printable ASCII characters"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::{UnixListener, UnixStream as StdStream};

    use super::*;

    /// Longer than the tests take; shorter than a person waits.
    const SHORT: Duration = Duration::from_secs(1);

    fn socket() -> OwnedFd {
        StdStream::pair().unwrap().0.into()
    }

    fn put(access: &StoreAccess, name: &str) -> Result<(), Fault> {
        access.put(name.into(), "note".into(), socket())
    }

    fn names(access: &StoreAccess) -> Vec<(String, bool)> {
        let entries = access.list().entries.into_iter();
        entries.map(|entry| (entry.name, entry.claimed)).collect()
    }

    #[tokio::test]
    async fn descriptor_that_nobody_puts_again_is_closed() {
        let store = DescriptorStore::closing_after(SHORT);
        let former = store.access();
        put(&former, "cri").unwrap();
        put(&former, "nomad").unwrap();
        let later = store.access();
        let expiry = tokio::spawn(async move { former.expire().await });
        while names(&later)[0].1 {
            sleep(Duration::from_millis(1)).await;
        }
        // Taking one does not keep it, and putting one does.
        assert_eq!(later.take("cri").unwrap().0, "note");
        put(&later, "nomad").unwrap();
        expiry.await.unwrap();
        assert_eq!(names(&later), [("nomad".to_owned(), true)]);
        assert_eq!(later.take("cri").unwrap_err().kind, FaultKind::NotFound);
    }

    #[tokio::test]
    async fn connection_whose_descriptors_others_have_replaced_does_not_wait() {
        let store = DescriptorStore::closing_after(Duration::from_secs(3600));
        let former = store.access();
        let later = store.access();
        put(&former, "cri").unwrap();
        put(&later, "cri").unwrap();
        tokio::time::timeout(Duration::from_secs(30), former.expire())
            .await
            .unwrap();
        assert_eq!(names(&later), [("cri".to_owned(), true)]);
    }

    #[tokio::test]
    async fn listener_whose_file_was_replaced_is_closed_before_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cri.sock");
        let store = DescriptorStore::closing_after(Duration::from_secs(3600));
        let former = store.access();
        let stored = UnixListener::bind(&path).unwrap();
        former
            .put("cri".into(), String::new(), stored.into())
            .unwrap();
        let waiting = StdStream::connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _next = UnixListener::bind(&path).unwrap();
        tokio::time::timeout(Duration::from_secs(30), former.expire())
            .await
            .unwrap();
        assert!(names(&former).is_empty());
        // Who waited there learns it.
        let error = (&waiting).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn descriptors_are_limited_and_those_of_one_name_replace_each_other() {
        let store = DescriptorStore::new();
        let access = store.access();
        for number in 0..MAX_DESCRIPTORS {
            put(&access, &format!("d{number}")).unwrap();
        }
        assert_eq!(put(&access, "more").unwrap_err().kind, FaultKind::Busy);
        assert_eq!(access.check("more", "").unwrap_err().kind, FaultKind::Busy);
        put(&access, "d0").unwrap();
        access.check("d0", "").unwrap();
        assert_eq!(names(&access).len(), MAX_DESCRIPTORS);
    }

    #[test]
    fn names_and_notes_are_checked() {
        check("cri", "").unwrap();
        check(&"x".repeat(MAX_NAME), &"~".repeat(MAX_NOTE)).unwrap();
        let long_name = "x".repeat(MAX_NAME + 1);
        let long_note = "x".repeat(MAX_NOTE + 1);
        for (name, note) in [
            ("", ""),
            ("a/b", ""),
            ("a\n", ""),
            (long_name.as_str(), ""),
            ("a", "b\n"),
            ("a", "\u{e9}"),
            ("a", long_note.as_str()),
        ] {
            let fault = check(name, note).unwrap_err();
            assert_eq!(fault.kind, FaultKind::InvalidArgument, "{name:?} {note:?}");
        }
    }
}
