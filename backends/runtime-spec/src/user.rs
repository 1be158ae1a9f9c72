//! Looks the user of a task up in the image's own `/etc/passwd` and `/etc/group`.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;
use switchyard_core::spec::{GroupPolicy, UserRef, UserSpec};
use switchyard_core::{Error, Result};

use crate::host::read_regular;
use crate::oci;

/// The largest `/etc/passwd` or `/etc/group` that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// As many groups as Linux lets a process have.
const MAX_GROUPS: usize = 65_536;

/// How often a lookup is tried again that met a rename meanwhile.
const OPEN_ATTEMPTS: u32 = 16;

/// Who a task runs as, in numbers.
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
    /// The user in the words of the runtime spec.
    #[must_use]
    pub fn to_oci(&self) -> oci::User {
        oci::User { uid: self.uid, gid: self.gid, additional_gids: self.additional_gids.clone() }
    }
}

/// Whether the image's files have a say, so that its root file system must be there to resolve the user.
#[must_use]
pub fn needs_rootfs(spec: &UserSpec, image_user: &str) -> bool {
    match (&wanted(spec, image_user), spec.policy) {
        // The files may hold groups of the user.
        (_, GroupPolicy::Merge) => true,
        (_, GroupPolicy::Strict) if !spec.named.is_empty() => true,
        (Ok(wanted), GroupPolicy::Strict) => {
            let group = matches!(wanted.group, Some(Id::Number(_))) || spec.gid.is_some();
            !(matches!(wanted.user, Id::Number(_)) && group)
        }
        (Err(_), GroupPolicy::Strict) => false,
    }
}

/// The files of an image that say who its users are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// What is in `/etc/passwd`.
    pub passwd: Vec<u8>,
    /// What is in `/etc/group`.
    pub group: Vec<u8>,
}

impl Accounts {
    /// Reads them from an image whose root file system is at `rootfs`. No link in it leads out; a file that is missing counts as empty.
    /// Blocks on the file system.
    ///
    /// # Errors
    /// `FailedPrecondition` for a file of the image that cannot be read.
    pub fn read(rootfs: &Path) -> Result<Self> {
        let file = |name: &str| {
            read_in_root(rootfs, Path::new(name)).map_err(|error| {
                Error::failed_precondition(format!("/{name} of the image cannot be read")).with_source(error)
            })
        };
        Ok(Self { passwd: file("etc/passwd")?, group: file("etc/group")? })
    }
}

/// Resolves the user with the account files of its image; they may be empty where [`needs_rootfs`] says so.
///
/// - A number that `/etc/passwd` does not have keeps group 0; a name that it does not have is an error.
/// - With [`GroupPolicy::Merge`] the user gets the groups in which `/etc/group` names it, with
///   [`GroupPolicy::Strict`] only those of the request.
/// - Lines that are malformed are passed over.
///
/// # Errors
/// `InvalidArgument`, naming `user`.
pub fn resolve(spec: &UserSpec, image_user: &str, files: &Accounts) -> Result<ResolvedUser> {
    let Accounts { passwd, group } = files;
    let Wanted { user, group: wanted_group } = wanted(spec, image_user)?;
    let account = match &user {
        Id::Number(uid) => accounts(passwd).find(|account| account.uid == *uid),
        Id::Name(name) => {
            Some(accounts(passwd).find(|account| account.name == *name).ok_or_else(|| {
                Error::invalid("user", format!("{name:?} is not in /etc/passwd of the image"))
            })?)
        }
    };
    let uid = match (&user, &account) {
        (Id::Number(uid), _) => *uid,
        (Id::Name(_), Some(account)) => account.uid,
        (Id::Name(name), None) => return Err(Error::invalid("user", format!("{name:?} is unknown"))),
    };
    let gid = match (spec.gid, wanted_group) {
        (Some(gid), _) | (None, Some(Id::Number(gid))) => gid,
        (None, Some(Id::Name(name))) => named_group(&name, group)?,
        (None, None) => account.as_ref().map_or(0, |account| account.gid),
    };
    let mut all = vec![gid];
    let mut seen = std::collections::BTreeSet::from([gid]);
    let mut add = |gid: u32| {
        if seen.insert(gid) {
            all.push(gid);
        }
    };
    if let (GroupPolicy::Merge, Some(account)) = (spec.policy, &account) {
        groups(group).filter(|entry| entry.members.contains(&account.name)).for_each(|entry| add(entry.gid));
    }
    spec.supplemental.iter().copied().for_each(&mut add);
    for text in &spec.named {
        add(match id(text)? {
            Id::Number(gid) => gid,
            Id::Name(name) => named_group(&name, group)?,
        });
    }
    if all.len() > MAX_GROUPS {
        return Err(Error::invalid(
            "user",
            format!("{} groups are more than the {MAX_GROUPS} of Linux", all.len()),
        ));
    }
    Ok(ResolvedUser { uid, gid, additional_gids: all })
}

/// A user or group as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Id {
    Number(u32),
    Name(String),
}

struct Wanted {
    user: Id,
    group: Option<Id>,
}

/// What the request, or else the image, says; without a word it is root.
fn wanted(spec: &UserSpec, image_user: &str) -> Result<Wanted> {
    let text = match &spec.user {
        Some(UserRef::Uid(u32::MAX)) => {
            return Err(Error::invalid("user", format!("{} is no user id", u32::MAX)));
        }
        Some(UserRef::Uid(uid)) => return Ok(Wanted { user: Id::Number(*uid), group: None }),
        Some(UserRef::Name(text)) => text,
        None => image_user,
    };
    let (user, group) = text.split_once(':').map_or((text, None), |(user, group)| (user, Some(group)));
    let user = if user.is_empty() { Id::Number(0) } else { id(user)? };
    let group = group.filter(|group| !group.is_empty()).map(id).transpose()?;
    Ok(Wanted { user, group })
}

/// A text of digits is a number, which must be one that Linux can have; all else is a name.
fn id(text: &str) -> Result<Id> {
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(Id::Name(text.to_owned()));
    }
    // The highest number means "no change" to the kernel.
    match text.parse::<u32>() {
        Ok(number) if number != u32::MAX => Ok(Id::Number(number)),
        Ok(_) | Err(_) => Err(Error::invalid("user", format!("{text} is no user or group id"))),
    }
}

/// The number of a group that `/etc/group` names.
fn named_group(name: &str, group: &[u8]) -> Result<u32> {
    let found = groups(group).find(|entry| entry.name == name).map(|entry| entry.gid);
    found.ok_or_else(|| Error::invalid("user", format!("group {name:?} is not in /etc/group of the image")))
}

/// A line of `/etc/passwd`.
struct Account {
    name: String,
    uid: u32,
    gid: u32,
}

fn accounts(passwd: &[u8]) -> impl Iterator<Item = Account> {
    lines(passwd).filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
        fields.next()?;
        Some(Account { name, uid: number(fields.next()?)?, gid: number(fields.next()?)? })
    })
}

/// A line of `/etc/group`.
struct Group {
    name: String,
    gid: u32,
    members: Vec<String>,
}

fn groups(group: &[u8]) -> impl Iterator<Item = Group> {
    lines(group).filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?.to_owned();
        fields.next()?;
        let gid = number(fields.next()?)?;
        let members =
            fields.next().unwrap_or_default().split(',').map(|name| name.trim().to_owned()).collect();
        Some(Group { name, gid, members })
    })
}

fn lines(bytes: &[u8]) -> impl Iterator<Item = String> {
    bytes
        .split(|byte| *byte == b'\n')
        .map(|line| String::from_utf8_lossy(line).trim().to_owned())
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
}

fn number(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|number| *number != u32::MAX)
}

/// The content of a file below `rootfs`, every link taken as inside it; empty if there is none.
fn read_in_root(rootfs: &Path, path: &Path) -> io::Result<Vec<u8>> {
    let root = open(rootfs, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let Some(place) = place_in_root(&root, path)? else { return Ok(Vec::new()) };
    // The image may have put a device or a FIFO there: look before it is opened for reading.
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    if !std::fs::metadata(&link)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    read_regular(File::open(link)?, MAX_FILE_BYTES)
}

/// The directory that `path` leads to below `rootfs`, every link taken as inside it, relative to `rootfs`; `None` if there is none.
/// Blocks on the file system.
///
/// # Errors
/// What the file system says.
pub fn directory_in_root(rootfs: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let root = open(rootfs, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    let Some(place) = place_in_root(&root, path)? else { return Ok(None) };
    let link = |fd: &OwnedFd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if !std::fs::metadata(format!("/proc/self/fd/{}", place.as_raw_fd()))?.is_dir() {
        return Ok(None);
    }
    // The kernel has kept the way inside; both names are as it sees them now.
    Ok(link(&place)?.strip_prefix(link(&root)?).ok().map(Path::to_path_buf))
}

fn place_in_root(root: &OwnedFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..OPEN_ATTEMPTS {
        match openat2(root, path, how) {
            Ok(place) => return Ok(Some(place)),
            Err(Errno::ENOENT | Errno::ENOTDIR) => return Ok(None),
            // Somebody renamed a directory on the way, and the kernel cannot tell whether it went out of the root.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Errno::EAGAIN.into())
}

#[cfg(test)]
mod tests;
