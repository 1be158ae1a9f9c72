//! Mounts and devices of a task.

use std::path::{Component, Path, PathBuf};

/// A mount of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Absolute path in the task.
    pub destination: PathBuf,
    /// The source of the mount.
    pub source: MountSource,
    /// Read-only.
    pub readonly: bool,
    /// Recursively read-only. Requires `readonly` and private propagation.
    pub recursive_readonly: bool,
    /// Mount propagation.
    pub propagation: Propagation,
    /// Idmapped: ids of the host in the source appear as ids of the sandbox's user namespace, and vice versa.
    /// Requires a sandbox with a user namespace.
    pub id_mapped: bool,
    /// The SELinux label that the source gets.
    pub selinux_relabel: Relabel,
    /// Further mount options.
    pub options: Vec<String>,
}

impl Mount {
    /// A mount of `source` at `destination`, an absolute path in the task, as most are: writable, with private
    /// propagation, the ids and the SELinux label of the source, and no further options.
    #[must_use]
    pub fn new(destination: impl Into<PathBuf>, source: MountSource) -> Self {
        Self {
            destination: destination.into(),
            source,
            readonly: false,
            recursive_readonly: false,
            propagation: Propagation::Private,
            id_mapped: false,
            selinux_relabel: Relabel::Keep,
            options: Vec::new(),
        }
    }
}

/// The SELinux label that the source of a mount gets before the task is created, on a node where tasks have labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Relabel {
    /// The one that it has. A volume of the gateway gets that of [`Relabel::Shared`].
    #[default]
    Keep,
    /// One with which all tasks may use it: without the categories of a sandbox.
    Shared,
    /// One with which only the tasks of this sandbox, or of its group, may use it.
    Private,
    /// That of [`Relabel::Shared`] by the operator's configuration, not by a request: where it cannot be given, the one that
    /// the source has.
    SharedByDefault,
    /// That of [`Relabel::Private`] in the same way.
    PrivateByDefault,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MountSource {
    /// A host path; symbolic links in it are followed.
    Host {
        /// Absolute path.
        path: PathBuf,
        /// Policy for a path that does not exist.
        missing: MissingSource,
    },
    /// A path below a host directory that processes of tasks can write to. No symbolic link below that
    /// directory is followed, even if it is created after the check: if the path does not exist any more when
    /// the task is started, it is not mounted.
    Beneath {
        /// Absolute path of that directory.
        root: PathBuf,
        /// Path relative to it, without `..`; empty for the directory itself.
        path: PathBuf,
    },
    /// The files of an image on the node, read-only.
    Image {
        /// The image, by any reference or id.
        reference: String,
        /// A directory in it, relative to its root; empty for the root.
        sub_path: PathBuf,
    },
    /// A volume of the gateway, which outlives its tasks. It is created with the first task that names it.
    Volume {
        /// Its name among the volumes of the task's owner; see [`is_volume_name`].
        name: String,
        /// A directory or file in it, relative to its root; empty for the root. No symbolic link in it is
        /// followed out of the volume.
        sub_path: PathBuf,
        /// True if a new volume is initialised with the image's content at the destination.
        copied: bool,
    },
    /// An NFS export, which the node mounts from its own network when the task is started, and the task keeps.
    Nfs {
        /// The export, `server:/path` or `:/path`.
        export: String,
        /// The server, by name or address.
        server: String,
        /// Options of the file system, each a name or `name=value`.
        options: Vec<String>,
    },
    /// A tmpfs of this size in bytes (0: the kernel's default) and mode.
    Tmpfs {
        /// Size limit.
        size_bytes: u64,
        /// Permission bits.
        mode: u32,
    },
}

/// Returns whether a text is a valid volume name: letters, digits, `_`, `.` and `-`, beginning with a letter
/// or a digit, at most 128 bytes.
#[must_use]
pub fn is_volume_name(text: &str) -> bool {
    text.len() <= 128
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
        && text
            .bytes()
            .next()
            .is_some_and(|byte| byte.is_ascii_alphanumeric())
}

/// The place in a container that a path means: absolute, a relative one from the root, without `.` and `..`, which
/// are resolved lexically, since the file system of the container does not exist yet.
#[must_use]
pub fn rooted(path: &Path) -> PathBuf {
    let mut place = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::ParentDir => drop(place.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    place
}

/// The policy for a host path that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingSource {
    /// Create a directory.
    CreateDir,
    /// Fail.
    Fail,
}

/// Mount propagation, from the task's point of view.
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

/// A host device, or a directory of devices.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct DeviceNode {
    /// Path on the host.
    pub host_path: PathBuf,
    /// Path in the task.
    pub container_path: PathBuf,
    /// Any of `r`, `w`, `m`.
    pub permissions: String,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn place_of_a_path_is_below_the_root_and_has_one_spelling() {
        for (path, place) in [
            ("data", "/data"),
            ("/a/../b", "/b"),
            ("./data/", "/data"),
            ("../../etc", "/etc"),
            ("/a/./b//c/..", "/a/b"),
            (":colon", "/:colon"),
            ("C:/x", "/C:/x"),
            ("/..", "/"),
            ("", "/"),
        ] {
            assert_eq!(rooted(Path::new(path)), Path::new(place), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn place_of_a_place_is_itself(text in "[a-z./]{0,24}") {
            let place = rooted(Path::new(&text));
            prop_assert!(place.is_absolute());
            prop_assert_eq!(rooted(&place), place);
        }
    }
}
