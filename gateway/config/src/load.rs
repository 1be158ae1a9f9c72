//! Reads the layers of the configuration, merges them and reports errors in them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::error::{Actual, Kind};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use switchyard_node_files::{list, read_text};
use switchyard_operator_api::Overridden;

use super::change::Effective;
use super::document::{Document, Location};
use super::error::ConfigError;
use super::nearest::nearest;
use super::removed::{RemovedKey, take_removed};
use super::sections::{Config, DOCUMENTED, VERSION};
use super::tree::{leaves, path_of};
use super::validate;

/// The file that is read if none is given; it may be missing.
pub const DEFAULT_FILE: &str = "/etc/switchyard/config.toml";

/// The largest file, in bytes: the documented configuration has a few tens of KiB.
const FILE_MAX: u64 = 1 << 20;

/// The most entries of the directory with drop-ins.
const ENTRIES_MAX: usize = 1000;

/// The prefix of environment variables that set keys; their names also contain `__`.
const ENV_PREFIX: &str = "SWITCHYARD_";

/// The sources of the configuration.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file; it must exist. `None` is [`DEFAULT_FILE`], which may be missing.
    pub file: Option<PathBuf>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The flags that set keys.
    pub flags: Vec<Flag>,
}

/// A command line flag that sets a key.
#[derive(Debug, Clone)]
pub struct Flag {
    /// The flag, for messages.
    pub flag: String,
    /// The dotted key.
    pub key: String,
    /// The value, in TOML syntax or as a bare word.
    pub value: String,
}

/// A configuration as the sources hold it.
#[derive(Debug)]
pub struct Loaded {
    /// The sources that were read; of the environment only the variables that set keys.
    pub sources: Sources,
    /// The configuration, and the source of each value.
    pub effective: Effective,
    /// The files that were read, in order.
    pub files: Vec<PathBuf>,
    /// The values of files that have no effect.
    pub overridden: Vec<Overridden>,
    /// Keys that have no effect any more, and values that are valid but probably not intended, each with its
    /// position.
    pub warnings: Vec<String>,
}

/// The layers, the lowest first.
#[derive(Debug)]
struct Layers(Vec<Layer>);

#[derive(Debug)]
struct Layer {
    values: Dict,
    source: LayerSource,
}

#[derive(Debug)]
enum LayerSource {
    Defaults,
    File { path: PathBuf, document: Document },
    Env { name: String, path: Vec<String> },
    Flag { flag: String, path: Vec<String> },
}

/// Reads and merges all sources, and checks the result.
///
/// # Errors
/// The first error, with its position.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    let mut layers = vec![Layer {
        values: parse_values(DOCUMENTED),
        source: LayerSource::Defaults,
    }];
    let mut files = Vec::new();
    for (number, path) in files_of(sources)?.into_iter().enumerate() {
        let may_be_missing = number == 0 && sources.file.is_none();
        if let Some(layer) = read_layer(&path, may_be_missing)? {
            layers.push(layer);
            files.push(path);
        }
    }
    let mut env: Vec<_> = sources
        .env
        .iter()
        .filter_map(|(name, value)| env_layer(name, value))
        .collect();
    // The environment has no defined order; sorting makes errors reproducible.
    env.sort_by(|a, b| a.0.cmp(&b.0));
    layers.extend(env.into_iter().map(|(_, layer)| layer));
    layers.extend(sources.flags.iter().map(flag_layer));
    let mut warnings: Vec<String> = layers.iter_mut().flat_map(Layer::take_removed).collect();
    let layers = Layers(layers);

    let figment = layers
        .0
        .iter()
        .fold(Figment::new(), |figment, layer| figment.merge(layer));
    let config: Config = figment.extract().map_err(|error| layers.explain(error))?;
    let values: toml::Table = figment.extract().map_err(|error| layers.explain(error))?;
    validate::check(&config).map_err(|(key, why)| ConfigError::Invalid {
        location: layers.origin_of(&path_of(&key)),
        key,
        why,
    })?;
    for (key, why) in validate::warnings(&config) {
        warnings.push(format!(
            "{}: {key}: {why}",
            layers.origin_of(&path_of(&key))
        ));
    }
    let origins = leaves(&values, |_| false)
        .into_keys()
        .map(|path| {
            let origin = layers.origin_of(&path);
            (path, origin)
        })
        .collect();
    let overridden = layers.overridden();
    let env = sources
        .env
        .iter()
        .filter(|(name, _)| env_key(name).is_some())
        .cloned()
        .collect();
    let sources = Sources {
        env,
        ..sources.clone()
    };
    Ok(Loaded {
        sources,
        effective: Effective {
            config,
            values,
            origins,
        },
        files,
        overridden,
        warnings,
    })
}

/// The file and its drop-ins, in the order in which they are read.
fn files_of(sources: &Sources) -> Result<Vec<PathBuf>, ConfigError> {
    let main = sources
        .file
        .clone()
        .unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    let dir = main.parent().unwrap_or(Path::new("")).join("config.d");
    let is_drop_in = |path: &PathBuf| {
        let hidden = path
            .file_name()
            .is_none_or(|name| name.to_string_lossy().starts_with('.'));
        path.extension().is_some_and(|ext| ext == "toml") && !hidden
    };
    let mut drop_ins = match list(&dir, ENTRIES_MAX) {
        Ok(paths) => paths,
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => {
            return Err(ConfigError::Read {
                path: dir,
                source: error.into(),
            });
        }
    };
    drop_ins.retain(is_drop_in);
    Ok(std::iter::once(main).chain(drop_ins).collect())
}

fn read_layer(path: &Path, may_be_missing: bool) -> Result<Option<Layer>, ConfigError> {
    let text = match read_text(path, FILE_MAX) {
        Ok(text) => text,
        Err(error) if may_be_missing && error.is_not_found() => return Ok(None),
        Err(error) => {
            return Err(ConfigError::Read {
                path: path.to_owned(),
                source: error.into(),
            });
        }
    };
    let at = |line| Location::File {
        path: path.to_owned(),
        line,
    };
    let document = Document::parse(&text).map_err(|(line, message)| ConfigError::Syntax {
        location: at(line),
        message,
    })?;
    let values = parse_values(&text);
    match values.get("version") {
        None => return Err(ConfigError::NoVersion(path.to_owned())),
        Some(version) if version.to_i128() != Some(i128::from(VERSION)) => {
            let line = document.line_of(&["version".to_owned()]).unwrap_or(1);
            return Err(ConfigError::Version {
                location: at(line),
                found: show(version),
            });
        }
        Some(_) => {}
    }
    Ok(Some(Layer {
        values,
        source: LayerSource::File {
            path: path.to_owned(),
            document,
        },
    }))
}

fn parse_values(text: &str) -> Dict {
    toml::from_str(text).expect("the text has been parsed as TOML before")
}

/// The key that an environment variable sets, in its spelling.
fn env_key(name: &str) -> Option<&str> {
    name.strip_prefix(ENV_PREFIX)
        .filter(|key| key.contains("__"))
}

fn env_layer(name: &str, value: &str) -> Option<(String, Layer)> {
    let key = env_key(name)?;
    let path: Vec<String> = key.split("__").map(str::to_lowercase).collect();
    let layer = Layer {
        values: nest(&path, value),
        source: LayerSource::Env {
            name: name.to_owned(),
            path: path.clone(),
        },
    };
    Some((name.to_owned(), layer))
}

fn flag_layer(flag: &Flag) -> Layer {
    let path = path_of(&flag.key);
    Layer {
        values: nest(&path, &flag.value),
        source: LayerSource::Flag {
            flag: flag.flag.clone(),
            path,
        },
    }
}

/// A table with one value at this path. The text is parsed as TOML, or else taken as a string.
fn nest(path: &[String], text: &str) -> Dict {
    let value: Value = match format!("value = {text}").parse::<toml::Table>() {
        Ok(table) if table.len() == 1 => {
            Value::serialize(&table["value"]).expect("TOML values are figment values")
        }
        Ok(_) | Err(_) => Value::from(text),
    };
    let (first, rest) = path.split_first().expect("a path has at least one step");
    let inner = rest.iter().rev().fold(value, |value, step| {
        Value::from(Dict::from([(step.clone(), value)]))
    });
    Dict::from([(first.clone(), inner)])
}

impl Provider for &Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named("Switchyard configuration")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

// === impl Layers ===

impl Layers {
    /// The source of the value at this path: the highest layer that sets it.
    fn origin_of(&self, path: &[String]) -> Location {
        self.0
            .iter()
            .rev()
            .find_map(|layer| layer.locate(path))
            .unwrap_or(Location::Default)
    }

    /// The values of files that a variable or a flag overrides with another value, in the order of their keys.
    fn overridden(&self) -> Vec<Overridden> {
        let mut found = BTreeMap::new();
        for layer in &self.0 {
            let (LayerSource::Env { path, .. } | LayerSource::Flag { path, .. }) = &layer.source
            else {
                continue;
            };
            let Some((location, value)) = self.in_files(path) else {
                continue;
            };
            if layer.value(path) == Some(value) {
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

    fn explain(&self, error: figment::Error) -> ConfigError {
        let figment::Error { path, kind, .. } = error;
        let key = path.join(".");
        let wrong = |expected: String, found: String| ConfigError::WrongType {
            location: self.origin_of(&path),
            key: key.clone(),
            expected,
            found,
        };
        match kind {
            Kind::UnknownField(field, known) => {
                // figment's path leads either to the unknown key itself or to its section.
                let section = path
                    .strip_suffix(std::slice::from_ref(&field))
                    .unwrap_or(&path);
                let full = [section, std::slice::from_ref(&field)].concat();
                let hint = match nearest(&field, known.iter().copied()) {
                    Some(meant) => format!("did you mean \"{meant}\"?"),
                    None => format!("known keys are {}", known.join(", ")),
                };
                ConfigError::UnknownKey {
                    location: self.origin_of(&full),
                    section: section.join("."),
                    key: field,
                    hint,
                }
            }
            Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
                wrong(article(&expected), show_actual(&found))
            }
            Kind::InvalidLength(found, expected) => wrong(expected, format!("{found} items")),
            Kind::UnknownVariant(found, known) => {
                let words: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
                wrong(format!("one of {}", words.join(", ")), format!("{found:?}"))
            }
            kind @ (Kind::Message(_)
            | Kind::MissingField(_)
            | Kind::DuplicateField(_)
            | Kind::ISizeOutOfRange(_)
            | Kind::USizeOutOfRange(_)
            | Kind::Unsupported(_)
            | Kind::UnsupportedKey(..)) => ConfigError::Invalid {
                location: self.origin_of(&path),
                key,
                why: kind.to_string(),
            },
        }
    }
}

impl Layer {
    /// Takes out the values of removed keys. Returns a warning about each, with its position.
    fn take_removed(&mut self) -> Vec<String> {
        let removed = take_removed(&mut self.values);
        let warning = |removed: &RemovedKey| {
            let location = self.locate(&removed.path()).unwrap_or(Location::Default);
            format!("{location}: {}", removed.warning())
        };
        removed.into_iter().map(warning).collect()
    }

    fn value(&self, path: &[String]) -> Option<&Value> {
        let (first, rest) = path.split_first()?;
        rest.iter()
            .try_fold(self.values.get(first)?, |value, step| {
                value.as_dict()?.get(step)
            })
    }

    fn locate(&self, path: &[String]) -> Option<Location> {
        match &self.source {
            LayerSource::Defaults => None,
            LayerSource::File {
                path: file,
                document,
            } => document.line_of(path).map(|line| Location::File {
                path: file.clone(),
                line,
            }),
            LayerSource::Env { name, path: set } => {
                set.starts_with(path).then(|| Location::Env(name.clone()))
            }
            LayerSource::Flag { flag, path: set } => {
                set.starts_with(path).then(|| Location::Flag(flag.clone()))
            }
        }
    }
}

// === words ===

/// TOML's names for types, instead of serde's, which are Rust's.
fn article(expected: &str) -> String {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "an integer that is not negative".into(),
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "an integer".into(),
        "path string" => "a string (a path)".into(),
        "a boolean" => "true or false".into(),
        "a sequence" => "an array".into(),
        "a map" => "a table".into(),
        other if other.starts_with("struct ") => "a table".into(),
        other if other.starts_with("enum ") => "a string".into(),
        other => other.into(),
    }
}

fn show_actual(actual: &Actual) -> String {
    match actual {
        Actual::Bool(value) => format!("the boolean {value}"),
        Actual::Unsigned(value) => format!("the integer {value}"),
        Actual::Signed(value) => format!("the integer {value}"),
        Actual::Float(value) => format!("the number {value}"),
        Actual::Char(value) => format!("the string \"{value}\""),
        Actual::Str(value) => format!("the string {value:?}"),
        Actual::Seq => "an array".into(),
        Actual::Map => "a table".into(),
        Actual::Bytes(_)
        | Actual::Unit
        | Actual::Option
        | Actual::NewtypeStruct
        | Actual::Enum
        | Actual::UnitVariant
        | Actual::NewtypeVariant
        | Actual::TupleVariant
        | Actual::StructVariant
        | Actual::Other(_) => actual.to_string(),
    }
}

fn show(value: &Value) -> String {
    value
        .to_i128()
        .map(|number| number.to_string())
        .unwrap_or_else(|| show_actual(&value.to_actual()))
}
