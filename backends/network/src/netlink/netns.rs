//! Network namespaces, and work inside them.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{io, thread};

use nix::sched::{CloneFlags, setns};

use super::error::NetlinkError;

/// The network namespace of a thread that asks for it.
const OF_THREAD: &str = "/proc/thread-self/ns/net";

/// A network namespace, which exists at least as long as this and its clones.
#[derive(Debug, Clone)]
pub struct NetNs {
    file: Arc<File>,
    path: PathBuf,
}

// === impl NetNs ===

impl NetNs {
    /// Opens the namespace of this file: a bind mount of one, or a link of `/proc`. Whether it is one shows when it is used.
    ///
    /// # Errors
    /// [`NetlinkError::Namespace`].
    pub fn open(path: &Path) -> Result<Self, NetlinkError> {
        let file = File::open(path).map_err(|source| NetlinkError::Namespace {
            doing: "open the network namespace",
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            file: Arc::new(file),
            path: path.to_owned(),
        })
    }

    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// [`NetlinkError::Namespace`].
    pub fn current() -> Result<Self, NetlinkError> {
        Self::open(Path::new(OF_THREAD))
    }

    /// The descriptor, as requests name the namespace.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Runs `work` inside it, on a thread of its own, and returns what it returned. Sockets that it opens stay in the namespace
    /// wherever they are used later. Blocks until `work` returns.
    ///
    /// # Errors
    /// [`NetlinkError::Namespace`] if it cannot be entered, also because it is none; [`NetlinkError::ThreadLost`] if `work` panicked.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, NetlinkError> {
        let failed = |source: io::Error| NetlinkError::Namespace {
            doing: "enter the network namespace",
            path: self.path.clone(),
            source,
        };
        thread::scope(|scope| {
            let entered = move || {
                setns(&*self.file, CloneFlags::CLONE_NEWNET)?;
                Ok::<T, io::Error>(work())
            };
            thread::Builder::new()
                .name("netns".to_owned())
                .spawn_scoped(scope, entered)
                .map_err(failed)?
                .join()
                .map_err(|_| NetlinkError::ThreadLost {
                    path: self.path.clone(),
                })?
                .map_err(failed)
        })
    }
}
