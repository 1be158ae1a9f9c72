//! Copies a tree.

use std::collections::VecDeque;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Dir, FileType, Gid, Mode, OFlags, Stat, Timespec, Timestamps, Uid, chmodat, chownat,
    fchmod, fchown, fstat, futimens, linkat, mkdirat, mknodat, openat, readlinkat, statat,
    symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

use crate::budget::Budget;
use crate::cancel::Cancel;
use crate::data::{Contents, Fault};
use crate::dir::{self, Id, OPEN_LEVELS};
use crate::error::{Error, Place};
use crate::unsynced::Unsynced;
use crate::xattrs::Xattrs;

/// The result of a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// The number of extended attributes that were left out because the file system of the copy does not
    /// support them.
    pub refused_attributes: u64,
    /// The number of files and directories of the copy that were synced to disk.
    pub synced: u64,
}

/// Copies the contents of the directory `from` into the empty directory `to`, and gives `to` the attributes
/// of `from`.
///
/// As containerd and Docker fill their volumes: owners, permissions, times and extended attributes (`user.`,
/// `trusted.` and `security.`, so capabilities, too) are copied, hard links stay hard links, symlinks are
/// copied as symlinks, and new devices, FIFOs and sockets are created. Holes in files stay holes. `from`
/// must not be changed meanwhile, and no other process may use `to`.
///
/// # Errors
/// [`Error::TooLarge`] when `budget` is used up, [`Error::Cancelled`], [`Error::Mounted`],
/// [`Error::Changing`] when `from` is changed, [`Error::Io`]. `to` contains a part of the copy then, which
/// the caller is to remove.
pub fn copy(
    from: impl AsFd,
    to: impl AsFd,
    budget: &mut Budget,
    cancel: &Cancel,
) -> Result<CopyReport, Error> {
    copy_tree(from.as_fd(), to.as_fd(), (budget, cancel), None)
}

/// As [`copy`]; the copy is on disk when this returns, up to the name of `to` in the directory that contains it.
///
/// # Errors
/// Those of [`copy`].
pub fn copy_durably(
    from: impl AsFd,
    to: impl AsFd,
    budget: &mut Budget,
    cancel: &Cancel,
) -> Result<CopyReport, Error> {
    copy_tree(
        from.as_fd(),
        to.as_fd(),
        (budget, cancel),
        Some(Unsynced::default()),
    )
}

fn copy_tree(
    from: BorrowedFd<'_>,
    to: BorrowedFd<'_>,
    (budget, cancel): (&mut Budget, &Cancel),
    unsynced: Option<Unsynced>,
) -> Result<CopyReport, Error> {
    let mut copying = Copying {
        levels: Vec::new(),
        open: VecDeque::new(),
        root: reopened(to)?,
        links_name: free_name(from).map_err(Error::io("stat", c".links", 0))?,
        links: None,
        contents: Contents::new(),
        xattrs: Xattrs::new(),
        unsynced,
        budget,
        cancel,
    };
    copying.push(reopened(from)?, reopened(to)?, c".")?;
    copying.run()?;
    let synced = copying
        .unsynced
        .as_ref()
        .map(Unsynced::synced)
        .unwrap_or_default();
    Ok(CopyReport {
        refused_attributes: copying.xattrs.refused,
        synced,
    })
}

/// The same directory, opened again, with a read position of its own.
fn reopened(dir: BorrowedFd<'_>) -> Result<OwnedFd, Error> {
    dir::enter(dir, c".").map_err(Error::io("open", c".", 0))
}

/// An unused name in this directory, for the directory that has hard links to files until the copy is done.
fn free_name(dir: impl AsFd) -> Result<CString, Errno> {
    let mut name = b".links".to_vec();
    loop {
        let tried = CString::new(name.clone()).map_err(|_| Errno::INVAL)?;
        match statat(&dir, &tried, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => return Ok(tried),
            Ok(_) => name.push(b'-'),
            Err(errno) => return Err(errno),
        }
    }
}

/// An open directory and its open copy.
struct OpenPair {
    from: Dir,
    to: OwnedFd,
    /// The position at which reading `from` continues.
    offset: i64,
}

/// Identities of a directory and its copy while they are closed, and the position of reading.
struct ClosedPair {
    from: Id,
    to: Id,
    offset: i64,
}

struct Copying<'c> {
    /// The directories from the top of the tree to the current one.
    levels: Vec<ClosedPair>,
    /// The deepest of them, at most [`OPEN_LEVELS`].
    open: VecDeque<OpenPair>,
    root: OwnedFd,
    links_name: CString,
    /// A temporary directory in the copy, in which each file with several hard links has a link named after
    /// its inode. The further names of such a file are linked to that, so that no table of them is kept in
    /// memory.
    links: Option<OwnedFd>,
    contents: Contents,
    xattrs: Xattrs,
    /// Files that are to be on disk in the end; `None` if none are.
    unsynced: Option<Unsynced>,
    budget: &'c mut Budget,
    cancel: &'c Cancel,
}

impl Copying<'_> {
    fn run(&mut self) -> Result<(), Error> {
        while let Some(level) = self.open.back_mut() {
            self.cancel.check()?;
            let depth = self.levels.len();
            let Some(entry) = level.from.read() else {
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
        let from = level.from.fd().map_err(Error::io("read", name, depth))?;
        let seen = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(Error::io("stat", name, depth))?;
        self.budget.take_inode()?;
        if FileType::from_raw_mode(seen.st_mode) == FileType::Directory {
            return self.go_down(name, depth);
        }
        let linked = seen.st_nlink > 1;
        if linked
            && self
                .link(name, &seen)
                .map_err(Error::io("link", name, depth))?
        {
            return Ok(());
        }
        self.file(name, &seen).map_err(|fault| match fault {
            Fault::Kernel(errno) => Error::io("copy", name, depth)(errno),
            Fault::Other(error) => error,
        })?;
        if linked {
            self.register_hard_link(name, &seen)
                .map_err(Error::io("link", name, depth))?;
        }
        Ok(())
    }

    /// Copies an entry that is not a directory, with its attributes.
    fn file(&mut self, name: &CStr, seen: &Stat) -> Result<(), Fault> {
        let Some(OpenPair { from, to, .. }) = self.open.back() else {
            return Ok(());
        };
        let from = from.fd()?;
        let kind = FileType::from_raw_mode(seen.st_mode);
        match kind {
            FileType::RegularFile => {
                // A FIFO may have taken the place of the file since `stat`: it must not be waited for.
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
                let source = openat(from, name, flags, Mode::empty())?;
                let seen = fstat(&source)?;
                if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile {
                    return Err(Error::Changing.into());
                }
                let flags = OFlags::WRONLY
                    | OFlags::CREATE
                    | OFlags::EXCL
                    | OFlags::NOFOLLOW
                    | OFlags::CLOEXEC;
                let target = openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
                let size = u64::try_from(seen.st_size).unwrap_or(0);
                self.contents
                    .copy(&source, &target, size, self.budget, self.cancel)?;
                copy_attributes(&source, &target, &seen, &mut self.xattrs)?;
                return Ok(self
                    .unsynced
                    .as_mut()
                    .map_or(Ok(()), |unsynced| unsynced.add(target))?);
            }
            FileType::Symlink => symlinkat(readlinkat(from, name, Vec::new())?, to, name)?,
            FileType::Directory => return Ok(()),
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => mknodat(to, name, kind, Mode::RUSR | Mode::WUSR, seen.st_rdev)?,
        }
        // The owner comes first, because chown(2) clears set-user-id bits and file capabilities.
        let (uid, gid) = owner(seen);
        chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        if kind != FileType::Symlink {
            // The target was just created and is not a symlink, so following symlinks is harmless.
            chmodat(to, name, mode(seen), AtFlags::empty())?;
        }
        self.xattrs.copy_named(from, to, name)?;
        Ok(utimensat(
            to,
            name,
            &times(seen),
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// Links a further name to a file that was copied already; `false` if it was not.
    fn link(&self, name: &CStr, seen: &Stat) -> Result<bool, Errno> {
        let (Some(links), Some(level)) = (&self.links, self.open.back()) else {
            return Ok(false);
        };
        match linkat(links, key(seen), &level.to, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            // The file system of the copy may allow fewer hard links: the names beyond that are linked to one
            // more copy.
            Err(Errno::NOENT | Errno::MLINK) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Registers the file that was just copied, so that its further names are linked to it.
    fn register_hard_link(&mut self, name: &CStr, seen: &Stat) -> Result<(), Errno> {
        let Some(level) = self.open.back() else {
            return Ok(());
        };
        let links = match &mut self.links {
            Some(links) => links,
            none => {
                mkdirat(&self.root, &self.links_name, Mode::RWXU)?;
                none.insert(dir::enter(&self.root, &self.links_name)?)
            }
        };
        let key = key(seen);
        match unlinkat(&*links, &key, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        linkat(&level.to, name, links, &key, AtFlags::empty())
    }

    fn push(&mut self, from: OwnedFd, to: OwnedFd, name: &CStr) -> Result<(), Error> {
        let depth = self.levels.len();
        let failed = || Error::io("open", name, depth);
        let ids = (
            Id::of(&from).map_err(failed())?,
            Id::of(&to).map_err(failed())?,
        );
        self.levels.push(ClosedPair {
            from: ids.0,
            to: ids.1,
            offset: 0,
        });
        self.open.push_back(OpenPair {
            from: Dir::new(from).map_err(failed())?,
            to,
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

    /// Creates the copy of a directory and continues in it.
    fn go_down(&mut self, name: &CStr, depth: usize) -> Result<(), Error> {
        let Some(OpenPair { from, to, .. }) = self.open.back() else {
            return Ok(());
        };
        self.budget.take_bytes(1)?;
        let opened = || {
            let source = dir::enter(from.fd()?, name)?;
            mkdirat(to, name, Mode::RWXU)?;
            Ok((source, dir::enter(to, name)?))
        };
        match opened() {
            Ok((from, to)) => self.push(from, to, name),
            Err(Errno::XDEV) => Err(Error::Mounted(Place::new(name, depth))),
            Err(errno) => Err(Error::io("copy the directory", name, depth)(errno)),
        }
    }

    /// Leaves the deepest directory, whose entries are all copied, and copies its attributes.
    fn go_up(&mut self) -> Result<(), Error> {
        let (Some(_), Some(level)) = (self.levels.pop(), self.open.pop_back()) else {
            return Ok(());
        };
        let depth = self.levels.len();
        if depth == 0
            && let Some(links) = self.links.take()
        {
            drop(links);
            crate::remove::remove_at(&self.root, &self.links_name, self.cancel)?;
        }
        let failed = |doing| Error::io(doing, c"a directory", depth);
        // The attributes come last: entries that are made in a directory change its times.
        let from = level.from.fd().map_err(failed("read"))?;
        let seen = fstat(from).map_err(failed("stat"))?;
        copy_attributes(from, &level.to, &seen, &mut self.xattrs)
            .map_err(failed("copy the attributes of"))?;
        if let Some(unsynced) = &mut self.unsynced {
            unsynced.sync_dir(&level.to).map_err(failed("sync"))?;
            if depth == 0 {
                unsynced.sync().map_err(failed("sync the files in"))?;
            }
        }
        let (Some(above), None) = (self.levels.last(), self.open.back()) else {
            return Ok(());
        };
        let source = dir::enter(from, c"..").map_err(failed("go up from"))?;
        let target = dir::enter(&level.to, c"..").map_err(failed("go up from the copy of"))?;
        let ids = (Id::of(&source), Id::of(&target));
        if ids != (Ok(above.from), Ok(above.to)) {
            return Err(Error::Changing);
        }
        let mut from = Dir::new(source).map_err(failed("go up from"))?;
        from.seek(above.offset)
            .map_err(failed("continue in the parent of"))?;
        self.open.push_back(OpenPair {
            from,
            to: target,
            offset: above.offset,
        });
        Ok(())
    }
}

/// The name of a file's link in the temporary directory.
fn key(seen: &Stat) -> String {
    format!("{:x}-{:x}", seen.st_dev, seen.st_ino)
}

fn owner(seen: &Stat) -> (Uid, Gid) {
    (Uid::from_raw(seen.st_uid), Gid::from_raw(seen.st_gid))
}

fn mode(seen: &Stat) -> Mode {
    Mode::from_raw_mode(seen.st_mode & 0o7777)
}

fn times(seen: &Stat) -> Timestamps {
    let time = |seconds, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.try_into().unwrap_or_default(),
    };
    Timestamps {
        last_access: time(seen.st_atime, seen.st_atime_nsec),
        last_modification: time(seen.st_mtime, seen.st_mtime_nsec),
    }
}

/// Gives an open file or directory the attributes of another. The owner is changed first, since that clears
/// other attributes.
fn copy_attributes(
    from: impl AsFd,
    to: impl AsFd,
    seen: &Stat,
    xattrs: &mut Xattrs,
) -> Result<(), Errno> {
    let (uid, gid) = owner(seen);
    fchown(&to, Some(uid), Some(gid))?;
    fchmod(&to, mode(seen))?;
    xattrs.copy_open(from, &to)?;
    futimens(to, &times(seen))
}
