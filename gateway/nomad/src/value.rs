//! Configurations in the agents' encoding: MessagePack, accessed by key, with the path of the key in every
//! error.
//!
//! A nil or missing value is not set; unknown keys are ignored, and the order of keys has no meaning. Numbers
//! may be integers, floats, or decimal texts; texts may also be bytes. An error describes the problem, but
//! never contains a value, which may be secret.

use std::collections::BTreeMap;
use std::time::Duration;

use rmpv::Value;
use switchyard_core::{Error, Result};

use crate::duration;

mod validate;

/// The decoder counts each level twice, and the content of the innermost one.
const DECODER_DEPTH: usize = 2 * validate::MAX_DEPTH + 4;

/// The longest configuration that is decoded, in bytes: the decoded form takes many times as much memory.
const MAX_BYTES: usize = 4 << 20;

/// The content of a configuration, or of a block in it.
#[derive(Default)]
pub(crate) struct Block {
    path: String,
    entries: BTreeMap<String, Value>,
}

impl Block {
    /// Decodes a configuration; no bytes are an empty one.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not exactly one MessagePack map, or too long.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.is_empty() {
            return Ok(Self::default());
        }
        if bytes.len() > MAX_BYTES {
            let why = format!("it has {} bytes, and may have {MAX_BYTES}", bytes.len());
            return Err(Error::invalid("config", why));
        }
        validate::check(bytes)
            .map_err(|why| Error::invalid("config", format!("it is not MessagePack: {why}")))?;
        let mut rest = bytes;
        let value =
            rmpv::decode::read_value_with_max_depth(&mut rest, DECODER_DEPTH).map_err(|error| {
                Error::invalid("config", "it is not MessagePack").with_source(error)
            })?;
        if value == Value::Nil {
            Ok(Self::default())
        } else {
            Self::of(String::new(), value)
        }
    }

    fn of(path: String, value: Value) -> Result<Self> {
        let named = if path.is_empty() { "config" } else { &path };
        let Value::Map(pairs) = value else {
            return Err(unlike(named, "a block", &value));
        };
        let mut entries = BTreeMap::new();
        for (key, value) in pairs {
            let key = text(named, key)?;
            entries.insert(key, value);
        }
        Ok(Self { path, entries })
    }

    /// The path of this block; empty for the whole configuration.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The path of a key, for errors.
    pub(crate) fn at(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Removes and returns the value of a key.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.entries
            .remove(key)
            .filter(|value| *value != Value::Nil)
    }

    /// Returns whether a key has a value.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.entries
            .get(key)
            .is_some_and(|value| *value != Value::Nil)
    }

    /// A text; empty if it is not set.
    pub(crate) fn text(&mut self, key: &str) -> Result<String> {
        self.take(key)
            .map(|value| text(&self.at(key), value))
            .transpose()
            .map(Option::unwrap_or_default)
    }

    /// A flag.
    pub(crate) fn flag(&mut self, key: &str) -> Result<Option<bool>> {
        let value = self.take(key);
        let flag = |value: Value| {
            value
                .as_bool()
                .ok_or_else(|| unlike(&self.at(key), "true or false", &value))
        };
        value.map(flag).transpose()
    }

    /// An integer.
    pub(crate) fn number(&mut self, key: &str) -> Result<Option<i64>> {
        self.take(key)
            .map(|value| number(&self.at(key), value))
            .transpose()
    }

    /// A non-negative integer.
    pub(crate) fn count(&mut self, key: &str) -> Result<Option<u64>> {
        let number = self.number(key)?;
        number
            .map(|number| {
                u64::try_from(number)
                    .map_err(|_| Error::invalid(self.at(key), format!("{number} is negative")))
            })
            .transpose()
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, key: &str) -> Result<Vec<String>> {
        let path = self.at(key);
        let list = self.list(key)?.into_iter().enumerate();
        list.map(|(index, value)| text(&format!("{path}[{index}]"), value))
            .collect()
    }

    /// Pairs of texts: a map, or several maps of which later ones take precedence.
    pub(crate) fn pairs(&mut self, key: &str) -> Result<BTreeMap<String, String>> {
        let path = self.at(key);
        let maps = match self.take(key) {
            None => Vec::new(),
            Some(Value::Array(maps)) => maps,
            Some(map) => vec![map],
        };
        let mut pairs = BTreeMap::new();
        for map in maps.into_iter().filter(|map| *map != Value::Nil) {
            let block = Self::of(path.clone(), map)?;
            for (name, value) in block.entries {
                // A key with a nil value has an empty one.
                let value = if value == Value::Nil {
                    "".into()
                } else {
                    value
                };
                let value = text(&format!("{path}.{name}"), value)?;
                pairs.insert(name, value);
            }
        }
        Ok(pairs)
    }

    /// A block; empty if it is not set.
    pub(crate) fn block(&mut self, key: &str) -> Result<Self> {
        let path = self.at(key);
        match self.take(key) {
            None => Ok(Self {
                path,
                entries: BTreeMap::new(),
            }),
            Some(Value::Array(mut blocks)) if blocks.len() <= 1 => match blocks.pop() {
                None | Some(Value::Nil) => Ok(Self {
                    path,
                    entries: BTreeMap::new(),
                }),
                Some(block) => Self::of(path, block),
            },
            Some(block) => Self::of(path, block),
        }
    }

    /// A list of blocks.
    pub(crate) fn blocks(&mut self, key: &str) -> Result<Vec<Self>> {
        let path = self.at(key);
        let list = self.list(key)?.into_iter().enumerate();
        list.map(|(index, value)| Self::of(format!("{path}[{index}]"), value))
            .collect()
    }

    /// A duration in Go's format: `1h30m`.
    pub(crate) fn duration(&mut self, key: &str) -> Result<Option<Duration>> {
        let text = self.text(key)?;
        let wrong = || {
            Error::invalid(
                self.at(key),
                format!("{text:?} is no length of time such as \"5m\" or \"1m30s\""),
            )
        };
        if text.is_empty() {
            Ok(None)
        } else {
            duration::parse(&text).ok_or_else(wrong).map(Some)
        }
    }

    fn list(&mut self, key: &str) -> Result<Vec<Value>> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => Ok(list),
            Some(value) => Err(unlike(&self.at(key), "a list", &value)),
        }
    }
}

fn text(path: &str, value: Value) -> Result<String> {
    let text = match value {
        Value::String(text) => text.into_str(),
        Value::Binary(bytes) => String::from_utf8(bytes).ok(),
        Value::Nil
        | Value::Boolean(_)
        | Value::Integer(_)
        | Value::F32(_)
        | Value::F64(_)
        | Value::Array(_)
        | Value::Map(_)
        | Value::Ext(..) => return Err(unlike(path, "a text", &value)),
    };
    let text = text.ok_or_else(|| Error::invalid(path, "it is not UTF-8"))?;
    if text.contains('\0') {
        Err(Error::invalid(path, "it contains a NUL byte"))
    } else {
        Ok(text)
    }
}

fn number(path: &str, value: Value) -> Result<i64> {
    let whole = match &value {
        Value::Integer(number) => number.as_i64(),
        Value::F32(number) => whole(f64::from(*number)),
        Value::F64(number) => whole(*number),
        // A number that is not exactly representable as a float is encoded as a decimal text.
        Value::String(_) | Value::Binary(_) => {
            let text = text(path, value)?;
            text.parse()
                .ok()
                .or_else(|| text.parse().ok().and_then(whole))
        }
        Value::Nil | Value::Boolean(_) | Value::Array(_) | Value::Map(_) | Value::Ext(..) => {
            return Err(unlike(path, "a number", &value));
        }
    };
    whole.ok_or_else(|| Error::invalid(path, "it is not a whole number of 64 bits"))
}

/// A float as an integer, if it is one.
fn whole(number: f64) -> Option<i64> {
    // The text of a float that is not an integer has decimals, and that of one that is not finite has
    // letters.
    format!("{number}").parse().ok()
}

/// The error for a value of a wrong type.
fn unlike(path: &str, wanted: &str, value: &Value) -> Error {
    let kind = match value {
        Value::Nil => "nothing",
        Value::Boolean(_) => "true or false",
        Value::Integer(_) | Value::F32(_) | Value::F64(_) => "a number",
        Value::String(_) | Value::Binary(_) => "a text",
        Value::Array(_) => "a list",
        Value::Map(_) => "a block",
        Value::Ext(..) => "an extension of MessagePack",
    };
    Error::invalid(path, format!("{wanted} is wanted here, not {kind}"))
}

#[cfg(test)]
mod tests;
