//! The journal file: records are appended, and ended leases are dropped when the file is rewritten.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use switchyard_core::id::LeaseToken;
use switchyard_core::ledger::{LEASE_SLOTS_MAX, LeaseStore, StoredLease};
use switchyard_core::{Error, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_linux::blocking;
use switchyard_linux::files::{self, Durable, draft_of, if_present, parent, sync_dir};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::record::{self, Contents};

/// The file's path in the state directory.
const FILE: &str = "ledger/leases.journal";

/// The largest journal, in bytes: 16,384 leases of eight slots with the longest ids.
const FILE_MAX: u64 = 16 << 20;

/// A smaller journal is not rewritten while it is in use, however many of its leases have ended, in bytes.
const REWRITE_MIN: u64 = 256 << 10;

/// Timeout of one operation, including its wait for earlier ones. Callers do not wait longer for a disk that
/// does not answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Stores leases in a file of the state directory. Only one daemon at a time may use it.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    /// Held by the running operation, which completes even if its caller is gone.
    lock: Arc<Semaphore>,
    disk: Arc<Mutex<JournalFile>>,
    pending: Arc<Mutex<Pending>>,
}

/// Requested changes that are not written yet. Never locked during a write.
#[derive(Debug, Default)]
struct Pending {
    /// Ended leases whose end is not written yet. If a caller timed out, the next operation writes them.
    ended: Vec<LeaseToken>,
    /// The leases that wait for their turn to be stored, in the order of the calls.
    puts: Vec<WaitingPut>,
    /// Number of puts so far; it numbers them.
    count: u64,
}

/// A lease that waits for its turn to be stored.
#[derive(Debug)]
struct WaitingPut {
    number: u64,
    token: LeaseToken,
    /// It has ended since, so that it must not be stored: its end is written before its turn.
    ended: bool,
}

/// The place of a [`WaitingPut`]; dropping this gives it up.
#[derive(Debug)]
struct PutPlace {
    pending: Arc<Mutex<Pending>>,
    number: u64,
}

/// The journal, for the thread that holds the lock.
#[derive(Debug)]
struct JournalFile {
    path: PathBuf,
    /// `None` until the file was read.
    state: Option<JournalState>,
}

/// The state of the file.
#[derive(Debug)]
struct JournalState {
    /// Open for appending; `None` if the file must be rewritten before anything is appended.
    file: Option<File>,
    /// Its length in bytes.
    length: u64,
    /// The leases that have not ended, with the size of their records.
    leases: BTreeMap<LeaseToken, (StoredLease, u64)>,
}

// === impl Journal ===

impl Journal {
    /// The journal in a state directory. The file is not accessed yet.
    #[must_use]
    pub fn new(state: &Path) -> Self {
        let path = state.join(FILE);
        let disk = JournalFile {
            path: path.clone(),
            state: None,
        };
        let turn = Arc::new(Semaphore::new(1));
        Self {
            path,
            lock: turn,
            disk: Arc::new(Mutex::new(disk)),
            pending: Arc::default(),
        }
    }

    /// Runs one operation at a time, on a thread that may block.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut JournalFile) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let done = async {
            let turn = Arc::clone(&self.lock).acquire_owned().await;
            let turn = turn.map_err(|closed| {
                Error::internal("wait for the journal of leases").with_source(closed)
            })?;
            let disk = Arc::clone(&self.disk);
            let pending = Arc::clone(&self.pending);
            let working = blocking("an operation on the journal of leases", move || {
                let _until_it_ends = turn;
                let mut disk = disk.lock();
                let ended = std::mem::take(&mut pending.lock().ended);
                if let Err(error) = disk.remove(&ended) {
                    // The file may not even have been read: the next operation writes them.
                    drop(pending.lock().ended.splice(0..0, ended));
                    return Err(error);
                }
                work(&mut disk)
            });
            working.await
        };
        timeout(LIMIT, done).await.unwrap_or_else(|_| {
            let path = self.path.display();
            Err(Error::deadline(format!(
                "the disk of {path} does not answer within {LIMIT:?}"
            )))
        })
    }
}

impl LeaseStore for Journal {
    fn load(&self) -> BoxFuture<'_, Result<Vec<StoredLease>>> {
        Box::pin(self.run(JournalFile::load))
    }

    fn put<'a>(&'a self, lease: &'a StoredLease) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let lease = lease.clone();
            let place = PutPlace::new(&self.pending, lease.token);
            let put = move |disk: &mut JournalFile| {
                if place.take() {
                    disk.put(lease)
                } else {
                    Ok(())
                }
            };
            self.run(put).await
        })
    }

    /// This does not sync to disk: leases that reappear after a power failure are ended by the next recovery.
    fn remove<'a>(&'a self, tokens: &'a [LeaseToken]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.pending.lock().end(tokens);
            self.run(|_| Ok(())).await
        })
    }
}

// === impl Pending ===

impl Pending {
    /// Has the end of leases written by the next operation, and those not stored that wait for their turn.
    fn end(&mut self, tokens: &[LeaseToken]) {
        self.ended.extend(tokens);
        for put in self
            .puts
            .iter_mut()
            .filter(|put| tokens.contains(&put.token))
        {
            put.ended = true;
        }
    }
}

// === impl PutPlace ===

impl PutPlace {
    fn new(pending: &Arc<Mutex<Pending>>, token: LeaseToken) -> Self {
        let mut waiting = pending.lock();
        waiting.count += 1;
        let number = waiting.count;
        waiting.puts.push(WaitingPut {
            number,
            token,
            ended: false,
        });
        Self {
            pending: Arc::clone(pending),
            number,
        }
    }

    /// Gives up the place, in its turn. `false` if the lease has ended since: it must not be stored then.
    fn take(&self) -> bool {
        let mut pending = self.pending.lock();
        let Some(at) = pending
            .puts
            .iter()
            .position(|put| put.number == self.number)
        else {
            return false;
        };
        !pending.puts.remove(at).ended
    }
}

impl Drop for PutPlace {
    fn drop(&mut self) {
        self.take();
    }
}

// === impl JournalFile ===

impl JournalFile {
    fn load(&mut self) -> Result<Vec<StoredLease>> {
        self.state = None;
        let leases = &self.state()?.leases;
        Ok(leases.values().map(|(lease, _)| lease.clone()).collect())
    }

    fn put(&mut self, lease: StoredLease) -> Result<()> {
        if lease.slots.is_empty() || lease.slots.len() > LEASE_SLOTS_MAX {
            return Err(Error::invalid(
                "slots",
                format!("a lease cannot have {} of them", lease.slots.len()),
            ));
        }
        let path = self.path.clone();
        let known = self.state()?;
        if known
            .leases
            .get(&lease.token)
            .is_some_and(|(kept, _)| *kept == lease)
        {
            return Ok(());
        }
        let record = record::of_lease(&lease);
        let size = length(&record);
        if known.length.saturating_add(size) > FILE_MAX {
            known.rewrite(&path).map_err(failed(&path))?;
        }
        if known.length.saturating_add(size) > FILE_MAX {
            let text = format!(
                "{} is full: it has {} leases",
                path.display(),
                known.leases.len()
            );
            return Err(Error::exhausted(text));
        }
        known.append(&path, &record, true).map_err(failed(&path))?;
        reach(CrashPoint::LeaseStored);
        known.leases.insert(lease.token, (lease, size));
        known.compact(&path);
        Ok(())
    }

    fn remove(&mut self, tokens: &[LeaseToken]) -> Result<()> {
        if tokens.is_empty() {
            return Ok(());
        }
        let path = self.path.clone();
        let known = self.state()?;
        let ended: Vec<LeaseToken> = tokens
            .iter()
            .copied()
            .filter(|token| known.leases.remove(token).is_some())
            .collect();
        if ended.is_empty() {
            return Ok(());
        }
        known
            .append(&path, &record::of_end(&ended), false)
            .map_err(failed(&path))?;
        reach(CrashPoint::LeaseEnded);
        known.compact(&path);
        Ok(())
    }

    /// The state of the journal, which is read on first use.
    fn state(&mut self) -> Result<&mut JournalState> {
        let known = match self.state.take() {
            Some(known) => known,
            None => JournalState::read(&self.path)?,
        };
        Ok(self.state.insert(known))
    }
}

// === impl JournalState ===

impl JournalState {
    /// Reads the file, and rewrites it if that saves space or repairs it. A full disk does not prevent
    /// reading.
    fn read(path: &Path) -> Result<Self> {
        let unreadable = |fault: io::Error| {
            let text = format!("cannot read {}", path.display());
            // It is as large tomorrow.
            let is_final = fault.kind() == ErrorKind::FileTooLarge;
            let error = if is_final {
                Error::failed_precondition(text)
            } else {
                Error::internal(text)
            };
            error.with_source(fault)
        };
        let bytes = bytes_of(path).map_err(unreadable)?;
        let Contents { leases, damaged, is_torn } = record::read(bytes.as_deref().unwrap_or_default())
            .map_err(|record::UnknownRecord { line, why }| {
                let path = path.display();
                Error::failed_precondition(format!(
                    "line {line} of {path} is intact but cannot be decoded ({why}): is it of a later version?"
                ))
            })?;
        let path_shown = path.display();
        if !damaged.is_empty() {
            tracing::error!(path = %path_shown, lines = ?damaged, "records of leases are damaged and ignored");
        }
        if is_torn {
            tracing::info!(path = %path_shown, "the last record of leases is incomplete and ignored");
        }
        let mut known = Self {
            file: None,
            length: bytes.as_deref().map_or(0, length),
            leases,
        };
        let is_as_written = bytes.is_some() && known.length == known.needed();
        // Left behind by a predecessor that was killed while it rewrote the file.
        let cleared = if_present(fs::remove_file(draft_of(path)));
        let opened = cleared.and_then(|_| {
            if !is_as_written {
                return known.rewrite(path);
            }
            known.file = Some(OpenOptions::new().append(true).open(path)?);
            Ok(())
        });
        if let Err(error) = opened {
            tracing::warn!(path = %path_shown, %error, "cannot write the journal of leases; retrying before the next append");
        }
        Ok(known)
    }

    /// The length of a file that contains only the current leases.
    fn needed(&self) -> u64 {
        self.leases.values().map(|(_, size)| size).sum()
    }

    /// Appends a record, and syncs it to disk if it is to be `durable`. After a failure the content of the
    /// file is unknown, so it is rewritten before anything else is appended.
    fn append(&mut self, path: &Path, record: &[u8], durable: bool) -> io::Result<()> {
        if self.file.is_none() {
            self.rewrite(path)?;
        }
        let Some(file) = &mut self.file else {
            return Err(ErrorKind::NotFound.into());
        };
        let appended = file
            .write_all(record)
            .and_then(|()| if durable { file.sync_data() } else { Ok(()) });
        match appended {
            Ok(()) => self.length = self.length.saturating_add(length(record)),
            Err(_) => {
                // If this fails too, the file has an incomplete record, or a lease that was never given out.
                let _ = file.set_len(self.length);
                self.file = None;
            }
        }
        appended
    }

    /// Rewrites a large file if most of it has ended. A failure is only logged, since the preceding operation
    /// succeeded.
    fn compact(&mut self, path: &Path) {
        if self.length < REWRITE_MIN || self.needed() > self.length / 2 {
            return;
        }
        if let Err(error) = self.rewrite(path) {
            tracing::warn!(path = %path.display(), %error, "cannot rewrite the journal of leases; ended leases stay in it for now");
        }
    }

    /// Rewrites the file with only the current leases, and syncs it to disk. After a failure the file is
    /// either the old or the new one.
    fn rewrite(&mut self, path: &Path) -> io::Result<()> {
        self.file = None;
        let dir = parent(path);
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let bytes: Vec<u8> = self
            .leases
            .values()
            .flat_map(|(lease, _)| record::of_lease(lease))
            .collect();
        let file = files::replace(path, &bytes, 0o600, Durable::Yes, || {
            reach(CrashPoint::LeasesDrafted)
        })?;
        // The directory may have been created just now.
        sync_dir(parent(dir))?;
        reach(CrashPoint::LeasesRewritten);
        self.file = Some(file);
        self.length = length(&bytes);
        Ok(())
    }
}

/// The content of the file; `None` if it does not exist.
fn bytes_of(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = if_present(File::open(path))? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if length(&bytes) > FILE_MAX {
        let why = format!("it has more than {FILE_MAX} bytes, the limit of a journal");
        return Err(io::Error::new(ErrorKind::FileTooLarge, why));
    }
    Ok(Some(bytes))
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + use<> {
    let text = format!("cannot write {}", path.display());
    move |fault| {
        let full = matches!(
            fault.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        );
        let error = if full {
            Error::exhausted(text.clone())
        } else {
            Error::internal(text.clone())
        };
        error.with_source(fault)
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
