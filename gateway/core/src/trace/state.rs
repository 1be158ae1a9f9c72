//! Additions to a trace's context by the systems on the way: the list of W3C's `tracestate`.

use std::collections::BTreeSet;
use std::sync::Arc;

/// The longest list that is handed on, in bytes. A longer one is left out, which the rules allow.
const MAX: usize = 512;

/// The largest number of members of a list.
const MEMBERS: usize = 32;

/// A valid `tracestate`. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceState(Arc<str>);

impl TraceState {
    /// The list, if it is valid, not empty and not too long.
    #[must_use]
    pub fn parse(list: &str) -> Option<Self> {
        if list.len() > MAX {
            return None;
        }
        let mut keys = BTreeSet::new();
        let members = list
            .split(',')
            .map(|member| member.trim_matches([' ', '\t']));
        for member in members.filter(|member| !member.is_empty()) {
            let (key, value) = member.split_once('=')?;
            if !is_key(key) || !is_value(value) || !keys.insert(key) {
                return None;
            }
        }
        (1..=MEMBERS)
            .contains(&keys.len())
            .then(|| Self(Arc::from(list.trim_matches([' ', '\t']))))
    }

    /// The list as it was received.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// `name` or `tenant@system`.
fn is_key(key: &str) -> bool {
    match key.split_once('@') {
        None => is_part(key, 256),
        Some((tenant, system)) => is_part(tenant, 241) && is_part(system, 14),
    }
}

fn is_part(part: &str, max: usize) -> bool {
    let begins =
        part.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
    let fits = |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'*' | b'/');
    begins && part.len() <= max && part.bytes().all(fits)
}

fn is_value(value: &str) -> bool {
    let fits = |byte| matches!(byte, b' '..=b'~') && !matches!(byte, b',' | b'=');
    (1..=256).contains(&value.len()) && value.bytes().all(fits)
}
