//! Removes a tree.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, unlinkat};
use rustix::io::Errno;

use crate::cancel::Cancel;
use crate::dir::{self, Id, OPEN_LEVELS, open};
use crate::error::{Error, Place};

/// Maximum number of times a removal starts again because others filled or moved a directory after its
/// entries had been removed.
const MOST_REPEATS: u32 = 1000;

/// Removes a directory with everything in it, or a file. Idempotent: succeeds if `path` does not exist.
///
/// Only trusted processes may be able to change `path` itself; what is below it may be changed by containers.
///
/// # Errors
/// [`Error::Cancelled`], [`Error::Mounted`], [`Error::Changing`], [`Error::Io`]; a part of the tree remains
/// then, and the next call continues with it.
pub fn remove(path: &Path, cancel: &Cancel) -> Result<(), Error> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::io("remove", c"/", 0)(Errno::INVAL));
    };
    let above = if above.as_os_str().is_empty() {
        Path::new(".")
    } else {
        above
    };
    let name =
        CString::new(name.as_bytes()).map_err(|_| Error::io("remove", c"", 0)(Errno::INVAL))?;
    let above = match open(above) {
        Ok(above) => above,
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(Error::Io {
                doing: "open the directory of",
                place: Place::new(&name, 0),
                source,
            });
        }
    };
    remove_at(&above, &name, cancel)
}

/// Removes everything in a directory, but not the directory itself. Idempotent.
///
/// # Errors
/// As [`remove`].
pub fn empty(dir: impl AsFd, cancel: &Cancel) -> Result<(), Error> {
    let mut repeats = 0;
    loop {
        let root = dir::enter(&dir, c".").map_err(Error::io("open", c".", 0))?;
        let mut removal = Removal::new(repeats, cancel);
        if removal.empty(root, c".")? {
            return Ok(());
        }
        removal.repeat()?;
        repeats = removal.repeats;
    }
}

/// As [`remove`], for the entry with this name in a directory.
pub(crate) fn remove_at(above: impl AsFd, name: &CStr, cancel: &Cancel) -> Result<(), Error> {
    let mut repeats = 0;
    loop {
        match unlink(&above, name, 0)? {
            UnlinkOutcome::Gone => return Ok(()),
            UnlinkOutcome::NotEmpty => {}
        }
        let root = match dir::enter(&above, name) {
            Ok(root) => root,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => continue,
            Err(Errno::XDEV) => return Err(Error::Mounted(Place::new(name, 0))),
            Err(errno) => return Err(Error::io("open", name, 0)(errno)),
        };
        let mut removal = Removal::new(repeats, cancel);
        removal.empty(root, name)?;
        removal.repeat()?;
        repeats = removal.repeats;
    }
}

/// The result of trying to remove an entry with a single call.
enum UnlinkOutcome {
    /// It does not exist any more.
    Gone,
    /// It is a directory that is not empty.
    NotEmpty,
}

/// Removes an entry, unless it is a directory that is not empty.
fn unlink(dir: impl AsFd, name: &CStr, depth: usize) -> Result<UnlinkOutcome, Error> {
    match unlinkat(&dir, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(UnlinkOutcome::Gone),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(UnlinkOutcome::NotEmpty),
        Err(Errno::NOTDIR) => unlink_file(dir, name, depth),
        Err(Errno::BUSY) => Err(Error::Mounted(Place::new(name, depth))),
        Err(errno) => Err(Error::io("remove", name, depth)(errno)),
    }
}

/// As [`unlink`], for an entry that is not a directory as far as is known.
fn unlink_file(dir: impl AsFd, name: &CStr, depth: usize) -> Result<UnlinkOutcome, Error> {
    match unlinkat(dir, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(UnlinkOutcome::Gone),
        Err(Errno::ISDIR) => Ok(UnlinkOutcome::NotEmpty),
        Err(Errno::BUSY) => Err(Error::Mounted(Place::new(name, depth))),
        Err(errno) => Err(Error::io("remove", name, depth)(errno)),
    }
}

/// A directory that is being emptied.
struct OpenDir {
    entries: Dir,
    /// Its name in the one above.
    name: CString,
    /// The directory in it that was entered last.
    last: Option<Id>,
}

/// A removal in progress.
struct Removal<'c> {
    /// The directories from the top of the tree to the current one.
    levels: Vec<Id>,
    /// The deepest of them, open, at most [`OPEN_LEVELS`]. A directory that was closed is opened again by
    /// `..`, and read from its beginning: the entries that were removed do not appear again.
    open: VecDeque<OpenDir>,
    is_lost: bool,
    repeats: u32,
    cancel: &'c Cancel,
}

impl<'c> Removal<'c> {
    const fn new(repeats: u32, cancel: &'c Cancel) -> Self {
        Self {
            levels: Vec::new(),
            open: VecDeque::new(),
            is_lost: false,
            repeats,
            cancel,
        }
    }

    /// Removes everything in a directory; `false` if a directory was moved during the walk and the removal
    /// has to start again.
    fn empty(&mut self, root: OwnedFd, name: &CStr) -> Result<bool, Error> {
        self.push(root, name)?;
        while let Some(level) = self.open.back_mut() {
            self.cancel.check()?;
            let depth = self.levels.len();
            let Some(entry) = level.entries.read() else {
                self.go_up()?;
                continue;
            };
            let entry = entry.map_err(Error::io("read", &level.name, depth - 1))?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let dir = level
                .entries
                .fd()
                .map_err(Error::io("read", &level.name, depth - 1))?;
            let unlinked = if matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
                unlink(dir, name, depth)?
            } else {
                unlink_file(dir, name, depth)?
            };
            if matches!(unlinked, UnlinkOutcome::NotEmpty) {
                self.go_down(name)?;
            }
        }
        Ok(!self.is_lost)
    }

    fn push(&mut self, dir: OwnedFd, name: &CStr) -> Result<(), Error> {
        let depth = self.levels.len();
        let failed = || Error::io("open", name, depth);
        let id = Id::of(&dir).map_err(failed())?;
        if let Some(above) = self.open.back_mut()
            // The same directory a second time: another process fills it while it is emptied.
            && above.last.replace(id) == Some(id)
        {
            self.repeat()?;
        }
        self.levels.push(id);
        let entries = Dir::new(dir).map_err(failed())?;
        self.open.push_back(OpenDir {
            entries,
            name: name.to_owned(),
            last: None,
        });
        if self.open.len() > OPEN_LEVELS {
            self.open.pop_front();
        }
        Ok(())
    }

    /// Enters a directory of the deepest level.
    fn go_down(&mut self, name: &CStr) -> Result<(), Error> {
        let depth = self.levels.len();
        let Some(level) = self.open.back() else {
            return Ok(());
        };
        let dir = level.entries.fd().map_err(Error::io("read", name, depth))?;
        match dir::enter(dir, name) {
            Ok(below) => self.push(below, name),
            // It was replaced or removed meanwhile: the next pass finds what is there now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(()),
            Err(Errno::XDEV) => Err(Error::Mounted(Place::new(name, depth))),
            Err(errno) => Err(Error::io("open", name, depth)(errno)),
        }
    }

    /// Leaves the deepest level, whose entries are all removed, and removes it.
    fn go_up(&mut self) -> Result<(), Error> {
        let (Some(id), Some(level)) = (self.levels.pop(), self.open.pop_back()) else {
            return Ok(());
        };
        let depth = self.levels.len();
        let Some(above_id) = self.levels.last().copied() else {
            return Ok(());
        };
        if let Some(above) = self.open.back() {
            let dir = above
                .entries
                .fd()
                .map_err(Error::io("read", &level.name, depth))?;
            if matches!(unlink(dir, &level.name, depth)?, UnlinkOutcome::NotEmpty) {
                self.go_down(&level.name)?;
            }
            return Ok(());
        }
        let dir = level
            .entries
            .fd()
            .map_err(Error::io("read", &level.name, depth))?;
        let above = dir::enter(dir, c"..").map_err(Error::io("go up from", &level.name, depth))?;
        if Id::of(&above).map_err(Error::io("go up from", &level.name, depth))? != above_id {
            // Another process has moved a directory of the tree, so its parent is not known. The caller
            // starts at the top again.
            self.levels.clear();
            self.is_lost = true;
            return Ok(());
        }
        let entries = Dir::new(above).map_err(Error::io("go up from", &level.name, depth))?;
        // The name of this directory is not known any more: it is found by reading its parent, which was
        // closed before it.
        self.open.push_back(OpenDir {
            entries,
            name: CString::default(),
            last: Some(id),
        });
        Ok(())
    }

    fn repeat(&mut self) -> Result<(), Error> {
        self.repeats += 1;
        if self.repeats > MOST_REPEATS {
            Err(Error::Changing)
        } else {
            Ok(())
        }
    }
}
