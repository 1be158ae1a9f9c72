//! What can be wrong with a configuration.

use std::io;
use std::path::PathBuf;

use super::document::Location;

/// Why a configuration cannot be used. Every message says where the fault is and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file that was asked for, or a drop-in, cannot be read.
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
        /// Where.
        location: Location,
        /// What the parser says.
        message: String,
    },
    /// A file does not say which form it has.
    #[error("{}: the top key \"version\" is missing: add `version = 1` as the first line", .0.display())]
    NoVersion(PathBuf),
    /// A file has a form of another time.
    #[error("{location}: version {found} is not read by this build: it reads version 1")]
    Version {
        /// Where.
        location: Location,
        /// What the file says.
        found: String,
    },
    /// A key that nobody knows.
    #[error("{location}: unknown key \"{key}\"{}: {hint}", place(section))]
    UnknownKey {
        /// Where.
        location: Location,
        /// The key.
        key: String,
        /// The section it stands in, dotted; empty for the top.
        section: String,
        /// What was meant, or what would be known.
        hint: String,
    },
    /// A value of the wrong type, or a word that is none of those allowed.
    #[error("{location}: {key}: expected {expected}, found {found}")]
    WrongType {
        /// Where.
        location: Location,
        /// The key, dotted.
        key: String,
        /// What would be right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A value of the right type that cannot be used.
    #[error("{location}: {key}: {why}")]
    Invalid {
        /// Where.
        location: Location,
        /// The key, dotted.
        key: String,
        /// What is wrong with it, and what would be right.
        why: String,
    },
}

fn place(section: &str) -> String {
    if section.is_empty() { " at the top level".into() } else { format!(" in [{section}]") }
}
