//! Parses mounts in text form: `source:destination[:options]` for a volume, `destination[:options]` for a
//! tmpfs.

use switchyard_core::spec::{Propagation, Relabel};
use switchyard_core::{Error, Result};
use switchyard_docker_options::tmpfs::Tmpfs;

/// A `volumes` entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Its path in the configuration.
    pub(crate) field: String,
    /// A path, or with a volume driver a volume name.
    pub(crate) source: String,
    /// Path in the task.
    pub(crate) destination: String,
    /// Read-only.
    pub(crate) readonly: bool,
    /// Mount propagation.
    pub(crate) propagation: Propagation,
    /// The SELinux label that it gets.
    pub(crate) relabel: Relabel,
    /// True if a new volume is initialised with the image's content. Without effect for a path.
    pub(crate) copied: bool,
}

/// A `tmpfs` entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TmpfsEntry {
    /// Its path in the configuration.
    pub(crate) field: String,
    /// Path in the task.
    pub(crate) destination: String,
    /// The file system.
    pub(crate) tmpfs: Tmpfs,
}

// === impl Volume ===

impl Volume {
    /// Parses an entry.
    pub(super) fn parse(field: String, text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let (source, destination, options) = match parts[..] {
            [source, destination] => (source, destination, ""),
            [source, destination, options] => (source, destination, options),
            _ => {
                let why = format!("invalid docker volume {text:?}: not <src>:<destination> format");
                return Err(Error::invalid(field, why));
            }
        };
        if source.is_empty() || destination.is_empty() {
            let why =
                format!("invalid docker volume {text:?}: source and destination cannot be empty");
            return Err(Error::invalid(field, why));
        }
        let mut volume = Self {
            source: source.to_owned(),
            destination: destination.to_owned(),
            readonly: false,
            propagation: Propagation::Private,
            relabel: Relabel::Keep,
            copied: true,
            field,
        };
        for option in options.split(',').filter(|option| !option.is_empty()) {
            match option {
                "ro" => volume.readonly = true,
                // Options that only affect file sharing of other systems.
                "rw" | "cached" | "delegated" | "consistent" => {}
                "nocopy" => volume.copied = false,
                other => match relabel(other) {
                    Some(relabel) => volume.relabel = relabel,
                    None => volume.propagation = propagation(&volume.field, other)?,
                },
            }
        }
        Ok(volume)
    }
}

// === impl TmpfsEntry ===

impl TmpfsEntry {
    /// Parses an entry.
    pub(super) fn parse(field: String, text: &str) -> Result<Self> {
        let (destination, options) = text.split_once(':').unwrap_or((text, ""));
        let mut tmpfs = Tmpfs::default();
        for option in options.split(',').filter(|option| !option.is_empty()) {
            tmpfs.set(option).ok_or_else(|| {
                Error::invalid(
                    &field,
                    format!("{option:?} is no option of a tmpfs that can be set here"),
                )
            })?;
        }
        Ok(Self {
            destination: destination.to_owned(),
            tmpfs,
            field,
        })
    }
}

/// Returns what Docker's options `z`, for several containers, and `Z`, for one, ask for; `None` for any other text.
pub(crate) fn relabel(text: &str) -> Option<Relabel> {
    match text {
        "z" => Some(Relabel::Shared),
        "Z" => Some(Relabel::Private),
        _ => None,
    }
}

/// A propagation in Docker's notation. Mounts below the source are always included.
pub(crate) fn propagation(field: &str, text: &str) -> Result<Propagation> {
    match text {
        "" | "private" | "rprivate" => Ok(Propagation::Private),
        "slave" | "rslave" => Ok(Propagation::HostToTask),
        "shared" | "rshared" => Ok(Propagation::Bidirectional),
        other => Err(Error::invalid(
            field,
            format!("{other:?} is no option of a mount that can be set here"),
        )),
    }
}
