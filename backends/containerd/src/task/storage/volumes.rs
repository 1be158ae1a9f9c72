//! Named volumes: directories that tasks share, and that stay until they are removed.
//!
//! ```text
//! <state>/volumes/<owner>/<name>/    a volume
//! <state>/volumes/.passing/…/        a draft, named after its task, or a volume that is being removed
//! ```
//!
//! A volume is published and unpublished by one rename. Directories below `.passing` that a killed daemon
//! left are removed at the next start.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::backend::NamedVolume;
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::spec::is_volume_name;
use switchyard_core::{Error, Result};
use switchyard_linux::files::{self, Durable, if_present, sync_dir};
use switchyard_tree::Cancel;

use crate::base::fs::{io_error, remove_tree_blocking};
use crate::base::random::fill_random;

/// The volumes that tasks use. A volume is identified by its path below the directory of all volumes.
#[derive(Debug)]
pub(crate) struct Volumes {
    dir: PathBuf,
    /// Never locked over a call to the disk.
    claims: Mutex<VolumeClaims>,
    /// Held from the look at claims or volumes until the claim or rename that follows from it, so that no volume is
    /// claimed while it is unpublished. The disk may hang under it: taken on blocking threads only.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct VolumeClaims {
    by_task: HashMap<TaskId, BTreeSet<String>>,
    /// The ids of our containers whose records cannot be read: each may use any volume.
    unreadable: BTreeSet<String>,
}

/// The path of a volume below the directory of all volumes.
///
/// # Errors
/// `InvalidArgument` if `name` is not a valid volume name.
pub(crate) fn relative(owner: Owner, name: &str) -> Result<String> {
    if !is_volume_name(name) {
        let why = "is no name of a volume: it begins with a letter or a digit, and has these, \"_\", \".\" and \"-\"";
        return Err(Error::invalid("volume", format!("{name:?} {why}")));
    }
    Ok(format!("{}/{name}", owner.as_str()))
}

impl Volumes {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self {
            dir,
            claims: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.dir.join(relative)
    }

    fn transient_dir(&self) -> PathBuf {
        self.dir.join(".passing")
    }

    /// The directory in which a task fills its `number`th volume.
    pub(crate) fn draft(&self, id: TaskId, number: usize) -> PathBuf {
        self.transient_dir().join(format!("{id}-{number}"))
    }

    /// The directories below `.passing`: unfinished drafts and unfinished removals. Blocks.
    pub(crate) fn unpublished(&self) -> Vec<PathBuf> {
        fs::read_dir(self.transient_dir())
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, VolumeClaims> {
        self.claims.lock()
    }

    /// Claims the volumes that a new task uses: none of them can be removed from here on. Blocks while one is removed.
    pub(crate) fn claim(&self, id: TaskId, volumes: &[String]) {
        let _turn = self.turn.lock();
        self.adopt(id, volumes);
    }

    /// Claims the volumes of an adopted task, before requests are served.
    pub(crate) fn adopt(&self, id: TaskId, volumes: &[String]) {
        if !volumes.is_empty() {
            self.lock()
                .by_task
                .insert(id, volumes.iter().cloned().collect());
        }
    }

    /// Drops the claims of a task that is removed.
    pub(crate) fn release(&self, id: TaskId) {
        self.lock().by_task.remove(&id);
    }

    /// Records that a container of ours cannot be read: no volume can be removed from here on.
    pub(crate) fn mark_unreadable(&self, container: &str) {
        self.lock().unreadable.insert(container.to_owned());
    }

    /// Drops all claims, and the marks of containers that cannot be read.
    pub(crate) fn clear(&self) {
        *self.lock() = VolumeClaims::default();
    }

    /// Publishes a filled draft, whose contents are synced, under its name. If another task has published
    /// one already, the draft is removed. Blocks.
    pub(crate) fn publish(&self, draft: &Path, relative: &str) -> Result<()> {
        sync_dir(draft).map_err(|fault| io_error("sync", draft, fault))?;
        let path = self.path(relative);
        let owners = path.parent().unwrap_or(&self.dir);
        fs::create_dir_all(owners).map_err(|fault| io_error("make directory", owners, fault))?;
        let is_first = {
            // Excludes a concurrent `unpublish`.
            let _turn = self.turn.lock();
            let is_first = !path.exists();
            if is_first {
                files::rename(draft, &path, Durable::No)
                    .map_err(|fault| io_error("put in place", &path, fault))?;
            }
            is_first
        };
        if !is_first {
            // The draft has only a copy of the image's files, and no container has used it.
            return remove_tree_blocking(draft, &Cancel::default());
        }
        // The task's record, which names the volume, is written next: the volume must be on disk before it.
        let synced = [owners, &self.dir].into_iter().try_for_each(sync_dir);
        synced.map_err(|fault| io_error("sync", owners, fault))
    }

    /// Renames a volume into `.passing` and returns the new path; `None` if there is no such volume. Blocks.
    ///
    /// # Errors
    /// `FailedPrecondition` if a task uses the volume, or a container that cannot be read may use it.
    pub(crate) fn unpublish(&self, owner: Owner, name: &str) -> Result<Option<PathBuf>> {
        let relative = relative(owner, name)?;
        let mut random = [0; 8];
        fill_random(&mut random);
        let transient = self.transient_dir();
        fs::create_dir_all(&transient)
            .map_err(|fault| io_error("make directory", &transient, fault))?;
        let aside = transient.join(format!("removed-{}", hex::encode(random)));
        let _turn = self.turn.lock();
        let (user, unreadable) = {
            let claims = self.lock();
            let user = claims
                .by_task
                .iter()
                .find(|(_, volumes)| volumes.contains(&relative));
            (user.map(|(id, _)| *id), claims.unreadable.first().cloned())
        };
        if let Some(id) = user {
            return Err(Error::failed_precondition(format!(
                "volume {name:?} is used by task {id}: remove the task first"
            )));
        }
        let path = self.path(&relative);
        if let Some(id) = unreadable.filter(|_| path.exists()) {
            return Err(Error::failed_precondition(format!(
                "volume {name:?} may be used by container {id}, whose record cannot be read: remove that container from containerd, or run a \
                 version of the daemon that can read it, and restart the daemon"
            )));
        }
        let renamed = if_present(files::rename(&path, &aside, Durable::No));
        Ok(renamed
            .map_err(|fault| io_error("take away", &path, fault))?
            .map(|()| aside))
    }
}

impl Volumes {
    /// The volumes of all owners, ordered by owner and name. Blocks.
    ///
    /// # Errors
    /// `Internal` if a directory cannot be read.
    pub(crate) fn list(&self) -> Result<Vec<NamedVolume>> {
        let mut users = self.users();
        let mut listed = Vec::new();
        for owner in Owner::ALL {
            let dir = self.dir.join(owner.as_str());
            let entries =
                if_present(fs::read_dir(&dir)).map_err(|fault| io_error("list", &dir, fault))?;
            let Some(entries) = entries else { continue };
            for entry in entries {
                let entry = entry.map_err(|fault| io_error("list", &dir, fault))?;
                let name = entry.file_name().to_string_lossy().into_owned();
                let Ok(relative) = relative(owner, &name) else {
                    continue;
                };
                let created_at = entry.metadata().and_then(|meta| meta.created()).ok();
                let tasks = users.remove(&relative).unwrap_or_default();
                listed.push(NamedVolume {
                    owner,
                    name,
                    created_at,
                    tasks,
                });
            }
        }
        listed.sort_by(|a, b| (a.owner.as_str(), &a.name).cmp(&(b.owner.as_str(), &b.name)));
        Ok(listed)
    }

    /// The tasks that have each volume, ordered by id.
    fn users(&self) -> HashMap<String, Vec<TaskId>> {
        let mut users: HashMap<String, Vec<TaskId>> = HashMap::new();
        for (id, volumes) in &self.lock().by_task {
            for volume in volumes {
                users.entry(volume.clone()).or_default().push(*id);
            }
        }
        users.values_mut().for_each(|tasks| tasks.sort());
        users
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
        let [listed] = &volumes.list().unwrap()[..] else {
            panic!("there is one volume")
        };
        assert_eq!(
            (listed.owner, listed.name.as_str()),
            (Owner::Kubernetes, "data")
        );
        assert_eq!(listed.tasks, [one, other]);
        volumes.release(one);
        assert!(volumes.unpublish(Owner::Kubernetes, "data").is_err());
        volumes.release(other);
        assert_eq!(volumes.unpublish(Owner::Nomad, "data").unwrap(), None);
        let aside = volumes.unpublish(Owner::Kubernetes, "data").unwrap();
        assert_eq!(volumes.unpublished(), aside.into_iter().collect::<Vec<_>>());
        assert!(!volumes.path(&data).exists());
        assert_eq!(volumes.list().unwrap(), []);
        assert_eq!(volumes.unpublish(Owner::Kubernetes, "data").unwrap(), None);
    }

    #[test]
    fn nobody_removes_a_volume_that_a_container_may_have_that_cannot_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(dir.path().join("volumes"));
        let data = volumes.path(&relative(Owner::Kubernetes, "data").unwrap());
        fs::create_dir_all(&data).unwrap();
        volumes.mark_unreadable("strange");
        let refused = volumes
            .unpublish(Owner::Kubernetes, "data")
            .unwrap_err()
            .to_string();
        assert!(refused.contains("strange"), "{refused}");
        // A volume that does not exist is not in use.
        assert_eq!(volumes.unpublish(Owner::Kubernetes, "none").unwrap(), None);
        volumes.clear();
        assert!(
            volumes
                .unpublish(Owner::Kubernetes, "data")
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn a_volume_that_is_being_renamed_holds_up_only_who_claims_one() {
        let dir = tempfile::tempdir().unwrap();
        let volumes = Volumes::new(dir.path().join("volumes"));
        let id = TaskId::from_bytes([1; 32]);
        // As long as the disk hangs in a rename.
        let turn = volumes.turn.lock();
        volumes.adopt(id, &["kubernetes/data".to_owned()]);
        volumes.mark_unreadable("strange");
        assert_eq!(volumes.list().unwrap(), []);
        volumes.release(id);
        volumes.clear();
        assert!(volumes.turn.try_lock().is_none());
        drop(turn);
        volumes.claim(id, &["kubernetes/data".to_owned()]);
        assert_eq!(volumes.users().len(), 1);
    }

    #[test]
    fn no_name_leads_elsewhere() {
        for bad in ["", ".", "..", ".passing", "a/b", "a b", "../x", "\u{e4}"] {
            assert!(relative(Owner::Kubernetes, bad).is_err(), "{bad:?}");
        }
    }
}
