//! What a task has changed of its files, as a layer: what an overlay keeps in its upper directory, in the words of OCI images.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nix::sys::stat::{major, minor};
use switchyard_core::Result;
use switchyard_core::spec::{IdMap, UserNamespace};
use tar::{Builder, EntryType, Header};

use super::archive::{Exact, plain};
use super::{check, timely};

/// Attributes that are the overlay's own.
const OVERLAY: &str = "trusted.overlay.";
/// The one that says that nothing of a directory below is to be seen.
const OPAQUE: &str = "trusted.overlay.opaque";
/// Before the name of something that was removed.
const REMOVED: &str = ".wh.";
/// Among the entries of an opaque directory.
const ALL_REMOVED: &str = ".wh..wh..opq";
/// The kernel's own limit of a list of attributes, and of one of them.
const ATTRIBUTES: usize = 64 << 10;
/// The id of a file whose owner is nobody inside.
const NOBODY: u32 = 65_534;

/// A layer that is being written.
struct Layer<'a, W: Write> {
    builder: Builder<W>,
    users: Option<&'a UserNamespace>,
    /// Files with several names, by device and inode, and the first name of each.
    names: HashMap<(u64, u64), PathBuf>,
    until: Instant,
}

/// Writes the layer of `upper` into a file. The ids in it are those inside of `users`. Nothing changes it meanwhile. Blocks.
///
/// # Errors
/// `DeadlineExceeded` after `until`.
pub(super) fn write(upper: &Path, users: Option<&UserNamespace>, into: &Path, until: Instant) -> Result<()> {
    let written = || {
        let builder = Builder::new(BufWriter::new(File::create_new(into)?));
        let mut layer = Layer { builder, users, names: HashMap::new(), until };
        let mut dirs = vec![PathBuf::new()];
        while let Some(dir) = dirs.pop() {
            layer.directory(upper, &dir, &mut dirs)?;
        }
        layer.builder.into_inner()?.flush()
    };
    written().map_err(|fault| timely("write what was changed of the files into", into, fault))
}

impl<W: Write> Layer<'_, W> {
    /// Writes the entries of a directory, and tells of those that are directories themselves.
    fn directory(&mut self, upper: &Path, dir: &Path, dirs: &mut Vec<PathBuf>) -> io::Result<()> {
        let mut entries = fs::read_dir(upper.join(dir))?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            check(self.until)?;
            let data = entry.metadata()?;
            self.entry(&entry.path(), &dir.join(entry.file_name()), &data)?;
            if data.is_dir() {
                dirs.push(dir.join(entry.file_name()));
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, name: &Path, data: &Metadata) -> io::Result<()> {
        let kind = data.file_type();
        if kind.is_char_device() && data.rdev() == 0 {
            let mut whiteout = OsString::from(REMOVED);
            whiteout.push(name.file_name().unwrap_or_default());
            return self.builder.append_data(&mut plain(0), name.with_file_name(whiteout), io::empty());
        }
        if kind.is_socket() {
            // Only who listens on it can make it.
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
        let attributes = attributes(path)?;
        let kept = attributes.iter().filter(|(key, _)| !key.starts_with(OVERLAY));
        let kept: Vec<_> =
            kept.map(|(key, value)| (format!("SCHILY.xattr.{key}"), value.as_slice())).collect();
        if !kept.is_empty() {
            self.builder.append_pax_extensions(kept.iter().map(|(key, value)| (key.as_str(), *value)))?;
        }
        if kind.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            self.builder.append_link(&mut header, name, fs::read_link(path)?)?;
        } else if kind.is_file() {
            header.set_size(data.len());
            let content = Exact::new(File::open(path)?, data.len(), self.until);
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
            self.names.insert(key, name.to_path_buf());
        }
        if attributes.get(OPAQUE).is_some_and(|value| value == b"y") {
            self.builder.append_data(&mut plain(0), name.join(ALL_REMOVED), io::empty())?;
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
        // What is older than time itself is told to be as old.
        header.set_mtime(u64::try_from(data.mtime()).unwrap_or(0));
        header.set_size(0);
        header
    }
}

/// The extended attributes of a file; none where its file system has none.
fn attributes(path: &Path) -> io::Result<HashMap<String, Vec<u8>>> {
    let mut names = vec![0_u8; ATTRIBUTES];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Ok(length) => length,
        Err(rustix::io::Errno::OPNOTSUPP) => 0,
        Err(fault) => return Err(fault.into()),
    };
    let mut all = HashMap::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0_u8; ATTRIBUTES];
        let length = rustix::fs::lgetxattr(path, std::ffi::OsStr::from_bytes(name), &mut value[..])?;
        value.truncate(length);
        all.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::time::Duration;

    use nix::sys::stat::{Mode, SFlag, mknod};
    use switchyard_core::spec::IdRange;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// What the overlay of a kernel leaves in its upper directory, read back by its names.
    #[test]
    fn a_layer_has_what_was_written_changed_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let upper = dir.path().join("upper");
        let long = "n".repeat(150);
        fs::create_dir_all(upper.join("dir/below")).unwrap();
        fs::write(upper.join("dir/file"), "text").unwrap();
        fs::write(upper.join("dir").join(&long), "long").unwrap();
        chown(upper.join("dir/file"), Some(100_033), Some(100_044)).unwrap();
        // A new owner takes the bit away.
        fs::set_permissions(upper.join("dir/file"), fs::Permissions::from_mode(0o4751)).unwrap();
        fs::hard_link(upper.join("dir/file"), upper.join("dir/name")).unwrap();
        symlink("../there", upper.join("link")).unwrap();
        mknod(&upper.join("dir/gone"), SFlag::S_IFCHR, Mode::empty(), 0).unwrap();
        nix::unistd::mkfifo(&upper.join("fifo"), Mode::S_IRWXU).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(upper.join("socket")).unwrap();
        rustix::fs::setxattr(upper.join("dir/below"), OPAQUE, b"y", rustix::fs::XattrFlags::empty()).unwrap();
        rustix::fs::setxattr(upper.join("fifo"), "trusted.kept", b"v\0", rustix::fs::XattrFlags::empty())
            .unwrap();

        let range = IdRange { inside: 0, host: 100_000, length: 65_536 };
        let map = IdMap::new(vec![range]).unwrap();
        let users = UserNamespace { uids: map.clone(), gids: map };
        let into = dir.path().join("layer.tar");
        write(&upper, Some(&users), &into, soon()).unwrap();

        let mut archive = tar::Archive::new(File::open(&into).unwrap());
        let mut seen = BTreeMap::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            let header = entry.header();
            let (uid, mode) = (header.uid().unwrap(), header.mode().unwrap());
            let kind = header.entry_type();
            let link = entry.link_name().unwrap().map(|link| link.display().to_string());
            let pax: Vec<_> = entry
                .pax_extensions()
                .unwrap()
                .into_iter()
                .flatten()
                .map(|pax| pax.unwrap())
                .map(|pax| (pax.key().unwrap().to_owned(), pax.value_bytes().to_vec()))
                .collect();
            let path = entry.path().unwrap().display().to_string();
            seen.insert(path, (kind, uid, mode, text, link, pax));
        }
        let names: Vec<&str> = seen.keys().map(|name| name.trim_end_matches('/')).collect();
        let long = format!("dir/{long}");
        let expected = [
            "dir",
            "dir/.wh.gone",
            "dir/below",
            "dir/below/.wh..wh..opq",
            "dir/file",
            "dir/name",
            &long,
            "fifo",
            "link",
        ];
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(names, expected);
        let file = &seen["dir/file"];
        assert_eq!((file.1, file.2, file.3.as_str()), (33, 0o4751, "text"));
        assert_eq!(seen["dir/name"].4.as_deref(), Some("dir/file"));
        assert_eq!(seen["link"].4.as_deref(), Some("../there"));
        assert_eq!(seen["fifo"].0, EntryType::Fifo);
        assert_eq!(seen["fifo"].5, [("SCHILY.xattr.trusted.kept".to_owned(), b"v\0".to_vec())]);
        // The host's root is nobody inside.
        assert_eq!(seen["link"].1, u64::from(NOBODY));
        assert_eq!(seen[&long].3, "long");
    }

    #[test]
    fn a_layer_that_takes_too_long_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("upper")).unwrap();
        fs::write(dir.path().join("upper/file"), "text").unwrap();
        let late = write(&dir.path().join("upper"), None, &dir.path().join("layer.tar"), Instant::now());
        assert_eq!(late.unwrap_err().kind(), switchyard_core::ErrorKind::DeadlineExceeded);
    }
}
