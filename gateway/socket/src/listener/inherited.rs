//! Listeners that outlive the process that has bound them: they are shared with somebody who keeps them open, and inherited
//! by a successor.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener as StdListener;
use std::path::Path;
use std::sync::Arc;

use tokio::net::UnixListener;

use super::{SocketFile, identity};

/// Maximum number of connections that wait to be accepted: that of a listener that is bound.
const BACKLOG: i32 = 1024;

/// A listener that a predecessor has shared.
#[derive(Debug)]
pub struct InheritedListener {
    descriptor: OwnedFd,
    note: String,
}

/// A duplicate of a listener, to be kept open by somebody else.
#[derive(Debug)]
pub struct SharedListener {
    descriptor: OwnedFd,
    note: String,
    file: Arc<SocketFile>,
}

// === impl InheritedListener ===

impl InheritedListener {
    /// A listener with the note of [`SharedListener::note`].
    #[must_use]
    pub const fn new(descriptor: OwnedFd, note: String) -> Self {
        Self { descriptor, note }
    }

    /// Removes the file that it is bound to, if that is still there: nobody serves it any more.
    pub fn discard(self) {
        let Self { descriptor, note } = self;
        // Open until the file is gone, so that its inode is nobody else's.
        let listener = StdListener::from(descriptor);
        let Ok(address) = listener.local_addr() else {
            return;
        };
        let Some(path) = address.as_pathname() else {
            return;
        };
        if identity(path).is_some_and(|identity| note_of(identity) == note)
            && let Err(error) = fs::remove_file(path)
        {
            tracing::warn!(socket = %path.display(), %error, "cannot remove the socket of the predecessor");
        }
    }

    /// The listener, if it is bound to the file at `path`; otherwise it is discarded.
    pub(super) fn at(self, path: &Path) -> Option<UnixListener> {
        let Self { descriptor, note } = self;
        let listener = StdListener::from(descriptor);
        let is_bound = listener
            .local_addr()
            .is_ok_and(|address| address.as_pathname() == Some(path));
        // Nothing else has the inode while the listener exists.
        let is_there = identity(path).is_some_and(|identity| note_of(identity) == note);
        if !(is_bound && is_there) {
            tracing::info!(socket = %path.display(), "the listener of the predecessor is another socket's: binding a new one");
            let descriptor = listener.into();
            Self { descriptor, note }.discard();
            return None;
        }
        // Listening again gives clients the credentials of this process, see `channel::is_attended`.
        let listener = rustix::net::listen(&listener, BACKLOG)
            .map_err(io::Error::from)
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| UnixListener::from_std(listener));
        match listener {
            Ok(listener) => Some(listener),
            Err(error) => {
                tracing::warn!(socket = %path.display(), %error, "cannot use the listener of the predecessor: binding a new one");
                None
            }
        }
    }
}

// === impl SharedListener ===

impl SharedListener {
    /// Duplicates a listener that is bound to a file.
    pub(super) fn of(listener: &UnixListener, file: Arc<SocketFile>) -> io::Result<Self> {
        let identity = file.identity.ok_or(io::ErrorKind::NotFound)?;
        Ok(Self {
            descriptor: listener.as_fd().try_clone_to_owned()?,
            note: note_of(identity),
            file,
        })
    }

    /// The descriptor.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Duplicates the descriptor once more.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.descriptor.try_clone()
    }

    /// Text by which a successor recognizes the file that the listener is bound to.
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }

    /// The file that the listener is bound to.
    #[must_use]
    pub fn file(&self) -> &SocketFile {
        &self.file
    }
}

fn note_of(identity: (u64, u64)) -> String {
    format!("{}:{}", identity.0, identity.1)
}
