//! Staged mounts: what a runtime needs on the host while it creates a container, and nobody needs afterwards.
//! These are images that are volumes of the task, paths into which tasks can put symbolic links, and paths
//! and layers whose ids are mapped into the sandbox's user namespace.
//!
//! All of them are mounted below one directory of the task right before its process is created, and unmounted
//! right after: by then the container has its own copies of the mounts. The view snapshot of each image stays
//! as long as the task, so that its files do.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use containerd_client::services::v1::snapshots as snap;
use containerd_client::types::Mount;
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::spec::{MountSource, Propagation, TaskSpec};
use switchyard_core::{Error, Reason, Result};
use switchyard_namespaces::mounts::PathHandle;
use switchyard_namespaces::tasks::unmount_tree;
use switchyard_runtime_spec::{ImageVolume, SandboxUsers, user};

use crate::base::error::from_namespaces;
use crate::base::fs::{blocking, create_private_dir_blocking, io_error, remove_tree};
use crate::base::mount::mount_all;
use crate::base::steps::Step;
use crate::client::{QUICK, call, ignore_not_found};
use crate::node::userns;
use crate::record::StagedRecord;
use crate::sandbox::SandboxEntry;
use crate::task::TaskEntry;
use crate::task::storage::{Storage, volumes};

/// An image that becomes a volume.
struct PlannedImageVolume {
    /// Its id.
    image: String,
    /// Its top layer; none if it has no layers.
    top: Option<String>,
    /// The directory in it that the container sees.
    inside: PathBuf,
}

/// The source of a staged mount.
enum StageSource {
    /// A path of the host, mounted with its ids mapped.
    Path(PathBuf),
    /// An opened path, and whether mounts in it appear on the host as well.
    Held(PathHandle, bool),
    /// The mounts of a view snapshot.
    Mounts(Vec<Mount>),
}

/// Everything that is to be staged for a task.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    /// In the order in which they are mounted.
    pub(crate) records: Vec<StagedRecord>,
    /// By the index of a mount in the request: the path at which its source will be.
    pub(crate) mount_sources: BTreeMap<usize, PathBuf>,
    /// The named volumes: the mount point of each in the container, and its path below the directory of all
    /// volumes.
    pub(crate) volumes: Vec<(PathBuf, String)>,
    /// The ids of the images that are volumes.
    pub(crate) images: Vec<String>,
}

impl Staging {
    /// Adds the paths whose ids are to be mapped, which are known once the spec is built, and, if there is a
    /// user namespace, the directories of image volumes.
    pub(crate) fn add_paths(&mut self, mounts: &[(usize, PathBuf)], volumes: &[ImageVolume], users: bool) {
        for (number, source) in mounts {
            self.records.push(StagedRecord::Path { at: number.to_string(), source: source.clone() });
        }
        for (number, volume) in volumes.iter().enumerate().filter(|_| users) {
            self.records.push(StagedRecord::Path { at: volume_name(number), source: volume.source.clone() });
        }
    }
}

/// The name of an image volume's directory in the staging directory.
pub(crate) fn volume_name(number: usize) -> String {
    format!("volume-{number}")
}

impl Storage {
    /// Plans what is staged for a task, without mounting anything. Images must be on the node; sub paths are
    /// resolved in them.
    pub(crate) async fn plan_staging(
        &self,
        id: TaskId,
        sandbox: &SandboxEntry,
        spec: &TaskSpec,
    ) -> Result<Staging> {
        let dir = self.context.layout.task(id).stage;
        let mut staging = Staging::default();
        for (number, mount) in spec.mounts.iter().enumerate() {
            let at = dir.join(number.to_string());
            match &mount.source {
                MountSource::Image { reference, sub_path } => {
                    let planned = self.plan_image(sandbox, spec.meta.owner, reference, sub_path).await;
                    let PlannedImageVolume { image, top, inside } = planned.map_err(image_volume_failed)?;
                    let key = format!("{id}-{number}");
                    staging.images.push(image);
                    staging.records.push(StagedRecord::Image { at: number.to_string(), key, top });
                    staging.mount_sources.insert(number, at.join(inside));
                }
                MountSource::Host { .. } if mount.id_mapped => {
                    if sandbox.record.users.is_none() {
                        return Err(Error::invalid(
                            "mounts",
                            "one of them is id-mapped, and the sandbox has no user namespace",
                        ));
                    }
                    staging.mount_sources.insert(number, at);
                }
                MountSource::Volume { name } => {
                    let volume = volumes::relative(spec.meta.owner, name)?;
                    let source = self.volumes.path(&volume);
                    if sandbox.record.users.is_some() {
                        staging.records.push(StagedRecord::Path { at: number.to_string(), source });
                        staging.mount_sources.insert(number, at);
                    } else {
                        staging.mount_sources.insert(number, source);
                    }
                    staging.volumes.push((mount.destination.clone(), volume));
                }
                MountSource::Beneath { root, path } => {
                    staging.records.push(StagedRecord::Beneath {
                        at: number.to_string(),
                        root: root.clone(),
                        path: path.clone(),
                        shared: mount.propagation == Propagation::Bidirectional,
                    });
                    staging.mount_sources.insert(number, at);
                }
                MountSource::Host { .. } | MountSource::Tmpfs { .. } => {}
            }
        }
        Ok(staging)
    }

    /// Finds an image that becomes a volume, and the directory in it that a sub path leads to.
    async fn plan_image(
        &self,
        sandbox: &SandboxEntry,
        owner: Owner,
        reference: &str,
        sub_path: &Path,
    ) -> Result<PlannedImageVolume> {
        let handler = &sandbox.record.handler;
        let image = self.images.runnable(reference, handler, owner).await?;
        let planned = |top, inside| PlannedImageVolume { image: image.info.id.to_string(), top, inside };
        if sub_path.as_os_str().is_empty() {
            return Ok(planned(image.top, PathBuf::new()));
        }
        let absent = |path: &Path| {
            Error::invalid("image_sub_path", format!("{} is no directory of the image", path.display()))
        };
        let Some(top) = image.top else { return Err(absent(sub_path)) };
        let wanted = sub_path.to_path_buf();
        let find_dir = move |root: &Path| {
            let found =
                user::directory_in_root(root, &wanted).map_err(|fault| absent(&wanted).with_source(fault))?;
            found.ok_or_else(|| absent(&wanted))
        };
        let found =
            self.image_reader.with_view(self.images.snapshotters().of(handler), &top, find_dir).await?;
        Ok(planned(Some(top), found))
    }

    /// Prepares the view snapshots of a task's images. Labels of its container object keep them.
    pub(crate) async fn view_images(&self, entry: &TaskEntry) -> Result<()> {
        let images = entry.record().image_views();
        if images.is_empty() {
            return Ok(());
        }
        for (key, top) in images {
            let request = snap::ViewSnapshotRequest {
                snapshotter: entry.snapshotter.clone(),
                key: key.clone(),
                parent: top,
                ..Default::default()
            };
            call(&format!("view snapshot {key}"), QUICK, self.client.snapshots().view(request))
                .await
                .map_err(image_volume_failed)?;
        }
        self.context.faults.reach(Step::TaskViewed)
    }

    /// Removes the view snapshots of a task's images. Idempotent.
    pub(crate) async fn remove_views(&self, entry: &TaskEntry) -> Result<()> {
        let images = entry.record().image_views();
        for (key, _) in images {
            let what = format!("remove snapshot {key}");
            let request = snap::RemoveSnapshotRequest { snapshotter: entry.snapshotter.clone(), key };
            ignore_not_found(call(&what, QUICK, self.client.snapshots().remove(request)).await)?;
        }
        Ok(())
    }

    /// Mounts everything that the runtime needs below the staging directory; returns the mounts of the root
    /// file system, with their ids mapped if the sandbox has a user namespace. Mounts that a killed
    /// predecessor staged are removed first.
    pub(crate) async fn stage(
        &self,
        entry: &TaskEntry,
        users: Option<SandboxUsers>,
        rootfs: Vec<Mount>,
    ) -> Result<Vec<Mount>> {
        let records = entry.record().staged.clone();
        if records.is_empty() && users.is_none() {
            return Ok(rootfs);
        }
        self.unstage(entry).await?;
        let views = self.mounts_of_views(entry, &records).await?;
        let dir = entry.dirs.stage.clone();
        // A thread that hangs between two mounts would continue after the undo, so everything that can hang
        // is accessed before.
        let work = self
            .blocking_pool
            .run(format!("sandbox {}", entry.sandbox), move || resolve_sources(records, views))
            .await?;
        let rootfs = blocking(move || {
            create_private_dir_blocking(&dir)?;
            for (at, ready) in work {
                mount_source(&at, ready, users.as_ref(), &dir)?;
            }
            match &users {
                Some(users) => userns::idmap_mounts(rootfs, users, &dir.join("root")),
                None => Ok(rootfs),
            }
        })
        .await?;
        self.context.faults.reach(Step::TaskStaged)?;
        Ok(rootfs)
    }

    /// The mounts of the view snapshots, by key.
    async fn mounts_of_views(
        &self,
        entry: &TaskEntry,
        records: &[StagedRecord],
    ) -> Result<HashMap<String, Vec<Mount>>> {
        let mut views = HashMap::new();
        for (_, key, _) in records.iter().filter_map(StagedRecord::view) {
            let request = snap::MountsRequest { snapshotter: entry.snapshotter.clone(), key: key.to_owned() };
            let what = format!("look up the mounts of snapshot {key}");
            let mounts = call(&what, QUICK, self.client.snapshots().mounts(request)).await?.mounts;
            views.insert(key.to_owned(), mounts);
        }
        Ok(views)
    }

    /// Unmounts and removes what was staged for the runtime. Idempotent.
    pub(crate) async fn unstage(&self, entry: &TaskEntry) -> Result<()> {
        clear_stage(&entry.dirs.stage).await
    }
}

/// The error for an image of a volume that cannot be resolved, viewed or mounted.
fn image_volume_failed(error: Error) -> Error {
    error.context("the image of a volume").with_reason(Reason::ImageVolume)
}

/// Unmounts everything below a staging directory and removes the directory. Idempotent.
pub(crate) async fn clear_stage(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    unmount_tree(dir.to_path_buf()).await.map_err(from_namespaces)?;
    // Nothing is mounted below it any more, so only mount points are removed.
    remove_tree(dir).await
}

/// Opens or accesses the sources of the staged mounts. Blocks on the host's file systems.
fn resolve_sources(
    records: Vec<StagedRecord>,
    mut views: HashMap<String, Vec<Mount>>,
) -> Result<Vec<(String, StageSource)>> {
    let ready = |record| {
        Ok(match record {
            StagedRecord::Path { at, source } => {
                // Only makes the file system answer: a missing path is reported by the mount.
                let _ = source.exists();
                (at, StageSource::Path(source))
            }
            StagedRecord::Beneath { at, root, path, shared } => {
                let held = PathHandle::open_beneath(&root, &path).map_err(|fault| {
                    let source = root.join(path);
                    let why =
                        format!("{} was replaced or removed after it had been checked", source.display());
                    Error::invalid("mounts", why).with_source(fault)
                })?;
                (at, StageSource::Held(held, shared))
            }
            StagedRecord::Image { at, key, .. } => {
                (at, StageSource::Mounts(views.remove(&key).unwrap_or_default()))
            }
        })
    };
    records.into_iter().map(ready).collect()
}

/// Mounts one source below the staging directory.
fn mount_source(at: &str, ready: StageSource, users: Option<&SandboxUsers>, dir: &Path) -> Result<()> {
    let target = dir.join(at);
    match ready {
        StageSource::Path(source) => {
            let Some(users) = users else {
                return Err(Error::internal(format!(
                    "cannot map the ids of {}: the sandbox has no user namespace",
                    source.display()
                )));
            };
            // A file is mounted on a file.
            if source.is_dir() {
                make_dir(&target)?;
            } else {
                std::fs::write(&target, []).map_err(|fault| io_error("write", &target, fault))?;
            }
            userns::idmap_mount(users, &source, &target)
        }
        StageSource::Held(held, shared) => held.bind_mount_at(&target, shared).map_err(from_namespaces),
        StageSource::Mounts(mounts) => {
            make_dir(&target)?;
            let mounts = match users {
                Some(users) => userns::idmap_mounts(mounts, users, &dir.join(format!("layers-{at}"))),
                None => Ok(mounts),
            };
            mounts.and_then(|mounts| mount_all(&mounts, &target)).map_err(image_volume_failed)
        }
    }
}

fn make_dir(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|fault| io_error("make directory", dir, fault))
}
