//! The findings of checks: code, severity, observation, and cure.

use serde::{Deserialize, Serialize};

use super::redact::redact;

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// For information.
    Note,
    /// Something works less well than it could, or will fail.
    Warning,
    /// Something fails.
    Error,
}

impl Severity {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// A kind of finding. The code never changes its meaning, so that scripts and alerts can rely on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FindingCode {
    /// The code, such as `SY101`.
    pub code: &'static str,
    /// The severity, unless a check gives another one.
    pub severity: Severity,
    /// The fault, on one line.
    pub title: &'static str,
    /// The consequence of the fault.
    pub consequence: &'static str,
    /// The cure of the fault.
    pub cure: &'static str,
}

impl FindingCode {
    /// A kind of error.
    pub(super) const fn error(
        code: &'static str,
        title: &'static str,
        consequence: &'static str,
        cure: &'static str,
    ) -> Self {
        Self {
            code,
            severity: Severity::Error,
            title,
            consequence,
            cure,
        }
    }

    /// A kind of warning.
    pub(super) const fn warning(
        code: &'static str,
        title: &'static str,
        consequence: &'static str,
        cure: &'static str,
    ) -> Self {
        Self {
            code,
            severity: Severity::Warning,
            title,
            consequence,
            cure,
        }
    }

    /// A kind of note.
    pub(super) const fn note(
        code: &'static str,
        title: &'static str,
        consequence: &'static str,
        cure: &'static str,
    ) -> Self {
        Self {
            code,
            severity: Severity::Note,
            title,
            consequence,
            cure,
        }
    }
}

/// One thing that is wrong or will be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The code.
    pub code: String,
    /// The severity.
    pub severity: Severity,
    /// The fault, on one line.
    pub title: String,
    /// The observation: the object, its path, the value.
    pub found: String,
    /// The consequence of the fault.
    pub consequence: String,
    /// The cure of the fault.
    pub cure: String,
    /// A command that mends it or shows more, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

impl Finding {
    /// A finding of this kind. `found` says what was seen; secrets in it are replaced.
    #[must_use]
    pub fn new(kind: &FindingCode, found: impl AsRef<str>) -> Self {
        Self {
            code: kind.code.to_owned(),
            severity: kind.severity,
            title: kind.title.to_owned(),
            found: redact(found.as_ref()),
            consequence: kind.consequence.to_owned(),
            cure: kind.cure.to_owned(),
            command: None,
        }
    }

    /// The same with a command.
    #[must_use]
    pub fn command(self, command: impl Into<String>) -> Self {
        Self {
            command: Some(command.into()),
            ..self
        }
    }

    /// The same with a command, if there is one.
    #[must_use]
    pub fn command_if(self, command: Option<String>) -> Self {
        Self { command, ..self }
    }

    /// The same with another severity.
    #[must_use]
    pub fn severity(self, severity: Severity) -> Self {
        Self { severity, ..self }
    }
}
