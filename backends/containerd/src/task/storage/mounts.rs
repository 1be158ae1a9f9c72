//! The mounts of a new task: the source of each is found here, once. The spec, the record and the volumes of
//! the task are made from the result.
//!
//! ```text
//! core Mount ─► FoundSource ─► ResolvedMount ─┬► switchyard_runtime_spec::build: the mount in the OCI spec
//!               (reads node)   (pure)         └► StagedRecord: what a start mounts in the staging directory
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::spec::{Mount, MountSource, Propagation, TaskSpec};
use switchyard_core::{Error, Result};
use switchyard_runtime_spec::mounts::host_source;
use switchyard_runtime_spec::{ImageVolume, RealHost, ResolvedMount, ResolvedSource, Staging, user};

use crate::base::layout::TaskDirs;
use crate::sandbox::SandboxEntry;
use crate::task::storage::stage::image_volume_failed;
use crate::task::storage::{Storage, volumes};

/// The source of a mount, as it was found on the node.
#[derive(Debug, Clone)]
enum FoundSource {
    /// A path of the host, with symlinks resolved.
    Host(PathBuf),
    /// A path below a directory that tasks can write to. It is opened when the task is started.
    Beneath { root: PathBuf, path: PathBuf },
    /// The files of an image.
    Image(FoundImage),
    /// A named volume: its path below the directory of all volumes, its directory, which need not exist yet,
    /// and the path below it that is mounted; empty for the whole.
    Volume { volume: String, dir: PathBuf, path: PathBuf },
    /// None.
    Tmpfs,
}

/// An image that becomes a volume.
#[derive(Debug, Clone)]
struct FoundImage {
    id: String,
    /// Its top layer; none if it has no layers.
    top: Option<String>,
    /// The directory in it that the container sees.
    inside: PathBuf,
}

impl Storage {
    /// Finds the sources of the mounts that a task requests, in the order of the request. Nothing is mounted;
    /// missing paths of the host are created if their mounts request that. Images must be on the node; sub
    /// paths are resolved in them.
    pub(crate) async fn resolve_mounts(
        &self,
        id: TaskId,
        (sandbox_id, sandbox): (SandboxId, &SandboxEntry),
        spec: &TaskSpec,
    ) -> Result<Vec<ResolvedMount>> {
        let stage = self.context.layout.task(id).stage;
        let has_users = sandbox.record.users.is_some();
        let mut mounts = Vec::with_capacity(spec.mounts.len());
        for (number, mount) in spec.mounts.iter().enumerate() {
            let found = match mount.source.clone() {
                MountSource::Host { path, missing } => {
                    let destination = mount.destination.clone();
                    let find = move || host_source(&destination, &path, missing, &RealHost);
                    // Paths of the host can be on a dead network file system, where this blocks for ever.
                    let pool = self.blocking_pools.of(spec.meta.owner);
                    FoundSource::Host(pool.run(format!("sandbox {sandbox_id}"), find).await?)
                }
                MountSource::Beneath { root, path } => FoundSource::Beneath { root, path },
                MountSource::Image { reference, sub_path } => {
                    let found = self.find_image(sandbox, spec.meta.owner, &reference, sub_path).await;
                    FoundSource::Image(found.map_err(image_volume_failed)?)
                }
                MountSource::Volume { name, sub_path: path } => {
                    let volume = volumes::relative(spec.meta.owner, &name)?;
                    FoundSource::Volume { dir: self.volumes.path(&volume), volume, path }
                }
                MountSource::Tmpfs { .. } => FoundSource::Tmpfs,
            };
            mounts.push(resolve(mount.clone(), found, number.to_string(), &stage, has_users)?);
        }
        Ok(mounts)
    }

    /// Finds an image that becomes a volume, and the directory in it that a sub path leads to.
    async fn find_image(
        &self,
        sandbox: &SandboxEntry,
        owner: Owner,
        reference: &str,
        sub_path: PathBuf,
    ) -> Result<FoundImage> {
        let handler = &sandbox.record.handler;
        let image = self.images.runnable(reference, handler, owner).await?;
        let id = image.info.id.to_string();
        if sub_path.as_os_str().is_empty() {
            return Ok(FoundImage { id, top: image.top, inside: PathBuf::new() });
        }
        let absent = |path: &Path| {
            Error::invalid("image_sub_path", format!("{} is no directory of the image", path.display()))
        };
        let Some(top) = image.top else { return Err(absent(&sub_path)) };
        let find_dir = move |root: &Path| {
            let found = user::directory_in_root(root, &sub_path)
                .map_err(|fault| absent(&sub_path).with_source(fault))?;
            found.ok_or_else(|| absent(&sub_path))
        };
        let inside = self
            .image_reader
            .with_view(self.images.policy().snapshotters.of(handler), &top, find_dir)
            .await?;
        Ok(FoundImage { id, top: Some(top), inside })
    }
}

/// Decides how the source of a mount becomes visible to the runtime. `name` is the mount's name in `stage`,
/// the staging directory; `has_users` says whether the sandbox has a user namespace.
///
/// # Errors
/// `InvalidArgument` for an id-mapped mount in a sandbox without a user namespace.
fn resolve(
    requested: Mount,
    found: FoundSource,
    name: String,
    stage: &Path,
    has_users: bool,
) -> Result<ResolvedMount> {
    let staged = stage.join(&name);
    let mut named_volume = None;
    let source = match found {
        FoundSource::Host(_) if requested.id_mapped && !has_users => {
            return Err(Error::invalid(
                "mounts",
                "one of them is id-mapped, and the sandbox has no user namespace",
            ));
        }
        FoundSource::Host(path) if requested.id_mapped => {
            ResolvedSource { path: staged, staging: Staging::IdMapped { name, path } }
        }
        FoundSource::Host(path) => ResolvedSource::unstaged(path),
        FoundSource::Beneath { root, path } => {
            let shared = requested.propagation == Propagation::Bidirectional;
            ResolvedSource { path: staged, staging: Staging::Beneath { name, root, path, shared } }
        }
        FoundSource::Image(FoundImage { id, top, inside }) => {
            ResolvedSource { path: staged.join(inside), staging: Staging::Image { name, id, top } }
        }
        FoundSource::Volume { volume, dir, path } if path.as_os_str().is_empty() => {
            named_volume = Some(volume);
            volume_source(dir, name, stage, has_users)
        }
        FoundSource::Volume { volume, .. } if has_users => {
            let why =
                format!("a path below volume {volume} cannot be mounted in a sandbox with a user namespace");
            return Err(Error::unimplemented(format!("mounts: {why}")));
        }
        // Tasks can put links into it.
        FoundSource::Volume { volume, dir, path } => {
            named_volume = Some(volume);
            ResolvedSource {
                path: staged,
                staging: Staging::Beneath { name, root: dir, path, shared: false },
            }
        }
        FoundSource::Tmpfs => ResolvedSource::unstaged(PathBuf::new()),
    };
    Ok(ResolvedMount { requested, source, volume: named_volume })
}

/// The directory of a volume, whose ids are mapped if the sandbox has a user namespace.
fn volume_source(dir: PathBuf, name: String, stage: &Path, has_users: bool) -> ResolvedSource {
    if has_users {
        ResolvedSource { path: stage.join(&name), staging: Staging::IdMapped { name, path: dir } }
    } else {
        ResolvedSource::unstaged(dir)
    }
}

/// The directories of a task for the volumes that its image declares, except where the task requests a mount.
pub(crate) fn image_volumes(
    declared: &[PathBuf],
    mounts: &[ResolvedMount],
    dirs: &TaskDirs,
    has_users: bool,
) -> Vec<ImageVolume> {
    let requested: HashSet<&Path> =
        mounts.iter().map(|mount| mount.requested.destination.as_path()).collect();
    let volume = |(number, path): (usize, &PathBuf)| {
        let dir = dirs.volumes().join(number.to_string());
        let source = volume_source(dir, format!("volume-{number}"), &dirs.stage, has_users);
        ImageVolume { destination: path.clone(), source }
    };
    declared.iter().filter(|path| !requested.contains(path.as_path())).enumerate().map(volume).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use switchyard_core::spec::MissingSource;

    use super::*;
    use crate::record::StagedRecord;

    const STAGE: &str = "/run/stage/t";

    fn mount(id_mapped: bool, propagation: Propagation) -> Mount {
        Mount {
            destination: PathBuf::from("/data"),
            // `resolve` uses what was found for it.
            source: MountSource::Host { path: PathBuf::from("/asked"), missing: MissingSource::Fail },
            readonly: false,
            recursive_readonly: false,
            propagation,
            id_mapped,
            selinux_relabel: false,
            options: Vec::new(),
        }
    }

    fn volume() -> FoundSource {
        FoundSource::Volume {
            volume: "nomad/data".to_owned(),
            dir: PathBuf::from("/state/volumes/nomad/data"),
            path: PathBuf::new(),
        }
    }

    #[track_caller]
    fn check(id_mapped: bool, found: FoundSource, has_users: bool, path: &str, staged: Option<&str>) {
        let requested = mount(id_mapped, Propagation::Private);
        let resolved = resolve(requested, found, "2".to_owned(), Path::new(STAGE), has_users).unwrap();
        let record = StagedRecord::of(&resolved.source, TaskId::from_bytes([7; 32]));
        let record = record.map(|record| serde_json::to_value(record).unwrap());
        assert_eq!(resolved.source.path, PathBuf::from(path));
        assert_eq!(record, staged.map(|text| serde_json::from_str(text).unwrap()));
    }

    #[test]
    fn source_is_staged_only_where_no_path_of_the_host_has_the_files_as_the_task_sees_them() {
        let host = || FoundSource::Host(PathBuf::from("/srv"));
        check(false, host(), false, "/srv", None);
        check(false, host(), true, "/srv", None);
        let mapped = r#"{"path": {"at": "2", "source": "/srv"}}"#;
        check(true, host(), true, "/run/stage/t/2", Some(mapped));
        check(false, volume(), false, "/state/volumes/nomad/data", None);
        let mapped = r#"{"path": {"at": "2", "source": "/state/volumes/nomad/data"}}"#;
        check(false, volume(), true, "/run/stage/t/2", Some(mapped));
        let below = FoundSource::Volume {
            volume: "nomad/data".to_owned(),
            dir: PathBuf::from("/state/volumes/nomad/data"),
            path: "db/x".into(),
        };
        let opened = r#"{"beneath": {"at": "2", "root": "/state/volumes/nomad/data", "path": "db/x", "shared": false}}"#;
        check(false, below, false, "/run/stage/t/2", Some(opened));
        let beneath = FoundSource::Beneath { root: "/alloc".into(), path: "local/x".into() };
        let opened = r#"{"beneath": {"at": "2", "root": "/alloc", "path": "local/x", "shared": false}}"#;
        check(false, beneath, false, "/run/stage/t/2", Some(opened));
        let image = FoundImage { id: "sha256:b".into(), top: Some("sha256:a".into()), inside: "etc".into() };
        let key = format!("{}-2", TaskId::from_bytes([7; 32]));
        let view = format!(r#"{{"image": {{"at": "2", "key": "{key}", "top": "sha256:a"}}}}"#);
        check(false, FoundSource::Image(image), true, "/run/stage/t/2/etc", Some(&view));
        check(false, FoundSource::Tmpfs, true, "", None);
    }

    #[test]
    fn id_mapped_mount_needs_a_user_namespace() {
        let found = FoundSource::Host(PathBuf::from("/srv"));
        let requested = mount(true, Propagation::Private);
        let refused = resolve(requested, found, "0".to_owned(), Path::new(STAGE), false).unwrap_err();
        assert_eq!(
            refused.report(),
            "mounts: one of them is id-mapped, and the sandbox has no user namespace"
        );
    }

    #[test]
    fn image_volume_gives_way_to_a_mount_and_those_that_remain_are_numbered() {
        let requested = mount(false, Propagation::Private);
        let taken = resolve(requested, volume(), "0".to_owned(), Path::new(STAGE), true).unwrap();
        let dirs = TaskDirs { state: "/state/t".into(), run: "/run/t".into(), stage: STAGE.into() };
        let declared = ["/cache", "/data", "/log"].map(PathBuf::from);
        let volumes = image_volumes(&declared, std::slice::from_ref(&taken), &dirs, true);
        let found: Vec<_> = volumes
            .iter()
            .map(|volume| {
                (volume.destination.to_str(), volume.source.path.to_str(), volume.source.host_path())
            })
            .collect();
        let expected = [
            (Some("/cache"), Some("/run/stage/t/volume-0"), PathBuf::from("/state/t/volumes/0")),
            (Some("/log"), Some("/run/stage/t/volume-1"), PathBuf::from("/state/t/volumes/1")),
        ];
        assert_eq!(found, expected);
        let plain = image_volumes(&declared, &[taken], &dirs, false);
        assert!(plain.iter().all(|volume| volume.source.path == volume.source.host_path()), "{plain:?}");
    }

    fn any_source() -> impl Strategy<Value = FoundSource> {
        let image = || FoundImage { id: "sha256:b".into(), top: None, inside: PathBuf::new() };
        prop_oneof![
            Just(FoundSource::Host(PathBuf::from("/srv"))),
            Just(FoundSource::Beneath { root: PathBuf::from("/alloc"), path: PathBuf::from("x") }),
            Just(FoundSource::Image(image())),
            Just(volume()),
            Just(FoundSource::Tmpfs),
        ]
    }

    proptest! {
        #[test]
        fn runtime_finds_a_source_in_the_staging_directory_exactly_if_a_record_has_it_staged_there(
            found in any_source(), number in 0..300_usize, id_mapped: bool, has_users: bool,
        ) {
            let requested = mount(id_mapped, Propagation::Bidirectional);
            let name = number.to_string();
            let stage = Path::new(STAGE);
            let Ok(resolved) = resolve(requested.clone(), found.clone(), name.clone(), stage, has_users) else {
                prop_assert!(id_mapped && !has_users && matches!(found, FoundSource::Host(_)), "{:?}", found);
                return Ok(());
            };
            let record = StagedRecord::of(&resolved.source, TaskId::from_bytes([7; 32]));
            let at = record.as_ref().map(|record| match record {
                StagedRecord::Path { at, .. }
                | StagedRecord::Beneath { at, .. }
                | StagedRecord::Image { at, .. } => at,
            });
            let staged = resolved.source.path.strip_prefix(STAGE).ok().map(Path::to_path_buf);
            prop_assert_eq!(at.map(PathBuf::from), staged);
            prop_assert!(at.is_none_or(|at| *at == name));
            prop_assert_eq!(resolved.volume.is_some(), matches!(found, FoundSource::Volume { .. }));
            prop_assert_eq!(resolved.requested, requested);
        }
    }
}
