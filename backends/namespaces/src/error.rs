//! The error type of this crate.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;
use switchyard_linux::WorkLost;
use switchyard_linux::files::ReplaceError;
use switchyard_linux::mounts::MalformedMount;
use thiserror::Error;

use crate::ns::Ns;

/// Reason why a namespace, file or mount of a sandbox could not be created, read or removed.
#[derive(Debug, Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {doing} {}", path.display())]
    File {
        /// The failed operation, as a verb phrase.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A mount or unmount failed.
    #[error("cannot {doing} {}", path.display())]
    Mount {
        /// The failed operation, as a verb phrase.
        doing: &'static str,
        /// The mount point.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: Errno,
    },
    /// A namespace could not be created, entered or set up.
    #[error("cannot {doing}; it needs CAP_SYS_ADMIN and a kernel with namespaces")]
    Namespace {
        /// The failed operation, as a verb phrase.
        doing: &'static str,
        /// The error of the kernel.
        #[source]
        source: Errno,
    },
    /// The helper could not be started.
    #[error("the helper for namespaces cannot be run")]
    Program {
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The helper failed.
    #[error("user namespace: {said}")]
    Helper {
        /// The helper's message.
        said: String,
    },
    /// The helper could not change a project.
    #[error("project quota of {}: {said}", path.display())]
    Project {
        /// The directory.
        path: PathBuf,
        /// The helper's message.
        said: String,
    },
    /// A file system does not enforce project quotas.
    #[error(
        "{} is not mounted with project quotas: mount it with prjquota; ext4 must have its features quota and project for that, which \
         tune2fs(8) adds, and both need Linux 5.14",
        mount.display()
    )]
    NoProjectQuota {
        /// The mount point of the file system.
        mount: PathBuf,
    },
    /// A throw-away thread could not be started.
    #[error("cannot start a thread to {doing}")]
    Thread {
        /// The purpose of the thread.
        doing: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A throw-away thread ended without a result: it panicked, or the runtime was shut down.
    #[error("the thread that was to {doing} ended without a result")]
    ThreadLost {
        /// The purpose of the thread.
        doing: &'static str,
    },
    /// A pin exists already; its namespace may be in use, so it is not replaced.
    #[error("{} exists already; remove the pins of this sandbox first", path.display())]
    AlreadyPinned {
        /// The existing file.
        path: PathBuf,
    },
    /// No pins are in the directory.
    #[error("no pinned namespaces in {}", dir.display())]
    NotPinned {
        /// The directory.
        dir: PathBuf,
    },
    /// A file that should be a namespace is not one, for instance because its creation was interrupted.
    #[error("{} is not a namespace file; remove the pins of this sandbox and create them again", path.display())]
    NotNamespace {
        /// The file.
        path: PathBuf,
    },
    /// A sysctl name that cannot be mapped to a file below `/proc/sys`.
    #[error(
        "sysctl name {name:?} is not valid; write it as net.core.somaxconn or net/core/somaxconn"
    )]
    SysctlName {
        /// The name as given.
        name: String,
    },
    /// A sysctl that belongs to no namespace a sandbox has.
    #[error(
        "sysctl {name} is not namespaced, it would change the whole host; set it on the host instead"
    )]
    SysctlHost {
        /// The name as given.
        name: String,
    },
    /// A sysctl of a namespace that the sandbox shares with the host.
    #[error(
        "sysctl {name} belongs to the {namespace} namespace, which this sandbox shares with the host; give the sandbox its own or drop the sysctl"
    )]
    SysctlShared {
        /// The name as given.
        name: String,
        /// The namespace that would have to be private.
        namespace: Ns,
    },
    /// The kernel does not have the sysctl or refuses the value.
    #[error("cannot set sysctl {name} to {value:?} inside the sandbox")]
    SysctlWrite {
        /// The name as given.
        name: String,
        /// The value as given.
        value: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A value that cannot go into a sandbox file.
    #[error("{what} {value:?} {why}")]
    Invalid {
        /// The purpose of the value.
        what: &'static str,
        /// The value as given.
        value: String,
        /// The fault of the value.
        why: &'static str,
    },
    /// The kernel's list of mounts cannot be understood.
    #[error("cannot read the list of mounts")]
    MalformedMount(#[from] MalformedMount),
    /// Mounts kept appearing while they were being removed.
    #[error("{} is still a mount point after {tries} tries; find out who mounts there", path.display())]
    StillMounted {
        /// The mount point.
        path: PathBuf,
        /// The number of tries.
        tries: usize,
    },
    /// A creation failed, and so did its rollback.
    #[error("a creation failed and could not be undone: {undo}")]
    Undo {
        /// Reason why the creation failed.
        #[source]
        failed: Box<Error>,
        /// Reason why it could not be undone.
        undo: Box<Error>,
    },
}

impl From<WorkLost> for Error {
    fn from(lost: WorkLost) -> Self {
        Self::ThreadLost { doing: lost.what() }
    }
}

impl From<ReplaceError> for Error {
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

impl Error {
    /// Makes a closure for `map_err` on file operations.
    pub(crate) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File {
            doing,
            path,
            source,
        }
    }

    /// Makes a closure for `map_err` on mounts.
    pub(crate) fn mount(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(Errno) -> Self {
        let path = path.into();
        move |source| Self::Mount {
            doing,
            path,
            source,
        }
    }

    /// Makes a closure for `map_err` on namespace calls.
    pub(crate) fn namespace(doing: &'static str) -> impl FnOnce(Errno) -> Self {
        move |source| Self::Namespace { doing, source }
    }

    /// Returns whether the caller requested something that can never work, so that a retry is useless.
    #[must_use]
    pub fn is_invalid_request(&self) -> bool {
        match self {
            Self::SysctlName { .. }
            | Self::SysctlHost { .. }
            | Self::SysctlShared { .. }
            | Self::SysctlWrite { .. }
            | Self::Invalid { .. } => true,
            Self::Undo { failed, .. } => failed.is_invalid_request(),
            Self::File { .. }
            | Self::Mount { .. }
            | Self::Namespace { .. }
            | Self::Thread { .. }
            | Self::Program { .. }
            | Self::Helper { .. }
            | Self::Project { .. }
            | Self::NoProjectQuota { .. }
            | Self::ThreadLost { .. }
            | Self::AlreadyPinned { .. }
            | Self::NotPinned { .. }
            | Self::NotNamespace { .. }
            | Self::MalformedMount(_)
            | Self::StillMounted { .. } => false,
        }
    }
}
