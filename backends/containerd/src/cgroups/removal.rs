//! Removes the cgroups of objects, those with processes left in them later.

use std::io::ErrorKind as Fault;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use switchyard_cgroup::Group;
use switchyard_core::{Error, Result};
use switchyard_steps::{Step, reach};

use super::Cgroups;
use super::busy::{BusyCgroup, SUFFIX};
use crate::base::fs::{blocking, create_private_dir, io_error};
use crate::cleanup::{Cleanup, upgrade};

/// Removes a cgroup that still had processes when its object was removed.
#[derive(Debug)]
pub(crate) struct CgroupCleanup {
    cgroups: Weak<Cgroups>,
    id: String,
}

impl Cleanup for CgroupCleanup {
    fn description(&self) -> String {
        format!("cgroup of {}", self.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { upgrade(&self.cgroups)?.remove_busy_cgroup(&self.id).await })
    }
}

impl Cgroups {
    /// Removes what a runtime has not removed of an object's cgroup. It should be empty by now; one that is
    /// not is logged, recorded in a file and removed later by the cleanup queue, with those of `above`, the
    /// parents that were created for the same sandbox, that are empty then. Idempotent.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) async fn remove_cgroup(
        &self,
        id: &str,
        group: Option<Group>,
        above: Vec<Group>,
    ) -> Result<()> {
        let Some(group) = group else { return Ok(()) };
        let Err(error) = self.remove_group(&group).await else { return self.forget_busy_cgroup(id).await };
        let left = BusyCgroup { group, above };
        let dir = self.context.layout.busy_cgroups();
        create_private_dir(&dir).await?;
        let path = busy_file(&dir, id);
        let text = left.text(&self.context.boot);
        tokio::fs::write(&path, text).await.map_err(|fault| io_error("write", &path, fault))?;
        reach(Step::GroupNoted);
        if self.busy.note(id, left) {
            tracing::warn!(id, error = error.report(), "a cgroup is still in use: it is removed later");
            self.cleanup.enqueue(self.cgroup_cleanup(id));
        }
        Ok(())
    }

    fn cgroup_cleanup(&self, id: &str) -> CgroupCleanup {
        CgroupCleanup { cgroups: Weak::clone(&self.weak), id: id.to_owned() }
    }

    /// Removes a cgroup from every hierarchy. Idempotent.
    async fn remove_group(&self, group: &Group) -> Result<()> {
        let cgroups = Arc::clone(&self.reader);
        let group = group.clone();
        blocking(move || cgroups.remove(&group).map_err(Into::into)).await
    }

    /// Loads the files that a predecessor wrote and returns the cleanups to queue. Files of another boot are
    /// removed.
    pub(crate) async fn load_busy_cgroups(&self) -> Result<Vec<CgroupCleanup>> {
        let dir = self.context.layout.busy_cgroups();
        let mut files = match tokio::fs::read_dir(&dir).await {
            Ok(files) => files,
            Err(fault) if fault.kind() == Fault::NotFound => return Ok(Vec::new()),
            Err(fault) => return Err(io_error("list", &dir, fault)),
        };
        let mut clear = Vec::new();
        while let Some(file) = files.next_entry().await.map_err(|fault| io_error("list", &dir, fault))? {
            let path = file.path();
            let text =
                tokio::fs::read_to_string(&path).await.map_err(|fault| io_error("read", &path, fault))?;
            let name = file.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            match id.zip(BusyCgroup::parse(&text, &self.context.boot)) {
                Some((id, left)) => {
                    self.busy.note(id, left);
                    clear.push(self.cgroup_cleanup(id));
                }
                // A truncated file: the daemon was killed while it wrote it, so the object is still there and
                // names the cgroup.
                None => {
                    tokio::fs::remove_file(&path).await.map_err(|fault| io_error("remove", &path, fault))?
                }
            }
        }
        Ok(clear)
    }

    /// Removes a busy cgroup, if no process is in it any more, and those ancestors that were created for its
    /// sandbox alone. Idempotent.
    ///
    /// # Errors
    /// `Unavailable` if an object of this id may have a process in it.
    async fn remove_busy_cgroup(&self, id: &str) -> Result<()> {
        let Some(BusyCgroup { group, above }) = self.busy.by_id().get(id).cloned() else {
            return Ok(());
        };
        if self.live.may_have_process(id) {
            return Err(Error::unavailable(format!("remove cgroup {group}: {id} may still have a process")));
        }
        self.remove_group(&group).await?;
        let groups = Arc::clone(&self.pods);
        let cgroups = Arc::clone(&self.reader);
        blocking(move || {
            groups.remove_if_unclaimed(&above, &cgroups);
            Ok(())
        })
        .await?;
        reach(Step::GroupGone);
        self.forget_busy_cgroup(id).await
    }

    /// Removes the file of a cgroup that is removed. Idempotent.
    async fn forget_busy_cgroup(&self, id: &str) -> Result<()> {
        if !self.busy.by_id().contains_key(id) {
            return Ok(());
        }
        let path = busy_file(&self.context.layout.busy_cgroups(), id);
        match tokio::fs::remove_file(&path).await {
            Err(fault) if fault.kind() != Fault::NotFound => return Err(io_error("remove", &path, fault)),
            Ok(()) | Err(_) => {}
        }
        reach(Step::GroupForgotten);
        self.busy.by_id().remove(id);
        Ok(())
    }
}

fn busy_file(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}{SUFFIX}"))
}
