//! The namespaces that a sandbox can own.

use std::fmt;

use nix::sched::CloneFlags;

/// A namespace that can be pinned without a process in it.
///
/// The pid namespace is not among these: it ends with its first process, so a bind mount does not keep it
/// usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ns {
    /// User and group ids, and the ownership of the namespaces that are created inside.
    User,
    /// Network devices, addresses, routes, ports.
    Net,
    /// System V IPC objects and POSIX message queues.
    Ipc,
    /// Host name and domain name.
    Uts,
}

impl Ns {
    /// Every namespace that can be pinned, in the order in which they are pinned.
    pub const ALL: [Self; 4] = [Self::User, Self::Net, Self::Ipc, Self::Uts];

    /// The name of its file, both in `/proc/<pid>/ns` and in a directory of pins.
    #[must_use]
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Net => "net",
            Self::Ipc => "ipc",
            Self::Uts => "uts",
        }
    }

    /// Its flag for `unshare` and `setns`.
    pub(crate) const fn flag(self) -> CloneFlags {
        match self {
            Self::User => CloneFlags::CLONE_NEWUSER,
            Self::Net => CloneFlags::CLONE_NEWNET,
            Self::Ipc => CloneFlags::CLONE_NEWIPC,
            Self::Uts => CloneFlags::CLONE_NEWUTS,
        }
    }
}

impl fmt::Display for Ns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_name())
    }
}
