//! Mounts the mounts that a snapshotter returned, on the host, for a short time.

use std::path::{Path, PathBuf};

use containerd_client::types::Mount;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use switchyard_core::{Error, ErrorKind, Result};

use crate::base::error::exhausted_or;

/// The longest mount data that is passed as it is, in bytes. The kernel takes one page; longer lists of
/// layers are passed as paths relative to a common directory.
const DATA_LIMIT: usize = 4000;

/// Mounts at `target`, in order. Blocks.
pub(crate) fn mount_all(mounts: &[Mount], target: &Path) -> Result<()> {
    for one in mounts {
        let (flags, mut data) = parse_options(&one.options);
        let base = if data.len() > DATA_LIMIT {
            compact(&mut data)
        } else {
            None
        };
        let result = match base {
            None => mount_one(one, target, flags, &data),
            Some(base) => on_own_thread(|| {
                // Changes the working directory of this thread only.
                unshare(CloneFlags::CLONE_FS)?;
                nix::unistd::chdir(&base)?;
                mount_one(one, target, flags, &data)
            }),
        };
        result.map_err(|fault| {
            // ENOSPC: the mount namespace has as many mounts as it may.
            let kind = exhausted_or(ErrorKind::Internal, &fault);
            let what = format!("mount {} at {}", describe_mount(one), target.display());
            Error::new(kind, what).with_source(fault)
        })?;
    }
    Ok(())
}

/// Unmounts everything at `target`; succeeds if nothing is mounted there. Blocks.
pub(crate) fn unmount_all(target: &Path) -> Result<()> {
    loop {
        match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => return Ok(()),
            Err(fault) => {
                return Err(
                    Error::internal(format!("unmount {}", target.display())).with_source(fault)
                );
            }
        }
    }
}

fn on_own_thread(work: impl FnOnce() -> nix::Result<()> + Send) -> nix::Result<()> {
    std::thread::scope(|scope| {
        scope
            .spawn(work)
            .join()
            .unwrap_or(Err(nix::errno::Errno::EIO))
    })
}

fn mount_one(one: &Mount, target: &Path, flags: MsFlags, data: &str) -> nix::Result<()> {
    let data = (!data.is_empty()).then_some(data);
    mount(
        Some(one.source.as_str()),
        target,
        Some(one.r#type.as_str()),
        flags,
        data,
    )?;
    // The kernel ignores other flags when it creates a bind mount: a remount sets them.
    if flags.contains(MsFlags::MS_BIND) && flags.contains(MsFlags::MS_RDONLY) {
        let again = flags | MsFlags::MS_REMOUNT;
        mount(None::<&str>, target, None::<&str>, again, None::<&str>)?;
    }
    Ok(())
}

fn parse_options(options: &[String]) -> (MsFlags, String) {
    let mut flags = MsFlags::empty();
    let mut data: Vec<&str> = Vec::new();
    for option in options {
        match option.as_str() {
            "bind" => flags |= MsFlags::MS_BIND,
            "rbind" => flags |= MsFlags::MS_BIND | MsFlags::MS_REC,
            "ro" => flags |= MsFlags::MS_RDONLY,
            "nosuid" => flags |= MsFlags::MS_NOSUID,
            "nodev" => flags |= MsFlags::MS_NODEV,
            "noexec" => flags |= MsFlags::MS_NOEXEC,
            "rw" | "defaults" => {}
            other => data.push(other),
        }
    }
    (flags, data.join(","))
}

/// Makes the paths of an overlay's `lowerdir` relative to their common directory, and returns that directory;
/// `None` if they have none.
fn compact(data: &mut String) -> Option<PathBuf> {
    let mut options: Vec<String> = data.split(',').map(str::to_owned).collect();
    let lower = options
        .iter_mut()
        .find(|option| option.starts_with("lowerdir="))?;
    let dirs: Vec<&str> = lower.strip_prefix("lowerdir=")?.split(':').collect();
    let first = Path::new(dirs.first()?);
    let base = first
        .ancestors()
        .find(|base| dirs.iter().all(|dir| Path::new(dir).starts_with(base)))?
        .to_path_buf();
    let relative: Option<Vec<String>> = dirs
        .iter()
        .map(|dir| {
            Some(
                Path::new(dir)
                    .strip_prefix(&base)
                    .ok()?
                    .to_str()?
                    .to_owned(),
            )
            .filter(|dir| !dir.is_empty())
        })
        .collect();
    *lower = format!("lowerdir={}", relative?.join(":"));
    *data = options.join(",");
    Some(base)
}

/// A mount as one line, for messages.
pub(crate) fn describe_mount(mount: &Mount) -> String {
    format!(
        "{} {} {}",
        mount.r#type,
        mount.source,
        mount.options.join(",")
    )
}

/// The directory that an option of a mount names, for example `upperdir` of an overlay.
pub(crate) fn mount_option_dir(mount: &Mount, name: &str) -> Option<PathBuf> {
    mount
        .options
        .iter()
        .find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
        .map(PathBuf::from)
}

/// The directory that holds what is written to a snapshot, given the snapshot's mounts; `None` if the
/// snapshotter has no such directory. A bind mount is of a snapshot without a parent, which is this directory
/// itself.
pub(crate) fn writable_dir(mounts: &[Mount]) -> Option<PathBuf> {
    let mount = mounts.first()?;
    match mount.r#type.as_str() {
        "bind" => Some(PathBuf::from(&mount.source)),
        "overlay" => mount_option_dir(mount, "upperdir"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_become_flags_and_data() {
        let options = ["rbind", "ro", "nosuid", "uid=5"].map(str::to_owned);
        let (flags, data) = parse_options(&options);
        assert_eq!(
            flags,
            MsFlags::MS_BIND | MsFlags::MS_REC | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID
        );
        assert_eq!(data, "uid=5");
    }

    #[test]
    fn a_long_list_of_layers_becomes_relative_to_their_directory() {
        let mut data = "lowerdir=/var/s/12/fs:/var/s/1/fs,index=off".to_owned();
        assert_eq!(compact(&mut data), Some(PathBuf::from("/var/s")));
        assert_eq!(data, "lowerdir=12/fs:1/fs,index=off");
    }
}
