//! The plan of a new task's storage: its image, mounts, volumes and limits.

use std::path::{Path, PathBuf};

use switchyard_core::Result;
use switchyard_core::id::TaskId;
use switchyard_core::spec::{DiskLimit, DiskPart, MountSource, disk_parts};
use switchyard_runtime_spec::{ImageVolume, ResolvedMount, ResolvedSource, Staging};

use crate::image::RunnableImage;
use crate::record::{NfsRecord, StagedRecord};

/// The storage that a new task needs.
pub(crate) struct StoragePlan {
    pub(crate) image: RunnableImage,
    /// The mounts that it requests, in the order of the request.
    pub(crate) mounts: Vec<ResolvedMount>,
    /// The volumes that its image declares, in the order of the declaration.
    pub(crate) volumes: Vec<ImageVolume>,
    /// The parts of its directories that have disk limits.
    pub(crate) disk: Vec<DiskPart>,
}

/// A named volume that a task mounts.
pub(crate) struct NamedVolume<'a> {
    /// The mount point in the container.
    pub(crate) destination: &'a Path,
    /// Its path below the directory of all volumes.
    pub(crate) volume: &'a str,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// True if it is initialised with what the image has at its mount point.
    pub(crate) copied: bool,
}

impl StoragePlan {
    /// Assigns the task's directories to its disk limits.
    ///
    /// # Errors
    /// `InvalidArgument` for a limit of a path where the task has no volume.
    pub(crate) fn new(
        image: RunnableImage,
        mounts: Vec<ResolvedMount>,
        volumes: Vec<ImageVolume>,
        limits: &[DiskLimit],
    ) -> Result<Self> {
        let mut plan = Self {
            image,
            mounts,
            volumes,
            disk: Vec::new(),
        };
        let places: Vec<_> = plan
            .volume_dirs()
            .map(|(destination, _)| destination)
            .collect();
        plan.disk = disk_parts(limits, &places)?;
        Ok(plan)
    }

    /// Returns the mounts in the staging directory for the runtime, in the order in which they are mounted: those of the
    /// task, and those of its devices.
    pub(crate) fn staged(&self, task: TaskId, of_devices: &[ResolvedSource]) -> Vec<StagedRecord> {
        let sources = self.mounts.iter().map(|mount| &mount.source);
        let sources = sources.chain(self.volumes.iter().map(|volume| &volume.source));
        let sources = sources.chain(of_devices);
        sources
            .filter_map(|source| StagedRecord::of(source, task))
            .collect()
    }

    /// Returns the network file systems that are mounted in the staging directory for the runtime.
    pub(crate) fn network_file_systems(&self) -> Vec<NfsRecord> {
        self.mounts
            .iter()
            .filter_map(|mount| NfsRecord::of(&mount.source))
            .collect()
    }

    /// The ids of the images that are mounts of it.
    pub(crate) fn mounted_images(&self) -> Vec<String> {
        let image = |mount: &ResolvedMount| match &mount.source.staging {
            Staging::Image { id, .. } => Some(id.clone()),
            Staging::Nothing
            | Staging::IdMapped { .. }
            | Staging::Beneath { .. }
            | Staging::Nfs { .. } => None,
        };
        self.mounts.iter().filter_map(image).collect()
    }

    /// The named volumes among its mounts.
    pub(crate) fn named_volumes(&self) -> impl Iterator<Item = NamedVolume<'_>> {
        self.mounts.iter().filter_map(|mount| {
            let volume = mount.volume.as_deref()?;
            let dir = match &mount.source.staging {
                // A path below the volume.
                Staging::Beneath { root, .. } => root.clone(),
                Staging::Nothing
                | Staging::IdMapped { .. }
                | Staging::Image { .. }
                | Staging::Nfs { .. } => mount.source.host_path(),
            };
            Some(NamedVolume {
                destination: &mount.requested.destination,
                volume,
                dir,
                copied: !matches!(
                    mount.requested.source,
                    MountSource::Volume { copied: false, .. }
                ),
            })
        })
    }

    /// All its volumes: the path of each in the container, and its directory on the host.
    pub(crate) fn volume_dirs(&self) -> impl Iterator<Item = (PathBuf, PathBuf)> {
        let of_image = self
            .volumes
            .iter()
            .map(|one| (one.destination.clone(), one.source.host_path()));
        of_image.chain(
            self.named_volumes()
                .map(|named| (named.destination.to_path_buf(), named.dir)),
        )
    }
}
