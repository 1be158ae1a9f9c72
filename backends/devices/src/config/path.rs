//! `paths`: each entry is a path, a table with a path and its options, or a list of those that form one
//! device.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{self, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use switchyard_core::{Error, Result};

use super::check::{is_absolute, is_permissions};
use super::{check_pattern, not_absolute};

/// The largest `limit`: how many devices may use the same match.
const LIMIT_MAX: u16 = 1000;

/// An entry of `paths`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// Each match is a device.
    Single(PathMatch),
    /// The first matches of all of these form a device, the second ones another, and so on.
    Together(Vec<PathMatch>),
}

/// Device nodes by their paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathMatch {
    /// The path, with `*`, `?` and `[...]` as wildcards. A path without wildcards is listed as unhealthy
    /// while it does not exist.
    pub path: String,
    /// The path in the container; if it ends with a slash, the directory that contains the node. Empty for
    /// the same path.
    pub container_path: String,
    /// The access of a task to the node; empty for the group's.
    pub permissions: String,
    /// True if a missing match is left out, instead of making the device unhealthy.
    pub optional: bool,
    /// Maximum number of devices of a list of paths with the same match.
    pub limit: u16,
}

/// A [`PathMatch`] written as a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    path: String,
    #[serde(default)]
    container_path: String,
    #[serde(default)]
    permissions: String,
    #[serde(default)]
    optional: bool,
    #[serde(default = "once")]
    limit: u16,
}

fn once() -> u16 {
    1
}

// === impl Entry ===

impl Entry {
    /// The paths that form one device.
    pub(crate) fn members(&self) -> &[PathMatch] {
        match self {
            Self::Single(one) => std::slice::from_ref(one),
            Self::Together(all) => all,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let members = self.members();
        if members.is_empty() {
            return Err(Error::invalid("paths", "a list has no path"));
        }
        if members.len() > 1 && members.iter().all(|member| member.optional) {
            return Err(Error::invalid(
                "paths",
                format!("all of {} are optional", members[0].path),
            ));
        }
        if members.len() == 1 && members[0].limit != 1 {
            let why = format!(
                "{} has a limit, but is in no list: `shares` shares it",
                members[0].path
            );
            return Err(Error::invalid("paths", why));
        }
        members.iter().try_for_each(PathMatch::check)
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EntryVisitor)
    }
}

struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = Entry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path, a table with a path, or an array of these")
    }

    fn visit_str<E: de::Error>(self, path: &str) -> Result<Entry, E> {
        Ok(Entry::Single(path.into()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(map)).map(|table| Entry::Single(table.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Entry, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Entry::Together)
    }
}

impl From<&str> for Entry {
    fn from(path: &str) -> Self {
        Self::Single(path.into())
    }
}

// === impl PathMatch ===

impl PathMatch {
    /// Returns whether the path has wildcards.
    pub(crate) fn is_pattern(&self) -> bool {
        self.path.contains(['*', '?', '['])
    }

    fn check(&self) -> Result<()> {
        let Self {
            path,
            container_path,
            permissions,
            optional: _,
            limit,
        } = self;
        check_pattern(path)?;
        if !container_path.is_empty() && !is_absolute(std::path::Path::new(container_path)) {
            return Err(Error::invalid("paths", not_absolute(container_path)));
        }
        if !permissions.is_empty() && !is_permissions(permissions) {
            return Err(Error::invalid(
                "paths",
                format!("permissions {permissions:?} are none of r, w and m"),
            ));
        }
        if !(1..=LIMIT_MAX).contains(limit) {
            return Err(Error::invalid(
                "paths",
                format!("limit {limit} is not within 1 to {LIMIT_MAX}"),
            ));
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for PathMatch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PathVisitor)
    }
}

struct PathVisitor;

impl<'de> Visitor<'de> for PathVisitor {
    type Value = PathMatch;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path or a table with a path")
    }

    fn visit_str<E: de::Error>(self, path: &str) -> Result<PathMatch, E> {
        Ok(path.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<PathMatch, A::Error> {
        Table::deserialize(MapAccessDeserializer::new(map)).map(Into::into)
    }
}

impl From<&str> for PathMatch {
    fn from(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            container_path: String::new(),
            permissions: String::new(),
            optional: false,
            limit: 1,
        }
    }
}

impl From<Table> for PathMatch {
    fn from(table: Table) -> Self {
        let Table {
            path,
            container_path,
            permissions,
            optional,
            limit,
        } = table;
        Self {
            path,
            container_path,
            permissions,
            optional,
            limit,
        }
    }
}
