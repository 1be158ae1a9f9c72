//! User namespaces: whether this node supports idmapped mounts, and idmapped mounts of snapshots.
//!
//! The gateway makes the idmapped mounts itself and passes plain paths to runtimes. So such pods work with
//! every containerd, and with every runtime that can create user namespaces; only the kernel and the file
//! systems must support idmapped mounts.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, lchown};
use std::path::{Path, PathBuf};

use containerd_client::types::Mount;
use switchyard_core::spec::{IdMap, IdRange, UserNamespace};
use switchyard_core::{Error, Result};
use switchyard_namespaces as namespaces;
use switchyard_runtime_spec::SandboxUsers;
use switchyard_tree::Cancel;

use crate::base::error::from_namespaces;
use crate::base::fs::{io_error, remove_tree_blocking};
use crate::base::mount::{describe_mount, mount_all};

/// The overlay option that lists the lower directories.
const LOWER: &str = "lowerdir=";

/// The id mapping of the trial, as inside, host and length: any range without the host's root.
const TRIAL_RANGE: [u32; 3] = [0, 100_000, 65_536];

/// Gives a file to the root user of a user namespace.
pub(crate) fn chown_to_container_root(path: &Path, users: &UserNamespace) -> Result<()> {
    chown(path, Some(users.uids.root()), Some(users.gids.root()))
        .map_err(|fault| io_error("change the owner of", path, fault))
}

/// Mounts `source` at `target`, idmapped. Blocks.
pub(crate) fn idmap_mount(users: &SandboxUsers, source: &Path, target: &Path) -> Result<()> {
    namespaces::map_ids(&users.path, source, target).map_err(|fault| {
        Error::failed_precondition(format!(
            "{} cannot be mounted in a pod with a user namespace: its file system, or this kernel, does not support idmapped mounts",
            source.display()
        ))
        .with_source(fault)
    })
}

/// The mounts of a snapshot, with its directories replaced by idmapped mounts below `base`, which must stay
/// until the returned mounts are made. The writable directory is not idmapped: files in it are written with
/// the host's ids. Blocks. Idempotent except for the mounts below `base`.
///
/// # Errors
/// `FailedPrecondition` for a file system without support, `Unimplemented` for a snapshotter whose mounts are
/// not like those of overlayfs.
pub(crate) fn idmap_mounts(
    mounts: Vec<Mount>,
    users: &SandboxUsers,
    base: &Path,
) -> Result<Vec<Mount>> {
    let mut number = 0;
    let mut show = |source: &Path| {
        let target = base.join(number.to_string());
        number += 1;
        fs::create_dir_all(&target).map_err(|fault| io_error("make directory", &target, fault))?;
        idmap_mount(users, source, &target)?;
        Ok::<_, Error>(target)
    };
    let map = |mut mount: Mount| {
        let readonly = mount.options.iter().any(|option| option == "ro");
        match mount.r#type.as_str() {
            "bind" if readonly => {
                mount.source = show(Path::new(&mount.source))?.display().to_string();
                Ok(mount)
            }
            // The snapshot of an image without layers: all its files will be written from inside.
            "bind" => chown_to_container_root(Path::new(&mount.source), &users.map).map(|()| mount),
            "overlay" => {
                let mut upper = None;
                let mut top = None;
                for option in &mut mount.options {
                    if let Some(dirs) = option.strip_prefix(LOWER) {
                        let dirs: Vec<PathBuf> = dirs.split(':').map(PathBuf::from).collect();
                        top = dirs.first().cloned();
                        let shown: Vec<String> = dirs
                            .iter()
                            .map(|dir| Ok(show(dir)?.display().to_string()))
                            .collect::<Result<_>>()?;
                        *option = format!("{LOWER}{}", shown.join(":"));
                    } else if let Some(dir) = option.strip_prefix("upperdir=") {
                        upper = Some(PathBuf::from(dir));
                    }
                }
                if let (Some(upper), Some(top)) = (upper, top) {
                    copy_root_owner(&top, &upper, &users.map)?;
                }
                Ok(mount)
            }
            _other => Err(Error::unimplemented(format!(
                "a snapshotter with the mount {} cannot be idmapped: use overlayfs",
                describe_mount(&mount)
            ))),
        }
    };
    mounts.into_iter().map(map).collect()
}

/// The owner of an overlay's root directory is that of the upper directory: gives that the owner of the
/// image's root directory, mapped.
fn copy_root_owner(from: &Path, upper: &Path, users: &UserNamespace) -> Result<()> {
    let data = fs::metadata(from).map_err(|fault| io_error("stat", from, fault))?;
    let uid = users
        .uids
        .host(data.uid())
        .unwrap_or_else(|| users.uids.root());
    let gid = users
        .gids
        .host(data.gid())
        .unwrap_or_else(|| users.gids.root());
    lchown(upper, Some(uid), Some(gid))
        .map_err(|fault| io_error("change the owner of", upper, fault))
}

/// Tries whether this kernel supports idmapped mounts of the file system that `dir` is on, also as lower
/// directories of an overlay. The mounts are made in a mount namespace of their own. `dir` is removed
/// afterwards; what a killed daemon leaves of it is removed by the next try. Blocks.
///
/// # Errors
/// The step that failed.
pub(crate) fn try_idmap(dir: &Path) -> Result<()> {
    clear_trial(dir)?;
    let tried = namespaces::with_own_mounts(|| idmap_works(dir)).map_err(from_namespaces)?;
    clear_trial(dir)?;
    tried
}

/// The reason why ids cannot be mapped: the error of the trial; on a node that is in a user namespace itself with that as another possible
/// cause, which nobody can change, as the error may say what an operator can mend. Pure.
pub(crate) fn why_not_mapped(error: String, in_user_namespace: bool) -> String {
    if in_user_namespace {
        format!(
            "{error}; another possible cause is that this node is a container in a user namespace, where the kernel maps neither ids that the \
             container lacks nor those of disks that its host has mounted"
        )
    } else {
        error
    }
}

/// Checks that other users than the owner can traverse the path of a directory: root file systems are mounted
/// below it, and to the kernel the root user of a user namespace is another user.
///
/// # Errors
/// `FailedPrecondition`, naming the directory that cannot be traversed.
pub(crate) fn check_traversable(dir: &Path) -> Result<()> {
    for above in dir
        .ancestors()
        .filter(|above| !above.as_os_str().is_empty())
    {
        let data = fs::metadata(above).map_err(|fault| io_error("stat", above, fault))?;
        if data.mode() & 0o001 == 0 {
            return Err(Error::failed_precondition(format!(
                "{} cannot be traversed by users other than its owner: give it the mode 0711",
                above.display()
            )));
        }
    }
    Ok(())
}

fn idmap_works(dir: &Path) -> Result<()> {
    let [lower, upper, work, merged] =
        ["lower", "upper", "work", "merged"].map(|name| dir.join(name));
    for path in [&lower, &upper, &work, &merged] {
        fs::create_dir_all(path).map_err(|fault| io_error("make directory", path, fault))?;
    }
    let file = lower.join("file");
    fs::write(&file, []).map_err(|fault| io_error("write", &file, fault))?;
    let trial = namespaces::Users {
        uids: vec![TRIAL_RANGE],
        gids: vec![TRIAL_RANGE],
    };
    let want = namespaces::PinSpec {
        users: Some(trial),
        ..namespaces::PinSpec::default()
    };
    namespaces::Pins::create(&dir.join("held"), &want).map_err(from_namespaces)?;
    let [inside, host, length] = TRIAL_RANGE;
    let map = IdMap::new(vec![IdRange {
        inside,
        host,
        length,
    }])
    .map_err(Error::internal)?;
    let path = dir.join("held").join(namespaces::Ns::User.file_name());
    let users = SandboxUsers {
        path,
        map: UserNamespace {
            uids: map.clone(),
            gids: map,
        },
    };
    let overlay = Mount {
        r#type: "overlay".to_owned(),
        source: "overlay".to_owned(),
        options: vec![
            format!("{LOWER}{}", lower.display()),
            format!("upperdir={}", upper.display()),
            format!("workdir={}", work.display()),
        ],
        ..Default::default()
    };
    mount_all(
        &idmap_mounts(vec![overlay], &users, &dir.join("layers"))?,
        &merged,
    )?;
    let shown = merged.join("file");
    let uid = fs::metadata(&shown)
        .map_err(|fault| io_error("stat", &shown, fault))?
        .uid();
    if uid == host {
        Ok(())
    } else {
        Err(Error::internal(format!(
            "an idmapped mount shows a file of root's with the owner {uid}, not {host}"
        )))
    }
}

fn clear_trial(dir: &Path) -> Result<()> {
    remove_tree_blocking(dir, &Cancel::default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use switchyard_linux::mounts::MountTable;

    use super::*;

    #[test]
    fn a_directory_that_bars_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let set = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        set(0o700);
        let error = check_traversable(&below).unwrap_err().report();
        assert!(
            error.starts_with(&format!("{} cannot", dir.path().display())),
            "{error}"
        );
        set(0o711);
        check_traversable(&below).unwrap();
    }

    #[test]
    fn reason_names_the_user_namespace_of_a_node_that_is_in_one() {
        for error in [
            "sandbox: cannot write /proc/7/uid_map: Operation not permitted (os error 1)",
            "mount_setattr: Operation not permitted (os error 1)",
            "an idmapped mount shows a file of root's with the owner 0, not 100000",
            "/run/x cannot be traversed by users other than its owner",
        ] {
            let own = why_not_mapped(error.to_owned(), false);
            assert_eq!(own, error);
            let inside = why_not_mapped(error.to_owned(), true);
            assert!(
                inside.starts_with(&format!("{error}; another possible cause is "))
                    && inside.contains("container in a user namespace"),
                "{inside}"
            );
        }
    }

    #[test]
    fn this_node_maps_ids_or_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("probe");
        // A second try succeeds although a killed daemon left parts of the first.
        try_idmap(&place).unwrap();
        fs::create_dir_all(place.join("held")).unwrap();
        fs::write(place.join("held/user"), "").unwrap();
        try_idmap(&place).unwrap();
        assert!(!place.exists());
        let mounts = MountTable::of_this_process().unwrap();
        assert!(mounts.iter().all(|mount| !mount.point.starts_with(&place)));
    }
}
