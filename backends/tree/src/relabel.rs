//! Gives all files of a tree one SELinux label.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{Dir, FileType, XattrFlags, fstat, getxattr, setxattr};
use rustix::io::Errno;

use crate::cancel::Cancel;
use crate::dir::{self, Id, OPEN_LEVELS};
use crate::error::Error;

/// The size of the longest label that is read, in bytes; a longer one is none that is given here.
const LONGEST: usize = 8 << 10;

/// The extended attribute that the files of a tree are to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Label<'a> {
    attribute: &'a str,
    value: &'a str,
}

/// The result of labelling a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelabelReport {
    /// The number of files and directories whose label was changed; all others had it.
    pub changed: u64,
    /// The number of those that keep their label because their file system stores none.
    pub unsupported: u64,
}

/// Gives the file or directory `top`, and everything below it, a label. What has it already is not written to.
///
/// `top` may be opened with `O_PATH`. No symlink is followed: it gets the label itself. What is mounted below `top` keeps
/// its labels. A directory gets its label before its entries do, so that what is created in it meanwhile inherits it.
/// What was labelled stays so if this fails or is cancelled, and another call continues.
///
/// # Errors
/// [`Error::Cancelled`]; [`Error::Changing`] if other processes move directories of the tree; [`Error::Io`], with
/// `EROFS` on a read-only file system, and `EINVAL` if the node's policy has no such label.
pub fn relabel(top: impl AsFd, label: Label<'_>, cancel: &Cancel) -> Result<RelabelReport, Error> {
    let mut walk = Relabelling {
        levels: Vec::new(),
        open: VecDeque::new(),
        label,
        found: vec![0; LONGEST],
        report: RelabelReport::default(),
        cancel,
    };
    cancel.check()?;
    walk.label(&top, c".", 0)?;
    // Mounts are not entered, so all of the tree is on this file system.
    if walk.report.unsupported == 0 && is_dir(&top).map_err(Error::io("stat", c".", 0))? {
        walk.push(&top, c".")?;
        walk.run()?;
    }
    Ok(walk.report)
}

// === impl Label ===

impl<'a> Label<'a> {
    /// An SELinux label: user, role, type and level, joined by `:`.
    #[must_use]
    pub const fn selinux(value: &'a str) -> Self {
        Self::of("security.selinux", value)
    }

    /// The label in another extended attribute, as tests have it on a node without SELinux.
    #[must_use]
    pub const fn of(attribute: &'a str, value: &'a str) -> Self {
        Self { attribute, value }
    }
}

/// A directory while it is open, and the position at which reading it continues.
struct OpenLevel {
    entries: Dir,
    offset: i64,
}

/// The identity of a directory while it is closed, and the position of reading.
struct ClosedLevel {
    id: Id,
    offset: i64,
}

struct Relabelling<'c> {
    /// The directories from the top of the tree to the current one.
    levels: Vec<ClosedLevel>,
    /// The deepest of them, at most [`OPEN_LEVELS`].
    open: VecDeque<OpenLevel>,
    label: Label<'c>,
    /// Holds the label that a file has.
    found: Vec<u8>,
    report: RelabelReport,
    cancel: &'c Cancel,
}

impl Relabelling<'_> {
    fn run(&mut self) -> Result<(), Error> {
        while let Some(level) = self.open.back_mut() {
            self.cancel.check()?;
            let depth = self.levels.len();
            let Some(entry) = level.entries.read() else {
                self.go_up()?;
                continue;
            };
            let entry = entry.map_err(Error::io("read", c"a directory", depth - 1))?;
            level.offset = entry.offset();
            let name = entry.file_name();
            if name != c"." && name != c".." {
                self.entry(name, depth)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, name: &CStr, depth: usize) -> Result<(), Error> {
        let Some(level) = self.open.back() else {
            return Ok(());
        };
        let dir = level.entries.fd().map_err(Error::io("read", name, depth))?;
        let file = match dir::handle(dir, name) {
            Ok(file) => file,
            // It was removed meanwhile, or something is mounted there.
            Err(Errno::NOENT | Errno::XDEV) => return Ok(()),
            Err(errno) => return Err(Error::io("open", name, depth)(errno)),
        };
        self.label(&file, name, depth)?;
        if is_dir(&file).map_err(Error::io("stat", name, depth))? {
            self.push(&file, name)?;
        }
        Ok(())
    }

    /// Labels one file, directory or symlink.
    fn label(&mut self, file: impl AsFd, name: &CStr, depth: usize) -> Result<(), Error> {
        // A handle has no calls for attributes of its own. This path leads to what it was opened for, and no further, also
        // if that is a symlink.
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let Label { attribute, value } = self.label;
        if let Ok(length) = getxattr(path.as_str(), attribute, &mut self.found[..])
            && without_end(&self.found[..length]) == value.as_bytes()
        {
            return Ok(());
        }
        match setxattr(
            path.as_str(),
            attribute,
            value.as_bytes(),
            XattrFlags::empty(),
        ) {
            Ok(()) => self.report.changed += 1,
            Err(Errno::OPNOTSUPP) => self.report.unsupported += 1,
            // It was removed meanwhile.
            Err(Errno::NOENT | Errno::STALE) => {}
            Err(errno) => return Err(Error::io("label", name, depth)(errno)),
        }
        Ok(())
    }

    fn push(&mut self, dir: impl AsFd, name: &CStr) -> Result<(), Error> {
        let depth = self.levels.len();
        let failed = || Error::io("open", name, depth);
        let dir = dir::enter(dir, c".").map_err(failed())?;
        self.levels.push(ClosedLevel {
            id: Id::of(&dir).map_err(failed())?,
            offset: 0,
        });
        self.open.push_back(OpenLevel {
            entries: Dir::new(dir).map_err(failed())?,
            offset: 0,
        });
        if self.open.len() > OPEN_LEVELS
            && let Some(level) = self.open.pop_front()
        {
            let number = self.levels.len() - 1 - OPEN_LEVELS;
            self.levels[number].offset = level.offset;
        }
        Ok(())
    }

    /// Leaves the deepest directory, and opens the one above it again if that was closed.
    fn go_up(&mut self) -> Result<(), Error> {
        let (Some(_), Some(level)) = (self.levels.pop(), self.open.pop_back()) else {
            return Ok(());
        };
        let (Some(above), None) = (self.levels.last(), self.open.back()) else {
            return Ok(());
        };
        let depth = self.levels.len();
        let failed = |doing| Error::io(doing, c"a directory", depth);
        let dir = level.entries.fd().map_err(failed("read"))?;
        let parent = dir::enter(dir, c"..").map_err(failed("go up from"))?;
        if Id::of(&parent) != Ok(above.id) {
            return Err(Error::Changing);
        }
        let mut entries = Dir::new(parent).map_err(failed("go up from"))?;
        entries
            .seek(above.offset)
            .map_err(failed("continue in the parent of"))?;
        self.open.push_back(OpenLevel {
            entries,
            offset: above.offset,
        });
        Ok(())
    }
}

fn is_dir(file: impl AsFd) -> Result<bool, Errno> {
    let seen = fstat(file)?;
    Ok(FileType::from_raw_mode(seen.st_mode) == FileType::Directory)
}

/// A label as the kernel returns it, which may end with a zero.
fn without_end(label: &[u8]) -> &[u8] {
    label.strip_suffix(b"\0").unwrap_or(label)
}
