//! Resolution of the paths in a plan: a task can put links into its directories, and no link may lead a mount
//! out of them.
//!
//! This is the only part of the preparation of a task that accesses files. The kernel confines the look-up
//! (`openat2` with `RESOLVE_BENEATH`): a link that leads out, including any absolute link, is an error. The
//! resolved path is mounted: a link created afterwards is not followed ([`MountSource::Beneath`]).

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

use crate::plan::{ConfinedMount, Plan};

/// The directory of the agent's output FIFOs, in the allocation directory.
const LOGS: &str = "alloc/logs";

/// Maximum number of look-ups of a path while concurrent renames disturb them.
const ATTEMPTS: u32 = 16;

/// Resolves those sources of a plan that must be in the allocation directory, and creates missing directories
/// where requested. Makes the log directory of the allocation read-only wherever it is visible. Blocks on the
/// file system. Idempotent.
///
/// # Errors
/// `InvalidArgument`, naming the key, for a source that does not exist or whose links lead out; directories
/// created before stay.
pub(crate) fn resolve_sources(plan: &mut Plan) -> Result<()> {
    for ConfinedMount { mount, root, field } in &plan.confined {
        let Some(mount) = plan.task.mounts.get_mut(*mount) else {
            continue;
        };
        let MountSource::Host { path, missing } = &mount.source else {
            continue;
        };
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

/// The path of the cgroup that an agent names as created by it; empty if there is none.
pub(crate) fn named_group(task: &nomad::TaskConfig) -> &str {
    let linux = task
        .resources
        .as_ref()
        .and_then(|resources| resources.linux_resources.as_ref());
    linux
        .map(|linux| linux.cpuset_cgroup.as_str())
        .unwrap_or_default()
}

/// Places a task in a cgroup of the gateway's own if the one that its agent names does not exist: an agent
/// that could not create the cgroup names it nevertheless, and leaves the consequence to the driver.
/// Otherwise the runtime would create it with its parents, which nothing would remove. Blocks on the file
/// system. Idempotent.
pub(crate) fn resolve_cgroup(plan: &mut Plan, task: &nomad::TaskConfig) {
    let group = named_group(task);
    if group.is_empty() || Path::new(group).is_dir() {
        return;
    }
    plan.task.cgroup = None;
    plan.warnings.push(format!(
        "the agent's cgroup {group} is not there: the task is in one of the gateway's own"
    ));
}

/// Makes the directory of the agent's output FIFOs read-only: the agent and the runtime would follow a link
/// that a task puts there.
fn protect_logs(mounts: &mut Vec<Mount>) {
    let mut covers = Vec::new();
    for mount in mounts.iter_mut() {
        let MountSource::Beneath { root, path } = &mount.source else {
            continue;
        };
        if path.starts_with(LOGS) {
            mount.readonly = true;
        } else if let Ok(below) = Path::new(LOGS).strip_prefix(path) {
            let source = MountSource::Beneath {
                root: root.clone(),
                path: LOGS.into(),
            };
            let destination = mount.destination.join(below);
            covers.push(Mount {
                destination,
                source,
                readonly: true,
                ..mount.clone()
            });
        }
    }
    for cover in covers {
        // An existing mount there already hides the directory.
        if !mounts
            .iter()
            .any(|mount| mount.destination == cover.destination)
        {
            mounts.push(cover);
        }
    }
}

/// Opens a regular file below a directory for reading; no link leads out. Blocks on the file system.
///
/// # Errors
/// Those of the file system; `InvalidInput` if it is not a regular file.
pub(crate) fn open_below(root: &Path, path: &Path) -> std::io::Result<File> {
    let found = open_beneath(&directory(root)?, path)?;
    // It may be a FIFO or a device, so check the type before opening it for reading.
    let link = format!("/proc/self/fd/{}", found.as_raw_fd());
    if !std::fs::metadata(&link)?.is_file() {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidInput,
            "it is no regular file",
        ));
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

/// Resolves `path`, which is lexically below `root`: returns the path of the root without links, and the
/// rest.
fn resolve(
    root: &Path,
    path: &Path,
    missing: MissingSource,
) -> std::io::Result<(PathBuf, PathBuf)> {
    let root_fd = directory(root)?;
    let below = path.strip_prefix(root).map_err(|_| Errno::EXDEV)?;
    let below = if below.as_os_str().is_empty() {
        Path::new(".")
    } else {
        below
    };
    let found = match (open_beneath(&root_fd, below), missing) {
        (Err(error), MissingSource::CreateDir)
            if error.raw_os_error() == Some(Errno::ENOENT as i32) =>
        {
            make(&root_fd, below)?
        }
        (found, MissingSource::CreateDir | MissingSource::Fail) => found?,
    };
    let [root, found] = [&root_fd, &found]
        .map(|fd| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())));
    let root = root?;
    let found = found?;
    // It was moved away concurrently.
    let below = found
        .strip_prefix(&root)
        .map_err(|_| Errno::EXDEV)?
        .to_owned();
    Ok((root, below))
}

fn directory(path: &Path) -> std::io::Result<OwnedFd> {
    Ok(open(
        path,
        OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
        Mode::empty(),
    )?)
}

/// Opens a path below a directory without ever leaving it.
fn open_beneath(root: &OwnedFd, path: &Path) -> std::io::Result<OwnedFd> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    for _ in 0..ATTEMPTS {
        match openat2(root, path, how) {
            // A directory on the path was renamed concurrently, and the kernel cannot determine whether the
            // look-up left the root.
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            found => return Ok(found?),
        }
    }
    Err(Errno::EAGAIN.into())
}

/// Creates the missing directories of a path below a directory, and opens the last.
fn make(root: &OwnedFd, path: &Path) -> std::io::Result<OwnedFd> {
    let mut at = open_beneath(root, Path::new("."))?;
    let mut way = PathBuf::new();
    for part in path.iter().filter(|part| *part != OsStr::new(".")) {
        match mkdirat(&at, part, Mode::from_bits_truncate(0o755)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        way.push(part);
        // From the root each time: an existing component may be a link to another directory inside.
        at = open_beneath(root, &way)?;
    }
    Ok(at)
}

#[cfg(test)]
mod tests;
