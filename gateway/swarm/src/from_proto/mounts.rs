//! Mounts of a task.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use sha2::{Digest as _, Sha256};
use swarm::mount;
use switchyard_core::spec::{MissingSource, Mount, MountSource, Propagation, is_volume_name};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::{absolute, check_count};
use switchyard_docker_options::local_volume::{LocalVolume, NfsVolume, local_volume};
use switchyard_docker_options::tmpfs::Tmpfs;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::file_mode::file_mode;
use super::request::TaskRequest;

/// The mounts of a task.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// In the order of the service.
    pub(super) mounts: Vec<Mount>,
    /// The volumes without a name of the service, which are gone with the task.
    pub(super) anonymous: Vec<String>,
    destinations: BTreeSet<PathBuf>,
}

/// The mounts that a task has.
pub(super) fn mounts(asked: &TaskRequest<'_>) -> Result<Mounts> {
    let mut mounts = Mounts::default();
    for (index, wire) in asked.container.mounts.iter().enumerate() {
        let field = format!("container.mounts[{index}]");
        check_count(&field, "mounts", mounts.mounts.len())?;
        let mount = mount(asked, &field, index, wire, &mut mounts.anonymous)?;
        mounts.reserve(&field, &mount.destination)?;
        mounts.mounts.push(mount);
    }
    Ok(mounts)
}

impl Mounts {
    /// Takes a path in the task for a mount or file.
    ///
    /// # Errors
    /// `InvalidArgument` if another one has it.
    pub(super) fn reserve(&mut self, field: &str, destination: &Path) -> Result<()> {
        if self.destinations.insert(destination.to_owned()) {
            return Ok(());
        }
        Err(Error::invalid(
            field,
            format!("Duplicate mount point: {}", destination.display()),
        ))
    }
}

/// A path inside the task.
pub(super) fn container_path(field: &str, text: &str) -> Result<PathBuf> {
    if !text.starts_with('/') {
        let why = format!("invalid mount target, must be an absolute path: {text:?}");
        return Err(Error::invalid(field, why));
    }
    let path = absolute(field, text)?;
    if path == Path::new("/") {
        return Err(Error::invalid(
            field,
            "invalid mount target, must not be '/'",
        ));
    }
    Ok(path)
}

fn mount(
    asked: &TaskRequest<'_>,
    field: &str,
    index: usize,
    wire: &swarm::Mount,
    anonymous: &mut Vec<String>,
) -> Result<Mount> {
    let swarm::Mount {
        r#type,
        source,
        target,
        readonly,
        bind_options,
        volume_options,
        tmpfs_options,
        // For file systems of other operating systems.
        consistency: _,
    } = wire;
    let source = asked.expand(&format!("{field}.source"), source)?;
    let target = asked.expand(&format!("{field}.target"), target)?;
    let destination = container_path(&format!("{field}.target"), &target)?;
    // Each kind of mount sets its own source.
    let unset = MountSource::Tmpfs {
        size_bytes: 0,
        mode: 0o1777,
    };
    let plain = Mount {
        readonly: *readonly,
        ..Mount::new(destination, unset)
    };
    let unimplemented = |what: &str| Err(Error::unimplemented(format!("{field}.type: {what}")));
    match mount::Type::try_from(*r#type) {
        Ok(mount::Type::Bind) => bind(
            asked,
            field,
            &source,
            bind_options.unwrap_or_default(),
            plain,
        ),
        Ok(mount::Type::Volume) => {
            let unnamed = || {
                let name = anonymous_name(&asked.identity.task_id, index);
                anonymous.push(name.clone());
                name
            };
            let options = volume_options.clone().unwrap_or_default();
            volume(field, source, options, plain, unnamed)
        }
        Ok(mount::Type::Tmpfs) if !source.is_empty() => Err(Error::invalid(
            format_args!("{field}.source"),
            "a tmpfs has none",
        )),
        Ok(mount::Type::Tmpfs) => tmpfs(field, tmpfs_options.clone().unwrap_or_default(), plain),
        Ok(mount::Type::Npipe) => unimplemented("named pipes are for Windows"),
        Ok(mount::Type::Cluster) => unimplemented("volumes of the cluster (CSI) are not supported"),
        Err(_) => unimplemented(&format!("{} is not known", r#type)),
    }
}

fn bind(
    asked: &TaskRequest<'_>,
    field: &str,
    source: &str,
    options: mount::BindOptions,
    plain: Mount,
) -> Result<Mount> {
    use mount::bind_options::Propagation as Wire;
    let mount::BindOptions {
        propagation,
        nonrecursive,
        createmountpoint,
        readonlynonrecursive,
        readonlyforcerecursive,
    } = options;
    let of_source = format!("{field}.source");
    let path = absolute(&of_source, source)?;
    let propagation = match Wire::try_from(propagation) {
        Ok(Wire::Rprivate | Wire::Private) => Propagation::Private,
        Ok(Wire::Rslave | Wire::Slave) => Propagation::HostToTask,
        Ok(Wire::Rshared | Wire::Shared) => Propagation::Bidirectional,
        Err(_) => {
            let why = format!("{propagation} is not known");
            return Err(Error::unimplemented(format!(
                "{field}.bind_options.propagation: {why}"
            )));
        }
    };
    if readonlyforcerecursive && (!plain.readonly || readonlynonrecursive || nonrecursive) {
        let why = "it needs a recursive mount that is read-only";
        return Err(Error::invalid(
            format_args!("{field}.bind_options.readonlyforcerecursive"),
            why,
        ));
    }
    // As docker has it: recursively read-only where the node can.
    let can = asked.node.recursive_readonly_mounts && propagation == Propagation::Private;
    let recursive_readonly =
        plain.readonly && !readonlynonrecursive && !nonrecursive && (readonlyforcerecursive || can);
    let missing = if createmountpoint {
        MissingSource::CreateDir
    } else {
        MissingSource::Fail
    };
    let options = if nonrecursive {
        vec!["bind".to_owned()]
    } else {
        Vec::new()
    };
    Ok(Mount {
        source: MountSource::Host { path, missing },
        recursive_readonly,
        propagation,
        options,
        ..plain
    })
}

/// A volume, or the file system that the options of its driver are for. `unnamed` makes the name of one without.
fn volume(
    field: &str,
    source: String,
    options: mount::VolumeOptions,
    plain: Mount,
    unnamed: impl FnOnce() -> String,
) -> Result<Mount> {
    // Labels of volumes are for docker's lists.
    let mount::VolumeOptions {
        nocopy,
        labels: _,
        driver_config,
        subpath,
    } = options;
    let local = driver_volume(field, driver_config.as_ref())?;
    let sub_path = volume_path(field, &subpath)?;
    if local != LocalVolume::Directory && !sub_path.as_os_str().is_empty() {
        let why = "a file system by options of a driver is mounted as a whole";
        return Err(Error::unimplemented(format!(
            "{field}.volume_options.subpath: {why}"
        )));
    }
    match local {
        LocalVolume::Directory => {
            let name = if source.is_empty() {
                unnamed()
            } else {
                volume_name(field, source)?
            };
            let source = MountSource::Volume {
                name,
                sub_path,
                copied: !nocopy,
            };
            Ok(Mount { source, ..plain })
        }
        LocalVolume::Bind {
            path,
            readonly,
            options,
        } => {
            let missing = MissingSource::Fail;
            Ok(Mount {
                source: MountSource::Host { path, missing },
                readonly: plain.readonly || readonly,
                options,
                ..plain
            })
        }
        LocalVolume::Nfs(NfsVolume {
            export,
            server,
            readonly,
            options,
            flags,
        }) => Ok(Mount {
            source: MountSource::Nfs {
                export,
                server,
                options,
            },
            readonly: plain.readonly || readonly,
            options: flags,
            ..plain
        }),
        LocalVolume::Tmpfs(tmpfs) => {
            let readonly = plain.readonly || tmpfs.readonly;
            Ok(Mount {
                readonly,
                ..of_tmpfs(&tmpfs, plain)
            })
        }
    }
}

/// Returns the kind of a volume with this driver.
fn driver_volume(field: &str, driver: Option<&swarm::Driver>) -> Result<LocalVolume> {
    let Some(swarm::Driver { name, options }) = driver else {
        return Ok(LocalVolume::Directory);
    };
    let field = format!("{field}.volume_options.driver_config");
    if !matches!(name.as_str(), "" | "local") {
        let why = format!("there is no volume driver {name:?}");
        return Err(Error::unimplemented(format!("{field}.name: {why}")));
    }
    local_volume(&format!("{field}.options"), options)
}

/// The directory in a volume that the task sees; empty for the whole.
fn volume_path(field: &str, subpath: &str) -> Result<PathBuf> {
    let field = format!("{field}.volume_options");
    let path = PathBuf::from(subpath);
    let is_below = path
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if !is_below || subpath.contains('\0') {
        let why = format!("{subpath:?} is no relative path below the volume");
        return Err(Error::invalid(format_args!("{field}.subpath"), why));
    }
    Ok(path
        .components()
        .filter(|part| *part != Component::CurDir)
        .collect())
}

fn volume_name(field: &str, name: String) -> Result<String> {
    if is_volume_name(&name) {
        return Ok(name);
    }
    Err(Error::invalid(
        format_args!("{field}.source"),
        format!("{name:?} cannot be the name of a volume"),
    ))
}

/// The name of a volume without one: 64 hexadecimal digits, as docker's, the same for each try of the task.
fn anonymous_name(task_id: &str, index: usize) -> String {
    let digest = Sha256::digest(format!("{task_id}/{index}"));
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn tmpfs(field: &str, options: mount::TmpfsOptions, plain: Mount) -> Result<Mount> {
    let field = format!("{field}.tmpfs_options");
    let mount::TmpfsOptions {
        size_bytes,
        mode,
        options,
    } = options;
    let mut tmpfs = Tmpfs::default();
    tmpfs.readonly = plain.readonly;
    tmpfs.size_bytes = u64::try_from(size_bytes).map_err(|_| {
        Error::invalid(
            format_args!("{field}.size_bytes"),
            format!("{size_bytes} is negative"),
        )
    })?;
    match file_mode(&format!("{field}.mode"), mode)? {
        0 => {}
        mode => tmpfs.mode = mode,
    }
    if !options.is_empty() {
        let field = format!("{field}.options");
        if options.len() > 4096 {
            return Err(Error::invalid(field, "it is longer than 4096 bytes"));
        }
        // Docker writes an option as a list of its name and its value, if it has one. Without options, Docker 28 writes null.
        let list: Option<Vec<Vec<String>>> = serde_json::from_str(&options).map_err(|fault| {
            Error::invalid(&field, "it is no JSON list of lists of texts").with_source(fault)
        })?;
        for option in list.into_iter().flatten() {
            tmpfs.set(&option.join("=")).ok_or_else(|| {
                let why = format!("{option:?} is no option of a tmpfs that can be set here");
                Error::invalid(&field, why)
            })?;
        }
    }
    Ok(of_tmpfs(&tmpfs, plain))
}

fn of_tmpfs(tmpfs: &Tmpfs, plain: Mount) -> Mount {
    Mount {
        source: MountSource::Tmpfs {
            size_bytes: tmpfs.size_bytes,
            mode: tmpfs.mode,
        },
        readonly: tmpfs.readonly,
        options: tmpfs.mount_options(),
        ..plain
    }
}
