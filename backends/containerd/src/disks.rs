//! Full disks: it is told that there is no space, and what ends or makes space goes on without being put on record.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::statvfs::statvfs;
use switchyard_core::backend::Condition;
use switchyard_core::{ErrorKind, Result};
use tokio_util::sync::CancellationToken;

use crate::backend::Inner;
use crate::fs::blocking;

/// Between two looks.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// With fewer bytes or inodes than these a pod can hardly be made.
const MIN_FREE: FreeSpace = FreeSpace { bytes: 1 << 20, inodes: 64 };

/// Which of the gateway's own disks are full.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    full: Mutex<Option<String>>,
}

/// What is free of a disk.
#[derive(Debug, Clone, Copy)]
struct FreeSpace {
    bytes: u64,
    inodes: u64,
}

impl Disks {
    /// As a condition of the backend, as of the latest look.
    pub(crate) fn condition(&self) -> Condition {
        match &*self.full.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Condition::True,
            Some(message) => Condition::False { reason: "DiskFull".to_owned(), message: message.clone() },
        }
    }

    /// Notes a look, and tells of what is news.
    fn update(&self, now: Option<String>) {
        let mut full = self.full.lock().unwrap_or_else(PoisonError::into_inner);
        match (&*full, &now) {
            (None, Some(why)) => tracing::warn!(
                why,
                "nothing new can be made or put on record; what there is can be stopped and removed"
            ),
            (Some(_), None) => tracing::info!("there is space again"),
            (Some(_), Some(_)) | (None, None) => {}
        }
        *full = now;
    }
}

impl Inner {
    /// Looks at the disks of the state and run directories until `stop`.
    pub(crate) async fn watch_disks(self: Arc<Self>, stop: CancellationToken) {
        let dirs = [self.settings.state.clone(), self.settings.run.clone()];
        loop {
            let looked = dirs.clone();
            match blocking(move || Ok(shortages(&looked))).await {
                Ok(full) => self.disks.update(full),
                Err(error) => tracing::error!(error = error.report(), "the disks cannot be looked at"),
            }
            tokio::select! {
                () = tokio::time::sleep(CHECK_INTERVAL) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The tasks whose ends could not be put on record yet, for people; `None` if there are none.
    pub(crate) fn unrecorded_exits(&self) -> Option<String> {
        let tasks = self.tasks();
        let ended = tasks.values().filter(|task| task.has_unpersisted_exit());
        let mut ids: Vec<_> = ended.map(|task| task.id.to_string()).collect();
        ids.sort();
        (!ids.is_empty()).then(|| ids.join(", "))
    }
}

/// The outcome of putting on record what is true without that too: a full disk does not stand in its way, and `what` is said of it.
pub(crate) fn tolerate_full_disk(put: Result<()>, what: &str) -> Result<()> {
    match put {
        Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
            tracing::warn!(error = error.report(), "{what}");
            Ok(())
        }
        other => other,
    }
}

/// What there is too little of, by directory; the same text as long as that is so. Blocks.
fn shortages(dirs: &[PathBuf]) -> Option<String> {
    let lacking = |dir: &PathBuf| {
        Some(format!("no space left on device: {} left for {}", free_space(dir)?.shortage()?, dir.display()))
    };
    let shortages: Vec<_> = dirs.iter().filter_map(lacking).collect();
    (!shortages.is_empty()).then(|| shortages.join("; "))
}

/// What is free of the disk of a directory, for root; `None` if that is not said.
fn free_space(dir: &Path) -> Option<FreeSpace> {
    let stat = statvfs(dir).ok()?;
    // A file system that counts no inodes has as many as it needs.
    let inodes = if stat.files() == 0 { u64::MAX } else { stat.files_free() };
    Some(FreeSpace { bytes: stat.blocks_free().saturating_mul(stat.fragment_size()), inodes })
}

impl FreeSpace {
    /// What there is too little of.
    const fn shortage(self) -> Option<&'static str> {
        match (self.bytes < MIN_FREE.bytes, self.inodes < MIN_FREE.inodes) {
            (true, true) => Some("hardly a byte and hardly an inode is"),
            (true, false) => Some("hardly a byte is"),
            (false, true) => Some("hardly an inode is"),
            (false, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_full_without_bytes_or_without_inodes() {
        let plenty = FreeSpace { bytes: 1 << 30, inodes: 1 << 20 };
        assert_eq!(plenty.shortage(), None);
        assert_eq!(FreeSpace { bytes: 4096, ..plenty }.shortage(), Some("hardly a byte is"));
        assert_eq!(FreeSpace { inodes: 3, ..plenty }.shortage(), Some("hardly an inode is"));
        assert_eq!(
            FreeSpace { bytes: 0, inodes: 0 }.shortage(),
            Some("hardly a byte and hardly an inode is")
        );
        assert_eq!(shortages(&["/no/such/directory".into()]), None);
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
