//! Rotates the logs of tasks: kubelets and Nomad's agents rotate theirs, a swarm's managers do not.
//!
//! ```text
//!  larger than allowed ─► its file is renamed ─► the oldest files are removed ─► the logkeeper reopens the log
//! ```
//!
//! The next pass detects what a kill or a failure left in between. A log without a file was renamed, and is
//! still written under its new name until it is reopened. A log that could not be reopened may have an empty
//! file, which the logkeeper has created and does not use: it is reopened until that has succeeded, and once
//! after a start if it has rotated files. The newest rotated file is not removed before that.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use switchyard_core::gateway::Scope;
use switchyard_core::id::TaskId;
use switchyard_core::object::Task;
use switchyard_core::state::TaskState;
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_linux::blocking;
use switchyard_linux::files::if_present;
use switchyard_logkeeper::rotate::RotatedFiles;
use tokio::time::sleep;

use crate::record::Record;

/// The pause between two passes. In it, a log can become larger than it may be.
const PAUSE: Duration = Duration::from_secs(5);

/// A log that may have to be rotated.
#[derive(Debug, Clone)]
struct RotatedLog {
    task: TaskId,
    file: PathBuf,
    /// The size of the file at which it is rotated.
    max_size: u64,
    /// Number of rotated files to keep.
    kept: usize,
}

/// The state of a log's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    /// Within its size.
    Small,
    /// It is to be rotated.
    Large,
    /// It was renamed, and the log may not be reopened yet: there is no file, or an empty one that the
    /// logkeeper may not use.
    Renamed,
}

/// Rotates the logs of all tasks of a scope.
#[derive(Debug)]
pub(crate) struct LogRotator {
    scope: Scope,
    /// The tasks whose log could not be rotated at the last pass.
    failing: BTreeSet<TaskId>,
    /// The tasks whose log is known to be written under its own name, as far as this run of the daemon has looked at it.
    settled: BTreeSet<TaskId>,
}

// === impl LogRotator ===

impl LogRotator {
    pub(crate) const fn new(scope: Scope) -> Self {
        Self {
            scope,
            failing: BTreeSet::new(),
            settled: BTreeSet::new(),
        }
    }

    /// Looks at the logs from time to time, as soon as the gateway has recovered, whether the node has a session with
    /// a manager or not. Cancel-safe.
    pub(crate) async fn run(mut self) -> Infallible {
        self.scope.recovered().await;
        loop {
            self.pass().await;
            sleep(PAUSE).await;
        }
    }

    /// Examines each log once. Cancel-safe: the next pass continues.
    pub(crate) async fn pass(&mut self) {
        // Before a recovery there are none.
        let tasks = self.scope.tasks().list().unwrap_or_default();
        let logs: Vec<RotatedLog> = tasks
            .iter()
            .filter_map(|task| RotatedLog::of(task))
            .collect();
        let has_log = |task: &TaskId| logs.iter().any(|log| log.task == *task);
        self.failing.retain(has_log);
        self.settled.retain(has_log);
        if logs.is_empty() {
            return;
        }
        let settled = self.settled.clone();
        let looked = blocking("look at the logs of tasks", move || {
            let looked = logs
                .into_iter()
                .map(|log| (log.state(settled.contains(&log.task)), log));
            Ok::<_, Error>(looked.collect::<Vec<_>>())
        });
        match looked.await {
            Ok(looked) => {
                for (state, log) in looked {
                    self.follow_up(state, log).await;
                }
            }
            Err(error) => {
                tracing::warn!(error = error.report(), "the logs of tasks are not rotated")
            }
        }
    }

    /// Rotates a log if that is due. Only the first failure is logged, until a rotation succeeds.
    async fn follow_up(&mut self, state: io::Result<FileState>, log: RotatedLog) {
        let task = log.task;
        let rotated = match state {
            // The reopen that has failed may have created a file that the logkeeper does not use.
            Ok(FileState::Small) if self.failing.contains(&task) => {
                rotate(&self.scope, log, FileState::Renamed).await
            }
            Ok(FileState::Small) => Ok(()),
            Ok(state @ (FileState::Large | FileState::Renamed)) => {
                rotate(&self.scope, log, state).await
            }
            Err(fault) => Err(log.failed("look at", fault)),
        };
        match rotated {
            Ok(()) => {
                self.failing.remove(&task);
                self.settled.insert(task);
            }
            // It has ended meanwhile.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound | ErrorKind::FailedPrecondition
                ) =>
            {
                tracing::debug!(%task, error = error.report(), "the log of a task is not rotated");
            }
            Err(error) if self.failing.insert(task) => {
                tracing::warn!(%task, error = error.report(), "the log of a task is not rotated: retrying");
            }
            Err(error) => {
                tracing::debug!(%task, error = error.report(), "the log of a task is still not rotated");
            }
        }
    }
}

/// Rotates a log whose file is large, or continues a rotation. The oldest files are removed before the log is
/// reopened, which takes an inode that the disk may not have; only the newest one is still written until
/// then.
async fn rotate(scope: &Scope, log: RotatedLog, state: FileState) -> Result<()> {
    let log = Arc::new(log);
    let aside = Arc::clone(&log);
    let count = blocking("rotation of a log", move || {
        let mut files = aside.rotated_files()?;
        if state == FileState::Large {
            files
                .set_aside(SystemTime::now())
                .map_err(|fault| aside.failed("rename", fault))?;
        }
        aside.remove_beyond(&mut files, aside.kept.max(1))?;
        Ok::<_, Error>(files.count())
    })
    .await?;
    let reopened = scope.tasks().reopen_log(&log.task.to_string()).await;
    let kept = match &reopened {
        Ok(()) => log.kept,
        // No file is looked at until then, so that the newest one grows. The next pass may have the inode of the oldest one.
        Err(error) if error.kind() == ErrorKind::ResourceExhausted => {
            count.saturating_sub(1).max(1)
        }
        Err(_) => return reopened,
    };
    let removed = blocking("removal of old logs", move || {
        let mut files = log.rotated_files()?;
        log.remove_beyond(&mut files, kept)
    });
    removed.await.and(reopened)
}

// === impl RotatedLog ===

impl RotatedLog {
    /// The log of a task that can write to it, if it has one that is to be rotated.
    fn of(task: &Task) -> Option<Self> {
        match task.state {
            TaskState::Running { .. } | TaskState::Stopping { .. } => {}
            TaskState::Created
            | TaskState::Starting
            | TaskState::Unattended
            | TaskState::Exited { .. }
            | TaskState::Removing { .. } => return None,
        }
        let file = task.details.log_path.clone()?;
        let Record {
            log_max_size,
            log_max_files,
            ..
        } = Record::of(&task.meta);
        let max_size = Some(log_max_size).filter(|size| *size > 0)?;
        let kept = usize::try_from(log_max_files.saturating_sub(1)).unwrap_or(usize::MAX);
        Some(Self {
            task: task.id,
            file,
            max_size,
            kept,
        })
    }

    /// Returns the state of the file. Until the log `is_settled`, an empty file beside rotated ones may be
    /// unused.
    fn state(&self, is_settled: bool) -> io::Result<FileState> {
        Ok(match if_present(size(&self.file))? {
            Some(0) if !is_settled && RotatedFiles::of(&self.file)?.count() > 0 => {
                FileState::Renamed
            }
            Some(size) if size < self.max_size => FileState::Small,
            Some(_) => FileState::Large,
            None => FileState::Renamed,
        })
    }

    fn rotated_files(&self) -> Result<RotatedFiles> {
        RotatedFiles::of(&self.file)
            .map_err(|fault| self.failed("look for the rotated files of", fault))
    }

    fn remove_beyond(&self, files: &mut RotatedFiles, kept: usize) -> Result<()> {
        files
            .remove_beyond(kept)
            .map_err(|fault| self.failed("remove the oldest files of", fault))
    }

    fn failed(&self, verb: &str, fault: io::Error) -> Error {
        Error::unavailable(format!("{verb} the log {}", self.file.display())).with_source(fault)
    }
}

fn size(file: &Path) -> io::Result<u64> {
    Ok(file.symlink_metadata()?.len())
}
