//! Full, read-only and failing disks: the status reports them. On a disk that cannot be written, operations that end
//! something or free space proceed without being recorded.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use nix::sys::statvfs::{FsFlags, statvfs};
use parking_lot::Mutex;
use switchyard_core::backend::Condition;
use switchyard_core::blocking_pool::BlockingPool;
use switchyard_core::{Error, ErrorKind, Result};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::base::disk_io::{reserved_blocks, try_write};
use crate::base::error::mentions_failed_disk;
use crate::base::fs::blocking;

/// A disk with fewer free bytes or inodes counts as full: a pod can hardly be created.
const MIN_FREE: FreeSpace = FreeSpace { bytes: 1 << 20, inodes: 64 };

/// How long a look at a disk may take that only explains an error, to a client that waits.
const EXPLANATION_LIMIT: Duration = Duration::from_secs(1);

/// Whether the disks of the gateway's own directories, and of containerd's root, can be used.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    fault: Mutex<Option<DiskFault>>,
    mended: Notify,
}

/// What is wrong with a disk, or with several. The text does not contain the numbers, so it is the same as long as the
/// fault is.
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

/// What a file system says of itself, and has done when it was written to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskState {
    free: FreeSpace,
    /// A write was refused for lack of space, whatever is counted as free.
    refused_write: bool,
    is_read_only: bool,
}

/// The free space of a disk.
#[derive(Debug, Clone, Copy)]
struct FreeSpace {
    bytes: u64,
    inodes: u64,
}

// === impl Disks ===

impl Disks {
    /// The result of the latest check, as a condition of the backend.
    pub(crate) fn condition(&self) -> Condition {
        match &*self.fault.lock() {
            None => Condition::True,
            Some(DiskFault::Full(message)) => {
                Condition::False { reason: "DiskFull".to_owned(), message: message.clone() }
            }
            Some(DiskFault::Unusable { reason, message }) => {
                Condition::False { reason: (*reason).to_owned(), message: message.clone() }
            }
        }
    }

    /// Whether pods can run, as far as disks are concerned. They can on a full disk: a kubelet whose runtime is not ready
    /// stops and removes nothing, which would free space.
    pub(crate) fn runtime_condition(&self) -> Condition {
        let are_unusable = matches!(&*self.fault.lock(), Some(DiskFault::Unusable { .. }));
        if are_unusable { self.condition() } else { Condition::True }
    }

    /// Whether something is wrong with a disk, as far as is known.
    pub(crate) fn have_fault(&self) -> bool {
        self.fault.lock().is_some()
    }

    /// Stores the result of a check, and logs a change.
    pub(crate) fn update(&self, now: Option<DiskFault>) {
        // Logged after the lock is dropped: who asks for the condition does not wait for the log.
        let before = std::mem::replace(&mut *self.fault.lock(), now.clone());
        if before == now {
            return;
        }
        match &now {
            Some(DiskFault::Full(why)) => tracing::warn!(
                why,
                "a disk is full: nothing can be created or recorded, but existing objects can be stopped and removed"
            ),
            Some(DiskFault::Unusable { message, .. }) => tracing::error!(
                why = message,
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

// === impl DiskFault ===

impl DiskFault {
    /// What is wrong with the disk of a directory of which this is known; nothing if there is none. Pure.
    fn of(dir: &Path, state: io::Result<Option<DiskState>>) -> Option<Self> {
        let dir = dir.display();
        match state {
            Ok(None) => None,
            Ok(Some(DiskState { is_read_only: true, .. })) => Some(Self::Unusable {
                reason: "DiskReadOnly",
                message: format!(
                    "the file system of {dir} is read-only: see dmesg, as the kernel makes it so after an error of the disk"
                ),
            }),
            Ok(Some(DiskState { free, refused_write, is_read_only: false })) => {
                let shortage = free.shortage().map(|what| format!("almost no {what} left for {dir}"));
                let refused = refused_write.then(|| {
                    format!("a write in {dir} is refused, whatever is counted as free: see its quota")
                });
                shortage.or(refused).map(|why| Self::Full(format!("no space left on device: {why}")))
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

    /// Of two faults the worse one, with the texts of both if they are alike.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Full(one), Self::Full(other)) => Self::Full(format!("{one}; {other}")),
            (Self::Unusable { reason, message: one }, Self::Unusable { reason: _, message: other }) => {
                Self::Unusable { reason, message: format!("{one}; {other}") }
            }
            (unusable @ Self::Unusable { .. }, Self::Full(_))
            | (Self::Full(_), unusable @ Self::Unusable { .. }) => unusable,
        }
    }
}

/// Whether a write failed because its disk cannot be written at the moment: the disk or a quota is full, the file system
/// is read-only, or the device fails. Nothing is wrong with what was to be written then.
pub(crate) fn is_unwritable(error: &Error) -> bool {
    error.kind() == ErrorKind::ResourceExhausted || mentions_failed_disk(error)
}

/// The error of an OCI runtime that writes to this directory. Runtimes may end without a word when they cannot, so that it is
/// `ResourceExhausted` if its cause is not known, and the disk of the directory is full now. Cancel-safe.
pub(crate) async fn full_disk_behind(error: Error, dir: &Path) -> Error {
    let dir = dir.to_owned();
    explained(error, move || DiskFault::of(&dir, look(&dir).map(Some))).await
}

/// An error with a full disk as its cause, if that is not known yet and `look` finds one in time. Cancel-safe.
async fn explained(error: Error, look: impl FnOnce() -> Option<DiskFault> + Send + 'static) -> Error {
    if error.kind() != ErrorKind::Internal {
        return error;
    }
    let looked = timeout(EXPLANATION_LIMIT, blocking(move || Ok(look()))).await;
    let Ok(Ok(Some(DiskFault::Full(why)))) = looked else { return error };
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

/// What is wrong with the disks of these directories, as `look` finds it. Each is looked at on a thread of the pool, within its
/// limit. Cancel-safe.
pub(crate) async fn check(
    pool: &BlockingPool,
    dirs: &[PathBuf],
    look: impl Fn(&Path) -> io::Result<Option<DiskState>> + Clone + Send + 'static,
) -> Option<DiskFault> {
    let looks = dirs.iter().map(|dir| {
        let look = look.clone();
        let looked_at = dir.clone();
        let looked =
            pool.run(dir.display().to_string(), move || Ok(DiskFault::of(&looked_at, look(&looked_at))));
        async move {
            looked.await.unwrap_or_else(|error| {
                tracing::debug!(error = error.report(), "a disk cannot be looked at");
                Some(DiskFault::hangs(dir))
            })
        }
    });
    join_all(looks).await.into_iter().flatten().reduce(DiskFault::and)
}

/// What the file system of a directory says of itself, and does when it is written to. Blocks, for ever if the disk hangs.
///
/// # Errors
/// Those of the file system, but not that it is full or read-only.
pub(crate) fn write_and_look(dir: &Path) -> io::Result<DiskState> {
    match try_write(dir) {
        Err(fault) if fault.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            Ok(DiskState { is_read_only: true, ..look(dir)? })
        }
        written => Ok(DiskState { refused_write: !written?, ..look(dir)? }),
    }
}

/// Bytes on the file system of a directory that are free for root. Blocks, on some file systems for ever.
///
/// # Errors
/// Those of the file system.
pub(crate) fn free_bytes(dir: &Path) -> io::Result<u64> {
    look(dir).map(|state| state.free.bytes)
}

/// What the file system of a directory says of itself; the free space is that for root. Blocks, on some file systems for ever.
///
/// # Errors
/// Those of the file system.
pub(crate) fn look(dir: &Path) -> io::Result<DiskState> {
    let stat = statvfs(dir)?;
    // A file system that allocates inodes dynamically reports 0.
    let inodes = if stat.files() == 0 { u64::MAX } else { stat.files_free() };
    let blocks = stat.blocks_free().saturating_sub(reserved_blocks(dir)?);
    let free = FreeSpace { bytes: blocks.saturating_mul(stat.fragment_size()), inodes };
    let is_read_only = stat.flags().contains(FsFlags::ST_RDONLY);
    Ok(DiskState { free, refused_write: false, is_read_only })
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
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;

    use nix::errno::Errno;

    use super::*;
    use crate::base::error::from_status;
    use crate::base::fs::io_error;

    const PLENTY: DiskState = DiskState {
        free: FreeSpace { bytes: 1 << 30, inodes: 1 << 20 },
        refused_write: false,
        is_read_only: false,
    };

    fn condition(reason: &str, message: &str) -> Condition {
        Condition::False { reason: reason.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn a_disk_is_full_without_bytes_or_without_inodes() {
        let plenty = PLENTY.free;
        assert_eq!(plenty.shortage(), None);
        assert_eq!(FreeSpace { bytes: 4096, ..plenty }.shortage(), Some("bytes"));
        assert_eq!(FreeSpace { inodes: 3, ..plenty }.shortage(), Some("inodes"));
        assert_eq!(FreeSpace { bytes: 0, inodes: 0 }.shortage(), Some("bytes and inodes"));
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
    fn full_disk_is_reported_until_there_is_space_and_leaves_the_runtime_ready() {
        let disks = Disks::default();
        assert_eq!(disks.condition(), Condition::True);
        disks.update(Some(DiskFault::Full("full".into())));
        assert_eq!(disks.condition(), condition("DiskFull", "full"));
        assert_eq!(disks.runtime_condition(), Condition::True);
        disks.update(None);
        assert_eq!(disks.condition(), Condition::True);
    }

    #[test]
    fn read_only_and_failing_disks_are_reported_as_such_and_by_the_runtime() {
        let dir = Path::new("/state");
        for (state, reason, text) in [
            (Ok(Some(DiskState { is_read_only: true, ..PLENTY })), "DiskReadOnly", "/state is read-only"),
            (Err(io::Error::from_raw_os_error(5)), "DiskFails", "/state fails: Input/output error"),
        ] {
            let disks = Disks::default();
            disks.update(DiskFault::of(dir, state));
            let found = disks.condition();
            assert!(
                matches!(&found, Condition::False { reason: told, message } if told == reason && message.contains(text)),
                "{found:?}"
            );
            assert_eq!(disks.runtime_condition(), found);
        }
        assert_eq!(DiskFault::of(dir, Ok(Some(PLENTY))), None);
        assert_eq!(DiskFault::of(dir, Ok(None)), None);
    }

    #[test]
    fn disk_that_refuses_a_write_for_lack_of_space_is_full_whatever_it_counts_as_free() {
        let dir = tempfile::tempdir().unwrap();
        let fault = || DiskFault::of(dir.path(), write_and_look(dir.path()).map(Some));
        assert_eq!(fault(), None);
        fs::remove_file(dir.path().join("write-test")).unwrap();
        symlink("/dev/full", dir.path().join("write-test")).unwrap();
        let found = fault();
        assert!(matches!(&found, Some(DiskFault::Full(why)) if why.contains("is refused")), "{found:?}");
        let disks = Disks::default();
        disks.update(found);
        assert!(disks.have_fault(), "it is written to again at the next look");
    }

    #[tokio::test]
    async fn unexplained_error_on_a_full_disk_is_one_of_the_disk() {
        let failed = || Error::internal("exec in task 1").with_source(Error::internal("exit status 255"));
        let fault = |state| move || DiskFault::of(Path::new("/run"), state);
        let full =
            move || fault(Ok(Some(DiskState { free: FreeSpace { bytes: 0, ..PLENTY.free }, ..PLENTY })));
        let error = explained(failed(), full()).await;
        assert_eq!(error.kind(), ErrorKind::ResourceExhausted);
        let expected =
            "no space left on device: almost no bytes left for /run: exec in task 1: exit status 255";
        assert_eq!(error.report(), expected);
        for other in [Ok(Some(PLENTY)), Err(io::Error::from_raw_os_error(5))] {
            assert_eq!(explained(failed(), fault(other)).await.kind(), ErrorKind::Internal);
        }
        // One whose cause is known keeps its kind, and waits for no disk.
        let (looked, looks) = mpsc::channel();
        let look = move || {
            looked.send(()).unwrap();
            full()()
        };
        let known = explained(Error::invalid("command", "it is missing"), look).await;
        assert_eq!(known.kind(), ErrorKind::InvalidArgument);
        assert!(looks.recv().is_err(), "the disk was looked at");
    }

    #[tokio::test]
    async fn error_is_not_held_up_by_a_disk_that_hangs() {
        let (answers, answer) = mpsc::channel::<()>();
        let hangs = move || {
            // It returns once the sender is dropped.
            let _ = answer.recv();
            None
        };
        let error =
            timeout(EXPLANATION_LIMIT * 10, explained(Error::internal("exec in task 1"), hangs)).await;
        assert_eq!(error.unwrap().kind(), ErrorKind::Internal);
        drop(answers);
    }

    #[test]
    fn file_systems_are_looked_at() {
        assert!(look(Path::new("/")).is_ok());
        assert!(look(Path::new("/no/such/directory")).is_err());
    }

    #[tokio::test]
    async fn disk_that_hangs_is_reported_beside_those_that_answer_and_takes_one_thread() {
        let pool = BlockingPool::new(2, Duration::from_millis(50));
        let dirs: Vec<PathBuf> = vec!["/hangs".into(), "/full".into()];
        let (answers, answer) = mpsc::channel::<()>();
        let answer = std::sync::Arc::new(Mutex::new(answer));
        let look = move |dir: &Path| {
            if dir == Path::new("/hangs") {
                // It returns once the sender is dropped.
                let _ = answer.lock().recv();
                return Ok(Some(PLENTY));
            }
            Ok(Some(DiskState { free: FreeSpace { bytes: 0, ..PLENTY.free }, ..PLENTY }))
        };
        for _ in 0..3 {
            let found = check(&pool, &dirs, look.clone()).await.unwrap();
            let message = "the file system of /hangs does not answer".to_owned();
            assert_eq!(found, DiskFault::Unusable { reason: "DiskHangs", message });
        }
        drop(answers);
        loop {
            match check(&pool, &dirs, look.clone()).await.unwrap() {
                DiskFault::Full(why) => {
                    break assert!(why.ends_with("almost no bytes left for /full"), "{why}");
                }
                // The thread returns soon.
                DiskFault::Unusable { .. } => tokio::task::yield_now().await,
            }
        }
    }
}
