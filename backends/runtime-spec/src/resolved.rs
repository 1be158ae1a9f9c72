//! The mounts of a task with their sources found. The spec of the task and its record are made from them.

use std::path::PathBuf;

use switchyard_core::spec::Mount;

/// The beginning of the names that mounts of CDI devices have in the staging directory.
pub const DEVICE_MOUNT: &str = "cdi-";

/// A mount that a task requests, and where its source is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedMount {
    /// As requested.
    pub requested: Mount,
    /// Its source.
    pub source: ResolvedSource,
    /// If it is a named volume: the volume's path below the directory of all volumes.
    pub volume: Option<String>,
}

/// Location of the source of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedSource {
    /// The path at which the runtime finds it; empty for a tmpfs.
    pub path: PathBuf,
    /// The mount that is made there before the runtime creates the container.
    pub staging: Staging,
}

/// A mount in the staging directory of a task, so that the runtime finds the source of a mount there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Staging {
    /// Nothing: the runtime uses a path of the host as it is, or the mount is a tmpfs.
    Nothing,
    /// A path of the host, with its ids mapped into the sandbox's user namespace.
    IdMapped {
        /// Its name in the staging directory.
        name: String,
        /// The path on the host.
        path: PathBuf,
    },
    /// A path below a directory that tasks can write to, opened when the task is started.
    Beneath {
        /// Its name in the staging directory.
        name: String,
        /// The directory that tasks can write to.
        root: PathBuf,
        /// The path below it.
        path: PathBuf,
        /// True if mounts that the task makes there appear on the host as well.
        shared: bool,
    },
    /// An NFS export, mounted when the task is started.
    Nfs {
        /// Its name in the staging directory.
        name: String,
        /// The export.
        export: String,
        /// The server, by name or address.
        server: String,
        /// Options of the file system.
        options: Vec<String>,
    },
    /// The files of an image.
    Image {
        /// Its name in the staging directory.
        name: String,
        /// The id of the image.
        id: String,
        /// The snapshot of its top layer; `None` for an image without layers.
        top: Option<String>,
    },
}

/// A directory of a task for a volume that its image declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageVolume {
    /// Absolute path inside.
    pub destination: PathBuf,
    /// The directory.
    pub source: ResolvedSource,
}

impl ResolvedSource {
    /// A path that the runtime uses as it is.
    #[must_use]
    pub const fn unstaged(path: PathBuf) -> Self {
        Self {
            path,
            staging: Staging::Nothing,
        }
    }

    /// The path on the host of which the runtime sees the files. Those of an image or a network file system have none but
    /// the place where they are staged.
    #[must_use]
    pub fn host_path(&self) -> PathBuf {
        match &self.staging {
            Staging::Nothing | Staging::Image { .. } | Staging::Nfs { .. } => self.path.clone(),
            Staging::IdMapped { path, .. } => path.clone(),
            Staging::Beneath { root, path, .. } => root.join(path),
        }
    }
}
