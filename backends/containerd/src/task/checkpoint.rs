//! Checkpoints: the state of a running task's processes and the files that it has changed, in one archive.
//!
//! ```text
//! directory created ─► paused ─► criu's images ─► changed files ─► resumed
//!                   ─► archive written ─► archive named ─► directory removed
//! ```
//!
//! The directory is the marker: while it exists the task may be frozen. Whoever finds it, after a failure or
//! a kill of the daemon, resumes the task and removes the directory; a criu that does not finish is killed
//! for that. The archive has no name until it is complete, so a kill leaves no partial archive.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use containerd_client::services::v1 as api;
use containerd_client::types::Mount;
use futures::future::BoxFuture;
use prost_types::Any;
use switchyard_core::id::TaskId;
use switchyard_core::spec::CheckpointSpec;
use switchyard_core::threads::bulk;
use switchyard_core::{Error, Result};
use switchyard_linux::packages::{Needed, OsRelease};
use switchyard_proto::containerd::runc::v1 as runc;
use tokio::time::Instant;

use super::TaskEntry;
use crate::base::config::RUNC_TYPE;
use crate::base::crash_points::CrashPoint;
use crate::base::fs::{blocking, create_private_dir, io_error, remove_tree};
use crate::base::mount::{describe_mount, writable_dir};
use crate::cleanup::{Cleanup, CleanupQueue, upgrade};
use crate::client::{Client, call};
use crate::context::Context;
use crate::record::OutputRecord;
use crate::sandbox::Sandboxes;
use crate::shims::Shims;
use crate::task::cgroups::TaskCgroups;
use crate::task::storage::Storage;
use crate::task::table::TaskTable;

mod archive;
mod criu;
mod layer;
mod resume;

use archive::{CheckpointEntry, Draft};

/// The program with which runtimes make checkpoints; Debian has it in the package of the same name.
const CRIU: &str = "criu";
/// The directory of criu's images, in the directory of a checkpoint and in the archive.
const IMAGES: &str = "checkpoint";
/// criu's work directory with its log, in the directory of a checkpoint.
const WORK: &str = "work";
/// The layer with the files that the task has changed, in the directory of a checkpoint and in the archive.
const LAYER: &str = "rootfs-diff.tar";
/// The longest time for a checkpoint. A client may ask for so long a time that adding it to a clock would
/// overflow.
const MAX_DURATION: Duration = Duration::from_secs(24 * 60 * 60);
/// Bytes of criu's log that are searched for the reason of a failure.
const LOG_LIMIT: usize = 4 << 20;

/// Checkpoints running tasks.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    /// This object, for cleanups that outlive the call that queues them.
    pub(crate) weak: Weak<Self>,
    pub(crate) context: Arc<Context>,
    pub(crate) client: Client,
    pub(crate) table: Arc<TaskTable>,
    pub(crate) sandboxes: Arc<Sandboxes>,
    pub(crate) storage: Arc<Storage>,
    pub(crate) task_cgroups: Arc<TaskCgroups>,
    pub(crate) shims: Arc<Shims>,
    pub(crate) cleanup: Arc<CleanupQueue>,
}

impl Checkpoints {
    /// Makes a checkpoint. What a failed one leaves is cleaned up at once, or later by the cleanup queue or
    /// recovery.
    pub(crate) async fn checkpoint_task(&self, id: TaskId, spec: &CheckpointSpec) -> Result<()> {
        let entry = self.table.get(id)?;
        self.can_checkpoint(&entry)?;
        let deadline = Instant::now() + spec.limit.min(MAX_DURATION);
        let location = spec.location.clone();
        let draft = blocking(move || Draft::begin(&location)).await?;
        let late = |_| {
            Error::deadline(format!(
                "another operation on the process of task {id} did not finish within {:?}",
                spec.limit
            ))
        };
        let _guard = tokio::time::timeout_at(deadline, entry.lock_process())
            .await
            .map_err(late)?;
        self.clear_checkpoint(&entry).await?;
        let dumped = self.dump(&entry, deadline).await;
        let resumed = self.resume_task(&entry).await;
        let outcome = match (dumped, &resumed) {
            (Ok(()), Ok(())) => match self.context.faults.reach(CrashPoint::CheckpointResumed) {
                Ok(()) => self.write_archive(&entry, spec, draft, deadline).await,
                Err(error) => Err(error),
            },
            (Err(error), _) => Err(error),
            (Ok(()), Err(_)) => Err(Error::unavailable(
                "its shim does not resume it: see the log",
            )),
        };
        let cleared = match resumed {
            Ok(()) => remove_tree(&entry.dirs.checkpoint()).await,
            Err(error) => Err(error.context("its shim is asked again until it resumes the task")),
        };
        if let Err(error) = cleared {
            tracing::warn!(task = %id, error = error.report(), "cannot clean up after a checkpoint: the cleanup queue retries it");
            self.cleanup.enqueue(CheckpointCleanup::new(self, entry));
        }
        outcome.map_err(|error| error.context(format!("checkpoint of task {id}")))
    }

    /// Resumes a task that is frozen for an abandoned checkpoint, and removes the checkpoint's directory.
    /// Idempotent.
    pub(crate) async fn end_checkpoint(&self, entry: &TaskEntry) -> Result<()> {
        let _guard = entry.lock_process().await;
        self.clear_checkpoint(entry).await
    }

    async fn clear_checkpoint(&self, entry: &TaskEntry) -> Result<()> {
        let dir = entry.dirs.checkpoint();
        if !dir.exists() {
            return Ok(());
        }
        self.resume_task(entry).await?;
        remove_tree(&dir).await
    }

    fn can_checkpoint(&self, entry: &TaskEntry) -> Result<()> {
        let handler = entry.record().handler.clone();
        let runtime = self.context.runtime(&handler)?;
        if runtime.type_ != RUNC_TYPE {
            return Err(Error::unimplemented(format!(
                "the shim {} makes no checkpoints",
                runtime.type_
            )));
        }
        if is_installed(CRIU) {
            Ok(())
        } else {
            Err(no_criu())
        }
    }

    /// Freezes the task, and writes the state of its processes and its changed files into the directory of
    /// the checkpoint.
    async fn dump(&self, entry: &TaskEntry, deadline: Instant) -> Result<()> {
        let id = entry.id.to_string();
        let dir = entry.dirs.checkpoint();
        create_private_dir(&entry.dirs.state).await?;
        let mut builder = tokio::fs::DirBuilder::new();
        // The directory is going to contain all secrets of the task.
        builder.mode(0o700);
        builder
            .create(&dir)
            .await
            .map_err(|fault| io_error("make directory", &dir, fault))?;
        self.context.faults.reach(CrashPoint::CheckpointBegun)?;
        entry.exec_permits.freeze(deadline).await?;
        let request = api::PauseTaskRequest {
            container_id: id.clone(),
        };
        self.shims
            .call_with_shim_timeout(
                &id,
                &format!("pause task {id}"),
                self.client.tasks().pause(request),
            )
            .await?;
        self.context.faults.reach(CrashPoint::CheckpointPaused)?;
        self.dump_processes(&id, &dir, deadline).await?;
        self.context.faults.reach(CrashPoint::CheckpointDumped)?;
        let mounts = self.storage.mounts_of(entry).await?;
        let upper = upper_of(&mounts)?;
        let overlay = layer::own_attributes(&mounts);
        let users = self
            .sandboxes
            .table
            .get(entry.sandbox)?
            .users()
            .map(|users| users.map);
        let until = deadline.into_std();
        let write = move || layer::write(&upper, users.as_ref(), overlay, &dir.join(LAYER), until);
        bulk(write).await?;
        self.context.faults.reach(CrashPoint::CheckpointLayered)
    }

    async fn dump_processes(&self, id: &str, dir: &Path, deadline: Instant) -> Result<()> {
        let options = runc::CheckpointOptions {
            // A process that serves clients can be expected to have all of these.
            open_tcp: true,
            external_unix_sockets: true,
            file_locks: true,
            image_path: dir.join(IMAGES).display().to_string(),
            work_path: dir.join(WORK).display().to_string(),
            ..Default::default()
        };
        let request = api::CheckpointTaskRequest {
            container_id: id.to_owned(),
            options: Some(Any {
                type_url: "containerd.runc.v1.CheckpointOptions".to_owned(),
                value: prost::Message::encode_to_vec(&options),
            }),
            ..Default::default()
        };
        let limit = deadline.saturating_duration_since(Instant::now());
        let what = format!("checkpoint the processes of task {id}");
        match call(&what, limit, self.client.tasks().checkpoint(request)).await {
            Ok(_) => Ok(()),
            Err(error) => Err(with_reason(error, &dir.join(WORK).join("dump.log")).await),
        }
    }

    async fn write_archive(
        &self,
        entry: &TaskEntry,
        spec: &CheckpointSpec,
        draft: Draft,
        deadline: Instant,
    ) -> Result<()> {
        let dir = entry.dirs.checkpoint();
        let log = entry.record().output.clone();
        let stored = self.client.stored_spec(&entry.id.to_string()).await?;
        let mut parts: Vec<CheckpointEntry> = spec
            .notes
            .iter()
            .map(|(name, bytes)| CheckpointEntry::Bytes(name.clone(), bytes.clone()))
            .collect();
        parts.push(CheckpointEntry::Bytes(
            "spec.dump".to_owned(),
            stored.to_string().into_bytes(),
        ));
        if let OutputRecord::Log(path) = log {
            parts.push(CheckpointEntry::IfThere("container.log".to_owned(), path));
        }
        for name in ["dump.log", "stats-dump"] {
            parts.push(CheckpointEntry::IfThere(
                name.to_owned(),
                dir.join(WORK).join(name),
            ));
        }
        parts.push(CheckpointEntry::IfThere(LAYER.to_owned(), dir.join(LAYER)));
        parts.push(CheckpointEntry::Directory(
            IMAGES.to_owned(),
            dir.join(IMAGES),
        ));
        let until = deadline.into_std();
        bulk(move || draft.fill(&parts, until)?.finish()).await?;
        self.context.faults.reach(CrashPoint::CheckpointNamed)
    }
}

/// Resumes a task after an unfinished checkpoint, and removes the checkpoint.
#[derive(Debug)]
pub(crate) struct CheckpointCleanup {
    checkpoints: Weak<Checkpoints>,
    entry: Arc<TaskEntry>,
}

impl CheckpointCleanup {
    pub(crate) fn new(checkpoints: &Checkpoints, entry: Arc<TaskEntry>) -> Self {
        Self {
            checkpoints: Weak::clone(&checkpoints.weak),
            entry,
        }
    }
}

impl Cleanup for CheckpointCleanup {
    fn description(&self) -> String {
        format!("checkpoint of task {}", self.entry.id)
    }

    fn run(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            upgrade(&self.checkpoints)?
                .end_checkpoint(&self.entry)
                .await
        })
    }
}

/// Returns whether a program is in one of the directories of `PATH`.
fn is_installed(program: &str) -> bool {
    use std::os::unix::fs::PermissionsExt;
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|dir| {
        let data = std::fs::metadata(dir.join(program));
        data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
    })
}

/// The directory that contains the files that a task has changed.
fn upper_of(mounts: &[Mount]) -> Result<PathBuf> {
    writable_dir(mounts).ok_or_else(|| {
        let described: Vec<_> = mounts.iter().map(describe_mount).collect();
        Error::unimplemented(format!(
            "the changed files of a task are known with the snapshotter overlayfs only, not with {}",
            described.join(", ")
        ))
    })
}

/// The error of a node without criu. It begins with containerd's words, by which suites of tests know such a node.
fn no_criu() -> Error {
    let why = "criu binary not found in shim path or system PATH";
    let advice = OsRelease::of_node().advice(Needed::Criu);
    Error::unimplemented(format!("{why}: this node makes no checkpoints: {advice}"))
}

/// Adds to an error of containerd the first error in criu's log, which gives the reason.
async fn with_reason(error: Error, log: &Path) -> Error {
    let text = tokio::fs::read(log).await.unwrap_or_default();
    let text = String::from_utf8_lossy(text.get(..LOG_LIMIT).unwrap_or(&text)).into_owned();
    match reason(&text) {
        Some(reason) => error.context(format!("{CRIU}: {reason}")),
        None => error,
    }
}

/// The first error in criu's log, without its time.
fn reason(log: &str) -> Option<&str> {
    log.lines()
        .find_map(|line| line.find("Error (").map(|at| line[at..].trim_end()))
}

/// Fails with `TimedOut` once `until` has passed.
fn check_deadline(until: std::time::Instant) -> std::io::Result<()> {
    if until.saturating_duration_since(std::time::Instant::now()) > Duration::ZERO {
        Ok(())
    } else {
        Err(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            "the deadline of the checkpoint has passed",
        ))
    }
}

/// The error of a file operation: `DeadlineExceeded` if it timed out.
fn deadline_or_io_error(doing: &str, path: &Path, fault: std::io::Error) -> Error {
    if fault.kind() == std::io::ErrorKind::TimedOut {
        Error::deadline(format!("{doing} {}", path.display())).with_source(fault)
    } else {
        io_error(doing, path, fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_without_criu_is_recognised_by_suites_of_tests() {
        let error = no_criu();
        assert_eq!(error.kind(), switchyard_core::ErrorKind::Unimplemented);
        let known = "criu binary not found in shim path or system PATH";
        assert!(error.report().contains(known), "{}", error.report());
    }

    #[test]
    fn the_reason_is_the_first_error_that_criu_tells() {
        let log = "(00.1) Warn  (a.c:1): so\n(00.2) Error (criu/files.c:4): Can't dump\n(00.3) Error (b.c:5): FAILED.\n";
        assert_eq!(reason(log), Some("Error (criu/files.c:4): Can't dump"));
        assert_eq!(reason("(00.1) all is well\n"), None);
    }

    #[test]
    fn changes_are_found_where_an_overlay_keeps_them() {
        let mount = |kind: &str, options: &[&str]| Mount {
            r#type: kind.to_owned(),
            source: "/source".to_owned(),
            options: options.iter().map(|option| (*option).to_owned()).collect(),
            ..Default::default()
        };
        let overlay = mount(
            "overlay",
            &["index=off", "lowerdir=/l", "upperdir=/u", "workdir=/w"],
        );
        assert_eq!(upper_of(&[overlay]).unwrap(), Path::new("/u"));
        assert_eq!(
            upper_of(&[mount("bind", &["rw"])]).unwrap(),
            Path::new("/source")
        );
        assert!(
            upper_of(&[mount("erofs", &[])])
                .unwrap_err()
                .to_string()
                .contains("erofs /source")
        );
        assert!(upper_of(&[]).is_err());
    }
}
