//! Full disks: the status reports them. On a disk that is full or cannot be written for another reason, operations that
//! end something or free space proceed without being recorded.

use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;
use parking_lot::Mutex;
use switchyard_core::backend::Condition;
use switchyard_core::{Error, ErrorKind, Result};

use crate::base::error::mentions_failed_disk;

/// A disk with fewer free bytes or inodes counts as full: a pod can hardly be created.
const MIN_FREE: FreeSpace = FreeSpace { bytes: 1 << 20, inodes: 64 };

/// Whether the disks of the gateway's own directories are full.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    full: Mutex<Option<String>>,
}

/// The free space of a disk.
#[derive(Debug, Clone, Copy)]
struct FreeSpace {
    bytes: u64,
    inodes: u64,
}

impl Disks {
    /// The result of the latest check, as a condition of the backend.
    pub(crate) fn condition(&self) -> Condition {
        match &*self.full.lock() {
            None => Condition::True,
            Some(message) => Condition::False { reason: "DiskFull".to_owned(), message: message.clone() },
        }
    }

    /// Stores the result of a check, and logs a change.
    pub(crate) fn update(&self, now: Option<String>) {
        // Logged after the lock is dropped: who asks for the condition does not wait for the log.
        let before = std::mem::replace(&mut *self.full.lock(), now.clone());
        match (before, now) {
            (None, Some(why)) => tracing::warn!(
                why,
                "a disk is full: nothing can be created or recorded, but existing objects can be stopped and removed"
            ),
            (Some(_), None) => tracing::info!("the disks have free space again"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}

/// Whether a write failed because its disk cannot be written at the moment: the disk or a quota is full, the file system
/// is read-only, or the device fails. Nothing is wrong with what was to be written then.
pub(crate) fn is_unwritable(error: &Error) -> bool {
    error.kind() == ErrorKind::ResourceExhausted || mentions_failed_disk(error)
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

/// Which of the directories have too few free bytes or inodes; `None` if all have enough. The text does not
/// contain the numbers, so it is the same as long as the shortage is. Blocks.
pub(crate) fn shortages(dirs: &[PathBuf]) -> Option<String> {
    let lacking = |dir: &PathBuf| {
        let shortage = free_space(dir)?.shortage()?;
        Some(format!("no space left on device: almost no {shortage} left for {}", dir.display()))
    };
    let shortages: Vec<_> = dirs.iter().filter_map(lacking).collect();
    (!shortages.is_empty()).then(|| shortages.join("; "))
}

/// The free space, for root, of the disk that a directory is on; `None` if it cannot be read.
fn free_space(dir: &Path) -> Option<FreeSpace> {
    let stat = statvfs(dir).ok()?;
    // A file system that allocates inodes dynamically reports 0.
    let inodes = if stat.files() == 0 { u64::MAX } else { stat.files_free() };
    Some(FreeSpace { bytes: stat.blocks_free().saturating_mul(stat.fragment_size()), inodes })
}

impl FreeSpace {
    /// What is short: bytes, inodes or both; `None` if neither.
    const fn shortage(self) -> Option<&'static str> {
        match (self.bytes < MIN_FREE.bytes, self.inodes < MIN_FREE.inodes) {
            (true, true) => Some("bytes and inodes"),
            (true, false) => Some("bytes"),
            (false, true) => Some("inodes"),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::base::error::from_status;
    use crate::base::fs::io_error;

    #[test]
    fn a_disk_is_full_without_bytes_or_without_inodes() {
        let plenty = FreeSpace { bytes: 1 << 30, inodes: 1 << 20 };
        assert_eq!(plenty.shortage(), None);
        assert_eq!(FreeSpace { bytes: 4096, ..plenty }.shortage(), Some("bytes"));
        assert_eq!(FreeSpace { inodes: 3, ..plenty }.shortage(), Some("inodes"));
        assert_eq!(FreeSpace { bytes: 0, inodes: 0 }.shortage(), Some("bytes and inodes"));
        assert_eq!(shortages(&["/no/such/directory".into()]), None);
    }

    #[test]
    fn a_disk_that_cannot_be_written_is_told_from_what_cannot_be_written_anywhere() {
        let status = |text: &str| from_status("update container 1", tonic::Status::unknown(text));
        let file = |errno: Errno| io_error("write", Path::new("/x"), errno.into());
        let unwritable = [
            status("write /var/lib/containerd/meta.db: no space left on device: unknown"),
            status("write /var/lib/containerd/meta.db: read-only file system: unknown"),
            status("fdatasync /var/lib/containerd/meta.db: input/output error"),
            from_status("update container 1", tonic::Status::resource_exhausted("full")),
            file(Errno::ENOSPC),
            file(Errno::EDQUOT),
            file(Errno::EROFS),
            file(Errno::EIO),
            Error::internal("a sandbox").with_source(file(Errno::EROFS)),
        ];
        for error in unwritable {
            assert!(is_unwritable(&error), "{}", error.report());
            assert!(tolerate_unwritable_disk(Err(error), "it is not written").is_ok());
        }
        let others = [
            status("label value too long"),
            status("transport error"),
            from_status("update container 1", tonic::Status::not_found("container 1")),
            from_status("update container 1", tonic::Status::unavailable("down")),
            file(Errno::EACCES),
        ];
        for error in others {
            assert!(!is_unwritable(&error), "{}", error.report());
            assert!(tolerate_unwritable_disk(Err(error), "it is not written").is_err());
        }
    }

    #[test]
    fn a_full_disk_is_told_until_there_is_space() {
        let disks = Disks::default();
        assert_eq!(disks.condition(), Condition::True);
        disks.update(Some("full".into()));
        let reason = "DiskFull".to_owned();
        assert_eq!(disks.condition(), Condition::False { reason, message: "full".into() });
        disks.update(None);
        assert_eq!(disks.condition(), Condition::True);
    }
}
