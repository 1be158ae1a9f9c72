//! Mounts of a task: its directories, those of its config, and those from Nomad.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use switchyard_core::spec::{
    MissingSource, Mount, MountSource, Propagation, Relabel, is_volume_name,
};
use switchyard_core::{Error, Result};
use switchyard_docker_options::fields::{absolute, check_count, clean};
use switchyard_docker_options::local_volume::{LocalVolume, NfsVolume};
use switchyard_docker_options::tmpfs::Tmpfs;
use switchyard_proto::nomad::drivers::proto as nomad;

use super::request::TaskRequest;
use crate::plan::ConfinedMount;
use crate::plugin_config::matches;
use crate::task_config::{MountKind, MountOptions, TmpfsEntry, Volume, relabel};

/// The mounts of a task.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    /// In the requested order.
    pub(super) mounts: Vec<Mount>,
    /// For each, the field that its source comes from.
    pub(super) fields: Vec<String>,
    /// Those whose sources must be in the allocation directory.
    pub(super) confined: Vec<ConfinedMount>,
    destinations: HashSet<PathBuf>,
}

/// A source path on the host.
struct Source {
    path: PathBuf,
    /// True if it is in the allocation directory, where tasks can create links.
    inside: bool,
}

/// The mounts that a task has.
pub(super) fn mounts(request: &TaskRequest<'_>) -> Result<Mounts> {
    let mut mounts = Mounts::default();
    directories(request, &mut mounts)?;
    for volume in &request.options.volumes {
        let mount = of_volume(request, volume)?;
        mounts.add(request, [&volume.field; 2], mount)?;
    }
    for options in &request.options.mounts {
        let mount = of_options(request, options)?;
        let [source, target] = ["source", "target"].map(|key| format!("{}.{key}", options.field));
        mounts.add(request, [&source, &target], mount)?;
    }
    for tmpfs in &request.options.tmpfs {
        mounts.push([&tmpfs.field; 2], of_tmpfs(tmpfs)?)?;
    }
    for (index, mount) in request.task.mounts.iter().enumerate() {
        let field = format!("task.mounts[{index}]");
        let mount = of_agent(request, &field, mount)?;
        mounts.push([&field; 2], mount)?;
    }
    Ok(mounts)
}

/// The directories that every task has, at the paths in its variables. Not the logs: the agent would follow a
/// link that a task puts there.
fn directories(request: &TaskRequest<'_>, mounts: &mut Mounts) -> Result<()> {
    let directory = |variable: &str, usual: &str| match request.task.env.get(variable) {
        Some(path) => absolute(format_args!("task.env[{variable:?}]"), path),
        None => Ok(PathBuf::from(usual)),
    };
    let alloc = directory("NOMAD_ALLOC_DIR", "/alloc")?;
    let shared = request.alloc_dir.join("alloc");
    let directories = [
        (shared.clone(), alloc.clone(), false, MissingSource::Fail),
        (
            request.task_dir.join("local"),
            directory("NOMAD_TASK_DIR", "/local")?,
            false,
            MissingSource::Fail,
        ),
        (
            request.task_dir.join("secrets"),
            directory("NOMAD_SECRETS_DIR", "/secrets")?,
            false,
            MissingSource::Fail,
        ),
        (
            shared.join("logs"),
            alloc.join("logs"),
            true,
            MissingSource::CreateDir,
        ),
    ];
    for (path, destination, readonly, missing) in directories {
        let source = MountSource::Host { path, missing };
        let mount = Mount {
            readonly,
            selinux_relabel: relabel_by_default(request),
            ..Mount::new(destination, source)
        };
        mounts.add(request, ["task.alloc_dir", "task.env"], mount)?;
    }
    Ok(())
}

fn of_volume(request: &TaskRequest<'_>, volume: &Volume) -> Result<Mount> {
    let Volume {
        field,
        source,
        destination,
        readonly,
        propagation,
        relabel,
        copied,
    } = volume;
    let destination = container_path(field, destination)?;
    let source = match request.options.volume_driver.as_str() {
        // As docker has it: a driver is for names of volumes, and a path is one of the host with every driver.
        driver if driver.is_empty() || source.starts_with('/') => {
            host_source(request, field, source, MissingSource::CreateDir)?
        }
        "local" => named_volume(request, field, (source, *copied))?,
        other => {
            return Err(Error::unimplemented(format!(
                "volume_driver: there is no volume driver {other:?}"
            )));
        }
    };
    Ok(Mount {
        readonly: *readonly,
        propagation: *propagation,
        selinux_relabel: match relabel {
            Relabel::Keep => relabel_by_default(request),
            Relabel::Shared
            | Relabel::Private
            | Relabel::SharedByDefault
            | Relabel::PrivateByDefault => *relabel,
        },
        ..Mount::new(destination, source)
    })
}

fn of_options(request: &TaskRequest<'_>, options: &MountOptions) -> Result<Mount> {
    let MountOptions {
        field,
        target,
        readonly,
        kind,
    } = options;
    let destination = container_path(&format!("{field}.target"), target)?;
    let of_source = format!("{field}.source");
    let mount = match kind {
        MountKind::Bind {
            source,
            propagation,
        } => {
            let source = host_source(request, &of_source, source, MissingSource::Fail)?;
            let of_propagation = format!("{field}.bind_options.propagation");
            let propagation = crate::task_config::propagation(&of_propagation, propagation)?;
            Mount {
                propagation,
                selinux_relabel: relabel_by_default(request),
                ..Mount::new(destination, source)
            }
        }
        MountKind::FileSystem(local) => {
            return file_system(request, field, destination, (local, *readonly));
        }
        MountKind::Volume { name, copied } => {
            let source = named_volume(request, &of_source, (name, *copied))?;
            Mount {
                selinux_relabel: relabel_by_default(request),
                ..Mount::new(destination, source)
            }
        }
        MountKind::Tmpfs { size_bytes, mode } => {
            let mode = if *mode == 0 { 0o1777 } else { *mode };
            let source = MountSource::Tmpfs {
                size_bytes: *size_bytes,
                mode,
            };
            Mount {
                options: vec!["noexec".to_owned()],
                ..Mount::new(destination, source)
            }
        }
    };
    Ok(Mount {
        readonly: *readonly,
        ..mount
    })
}

fn of_tmpfs(entry: &TmpfsEntry) -> Result<Mount> {
    let TmpfsEntry {
        field,
        destination,
        tmpfs,
    } = entry;
    Ok(of_file_system(container_path(field, destination)?, tmpfs))
}

fn of_file_system(destination: PathBuf, tmpfs: &Tmpfs) -> Mount {
    let source = MountSource::Tmpfs {
        size_bytes: tmpfs.size_bytes,
        mode: tmpfs.mode,
    };
    Mount {
        readonly: tmpfs.readonly,
        options: tmpfs.mount_options(),
        ..Mount::new(destination, source)
    }
}

/// A mount that the agent requests: host volumes, CSI, devices. Its paths are trusted.
fn of_agent(request: &TaskRequest<'_>, field: &str, mount: &nomad::Mount) -> Result<Mount> {
    let nomad::Mount {
        task_path,
        host_path,
        readonly,
        propagation_mode,
        selinux_label,
        request_name: _,
    } = mount;
    let destination = container_path(&format!("{field}.task_path"), task_path)?;
    let path = absolute(format_args!("{field}.host_path"), host_path)?;
    let propagation = match propagation_mode.as_str() {
        "" | "private" => Propagation::Private,
        "host-to-task" => Propagation::HostToTask,
        "bidirectional" => Propagation::Bidirectional,
        other => {
            let why = format!("{other:?} is none of private, host-to-task and bidirectional");
            return Err(Error::invalid(
                format_args!("{field}.propagation_mode"),
                why,
            ));
        }
    };
    let selinux_relabel = match selinux_label.as_str() {
        "" => relabel_by_default(request),
        asked => relabel(asked).ok_or_else(|| {
            let why = format!("{asked:?} is neither \"z\" nor \"Z\"");
            Error::invalid(format_args!("{field}.selinux_label"), why)
        })?,
    };
    let source = MountSource::Host {
        path,
        missing: MissingSource::Fail,
    };
    Ok(Mount {
        readonly: *readonly,
        propagation,
        selinux_relabel,
        ..Mount::new(destination, source)
    })
}

// === sources ===

/// The SELinux label that the sources of mounts get by the operator's configuration.
fn relabel_by_default(request: &TaskRequest<'_>) -> Relabel {
    match request.session.config.volumes.selinuxlabel.as_str() {
        "z" => Relabel::SharedByDefault,
        "Z" => Relabel::PrivateByDefault,
        _ => Relabel::Keep,
    }
}

/// A path in the task's directory, or of the host if the operator allows those.
fn host_source(
    request: &TaskRequest<'_>,
    field: &str,
    text: &str,
    missing: MissingSource,
) -> Result<MountSource> {
    let Source { path, inside } = source(request, text);
    if !inside && !request.session.config.volumes.enabled {
        return Err(Error::invalid(
            field,
            format!("volumes are not enabled; cannot mount host paths: {text:?}"),
        ));
    }
    Ok(MountSource::Host { path, missing })
}

/// The location of a source; a relative path starts in the task's directory.
fn source(request: &TaskRequest<'_>, text: &str) -> Source {
    let path = clean(&request.task_dir.join(text));
    let inside = path != request.alloc_dir && path.starts_with(&request.alloc_dir);
    Source { path, inside }
}

/// The file system of a volume with options of its driver, which the operator allows by kind.
fn file_system(
    request: &TaskRequest<'_>,
    field: &str,
    destination: PathBuf,
    (local, readonly): (&LocalVolume, bool),
) -> Result<Mount> {
    let config = &request.session.config.volumes;
    let of_options = format!("{field}.volume_options.driver_config.options");
    let kind = local.kind().unwrap_or_default();
    if !config.enabled {
        let why = format!("volumes are not enabled; cannot mount a {kind} by options of a driver");
        return Err(Error::invalid(of_options, why));
    }
    if !config
        .driver_options
        .iter()
        .any(|pattern| matches(pattern, kind))
    {
        let why = format!(
            "{kind:?} is not allowed on this Nomad agent: have volumes.driver_options of the plugin's configuration name it"
        );
        return Err(Error::invalid(of_options, why));
    }
    Ok(match local {
        LocalVolume::Directory => {
            return Err(Error::internal(format!("{field}: it has no options")));
        }
        LocalVolume::Bind {
            path,
            readonly: by_option,
            options,
        } => {
            let source = MountSource::Host {
                path: path.clone(),
                missing: MissingSource::Fail,
            };
            Mount {
                readonly: readonly || *by_option,
                selinux_relabel: relabel_by_default(request),
                options: options.clone(),
                ..Mount::new(destination, source)
            }
        }
        LocalVolume::Nfs(NfsVolume {
            export,
            server,
            readonly: by_option,
            options,
            flags,
        }) => {
            let source = MountSource::Nfs {
                export: export.clone(),
                server: server.clone(),
                options: options.clone(),
            };
            Mount {
                readonly: readonly || *by_option,
                options: flags.clone(),
                ..Mount::new(destination, source)
            }
        }
        LocalVolume::Tmpfs(tmpfs) => Mount {
            readonly: readonly || tmpfs.readonly,
            ..of_file_system(destination, tmpfs)
        },
    })
}

fn named_volume(
    request: &TaskRequest<'_>,
    field: &str,
    (name, copied): (&str, bool),
) -> Result<MountSource> {
    if !request.session.config.volumes.enabled {
        return Err(Error::invalid(
            field,
            format!("volumes are not enabled; cannot mount volume: {name:?}"),
        ));
    }
    if !is_volume_name(name) {
        return Err(Error::invalid(
            field,
            format!("{name:?} cannot be the name of a volume"),
        ));
    }
    Ok(MountSource::Volume {
        name: name.to_owned(),
        sub_path: PathBuf::new(),
        copied,
    })
}

/// A path inside the task.
fn container_path(field: &str, text: &str) -> Result<PathBuf> {
    if !text.starts_with('/') {
        return Err(Error::invalid(
            field,
            format!("invalid mount path: {text:?} mount path must be absolute"),
        ));
    }
    let path = absolute(field, text)?;
    if path == Path::new("/") {
        return Err(Error::invalid(
            field,
            "invalid specification: destination can't be '/'",
        ));
    }
    Ok(path)
}

// === impl Mounts ===

impl Mounts {
    /// Adds a mount, with the fields that its source and its destination come from. A source in the
    /// allocation directory must not lead out of it through links.
    fn add(
        &mut self,
        request: &TaskRequest<'_>,
        [of_source, of_place]: [&str; 2],
        mount: Mount,
    ) -> Result<()> {
        if let MountSource::Host { path, .. } = &mount.source
            && path.starts_with(&request.alloc_dir)
        {
            self.confined.push(ConfinedMount {
                mount: self.mounts.len(),
                root: request.alloc_dir.clone(),
                field: of_source.to_owned(),
            });
        }
        self.push([of_source, of_place], mount)
    }

    fn push(&mut self, [of_source, of_place]: [&str; 2], mount: Mount) -> Result<()> {
        check_count(of_place, "mounts", self.mounts.len())?;
        if !self.destinations.insert(mount.destination.clone()) {
            let at = mount.destination.display();
            return Err(Error::invalid(
                of_place,
                format!("Duplicate mount point: {at}"),
            ));
        }
        self.mounts.push(mount);
        self.fields.push(of_source.to_owned());
        Ok(())
    }
}
