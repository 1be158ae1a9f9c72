//! What a new task needs on disk.

use switchyard_core::spec::DiskPart;
use switchyard_runtime_spec::ImageVolume;

use super::stage::Staging;
use crate::image::RunnableImage;

/// What a new task needs on disk, found out without changing anything.
pub(crate) struct StoragePlan {
    pub(crate) image: RunnableImage,
    pub(crate) volumes: Vec<ImageVolume>,
    pub(crate) staging: Staging,
    /// The parts of its directories that have disk limits.
    pub(crate) disk: Vec<DiskPart>,
}
