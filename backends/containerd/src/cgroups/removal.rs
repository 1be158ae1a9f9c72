//! Removes the cgroups of objects, those with processes left in them later.

use std::fs;
use std::io::{self, ErrorKind as Fault};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use futures::future::BoxFuture;
use switchyard_cgroup::Group;
use switchyard_core::{Error, Result};
use switchyard_crash_points::{CrashPoint, reach};

use super::Cgroups;
use super::busy::{BusyCgroup, SUFFIX, is_void};
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
    /// parents that were created for the same sandbox, that are empty then. If the file cannot be written, as on a full
    /// disk, the object is removed all the same, which may free space, and the file is written later. Idempotent.
    ///
    /// # Errors
    /// If the file of an earlier call cannot be removed.
    pub(crate) async fn remove_cgroup(
        &self,
        id: &str,
        group: Option<Group>,
        above: Vec<Group>,
    ) -> Result<()> {
        let Some(group) = group else { return Ok(()) };
        let Err(error) = self.remove_group(&group).await else {
            return self.forget_busy_cgroup(id).await;
        };
        let left = BusyCgroup { group, above };
        if let Err(error) = self.write_busy_file(id, &left).await {
            tracing::warn!(
                object = id,
                error = error.report(),
                "cannot record a cgroup that is still in use: this is tried again until it is removed"
            );
        }
        if self.busy.note(id, left) {
            tracing::warn!(
                object = id,
                error = error.report(),
                "a cgroup is still in use: it is removed later"
            );
            self.cleanup.enqueue(self.cgroup_cleanup(id));
        }
        Ok(())
    }

    /// Records a busy cgroup for the next daemon.
    async fn write_busy_file(&self, id: &str, left: &BusyCgroup) -> Result<()> {
        let dir = self.context.layout.busy_cgroups();
        create_private_dir(&dir).await?;
        let path = busy_file(&dir, id);
        let text = left.text(&self.context.boot);
        if let Err(fault) = tokio::fs::write(&path, text).await {
            // A part of it names no cgroup.
            let _ = tokio::fs::remove_file(&path).await;
            return Err(io_error("write", &path, fault));
        }
        reach(CrashPoint::GroupNoted);
        Ok(())
    }

    fn cgroup_cleanup(&self, id: &str) -> CgroupCleanup {
        CgroupCleanup {
            cgroups: Weak::clone(&self.weak),
            id: id.to_owned(),
        }
    }

    /// Removes a cgroup from every hierarchy. Idempotent.
    async fn remove_group(&self, group: &Group) -> Result<()> {
        let cgroups = Arc::clone(&self.reader);
        let group = group.clone();
        blocking(move || cgroups.remove(&group).map_err(Into::into)).await
    }

    /// Loads the files that a predecessor wrote and returns the cleanups to queue. Files of another boot are
    /// removed. What cannot be read or removed is logged, and found again at the next start.
    pub(crate) async fn load_busy_cgroups(&self) -> Vec<CgroupCleanup> {
        let dir = self.context.layout.busy_cgroups();
        let boot = self.context.boot.clone();
        let found = blocking(move || read_busy_files(&dir, &boot))
            .await
            .unwrap_or_else(|error| {
                log_unread(&error);
                Vec::new()
            });
        let cleanup = |(id, left): (String, BusyCgroup)| {
            let cleanup = self.cgroup_cleanup(&id);
            self.busy.note(&id, left);
            cleanup
        };
        found.into_iter().map(cleanup).collect()
    }

    /// Removes a busy cgroup, if no process is in it any more, and those ancestors that were created for its
    /// sandbox alone. Idempotent.
    ///
    /// # Errors
    /// `Unavailable` if an object of this id may have a process in it.
    async fn remove_busy_cgroup(&self, id: &str) -> Result<()> {
        let Some(left) = self.busy.by_id().get(id).cloned() else {
            return Ok(());
        };
        let path = busy_file(&self.context.layout.busy_cgroups(), id);
        if !tokio::fs::try_exists(&path).await.unwrap_or(true) {
            // There may be space by now.
            let _ = self.write_busy_file(id, &left).await;
        }
        let BusyCgroup { group, above } = left;
        if self.live.may_have_process(id) {
            return Err(Error::unavailable(format!(
                "remove cgroup {group}: {id} may still have a process"
            )));
        }
        self.remove_group(&group).await?;
        let groups = Arc::clone(&self.pods);
        let cgroups = Arc::clone(&self.reader);
        blocking(move || {
            groups.remove_if_unclaimed(&above, &cgroups);
            Ok(())
        })
        .await?;
        reach(CrashPoint::GroupGone);
        self.remove_busy_file(id).await
    }

    /// Removes the file of a cgroup that is removed, if there is one. Idempotent.
    async fn forget_busy_cgroup(&self, id: &str) -> Result<()> {
        if !self.busy.by_id().contains_key(id) {
            return Ok(());
        }
        self.remove_busy_file(id).await
    }

    /// As [`Cgroups::forget_busy_cgroup`], also of a cgroup that was forgotten since: the file may have been written after
    /// that.
    async fn remove_busy_file(&self, id: &str) -> Result<()> {
        let path = busy_file(&self.context.layout.busy_cgroups(), id);
        match tokio::fs::remove_file(&path).await {
            Err(fault) if fault.kind() != Fault::NotFound => {
                return Err(io_error("remove", &path, fault));
            }
            Ok(()) | Err(_) => {}
        }
        reach(CrashPoint::GroupForgotten);
        self.busy.by_id().remove(id);
        Ok(())
    }
}

fn busy_file(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}{SUFFIX}"))
}

/// The busy cgroups of this boot, by id, from the files in a directory. Other files are removed. Blocks.
fn read_busy_files(dir: &Path, boot: &str) -> Result<Vec<(String, BusyCgroup)>> {
    let files = match fs::read_dir(dir) {
        Err(fault) if fault.kind() == Fault::NotFound => return Ok(Vec::new()),
        files => files.and_then(|files| files.collect::<io::Result<Vec<_>>>()),
    };
    let mut found = Vec::new();
    for file in files.map_err(|fault| io_error("list", dir, fault))? {
        let path = file.path();
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(fault) => {
                log_unread(&io_error("read", &path, fault));
                continue;
            }
        };
        let name = file.file_name();
        let id = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
        match id.zip(BusyCgroup::parse(&text, boot)) {
            Some((id, left)) => found.push((id.to_owned(), left)),
            None if id.is_some() && !is_void(&text, boot) => {
                let path = path.display();
                tracing::warn!(%path, "the record of a busy cgroup is not understood: it stays for a version that does");
            }
            // A truncated file: the daemon was killed while it wrote it, so the object is still there and
            // names the cgroup.
            None => {
                if let Err(fault) = fs::remove_file(&path) {
                    log_unread(&io_error("remove", &path, fault));
                }
            }
        }
    }
    Ok(found)
}

fn log_unread(error: &Error) {
    let error = error.report();
    tracing::warn!(
        error,
        "a record of a busy cgroup cannot be dealt with: trying again at the next start"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_cannot_be_read_hides_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let left = BusyCgroup {
            group: Group::from_path(Path::new("/pods/a")).unwrap(),
            above: Vec::new(),
        };
        let path = |name: &str| dir.path().join(name);
        fs::write(path("a.left"), left.text("boot")).unwrap();
        fs::write(path("b.left"), left.text("root")).unwrap();
        fs::write(path("c.left"), "version 2\n\n").unwrap();
        // Neither can these be read, nor can they be removed as files are.
        fs::create_dir(path("0.left")).unwrap();
        fs::create_dir(path("z.left")).unwrap();
        assert_eq!(
            read_busy_files(dir.path(), "boot").unwrap(),
            [("a".to_owned(), left)]
        );
        assert!(!path("b.left").exists() && path("a.left").exists());
        assert!(path("c.left").exists(), "another version understands it");
        assert_eq!(read_busy_files(&path("none"), "boot").unwrap(), []);
        assert!(read_busy_files(&path("a.left"), "boot").is_err());
    }
}
