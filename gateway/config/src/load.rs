//! Reads the layers of the configuration, merges them and reports errors in them.

use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use switchyard_node_files::{list, read_text};
use switchyard_operator_api::Overridden;

use self::explain::{explain, ignorable, show_actual};
use self::layers::{Layer, LayerSource, Layers};
use super::change::Effective;
use super::document::{Document, Location};
use super::error::ConfigError;
use super::renamed::{RENAMED, RenamedKey};
use super::sections::{Config, DOCUMENTED, VERSION};
use super::tree::{get, leaves, path_of};
use super::validate;

mod explain;
mod layers;

/// The file that is read if none is given; it may be missing.
pub const DEFAULT_FILE: &str = "/etc/switchyard/config.toml";

/// The largest file, in bytes: the documented configuration has a few tens of KiB.
const FILE_MAX: u64 = 1 << 20;

/// The most entries of the directory with drop-ins.
const ENTRIES_MAX: usize = 1000;

/// Maximum number of unknown keys and values that a start ignores: with more, the files are those of another program.
const IGNORED_MAX: usize = 100;

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
    /// Keys of older versions, and values that are valid but probably not intended, each with its position.
    pub warnings: Vec<String>,
    /// Unknown keys and values without effect, each with its position.
    pub ignored: Vec<String>,
}

/// A file of the configuration.
#[derive(Debug)]
pub(super) struct ReadFile {
    /// Its content, which states the version.
    pub(super) document: Document,
    values: Dict,
}

/// The merged configuration.
struct Merged {
    config: Config,
    values: toml::Table,
    ignored: Vec<String>,
}

/// Treatment of keys and values that this version does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unknown {
    /// Each is an error.
    Refuse,
    /// They have no effect, save those of security.
    Ignore,
}

/// Reads and merges all sources, and checks the result: each unknown key and value is an error.
///
/// # Errors
/// The first error, with its position.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigError> {
    load_with(sources, Unknown::Refuse, RENAMED)
}

/// Does the same for a process that starts: unknown keys and values are ignored, save those of security, so that
/// files for another version do not stop a node.
///
/// # Errors
/// The first error, with its position.
pub fn load_for_start(sources: &Sources) -> Result<Loaded, ConfigError> {
    load_with(sources, Unknown::Ignore, RENAMED)
}

fn load_with(
    sources: &Sources,
    unknown: Unknown,
    renamed: &[RenamedKey],
) -> Result<Loaded, ConfigError> {
    let mut layers = vec![Layer::new(parse_values(DOCUMENTED), LayerSource::Defaults)];
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
    let mut warnings: Vec<String> = layers
        .iter_mut()
        .flat_map(|layer| layer.modernize(renamed))
        .collect();
    let mut layers = Layers(layers);
    let Merged {
        config,
        values,
        ignored,
    } = merge(&mut layers, unknown)?;
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
            network_defaults: None,
        },
        files,
        overridden,
        warnings,
        ignored,
    })
}

/// Merges the layers. What is unknown and may be ignored is taken out of them until nothing else is.
fn merge(layers: &mut Layers, unknown: Unknown) -> Result<Merged, ConfigError> {
    let mut found: Vec<(Vec<String>, ConfigError)> = Vec::new();
    loop {
        let figment = layers.merged();
        let error = match figment.extract::<Config>() {
            Ok(config) => {
                let values: toml::Table =
                    figment.extract().map_err(|error| explain(layers, error))?;
                let ignored = found
                    .iter()
                    .map(|(path, error)| ignored_text(layers, &values, path, error))
                    .collect();
                return Ok(Merged {
                    config,
                    values,
                    ignored,
                });
            }
            Err(error) => error,
        };
        let path = ignorable(&error).filter(|_| unknown == Unknown::Ignore);
        let error = explain(layers, error);
        match path {
            Some(path) if found.len() < IGNORED_MAX && layers.take(&path) => {
                found.push((path, error));
            }
            Some(_) | None => return Err(error),
        }
    }
}

/// The text about a key or value that is ignored, with the value in force instead.
fn ignored_text(
    layers: &Layers,
    values: &toml::Table,
    path: &[String],
    error: &ConfigError,
) -> String {
    match get(values, path) {
        Some(value) => {
            let origin = layers.origin_of(path);
            format!("{error} (ignored; in force is {value}: {origin})")
        }
        None => format!("{error} (ignored)"),
    }
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
    let read = match read_file(path) {
        Err(ConfigError::Read { source, .. })
            if may_be_missing && source.kind() == std::io::ErrorKind::NotFound =>
        {
            return Ok(None);
        }
        read => read?,
    };
    let ReadFile { document, values } = read;
    let path = path.to_owned();
    Ok(Some(Layer::new(
        values,
        LayerSource::File { path, document },
    )))
}

/// Reads a file of the configuration.
///
/// # Errors
/// It cannot be read, is no TOML, or does not state the version that this build reads.
pub(super) fn read_file(path: &Path) -> Result<ReadFile, ConfigError> {
    let text = read_text(path, FILE_MAX).map_err(|error| ConfigError::Read {
        path: path.to_owned(),
        source: error.into(),
    })?;
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
    Ok(ReadFile { document, values })
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
    let values = nest(&path, value);
    let source = LayerSource::Env {
        name: name.to_owned(),
        path,
    };
    Some((name.to_owned(), Layer::new(values, source)))
}

fn flag_layer(flag: &Flag) -> Layer {
    let path = path_of(&flag.key);
    let values = nest(&path, &flag.value);
    let flag = flag.flag.clone();
    Layer::new(values, LayerSource::Flag { flag, path })
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

fn show(value: &Value) -> String {
    value
        .to_i128()
        .map(|number| number.to_string())
        .unwrap_or_else(|| show_actual(&value.to_actual()))
}

#[cfg(test)]
mod tests;
