//! What of the host, or of an image, appears inside a task: mounts and devices.

use std::path::PathBuf;

/// Something of the host that appears inside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path inside.
    pub destination: PathBuf,
    /// What appears there.
    pub source: MountSource,
    /// No writing through it.
    pub readonly: bool,
    /// Nor through anything mounted below it. Needs `readonly` and private propagation.
    pub recursive_readonly: bool,
    /// Whether mounts made later go across.
    pub propagation: Propagation,
    /// What belongs to the host's ids inside the source is seen as that of the sandbox's, and the other way round. Needs a sandbox
    /// with a user namespace.
    pub id_mapped: bool,
    /// Give the source the task's SELinux label.
    pub selinux_relabel: bool,
    /// Further mount options.
    pub options: Vec<String>,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A path of the host; symbolic links in it are followed.
    Host {
        /// Absolute path.
        path: PathBuf,
        /// What to do where nothing is there.
        missing: MissingSource,
    },
    /// What is at a path below a directory of the host that processes of tasks can write in. No symbolic link below that directory is
    /// followed, also none that is put there after it was looked at: what is not there any more when the task is started is not mounted.
    Beneath {
        /// Absolute path of the directory.
        root: PathBuf,
        /// Path below it, without `..`; empty for the directory itself.
        path: PathBuf,
    },
    /// The files of an image that the node has; they cannot be written.
    Image {
        /// The image, by any reference or id.
        reference: String,
        /// A directory in it, relative to its root; empty for the root.
        sub_path: PathBuf,
    },
    /// A directory of the gateway's own that outlives its tasks. It is made when the first task that names it is, and begins with what
    /// the image has at the destination.
    Volume {
        /// Its name among the volumes of the task's owner; see [`is_volume_name`].
        name: String,
    },
    /// A tmpfs of this size in bytes (0: the kernel's default) and mode.
    Tmpfs {
        /// Size limit.
        size_bytes: u64,
        /// Permission bits.
        mode: u32,
    },
}

/// Whether a text can be the name of a volume: letters, digits, `_`, `.` and `-`, beginning with a letter or a digit, at most 128.
#[must_use]
pub fn is_volume_name(text: &str) -> bool {
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    text.len() <= 128
        && text.bytes().all(good)
        && text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// What to do about a host path that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingSource {
    /// Make a directory.
    CreateDir,
    /// Refuse.
    Fail,
}

/// Mount propagation, as seen from inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    /// None.
    #[default]
    Private,
    /// From the host to the task.
    HostToTask,
    /// Both ways.
    Bidirectional,
}

/// A device of the host, or a directory of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceNode {
    /// Path on the host.
    pub host_path: PathBuf,
    /// Path inside.
    pub container_path: PathBuf,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}
