//! The reading side of a container's output FIFO.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use rustix::io::ioctl_fionread;
use tokio::net::unix::pipe::Receiver;

use crate::scratch::BATCH;

/// The size of a busy FIFO, in bytes, while the budget lasts.
const LARGE: usize = 1024 * 1024;

/// The kernel's soft limit on the pages of all pipe buffers of a user.
const SOFT_LIMIT: &str = "/proc/sys/fs/pipe-user-pages-soft";

/// The pipe buffer space that the logkeeper may use beyond the default.
///
/// Pipe buffers are counted per user, and a user above the soft limit gets pipes of two pages from then on,
/// which would slow down every container that runs as this user. So the logkeeper uses a quarter of the
/// limit at most.
#[derive(Debug)]
pub(crate) struct PipeBudget {
    left: AtomicUsize,
}

/// An open FIFO that is registered with the runtime.
///
/// It is opened for writing too, so that opening never blocks, and so that there is no end of file between
/// two writers.
#[derive(Debug)]
pub(crate) struct Fifo {
    path: PathBuf,
    receiver: Receiver,
    loan: Option<Loan>,
    /// True if the kernel has refused to enlarge it.
    refused: bool,
}

/// A large FIFO's share of the budget, which is returned when this is dropped.
#[derive(Debug)]
struct Loan(Arc<PipeBudget>);

// === impl PipeBudget ===

impl PipeBudget {
    pub(crate) fn from_system() -> Arc<Self> {
        let pages = std::fs::read_to_string(SOFT_LIMIT)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        // 0 means no limit; then, and if it cannot be read, the kernel's default is assumed.
        let pages = pages
            .filter(|pages: &usize| *pages > 0)
            .unwrap_or(16 * 1024);
        Arc::new(Self {
            left: AtomicUsize::new(pages / 4 * 4096),
        })
    }

    fn borrow(self: &Arc<Self>) -> Option<Loan> {
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(LARGE)
            })
            .ok()
            .map(|_| Loan(Arc::clone(self)))
    }
}

// === impl Loan ===

impl Drop for Loan {
    fn drop(&mut self) {
        self.0.left.fetch_add(LARGE, Ordering::Relaxed);
    }
}

// === impl Fifo ===

impl Fifo {
    /// Opens a FIFO.
    ///
    /// # Errors
    /// The file cannot be opened, or is not a FIFO (`InvalidInput`).
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let receiver = Receiver::from_file(open(path, true)?)?;
        Ok(Self {
            path: path.into(),
            receiver,
            loan: None,
            refused: false,
        })
    }

    /// Enlarges the FIFO, because it was full; if the budget and the kernel allow it. Idempotent.
    pub(crate) fn enlarge(&mut self, budget: &Arc<PipeBudget>) {
        if self.loan.is_some() || self.refused {
            return;
        }
        let Some(loan) = budget.borrow() else { return };
        let size = i32::try_from(LARGE).expect("the size is a small constant");
        match fcntl(self.receiver.as_fd(), FcntlArg::F_SETPIPE_SZ(size)) {
            Ok(_) => self.loan = Some(loan),
            Err(error) => {
                self.refused = true;
                tracing::debug!(fifo = %self.path.display(), %error, "cannot enlarge the FIFO");
            }
        }
    }

    /// Closes the write end, so that a read returns the end of file once all other writers have closed.
    ///
    /// If the FIFO can no longer be opened by its path, the write end stays open, and there is no end of
    /// file.
    pub(crate) fn close_writer(self) -> io::Result<Self> {
        let Self {
            path,
            receiver,
            loan,
            refused,
        } = self;
        // The second descriptor is open before the first is closed, or the FIFO would lose its content.
        match open(&path, false) {
            Ok(file) => Ok(Self {
                path,
                receiver: Receiver::from_file(file)?,
                loan,
                refused,
            }),
            Err(error) => {
                tracing::debug!(fifo = %path.display(), %error, "cannot watch for the end of the FIFO");
                Ok(Self {
                    path,
                    receiver,
                    loan,
                    refused,
                })
            }
        }
    }

    /// Waits until the FIFO may have data. Cancel-safe.
    ///
    /// Readiness is edge-triggered. This is correct only because [`Fifo::try_receive`] is called until the
    /// FIFO is empty, including unfinished lines: the kernel raises no edge for a writer that fills a FIFO
    /// which is not empty, and then sleeps.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        self.receiver.readable().await
    }

    /// Returns whether the FIFO is at least half full, after its content was taken out and written: the writer is faster than the
    /// log. Lines do not fill its pages, so that one that is full may hold little more than half of its bytes.
    pub(crate) fn is_full(&self) -> bool {
        let size = if self.loan.is_some() { LARGE } else { BATCH };
        ioctl_fionread(&self.receiver).is_ok_and(|held| held >= size as u64 / 2)
    }

    /// Calls `receive` if the FIFO is ready; if that returns `WouldBlock`, the readiness is cleared.
    pub(crate) fn try_receive<T>(
        &self,
        receive: impl FnOnce(BorrowedFd<'_>) -> io::Result<T>,
    ) -> io::Result<T> {
        self.receiver.try_io(|| receive(self.receiver.as_fd()))
    }
}

// === impl Fifo ===

impl AsFd for Fifo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.receiver.as_fd()
    }
}

/// Opens a FIFO for reading, and with `write` also for writing, without blocking.
pub(crate) fn open(path: &Path, write: bool) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        Ok(file)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a FIFO"))
    }
}
