//! Determines the file system of a path without accessing that file system, since it may hang.
//!
//! The kernel's list of mounts has the mount points. Each name of a path is looked up on the thread of the
//! file system that contains it ([`crate::fs_thread`]); the only access is a readlink.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// The mounts of this process's mount namespace.
const MOUNTINFO: &str = "/proc/self/mountinfo";

/// The most symbolic links that a path may lead through, as in the kernel.
const MAX_LINKS: u32 = 40;

/// A file system by its device number, `major:minor`.
pub(crate) type Device = String;

/// The mount points and their devices.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Vec<Mount>);

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    device: Device,
    point: PathBuf,
}

/// A path that is being resolved.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The resolved part: a directory whose path contains no link.
    at: PathBuf,
    /// The components that are still to be resolved.
    rest: VecDeque<OsString>,
    links: u32,
}

// === impl Mounts ===

impl Mounts {
    /// The current mounts.
    pub(crate) fn read() -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read(MOUNTINFO)?))
    }

    /// Parses the kernel's mountinfo; malformed lines are skipped.
    pub(crate) fn parse(text: &[u8]) -> Self {
        Self(text.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// The file system of a path that contains no link, and its mount point.
    pub(crate) fn of(&self, path: &Path) -> (&str, &Path) {
        let above = self.0.iter().filter(|mount| path.starts_with(&mount.point));
        // Of several mounts on the same point, the last one hides the others.
        let mount = above.max_by_key(|mount| mount.point.as_os_str().len());
        mount.map_or(("", Path::new("/")), |mount| (mount.device.as_str(), mount.point.as_path()))
    }
}

/// Parses the third and the fifth field of a line.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let device = String::from_utf8(fields.nth(2)?.to_vec()).ok()?;
    let point = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    point.is_absolute().then_some(Mount { device, point })
}

/// Decodes the kernel's escapes, such as `\040`.
fn unescape(mut field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    while let Some((first, rest)) = field.split_first() {
        let digits = if *first == b'\\' { rest.get(..3) } else { None };
        let octal = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        if let Some(byte) = octal {
            plain.push(byte);
            field = &rest[3..];
        } else {
            plain.push(*first);
            field = rest;
        }
    }
    plain
}

// === impl Walk ===

impl Walk {
    /// Starts at the directory of a file, which need not exist.
    pub(crate) fn to(file: &Path) -> Self {
        let mut walk = Self { at: "/".into(), rest: VecDeque::new(), links: 0 };
        walk.put_first(file.parent().unwrap_or(Path::new("/")));
        walk
    }

    /// The resolved part.
    pub(crate) fn at(&self) -> &Path {
        &self.at
    }

    /// Resolves further components, as long as they are on the same file system. Returns whether the walk is
    /// complete: then the file is, or will be created, on this file system.
    pub(crate) fn advance(&mut self, mounts: &Mounts) -> bool {
        let here = mounts.of(&self.at).0.to_owned();
        while let Some(name) = self.rest.pop_front() {
            if name == ".." {
                self.at.pop();
            } else {
                let next = self.at.join(&name);
                let is_mount_point = mounts.of(&next).1 == next;
                // A mount point is not a link, and must not be accessed: its file system may hang.
                match if is_mount_point { Ok(None) } else { link(&next) } {
                    Ok(None) => self.at = next,
                    Ok(Some(target)) if self.links < MAX_LINKS => {
                        self.links += 1;
                        self.put_first(&target);
                    }
                    // Opening the file will report the error, and it is opened on this file system's thread.
                    Ok(Some(_)) | Err(_) => return true,
                }
            }
            if mounts.of(&self.at).0 != here {
                return false;
            }
        }
        true
    }

    /// Prepends a path to the components to be resolved.
    fn put_first(&mut self, path: &Path) {
        for component in path.components().rev() {
            match component {
                Component::Normal(name) => self.rest.push_front(name.into()),
                Component::ParentDir => self.rest.push_front("..".into()),
                Component::RootDir => self.at = "/".into(),
                Component::CurDir | Component::Prefix(_) => {}
            }
        }
    }
}

/// The target of a symbolic link; `None` for any other existing file.
fn link(path: &Path) -> io::Result<Option<PathBuf>> {
    if path.symlink_metadata()?.is_symlink() { std::fs::read_link(path).map(Some) } else { Ok(None) }
}

/// Checks properties that hold for any text: nothing panics, and every path has a file system that is mounted
/// on it or above it.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn check_mountinfo(text: &[u8]) {
    let mounts = Mounts::parse(text);
    for path in mounts.0.iter().map(|mount| mount.point.join("below")).chain(["/".into()]) {
        let (_, point) = mounts.of(&path);
        assert!(path.starts_with(point), "{} is not below {}", path.display(), point.display());
    }
    let plain = unescape(text);
    assert!(plain.len() <= text.len());
    assert!(text.contains(&b'\\') || plain == text);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const TEXT: &[u8] = b"\
25 30 0:23 / /proc rw,nosuid - proc proc rw\n\
30 1 259:1 / / rw,relatime - ext4 /dev/root rw\n\
nonsense\n\
40 30 0:50 / /var/log rw - nfs server:/logs rw\n\
41 40 0:51 /sub /var/log/a\\040b rw shared:7 - fuse x rw\n\
42 40 0:52 / /var/log/a\\040b rw - fuse y rw\n";

    #[track_caller]
    fn check(path: &str, device: &str) {
        assert_eq!(Mounts::parse(TEXT).of(Path::new(path)).0, device, "{path}");
    }

    #[test]
    fn path_belongs_to_its_deepest_and_last_mount() {
        check("/", "259:1");
        check("/var/logs", "259:1");
        check("/var/log", "0:50");
        check("/var/log/pods/0.log", "0:50");
        check("/var/log/a b/0.log", "0:52");
    }

    #[test]
    fn path_walk_follows_links_and_stops_at_another_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir_all(root.join("real/mnt")).unwrap();
        symlink("real/../real/mnt", root.join("link")).unwrap();
        let text = format!(
            "1 1 1:1 / / rw - a a rw\n2 1 2:2 / {} rw - b b rw\n3 2 3:3 / {} rw - c c rw\n",
            root.display(),
            root.join("real/mnt").display()
        );
        let mounts = Mounts::parse(text.as_bytes());
        let mut walk = Walk::to(&root.join("link/absent/0.log"));
        let mut seen = Vec::new();
        loop {
            seen.push(mounts.of(walk.at()).0.to_owned());
            if walk.advance(&mounts) {
                break;
            }
        }
        assert_eq!(seen, ["1:1", "2:2", "3:3"]);
        assert_eq!(walk.at(), root.join("real/mnt"));
    }

    #[test]
    fn self_referencing_link_ends_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("loop");
        symlink(&link, &link).unwrap();
        let mounts = Mounts::parse(b"1 1 1:1 / / rw - a a rw\n");
        assert!(Walk::to(&link.join("0.log")).advance(&mounts));
    }

    #[test]
    fn mount_table_of_this_machine_is_parsed() {
        let mounts = Mounts::read().unwrap();
        assert_eq!(mounts.of(Path::new("/proc/self")).1, Path::new("/proc"));
    }
}
