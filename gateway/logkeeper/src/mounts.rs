//! Determines the file system of a path without accessing that file system, since it may hang.
//!
//! The kernel's list of mounts has the mount points. Each name of a path is looked up on the thread of the
//! file system that contains it ([`crate::fs_thread`]); the only access is a readlink.

use std::collections::{HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use switchyard_linux::blocking;
use switchyard_linux::mounts::{MountTable, OwnMounts};
use tokio::sync::Mutex;

/// The most symbolic links that a path may lead through, as in the kernel.
const MAX_LINKS: u32 = 40;

/// A file system by its device number, `major:minor`.
pub(crate) type Device = String;

/// The devices of the mount points: of several mounts on one, that of the last, which covers the others. A path is looked up
/// once for each of its parents, however many mounts there are.
#[derive(Debug, Default)]
pub(crate) struct Mounts(HashMap<PathBuf, Device>);

/// The mounts for all logs that are opened: a node may have thousands, and a burst of starts opens many logs at once.
#[derive(Debug, Default)]
pub(crate) struct KnownMounts {
    latest: Arc<Mutex<LatestMounts>>,
}

#[derive(Debug, Default)]
struct LatestMounts {
    own: Option<OwnMounts>,
    /// Mounts that were read last, and the time when they were seen to be current.
    known: Option<(Instant, Arc<Mounts>)>,
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

// === impl KnownMounts ===

impl KnownMounts {
    /// The mounts as they are at some time after this call. They are read on a thread of their own, once for all who ask at
    /// the same time, and not again while the kernel reports no change. Cancel-safe.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) async fn current(&self) -> io::Result<Arc<Mounts>> {
        let asked = Instant::now();
        let mut latest = Arc::clone(&self.latest).lock_owned().await;
        if let Some((seen, mounts)) = &latest.known
            && *seen >= asked
        {
            return Ok(Arc::clone(mounts));
        }
        blocking("the mounts", move || latest.look()).await
    }
}

impl LatestMounts {
    /// Reads the mounts if they may have changed. Blocks, for a time that grows with their number.
    fn look(&mut self) -> io::Result<Arc<Mounts>> {
        let seen = Instant::now();
        let own = match self.own.take() {
            Some(own) => own,
            None => OwnMounts::open()?,
        };
        let own = self.own.insert(own);
        // Nothing is known after an error: the kernel reports a change once.
        let mounts = match self.known.take() {
            Some((_, mounts)) if !own.have_changed()? => mounts,
            Some(_) | None => Arc::new(Mounts::from(own.read()?)),
        };
        self.known = Some((seen, Arc::clone(&mounts)));
        Ok(mounts)
    }
}

// === impl Mounts ===

impl Mounts {
    /// The file system of a path that contains no link, and its mount point.
    pub(crate) fn of(&self, path: &Path) -> (&str, &Path) {
        let nearest = path
            .ancestors()
            .find_map(|above| self.0.get_key_value(above));
        nearest.map_or(("", Path::new("/")), |(point, device)| {
            (device.as_str(), point.as_path())
        })
    }
}

impl From<MountTable> for Mounts {
    fn from(table: MountTable) -> Self {
        let mounts = table.iter();
        // The kernel lists mounts outside the root of this process, which no path leads to, with relative names.
        let reachable = mounts.filter(|mount| mount.point.is_absolute());
        let kept = reachable.map(|mount| (mount.point.into_owned(), mount.device.to_owned()));
        Self(kept.collect())
    }
}

// === impl Walk ===

impl Walk {
    /// Starts at the directory of a file, which need not exist.
    pub(crate) fn to(file: &Path) -> Self {
        let mut walk = Self {
            at: "/".into(),
            rest: VecDeque::new(),
            links: 0,
        };
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
                match if is_mount_point {
                    Ok(None)
                } else {
                    link(&next)
                } {
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
    if path.symlink_metadata()?.is_symlink() {
        std::fs::read_link(path).map(Some)
    } else {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const TEXT: &str = "\
25 30 0:23 / /proc rw,nosuid - proc proc rw\n\
30 1 259:1 / / rw,relatime - ext4 /dev/root rw\n\
nonsense\n\
40 30 0:50 / /var/log rw - nfs server:/logs rw\n\
41 40 0:51 /sub /var/log/a\\040b rw shared:7 - fuse x rw\n\
42 40 0:52 / /var/log/a\\040b rw - fuse y rw\n";

    fn table(text: &str) -> Mounts {
        MountTable::from_text(text).into()
    }

    #[track_caller]
    fn check(path: &str, device: &str) {
        assert_eq!(table(TEXT).of(Path::new(path)).0, device, "{path}");
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
    fn path_on_a_node_with_very_many_mounts_is_looked_up_as_on_any_other() {
        let of_pod = |number: u32| format!("/run/pods/{number}/shm");
        let line = |number| format!("1 1 0:{number} / {} rw - tmpfs shm rw\n", of_pod(number));
        let text: String = (0..100_000).map(line).collect();
        let mounts = table(&(TEXT.to_owned() + &text));
        for number in (0..100_000).step_by(97) {
            let path = format!("{}/a/b/c/d/e/0.log", of_pod(number));
            let (device, point) = mounts.of(Path::new(&path));
            assert_eq!(device, format!("0:{number}"));
            assert_eq!(point, Path::new(&of_pod(number)));
        }
        assert_eq!(mounts.of(Path::new("/run/pods/0")).0, "259:1");
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
        let mounts = table(&text);
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
        let mounts = table("1 1 1:1 / / rw - a a rw\n");
        assert!(Walk::to(&link.join("0.log")).advance(&mounts));
    }

    #[tokio::test]
    async fn mounts_of_this_machine_are_read_once_while_they_do_not_change() {
        let known = KnownMounts::default();
        let first = known.current().await.unwrap();
        assert_eq!(first.of(Path::new("/proc/self")).1, Path::new("/proc"));
        // Others may mount something meanwhile, but not all the time.
        let mut before = first;
        loop {
            let again = known.current().await.unwrap();
            if Arc::ptr_eq(&before, &again) {
                break;
            }
            before = again;
        }
    }
}
