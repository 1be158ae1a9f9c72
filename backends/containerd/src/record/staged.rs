//! Records of what is mounted for the runtime while it creates a container.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use switchyard_core::id::TaskId;
use switchyard_runtime_spec::{DEVICE_MOUNT, ResolvedSource, Staging};

/// Something that is mounted below a task's staging directory for the runtime.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StagedRecord {
    /// A path of the host, mounted with its ids mapped.
    Path {
        /// Its name in the staging directory.
        at: String,
        /// The path on the host.
        source: PathBuf,
    },
    /// A path below a directory that tasks can write in, opened when the task is started.
    Beneath {
        /// Its name in the staging directory.
        at: String,
        /// The directory that tasks can write in.
        root: PathBuf,
        /// The path below it.
        path: PathBuf,
        /// True if mounts that the task makes there appear on the host as well.
        shared: bool,
    },
    /// An image.
    Image {
        /// Its name in the staging directory.
        at: String,
        /// The key of its view snapshot.
        key: String,
        /// The snapshot of which that is a view; none for an image without layers.
        top: Option<String>,
    },
}

/// An NFS export that is mounted below a task's staging directory for the runtime. It is no [`StagedRecord`], so that an
/// earlier version can read the others: it finds no source for this one, and refuses a start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NfsRecord {
    /// Its name in the staging directory.
    pub(crate) at: String,
    /// The export.
    pub(crate) export: String,
    /// The server, by name or address.
    pub(crate) server: String,
    /// Options of the file system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) options: Vec<String>,
}

impl NfsRecord {
    /// The record of the source of a mount; `None` if it is no NFS export.
    pub(crate) fn of(source: &ResolvedSource) -> Option<Self> {
        let Staging::Nfs {
            name,
            export,
            server,
            options,
        } = source.staging.clone()
        else {
            return None;
        };
        Some(Self {
            at: name,
            export,
            server,
            options,
        })
    }
}

impl StagedRecord {
    /// The record of the source of a mount of `task`; `None` if nothing is staged for it.
    pub(crate) fn of(source: &ResolvedSource, task: TaskId) -> Option<Self> {
        match source.staging.clone() {
            // Network file systems have records of their own.
            Staging::Nothing | Staging::Nfs { .. } => None,
            Staging::IdMapped { name, path } => Some(Self::Path {
                at: name,
                source: path,
            }),
            Staging::Beneath {
                name,
                root,
                path,
                shared,
            } => Some(Self::Beneath {
                at: name,
                root,
                path,
                shared,
            }),
            Staging::Image { name, id: _, top } => Some(Self::Image {
                key: format!("{task}-{name}"),
                at: name,
                top,
            }),
        }
    }

    /// Returns whether its source is on a file system of the host, which may hang.
    pub(crate) const fn is_on_host(&self) -> bool {
        match self {
            Self::Path { .. } | Self::Beneath { .. } => true,
            Self::Image { .. } => false,
        }
    }

    /// Returns whether a CDI device asks for it, and not the task itself.
    pub(crate) fn is_of_device(&self) -> bool {
        matches!(self, Self::Path { at, .. } if at.starts_with(DEVICE_MOUNT))
    }

    /// Its name in the staging directory and its path on the host; `None` for an image, whose files have none.
    pub(crate) fn on_host(&self) -> Option<(&str, PathBuf)> {
        match self {
            Self::Path { at, source } => Some((at, source.clone())),
            Self::Beneath { at, root, path, .. } => Some((at, root.join(path))),
            Self::Image { .. } => None,
        }
    }

    /// The view snapshot, if this is an image with layers: its name in the staging directory, its key, and
    /// the snapshot of which it is a view.
    pub(crate) fn view(&self) -> Option<(&str, &str, &str)> {
        match self {
            Self::Image {
                at,
                key,
                top: Some(top),
            } => Some((at, key, top)),
            Self::Image { top: None, .. } | Self::Path { .. } | Self::Beneath { .. } => None,
        }
    }
}

/// The keys of the view snapshots that the labels of a container object keep, of whatever version they are.
pub(crate) fn viewed_keys<'l>(
    labels: &'l HashMap<String, String>,
    snapshotter: &str,
) -> impl Iterator<Item = &'l str> + use<'l> {
    let begin = view_label(snapshotter);
    let views = labels
        .iter()
        .filter(move |(label, _)| label.starts_with(&begin));
    views.map(|(_, key)| key.as_str())
}

/// The beginning of the label of each view.
fn view_label(snapshotter: &str) -> String {
    format!("containerd.io/gc.ref.snapshot.{snapshotter}/volume.")
}

/// The labels of a task's container object that keep containerd from garbage-collecting the view snapshots in
/// `staged`.
pub(crate) fn view_labels(staged: &[StagedRecord], snapshotter: &str) -> HashMap<String, String> {
    let begin = view_label(snapshotter);
    let label = |at: &str| format!("{begin}{at}");
    let views = staged.iter().filter_map(StagedRecord::view);
    views
        .map(|(at, key, _)| (label(at), key.to_owned()))
        .collect()
}
