//! What paths in a plan really lead to: a task can put links into its directories, and none of them may lead a mount out of there.
//!
//! The only part of a plan that touches files. The kernel itself keeps the way inside (`openat2` with `RESOLVE_BENEATH`): a link that
//! leads out, also an absolute one, is an error. What is found is mounted as it was found: a link that is put there afterwards is not
//! followed ([`MountSource::Beneath`]).

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, mkdirat};
use switchyard_core::spec::{MissingSource, Mount, MountSource};
use switchyard_core::{Error, Result};
use switchyard_proto::nomad::drivers::proto as nomad;

use crate::from_proto::named_group;
use crate::plan::{ConfinedMount, Plan};

/// Where the agent has its FIFOs for output, in the directory of the allocation.
const LOGS: &str = "alloc/logs";

/// How often a lookup is tried again that met a rename meanwhile.
const ATTEMPTS: u32 = 16;

/// Puts what they really lead to in the place of those sources of a plan that must lie in the directory of the allocation, and makes
/// directories that are to be made. Wherever the logs of the allocation are seen, they can be read only. Blocks on the file system.
/// Idempotent.
///
/// # Errors
/// `InvalidArgument`, naming the key, for a source that is not there, or whose links lead out; what was made before stays.
pub(crate) fn resolve_sources(plan: &mut Plan) -> Result<()> {
    for ConfinedMount { mount, root, field } in &plan.confined {
        let Some(mount) = plan.task.mounts.get_mut(*mount) else { continue };
        let MountSource::Host { path, missing } = &mount.source else { continue };
        let refused = |error: std::io::Error| {
            let why = format!("{} cannot be mounted: {}", path.display(), reason(&error));
            Error::invalid(field, why).with_source(error)
        };
        let (root, path) = resolve(root, path, *missing).map_err(refused)?;
        mount.source = MountSource::Beneath { root, path };
    }
    protect_logs(&mut plan.task.mounts);
    Ok(())
}

/// Has a task make do with a cgroup of the gateway's own if that is not there which its agent names: an agent that could not make one
/// names it all the same, and leaves it to the driver what comes of that. The runtime would make it with all that is above it, which
/// nobody would remove. Blocks on the file system. Idempotent.
pub(crate) fn resolve_cgroup(plan: &mut Plan, task: &nomad::TaskConfig) {
    let group = named_group(task);
    if group.is_empty() || Path::new(group).is_dir() {
        return;
    }
    plan.task.cgroup = None;
    plan.warnings
        .push(format!("the agent's cgroup {group} is not there: the task is in one of the gateway's own"));
}

/// Has nobody write where the agent has its FIFOs for output: it, and the runtime, would follow a link that a task puts there.
fn protect_logs(mounts: &mut Vec<Mount>) {
    let mut covers = Vec::new();
    for mount in mounts.iter_mut() {
        let MountSource::Beneath { root, path } = &mount.source else { continue };
        if path.starts_with(LOGS) {
            mount.readonly = true;
        } else if let Ok(below) = Path::new(LOGS).strip_prefix(path) {
            let source = MountSource::Beneath { root: root.clone(), path: LOGS.into() };
            let destination = mount.destination.join(below);
            covers.push(Mount { destination, source, readonly: true, ..mount.clone() });
        }
    }
    for cover in covers {
        // What is mounted there already hides them.
        if !mounts.iter().any(|mount| mount.destination == cover.destination) {
            mounts.push(cover);
        }
    }
}

/// Opens a file below a directory for reading; no link leads out. Blocks on the file system.
///
/// # Errors
/// What the file system says; `InvalidInput` for what is no regular file.
pub(crate) fn open_below(root: &Path, path: &Path) -> std::io::Result<File> {
    let place = open_beneath(&directory(root)?, path)?;
    // It may be a FIFO or a device: look before it is opened for reading.
    let link = format!("/proc/self/fd/{}", place.as_raw_fd());
    if !std::fs::metadata(&link)?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    File::open(link)
}

fn reason(error: &std::io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EXDEV) => "a link in it leads out of the allocation's directory",
        Some(Errno::ELOOP) => "its links lead in a circle",
        Some(Errno::ENOENT) => "it is not there",
        _ => "it cannot be opened",
    }
}

/// The path without links of what is at `path`, which is below `root` as a text: that of the root, and the rest.
fn resolve(root: &Path, path: &Path, missing: MissingSource) -> std::io::Result<(PathBuf, PathBuf)> {
    let root_fd = directory(root)?;
    let below = path.strip_prefix(root).map_err(|_| Errno::EXDEV)?;
    let below = if below.as_os_str().is_empty() { Path::new(".") } else { below };
    let place = match (open_beneath(&root_fd, below), missing) {
        (Err(error), MissingSource::CreateDir) if error.raw_os_error() == Some(Errno::ENOENT as i32) => {
            make(&root_fd, below)?
        }
        (place, MissingSource::CreateDir | MissingSource::Fail) => place?,
    };
    let [root, place] =
        [&root_fd, &place].map(|held| std::fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())));
    let root = root?;
    let place = place?;
    // It is moved away just now.
    let below = place.strip_prefix(&root).map_err(|_| Errno::EXDEV)?.to_owned();
    Ok((root, below))
}

fn directory(path: &Path) -> std::io::Result<OwnedFd> {
    Ok(open(path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// What is at a path below a directory, found without ever leaving it.
fn open_beneath(root: &OwnedFd, path: &Path) -> std::io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..ATTEMPTS {
        match openat2(root, path, how) {
            // Somebody renamed a directory on the way, and the kernel cannot tell whether it went out of the root.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            place => return Ok(place?),
        }
    }
    Err(Errno::EAGAIN.into())
}

/// Makes the directories of a path below a directory that are missing, and opens the last.
fn make(root: &OwnedFd, path: &Path) -> std::io::Result<OwnedFd> {
    let mut at = open_beneath(root, Path::new("."))?;
    let mut way = PathBuf::new();
    for part in path.iter().filter(|part| *part != OsStr::new(".")) {
        match mkdirat(&at, part, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        way.push(part);
        // From the root each time: what is there may be a link that leads elsewhere inside.
        at = open_beneath(root, &way)?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests;
