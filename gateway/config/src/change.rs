//! Reload of the configuration: the one in force, compared with the one that the sources hold now.
//!
//! Keys with the effect [`Effect::Reload`] take their new value. All others keep the value that the daemon
//! was started with, and are reported until it is restarted.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use switchyard_containerd::config::NetworkDefaults;
use switchyard_operator_api::{Change, Effect};
use toml::{Table, Value};

use super::document::Location;
use super::effect::{effect_of, is_runtime};
use super::error::ConfigError;
use super::sections::Config;
use super::tree::{leaves, path_of, set};
use super::validate;

#[cfg(test)]
mod tests;

/// The longest value that a report shows, in characters.
const SHOWN_MAX: usize = 60;

/// A configuration that is in force, and the source of each value.
#[derive(Debug, Clone)]
pub struct Effective {
    /// The configuration.
    pub config: Config,
    /// The same as TOML.
    pub(super) values: Table,
    /// The sources of the values that are no tables.
    pub(super) origins: BTreeMap<Vec<String>, Location>,
    /// The defaults of the node's networks, once they are settled.
    pub(super) network_defaults: Option<NetworkDefaults>,
}

/// The result of a comparison.
#[derive(Debug)]
pub struct Reload {
    /// The configuration with the changes that a reload applies.
    pub effective: Effective,
    /// The changes, in the order of their keys.
    pub changes: Vec<Change>,
}

impl Effective {
    /// Computes the result of a reload of this configuration, if the sources hold `new` now.
    ///
    /// # Errors
    /// The changes that need no restart are invalid without the others; the message says so. Or `new` is invalid on this node.
    pub fn reload(&self, new: &Self) -> Result<Reload, ConfigError> {
        let new = &self.settled_alike(new)?;
        let before = leaves(&self.values, is_runtime);
        let after = leaves(&new.values, is_runtime);
        let paths: BTreeSet<&Vec<String>> = before.keys().chain(after.keys()).collect();
        let mut effective = self.clone();
        let mut changes = Vec::new();
        for path in paths {
            let old = before.get(path).copied();
            let now = after.get(path).copied();
            if old == now {
                continue;
            }
            let effect = effect_of(path, old.is_none(), now.is_none());
            if effect == Effect::Reload {
                effective.take(path, now, new);
            }
            changes.push(Change {
                key: path.join("."),
                effect,
                location: new.origin_of(path).to_string(),
                before: old.and_then(shown),
                after: now.and_then(shown),
            });
        }
        effective.config = effective.parse(&changes)?;
        Ok(Reload { effective, changes })
    }

    /// The source of a value: of a table that of its first value, within an array that of the array.
    pub(super) fn origin_of(&self, path: &[String]) -> Location {
        let below = self
            .origins
            .range(path.to_vec()..)
            .next()
            .filter(|(found, _)| found.starts_with(path));
        let origin = below.map(|(_, origin)| origin).or_else(|| {
            let above = (1..path.len()).rev();
            above
                .into_iter()
                .find_map(|length| self.origins.get(&path[..length]))
        });
        origin.cloned().unwrap_or(Location::Default)
    }

    /// Takes over one value with its source.
    fn take(&mut self, path: &[String], value: Option<&Value>, new: &Self) {
        self.origins.retain(|known, _| !known.starts_with(path));
        let origins = new
            .origins
            .iter()
            .filter(|(known, _)| known.starts_with(path));
        self.origins
            .extend(origins.map(|(known, origin)| (known.clone(), origin.clone())));
        set(&mut self.values, path, value);
    }

    /// The configuration of the values, checked: each value is valid by itself, but a combination of old and
    /// new ones may not be.
    fn parse(&self, changes: &[Change]) -> Result<Config, ConfigError> {
        let fail = |key: String, why: String| {
            let waiting: Vec<&str> = changes
                .iter()
                .filter(|change| change.effect != Effect::Reload)
                .map(|change| change.key.as_str())
                .collect();
            ConfigError::Invalid {
                location: self.origin_of(&path_of(&key)),
                key,
                why: format!(
                    "{why}: this is not so after a restart of the daemon, with which other changes take effect ({})",
                    waiting.join(", ")
                ),
            }
        };
        let config: Config = Config::deserialize(self.values.clone())
            .map_err(|error| fail("configuration".to_owned(), error.to_string()))?;
        validate::check(&config).map_err(|(key, why)| fail(key, why))?;
        Ok(config)
    }
}

/// A value as a report shows it.
fn shown(value: &Value) -> Option<String> {
    if value.is_array() || value.is_table() {
        return None;
    }
    let text = value.to_string();
    (text.chars().count() <= SHOWN_MAX).then_some(text)
}
