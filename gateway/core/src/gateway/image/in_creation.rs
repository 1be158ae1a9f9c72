//! The images from which tasks are being created: their tasks are in no table yet.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::id::{Owner, TaskId};
use crate::spec::{MountSource, TaskSpec};

/// The references of the images that tasks in creation need.
#[derive(Debug, Default)]
pub(super) struct ImagesInCreation {
    by_task: Mutex<HashMap<TaskId, (Owner, Vec<String>)>>,
}

/// Exists until the task is in the table, or is not created.
#[derive(Debug)]
pub(in crate::gateway) struct CreationGuard<'i> {
    images: &'i ImagesInCreation,
    id: TaskId,
}

// === impl ImagesInCreation ===

impl ImagesInCreation {
    /// Adds the images of a task: to be called before the backend looks them up.
    pub(super) fn add(&self, id: TaskId, spec: &TaskSpec) -> CreationGuard<'_> {
        let volumes = spec.mounts.iter().filter_map(|mount| match &mount.source {
            MountSource::Image {
                reference,
                sub_path: _,
            } => Some(reference.clone()),
            MountSource::Host { .. }
            | MountSource::Beneath { .. }
            | MountSource::Volume { .. }
            | MountSource::Nfs { .. }
            | MountSource::Tmpfs { .. } => None,
        });
        let references = std::iter::once(spec.image.clone()).chain(volumes).collect();
        self.by_task
            .lock()
            .insert(id, (spec.meta.owner, references));
        CreationGuard { images: self, id }
    }

    /// Returns whether a task of one of these owners is being created from a reference that is one of these.
    pub(super) fn is_used(
        &self,
        is_user: &dyn Fn(Owner) -> bool,
        is_named: &dyn Fn(&str) -> bool,
    ) -> bool {
        // `is_named` goes through all image records, and every creation takes the lock: so it is let go first.
        let used: Vec<String> = {
            let by_task = self.by_task.lock();
            let meant = by_task.values().filter(|(user, _)| is_user(*user));
            meant
                .flat_map(|(_, references)| references)
                .cloned()
                .collect()
        };
        used.iter().any(|reference| is_named(reference))
    }
}

// === impl CreationGuard ===

impl Drop for CreationGuard<'_> {
    fn drop(&mut self) {
        self.images.by_task.lock().remove(&self.id);
    }
}
