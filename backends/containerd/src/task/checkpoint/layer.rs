//! The files that a task has changed, as a layer: what an overlay keeps in its upper directory, in the format
//! of OCI image layers.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use containerd_client::types::Mount;
use nix::sys::stat::{major, minor};
use rustix::fs::{CWD, Mode, OFlags, openat};
use switchyard_core::Result;
use switchyard_core::spec::{IdMap, UserNamespace};
use tar::{Builder, EntryType, Header};

use super::archive::{ExactReader, plain};
use super::{check_deadline, deadline_or_io_error};

/// The prefix of the overlay's own extended attributes.
const OVERLAY: &str = "trusted.overlay.";
/// The same of an overlay that is mounted with the option [`USER_XATTR`], as in a user namespace.
const USER_OVERLAY: &str = "user.overlay.";
/// The mount option by which an overlay keeps its state in attributes that begin with [`USER_OVERLAY`].
const USER_XATTR: &str = "userxattr";
/// Name, after the prefix, of the attribute of an opaque directory: the entries of the same directory in lower layers are hidden.
const OPAQUE: &str = "opaque";
/// The prefix of the name of a removed file.
const WHITEOUT_PREFIX: &str = ".wh.";
/// The entry that marks an opaque directory.
const OPAQUE_WHITEOUT: &str = ".wh..wh..opq";
/// The kernel's limit on the size of a list of attributes, and of the value of one.
const ATTRIBUTES: usize = 64 << 10;
/// The longest path in a layer, in bytes: a longer one could not be unpacked.
const MAX_PATH: usize = 4096;
/// The most bytes of names and paths that are kept in memory for a layer: of pending directories, and of
/// files with several names.
const MAX_PATH_MEMORY: usize = 64 << 20;
/// The bytes that are counted for a path in addition to its own.
const PER_PATH: usize = 64;
/// The id in the layer of an owner that is not mapped in the user namespace.
const NOBODY: u32 = 65_534;

/// A layer that is being written.
struct LayerWriter<'a, W: Write> {
    builder: Builder<W>,
    users: Option<&'a UserNamespace>,
    /// The prefix of the overlay's own attributes. With another one they are the task's.
    overlay: &'static str,
    /// Files with several names, by device and inode, and the first name of each.
    names: HashMap<(u64, u64), PathBuf>,
    /// Bytes of [`MAX_PATH_MEMORY`] that are used.
    path_memory: usize,
    until: Instant,
}

/// A file below the upper directory, held by a descriptor that refers to it even if its path is replaced
/// meanwhile: the task is frozen, but processes that share its process namespace are not, and may reach its
/// files.
struct OpenFile {
    file: File,
    data: Metadata,
}

/// The prefix of the extended attributes in which an overlay keeps its own state, by its mount options.
pub(super) fn own_attributes(mounts: &[Mount]) -> &'static str {
    let mut options = mounts.iter().flat_map(|mount| &mount.options);
    if options.any(|option| option == USER_XATTR) {
        USER_OVERLAY
    } else {
        OVERLAY
    }
}

/// Writes the layer of `upper` into a file. Its ids are those inside the user namespace `users`, and the overlay's own attributes, which
/// begin with `overlay`, are left out. Blocks.
///
/// Only what is below `upper` is read, and only regular files are opened for reading: a link or FIFO that is
/// put in the place of a file neither leads elsewhere nor blocks this.
///
/// # Errors
/// `DeadlineExceeded` after `until`.
pub(super) fn write(
    upper: &Path,
    users: Option<&UserNamespace>,
    overlay: &'static str,
    into: &Path,
    until: Instant,
) -> Result<()> {
    let written = || {
        let builder = Builder::new(BufWriter::new(File::create_new(into)?));
        let mut layer = LayerWriter {
            builder,
            users,
            overlay,
            names: HashMap::new(),
            path_memory: 0,
            until,
        };
        let upper = OpenFile::open(CWD, upper.as_os_str(), OFlags::DIRECTORY)?;
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            layer.path_memory = layer.path_memory.saturating_sub(path_cost(&dir));
            if let Some(node) = upper.below(&dir)? {
                layer.directory(&node, &dir, &mut dirs)?;
            }
        }
        layer.builder.into_inner()?.flush()
    };
    written().map_err(|fault| deadline_or_io_error("write the changed files into", into, fault))
}

// === impl OpenFile ===

impl OpenFile {
    /// Opens a name with `O_PATH`, without following a link at its end. Such a descriptor can neither be read
    /// nor written, so the open has no effect on a device or FIFO, and does not block on a hung file.
    fn open(dir: impl AsFd, name: &OsStr, flags: OFlags) -> io::Result<Self> {
        let flags = flags | OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(dir, name, flags, Mode::empty())?);
        Ok(Self {
            data: file.metadata()?,
            file,
        })
    }

    /// The directory at this path below this one; `None` if it does not exist any more.
    fn below(&self, path: &Path) -> io::Result<Option<Self>> {
        let mut node = Self {
            file: self.file.try_clone()?,
            data: self.data.clone(),
        };
        for name in path {
            node = match Self::open(&node.file, name, OFlags::DIRECTORY) {
                Ok(node) => node,
                Err(fault) if is_gone(&fault) => return Ok(None),
                Err(fault) => return Err(fault),
            };
        }
        Ok(Some(node))
    }

    /// A path that leads to this file, whatever its own path leads to by now.
    fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The names in this directory, sorted.
    fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        let mut kept = 0;
        for entry in fs::read_dir(self.path())? {
            let name = entry?.file_name();
            kept += path_cost(Path::new(&name));
            check_path_memory(kept)?;
            names.push(name);
        }
        names.sort();
        Ok(names)
    }

    /// The target of this symbolic link.
    fn target(&self) -> io::Result<PathBuf> {
        let target = rustix::fs::readlinkat(&self.file, "", Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }
}

/// The memory that is counted for a path, in bytes.
fn path_cost(path: &Path) -> usize {
    path.as_os_str().len() + PER_PATH
}

/// Fails if names and paths take more memory than allowed: the task chooses how many of them there are.
fn check_path_memory(kept: usize) -> io::Result<()> {
    if kept <= MAX_PATH_MEMORY {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "the names of its directories and files take more than {} MiB",
        MAX_PATH_MEMORY >> 20
    )))
}

/// Returns whether a file does not exist any more, or another file is in its place.
fn is_gone(fault: &io::Error) -> bool {
    matches!(
        fault.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    ) || fault.raw_os_error() == Some(nix::errno::Errno::ELOOP as i32)
}

// === impl LayerWriter ===

impl<W: Write> LayerWriter<'_, W> {
    /// Writes the entries of a directory, and adds its subdirectories to `dirs`.
    fn directory(
        &mut self,
        node: &OpenFile,
        dir: &Path,
        dirs: &mut Vec<PathBuf>,
    ) -> io::Result<()> {
        for name in node.names()? {
            check_deadline(self.until)?;
            if path_cost(dir) + name.len() > MAX_PATH {
                let why =
                    format!("a path is longer than {MAX_PATH} bytes, so it could not be unpacked");
                return Err(io::Error::other(why));
            }
            let below = match OpenFile::open(&node.file, &name, OFlags::empty()) {
                Ok(below) => below,
                Err(fault) if is_gone(&fault) => continue,
                Err(fault) => return Err(fault),
            };
            self.entry(&below, &dir.join(&name))?;
            if below.data.is_dir() {
                let path = dir.join(&name);
                self.account(&path)?;
                dirs.push(path);
            }
        }
        Ok(())
    }

    /// Counts the memory of a path that is kept.
    fn account(&mut self, path: &Path) -> io::Result<()> {
        self.path_memory += path_cost(path);
        check_path_memory(self.path_memory)
    }

    fn entry(&mut self, node: &OpenFile, name: &Path) -> io::Result<()> {
        let data = &node.data;
        let kind = data.file_type();
        if kind.is_char_device() && data.rdev() == 0 {
            let mut whiteout = OsString::from(WHITEOUT_PREFIX);
            whiteout.push(name.file_name().unwrap_or_default());
            return self.builder.append_data(
                &mut plain(0),
                name.with_file_name(whiteout),
                io::empty(),
            );
        }
        if kind.is_socket() {
            // Only the process that listens on a socket can create it.
            return Ok(());
        }
        let mut header = self.header(data);
        let key = (data.dev(), data.ino());
        if data.nlink() > 1
            && !kind.is_dir()
            && let Some(first) = self.names.get(&key)
        {
            header.set_entry_type(EntryType::Link);
            return self.builder.append_link(&mut header, name, first);
        }
        let attributes = attributes(&node.path())?;
        // Those that begin with `trusted.overlay.` are an overlay's however this one is mounted: no container can write them.
        let is_of_overlay = |key: &str| key.starts_with(OVERLAY) || key.starts_with(self.overlay);
        let kept = attributes.iter().filter(|(key, _)| !is_of_overlay(key));
        let kept: Vec<_> = kept
            .map(|(key, value)| (format!("SCHILY.xattr.{key}"), value.as_slice()))
            .collect();
        if !kept.is_empty() {
            self.builder
                .append_pax_extensions(kept.iter().map(|(key, value)| (key.as_str(), *value)))?;
        }
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            self.builder
                .append_link(&mut header, name, node.target()?)?;
        } else if kind.is_file() {
            header.set_size(data.len());
            let content = ExactReader::new(File::open(node.path())?, data.len(), self.until);
            self.builder.append_data(&mut header, name, content)?;
        } else {
            header.set_entry_type(if kind.is_dir() {
                EntryType::Directory
            } else if kind.is_fifo() {
                EntryType::Fifo
            } else if kind.is_block_device() {
                EntryType::Block
            } else {
                EntryType::Char
            });
            if kind.is_block_device() || kind.is_char_device() {
                let number = |number: u64| u32::try_from(number).map_err(io::Error::other);
                header.set_device_major(number(major(data.rdev()))?)?;
                header.set_device_minor(number(minor(data.rdev()))?)?;
            }
            self.builder.append_data(&mut header, name, io::empty())?;
        }
        if data.nlink() > 1 && !kind.is_dir() {
            self.account(name)?;
            self.names.insert(key, name.to_path_buf());
        }
        let opaque = format!("{}{OPAQUE}", self.overlay);
        if attributes.get(&opaque).is_some_and(|value| value == b"y") {
            self.builder
                .append_data(&mut plain(0), name.join(OPAQUE_WHITEOUT), io::empty())?;
        }
        Ok(())
    }

    fn header(&self, data: &Metadata) -> Header {
        let inside = |map: fn(&UserNamespace) -> &IdMap, id: u32| match self.users {
            Some(users) => map(users).inside(id).unwrap_or(NOBODY),
            None => id,
        };
        let mut header = Header::new_gnu();
        header.set_mode(data.mode() & 0o7777);
        header.set_uid(inside(|users| &users.uids, data.uid()).into());
        header.set_gid(inside(|users| &users.gids, data.gid()).into());
        // A time before 1970 is written as 1970.
        header.set_mtime(u64::try_from(data.mtime()).unwrap_or(0));
        header.set_size(0);
        header
    }
}

/// The extended attributes of the file at a path; none if its file system does not support them.
fn attributes(path: &Path) -> io::Result<HashMap<String, Vec<u8>>> {
    let mut names = vec![0_u8; ATTRIBUTES];
    let length = match rustix::fs::listxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(fault) => return Err(fault.into()),
    };
    let mut all = HashMap::new();
    for name in names[..length]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
    {
        let mut value = vec![0_u8; ATTRIBUTES];
        let length = rustix::fs::getxattr(path, OsStr::from_bytes(name), &mut value[..])?;
        value.truncate(length);
        all.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
