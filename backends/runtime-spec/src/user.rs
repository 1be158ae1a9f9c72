//! Looks the user of a task up in the image's own `/etc/passwd` and `/etc/group`.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use switchyard_core::spec::{GroupPolicy, UserRef, UserSpec};
use switchyard_core::{Error, Result, SpecPart};

use crate::oci;

mod accounts;

use accounts::{GroupQuery, find_account, find_groups};

/// The largest `/etc/passwd` or `/etc/group` that is read by default, in bytes.
pub const MAX_FILE_BYTES: u64 = 10 << 20;

/// The most groups that Linux allows for a process.
const MAX_GROUPS: usize = 65_536;

/// Number of retries of a lookup that was disturbed by a rename.
const OPEN_ATTEMPTS: u32 = 16;

/// The numeric ids that a task runs as.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ResolvedUser {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups, the primary one first, each once.
    pub additional_gids: Vec<u32>,
}

impl ResolvedUser {
    /// The user in the form of the runtime spec.
    #[must_use]
    pub fn to_oci(&self) -> oci::User {
        oci::User {
            uid: self.uid,
            gid: self.gid,
            additional_gids: self.additional_gids.clone(),
        }
    }
}

/// Returns whether the image's account files are needed, so that its root file system must be mounted to
/// resolve the user.
#[must_use]
pub fn needs_rootfs(spec: &UserSpec, image_user: &str) -> bool {
    match (&parse_user(spec, image_user), spec.policy) {
        // The files may have groups of the user.
        (_, GroupPolicy::Merge) => true,
        (_, GroupPolicy::Strict) if !spec.named.is_empty() => true,
        (Ok(wanted), GroupPolicy::Strict) => {
            let group = matches!(wanted.group, Some(Id::Number(_))) || spec.gid.is_some();
            !(matches!(wanted.user, Id::Number(_)) && group)
        }
        (Err(_), GroupPolicy::Strict) => false,
    }
}

/// The contents of an image's account files, for small files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// The contents of `/etc/passwd`.
    pub passwd: Vec<u8>,
    /// The contents of `/etc/group`.
    pub group: Vec<u8>,
}

/// The open account files of an image, of any allowed size.
#[derive(Debug)]
pub struct AccountFiles {
    passwd: Option<File>,
    group: Option<File>,
    bytes: u64,
}

impl AccountFiles {
    /// Opens the account files of the image whose root file system is at `rootfs`. Symlinks cannot lead out
    /// of it; a missing file counts as empty. Blocks on the file system.
    ///
    /// # Errors
    /// `FailedPrecondition` for a file of the image that cannot be read, or is larger than `limit` bytes.
    pub fn open(rootfs: &Path, limit: u64) -> Result<Self> {
        let mut bytes = 0;
        let mut file = |name: &str| {
            let Some((file, size)) =
                open_in_root(rootfs, Path::new(name)).map_err(|fault| unreadable(name, fault))?
            else {
                return Ok(None);
            };
            if size > limit {
                return Err(Error::failed_precondition(format!(
                    "/{name} of the image has {size} bytes, and may have {limit}: see images.max_account_file_bytes"
                )));
            }
            bytes += size;
            Ok(Some(file))
        };
        let passwd = file(PASSWD)?;
        let group = file(GROUP)?;
        Ok(Self {
            passwd,
            group,
            bytes,
        })
    }

    /// Their total size, in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads both files completely. Blocks on the file system.
    ///
    /// # Errors
    /// `FailedPrecondition` for a file that cannot be read.
    pub fn read(self) -> Result<Accounts> {
        let read = |name: &str, file: Option<File>| {
            let mut bytes = Vec::new();
            // No more than the limit when it was opened, even if the file has grown.
            let mut file = file.map(|file| file.take(self.bytes));
            match file
                .as_mut()
                .map(|file| file.read_to_end(&mut bytes))
                .transpose()
            {
                Ok(_) => Ok(bytes),
                Err(fault) => Err(unreadable(name, fault)),
            }
        };
        Ok(Accounts {
            passwd: read(PASSWD, self.passwd)?,
            group: read(GROUP, self.group)?,
        })
    }

    /// As [`resolve`], but streams the files, with at most one field in memory. Blocks on the file system.
    ///
    /// # Errors
    /// Those of [`resolve`]; `FailedPrecondition` for a file that cannot be read.
    pub fn resolve(self, spec: &UserSpec, image_user: &str) -> Result<ResolvedUser> {
        let reader = |file: Option<File>| -> Box<dyn BufRead> {
            match file {
                Some(file) => Box::new(BufReader::with_capacity(BUFFER, file.take(self.bytes))),
                None => Box::new(io::empty()),
            }
        };
        resolve_from(spec, image_user, reader(self.passwd), reader(self.group))
    }
}

const PASSWD: &str = "etc/passwd";
const GROUP: &str = "etc/group";

/// The size of the read buffer, in bytes.
const BUFFER: usize = 64 << 10;

/// Resolves the user with the account files of its image; they may be empty where [`needs_rootfs`] says so.
///
/// - A number that `/etc/passwd` does not have keeps group 0; a name that it does not have is an error.
/// - With [`GroupPolicy::Merge`] the user gets the groups in which `/etc/group` names it, with
///   [`GroupPolicy::Strict`] only those of the request.
/// - Malformed lines are skipped.
///
/// # Errors
/// `InvalidArgument`, naming `user`.
pub fn resolve(spec: &UserSpec, image_user: &str, files: &Accounts) -> Result<ResolvedUser> {
    resolve_from(
        spec,
        image_user,
        files.passwd.as_slice(),
        files.group.as_slice(),
    )
}

fn resolve_from(
    spec: &UserSpec,
    image_user: &str,
    passwd: impl BufRead,
    group: impl BufRead,
) -> Result<ResolvedUser> {
    let UserQuery {
        user,
        group: wanted_group,
    } = parse_user(spec, image_user).map_err(|error| error.about(SpecPart::User))?;
    let account = find_account(passwd, &user).map_err(|fault| unreadable(PASSWD, fault))?;
    let uid = match (&user, &account) {
        (Id::Number(uid), _) => *uid,
        (Id::Name(_), Some(account)) => account.uid,
        (Id::Name(name), None) => {
            return Err(Error::invalid(
                "user",
                format!("{name:?} is not in /etc/passwd of the image"),
            )
            .about(SpecPart::User));
        }
    };
    let named = spec
        .named
        .iter()
        .enumerate()
        .map(|(index, text)| id(text).map_err(|error| error.about(SpecPart::Group(index))))
        .collect::<Result<Vec<_>>>()?;
    let mut wish = GroupQuery::default();
    if let (None, Some(Id::Name(name))) = (spec.gid, &wanted_group) {
        wish.names.insert(name);
    }
    for group in &named {
        if let Id::Name(name) = group {
            wish.names.insert(name);
        }
    }
    if let (GroupPolicy::Merge, Some(account)) = (spec.policy, &account) {
        wish.member = Some(&account.name);
    }
    let groups = find_groups(group, &wish).map_err(|fault| unreadable(GROUP, fault))?;
    let number = |group: &Id| match group {
        Id::Number(gid) => Ok(*gid),
        Id::Name(name) => groups.numbers.get(name).copied().ok_or_else(|| {
            Error::invalid(
                "user",
                format!("group {name:?} is not in /etc/group of the image"),
            )
        }),
    };
    let gid = match (spec.gid, &wanted_group) {
        (Some(gid), _) => gid,
        (None, Some(group)) => number(group).map_err(|error| error.about(SpecPart::User))?,
        (None, None) => account.as_ref().map_or(0, |account| account.gid),
    };
    let mut all = vec![gid];
    let mut seen = std::collections::BTreeSet::from([gid]);
    let mut add = |gid: u32| {
        if seen.insert(gid) {
            all.push(gid);
        }
    };
    groups.of_member.iter().copied().for_each(&mut add);
    spec.supplemental.iter().copied().for_each(&mut add);
    for (index, group) in named.iter().enumerate() {
        add(number(group).map_err(|error| error.about(SpecPart::Group(index)))?);
    }
    if all.len() > MAX_GROUPS {
        return Err(Error::invalid(
            "user",
            format!(
                "{} groups are more than the {MAX_GROUPS} of Linux",
                all.len()
            ),
        ));
    }
    Ok(ResolvedUser {
        uid,
        gid,
        additional_gids: all,
    })
}

fn unreadable(name: &str, fault: io::Error) -> Error {
    Error::failed_precondition(format!("/{name} of the image cannot be read")).with_source(fault)
}

/// A user or group as it is written: a number or a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Id {
    Number(u32),
    Name(String),
}

struct UserQuery {
    user: Id,
    group: Option<Id>,
}

/// The user of the request, or else of the image, or else root.
fn parse_user(spec: &UserSpec, image_user: &str) -> Result<UserQuery> {
    let text = match &spec.user {
        Some(UserRef::Uid(u32::MAX)) => {
            return Err(Error::invalid(
                "user",
                format!("{} is no user id", u32::MAX),
            ));
        }
        Some(UserRef::Uid(uid)) => {
            return Ok(UserQuery {
                user: Id::Number(*uid),
                group: None,
            });
        }
        Some(UserRef::Name(text)) => text,
        None => image_user,
    };
    let (user, group) = text
        .split_once(':')
        .map_or((text, None), |(user, group)| (user, Some(group)));
    let user = if user.is_empty() {
        Id::Number(0)
    } else {
        id(user)?
    };
    let group = group
        .filter(|group| !group.is_empty())
        .map(id)
        .transpose()?;
    Ok(UserQuery { user, group })
}

/// A text of digits is a number, which must be valid on Linux; anything else is a name.
fn id(text: &str) -> Result<Id> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Id::Name(text.to_owned()));
    }
    // The highest number means "no change" to the kernel.
    match text.parse::<u32>() {
        Ok(number) if number != u32::MAX => Ok(Id::Number(number)),
        Ok(_) | Err(_) => Err(Error::invalid(
            "user",
            format!("{text} is no user or group id"),
        )),
    }
}

/// Opens a regular file below `rootfs`, with all symlinks resolved inside `rootfs`; also returns its size in
/// bytes. `None` if there is none.
fn open_in_root(rootfs: &Path, path: &Path) -> io::Result<Option<(File, u64)>> {
    let root = open(
        rootfs,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let Some(place) = place_in_root(&root, path)? else {
        return Ok(None);
    };
    // The image may have a device or a FIFO there: its type is checked before it is opened for reading.
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    let found = std::fs::metadata(&link)?;
    if !found.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is no regular file",
        ));
    }
    Ok(Some((File::open(link)?, found.len())))
}

/// The directory that `path` names below `rootfs`, with all symlinks resolved inside `rootfs`, relative to
/// `rootfs`; `None` if there is none. Blocks on the file system.
///
/// # Errors
/// Those of the file system.
pub fn directory_in_root(rootfs: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let root = open(
        rootfs,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?;
    let Some(place) = place_in_root(&root, path)? else {
        return Ok(None);
    };
    let link = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if !std::fs::metadata(format!("/proc/self/fd/{}", place.as_raw_fd()))?.is_dir() {
        return Ok(None);
    }
    // The kernel resolved the path inside the root; both links give current names.
    Ok(link(&place)?
        .strip_prefix(link(&root)?)
        .ok()
        .map(Path::to_path_buf))
}

fn place_in_root(root: &OwnedFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..OPEN_ATTEMPTS {
        match openat2(root, path, how) {
            Ok(place) => return Ok(Some(place)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            // A directory of the path was renamed meanwhile: the kernel does not know whether it is still
            // inside the root.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EAGAIN.into())
}

#[cfg(test)]
mod tests;
