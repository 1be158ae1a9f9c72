//! The layers of the configuration: what each source sets, where it does, and all of them merged.

use std::collections::BTreeMap;
use std::path::PathBuf;

use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use switchyard_operator_api::Overridden;

use crate::document::{Document, Location};
use crate::removed::{RemovedKey, take, take_removed};
use crate::renamed::RenamedKey;
use crate::tree::path_of;

/// The layers, the lowest first.
#[derive(Debug)]
pub(super) struct Layers(pub(super) Vec<Layer>);

#[derive(Debug)]
pub(super) struct Layer {
    values: Dict,
    source: LayerSource,
    /// The present paths of keys that the source sets under their former ones, and these.
    renamed: Vec<[Vec<String>; 2]>,
}

#[derive(Debug)]
pub(super) enum LayerSource {
    Defaults,
    File { path: PathBuf, document: Document },
    Env { name: String, path: Vec<String> },
    Flag { flag: String, path: Vec<String> },
}

// === impl Layers ===

impl Layers {
    /// All values, those of higher layers instead of those of lower ones.
    pub(super) fn merged(&self) -> Figment {
        self.0
            .iter()
            .fold(Figment::new(), |figment, layer| figment.merge(layer))
    }

    /// Takes the value at this path out of the highest layer that sets it. Returns whether there is one; none is
    /// found within an array.
    pub(super) fn take(&mut self, path: &[String]) -> bool {
        self.0
            .iter_mut()
            .rev()
            .any(|layer| take(&mut layer.values, path).is_some())
    }

    /// The source of the value at this path: the highest layer that sets it.
    pub(super) fn origin_of(&self, path: &[String]) -> Location {
        self.0
            .iter()
            .rev()
            .filter(|layer| layer.value(path).is_some())
            .find_map(|layer| layer.locate(path))
            .unwrap_or(Location::Default)
    }

    /// The values of files that a variable or a flag overrides with another value, in the order of their keys.
    pub(super) fn overridden(&self) -> Vec<Overridden> {
        let mut found = BTreeMap::new();
        for layer in &self.0 {
            let (LayerSource::Env { path, .. } | LayerSource::Flag { path, .. }) = &layer.source
            else {
                continue;
            };
            let Some(own) = layer.value(path) else {
                continue;
            };
            let Some((location, value)) = self.in_files(path) else {
                continue;
            };
            if own == value {
                found.remove(path);
            } else {
                found.insert(
                    path,
                    (location, layer.locate(path).unwrap_or(Location::Default)),
                );
            }
        }
        found
            .into_iter()
            .map(|(path, (location, by))| Overridden {
                key: path.join("."),
                location: location.to_string(),
                by: by.to_string(),
            })
            .collect()
    }

    /// The value that the files alone give a key, and where they set it.
    fn in_files(&self, path: &[String]) -> Option<(Location, &Value)> {
        let files = self
            .0
            .iter()
            .rev()
            .filter(|layer| matches!(layer.source, LayerSource::File { .. }));
        files
            .filter_map(|layer| Some((layer.locate(path)?, layer.value(path)?)))
            .next()
    }
}

// === impl Layer ===

impl Layer {
    pub(super) const fn new(values: Dict, source: LayerSource) -> Self {
        Self {
            values,
            source,
            renamed: Vec::new(),
        }
    }

    /// Gives keys of older versions their present names, and takes out the values of those that nothing reads any
    /// more. Returns a warning about each, with its position.
    pub(super) fn modernize(&mut self, renamed: &[RenamedKey]) -> Vec<String> {
        let mut warnings: Vec<String> = renamed
            .iter()
            .filter_map(|renamed| self.rename(renamed))
            .collect();
        let removed = take_removed(&mut self.values);
        warnings.extend(removed.into_iter().map(|removed: &RemovedKey| {
            let location = self.locate(&removed.path()).unwrap_or(Location::Default);
            format!("{location}: {}", removed.warning())
        }));
        warnings
    }

    /// Gives one key its present name if the layer sets it, and returns the warning about it.
    fn rename(&mut self, renamed: &RenamedKey) -> Option<String> {
        let former = path_of(renamed.key);
        let present = path_of(renamed.to);
        let value = take(&mut self.values, &former)?;
        let location = self.locate(&former).unwrap_or(Location::Default);
        let is_set_beside = self.value(&present).is_some();
        if !is_set_beside {
            put(&mut self.values, &present, value);
            if let LayerSource::Env { path, .. } | LayerSource::Flag { path, .. } = &mut self.source
                && let Some(below) = path.strip_prefix(former.as_slice())
            {
                *path = [present.as_slice(), below].concat();
            }
            self.renamed.push([present, former]);
        }
        Some(format!("{location}: {}", renamed.warning(is_set_beside)))
    }

    fn value(&self, path: &[String]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter()
            .try_fold(self.values.get(first)?, |value, step| match value {
                Value::Dict(_, below) => below.get(step),
                Value::Array(_, items) => items.get(step.parse::<usize>().ok()?),
                Value::String(..)
                | Value::Char(..)
                | Value::Bool(..)
                | Value::Num(..)
                | Value::Empty(..) => None,
            })
    }

    /// The position at which the source sets this path, also under a former name.
    fn locate(&self, path: &[String]) -> Option<Location> {
        self.source.locate(path).or_else(|| {
            self.renamed.iter().find_map(|[present, former]| {
                let below = path.strip_prefix(present.as_slice())?;
                self.source.locate(&[former.as_slice(), below].concat())
            })
        })
    }
}

impl LayerSource {
    fn locate(&self, path: &[String]) -> Option<Location> {
        let is_within = |set: &[String]| set.starts_with(path) || path.starts_with(set);
        match self {
            Self::Defaults => None,
            Self::File {
                path: file,
                document,
            } => document.line_of(path).map(|line| Location::File {
                path: file.clone(),
                line,
            }),
            Self::Env { name, path: set } => is_within(set).then(|| Location::Env(name.clone())),
            Self::Flag { flag, path: set } => is_within(set).then(|| Location::Flag(flag.clone())),
        }
    }
}

/// Sets the value at a path. Where a table is expected and something else found, that is an error of its own later.
fn put(values: &mut Dict, path: &[String], value: Value) {
    let Some((first, rest)) = path.split_first() else {
        return;
    };
    if rest.is_empty() {
        values.insert(first.clone(), value);
        return;
    }
    let below = values
        .entry(first.clone())
        .or_insert_with(|| Value::from(Dict::new()));
    if let Value::Dict(_, below) = below {
        put(below, rest, value);
    }
}

impl Provider for &Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named("Switchyard configuration")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}
