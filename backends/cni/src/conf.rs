//! Finds, reads and checks network configurations (CNI specification, section 1).
//!
//! Whoever installs a network writes these files: they are read within bounds, and what is no regular file is skipped.
//!
//! Longer than 500 lines because finding, reading and checking a configuration share its errors.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use switchyard_linux::report;
use switchyard_node_files::ReadError;

use crate::error::{ConfError, Error, Skipped};
use crate::version::SpecVersion;

use allowance::Allowance;

mod allowance;

/// A file changed as recently as this may change again within the clock tick that its time stamp shows, so it
/// is not answered from the cache.
const SETTLING: Duration = Duration::from_secs(2);
/// The most entries of a configuration directory, and of a directory from which a list loads plugins.
const ENTRIES_MAX: usize = 1000;
/// Maximum length of the reason why a file cannot be used, in bytes: it may quote the file.
const REASON_MAX: usize = 500;

/// The configuration of one plugin, keys in the order of the file.
pub type PluginConf = Map<String, Value>;

/// One network: a chain of plugins.
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// Its name, under which plugins store their own state.
    pub name: String,
    /// The version of the specification that is used with its plugins.
    pub cni_version: SpecVersion,
    /// True if CHECK must not be called.
    pub disable_check: bool,
    /// True if GC must not be called.
    pub disable_gc: bool,
    /// The plugins, in the order of ADD. Each has a `type` that is a plain file name.
    pub plugins: Vec<PluginConf>,
    /// The file it was read from.
    pub source: PathBuf,
    /// That file's content.
    pub raw: Vec<u8>,
}

/// The default network of a node, and the files before it that could not be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The network.
    pub list: Arc<NetworkList>,
    /// Broken files that sort before it; they are reported, because one of them was probably meant.
    pub skipped: Vec<Skipped>,
}

/// A configuration directory, read again when something in it changes.
#[derive(Debug)]
pub struct ConfDir {
    dir: PathBuf,
    settling: Duration,
    cached: Mutex<Option<Cached>>,
}

#[derive(Debug)]
struct Cached {
    stamps: Vec<Stamp>,
    loaded: Loaded,
}

/// The metadata by which a change of a file is noticed.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

// === impl ConfDir ===

impl ConfDir {
    /// A configuration directory; it may not exist yet.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            settling: SETTLING,
            cached: Mutex::new(None),
        }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The default network by the current contents of the directory; a change needs no restart. Blocks on the file
    /// system, and on one that hangs for ever.
    ///
    /// # Errors
    /// Those of [`NetworkList::load`].
    pub fn load(&self) -> Result<Loaded, Error> {
        let stamps = stamps(&self.dir).map_err(|source| dir_error(&self.dir, source))?;
        let settled = stamps
            .as_ref()
            .filter(|stamps| stamps.iter().all(|stamp| stamp.age() > self.settling));
        {
            let cached = self.cached.lock();
            if let Some(cached) = cached
                .as_ref()
                .filter(|cached| settled == Some(&cached.stamps))
            {
                return Ok(cached.loaded.clone());
            }
        }
        // The stamps were taken before this read, so a change in between is noticed at the next call.
        let loaded = NetworkList::load(&self.dir);
        let mut cached = self.cached.lock();
        let known = loaded.as_ref().ok().zip(stamps);
        *cached = known.map(|(loaded, stamps)| Cached {
            stamps,
            loaded: loaded.clone(),
        });
        loaded
    }

    /// The network with this name by the current contents of the directory: the first by the names of the files. `None` if
    /// no usable file has it; broken files are skipped with a warning. Reads the directory each time. Blocks as
    /// [`ConfDir::load`].
    ///
    /// # Errors
    /// [`Error::ConfDir`] if the directory cannot be read, [`Error::ConfDirSum`] if the files before this network's are more
    /// than is read.
    pub fn find(&self, name: &str) -> Result<Option<Arc<NetworkList>>, Error> {
        let mut allowance = Allowance::default();
        for path in NetworkList::files(&self.dir)? {
            match NetworkList::read(&path, &mut allowance) {
                Ok(list) if list.name == name => return Ok(Some(Arc::new(list))),
                Ok(_) => {}
                Err(error) => drop(skip(&self.dir, path, error)?),
            }
        }
        Ok(None)
    }
}

impl Stamp {
    fn of(path: PathBuf) -> Option<Self> {
        let meta = fs::metadata(&path).ok()?;
        Some(Self {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
            path,
        })
    }

    /// The time since its last change, to the second; zero if the clock was set back since.
    fn age(&self) -> Duration {
        let changed = Duration::from_secs(u64::try_from(self.changed.0).unwrap_or(0));
        SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH + changed)
            .unwrap_or_default()
    }
}

/// The stamps of the directory, its files, and the files one level deeper from which a list may load plugins. `None` if
/// these are too many or cannot be listed: a change could not be noticed.
fn stamps(dir: &Path) -> Result<Option<Vec<Stamp>>, ReadError> {
    let mut all = entries(dir)?;
    let mut left = ENTRIES_MAX;
    for subdir in all.clone().into_iter().filter(|entry| entry.is_dir()) {
        let Ok(deeper) = switchyard_node_files::list(&subdir, left) else {
            return Ok(None);
        };
        left -= deeper.len();
        all.extend(deeper);
    }
    all.push(dir.to_owned());
    Ok(Some(all.into_iter().filter_map(Stamp::of).collect()))
}

/// The paths in a directory, sorted; none if it is missing.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, ReadError> {
    match switchyard_node_files::list(dir, ENTRIES_MAX) {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}

fn dir_error(dir: &Path, error: ReadError) -> Error {
    Error::ConfDir {
        dir: dir.to_owned(),
        source: error.into(),
    }
}

/// Skips a file that cannot be used, with a warning.
///
/// # Errors
/// [`Error::ConfDirSum`] if the files up to this one are more than is read: those behind it are not known.
fn skip(dir: &Path, path: PathBuf, error: ConfError) -> Result<Skipped, Error> {
    if let ConfError::Sum { max } = error {
        return Err(Error::ConfDirSum {
            dir: dir.to_owned(),
            path,
            max,
        });
    }
    let mut reason = report(&error);
    reason.truncate(reason.floor_char_boundary(REASON_MAX));
    tracing::warn!(path = %path.display(), reason, "skipping a network configuration");
    Ok(Skipped { path, reason })
}

fn has_extension(path: &Path, wanted: &[&str]) -> bool {
    path.extension()
        .and_then(|found| found.to_str())
        .is_some_and(|found| wanted.contains(&found))
}

// === impl NetworkList ===

impl NetworkList {
    /// Reads the default network of a directory: the first usable file by name among `.conflist`, `.conf` and
    /// `.json`.
    ///
    /// A broken file is skipped with a warning, and named in the result. Blocks as [`ConfDir::load`].
    ///
    /// # Errors
    /// [`Error::NotConfigured`] if the directory is missing or has no usable file, [`Error::ConfDir`] if it
    /// cannot be read, [`Error::ConfDirSum`] if the files before a usable one are more than is read.
    pub fn load(dir: &Path) -> Result<Loaded, Error> {
        let mut skipped = Vec::new();
        let mut allowance = Allowance::default();
        for path in Self::files(dir)? {
            match Self::read(&path, &mut allowance) {
                Ok(list) => {
                    return Ok(Loaded {
                        list: Arc::new(list),
                        skipped,
                    });
                }
                Err(error) => skipped.push(skip(dir, path, error)?),
            }
        }
        Err(Error::NotConfigured {
            dir: dir.to_owned(),
            skipped,
        })
    }

    /// The files of a directory that can have a configuration, sorted; none if it is missing.
    fn files(dir: &Path) -> Result<Vec<PathBuf>, Error> {
        let mut files = entries(dir).map_err(|source| dir_error(dir, source))?;
        files.retain(|path| has_extension(path, &["conflist", "conf", "json"]) && !path.is_dir());
        Ok(files)
    }

    /// Returns whether one of the plugins takes this capability.
    #[must_use]
    pub fn has_capability(&self, name: &str) -> bool {
        let takes = |plugin: &PluginConf| {
            plugin.get("capabilities").and_then(|all| all.get(name)) == Some(&Value::Bool(true))
        };
        self.plugins.iter().any(takes)
    }

    fn read(path: &Path, allowance: &mut Allowance) -> Result<Self, ConfError> {
        let raw = allowance.read(path)?;
        if !has_extension(path, &["conflist"]) {
            return Self::parse_single(path, &raw);
        }
        let (mut list, inlined_only) = Self::parse_head(path, &raw)?;
        if !inlined_only {
            // Since 1.1.0, files of a directory named after the network add plugins to the chain.
            let more = path.with_file_name(&list.name);
            for file in entries(&more).map_err(|error| ConfError::Read(error.into()))? {
                if has_extension(&file, &["conf"]) && !file.is_dir() {
                    list.plugins.push(plugin(object(&allowance.read(&file)?)?)?);
                }
            }
        }
        list.with_plugins()
    }

    /// Reads a list from the contents of a `.conflist` file. `source` is only stored.
    ///
    /// # Errors
    /// [`Error::Conf`].
    pub fn parse(source: &Path, raw: &[u8]) -> Result<Self, Error> {
        Self::parse_head(source, raw)
            .and_then(|(list, _)| list.with_plugins())
            .map_err(|error| Error::Conf {
                path: source.to_owned(),
                source: error,
            })
    }

    /// Reads a list from the contents of a file of any of the three kinds, by its name. Plugins that a list
    /// loads from its directory are not read.
    ///
    /// # Errors
    /// [`Error::Conf`].
    pub fn parse_file(source: &Path, raw: &[u8]) -> Result<Self, Error> {
        if has_extension(source, &["conflist"]) {
            return Self::parse(source, raw);
        }
        Self::parse_single(source, raw).map_err(|error| Error::Conf {
            path: source.to_owned(),
            source: error,
        })
    }

    /// A list, possibly without plugins, and whether it loads only its own plugins, none from its directory.
    fn parse_head(source: &Path, raw: &[u8]) -> Result<(Self, bool), ConfError> {
        let map = object(raw)?;
        let inlined_only = flag(&map, "loadOnlyInlinedPlugins")?;
        let plugins = match map.get("plugins") {
            None if inlined_only => return Err(ConfError::NoPlugins),
            None => Vec::new(),
            Some(Value::Array(plugins)) if plugins.is_empty() => return Err(ConfError::NoPlugins),
            Some(Value::Array(plugins)) => plugins
                .iter()
                .map(|value| match value {
                    Value::Object(map) => plugin(map.clone()),
                    Value::Null
                    | Value::Bool(_)
                    | Value::Number(_)
                    | Value::String(_)
                    | Value::Array(_) => Err(ConfError::Key {
                        key: "plugins",
                        expected: "a list of objects",
                    }),
                })
                .collect::<Result<_, _>>()?,
            Some(_) => {
                return Err(ConfError::Key {
                    key: "plugins",
                    expected: "a list of objects",
                });
            }
        };
        Ok((Self::with_head(source, raw, &map, plugins)?, inlined_only))
    }

    /// Reads a `.conf` or `.json` file with a single plugin, which becomes a list of one.
    pub(crate) fn parse_single(source: &Path, raw: &[u8]) -> Result<Self, ConfError> {
        let map = object(raw)?;
        if !map.contains_key("type") && map.contains_key("plugins") {
            return Err(ConfError::ListInSingle);
        }
        let plugins = vec![plugin(map.clone())?];
        Self::with_head(source, raw, &map, plugins)
    }

    fn with_head(
        source: &Path,
        raw: &[u8],
        map: &PluginConf,
        plugins: Vec<PluginConf>,
    ) -> Result<Self, ConfError> {
        let name = string(map, "name")?;
        if !is_name(name) {
            return Err(ConfError::Name(name.to_owned()));
        }
        Ok(Self {
            name: name.to_owned(),
            cni_version: version(map)?,
            disable_check: flag(map, "disableCheck")?,
            disable_gc: flag(map, "disableGC")?,
            plugins,
            source: source.to_owned(),
            raw: raw.to_owned(),
        })
    }

    fn with_plugins(self) -> Result<Self, ConfError> {
        if self.plugins.is_empty() {
            Err(ConfError::NoPlugins)
        } else {
            Ok(self)
        }
    }

    /// The list as one self-contained document, whichever files it came from; [`NetworkList::parse`] reads it
    /// back, but for whether GC may be called, which is not about an attachment.
    #[must_use]
    pub fn to_document(&self) -> Value {
        json!({
            "cniVersion": self.cni_version.as_str(),
            "name": self.name,
            "disableCheck": self.disable_check,
            "loadOnlyInlinedPlugins": true,
            "plugins": self.plugins,
        })
    }
}

/// The `type` of a plugin, which was checked when its configuration was read.
pub(crate) fn type_of(plugin: &PluginConf) -> &str {
    plugin
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// The form of network names and container ids: a letter or digit, then also dots, dashes and underscores.
pub(crate) fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

fn object(raw: &[u8]) -> Result<PluginConf, ConfError> {
    serde_json::from_slice(raw).map_err(ConfError::Json)
}

fn string<'a>(map: &'a PluginConf, key: &'static str) -> Result<&'a str, ConfError> {
    map.get(key).and_then(Value::as_str).ok_or(ConfError::Key {
        key,
        expected: "a string",
    })
}

/// A boolean; absent means false. Strings with a boolean word are accepted too, as by other runtimes.
fn flag(map: &PluginConf, key: &'static str) -> Result<bool, ConfError> {
    let wrong = ConfError::Key {
        key,
        expected: "true or false",
    };
    match map.get(key) {
        None => Ok(false),
        Some(Value::Bool(value)) => Ok(*value),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(wrong),
    }
}

/// The newest version that both `cniVersion` or `cniVersions` and this crate have.
fn version(map: &PluginConf) -> Result<SpecVersion, ConfError> {
    let mut offered = Vec::new();
    if map.contains_key("cniVersion") {
        offered.push(string(map, "cniVersion")?);
    }
    match map.get("cniVersions") {
        None => {}
        Some(Value::Array(versions)) => {
            for version in versions {
                offered.push(version.as_str().ok_or(ConfError::Key {
                    key: "cniVersions",
                    expected: "a list of strings",
                })?);
            }
        }
        Some(_) => {
            return Err(ConfError::Key {
                key: "cniVersions",
                expected: "a list of strings",
            });
        }
    }
    if offered.is_empty() {
        return Err(ConfError::Key {
            key: "cniVersion",
            expected: "a string",
        });
    }
    offered
        .iter()
        .filter_map(|text| SpecVersion::parse(text))
        .max()
        .ok_or_else(|| ConfError::Version(offered.join(", ")))
}

/// Checks the part of a plugin's configuration that this crate reads.
fn plugin(map: PluginConf) -> Result<PluginConf, ConfError> {
    let kind = string(&map, "type")?;
    if kind.is_empty()
        || matches!(kind, "." | "..")
        || kind.contains(|c| matches!(c, '/' | '\\') || c.is_control())
    {
        return Err(ConfError::PluginType(kind.to_owned()));
    }
    match map.get("capabilities") {
        None | Some(Value::Object(_) | Value::Null) => Ok(map),
        Some(_) => Err(ConfError::Key {
            key: "capabilities",
            expected: "an object",
        }),
    }
}

#[cfg(test)]
mod tests;
