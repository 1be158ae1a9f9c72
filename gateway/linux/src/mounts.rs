//! The mounts of a process, as the kernel lists them in `/proc/<pid>/mountinfo` (proc(5)).
//!
//! The kernel writes mounts in the order in which they were made, and some bytes of paths as a backslash and three octal
//! digits. Paths are bytes: containers choose the names of mount points.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

mod line;
mod own;

pub use own::OwnMounts;

/// The file with the mounts in the mount namespace of this process.
pub const OWN_MOUNTS: &str = "/proc/self/mountinfo";

/// The text of a list of mounts. Each query parses it again: a caller that asks often keeps the answers.
#[derive(Debug, Clone, Default)]
pub struct MountTable(Vec<u8>);

/// A mount: one line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount<'t> {
    /// Its id, unique while it exists.
    pub id: u32,
    /// The id of the mount that it is on.
    pub parent: u32,
    /// The device number of its file system, `major:minor`.
    pub device: &'t str,
    /// The directory of the file system that is mounted.
    pub root: Cow<'t, Path>,
    /// The mount point, relative to the root of the process.
    pub point: Cow<'t, Path>,
    /// The options of this mount, such as `rw,nosuid`.
    pub options: Options<'t>,
    /// Propagation of mounts below it.
    pub propagation: Propagation,
    /// The type of the file system, such as `ext4` or `fuse.sshfs`.
    pub fs_type: Cow<'t, str>,
    /// The device or other source, as the file system reports it.
    pub source: Cow<'t, OsStr>,
    /// The options of the file system.
    pub fs_options: Options<'t>,
}

/// A list of options, separated by commas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options<'t>(&'t [u8]);

/// Propagation of mounts below a mount, between it and its peers (mount_namespaces(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They do not. An unbindable mount is one of these.
    Private,
    /// From its master to it.
    Slave,
    /// In both directions.
    Shared,
}

/// A line that does not have the form of proc(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MalformedMount {
    /// The line.
    pub line: Vec<u8>,
}

// === impl MountTable ===

impl MountTable {
    /// The mounts in the mount namespace of this process.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_this_process() -> io::Result<Self> {
        Self::read(Path::new(OWN_MOUNTS))
    }

    /// The mounts in the mount namespace of the calling thread, which may have one of its own.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_this_thread() -> io::Result<Self> {
        Self::read(Path::new("/proc/thread-self/mountinfo"))
    }

    /// The mounts in the mount namespace of a process.
    ///
    /// # Errors
    /// The file cannot be read: among others, `NotFound` if there is no such process.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::read(&PathBuf::from(format!("/proc/{pid}/mountinfo")))
    }

    fn read(file: &Path) -> io::Result<Self> {
        fs::read(file).map(Self)
    }

    /// The list in this text.
    #[must_use]
    pub fn from_text(text: impl Into<Vec<u8>>) -> Self {
        Self(text.into())
    }

    /// The mounts, in the order in which they were made, with each malformed line in its place.
    pub fn checked(&self) -> impl Iterator<Item = Result<Mount<'_>, MalformedMount>> {
        let lines = self
            .0
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty());
        lines.map(|line| {
            line::parse(line).ok_or_else(|| MalformedMount {
                line: line.to_vec(),
            })
        })
    }

    /// The mounts, in the order in which they were made. Malformed lines are skipped.
    pub fn iter(&self) -> impl Iterator<Item = Mount<'_>> {
        self.checked().flatten()
    }

    /// The mount that a path is on: that with the longest mount point at or above it, and of several on the same point the
    /// last one, which covers the others. `None` if there is none above it. The path has no symbolic links.
    #[must_use]
    pub fn containing(&self, path: &Path) -> Option<Mount<'_>> {
        let above = self.iter().filter(|mount| path.starts_with(&mount.point));
        above.max_by_key(|mount| mount.point.as_os_str().len())
    }
}

// === impl Options ===

impl<'t> Options<'t> {
    /// Each option; bytes that are no UTF-8 are replaced.
    pub fn iter(self) -> impl Iterator<Item = Cow<'t, str>> {
        self.0
            .split(|byte| *byte == b',')
            .map(String::from_utf8_lossy)
    }

    /// Returns whether this is one of them.
    #[must_use]
    pub fn has(self, option: &str) -> bool {
        self.iter().any(|word| word == option)
    }
}

// === impl MalformedMount ===

impl std::fmt::Display for MalformedMount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "no mount of the form of proc(5): {}",
            String::from_utf8_lossy(&self.line)
        )
    }
}

impl std::error::Error for MalformedMount {}

/// Checks properties that hold for any text: no query panics, every line is a mount or malformed, no unescaped path is longer
/// than its text, and what contains a path is above it.
///
/// # Panics
/// If a property does not hold.
#[cfg(any(test, feature = "fuzzing"))]
pub fn check(text: &[u8]) {
    let table = MountTable::from_text(text);
    let lines = text
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .count();
    assert_eq!(table.checked().count(), lines);
    for mount in table.iter() {
        assert!(mount.point.as_os_str().len() <= text.len());
        assert!(
            mount.options.iter().count() <= text.len()
                && mount.fs_options.iter().count() <= text.len()
        );
        let below = mount.point.join("below");
        let found = table.containing(&below).expect("this mount is above it");
        assert!(
            below.starts_with(&found.point),
            "{} is not below {}",
            below.display(),
            found.point.display()
        );
    }
    let plain = line::unescape(text);
    assert!(plain.len() <= text.len());
    assert!(text.contains(&b'\\') || *plain == *text);
}

#[cfg(test)]
mod tests;
