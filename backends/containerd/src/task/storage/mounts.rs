//! The mounts of a new task: the source of each is found here, once. The spec, the record and the volumes of
//! the task are made from the result.
//!
//! Longer than 500 lines because each kind of source is decided here, and tested beside that.
//!
//! ```text
//! core Mount ─► ResolvedMount ─┬► switchyard_runtime_spec::build: the mount in the OCI spec
//!                              └► StagedRecord: what a start mounts in the staging directory
//! ```

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use switchyard_core::id::{Owner, SandboxId, TaskId};
use switchyard_core::spec::{Mount, MountSource, Propagation, TaskSpec};
use switchyard_core::{Error, Result, SpecPart};
use switchyard_runtime_spec::mounts::host_source;
use switchyard_runtime_spec::{
    ImageVolume, RealHost, ResolvedMount, ResolvedSource, Staging, user,
};

use crate::base::layout::TaskDirs;
use crate::sandbox::SandboxEntry;
use crate::task::storage::stage::image_volume_failed;
use crate::task::storage::{Storage, volumes};

impl Storage {
    /// Finds the sources of the mounts that a task requests, in the order of the request. Nothing is mounted;
    /// missing paths of the host are created if their mounts request that. Images must be on the node; sub
    /// paths are resolved in them.
    pub(crate) async fn resolve_mounts(
        &self,
        id: TaskId,
        sandbox_id: SandboxId,
        sandbox: &SandboxEntry,
        spec: &TaskSpec,
    ) -> Result<Vec<ResolvedMount>> {
        let stage = self.context.layout.task(id).stage;
        let has_users = sandbox.record.users.is_some();
        let mut mounts = Vec::with_capacity(spec.mounts.len());
        for (number, mount) in spec.mounts.iter().enumerate() {
            let place = StagePlace {
                stage: &stage,
                name: number.to_string(),
                has_users,
            };
            let mount = RequestedMount {
                requested: mount,
                place,
            };
            let resolved = self
                .resolve_mount(sandbox_id, sandbox, spec.meta.owner, mount)
                .await;
            mounts.push(resolved.map_err(|error| error.about(SpecPart::Mount(number)))?);
        }
        Ok(mounts)
    }

    async fn resolve_mount(
        &self,
        sandbox_id: SandboxId,
        sandbox: &SandboxEntry,
        owner: Owner,
        mount: RequestedMount<'_>,
    ) -> Result<ResolvedMount> {
        match mount.requested.source.clone() {
            MountSource::Host { path, missing } => {
                let destination = mount.requested.destination.clone();
                let find = move || host_source(&destination, &path, missing, &RealHost);
                // Paths of the host can be on a dead network file system, where this blocks for ever.
                let pool = self.blocking_pools.of(owner);
                mount.host(pool.run(format!("sandbox {sandbox_id}"), find).await?)
            }
            MountSource::Beneath { root, path } => Ok(mount.beneath(root, path)),
            MountSource::Image {
                reference,
                sub_path,
            } => {
                let found = self
                    .find_image(sandbox, owner, &reference, sub_path, mount)
                    .await;
                found.map_err(image_volume_failed)
            }
            MountSource::Volume {
                name,
                sub_path,
                copied: _,
            } => {
                let volume = volumes::relative(owner, &name)?;
                let dir = self.volumes.path(&volume);
                mount.volume(volume, dir, sub_path)
            }
            MountSource::Nfs {
                export,
                server,
                options,
            } => Ok(mount.nfs(export, server, options)),
            MountSource::Tmpfs { .. } => Ok(mount.tmpfs()),
        }
    }

    /// Finds an image that becomes a volume, and the directory in it that a sub path leads to.
    async fn find_image(
        &self,
        sandbox: &SandboxEntry,
        owner: Owner,
        reference: &str,
        sub_path: PathBuf,
        mount: RequestedMount<'_>,
    ) -> Result<ResolvedMount> {
        let handler = &sandbox.record.handler;
        let image = self.images.runnable(reference, handler, owner).await?;
        let id = image.info.id.to_string();
        if sub_path.as_os_str().is_empty() {
            return Ok(mount.image(id, image.top, Path::new("")));
        }
        let absent = |path: &Path| {
            Error::invalid(
                "image_sub_path",
                format!("{} is no directory of the image", path.display()),
            )
        };
        let Some(top) = image.top else {
            return Err(absent(&sub_path));
        };
        let find_dir = move |root: &Path| {
            let found = user::directory_in_root(root, &sub_path)
                .map_err(|fault| absent(&sub_path).with_source(fault))?;
            found.ok_or_else(|| absent(&sub_path))
        };
        let inside = self
            .image_reader
            .with_view(
                self.images.policy().snapshotters.of(handler),
                &top,
                find_dir,
            )
            .await?;
        Ok(mount.image(id, Some(top), &inside))
    }
}

/// A mount that a task requests. Its functions decide for each kind of source whether the runtime can use it as it is,
/// or a place in the staging directory is needed. Pure.
struct RequestedMount<'a> {
    requested: &'a Mount,
    place: StagePlace<'a>,
}

/// The place of a mount in the staging directory of its task.
struct StagePlace<'a> {
    /// The staging directory.
    stage: &'a Path,
    /// The name of the mount in it.
    name: String,
    /// True if the sandbox has a user namespace.
    has_users: bool,
}

// === impl RequestedMount ===

impl RequestedMount<'_> {
    /// A path of the host, with symlinks resolved.
    ///
    /// # Errors
    /// `InvalidArgument` for an id-mapped mount in a sandbox without a user namespace.
    fn host(self, path: PathBuf) -> Result<ResolvedMount> {
        let Self { requested, place } = self;
        if requested.id_mapped && !place.has_users {
            return Err(Error::invalid(
                "mounts",
                "one of them is id-mapped, and the sandbox has no user namespace",
            ));
        }
        let source = if requested.id_mapped {
            place.id_mapped(path)
        } else {
            ResolvedSource::unstaged(path)
        };
        Ok(resolved(requested, source))
    }

    /// A path below a directory that tasks can write to. It is opened when the task is started. Mounts that the task makes
    /// there appear on the host as well if the request says so.
    fn beneath(self, root: PathBuf, path: PathBuf) -> ResolvedMount {
        let Self { requested, place } = self;
        let shared = requested.propagation == Propagation::Bidirectional;
        resolved(requested, place.beneath(root, path, shared))
    }

    /// The files of an image, of which the container sees the directory `inside`. `top` is its top layer;
    /// `None` if it has no layers.
    fn image(self, id: String, top: Option<String>, inside: &Path) -> ResolvedMount {
        let Self { requested, place } = self;
        let source = ResolvedSource {
            path: place.path().join(inside),
            staging: Staging::Image {
                name: place.name,
                id,
                top,
            },
        };
        resolved(requested, source)
    }

    /// The directory of a named volume, which need not exist yet, or a path below it: tasks can put links
    /// into it.
    ///
    /// # Errors
    /// `Unimplemented` for a path below it in a sandbox with a user namespace.
    fn volume(self, volume: String, dir: PathBuf, sub_path: PathBuf) -> Result<ResolvedMount> {
        let Self { requested, place } = self;
        let source = if sub_path.as_os_str().is_empty() {
            place.directory(dir)
        } else if place.has_users {
            let why = format!(
                "a path below volume {volume} cannot be mounted in a sandbox with a user namespace"
            );
            return Err(Error::unimplemented(format!("mounts: {why}")));
        } else {
            place.beneath(dir, sub_path, false)
        };
        Ok(ResolvedMount {
            volume: Some(volume),
            ..resolved(requested, source)
        })
    }

    /// An NFS export, which is mounted when the task is started.
    fn nfs(self, export: String, server: String, options: Vec<String>) -> ResolvedMount {
        let Self { requested, place } = self;
        let source = ResolvedSource {
            path: place.path(),
            staging: Staging::Nfs {
                name: place.name,
                export,
                server,
                options,
            },
        };
        resolved(requested, source)
    }

    /// A new tmpfs, which has no source.
    fn tmpfs(self) -> ResolvedMount {
        resolved(self.requested, ResolvedSource::unstaged(PathBuf::new()))
    }
}

/// A mount with this source, which is no named volume.
fn resolved(requested: &Mount, source: ResolvedSource) -> ResolvedMount {
    ResolvedMount {
        requested: requested.clone(),
        source,
        volume: None,
    }
}

// === impl StagePlace ===

impl StagePlace<'_> {
    fn beneath(self, root: PathBuf, path: PathBuf, shared: bool) -> ResolvedSource {
        ResolvedSource {
            path: self.path(),
            staging: Staging::Beneath {
                name: self.name,
                root,
                path,
                shared,
            },
        }
    }

    /// The directory of a volume, whose ids are mapped if the sandbox has a user namespace.
    fn directory(self, dir: PathBuf) -> ResolvedSource {
        if self.has_users {
            self.id_mapped(dir)
        } else {
            ResolvedSource::unstaged(dir)
        }
    }

    fn id_mapped(self, source: PathBuf) -> ResolvedSource {
        ResolvedSource {
            path: self.path(),
            staging: Staging::IdMapped {
                name: self.name,
                path: source,
            },
        }
    }

    fn path(&self) -> PathBuf {
        self.stage.join(&self.name)
    }
}

/// The directories of a task for the volumes that its image declares, except where the task requests a mount.
pub(crate) fn image_volumes(
    declared: &[PathBuf],
    mounts: &[ResolvedMount],
    dirs: &TaskDirs,
    has_users: bool,
) -> Vec<ImageVolume> {
    let requested: HashSet<&Path> = mounts
        .iter()
        .map(|mount| mount.requested.destination.as_path())
        .collect();
    let volume = |(number, path): (usize, &PathBuf)| {
        let dir = dirs.volumes().join(number.to_string());
        let place = StagePlace {
            stage: &dirs.stage,
            name: format!("volume-{number}"),
            has_users,
        };
        ImageVolume {
            destination: path.clone(),
            source: place.directory(dir),
        }
    };
    declared
        .iter()
        .filter(|path| !requested.contains(path.as_path()))
        .enumerate()
        .map(volume)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{NfsRecord, StagedRecord};

    const STAGE: &str = "/run/stage/t";

    fn request(id_mapped: bool, propagation: Propagation) -> Mount {
        // Its source is what a test has found for it.
        let source = MountSource::Volume {
            name: "data".to_owned(),
            sub_path: PathBuf::new(),
            copied: true,
        };
        Mount {
            id_mapped,
            propagation,
            ..Mount::new("/data", source)
        }
    }

    fn at<'a>(name: &str, requested: &'a Mount, has_users: bool) -> RequestedMount<'a> {
        RequestedMount {
            requested,
            place: StagePlace {
                stage: Path::new(STAGE),
                name: name.to_owned(),
                has_users,
            },
        }
    }

    fn volume(mount: RequestedMount<'_>, sub_path: &str) -> Result<ResolvedMount> {
        mount.volume(
            "nomad/data".to_owned(),
            "/state/volumes/nomad/data".into(),
            sub_path.into(),
        )
    }

    #[track_caller]
    fn check(resolved: ResolvedMount, path: &str, staged: Option<&str>) {
        let record = StagedRecord::of(&resolved.source, TaskId::from_bytes([7; 32]));
        let record = record.map(|record| serde_json::to_value(record).unwrap());
        assert_eq!(resolved.source.path, PathBuf::from(path));
        assert_eq!(
            record,
            staged.map(|text| serde_json::from_str(text).unwrap())
        );
    }

    #[test]
    fn source_is_staged_only_where_no_path_of_the_host_has_the_files_as_the_task_sees_them() {
        let [plain, id_mapped] = [false, true].map(|mapped| request(mapped, Propagation::Private));
        let mount = |has_users| at("2", &plain, has_users);
        check(mount(false).host("/srv".into()).unwrap(), "/srv", None);
        check(mount(true).host("/srv".into()).unwrap(), "/srv", None);
        let mapped = r#"{"path": {"at": "2", "source": "/srv"}}"#;
        check(
            at("2", &id_mapped, true).host("/srv".into()).unwrap(),
            "/run/stage/t/2",
            Some(mapped),
        );
        check(
            volume(mount(false), "").unwrap(),
            "/state/volumes/nomad/data",
            None,
        );
        let mapped = r#"{"path": {"at": "2", "source": "/state/volumes/nomad/data"}}"#;
        check(
            volume(mount(true), "").unwrap(),
            "/run/stage/t/2",
            Some(mapped),
        );
        let opened = r#"{"beneath": {"at": "2", "root": "/state/volumes/nomad/data", "path": "db/x", "shared": false}}"#;
        check(
            volume(mount(false), "db/x").unwrap(),
            "/run/stage/t/2",
            Some(opened),
        );
        let opened =
            r#"{"beneath": {"at": "2", "root": "/alloc", "path": "local/x", "shared": false}}"#;
        let beneath = mount(false).beneath("/alloc".into(), "local/x".into());
        check(beneath, "/run/stage/t/2", Some(opened));
        let both = request(false, Propagation::Bidirectional);
        let opened =
            r#"{"beneath": {"at": "2", "root": "/alloc", "path": "local/x", "shared": true}}"#;
        let beneath = at("2", &both, false).beneath("/alloc".into(), "local/x".into());
        check(beneath, "/run/stage/t/2", Some(opened));
        let image = mount(true).image("sha256:b".into(), Some("sha256:a".into()), Path::new("etc"));
        let key = format!("{}-2", TaskId::from_bytes([7; 32]));
        let view = format!(r#"{{"image": {{"at": "2", "key": "{key}", "top": "sha256:a"}}}}"#);
        check(image, "/run/stage/t/2/etc", Some(&view));
        check(mount(true).tmpfs(), "", None);
    }

    #[test]
    fn nfs_export_is_staged_by_a_record_of_its_own() {
        let plain = request(false, Propagation::Private);
        let options = vec!["soft".to_owned()];
        let resolved = at("3", &plain, false).nfs("nas:/a".into(), "nas".into(), options);
        assert_eq!(
            StagedRecord::of(&resolved.source, TaskId::from_bytes([7; 32])),
            None
        );
        let record =
            NfsRecord::of(&resolved.source).map(|record| serde_json::to_value(record).unwrap());
        let expected = r#"{"at": "3", "export": "nas:/a", "server": "nas", "options": ["soft"]}"#;
        assert_eq!(record, Some(serde_json::from_str(expected).unwrap()));
        assert_eq!(resolved.source.path, PathBuf::from("/run/stage/t/3"));
        assert_eq!(NfsRecord::of(&at("3", &plain, false).tmpfs().source), None);
    }

    #[test]
    fn id_mapped_mount_needs_a_user_namespace() {
        let requested = request(true, Propagation::Private);
        let refused = at("0", &requested, false).host("/srv".into()).unwrap_err();
        assert_eq!(
            refused.report(),
            "mounts: one of them is id-mapped, and the sandbox has no user namespace"
        );
    }

    #[test]
    fn path_below_a_volume_is_refused_in_a_user_namespace() {
        let requested = request(false, Propagation::Private);
        let refused = volume(at("0", &requested, true), "db/x").unwrap_err();
        let expected = "mounts: a path below volume nomad/data cannot be mounted in a sandbox with a user namespace";
        assert_eq!(refused.report(), expected);
    }

    #[test]
    fn image_volume_gives_way_to_a_mount_and_those_that_remain_are_numbered() {
        let requested = request(false, Propagation::Private);
        let taken = volume(at("0", &requested, true), "").unwrap();
        let dirs = TaskDirs {
            state: "/state/t".into(),
            run: "/run/t".into(),
            stage: STAGE.into(),
        };
        let declared = ["/cache", "/data", "/log"].map(PathBuf::from);
        let volumes = image_volumes(&declared, std::slice::from_ref(&taken), &dirs, true);
        let found: Vec<_> = volumes
            .iter()
            .map(|volume| {
                (
                    volume.destination.to_str(),
                    volume.source.path.to_str(),
                    volume.source.host_path(),
                )
            })
            .collect();
        let expected = [
            (
                Some("/cache"),
                Some("/run/stage/t/volume-0"),
                PathBuf::from("/state/t/volumes/0"),
            ),
            (
                Some("/log"),
                Some("/run/stage/t/volume-1"),
                PathBuf::from("/state/t/volumes/1"),
            ),
        ];
        assert_eq!(found, expected);
        let plain = image_volumes(&declared, &[taken], &dirs, false);
        assert!(
            plain
                .iter()
                .all(|volume| volume.source.path == volume.source.host_path()),
            "{plain:?}"
        );
    }

    proptest! {
        #[test]
        fn runtime_finds_a_source_in_the_staging_directory_exactly_if_a_record_has_it_staged_there(
            kind in 0..6_u8, number in 0..300_usize, id_mapped: bool, has_users: bool,
        ) {
            let name = number.to_string();
            let requested = request(id_mapped, Propagation::Bidirectional);
            let mount = at(&name, &requested, has_users);
            let resolved = match kind {
                0 => mount.host("/srv".into()),
                1 => Ok(mount.beneath("/alloc".into(), "x".into())),
                2 => Ok(mount.image("sha256:b".into(), None, Path::new(""))),
                3 => Ok(mount.tmpfs()),
                4 => volume(mount, ""),
                _ => volume(mount, "x"),
            };
            let Ok(resolved) = resolved else {
                let refused = if has_users { kind == 5 } else { kind == 0 && id_mapped };
                prop_assert!(refused, "kind {kind}");
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
            prop_assert_eq!(resolved.volume.is_some(), kind >= 4);
            prop_assert_eq!(resolved.requested, requested);
        }
    }
}
