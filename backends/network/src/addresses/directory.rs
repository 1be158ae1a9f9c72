//! The directory with the addresses in use, under its lock.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::{Mutex, MutexGuard};
use switchyard_linux::files::{self, Durable, ReplaceError, if_present};
use switchyard_node_files::ReadError;

use super::error::AddressError;
use super::holder::{Holder, RecordedHolder};

/// Time for which the lock is tried: the plugin holds it for milliseconds, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two tries.
const AGAIN: Duration = Duration::from_millis(1);

/// The most files that a directory may have.
const FILES_MAX: usize = 1 << 18;
/// The most bytes that are read of a file.
const CONTENT_MAX: u64 = 4096;
/// Permission bits of the files, as current versions of the plugin give them.
const FILE_MODE: u32 = 0o600;
/// Permission bits of a new directory, as the plugin gives them.
const DIR_MODE: u32 = 0o755;

/// The file that is locked.
const LOCK: &str = "lock";
/// The beginning of the names of files with the address that was assigned last; the index of the range set follows.
const LAST: &str = "last_reserved_ip.";

/// The directory of a network.
#[derive(Debug)]
pub(super) struct Directory {
    path: PathBuf,
    /// Held while the lock is tried and held: a thread gets it as soon as another one of this pool releases it, and polls only against
    /// other processes.
    turn: Mutex<()>,
    /// Time for which both are tried together.
    pub(super) patience: Duration,
}

/// The directory of a network while nobody else reads or changes it. The locks are released in the order of the fields.
pub(super) struct LockedDirectory<'a> {
    path: &'a Path,
    _lock: Flock<File>,
    _turn: MutexGuard<'a, ()>,
}

/// An address in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The address.
    pub address: IpAddr,
    /// Holder of the address.
    pub holder: RecordedHolder,
}

/// Kind of a file in the directory, by its name.
enum Kind {
    /// That of an address in use.
    Address(IpAddr),
    /// Draft of the replacement of a file, which a kill has left.
    Draft,
    Other,
}

fn failed(doing: &'static str, path: &Path, source: io::Error) -> AddressError {
    let path = path.to_owned();
    AddressError::File {
        doing,
        path,
        source,
    }
}

// === impl Kind ===

impl Kind {
    fn of(name: &str) -> Self {
        if let Ok(address) = name.parse() {
            return Self::Address(address);
        }
        let drafted = name.strip_suffix(".new").unwrap_or_default();
        if drafted.parse::<IpAddr>().is_ok() || drafted.starts_with(LAST) {
            return Self::Draft;
        }
        Self::Other
    }
}

// === impl Directory ===

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            turn: Mutex::new(()),
            patience: PATIENCE,
        }
    }

    /// Locks the directory, which is made if there is none.
    pub(super) fn lock(&self) -> Result<LockedDirectory<'_>, AddressError> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(DIR_MODE);
        builder
            .create(&self.path)
            .map_err(|source| failed("create", &self.path, source))?;
        let gone = || failed("lock", &self.path, io::ErrorKind::NotFound.into());
        self.lock_if_present()?.ok_or_else(gone)
    }

    /// Locks the directory; `None` if there is none.
    pub(super) fn lock_if_present(&self) -> Result<Option<LockedDirectory<'_>>, AddressError> {
        let deadline = Instant::now() + self.patience;
        let path = self.path.join(LOCK);
        let busy = || AddressError::Busy {
            lock: path.clone(),
            waited: self.patience,
        };
        let turn = self.turn.try_lock_until(deadline).ok_or_else(busy)?;
        let opened =
            if_present(open_lock(&path)).map_err(|source| failed("open", &path, source))?;
        let Some(mut file) = opened else {
            return Ok(None);
        };
        loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => {
                    return Ok(Some(LockedDirectory {
                        path: &self.path,
                        _lock: lock,
                        _turn: turn,
                    }));
                }
                Err((file, Errno::EWOULDBLOCK)) if Instant::now() < deadline => file,
                Err((_, Errno::EWOULDBLOCK)) => return Err(busy()),
                Err((_, errno)) => return Err(failed("lock", &path, errno.into())),
            };
            thread::sleep(AGAIN);
        }
    }
}

/// Opens the file that is locked. It is made if there is none, but not its directory.
fn open_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(FILE_MODE)
        .open(path)
}

// === impl LockedDirectory ===

impl LockedDirectory<'_> {
    /// The addresses that have a file. Drafts are removed: nobody is writing one.
    pub(super) fn taken(&self) -> Result<HashSet<IpAddr>, AddressError> {
        let unreadable = |source| failed("read", self.path, source);
        let mut taken = HashSet::new();
        for (count, entry) in fs::read_dir(self.path).map_err(unreadable)?.enumerate() {
            if count == FILES_MAX {
                let dir = self.path.to_owned();
                let max = FILES_MAX;
                return Err(AddressError::TooMany { dir, max });
            }
            let entry = entry.map_err(unreadable)?;
            match entry.file_name().to_str().map_or(Kind::Other, Kind::of) {
                Kind::Address(address) => {
                    taken.insert(address);
                }
                Kind::Draft => remove_file(&entry.path())?,
                Kind::Other => {}
            }
        }
        Ok(taken)
    }

    /// The addresses in use with their holders, sorted.
    pub(super) fn reservations(&self) -> Result<Vec<Reservation>, AddressError> {
        let mut found = Vec::new();
        for address in self.taken()? {
            if let Some(holder) = self.holder_of(address)? {
                found.push(Reservation { address, holder });
            }
        }
        found.sort_by_key(|reservation| reservation.address);
        Ok(found)
    }

    /// Frees the addresses whose holders are of a kind, and returns them, sorted.
    pub(super) fn remove_where(
        &self,
        is_meant: impl Fn(&RecordedHolder) -> bool,
    ) -> Result<Vec<Reservation>, AddressError> {
        let mut found = self.reservations()?;
        found.retain(|reservation| is_meant(&reservation.holder));
        for reservation in &found {
            self.remove(reservation.address)?;
        }
        Ok(found)
    }

    /// Returns the holder of an address; `None` if it has no file.
    pub(super) fn holder_of(
        &self,
        address: IpAddr,
    ) -> Result<Option<RecordedHolder>, AddressError> {
        let path = self.file_of(address);
        match switchyard_node_files::read(&path, CONTENT_MAX) {
            Ok(content) => Ok(Some(RecordedHolder::parse(&content))),
            Err(error) if error.is_not_found() => Ok(None),
            Err(ReadError::Io(source)) => Err(failed("read", &path, source)),
            Err(
                ReadError::NotRegular { .. }
                | ReadError::TooLarge { .. }
                | ReadError::NotText
                | ReadError::TooMany { .. },
            ) => Ok(Some(RecordedHolder::Unreadable)),
        }
    }

    /// Writes who has an address, in the place of a file without a holder if there is one. The caller knows that nobody has it.
    pub(super) fn reserve(&self, address: IpAddr, holder: &Holder) -> Result<(), AddressError> {
        let path = self.file_of(address);
        let content = holder.content();
        files::replace(&path, content.as_bytes(), FILE_MODE, Durable::No, || {})?;
        Ok(())
    }

    /// Frees an address.
    pub(super) fn remove(&self, address: IpAddr) -> Result<(), AddressError> {
        remove_file(&self.file_of(address))
    }

    /// The address of a range set, by its index, that was assigned last. Without it the search begins elsewhere: that it cannot be read
    /// is no error.
    pub(super) fn last(&self, index: usize) -> Option<IpAddr> {
        let text = switchyard_node_files::read_text(&self.last_file(index), CONTENT_MAX).ok()?;
        text.trim().parse().ok()
    }

    /// Writes the address of a range set that was assigned last. As [`LockedDirectory::last`], not being able to is no error.
    pub(super) fn note_last(&self, index: usize, address: IpAddr) {
        let path = self.last_file(index);
        let text = address.to_string();
        drop(files::replace(
            &path,
            text.as_bytes(),
            FILE_MODE,
            Durable::No,
            || {},
        ));
    }

    fn file_of(&self, address: IpAddr) -> PathBuf {
        // The plugin writes addresses in the same form.
        self.path.join(address.to_string())
    }

    fn last_file(&self, index: usize) -> PathBuf {
        self.path.join(format!("{LAST}{index}"))
    }
}

fn remove_file(path: &Path) -> Result<(), AddressError> {
    let removed = if_present(fs::remove_file(path));
    removed
        .map(drop)
        .map_err(|source| failed("remove", path, source))
}

// === impl AddressError ===

impl From<ReplaceError> for AddressError {
    fn from(error: ReplaceError) -> Self {
        let ReplaceError {
            doing,
            path,
            source,
        } = error;
        Self::File {
            doing,
            path,
            source,
        }
    }
}
