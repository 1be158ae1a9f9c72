//! Further processes that a predecessor started in tasks that run on: nobody waits for them.

use std::path::Path;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use switchyard_core::id::TaskId;
use switchyard_core::spec::Signal;
use switchyard_core::{ErrorKind, Result};
use tokio::net::unix::pipe;

use super::PREFIX;
use crate::backend::Inner;
use crate::client::{Client, QUICK, SLOW, call, gone_is_done};
use crate::leftovers::Leftover;
use crate::task::TaskEntry;
use crate::text::remove_tree;

impl Inner {
    /// Ends the further processes that a predecessor started in a running task, in the background: nobody waits for them any more. It is
    /// begun at once: the shim may hang until somebody holds their FIFOs, and a containerd that starts meanwhile ends a shim that hangs.
    pub(crate) fn clear_execs(&self, task: &TaskEntry) {
        let entries = std::fs::read_dir(&task.dirs.run).into_iter().flatten().flatten();
        let dirs = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
        for dir in dirs.map(|entry| entry.path()) {
            let (client, leftovers, id) = (self.client.clone(), Arc::clone(&self.leftovers), task.id);
            self.tracker.spawn(async move {
                tracing::info!(task.id = %id, dir = %dir.display(), "ending an exec that nobody waits for");
                if let Err(error) = clear(&client, id, &dir).await {
                    tracing::warn!(
                        task.id = %id,
                        error = error.report(),
                        "an exec of a predecessor is ended later"
                    );
                    leftovers.keep(Leftover::Exec(id, dir));
                }
            });
        }
    }
}

/// Ends and deletes a process of which only its directory is known, and then the directory. Idempotent.
pub(crate) async fn clear(client: &Client, task: TaskId, dir: &Path) -> Result<()> {
    let task = task.to_string();
    let exec = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // The shim may wait for the other end of one of them.
    let _held: Vec<_> = ["stdin", "stdout", "stderr"]
        .iter()
        .filter_map(|name| pipe::OpenOptions::new().read_write(true).open_receiver(dir.join(name)).ok())
        .collect();
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
            gone_is_done(call(&what, QUICK, client.tasks().kill(kill)).await)?;
            let wait = api::WaitRequest { container_id: task.clone(), exec_id: exec.clone() };
            gone_is_done(call(&what, SLOW, client.tasks().wait(wait)).await)?;
            gone_is_done(call(&what, SLOW, client.tasks().delete_process(delete())).await)?;
        }
        Err(error) => return Err(error),
    }
    remove_tree(dir).await
}
