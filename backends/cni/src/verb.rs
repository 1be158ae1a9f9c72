//! The commands that plugins carry out.

use std::fmt;

/// The variable in the environment of GC, and of the programs that it runs, that has the directory of whoever runs it. It has
/// no attachment that says whose it is.
pub const GC_OF: &str = "SWITCHYARD_GC";

/// A command of the CNI specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attach.
    Add,
    /// Check that the attachment is unchanged.
    Check,
    /// Detach.
    Del,
    /// Say whether ADD can succeed. Of no attachment.
    Status,
    /// Remove what is left of attachments other than those that are named. Of no attachment.
    Gc,
}

impl Verb {
    /// The value of CNI_COMMAND.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Check => "CHECK",
            Self::Del => "DEL",
            Self::Status => "STATUS",
            Self::Gc => "GC",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
