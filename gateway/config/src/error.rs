//! Errors of a configuration.

use std::io;
use std::path::PathBuf;

use super::document::Location;

/// The reason why a configuration is invalid. Every message has the position of the error and the expected
/// value.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The given file, or a drop-in, cannot be read.
    #[error("cannot read configuration {}", path.display())]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A file is not TOML.
    #[error("{location}: {message}")]
    Syntax {
        /// The position.
        location: Location,
        /// The parser's message.
        message: String,
    },
    /// A file does not state its format version.
    #[error("{}: the top key \"version\" is missing: add `version = 1` as the first line", .0.display())]
    NoVersion(PathBuf),
    /// A file has a format version that this build does not read.
    #[error("{location}: version {found} is not read by this build: it reads version 1")]
    Version {
        /// The position.
        location: Location,
        /// The version in the file.
        found: String,
    },
    /// An unknown key.
    #[error("{location}: unknown key \"{key}\"{}: {hint}", place(section))]
    UnknownKey {
        /// The position.
        location: Location,
        /// The key.
        key: String,
        /// Its section, dotted; empty for the top level.
        section: String,
        /// The probable key, or the known keys.
        hint: String,
    },
    /// A value of the wrong type, or a word that is not among those allowed.
    #[error("{location}: {key}: expected {expected}, found {found}")]
    WrongType {
        /// The position.
        location: Location,
        /// The key, dotted.
        key: String,
        /// The expected type or words.
        expected: String,
        /// The actual value.
        found: String,
    },
    /// A value of the right type that is invalid.
    #[error("{location}: {key}: {why}")]
    Invalid {
        /// The position.
        location: Location,
        /// The key, dotted.
        key: String,
        /// The defect, and the valid values.
        why: String,
    },
}

fn place(section: &str) -> String {
    if section.is_empty() {
        " at the top level".into()
    } else {
        format!(" in [{section}]")
    }
}
