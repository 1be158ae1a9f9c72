//! The bound on the size of an answer, and what of it is withheld.

use std::collections::BTreeMap;

use super::{Disclosure, WithheldValues};

/// Maximum size of the lists of an answer without secrets, in bytes.
const NAMES_BYTES: usize = 1 << 20;

/// The same with secrets: more than the kernel accepts as arguments and environment of a program.
const SECRETS_BYTES: usize = 8 << 20;

/// Size of an entry beside its text, in bytes: it is written as JSON.
const ENTRY_BYTES: usize = 16;

/// Remaining size of an answer.
#[derive(Debug)]
pub(super) struct Budget {
    disclosure: Disclosure,
    bytes: usize,
    left_out: u64,
}

impl Budget {
    pub(super) const fn of(disclosure: Disclosure) -> Self {
        let bytes = match disclosure {
            Disclosure::Names => NAMES_BYTES,
            Disclosure::Secrets => SECRETS_BYTES,
        };
        Self {
            disclosure,
            bytes,
            left_out: 0,
        }
    }

    /// Returns whether the answer has secrets.
    pub(super) const fn shows_secrets(&self) -> bool {
        matches!(self.disclosure, Disclosure::Secrets)
    }

    /// Takes room for an entry with this many bytes of text. `false` if there is not enough: the entry is to
    /// be left out.
    pub(super) const fn admit(&mut self, text: usize) -> bool {
        let bytes = text.saturating_add(ENTRY_BYTES);
        if let Some(rest) = self.bytes.checked_sub(bytes) {
            self.bytes = rest;
            true
        } else {
            self.left_out += 1;
            false
        }
    }

    /// Number of entries that were left out.
    pub(super) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// As many of these pairs as there is room for.
    pub(super) fn pairs(&mut self, pairs: BTreeMap<String, String>) -> BTreeMap<String, String> {
        pairs
            .into_iter()
            .filter(|(name, value)| self.admit(name.len() + value.len()))
            .collect()
    }

    /// As many of these pairs as there is room for, without their values if those may be secret.
    pub(super) fn withheld(&mut self, pairs: &BTreeMap<String, String>) -> WithheldValues {
        pairs
            .iter()
            .filter_map(|(name, value)| self.withhold(name, value))
            .collect()
    }

    /// The pair if there is room for it, without its value if that may be secret.
    pub(super) fn withhold(&mut self, name: &str, value: &str) -> Option<(String, Option<String>)> {
        let shown = self.shows_secrets().then_some(value);
        let fits = self.admit(name.len() + shown.map_or(0, str::len));
        fits.then(|| (name.to_owned(), shown.map(str::to_owned)))
    }
}
