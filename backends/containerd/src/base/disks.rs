//! Full, read-only and failing disks: the status reports them. On a disk that cannot be written, operations that end
//! something or free space proceed without being recorded.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use futures::future::join_all;
use nix::sys::statvfs::{FsFlags, statvfs};
use parking_lot::Mutex;
use switchyard_core::backend::{Condition, WatchedDisk};
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::FileSystemSpace;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::base::disk_io::{WriteTest, reserved_blocks, try_write};
use crate::base::error::mentions_failed_disk;
use crate::base::fs::blocking;

/// A disk with fewer free bytes or inodes counts as full: a pod can hardly be created.
const MIN_FREE: FreeSpace = FreeSpace {
    bytes: 1 << 20,
    unreserved: 1 << 20,
    inodes: 64,
};

/// Limit for examining a disk only to explain an error to a client that waits.
const EXPLANATION_LIMIT: Duration = Duration::from_secs(1);

/// State of the disks of the gateway's own directories, and of containerd's root.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    fault: Mutex<Option<DiskFault>>,
    /// The space of those that answered at the latest check.
    spaces: Mutex<Vec<WatchedDisk>>,
    /// The directory of containerd's content, once containerd has reported it.
    content: OnceLock<PathBuf>,
    mended: Notify,
}

/// The fault of a disk, or of several. The text does not contain the numbers, so that it is the same as long
/// as the fault is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DiskFault {
    /// Too few bytes or inodes are free, or a write was refused for lack of space. What ends or frees something still works.
    Full(String),
    /// It is read-only, fails, or does not answer, which no removal changes: nothing can be created, and what ends cannot be
    /// recorded.
    Unusable {
        /// In one word, as conditions have it.
        reason: &'static str,
        message: String,
    },
}

/// A file system's own report, and the result of a test write.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskState {
    free: FreeSpace,
    /// The result of a test write; `None` if it was not written to.
    written: Option<WriteTest>,
    is_read_only: bool,
}

/// The result of a check of all disks.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// Nothing is wrong with them.
    Fine,
    /// This is wrong with one or several of them.
    Fault(DiskFault),
    /// Nothing is seen to be wrong, but one of them could not be written to, for a reason that is not its own.
    Unknown,
}

/// The free space of a disk.
#[derive(Debug, Clone, Copy)]
struct FreeSpace {
    /// Bytes that root can write.
    bytes: u64,
    /// Bytes that others can write.
    unreserved: u64,
    inodes: u64,
}

// === impl Disks ===

impl Disks {
    /// The result of the latest check, as a condition of the backend.
    pub(crate) fn condition(&self) -> Condition {
        match &*self.fault.lock() {
            None => Condition::True,
            Some(DiskFault::Full(message)) => Condition::False {
                reason: "DiskFull".to_owned(),
                message: message.clone(),
            },
            Some(DiskFault::Unusable { reason, message }) => Condition::False {
                reason: (*reason).to_owned(),
                message: message.clone(),
            },
        }
    }

    /// Returns whether pods can run, as far as disks are concerned. They can on a full disk: a kubelet whose
    /// runtime is not ready stops and removes nothing, which would free space.
    pub(crate) fn runtime_condition(&self) -> Condition {
        let are_unusable = matches!(&*self.fault.lock(), Some(DiskFault::Unusable { .. }));
        if are_unusable {
            self.condition()
        } else {
            Condition::True
        }
    }

    /// The space of the disks that answered at the latest check.
    pub(crate) fn spaces(&self) -> Vec<WatchedDisk> {
        self.spaces.lock().clone()
    }

    /// Stores the space of the disks that answered at a check.
    pub(crate) fn set_spaces(&self, spaces: Vec<WatchedDisk>) {
        *self.spaces.lock() = spaces;
    }

    /// The directory of containerd's content, once containerd has reported it.
    pub(crate) fn content(&self) -> Option<&Path> {
        self.content.get().map(PathBuf::as_path)
    }

    /// Stores the directory that containerd has reported. The first one stays.
    pub(crate) fn set_content(&self, root: PathBuf) {
        self.content.get_or_init(|| root);
    }

    /// Returns whether a disk is known to be faulty.
    pub(crate) fn have_fault(&self) -> bool {
        self.fault.lock().is_some()
    }

    /// Stores the result of a check, and logs a change. A check that shows nothing leaves what is known: a fault that only a
    /// write shows is not mended because there was none.
    pub(crate) fn update(&self, checked: Checked) {
        let now = match checked {
            Checked::Fine => None,
            Checked::Fault(fault) => Some(fault),
            Checked::Unknown => return,
        };
        // Logged after the lock is dropped: who asks for the condition does not wait for the log.
        let before = std::mem::replace(&mut *self.fault.lock(), now.clone());
        if before == now {
            return;
        }
        match &now {
            Some(DiskFault::Full(why)) => tracing::warn!(
                reason = why,
                "a disk is full: what needs space on it fails, but existing objects can be stopped and removed"
            ),
            Some(DiskFault::Unusable { message, .. }) => tracing::error!(
                reason = message,
                "a disk cannot be used: nothing can be created, and what ends cannot be recorded; running containers are left alone"
            ),
            None => {
                tracing::info!("the disks can be used, and have free space");
                self.mended.notify_one();
            }
        }
    }

    /// Returns once the disks can be used again, for one caller. Cancel-safe.
    pub(crate) async fn mended(&self) {
        self.mended.notified().await;
    }
}

// === impl Checked ===

impl Checked {
    /// Evaluates the state of the disk of a directory. Pure.
    fn of(dir: &Path, state: io::Result<Option<DiskState>>) -> Self {
        let is_unknown =
            matches!(&state, Ok(Some(state)) if state.written == Some(WriteTest::Unknown));
        match DiskFault::of(dir, state) {
            Some(fault) => Self::Fault(fault),
            None if is_unknown => Self::Unknown,
            None => Self::Fine,
        }
    }

    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Fault(one), Self::Fault(other)) => Self::Fault(one.and(other)),
            (Self::Fault(fault), _) | (_, Self::Fault(fault)) => Self::Fault(fault),
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Fine, Self::Fine) => Self::Fine,
        }
    }
}

// === impl DiskFault ===

impl DiskFault {
    /// Returns the fault of a directory's disk in this state; `None` if it has none. Pure.
    fn of(dir: &Path, state: io::Result<Option<DiskState>>) -> Option<Self> {
        let dir = dir.display();
        match state {
            Ok(None) => None,
            Ok(Some(DiskState {
                is_read_only: true, ..
            })) => Some(Self::Unusable {
                reason: "DiskReadOnly",
                message: format!(
                    "the file system of {dir} is read-only: see dmesg, as the kernel makes it so after an error of the disk"
                ),
            }),
            Ok(Some(DiskState {
                free,
                written,
                is_read_only: false,
            })) => {
                let shortage = free
                    .shortage()
                    .map(|what| format!("almost no {what} left for {dir}"));
                let refused = (written == Some(WriteTest::NoSpace)).then(|| {
                    format!(
                        "a write in {dir} is refused, whatever is counted as free: see its quota"
                    )
                });
                shortage
                    .or(refused)
                    .map(|why| Self::Full(format!("no space left on device: {why}")))
            }
            Err(fault) => Some(Self::Unusable {
                reason: "DiskFails",
                message: format!("the file system of {dir} fails: {fault}"),
            }),
        }
    }

    /// The fault of a disk that does not answer.
    fn hangs(dir: &Path) -> Self {
        Self::Unusable {
            reason: "DiskHangs",
            message: format!("the file system of {} does not answer", dir.display()),
        }
    }

    /// Returns the worse of two faults, with the texts of both if they are alike.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Full(one), Self::Full(other)) => Self::Full(format!("{one}; {other}")),
            (
                Self::Unusable {
                    reason,
                    message: one,
                },
                Self::Unusable {
                    reason: _,
                    message: other,
                },
            ) => Self::Unusable {
                reason,
                message: format!("{one}; {other}"),
            },
            (unusable @ Self::Unusable { .. }, Self::Full(_))
            | (Self::Full(_), unusable @ Self::Unusable { .. }) => unusable,
        }
    }
}

/// Returns whether a write failed because its disk cannot be written at the moment: the disk or a quota is
/// full, too many files are open, the file system is read-only, or the device fails. Then the data to be written is not at
/// fault.
pub(crate) fn is_unwritable(error: &Error) -> bool {
    error.kind() == ErrorKind::ResourceExhausted || mentions_failed_disk(error)
}

/// The error of an OCI runtime that writes to this directory. Runtimes may end without a word when they cannot, so that it is
/// `ResourceExhausted` if its cause is not known, and the disk of the directory is full for root now. Cancel-safe.
pub(crate) async fn full_disk_behind(error: Error, dir: &Path) -> Error {
    let dir = dir.to_owned();
    let look = move || {
        let state = look(&dir).map(|state| Some(state.for_root()));
        DiskFault::of(&dir, state)
    };
    explained(error, look).await
}

/// An error with a full disk as its cause, if that is not known yet and `look` finds one in time. Cancel-safe.
async fn explained(
    error: Error,
    look: impl FnOnce() -> Option<DiskFault> + Send + 'static,
) -> Error {
    if error.kind() != ErrorKind::Internal {
        return error;
    }
    let looked = timeout(EXPLANATION_LIMIT, blocking(move || Ok(look()))).await;
    let Ok(Ok(Some(DiskFault::Full(why)))) = looked else {
        return error;
    };
    Error::exhausted(why).with_source(error)
}

/// Ignores a disk that cannot be written ([`is_unwritable`]) in the result of a write that is not essential, and logs
/// `what` as a warning then.
pub(crate) fn tolerate_unwritable_disk(put: Result<()>, what: &str) -> Result<()> {
    match put {
        Err(error) if is_unwritable(&error) => {
            tracing::warn!(error = error.report(), "{what}");
            Ok(())
        }
        other => other,
    }
}

/// Checks the disks of these directories with `look`, each on a thread of the pool and within its limit. Returns the space of
/// each as well, in the same order; `None` of one that does not answer. Cancel-safe.
pub(crate) async fn check(
    pool: &BlockingPool,
    dirs: &[PathBuf],
    look: impl Fn(&Path) -> io::Result<Option<DiskState>> + Clone + Send + 'static,
) -> (Checked, Vec<Option<FileSystemSpace>>) {
    let looks = dirs.iter().map(|dir| {
        let look = look.clone();
        let looked_at = dir.clone();
        let looked = pool.run(dir.display().to_string(), move || {
            let checked = Checked::of(&looked_at, look(&looked_at));
            Ok((checked, FileSystemSpace::of(&looked_at).ok()))
        });
        async move {
            looked.await.unwrap_or_else(|error| {
                tracing::debug!(error = error.report(), "a disk cannot be looked at");
                (Checked::Fault(DiskFault::hangs(dir)), None)
            })
        }
    });
    let (checked, spaces): (Vec<_>, Vec<_>) = join_all(looks).await.into_iter().unzip();
    let checked = checked.into_iter().reduce(Checked::and);
    (checked.unwrap_or(Checked::Fine), spaces)
}

/// Examines the file system of a directory with a test write. Blocks, for ever if the disk hangs.
///
/// # Errors
/// Those of the file system, but not that it is full or read-only.
pub(crate) fn write_and_look(dir: &Path) -> io::Result<DiskState> {
    match try_write(dir) {
        Err(fault) if fault.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(DiskState {
            is_read_only: true,
            ..look(dir)?
        }),
        written => Ok(DiskState {
            written: Some(written?),
            ..look(dir)?
        }),
    }
}

/// Bytes on the file system of a directory that are free for root. Blocks, on some file systems for ever.
///
/// # Errors
/// Those of the file system.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    look(dir).map(|state| state.free.bytes)
}

/// Examines the file system of a directory. Blocks, on some file systems for
/// ever.
///
/// # Errors
/// Those of the file system.
pub(crate) fn look(dir: &Path) -> io::Result<DiskState> {
    let stat = statvfs(dir)?;
    // A file system that allocates inodes dynamically reports 0.
    let inodes = if stat.files() == 0 {
        u64::MAX
    } else {
        stat.files_free()
    };
    let blocks = stat.blocks_free().saturating_sub(reserved_blocks(dir)?);
    let free = FreeSpace {
        bytes: blocks.saturating_mul(stat.fragment_size()),
        unreserved: stat.blocks_available().saturating_mul(stat.fragment_size()),
        inodes,
    };
    let is_read_only = stat.flags().contains(FsFlags::ST_RDONLY);
    Ok(DiskState {
        free,
        written: None,
        is_read_only,
    })
}

impl DiskState {
    /// The state as it is for root, who can also use what is kept for it.
    const fn for_root(self) -> Self {
        Self {
            free: FreeSpace {
                unreserved: u64::MAX,
                ..self.free
            },
            ..self
        }
    }
}

impl FreeSpace {
    /// Returns which of bytes and inodes are short; `None` if neither. Bytes that are kept for root are no space for most
    /// programs in containers.
    const fn shortage(self) -> Option<&'static str> {
        match (self.bytes < MIN_FREE.bytes, self.inodes < MIN_FREE.inodes) {
            (true, true) => Some("bytes and inodes"),
            (true, false) => Some("bytes"),
            (false, true) => Some("inodes"),
            (false, false) if self.unreserved < MIN_FREE.unreserved => {
                Some("bytes besides those that are kept for root")
            }
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests;
