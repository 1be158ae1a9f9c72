//! Devices of the Container Device Interface (CDI): looked up by name in vendors' spec files, and applied to
//! a runtime spec.
//!
//! All directories are read again for every task that requests a device, since vendors may change their files
//! at any time. A malformed file makes only its own devices unavailable. What is read of a directory is bounded, and
//! is in memory until the devices of the task are looked up in it: then only their edits stay. Of each parsed file only
//! what is needed stays meanwhile.

mod apply;
mod edits;
mod file;
mod listing;
mod scalars;
mod yaml;

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};

use switchyard_core::{Error, Result, SpecPart};

pub(crate) use apply::{Target, apply, host_nodes};
pub(crate) use edits::Edits;
pub use listing::{BadFile, Listed, ListedNode, Listing, is_kind, list};

use crate::host_fs::HostFs;
use file::{SpecFile, likely_kind};
use switchyard_linux::files::if_present;

/// The largest spec file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The most that is read of all spec files of a directory, in bytes.
const MAX_DIR_BYTES: u64 = 64 << 20;

/// The most spec files of a directory that are read.
const MAX_FILES: usize = 1000;

/// Maximum length of the reason why a file cannot be used, in bytes: it may quote the file.
const MAX_REASON: usize = 300;

/// Maximum number of unusable files that an error names.
const BAD_SHOWN: usize = 10;

/// A device by its full name, `vendor/class=device`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DeviceName<'a> {
    kind: &'a str,
    device: &'a str,
}

/// The content of the files with the wanted devices.
#[derive(Debug, Default)]
struct Needed {
    /// The files with a wanted device, each with the edits for any of its devices.
    files: Vec<(PathBuf, Edits)>,
    /// Place of each of the wanted devices, in their order.
    places: Vec<Option<Place>>,
}

/// Place of a device.
#[derive(Debug)]
struct Place {
    /// The index of its file.
    file: usize,
    edits: Edits,
    /// Another file of the same directory that has it too.
    other: Option<PathBuf>,
}

/// The edits of a container for these devices: for each in turn the common edits of its file, for the first
/// device of the file, and its own. A later directory takes precedence over an earlier one.
///
/// # Errors
/// `InvalidArgument`, naming `cdi_devices`, for a malformed name, and for a device that is in no file or in
/// two files of one directory; the text names the files that could not be read and may have it. `Unimplemented` for a device
/// with network devices.
pub(crate) fn resolve(names: &[String], dirs: &[PathBuf], fs: &dyn HostFs) -> Result<Edits> {
    let wanted: Vec<DeviceName<'_>> = names
        .iter()
        .enumerate()
        .map(|(index, name)| {
            DeviceName::parse(name).map_err(|error| error.about(SpecPart::CdiDevice(index)))
        })
        .collect::<Result<_>>()?;
    let mut needed = Needed {
        files: Vec::new(),
        places: wanted.iter().map(|_| None).collect(),
    };
    let mut bad = Vec::new();
    for dir in dirs.iter().rev() {
        let kinds = needed.missing_kinds(&wanted);
        if kinds.is_empty() {
            break;
        }
        let first = needed.files.len();
        bad.extend(visit(dir, fs, Some(&kinds), |path, file| {
            needed.take(&wanted, first, path, file)
        }));
    }
    let Needed { files, places } = needed;
    let mut seen = HashSet::new();
    let mut edits = Edits::default();
    for (index, (name, place)) in names.iter().zip(places).enumerate() {
        let part = SpecPart::CdiDevice(index);
        let Some(Place {
            file,
            edits: own,
            other,
        }) = place
        else {
            return Err(missing(name, dirs, &bad).about(part));
        };
        let (path, common) = &files[file];
        if let Some(other) = other {
            let why = format!(
                "{name} is in both {} and {}",
                path.display(),
                other.display()
            );
            return Err(Error::invalid("cdi_devices", why).about(part));
        }
        if seen.insert(file) {
            check_interfaces(name, common).map_err(|error| error.about(part))?;
            edits.append(common);
        }
        check_interfaces(name, &own).map_err(|error| error.about(part))?;
        edits.append(&own);
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

/// The error for a device that is in no file. `bad` are the files that could not be read: of these it names the ones that
/// may have the device.
fn missing(name: &str, dirs: &[PathBuf], bad: &[BadFile]) -> Error {
    let places = dirs
        .iter()
        .map(|dir| dir.display().to_string())
        .collect::<Vec<_>>()
        .join(", ");
    let kind = name.split_once('=').map_or(name, |(kind, _)| kind);
    let bad: Vec<&str> = bad
        .iter()
        .filter(|file| file.may_be_of(&[kind]))
        .map(|file| file.why.as_str())
        .collect();
    let shown = bad[..bad.len().min(BAD_SHOWN)].join("; ");
    let bad = match bad.len().saturating_sub(BAD_SHOWN) {
        0 if shown.is_empty() => String::new(),
        0 => format!("; not understood: {shown}"),
        more => format!("; not understood: {shown}; and {more} more"),
    };
    Error::invalid(
        "cdi_devices",
        format!("{name} is in no file of {places}{bad}"),
    )
}

// === impl Needed ===

impl Needed {
    /// The kinds of the devices that were not found yet.
    fn missing_kinds<'w>(&self, wanted: &[DeviceName<'w>]) -> Vec<&'w str> {
        let missing = wanted
            .iter()
            .zip(&self.places)
            .filter(|(_, place)| place.is_none());
        missing.map(|(name, _)| name.kind).collect()
    }

    /// Takes what is needed of a file. The files of its directory begin at the index `first`: a device that an earlier
    /// one has takes precedence.
    fn take(&mut self, wanted: &[DeviceName<'_>], first: usize, path: PathBuf, file: SpecFile) {
        let SpecFile {
            kind,
            devices,
            edits,
        } = file;
        let number = self.files.len();
        let mut is_needed = false;
        for (name, place) in wanted.iter().zip(&mut self.places) {
            let Some(own) = devices.get(name.device).filter(|_| name.kind == kind) else {
                continue;
            };
            match place {
                None => {
                    is_needed = true;
                    *place = Some(Place {
                        file: number,
                        edits: own.clone(),
                        other: None,
                    });
                }
                Some(place) if place.file >= first => {
                    place.other.get_or_insert_with(|| path.clone());
                }
                Some(_) => {}
            }
        }
        if is_needed {
            self.files.push((path, edits));
        }
    }
}

/// Reads all files that may have devices, up to the bounds.
pub(crate) fn read_all(dirs: &[PathBuf], fs: &dyn HostFs) {
    for dir in dirs {
        // Faults are ignored here: the request that needs such a file reports them.
        let _bad = read_files(dir, fs, |_, _, _| ());
    }
}

/// Calls `each` with the files directly in a directory, one after the other; if `kinds` are given, only with
/// files that may be of these kinds. A missing directory counts as empty. Returns the files that cannot be read or
/// parsed, with the reason; first of all one with which it would be more than is read of a directory.
fn visit(
    dir: &Path,
    fs: &dyn HostFs,
    kinds: Option<&[&str]>,
    mut each: impl FnMut(PathBuf, SpecFile),
) -> Vec<BadFile> {
    let mut bad = Vec::new();
    let unread = read_files(dir, fs, |path, yaml, read| {
        let (kind, why) = match read {
            Ok(bytes) if kinds.is_some_and(|kinds| SpecFile::is_of_others(&bytes, yaml, kinds)) => {
                return;
            }
            Ok(bytes) => match SpecFile::parse(&bytes, yaml) {
                Ok(file) => return each(path, file),
                Err(why) => (likely_kind(&bytes), why),
            },
            Err(fault) => (None, fault.to_string()),
        };
        bad.push(BadFile {
            kind,
            why: because(&path, &why),
        });
    });
    let unread = unread.into_iter().map(|why| BadFile { kind: None, why });
    unread.chain(bad).collect()
}

/// Calls `each` with what is read of the files directly in a directory, one after the other, and with whether a file is
/// YAML. A missing directory counts as empty. Returns why the directory, or a part of it, is not read.
fn read_files(
    dir: &Path,
    fs: &dyn HostFs,
    mut each: impl FnMut(PathBuf, bool, io::Result<Vec<u8>>),
) -> Vec<String> {
    let mut paths = match if_present(fs.list(dir)) {
        Ok(paths) => paths.unwrap_or_default(),
        Err(fault) => return vec![because(dir, &fault.to_string())],
    };
    paths.sort();
    let files = paths
        .into_iter()
        .filter_map(|path| is_yaml(&path).map(|yaml| (path, yaml)));
    let mut left = MAX_DIR_BYTES;
    for (number, (path, yaml)) in files.enumerate() {
        if number == MAX_FILES {
            return vec![unread(&path, &format!("{MAX_FILES} CDI files"))];
        }
        let limit = MAX_FILE_BYTES.min(left);
        let read = fs.read(&path, limit);
        let is_long = read
            .as_ref()
            .is_err_and(|fault| fault.kind() == io::ErrorKind::FileTooLarge);
        if is_long && limit < MAX_FILE_BYTES {
            return vec![unread(
                &path,
                &format!("{MAX_DIR_BYTES} bytes in all its CDI files"),
            )];
        }
        let length = |bytes: &Vec<u8>| u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        // What was read of a file that is too long counts too.
        left = left.saturating_sub(if is_long {
            limit
        } else {
            read.as_ref().map_or(0, length)
        });
        each(path, yaml, read);
    }
    Vec::new()
}

/// Returns whether a file is YAML, or else JSON; `None` if its name is not that of a spec file.
fn is_yaml(path: &Path) -> Option<bool> {
    match path.extension()?.to_str()? {
        "json" => Some(false),
        "yaml" | "yml" => Some(true),
        _ => None,
    }
}

/// That a file and those after it are not read, because its directory may have only so much.
fn unread(path: &Path, most: &str) -> String {
    because(
        path,
        &format!("it and the files after it are not read: the directory may have at most {most}"),
    )
}

/// The text about a file that is not used.
fn because(path: &Path, why: &str) -> String {
    format!(
        "{}: {}",
        path.display(),
        &why[..why.floor_char_boundary(MAX_REASON)]
    )
}

// === impl DeviceName ===

impl<'a> DeviceName<'a> {
    fn parse(name: &'a str) -> Result<Self> {
        let parsed = name
            .split_once('=')
            .filter(|(kind, device)| is_kind(kind) && is_device(device));
        match parsed {
            Some((kind, device)) => Ok(Self { kind, device }),
            None => Err(Error::invalid(
                "cdi_devices",
                format!("{name:?} is not of the form vendor/class=device"),
            )),
        }
    }
}

/// Returns whether this begins with a letter, ends with a letter or digit, and has only allowed characters in
/// between.
fn is_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphabetic())
        && word.ends_with(|c: char| c.is_ascii_alphanumeric())
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Returns whether this is a valid name of a device within its kind.
fn is_device(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | ':'))
}

#[cfg(test)]
mod tests;
