//! Further processes that a predecessor started in tasks that run on: nobody waits for them.

use std::collections::HashMap;
use std::fs::{File, read_dir};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use containerd_client::services::v1 as api;
use switchyard_core::id::TaskId;
use switchyard_core::spec::Signal;
use switchyard_core::{ErrorKind, Result};

use super::PREFIX;
use crate::backend::Inner;
use crate::cleanup::Cleanup;
use crate::client::{Client, QUICK, SLOW, call, ignore_not_found};
use crate::fs::remove_tree;
use crate::task::{TaskEntry, keep_open};

/// The FIFOs of the execs that a predecessor left, held open at both ends by the directory of each.
///
/// A shim that was told to start an exec waits until the other ends of its FIFOs are open, and answers nobody meanwhile. A containerd
/// that starts ends a shim that does not answer, and the containers of its pod with it. So they are opened before containerd is
/// started, and stay open until the exec has ended.
#[derive(Debug, Default)]
pub(crate) struct PredecessorFifos(Mutex<HashMap<PathBuf, Vec<File>>>);

// === impl PredecessorFifos ===

impl PredecessorFifos {
    /// Opens all FIFOs of execs below the directory of all tasks. Blocks on nobody; what cannot be opened is left alone.
    pub(crate) fn open(all_tasks: &Path) -> Self {
        let tasks = read_dir(all_tasks).into_iter().flatten().flatten();
        let execs = tasks.flat_map(|task| exec_dirs(&task.path()));
        Self(Mutex::new(execs.map(|dir| (dir.clone(), open_fifos(&dir))).collect()))
    }

    /// Gives the FIFOs of one exec to whoever ends it.
    fn take(&self, dir: &Path) -> Vec<File> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(dir).unwrap_or_default()
    }

    /// Closes those that nobody has taken: their tasks have ended.
    pub(crate) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Inner {
    /// Ends the further processes that a predecessor started in a running task, in the background: nobody waits for them any more.
    pub(crate) fn end_predecessor_execs(&self, task: &TaskEntry) {
        for dir in exec_dirs(&task.dirs.run) {
            let client = self.client.clone();
            let leftovers = Arc::clone(&self.cleanup);
            let id = task.id;
            let held = self.predecessor_fifos.take(&dir);
            self.tracker.spawn(async move {
                let _held = held;
                tracing::info!(task.id = %id, dir = %dir.display(), "ending an exec that nobody waits for");
                if let Err(error) = end_exec(&client, id, &dir).await {
                    tracing::warn!(
                        task.id = %id,
                        error = error.report(),
                        "an exec of a predecessor is ended later"
                    );
                    leftovers.enqueue(Cleanup::Exec(id, dir));
                }
            });
        }
    }
}

/// Ends and deletes a process of which only its directory is known, and then the directory. Idempotent.
pub(crate) async fn end_exec(client: &Client, task: TaskId, dir: &Path) -> Result<()> {
    let task = task.to_string();
    let exec = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The shim may wait for the other end of one of them.
    let _held = open_fifos(dir);
    let what = format!("end an exec in task {task}");
    let delete = || api::DeleteProcessRequest { container_id: task.clone(), exec_id: exec.clone() };
    match call(&what, SLOW, client.tasks().delete_process(delete())).await {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        // It runs.
        Err(error) if matches!(error.kind(), ErrorKind::FailedPrecondition | ErrorKind::Internal) => {
            let kill = api::KillRequest {
                container_id: task.clone(),
                exec_id: exec.clone(),
                signal: u32::from(Signal::KILL.number()),
                all: false,
            };
            ignore_not_found(call(&what, QUICK, client.tasks().kill(kill)).await)?;
            let wait = api::WaitRequest { container_id: task.clone(), exec_id: exec.clone() };
            ignore_not_found(call(&what, SLOW, client.tasks().wait(wait)).await)?;
            ignore_not_found(call(&what, SLOW, client.tasks().delete_process(delete())).await)?;
        }
        Err(error) => return Err(error),
    }
    remove_tree(dir).await
}

/// The directories of execs in that of a task.
fn exec_dirs(task: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = read_dir(task).into_iter().flatten().flatten();
    let execs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    execs.map(|entry| entry.path())
}

/// Opens the FIFOs of an exec at both ends, so that a shim that opens either does not wait.
fn open_fifos(dir: &Path) -> Vec<File> {
    keep_open(&["stdin", "stdout", "stderr"].map(|name| dir.join(name)))
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, create_dir_all};
    use std::os::unix::fs::OpenOptionsExt;

    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn the_fifos_of_a_predecessors_execs_have_a_reader_until_they_are_closed() {
        let all = tempfile::tempdir().unwrap();
        let exec = all.path().join("task/exec-1");
        create_dir_all(&exec).unwrap();
        for name in ["task/stdout", "task/exec-1/stdout"] {
            mkfifo(&all.path().join(name), Mode::S_IRWXU).unwrap();
        }
        let has_reader = |name: &str| {
            let mut write = OpenOptions::new();
            write.write(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(all.path().join(name)).is_ok()
        };
        let held = PredecessorFifos::open(all.path());
        assert!(has_reader("task/exec-1/stdout") && !has_reader("task/stdout"));
        let taken = held.take(&exec);
        held.close();
        assert!(has_reader("task/exec-1/stdout"));
        drop(taken);
        assert!(!has_reader("task/exec-1/stdout"));
    }
}
