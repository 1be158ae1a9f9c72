//! The errors of this crate.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use switchyard_linux::report;
use thiserror::Error;

use crate::verb::Verb;

/// The error code for a call that may succeed if it is retried later (CNI specification, "Error").
const CODE_TRY_AGAIN: u64 = 11;
/// The error code for a container that the plugin does not know, so that no cleanup is needed.
const CODE_UNKNOWN_CONTAINER: u64 = 3;
/// The error code for an environment that the plugin does not take, as a command that it does not have.
const CODE_ENVIRONMENT: u64 = 4;
/// Maximum number of unusable files that an error names.
const SKIPPED_SHOWN: usize = 10;

/// Reason why a network could not be loaded, attached, checked or detached.
#[derive(Debug, Error)]
pub enum Error {
    /// No usable configuration: the node's network is not ready.
    #[error("no usable network configuration in {}{}; install a CNI network there", dir.display(), list_skipped(skipped))]
    NotConfigured {
        /// The directory.
        dir: PathBuf,
        /// Existing files that cannot be used, with the reasons.
        skipped: Vec<Skipped>,
    },
    /// The configuration directory cannot be read.
    #[error("cannot read the network configuration directory {}", dir.display())]
    ConfDir {
        /// The directory.
        dir: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The configuration directory has more than is read.
    #[error(
        "the network configurations in {} have more than {max} bytes up to {}: remove those that are none",
        dir.display(),
        path.display()
    )]
    ConfDirSum {
        /// The directory.
        dir: PathBuf,
        /// The file with which it became too much.
        path: PathBuf,
        /// The most that is read, in bytes.
        max: u64,
    },
    /// One configuration is not usable.
    #[error("network configuration {} is not usable", path.display())]
    Conf {
        /// Its file.
        path: PathBuf,
        /// Its fault.
        #[source]
        source: ConfError,
    },
    /// An attachment that cannot be passed to plugins.
    #[error("{what} {value:?} {why}")]
    Attachment {
        /// The part of the attachment.
        what: &'static str,
        /// The value as given.
        value: String,
        /// The fault of the value.
        why: &'static str,
    },
    /// A plugin of the list is not installed.
    #[error(
        "plugin {plugin} of network {network} is not in {}; install it",
        join(dirs)
    )]
    PluginNotFound {
        /// Its `type`.
        plugin: String,
        /// The network that names it.
        network: String,
        /// The directories in which it was looked up.
        dirs: Vec<PathBuf>,
    },
    /// The directories of the plugins cannot be accessed, for example because their file system hangs.
    #[error(
        "cannot look up and start the plugins of network {network} in {}",
        join(dirs)
    )]
    PluginDirs {
        /// The network that names them.
        network: String,
        /// The directories.
        dirs: Vec<PathBuf>,
        /// Reason why there is no answer.
        #[source]
        source: io::Error,
    },
    /// A plugin could not be started, or communication with it failed.
    #[error("cannot run plugin {plugin} for {verb}")]
    Run {
        /// Its `type`.
        plugin: String,
        /// The command it was to carry out.
        verb: Verb,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// A plugin answered with an error of the specification's form.
    #[error(
        "plugin {plugin} refused {verb} with code {code}: {msg}{}",
        details_of(details)
    )]
    Refused {
        /// Its `type`.
        plugin: String,
        /// The command it was to carry out.
        verb: Verb,
        /// The specification's or the plugin's own code.
        code: u64,
        /// The plugin's message.
        msg: String,
        /// The plugin's details; may be empty.
        details: String,
    },
    /// A plugin failed without an error of the specification's form.
    #[error("plugin {plugin} failed on {verb} with {status}: {output}")]
    Failed {
        /// Its `type`.
        plugin: String,
        /// The command it was to carry out.
        verb: Verb,
        /// Its exit status, as text.
        status: String,
        /// The end of its output.
        output: String,
    },
    /// A plugin did not exit in time; it and its children were killed.
    #[error("plugin {plugin} did not finish {verb} within {} s and was killed", after.as_secs_f32())]
    Deadline {
        /// Its `type`.
        plugin: String,
        /// The command it was to carry out.
        verb: Verb,
        /// The time limit.
        after: Duration,
    },
    /// A plugin wrote too much; it and its children were killed, unless it had exited.
    #[error("plugin {plugin} wrote more than {limit} bytes on {verb} and was killed")]
    TooMuchOutput {
        /// Its `type`.
        plugin: String,
        /// The command it was to carry out.
        verb: Verb,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A plugin succeeded, but its output is not a result.
    #[error("plugin {plugin} wrote no usable result")]
    Result {
        /// Its `type`, or the file that the result was stored in.
        plugin: String,
        /// The fault of the result.
        #[source]
        source: ResultError,
    },
    /// An attachment failed after plugins had run.
    #[error("cannot attach container {container_id} to network {network}{}", undo_of(undo.as_deref()))]
    Add {
        /// The container.
        container_id: String,
        /// The network.
        network: String,
        /// Reason of the failure.
        #[source]
        source: Box<Error>,
        /// Reason why it could not be undone; `None` if it was undone completely.
        undo: Option<Box<Error>>,
    },
    /// The rollback of a failed attachment took too long in total.
    #[error("detaching container {container_id} from network {network} took longer than {} s", after.as_secs_f32())]
    UndoDeadline {
        /// The container.
        container_id: String,
        /// The network.
        network: String,
        /// The time limit.
        after: Duration,
    },
    /// The journal file of an attachment cannot be read or written.
    #[error("cannot {doing} the network journal {}", path.display())]
    Journal {
        /// The failed operation, as a verb.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The journal file of an attachment is not as any version of this program writes it, or its network or attachment
    /// cannot be passed to plugins by the rules of this version.
    #[error("network journal {} is damaged; detach the container by hand and remove it, or restart the node", path.display())]
    JournalDamaged {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// The journal file of an attachment does not have the format that this version of the program writes.
    #[error("network journal {} is of another version; detach the container by hand and remove it, or run that version", path.display())]
    JournalContent {
        /// The file.
        path: PathBuf,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// The attachment of a journal file was not made by plugins, and is not undone by them.
    #[error("network journal {} is of the driver {driver:?}, not of plugins; run a version that has this driver", path.display())]
    JournalDriver {
        /// The file.
        path: PathBuf,
        /// The name of the driver.
        driver: String,
    },
    /// A journal file exists already, so an earlier attachment has not been undone.
    #[error("network journal {} exists already; detach that attachment first", path.display())]
    JournalExists {
        /// The file.
        path: PathBuf,
    },
}

/// A configuration file that exists but cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    /// The reason, on one line.
    pub reason: String,
}

/// A fault of a network configuration.
#[derive(Debug, Error)]
pub enum ConfError {
    /// The file cannot be read.
    #[error("it cannot be read")]
    Read(#[source] io::Error),
    /// With this file, more would be read of the directory than may be.
    #[error("the files of its directory have more than {max} bytes")]
    Sum {
        /// The most that is read, in bytes.
        max: u64,
    },
    /// The file is not JSON.
    #[error("it is not valid JSON")]
    Json(#[source] serde_json::Error),
    /// A key is missing or has the wrong type.
    #[error("key {key} is missing or is not {expected}")]
    Key {
        /// The key.
        key: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// The version is not supported by this crate.
    #[error("cniVersion {0:?} is not supported; use 0.3.0, 0.3.1, 0.4.0, 1.0.0 or 1.1.0")]
    Version(String),
    /// The name has characters that the specification does not allow.
    #[error(
        "network name {0:?} may only have letters, digits, dots, dashes and underscores, and starts with a letter or digit"
    )]
    Name(String),
    /// The type cannot be the file name of a plugin.
    #[error("plugin type {0:?} is not a file name")]
    PluginType(String),
    /// The list has no plugins.
    #[error("it has no plugins")]
    NoPlugins,
    /// A file for a single plugin contains a list.
    #[error("it is a list of plugins; name the file .conflist")]
    ListInSingle,
}

/// A fault of a result.
#[derive(Debug, Error)]
pub enum ResultError {
    /// The plugin wrote nothing.
    #[error("it is empty")]
    Empty,
    /// It is not a JSON object, or its parts have the wrong types.
    #[error("it is not a CNI result: it starts with {start:?}")]
    Json {
        /// The beginning of the output.
        start: String,
        /// The error of the parser.
        #[source]
        source: serde_json::Error,
    },
    /// It has a version that this crate does not support.
    #[error("its cniVersion {0:?} is not one of 0.3.0 to 1.1.0")]
    Version(String),
    /// An address is not an IP address with a prefix length.
    #[error("{0:?} is not an address with a prefix length")]
    Address(String),
    /// A gateway or next hop is not an IP address.
    #[error("{0:?} is not an IP address")]
    Gateway(String),
    /// An address names an interface that is not in the list.
    #[error("an address names interface {index}, but there are only {count}")]
    InterfaceIndex {
        /// The index.
        index: usize,
        /// The number of interfaces.
        count: usize,
    },
}

impl Error {
    /// The error with all its causes, on one line.
    #[must_use]
    pub fn report(&self) -> String {
        report(self)
    }

    /// Returns whether a plugin reported that the same call may succeed if it is retried later (code 11).
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.code() == Some(CODE_TRY_AGAIN)
    }

    /// Returns whether it failed because a plugin, or the rollback, was not done within its time limit.
    #[must_use]
    pub fn is_late(&self) -> bool {
        match self {
            Self::Deadline { .. } | Self::UndoDeadline { .. } => true,
            Self::Add { source, undo, .. } => {
                source.is_late() || undo.as_ref().is_some_and(|undo| undo.is_late())
            }
            Self::NotConfigured { .. }
            | Self::ConfDir { .. }
            | Self::ConfDirSum { .. }
            | Self::Conf { .. }
            | Self::Attachment { .. }
            | Self::PluginNotFound { .. }
            | Self::PluginDirs { .. }
            | Self::Run { .. }
            | Self::Refused { .. }
            | Self::Failed { .. }
            | Self::TooMuchOutput { .. }
            | Self::Result { .. }
            | Self::Journal { .. }
            | Self::JournalDamaged { .. }
            | Self::JournalContent { .. }
            | Self::JournalDriver { .. }
            | Self::JournalExists { .. } => false,
        }
    }

    /// Returns whether the node's network is not set up yet (`NetworkReady=false`), rather than broken for
    /// one container.
    #[must_use]
    pub fn is_not_configured(&self) -> bool {
        matches!(self, Self::NotConfigured { .. })
    }

    /// Returns whether a directory is unusable at the moment: that of the configurations is unreadable or too full, or
    /// those of the plugins do not answer.
    #[must_use]
    pub const fn is_unusable_directory(&self) -> bool {
        matches!(
            self,
            Self::ConfDir { .. } | Self::ConfDirSum { .. } | Self::PluginDirs { .. }
        )
    }

    /// Returns whether parts of a failed attachment may remain, so that `del` has to be called again.
    #[must_use]
    pub fn left_something(&self) -> bool {
        matches!(self, Self::Add { undo: Some(_), .. })
    }

    /// Returns whether the content of a journal file is lost: it was read, and is damaged. A disk that cannot
    /// read it may do so later.
    #[must_use]
    pub const fn is_journal_lost(&self) -> bool {
        matches!(self, Self::JournalDamaged { .. })
    }

    /// Returns whether a plugin reported that there is nothing to detach.
    fn is_unknown_container(&self) -> bool {
        self.code() == Some(CODE_UNKNOWN_CONTAINER)
    }

    /// Returns whether this is no failure of a command: DEL of a container that the plugin does not know, and STATUS or GC
    /// of a plugin that does not have it.
    #[must_use]
    pub fn is_no_failure_of(&self, verb: Verb) -> bool {
        match verb {
            Verb::Del => self.is_unknown_container(),
            Verb::Status | Verb::Gc => self.code() == Some(CODE_ENVIRONMENT),
            Verb::Add | Verb::Check => false,
        }
    }

    /// The error code with which a plugin refused a command, also if that made an attachment fail. `None` if the reason
    /// is another one.
    fn code(&self) -> Option<u64> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Add { source, .. } => source.code(),
            Self::NotConfigured { .. }
            | Self::ConfDir { .. }
            | Self::ConfDirSum { .. }
            | Self::Conf { .. }
            | Self::Attachment { .. }
            | Self::PluginNotFound { .. }
            | Self::PluginDirs { .. }
            | Self::Run { .. }
            | Self::Failed { .. }
            | Self::Deadline { .. }
            | Self::TooMuchOutput { .. }
            | Self::Result { .. }
            | Self::UndoDeadline { .. }
            | Self::Journal { .. }
            | Self::JournalContent { .. }
            | Self::JournalDriver { .. }
            | Self::JournalDamaged { .. }
            | Self::JournalExists { .. } => None,
        }
    }
}

fn list_skipped(skipped: &[Skipped]) -> String {
    if skipped.is_empty() {
        return String::new();
    }
    let mut reasons: Vec<_> = skipped
        .iter()
        .take(SKIPPED_SHOWN)
        .map(|s| format!("{}: {}", s.path.display(), s.reason))
        .collect();
    if let Some(more @ 1..) = skipped.len().checked_sub(SKIPPED_SHOWN) {
        reasons.push(format!("and {more} more"));
    }
    format!(" ({})", reasons.join("; "))
}

fn join(dirs: &[PathBuf]) -> String {
    let dirs: Vec<_> = dirs.iter().map(|dir| dir.display().to_string()).collect();
    dirs.join(" or ")
}

fn details_of(details: &str) -> String {
    if details.is_empty() {
        String::new()
    } else {
        format!(" ({details})")
    }
}

fn undo_of(undo: Option<&Error>) -> String {
    undo.map(|error| format!(", and undoing it failed: {}", report(error)))
        .unwrap_or_default()
}
