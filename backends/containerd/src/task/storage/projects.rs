//! Quota projects of tasks: which task has which project id, so that none is assigned twice.
//!
//! A project is in the task's record before any file has its id, and until its limit is lifted. Several tasks
//! of one owner may share a project that was requested by number; the limit is lifted when the last of them is
//! removed.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use switchyard_core::id::{Owner, TaskId};
use switchyard_core::spec::ProjectId;
use switchyard_core::{Error, Result};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::record::{LimitRecord, QuotaRecord};

/// The quota projects that tasks have.
#[derive(Debug)]
pub(crate) struct Projects {
    claims: Mutex<HashMap<TaskId, ProjectClaims>>,
    limits_lock: Arc<Semaphore>,
}

#[derive(Debug)]
struct ProjectClaims {
    owner: Owner,
    projects: BTreeSet<u32>,
}

impl Default for Projects {
    fn default() -> Self {
        Self {
            claims: Mutex::default(),
            limits_lock: Arc::new(Semaphore::new(1)),
        }
    }
}

impl Projects {
    fn lock(&self) -> MutexGuard<'_, HashMap<TaskId, ProjectClaims>> {
        self.claims.lock()
    }

    /// Acquires the lock under which limits are set and lifted, so that a limit is not set while it is being
    /// lifted. Cancel-safe.
    pub(crate) async fn lock_limits(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed.
        Arc::clone(&self.limits_lock).acquire_owned().await.ok()
    }

    /// Assigns a task the first project from `first` on that no task has; `None` if all are taken.
    pub(crate) fn reserve(&self, id: TaskId, owner: Owner, first: ProjectId) -> Option<ProjectId> {
        let mut held = self.lock();
        let is_held = |project: ProjectId| {
            held.values()
                .any(|held| held.projects.contains(&project.number()))
        };
        let mut next = Some(first);
        while let Some(project) = next.filter(|project| is_held(*project)) {
            next = project.next();
        }
        if let Some(project) = next {
            add_claim(&mut held, id, owner, project.number());
        }
        next
    }

    /// Undoes a [`Projects::reserve`].
    pub(crate) fn unreserve(&self, id: TaskId, project: ProjectId) {
        if let Some(held) = self.lock().get_mut(&id) {
            held.projects.remove(&project.number());
        }
    }

    /// Assigns a task a project that it requested by number.
    ///
    /// # Errors
    /// `FailedPrecondition` if a task of another owner has it.
    pub(crate) fn share(&self, id: TaskId, owner: Owner, project: ProjectId) -> Result<()> {
        let mut held = self.lock();
        let has = |held: &&ProjectClaims| {
            held.owner != owner && held.projects.contains(&project.number())
        };
        if let Some(other) = held.values().find(has) {
            let other = other.owner.as_str();
            return Err(Error::failed_precondition(format!(
                "project {project} belongs to a container of {other}: ask for another one, or for a new one"
            )));
        }
        add_claim(&mut held, id, owner, project.number());
        Ok(())
    }

    /// Claims the projects of an adopted task.
    pub(crate) fn adopt(&self, id: TaskId, owner: Owner, quota: &QuotaRecord) {
        let mut held = self.lock();
        for limit in &quota.limits {
            add_claim(&mut held, id, owner, limit.project);
        }
    }

    /// Claims projects of a task that cannot be read.
    pub(crate) fn hold(&self, id: TaskId, owner: Owner, projects: &[u32]) {
        let mut held = self.lock();
        for project in projects {
            add_claim(&mut held, id, owner, *project);
        }
    }

    /// Drops a task's claims and returns those of its `limits` whose project no other task has.
    pub(crate) fn release(&self, id: TaskId, limits: Vec<LimitRecord>) -> Vec<LimitRecord> {
        let mut held = self.lock();
        held.remove(&id);
        let is_free = |limit: &LimitRecord| {
            !held
                .values()
                .any(|held| held.projects.contains(&limit.project))
        };
        limits.into_iter().filter(is_free).collect()
    }

    /// Drops the claims of all tasks.
    pub(crate) fn clear(&self) {
        self.lock().clear();
    }
}

fn add_claim(held: &mut HashMap<TaskId, ProjectClaims>, id: TaskId, owner: Owner, project: u32) {
    held.entry(id)
        .or_insert_with(|| ProjectClaims {
            owner,
            projects: BTreeSet::new(),
        })
        .projects
        .insert(project);
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ProjectId = ProjectId::FIRST;

    fn task(number: u8) -> TaskId {
        TaskId::from_bytes([number; 32])
    }

    fn limit(project: ProjectId) -> LimitRecord {
        LimitRecord {
            project: project.number(),
            bytes: 1,
            mount: "/".into(),
        }
    }

    #[test]
    fn no_project_is_given_out_twice_and_one_that_is_free_again_is() {
        let projects = Projects::default();
        let second = FIRST.next().unwrap();
        assert_eq!(
            projects.reserve(task(1), Owner::Kubernetes, FIRST),
            Some(FIRST)
        );
        assert_eq!(projects.reserve(task(2), Owner::Nomad, FIRST), Some(second));
        assert_eq!(
            projects.reserve(task(2), Owner::Nomad, FIRST),
            second.next()
        );
        projects.unreserve(task(2), second);
        assert_eq!(projects.reserve(task(3), Owner::Nomad, FIRST), Some(second));
        assert_eq!(
            projects.release(task(1), vec![limit(FIRST)]),
            [limit(FIRST)]
        );
        assert_eq!(projects.reserve(task(3), Owner::Nomad, FIRST), Some(FIRST));
        let found = QuotaRecord {
            limits: vec![limit(second)],
            in_force: false,
        };
        projects.clear();
        projects.adopt(task(4), Owner::Host, &found);
        assert_eq!(
            projects.reserve(task(5), Owner::Nomad, second),
            second.next()
        );
        let last = ProjectId::new(u32::MAX - 1).unwrap();
        assert_eq!(projects.reserve(task(6), Owner::Nomad, last), Some(last));
        assert_eq!(projects.reserve(task(6), Owner::Nomad, last), None);
    }

    #[test]
    fn a_project_that_tasks_of_one_owner_share_is_free_with_the_last_of_them() {
        let projects = Projects::default();
        projects.share(task(1), Owner::Kubernetes, FIRST).unwrap();
        projects.share(task(2), Owner::Kubernetes, FIRST).unwrap();
        let refused = projects.share(task(3), Owner::Nomad, FIRST).unwrap_err();
        assert!(refused.to_string().contains("kubernetes"), "{refused}");
        assert_eq!(projects.release(task(1), vec![limit(FIRST)]), []);
        // A removal is repeated after another step of it failed.
        assert_eq!(projects.release(task(1), vec![limit(FIRST)]), []);
        assert_eq!(
            projects.release(task(2), vec![limit(FIRST)]),
            [limit(FIRST)]
        );
        projects.share(task(3), Owner::Nomad, FIRST).unwrap();
    }

    #[test]
    fn a_record_without_a_limit_is_of_a_task_that_is_not_finished() {
        let text = serde_json::to_string(&QuotaRecord::default()).unwrap();
        assert_eq!(text, r#"{"limits":[],"in_force":false}"#);
        let text = r#"{"limits":[{"project":16777216,"bytes":4096,"mount":"/"}],"in_force":true}"#;
        let expected = LimitRecord {
            bytes: 4096,
            ..limit(FIRST)
        };
        let record: QuotaRecord = serde_json::from_str(text).unwrap();
        assert_eq!(
            record,
            QuotaRecord {
                limits: vec![expected],
                in_force: true
            }
        );
    }
}
