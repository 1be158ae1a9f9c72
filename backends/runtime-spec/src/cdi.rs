//! Devices of the Container Device Interface (CDI): looked up by name in vendors' spec files, and applied to
//! a runtime spec.
//!
//! All directories are read again for every task that requests a device, since vendors may change their files
//! at any time. A malformed file makes only its own devices unavailable.

mod apply;
mod file;
mod listing;
mod yaml;

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use switchyard_core::{Error, Result};

pub(crate) use apply::{Target, apply, host_nodes};
pub(crate) use file::Edits;
pub use listing::{Listed, ListedNode, Listing, is_kind, list};

use crate::input::HostFs;
use file::SpecFile;

/// The largest spec file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// A device by its full name, `vendor/class=device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeviceName<'a> {
    kind: &'a str,
    device: &'a str,
}

/// The files of one directory.
#[derive(Debug, Default)]
struct Directory {
    files: Vec<(PathBuf, SpecFile)>,
    /// Files that cannot be read or parsed, with the reason.
    bad: Vec<String>,
}

/// The edits of a container for these devices: for each in turn the common edits of its file, for the first
/// device of the file, and its own. A later directory takes precedence over an earlier one.
///
/// # Errors
/// `InvalidArgument`, naming `cdi_devices`, for a malformed name, and for a device that is in no file or in
/// two files of one directory; the text names the files that could not be read. `Unimplemented` for a device
/// with network devices.
pub(crate) fn resolve(names: &[String], dirs: &[PathBuf], fs: &dyn HostFs) -> Result<Edits> {
    let wanted: Vec<DeviceName<'_>> =
        names.iter().map(|name| DeviceName::parse(name)).collect::<Result<_>>()?;
    let kinds: Vec<&str> = wanted.iter().map(|name| name.kind).collect();
    let directories: Vec<Directory> =
        dirs.iter().rev().map(|dir| Directory::read(dir, fs, Some(&kinds))).collect();
    let mut seen: HashSet<&Path> = HashSet::new();
    let mut edits = Edits::default();
    for (name, wanted) in names.iter().zip(&wanted) {
        let (path, file) = find(name, *wanted, &directories, dirs)?;
        if seen.insert(path) {
            check_interfaces(name, &file.edits)?;
            edits.append(&file.edits);
        }
        if let Some(device) = file.devices.get(wanted.device) {
            check_interfaces(name, device)?;
            edits.append(device);
        }
    }
    Ok(edits)
}

/// Refuses a device with interfaces of the host that would have to be moved, which is not supported: without
/// them it would be incomplete.
fn check_interfaces(name: &str, edits: &Edits) -> Result<()> {
    match edits.net_devices.first() {
        None => Ok(()),
        Some(device) => Err(Error::unimplemented(format!(
            "cdi_devices: {name} is not supported: its network device {} would have to be moved into the container, which runtimes of this \
             node are not known to do",
            device.host_interface_name
        ))),
    }
}

/// The file that has a device. `directories` are in order of precedence.
fn find<'d>(
    name: &str,
    wanted: DeviceName<'_>,
    directories: &'d [Directory],
    dirs: &[PathBuf],
) -> Result<(&'d Path, &'d SpecFile)> {
    for directory in directories {
        let mut having = directory
            .files
            .iter()
            .filter(|(_, file)| file.kind == wanted.kind && file.devices.contains_key(wanted.device));
        if let Some((path, file)) = having.next() {
            return match having.next() {
                None => Ok((path, file)),
                Some((other, _)) => Err(Error::invalid(
                    "cdi_devices",
                    format!("{name} is in both {} and {}", path.display(), other.display()),
                )),
            };
        }
    }
    let places = dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
    let bad: Vec<&str> =
        directories.iter().flat_map(|directory| directory.bad.iter().map(String::as_str)).collect();
    let bad = if bad.is_empty() { String::new() } else { format!("; not understood: {}", bad.join("; ")) };
    Err(Error::invalid("cdi_devices", format!("{name} is in no file of {places}{bad}")))
}

// === impl Directory ===

impl Directory {
    /// Reads the files directly in a directory; if `kinds` are given, only files of these kinds. A missing
    /// directory counts as empty.
    fn read(dir: &Path, fs: &dyn HostFs, kinds: Option<&[&str]>) -> Self {
        let mut files = Vec::new();
        let bad = visit(dir, fs, kinds, |path, file| files.push((path, file)));
        Self { files, bad }
    }
}

/// Reads all files that may have devices.
pub(crate) fn read_all(dirs: &[PathBuf], fs: &dyn HostFs) {
    for path in dirs.iter().filter_map(|dir| fs.list(dir).ok()).flatten() {
        if is_yaml(&path).is_some() {
            drop(fs.read(&path, MAX_FILE_BYTES));
        }
    }
}

/// Whether a spec file is YAML, or else JSON; `None` for another file.
fn is_yaml(path: &Path) -> Option<bool> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => Some(false),
        Some("yaml" | "yml") => Some(true),
        Some(_) | None => None,
    }
}

/// Calls `each` with the files directly in a directory, one after the other; if `kinds` are given, only with
/// files of these kinds. A missing directory counts as empty. Returns the files that cannot be read or
/// parsed, with the reason.
fn visit(
    dir: &Path,
    fs: &dyn HostFs,
    kinds: Option<&[&str]>,
    mut each: impl FnMut(PathBuf, SpecFile),
) -> Vec<String> {
    let mut paths = match fs.list(dir) {
        Ok(paths) => paths,
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Vec::new(),
        Err(fault) => return vec![format!("{}: {fault}", dir.display())],
    };
    paths.sort();
    let mut bad = Vec::new();
    for path in paths {
        let Some(yaml) = is_yaml(&path) else { continue };
        let parsed = match fs.read(&path, MAX_FILE_BYTES) {
            Ok(bytes) if kinds.is_some_and(|kinds| SpecFile::is_of_others(&bytes, yaml, kinds)) => continue,
            Ok(bytes) => SpecFile::parse(&bytes, yaml),
            Err(fault) => Err(fault.to_string()),
        };
        match parsed {
            Ok(file) => each(path, file),
            Err(why) => bad.push(format!("{}: {why}", path.display())),
        }
    }
    bad
}

// === impl DeviceName ===

impl<'a> DeviceName<'a> {
    fn parse(name: &'a str) -> Result<Self> {
        let parsed = name.split_once('=').filter(|(kind, device)| is_kind(kind) && is_device(device));
        match parsed {
            Some((kind, device)) => Ok(Self { kind, device }),
            None => {
                Err(Error::invalid("cdi_devices", format!("{name:?} is not of the form vendor/class=device")))
            }
        }
    }
}

/// Whether this begins with a letter, ends with a letter or digit, and has only allowed characters in
/// between.
fn is_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.ends_with(|c: char| c.is_ascii_alphanumeric())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Whether this is a valid name of a device within its kind.
fn is_device(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':'))
}

#[cfg(test)]
mod tests;
