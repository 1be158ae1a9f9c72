//! Named volumes: directories that tasks share, and that stay until they are removed.
//!
//! ```text
//! <state>/volumes/<owner>/<name>/    a volume
//! <state>/volumes/.passing/…/        one that is being filled, named after its task, or that is being removed
//! ```
//!
//! A volume gets its name, and loses it, by one rename. What has passed away without one is found below `.passing` by the next start.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use switchyard_core::id::{Owner, TaskId};
use switchyard_core::spec::is_volume_name;
use switchyard_core::{Error, Result};
use switchyard_steps::{Step, reach};
use switchyard_tree::Cancel;

use crate::backend::Inner;
use crate::fs::{blocking, io_error, remove_tree_blocking};
use crate::image::lease::getrandom_fill;

/// Which tasks have which volumes. Volumes are known by their path below the directory of all.
#[derive(Debug)]
pub(crate) struct Volumes {
    dir: PathBuf,
    claims: Mutex<VolumeClaims>,
}

#[derive(Debug, Default)]
struct VolumeClaims {
    by_task: HashMap<TaskId, BTreeSet<String>>,
    /// The ids of containers of ours that cannot be read: each may have any volume.
    unreadable: BTreeSet<String>,
}

/// The path of a volume below the directory of all.
///
/// # Errors
/// `InvalidArgument` for what is no name.
pub(crate) fn relative(owner: Owner, name: &str) -> Result<String> {
    if !is_volume_name(name) {
        let why = "is no name of a volume: it begins with a letter or a digit, and has these, \"_\", \".\" and \"-\"";
        return Err(Error::invalid("volume", format!("{name:?} {why}")));
    }
    Ok(format!("{}/{name}", owner.as_str()))
}

impl Volumes {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir, claims: Mutex::default() }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.dir.join(relative)
    }

    fn transient_dir(&self) -> PathBuf {
        self.dir.join(".passing")
    }

    /// Where a task fills its `number`th volume.
    pub(crate) fn draft(&self, id: TaskId, number: usize) -> PathBuf {
        self.transient_dir().join(format!("{id}-{number}"))
    }

    /// What has no name.
    pub(crate) fn unpublished(&self) -> Vec<PathBuf> {
        fs::read_dir(self.transient_dir()).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, VolumeClaims> {
        // It is whole after every single step.
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which volumes a task has: none of them is removed from here on.
    pub(crate) fn claim(&self, id: TaskId, volumes: &[String]) {
        if !volumes.is_empty() {
            self.lock().by_task.insert(id, volumes.iter().cloned().collect());
        }
    }

    /// Notes that a task is gone.
    pub(crate) fn release(&self, id: TaskId) {
        self.lock().by_task.remove(&id);
    }

    /// Notes that a container of ours cannot be read: no volume is removed from here on.
    pub(crate) fn mark_unreadable(&self, container: &str) {
        self.lock().unreadable.insert(container.to_owned());
    }

    /// Forgets all tasks, also those that cannot be read.
    pub(crate) fn clear(&self) {
        *self.lock() = VolumeClaims::default();
    }

    /// Gives a volume that is filled its name, unless another task was first. What is in it is on disk before. Blocks.
    pub(crate) fn publish(&self, draft: &Path, relative: &str) -> Result<()> {
        sync_tree(draft).map_err(|fault| io_error("sync", draft, fault))?;
        let path = self.path(relative);
        let owners = path.parent().unwrap_or(&self.dir);
        fs::create_dir_all(owners).map_err(|fault| io_error("make directory", owners, fault))?;
        let is_first = {
            // Who takes a name away waits meanwhile.
            let _turn = self.lock();
            let is_first = !path.exists();
            if is_first {
                fs::rename(draft, &path).map_err(|fault| io_error("put in place", &path, fault))?;
            }
            is_first
        };
        if !is_first {
            // It has what the image has, and no container has seen it.
            return remove_tree_blocking(draft, &Cancel::default());
        }
        // A task that has it is on disk before long.
        let synced = [owners, &self.dir].into_iter().try_for_each(|dir| File::open(dir)?.sync_all());
        synced.map_err(|fault| io_error("sync", owners, fault))
    }

    /// Takes a volume's name away and gives where it is then; `None` if it is not there. Blocks.
    fn unpublish(&self, owner: Owner, name: &str) -> Result<Option<PathBuf>> {
        let relative = relative(owner, name)?;
        let mut random = [0; 8];
        getrandom_fill(&mut random);
        let passing = self.transient_dir();
        fs::create_dir_all(&passing).map_err(|fault| io_error("make directory", &passing, fault))?;
        let aside = passing.join(format!("removed-{}", hex::encode(random)));
        let held = self.lock();
        if let Some((id, _)) = held.by_task.iter().find(|(_, volumes)| volumes.contains(&relative)) {
            return Err(Error::failed_precondition(format!(
                "volume {name:?} is used by task {id}: remove the task first"
            )));
        }
        let path = self.path(&relative);
        if let Some(id) = held.unreadable.first().filter(|_| path.exists()) {
            return Err(Error::failed_precondition(format!(
                "volume {name:?} may be used by container {id}, which cannot be read: remove that from containerd, or run a version that can \
                 read it, and start anew"
            )));
        }
        match fs::rename(&path, &aside) {
            Ok(()) => Ok(Some(aside)),
            Err(fault) if fault.kind() == ErrorKind::NotFound => Ok(None),
            Err(fault) => Err(io_error("take away", &path, fault)),
        }
    }
}

/// Has a directory and all that is in it on disk. The whole file system is, which is one call for any number of files.
fn sync_tree(dir: &Path) -> std::io::Result<()> {
    let file = File::open(dir)?;
    if fs::read_dir(dir)?.next().is_some() {
        nix::unistd::syncfs(&file)?;
    }
    file.sync_all()
}

impl Inner {
    /// Removes a volume. Idempotent.
    pub(crate) async fn remove_volume(&self, owner: Owner, name: &str) -> Result<()> {
        let volumes = Arc::clone(&self.volumes);
        let name = name.to_owned();
        if let Some(aside) = blocking(move || volumes.unpublish(owner, &name)).await? {
            reach(Step::VolumeUnnamed);
            self.trees.remove(&aside).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_to_fill_a_volume_names_it_and_nobody_removes_it_while_it_is_held() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(dir.path().join("volumes"));
        let one = TaskId::from_bytes([1; 32]);
        let other = TaskId::from_bytes([2; 32]);
        let data = relative(Owner::Kubernetes, "data").unwrap();
        for id in [one, other] {
            volumes.claim(id, std::slice::from_ref(&data));
            let draft = volumes.draft(id, 0);
            fs::create_dir_all(&draft).unwrap();
            fs::write(draft.join(id.to_string()), "").unwrap();
            volumes.publish(&draft, &data).unwrap();
            assert!(volumes.path(&data).join(one.to_string()).exists() && !draft.exists());
        }
        volumes.release(one);
        assert!(volumes.unpublish(Owner::Kubernetes, "data").is_err());
        volumes.release(other);
        assert_eq!(volumes.unpublish(Owner::Nomad, "data").unwrap(), None);
        let aside = volumes.unpublish(Owner::Kubernetes, "data").unwrap();
        assert_eq!(volumes.unpublished(), aside.into_iter().collect::<Vec<_>>());
        assert!(!volumes.path(&data).exists());
        assert_eq!(volumes.unpublish(Owner::Kubernetes, "data").unwrap(), None);
    }

    #[test]
    fn nobody_removes_a_volume_that_a_container_may_have_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(dir.path().join("volumes"));
        let data = volumes.path(&relative(Owner::Kubernetes, "data").unwrap());
        fs::create_dir_all(&data).unwrap();
        volumes.mark_unreadable("strange");
        let refused = volumes.unpublish(Owner::Kubernetes, "data").unwrap_err().to_string();
        assert!(refused.contains("strange"), "{refused}");
        // What is not there is used by nobody.
        assert_eq!(volumes.unpublish(Owner::Kubernetes, "none").unwrap(), None);
        volumes.clear();
        assert!(volumes.unpublish(Owner::Kubernetes, "data").unwrap().is_some());
    }

    #[test]
    fn no_name_leads_elsewhere() {
        for bad in ["", ".", "..", ".passing", "a/b", "a b", "../x", "\u{e4}"] {
            assert!(relative(Owner::Kubernetes, bad).is_err(), "{bad:?}");
        }
    }
}
