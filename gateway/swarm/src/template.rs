//! The templates that agents of a swarm expand: a subset of Go's `text/template`.
//!
//! ```text
//!  text ─► lexer ─► parser ─► Template ─► evaluate (Facts, Files) ─► bytes
//!                   bounded: size, depth      bounded: steps, bytes made
//! ```
//!
//! Supported are fields of `.` and `$`, `if` with `else` and `else if`, pipelines, parentheses, strings, `true`
//! and `false`, comments, trim markers, and the functions `join`, `index`, `eq`, `ne`, `and`, `or`, `not`; in
//! secrets and configs also `secret`, `config` and `env`. Everything else is refused by name. A key that a map
//! does not have is an error, as with `missingkey=error`.

use std::fmt;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod any_bytes;
mod evaluate;
mod facts;
mod lexer;
mod parser;
#[cfg(test)]
mod tests;

pub(crate) use evaluate::Expansion;
pub(crate) use facts::{Facts, FileContent, Files, NoFiles};

/// Maximum size of a template in bytes: managers accept no larger config.
const TEMPLATE_MAX: usize = 1 << 20;

/// Maximum depth of nested parentheses and `if`.
const DEPTH_MAX: usize = 32;

/// Maximum number of parts of a template: texts, actions, and their operands.
const PARTS_MAX: usize = 1 << 14;

/// Maximum size of the expansion of a field of a service: the kernel accepts no longer argument or variable.
pub(crate) const FIELD_MAX: usize = 128 << 10;

/// Maximum size of the expansion of a secret or config.
pub(crate) const FILE_MAX: usize = 4 << 20;

/// The reason why a template cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) struct TemplateError {
    /// The byte of the template at which it was found.
    at: usize,
    what: &'static str,
    /// The word of the template that it is about.
    name: Option<String>,
}

impl TemplateError {
    const fn new(at: usize, what: &'static str) -> Self {
        Self {
            at,
            what,
            name: None,
        }
    }

    fn about(at: usize, what: &'static str, name: &[u8]) -> Self {
        /// Names are for people, who need no more of them.
        const NAME_MAX: usize = 64;
        let name = String::from_utf8_lossy(&name[..name.len().min(NAME_MAX)]).into_owned();
        Self {
            at,
            what,
            name: Some(name),
        }
    }

    /// The same without the word of the template, which may be a part of a secret.
    pub(crate) fn without_name(self) -> Self {
        Self { name: None, ..self }
    }
}

impl fmt::Display for TemplateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, what, name } = self;
        match name {
            Some(name) => write!(f, "template, byte {at}: {what}: {name:?}"),
            None => write!(f, "template, byte {at}: {what}"),
        }
    }
}

/// Expands a template; the result has at most `limit` bytes.
///
/// # Errors
/// The template is malformed, uses something that is not supported, names something that does not exist, or
/// exceeds a bound.
pub(crate) fn expand(
    template: &[u8],
    facts: &Facts,
    files: &dyn Files,
    limit: usize,
) -> Result<Expansion, TemplateError> {
    let parsed = parser::parse(template)?;
    evaluate::evaluate(&parsed, facts, files, limit)
}

/// Expands a field of a service.
///
/// # Errors
/// Those of [`expand`].
pub(crate) fn expand_field(template: &str, facts: &Facts) -> Result<String, TemplateError> {
    // Most fields have no template.
    if !template.contains("{{") {
        return Ok(template.to_owned());
    }
    let made = expand(template.as_bytes(), facts, &NoFiles, FIELD_MAX)?;
    String::from_utf8(made.bytes).map_err(|_| TemplateError::new(0, "the result is no text"))
}
