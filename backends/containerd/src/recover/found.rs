//! Sandboxes and tasks as predecessors left them: what their container objects and files say, before anything
//! is decided.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use futures::{StreamExt, stream};
use switchyard_cgroup::Group;
use switchyard_core::backend::{Started, UnreadableKind};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::{Error, Result};

use super::CONCURRENCY;
use super::decide::needs_shim_query;
use super::outdated::OutdatedObject;
use super::process_query::ProcessQuery;
use crate::base::epoch::has_changed;
use crate::base::fs::blocking;
use crate::base::layout::TaskDirs;
use crate::record::{
    self, EXIT, ExitRecord, MetaRecord, PHASE, SandboxPhase, SandboxRecord, TaskRecord, from_ns,
    later_identity, view_labels,
};
use crate::recover::Recovery;
use crate::sandbox::{SandboxChange, SandboxEntry, SandboxLifecycle};

/// A sandbox, as read from its container object.
#[derive(Debug)]
pub(super) struct FoundSandbox {
    pub(super) phase: SandboxPhase,
    pub(super) entry: SandboxEntry,
    /// Data that an earlier version wrote into the container object and this version would not.
    pub(super) outdated: Option<OutdatedObject>,
}

/// A task, as read from its container object and files.
#[derive(Debug)]
pub(super) struct FoundTask {
    pub(super) sandbox: SandboxId,
    pub(super) record: TaskRecord,
    pub(super) dirs: TaskDirs,
    pub(super) snapshotter: String,
    /// Its exit or failure to start: as it is persisted, or else as it is noted.
    pub(super) exit: Option<ExitRecord>,
    /// `exit` is noted, and not persisted yet.
    pub(super) noted: bool,
    pub(super) files: TaskFiles,
    /// Nothing says that it was started or has exited, and its files in the run directory, which would, were lost in
    /// this boot.
    pub(super) files_lost: bool,
    /// Its creation was given up, and another task has its name.
    pub(super) given_up: bool,
    /// Data that an earlier version wrote into the container object and this version would not.
    pub(super) outdated: Option<OutdatedObject>,
}

/// The content of a task's files.
#[derive(Debug)]
pub(super) struct TaskFiles {
    /// The note of its exit.
    note: Option<String>,
    pub(super) started: Option<Started>,
    /// A start was begun: its run directory exists.
    pub(super) begun: bool,
    /// The limits in force may differ from the record.
    pub(super) limits_pending: bool,
    /// A checkpoint was being made of it, for which it may be frozen.
    pub(super) checkpointed: bool,
}

impl FoundSandbox {
    /// Returns whether something was done with it after its creation, but for its tasks.
    pub(super) fn was_used(&self) -> bool {
        !matches!(self.phase, SandboxPhase::Creating | SandboxPhase::Ready)
            || !self.entry.record.note.is_empty()
    }
}

impl FoundTask {
    /// Returns whether a start of it was begun, or may have been: the files that would say so were lost.
    pub(super) fn may_have_started(&self) -> bool {
        self.files.begun || self.exit.is_some() || self.files_lost
    }

    /// Returns whether it was created completely: it has its snapshot, and the disk limits that were asked for.
    pub(super) fn is_complete(&self, has_snapshot: bool) -> bool {
        let quota = self.record.quota.as_ref();
        has_snapshot && quota.is_none_or(|quota| quota.in_force)
    }
}

impl Recovery {
    pub(super) fn read_sandbox(
        &self,
        id: SandboxId,
        container: &api::Container,
    ) -> Result<FoundSandbox> {
        let phase = container
            .labels
            .get(PHASE)
            .map(String::as_str)
            .unwrap_or_default();
        let phase = SandboxPhase::parse(phase).ok_or_else(|| {
            Error::internal(format!("sandbox {id} is in the unknown phase {phase:?}"))
        })?;
        let mut record: SandboxRecord = record::decode(&container.id, &container.extensions)?;
        self.check_request(UnreadableKind::Sandbox, &record.meta)?;
        record.later = later_identity(&container.extensions);
        let outdated = OutdatedObject::find(id.into(), container, &record.meta, &HashMap::new());
        let dirs = self.context.layout.sandbox(id);
        let entry = SandboxEntry {
            record,
            dirs,
            lifecycle: found_lifecycle(phase),
        };
        Ok(FoundSandbox {
            phase,
            entry,
            outdated,
        })
    }

    /// Reads all sandboxes.
    pub(super) fn read_sandboxes(
        &self,
        sandboxes: Vec<(SandboxId, Arc<api::Container>)>,
    ) -> Vec<(SandboxId, Result<FoundSandbox>)> {
        sandboxes
            .into_iter()
            .map(|(id, container)| (id, self.read_sandbox(id, &container)))
            .collect()
    }

    /// Reads all tasks, several at a time.
    pub(super) async fn read_tasks(
        &self,
        tasks: Vec<(TaskId, Arc<api::Container>)>,
    ) -> Vec<(TaskId, Result<FoundTask>)> {
        stream::iter(tasks)
            .map(|(id, container)| async move { (id, self.read_task(id, container).await) })
            .buffer_unordered(CONCURRENCY)
            .collect()
            .await
    }

    /// Returns whether files of the run directory were lost that concern one of these tasks; reports it in
    /// the log.
    pub(super) fn have_lost_files(&self, tasks: &[(TaskId, Result<FoundTask>)]) -> bool {
        let lost = tasks
            .iter()
            .any(|(_, found)| found.as_ref().is_ok_and(|found| found.files_lost));
        if lost {
            tracing::warn!(
                run = %self.context.layout.run().display(),
                "files of the run directory were deleted in this boot of the node: a task without them that does not run counts as exited"
            );
        }
        lost
    }

    async fn read_task(&self, id: TaskId, container: Arc<api::Container>) -> Result<FoundTask> {
        let mut record: TaskRecord = record::decode(&container.id, &container.extensions)?;
        self.check_request(UnreadableKind::Task, &record.meta)?;
        record.later = later_identity(&container.extensions);
        let sandbox = record.sandbox_id()?;
        let dirs = self.context.layout.task(id);
        let of_task = dirs.clone();
        let files = blocking(move || Ok(TaskFiles::read(&of_task))).await?;
        let exit = exit_of(&container, files.note.as_deref())?;
        let noted = exit.is_some() && !container.labels.contains_key(EXIT);
        // An earlier try of recovery, or an earlier daemon, may have stored that the exit is not known.
        let is_open = exit.as_ref().is_none_or(ExitRecord::is_lost);
        let files_lost = is_open
            && files.started.is_none()
            && record.boot == self.context.boot
            && has_changed(record.epoch.as_deref(), self.context.epoch.as_deref());
        let views = view_labels(&record.staged, &container.snapshotter);
        let outdated = OutdatedObject::find(id.into(), &container, &record.meta, &views);
        let snapshotter = container.snapshotter.clone();
        Ok(FoundTask {
            sandbox,
            record,
            dirs,
            snapshotter,
            exit,
            noted,
            files,
            files_lost,
            given_up: false,
            outdated,
        })
    }

    /// Checks the request that the frontend of an object has stored with it. With one that it does not understand, nothing
    /// could be done with the object that its orchestrator expects.
    fn check_request(&self, kind: UnreadableKind, meta: &MetaRecord) -> Result<()> {
        let check = self.context.settings().check_request;
        // What else cannot be read of it is found where it is needed.
        let Ok(meta) = meta.to_core() else {
            return Ok(());
        };
        check(kind, &meta).map_err(|reason| {
            Error::internal(format!(
                "the request that {} has stored with {} {:?} cannot be read: {reason}",
                meta.owner.as_str(),
                kind.as_str(),
                meta.name
            ))
        })
    }

    /// Collects the queries for all processes whose state the found records and files do not tell.
    pub(super) fn process_queries(
        &self,
        sandboxes: &[(SandboxId, Result<FoundSandbox>)],
        tasks: &[(TaskId, Result<FoundTask>)],
    ) -> Vec<ProcessQuery> {
        let of_sandboxes =
            readable(sandboxes).filter_map(|(id, found)| self.sandbox_process_query(id, found));
        let of_tasks = readable(tasks).filter_map(|(id, found)| self.task_process_query(id, found));
        of_sandboxes.chain(of_tasks).collect()
    }

    /// The query for the infra process of a sandbox, if the sandbox is ready and has one.
    fn sandbox_process_query(&self, id: SandboxId, found: &FoundSandbox) -> Option<ProcessQuery> {
        let FoundSandbox {
            phase,
            entry,
            outdated: _,
        } = found;
        let id = id.to_string();
        (entry.record.infra && *phase == SandboxPhase::Ready).then(|| ProcessQuery {
            group: entry
                .cgroup_location(&self.context, &id)
                .ok()
                .and_then(|at| Group::from_cgroups_path(&at.path).ok()),
            visible: self.context.has_host_processes(&entry.record.handler),
            pid: None,
            cgroup_marker: id.clone(),
            id,
        })
    }

    /// The query for the main process of a task; `None` if its state can be decided without.
    fn task_process_query(&self, id: TaskId, found: &FoundTask) -> Option<ProcessQuery> {
        let TaskFiles { started, begun, .. } = found.files;
        let is_open = needs_shim_query(
            found.exit.is_some(),
            begun,
            started.is_some(),
            found.files_lost,
        );
        is_open.then(|| ProcessQuery {
            cgroup_marker: found.record.cgroup_marker(&id.to_string()),
            id: id.to_string(),
            pid: started.map(|started| started.pid).filter(|pid| *pid != 0),
            group: None,
            visible: self.context.has_host_processes(&found.record.handler),
        })
    }
}

/// The container objects of readable sandboxes and tasks that an older version has written.
pub(super) fn outdated_objects(
    sandboxes: &[(SandboxId, Result<FoundSandbox>)],
    tasks: &[(TaskId, Result<FoundTask>)],
) -> Vec<OutdatedObject> {
    let of_sandboxes = readable(sandboxes).filter_map(|(_, found)| found.outdated.clone());
    let of_tasks = readable(tasks).filter_map(|(_, found)| found.outdated.clone());
    of_sandboxes.chain(of_tasks).collect()
}

fn readable<I: Copy, F>(found: &[(I, Result<F>)]) -> impl Iterator<Item = (I, &F)> {
    found
        .iter()
        .filter_map(|(id, found)| Some((*id, found.as_ref().ok()?)))
}

/// The exit of a task: as it is persisted, or else as it is noted. A note that was cut off is none: a predecessor was
/// killed while it wrote the note.
///
/// # Errors
/// A label or a note that cannot be parsed: it says that the task has exited, and not how. Without it the task would
/// count as lost, or could be started again.
fn exit_of(container: &api::Container, note: Option<&str>) -> Result<Option<ExitRecord>> {
    let label = container.labels.get(EXIT).map(String::as_str);
    let Some(text) = label.or(note) else {
        return Ok(None);
    };
    match ExitRecord::parse_label(text) {
        Ok(exit) => Ok(Some(exit)),
        Err(fault) if label.is_none() && fault.is_eof() => Ok(None),
        Err(fault) => Err(Error::internal(format!(
            "task {} has an exit that cannot be read: {text:?}",
            container.id
        ))
        .with_source(fault)),
    }
}

/// The state of a sandbox that was found in this phase. Even a stopped one may have been released only in
/// part.
const fn found_lifecycle(phase: SandboxPhase) -> SandboxLifecycle {
    match phase {
        SandboxPhase::Removing => SandboxLifecycle::NEW.after(SandboxChange::RemovalRecorded),
        SandboxPhase::Creating
        | SandboxPhase::Starting
        | SandboxPhase::Ready
        | SandboxPhase::Stopped => SandboxLifecycle::NEW,
    }
}

impl TaskFiles {
    /// Blocks.
    fn read(dirs: &TaskDirs) -> Self {
        Self {
            note: read_exit_note(&dirs.exit_note()),
            started: read_started(&dirs.started()),
            begun: dirs.run.exists(),
            limits_pending: dirs.limits_pending().exists(),
            checkpointed: dirs.checkpoint().exists(),
        }
    }
}

/// Reads the time of a task's start and the pid of its main process from the file that a start leaves. The
/// pid is 0 if an older version wrote the file, without a pid.
fn read_started(path: &Path) -> Option<Started> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.split_whitespace();
    let at = from_ns(words.next()?.parse().ok()?);
    let pid = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
    Some(Started { pid, at })
}

/// The text of the exit that was noted in this file, because containerd could not store it.
fn read_exit_note(path: &Path) -> Option<String> {
    let text = fs::read(path).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn marks_of_the_first_version_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = TaskDirs {
            state: dir.path().join("state"),
            run: dir.path().join("run"),
            stage: dir.path().join("stage"),
        };
        let found = TaskFiles::read(&dirs);
        assert!(!found.begun && !found.limits_pending && !found.checkpointed);
        assert!(found.note.is_none() && found.started.is_none());

        fs::create_dir_all(dirs.state.join("checkpoint")).unwrap();
        fs::create_dir(&dirs.run).unwrap();
        fs::write(dirs.run.join("limiting"), "500 -7").unwrap();
        let note =
            r#"{"code":3,"at_ns":7,"started_ns":5,"oom":false,"lost":false,"start_failed":null}"#;
        fs::write(dirs.run.join("failed"), note).unwrap();
        let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(1_764_547_200_000_000_007);
        let started = |pid| Some(Started { pid, at });
        for (mark, read) in [
            (format!("{:<64}", "1764547200000000007 4711"), started(4711)),
            // Written before marks had a pid, and reserved for a start that did not come so far.
            ("1764547200000000007".to_owned(), started(0)),
            (" ".repeat(64), None),
        ] {
            fs::write(dirs.run.join("started"), &mark).unwrap();
            let found = TaskFiles::read(&dirs);
            assert!(found.begun && found.limits_pending && found.checkpointed);
            assert_eq!(found.started, read, "{mark:?}");
            let exit = exit_of(&api::Container::default(), found.note.as_deref());
            let (exit, started) = exit.unwrap().expect("it is noted").to_core();
            assert_eq!((exit.code, started), (3, Some(from_ns(5))));
        }
    }

    #[test]
    fn an_exit_that_cannot_be_parsed_is_not_taken_for_none() {
        let mut task = api::Container::default();
        assert_eq!(exit_of(&task, None).unwrap(), None);
        let label = r#"{"code":3,"at_ns":7,"started_ns":null,"signal":9}"#;
        task.labels.insert(EXIT.to_owned(), label.to_owned());
        let read = exit_of(&task, None).unwrap();
        assert!(read.is_some(), "fields may be added");
        for label in ["", "{}", r#"{"v2":[3,7]}"#] {
            task.labels.insert(EXIT.to_owned(), label.to_owned());
            let error = exit_of(&task, None).unwrap_err();
            assert!(error.report().contains("cannot be read"), "{error:?}");
        }
    }

    #[test]
    fn a_note_that_cannot_be_parsed_is_not_taken_for_none_unless_it_was_cut_off() {
        let mut task = api::Container::default();
        let whole = r#"{"code":3,"at_ns":7,"started_ns":null}"#;
        let read = |task: &api::Container, note: &str| {
            exit_of(task, Some(note)).map(|exit| exit.is_some())
        };
        assert!(read(&task, whole).unwrap());
        for cut in ["", &whole[..9], &whole[..whole.len() - 1]] {
            assert!(!read(&task, cut).unwrap(), "{cut:?}");
        }
        for note in ["{}", r#"{"v2":[3,7]}"#, "\u{fffd}"] {
            let error = read(&task, note).unwrap_err();
            assert!(error.report().contains("cannot be read"), "{error:?}");
        }
        task.labels.insert(EXIT.to_owned(), whole.to_owned());
        assert!(read(&task, "{}").unwrap(), "the label counts");
    }
}
