//! Cgroups that could not be removed with their objects, because somebody was in them: they are on record until they are gone, so that
//! the next start of the daemon knows of them as well.
//!
//! ```text
//! busy ─► file <run>/groups/<id>.left ─► container object deleted ─► tried now and then ─► gone ─► file removed
//! ```
//!
//! Nothing else tells whose a cgroup was: its name is an id, as others give theirs too.

use std::collections::BTreeMap;
use std::io::ErrorKind as Fault;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use switchyard_cgroup::Group;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};
use switchyard_steps::{Step, reach};

use crate::backend::Inner;
use crate::cleanup::Cleanup;
use crate::fs::{blocking, create_private_dir, io_error};
use crate::sandbox::SandboxEntry;

/// What follows the id in the name of a file.
const SUFFIX: &str = ".left";

/// The cgroup of an object that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BusyCgroup {
    group: Group,
    /// Those above it that were made for its sandbox, the deepest first.
    above: Vec<Group>,
}

/// Those that wait to be removed, by the ids of their objects.
#[derive(Debug, Default)]
pub(crate) struct BusyCgroups {
    by_id: Mutex<BTreeMap<String, BusyCgroup>>,
}

// === impl LeftGroup ===

impl BusyCgroup {
    /// A file's text, of this boot of the node: no cgroup outlives one. An empty line ends it.
    fn text(&self, boot: &str) -> String {
        let groups = std::iter::once(&self.group).chain(&self.above);
        let lines: Vec<_> = groups.map(|group| group.relative().display().to_string()).collect();
        format!("{boot}\n{}\n\n", lines.join("\n"))
    }

    /// Reads such a text; `None` if it was never finished, or is of another boot.
    fn parse(text: &str, boot: &str) -> Option<Self> {
        let mut lines = text.strip_suffix("\n\n")?.lines();
        if lines.next()? != boot {
            return None;
        }
        let mut groups = lines.map(|line| Group::from_path(Path::new(line)));
        let group = groups.next()?.ok()?;
        Some(Self { group, above: groups.collect::<Result<_, _>>().ok()? })
    }
}

// === impl LeftGroups ===

impl BusyCgroups {
    fn by_id(&self) -> MutexGuard<'_, BTreeMap<String, BusyCgroup>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes one; `false` if it is known.
    fn note(&self, id: &str, left: BusyCgroup) -> bool {
        self.by_id().insert(id.to_owned(), left).is_none()
    }

    /// The groups, for people; `None` if there are none.
    pub(crate) fn summary(&self) -> Option<String> {
        let groups = self.by_id();
        let paths: Vec<_> = groups.values().map(|left| left.group.to_string()).collect();
        (!paths.is_empty()).then(|| paths.join(", "))
    }
}

impl Inner {
    /// Removes what a runtime has left of an object's cgroup. It is empty by now; one that cannot be removed yet is told, put on record
    /// and removed later. Idempotent.
    ///
    /// # Errors
    /// If it cannot be put on record.
    pub(crate) async fn remove_cgroup(
        &self,
        id: &str,
        group: Option<Group>,
        sandbox: Option<&SandboxEntry>,
    ) -> Result<()> {
        let Some(group) = group else { return Ok(()) };
        let Err(error) = self.remove_group(&group).await else { return self.forget_busy_cgroup(id).await };
        let above = sandbox.map(|entry| entry.made_groups()).unwrap_or_default();
        let left = BusyCgroup { group, above };
        let dir = self.layout.busy_cgroups();
        create_private_dir(&dir).await?;
        let path = busy_file(&dir, id);
        let text = left.text(&self.boot);
        tokio::fs::write(&path, text).await.map_err(|fault| io_error("write", &path, fault))?;
        reach(Step::GroupNoted);
        if self.busy_cgroups.note(id, left) {
            tracing::warn!(id, error = error.report(), "a cgroup is left until it is empty");
            self.cleanup.enqueue(Cleanup::Cgroup(id.to_owned()));
        }
        Ok(())
    }

    /// Removes a cgroup from every hierarchy. Idempotent.
    async fn remove_group(&self, group: &Group) -> Result<()> {
        let cgroups = Arc::clone(&self.cgroups);
        let group = group.clone();
        blocking(move || cgroups.remove(&group).map_err(Into::into)).await
    }

    /// Takes over what a predecessor has on record; gives what to clear away.
    pub(crate) async fn load_busy_cgroups(&self) -> Result<Vec<Cleanup>> {
        let dir = self.layout.busy_cgroups();
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
            match id.zip(BusyCgroup::parse(&text, &self.boot)) {
                Some((id, left)) => {
                    self.busy_cgroups.note(id, left);
                    clear.push(Cleanup::Cgroup(id.to_owned()));
                }
                // Whoever was cut off in writing it has not removed the object either.
                None => {
                    tokio::fs::remove_file(&path).await.map_err(|fault| io_error("remove", &path, fault))?
                }
            }
        }
        Ok(clear)
    }

    /// Removes a cgroup that was left, if nobody is in it any more, and those above that only its sandbox had made. Idempotent.
    pub(crate) async fn remove_busy_cgroup(&self, id: &str) -> Result<()> {
        let Some(BusyCgroup { group, above }) = self.busy_cgroups.by_id().get(id).cloned() else {
            return Ok(());
        };
        if self.may_be_in_use(id) {
            return Err(Error::unavailable(format!("cgroup {group}: {id} is still there")));
        }
        self.remove_group(&group).await?;
        let groups = Arc::clone(&self.pod_cgroups);
        let cgroups = Arc::clone(&self.cgroups);
        blocking(move || {
            groups.remove_if_unclaimed(above, &cgroups);
            Ok(())
        })
        .await?;
        reach(Step::GroupGone);
        self.forget_busy_cgroup(id).await
    }

    /// A cgroup is gone: it is on record no more. Idempotent.
    async fn forget_busy_cgroup(&self, id: &str) -> Result<()> {
        if !self.busy_cgroups.by_id().contains_key(id) {
            return Ok(());
        }
        let path = busy_file(&self.layout.busy_cgroups(), id);
        match tokio::fs::remove_file(&path).await {
            Err(fault) if fault.kind() != Fault::NotFound => return Err(io_error("remove", &path, fault)),
            Ok(()) | Err(_) => {}
        }
        reach(Step::GroupForgotten);
        self.busy_cgroups.by_id().remove(id);
        Ok(())
    }

    /// Whether an object of this id may have a process: a removal that was cut off leaves one that can be started again.
    fn may_be_in_use(&self, id: &str) -> bool {
        let task = id.parse::<TaskId>().ok().and_then(|id| self.tasks().get(&id).cloned());
        let sandbox = id.parse::<SandboxId>().ok().and_then(|id| self.sandboxes().get(&id).cloned());
        task.is_some_and(|entry| entry.may_have_process())
            || sandbox.is_some_and(|entry| entry.pid.is_some() && !entry.released)
    }
}

fn busy_file(dir: &Path, id: &str) -> PathBuf {
    dir.join(format!("{id}{SUFFIX}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(paths: &[&str]) -> BusyCgroup {
        let mut groups = paths.iter().map(|path| Group::from_path(Path::new(path)).unwrap());
        BusyCgroup { group: groups.next().unwrap(), above: groups.collect() }
    }

    #[test]
    fn what_is_on_record_is_read_again_in_the_same_boot() {
        for one in [left(&["/pods/a"]), left(&["/pods/of/a", "/pods/of", "/pods"])] {
            assert_eq!(BusyCgroup::parse(&one.text("boot"), "boot"), Some(one.clone()));
            assert_eq!(BusyCgroup::parse(&one.text("boot"), "another"), None);
        }
    }

    #[test]
    fn what_a_kill_cut_short_is_not_on_record() {
        let whole = left(&["/pods/of/a", "/pods/of"]).text("boot");
        for end in 0..whole.len() {
            assert_eq!(BusyCgroup::parse(&whole[..end], "boot"), None, "{:?}", &whole[..end]);
        }
    }

    #[test]
    fn groups_that_are_left_are_told_until_they_are_gone() {
        let groups = BusyCgroups::default();
        assert_eq!(groups.summary(), None);
        assert!(groups.note("b", left(&["/pods/b"])) && groups.note("a", left(&["/pods/a"])));
        assert!(!groups.note("a", left(&["/pods/a"])));
        assert_eq!(groups.summary().as_deref(), Some("/pods/a, /pods/b"));
    }
}
