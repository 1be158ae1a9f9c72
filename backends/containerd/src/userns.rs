//! User namespaces: whether this node can map ids, and mounts with their ids mapped.
//!
//! The gateway maps ids itself, and hands runtimes plain paths: so every runtime that can make user namespaces can run such pods, and
//! every containerd. Only the kernel and the file systems have a say.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, lchown};
use std::path::{Path, PathBuf};

use containerd_client::types::Mount;
use switchyard_core::spec::{IdMap, IdRange, SandboxNetwork, SandboxSpec, UserNamespace};
use switchyard_core::{Error, Result};
use switchyard_namespaces as namespaces;
use switchyard_runtime_spec::SandboxUsers;
use switchyard_tree::Cancel;

use crate::backend::{Inner, RUNC_TYPE};
use crate::client::describe_mount;
use crate::config::{Runtime, SandboxKind};
use crate::fs::{io_error, remove_tree_blocking};
use crate::mount::mount_all;
use crate::sandbox::from_namespaces;

/// The snapshotter whose mounts can be mapped.
const IDMAP_SNAPSHOTTER: &str = "overlayfs";
/// What tells the directories of an overlay that are below.
const LOWER: &str = "lowerdir=";

/// Any id that is not the host's root, for looking whether it works.
const TRIAL_RANGE: [u32; 3] = [0, 100_000, 65_536];

impl Inner {
    /// Why sandboxes of this runtime cannot have user namespaces; nothing if they can.
    pub(crate) fn userns_unavailable(&self, runtime: &Runtime) -> Option<String> {
        if runtime.type_ != RUNC_TYPE || runtime.sandbox == SandboxKind::Container {
            return Some(format!("its shim, {}, has its own idea of users", runtime.type_));
        }
        if !self.runtime_probes.features_of(&runtime.binary).users {
            return Some(format!("{} cannot make them, or could not be asked", runtime.binary));
        }
        let snapshotter = match runtime.snapshotter.as_str() {
            "" => self.settings.containerd.snapshotter.as_str(),
            own => own,
        };
        if snapshotter != IDMAP_SNAPSHOTTER {
            return Some(format!(
                "ids of the snapshotter {snapshotter} cannot be mapped, only those of {IDMAP_SNAPSHOTTER}"
            ));
        }
        self.runtime_probes
            .idmap_unavailable()
            .map(|why| format!("ids of files cannot be mapped here: {why}"))
    }

    /// Refuses a sandbox with a user namespace that its runtime cannot give it.
    pub(crate) async fn check_userns(&self, spec: &SandboxSpec, runtime: &Runtime) -> Result<()> {
        if matches!(spec.network, SandboxNetwork::Host | SandboxNetwork::Joined(_)) {
            return Err(Error::invalid(
                "users",
                "a user namespace needs a network that is made inside of it",
            ));
        }
        self.runtime_probes.wait_completed().await;
        match self.userns_unavailable(runtime) {
            None => Ok(()),
            Some(why) => Err(Error::unimplemented(format!(
                "users: the handler {:?} of this node has no user namespaces, as Status says: {why}",
                spec.handler
            ))),
        }
    }
}

/// The namespaces crate's word for a map.
pub(crate) fn id_ranges(map: &IdMap) -> Vec<[u32; 3]> {
    map.ranges().iter().map(|range| [range.inside, range.host, range.length]).collect()
}

/// Gives a file to the root inside.
pub(crate) fn chown_to_container_root(path: &Path, users: &UserNamespace) -> Result<()> {
    chown(path, Some(users.uids.root()), Some(users.gids.root()))
        .map_err(|fault| io_error("change the owner of", path, fault))
}

/// Shows `source` at `target` with its ids mapped. Blocks.
pub(crate) fn idmap_mount(users: &SandboxUsers, source: &Path, target: &Path) -> Result<()> {
    namespaces::map_ids(&users.path, source, target).map_err(|fault| {
        Error::failed_precondition(format!(
            "{} cannot be shown to a pod with a user namespace: its file system, or this kernel, cannot map ids",
            source.display()
        ))
        .with_source(fault)
    })
}

/// The mounts of a snapshot with the ids of its files mapped, by mounts below `base`, which must stay until these are made. What is
/// written is written with the ids of the host that those inside are. Blocks. Idempotent but for the mounts below `base`.
///
/// # Errors
/// `FailedPrecondition` for a file system that cannot, `Unimplemented` for a snapshotter that gives other mounts than overlayfs does.
pub(crate) fn idmap_mounts(mounts: Vec<Mount>, users: &SandboxUsers, base: &Path) -> Result<Vec<Mount>> {
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
            // An image without layers: all there will be is written inside.
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
                "ids cannot be mapped for a snapshotter that gives {}: use overlayfs",
                describe_mount(&mount)
            ))),
        }
    };
    mounts.into_iter().map(map).collect()
}

/// The root directory of an overlay is its upper one: it gets the owner that the image's has, as it is inside.
fn copy_root_owner(from: &Path, upper: &Path, users: &UserNamespace) -> Result<()> {
    let data = fs::metadata(from).map_err(|fault| io_error("look at", from, fault))?;
    let uid = users.uids.host(data.uid()).unwrap_or_else(|| users.uids.root());
    let gid = users.gids.host(data.gid()).unwrap_or_else(|| users.gids.root());
    lchown(upper, Some(uid), Some(gid)).map_err(|fault| io_error("change the owner of", upper, fault))
}

/// Whether this kernel maps ids of the file system that `dir` is on, also below an overlay: tried, with mounts that nobody else sees,
/// and nothing left of it but what a kill leaves of `dir`, which the next try clears away. Blocks.
///
/// # Errors
/// What did not work.
pub(crate) fn try_idmap(dir: &Path) -> Result<()> {
    clear_trial(dir)?;
    let tried = namespaces::with_own_mounts(|| idmap_works(dir)).map_err(from_namespaces)?;
    clear_trial(dir)?;
    tried
}

/// Refuses a directory that nobody but its owner can reach: to the kernel, root inside a user namespace is somebody else, and its
/// root file system is put below.
///
/// # Errors
/// `FailedPrecondition`, naming the directory in the way.
pub(crate) fn check_traversable(dir: &Path) -> Result<()> {
    for above in dir.ancestors().filter(|above| !above.as_os_str().is_empty()) {
        let data = fs::metadata(above).map_err(|fault| io_error("look at", above, fault))?;
        if data.mode() & 0o001 == 0 {
            return Err(Error::failed_precondition(format!(
                "{} cannot be passed through by users other than its owner: give it the mode 0711",
                above.display()
            )));
        }
    }
    Ok(())
}

fn idmap_works(dir: &Path) -> Result<()> {
    let [lower, upper, work, merged] = ["lower", "upper", "work", "merged"].map(|name| dir.join(name));
    for path in [&lower, &upper, &work, &merged] {
        fs::create_dir_all(path).map_err(|fault| io_error("make directory", path, fault))?;
    }
    let file = lower.join("file");
    fs::write(&file, []).map_err(|fault| io_error("write", &file, fault))?;
    let trial = namespaces::Users { uids: vec![TRIAL_RANGE], gids: vec![TRIAL_RANGE] };
    let want = namespaces::PinSpec { users: Some(trial), ..namespaces::PinSpec::default() };
    namespaces::Pins::create(&dir.join("held"), &want).map_err(from_namespaces)?;
    let [inside, host, length] = TRIAL_RANGE;
    let map = IdMap::new(vec![IdRange { inside, host, length }]).map_err(Error::internal)?;
    let path = dir.join("held").join(namespaces::Ns::User.file_name());
    let users = SandboxUsers { path, map: UserNamespace { uids: map.clone(), gids: map } };
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
    mount_all(&idmap_mounts(vec![overlay], &users, &dir.join("layers"))?, &merged)?;
    let shown = merged.join("file");
    let uid = fs::metadata(&shown).map_err(|fault| io_error("look at", &shown, fault))?.uid();
    if uid == host { Ok(()) } else { Err(Error::internal(format!("a file of root's belongs to {uid}"))) }
}

fn clear_trial(dir: &Path) -> Result<()> {
    remove_tree_blocking(dir, &Cancel::default())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_that_bars_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        let set = |mode| fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
        set(0o700);
        let error = check_traversable(&below).unwrap_err().report();
        assert!(error.starts_with(&format!("{} cannot", dir.path().display())), "{error}");
        set(0o711);
        check_traversable(&below).unwrap();
    }

    #[test]
    fn this_node_maps_ids_or_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("probe");
        // Twice: what a kill leaves is no obstacle.
        try_idmap(&place).unwrap();
        fs::create_dir_all(place.join("held")).unwrap();
        fs::write(place.join("held/user"), "").unwrap();
        try_idmap(&place).unwrap();
        assert!(!place.exists());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(place.to_str().unwrap()));
    }
}
