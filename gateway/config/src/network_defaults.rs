//! The defaults of the node's networks: what `network.bridge.driver`, `network.isolation` and `network.direct_routing` are where no source
//! of the configuration sets them (ADR 117).
//!
//! The first start that finds no record decides, by what versions with other defaults have left in the state directory, and
//! writes a record there, which all later starts and commands read. The record never changes: a node stays what it is until its operator sets
//! the keys, which win over it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use switchyard_containerd::config::NetworkDefaults;
use switchyard_node_files::{ReadError, read_text};
use toml::Value;

use super::change::Effective;
use super::document::Location;
use super::error::ConfigError;
use super::tree::{get, path_of, set};
use super::validate;

#[cfg(test)]
mod tests;

/// The record, in the state directory.
const FILE: &str = "network-defaults.toml";

/// The longest record that is read, in bytes.
const FILE_MAX: u64 = 4096;

/// The key from which the other two follow if it says that plugins attach sandboxes.
const DRIVER: &str = "network.bridge.driver";

/// The version of the record. Fields may be added to it, and are ignored.
const VERSION: u32 = 1;

/// Entries of the state directory of a daemon of a version with other defaults, once it had recovered or had an object: the name that its
/// objects have in containerd, journals of attachments, files of sandboxes and tasks, address ranges, leases, membership of a swarm. The
/// list is complete for ever, since there will be no more such versions. Named volumes are not on it: a purge of any version leaves them.
const TRACES: [&str; 7] = [
    "instance",
    "sandboxes",
    "tasks",
    "network",
    "ranges.json",
    "ledger",
    "swarm",
];

/// The defaults that are found in a state directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FoundDefaults {
    /// They are on record.
    Recorded(NetworkDefaults),
    /// There is no record. The first start decides so, if it finds the same.
    Undecided(NetworkDefaults),
}

/// Reason why the defaults of the node's networks are not known.
#[derive(Debug, thiserror::Error)]
pub enum DefaultsError {
    /// The directory, or the record in it, cannot be read.
    #[error(
        "cannot look at {}, by which it is known what network.bridge.driver, network.isolation and network.direct_routing are where they are not set: mend that, or set these keys",
        path.display()
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The record is there, and does not say it.
    #[error(
        "{} is damaged or of a later version, so that it is not known what network.bridge.driver, network.isolation and network.direct_routing are where they are not set: set these keys, or put the file back from a backup",
        path.display()
    )]
    Damaged {
        /// The record.
        path: PathBuf,
        /// The defect.
        #[source]
        source: RecordError,
    },
}

/// Defect of a record.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// It is no text of a record's length.
    #[error(transparent)]
    File(#[from] ReadError),
    /// It has no such fields.
    #[error("{0}")]
    Fields(String),
    /// It has another version.
    #[error("its version is {found}, and this build reads version 1")]
    Version {
        /// Its version.
        found: u32,
    },
}

/// Reason why a configuration cannot be in force on this node.
#[derive(Debug, thiserror::Error)]
pub enum SettleError {
    /// The defaults of the node's networks make a difference, and are not known.
    #[error(transparent)]
    Defaults(#[from] DefaultsError),
    /// It is invalid on a node with these defaults.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A record, as it is read. A reader of a later one must not take it for one of its own version.
#[derive(Debug, Deserialize)]
struct VersionOnly {
    version: u32,
}

/// The fields of version 1.
#[derive(Debug, Deserialize)]
struct DefaultsRecord {
    driver: NetworkDefaults,
}

/// The path of the record in a state directory.
#[must_use]
pub fn network_defaults_file(state: &Path) -> PathBuf {
    state.join(FILE)
}

/// The text of a record. Pure.
#[must_use]
pub fn encode_network_defaults(defaults: NetworkDefaults) -> String {
    let driver = defaults.driver().name();
    format!("version = {VERSION}\ndriver = \"{driver}\"\n")
}

/// Reads the defaults of the node with this state directory, or finds what its first start would decide. Changes nothing. Blocks.
///
/// # Errors
/// [`DefaultsError`]: neither a damaged record nor a directory that cannot be read is taken for a missing one.
pub fn find_network_defaults(state: &Path) -> Result<FoundDefaults, DefaultsError> {
    let path = network_defaults_file(state);
    let text = match read_text(&path, FILE_MAX) {
        Ok(text) => Some(text),
        Err(error) if error.is_not_found() => None,
        Err(ReadError::Io(source)) => return Err(DefaultsError::Read { path, source }),
        Err(error) => {
            let source = error.into();
            return Err(DefaultsError::Damaged { path, source });
        }
    };
    let has_traces = text.is_none() && has_traces(state)?;
    decide(text.as_deref(), has_traces).map_err(|source| DefaultsError::Damaged { path, source })
}

/// The one decision: by the record, or without one by whether an earlier daemon has worked in this directory. Pure.
fn decide(record: Option<&str>, has_traces: bool) -> Result<FoundDefaults, RecordError> {
    match record {
        Some(text) => parse(text).map(FoundDefaults::Recorded),
        None if has_traces => Ok(FoundDefaults::Undecided(NetworkDefaults::Cni)),
        None => Ok(FoundDefaults::Undecided(NetworkDefaults::Native)),
    }
}

fn parse(text: &str) -> Result<NetworkDefaults, RecordError> {
    let fields = |error: toml::de::Error| RecordError::Fields(error.message().to_owned());
    let VersionOnly { version: found } = toml::from_str(text).map_err(fields)?;
    if found != VERSION {
        return Err(RecordError::Version { found });
    }
    let DefaultsRecord { driver } = toml::from_str(text).map_err(fields)?;
    Ok(driver)
}

/// Returns whether an earlier daemon has worked in this state directory.
fn has_traces(state: &Path) -> Result<bool, DefaultsError> {
    for name in TRACES {
        let path = state.join(name);
        match fs::symlink_metadata(&path) {
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(DefaultsError::Read { path, source }),
        }
    }
    Ok(false)
}

// === impl FoundDefaults ===

impl FoundDefaults {
    /// The defaults, whether they are on record or not.
    #[must_use]
    pub const fn defaults(self) -> NetworkDefaults {
        match self {
            Self::Recorded(defaults) | Self::Undecided(defaults) => defaults,
        }
    }
}

// === impl DefaultsError ===

impl DefaultsError {
    /// Returns whether another user might read it.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Read { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Self::Damaged { .. } => false,
        }
    }
}

// === impl Effective ===

impl Effective {
    /// Sets the keys that no source sets to what they are on the node with the configured state directory, as its next start does. Blocks.
    ///
    /// # Errors
    /// Those of [`Effective::settle_as`].
    pub fn settle_here(&mut self) -> Result<(), SettleError> {
        self.settle_as(find_network_defaults(&self.config.paths.state))
    }

    /// Does the same on a node with these defaults. They need not be known if all that they decide is set.
    ///
    /// # Errors
    /// [`SettleError`]; the configuration is as it was then, and not settled.
    pub fn settle_as(
        &mut self,
        found: Result<FoundDefaults, DefaultsError>,
    ) -> Result<(), SettleError> {
        let defaults = match found {
            Ok(found) => found.defaults(),
            Err(_) if !self.config.network.depends_on_defaults() => NetworkDefaults::Cni,
            Err(error) => return Err(error.into()),
        };
        self.settle(defaults)?;
        Ok(())
    }

    fn settle(&mut self, defaults: NetworkDefaults) -> Result<(), ConfigError> {
        let mut settled = self.clone();
        settled.network_defaults = Some(defaults);
        let network = &mut settled.config.network;
        network.settle(defaults);
        let values: [(&str, Value); 3] = [
            (DRIVER, network.bridge.driver().name().into()),
            ("network.isolation", network.isolation().name().into()),
            ("network.direct_routing", network.direct_routing().into()),
        ];
        let driver = path_of(DRIVER);
        // With plugins the other two are the same on every node.
        let follows = get(&settled.values, &driver).is_some() && !network.bridge.is_native();
        let origin = if follows {
            settled.origin_of(&driver)
        } else {
            Location::Node(network_defaults_file(&settled.config.paths.state))
        };
        for (key, value) in values {
            let path = path_of(key);
            if get(&settled.values, &path).is_none() {
                set(&mut settled.values, &path, Some(&value));
                settled.origins.insert(path, origin.clone());
            }
        }
        validate::check(&settled.config).map_err(|(key, why)| ConfigError::Invalid {
            location: settled.origin_of(&path_of(&key)),
            key,
            why,
        })?;
        *self = settled;
        Ok(())
    }

    /// A configuration that the sources hold now, with the defaults of this one, which is in force.
    pub(super) fn settled_alike(&self, new: &Self) -> Result<Self, ConfigError> {
        let mut new = new.clone();
        if let Some(defaults) = self.network_defaults {
            new.settle(defaults)?;
        }
        Ok(new)
    }
}
