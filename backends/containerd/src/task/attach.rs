//! Clients that attach to the streams of a task's main process.
//!
//! Output comes from the logkeeper, which reads it anyway. Input is written to the FIFO that the shim reads.
//! The shim has that FIFO open for writing too, so standard input does not end when a client detaches or this
//! daemon exits, but only by a call to the shim: it is made when the first client detaches from a task with
//! `stdin_once`. That a client has attached is stored in a file before the client can send anything, so that
//! after a kill of this daemon the next one ends the input as well: the client was disconnected by the kill.

use std::path::Path;
use std::sync::Arc;

use containerd_client::services::v1 as api;
use nix::errno::Errno;
use switchyard_core::id::TaskId;
use switchyard_core::stream::{AttachSpec, Attachment, Sink, Source};
use switchyard_core::{Error, Result};
use switchyard_crash_points::{CrashPoint, reach};
use switchyard_logkeeper as logkeeper;
use switchyard_logkeeper::format::Stream;
use tokio::net::unix::pipe;
use tokio_util::task::TaskTracker;

use super::TaskEntry;
use super::logs::from_logkeeper;
use crate::base::fs::io_error;
use crate::base::input::{StdinPipe, StdinWriter};
use crate::client::health::Health;
use crate::client::retries::Retries;
use crate::client::{Client, QUICK, call, ignore_not_found};
use crate::task::exit::Exits;
use crate::task::table::TaskTable;

mod unread;

/// Clients that follow the streams of running tasks.
#[derive(Debug)]
pub(crate) struct Attachments {
    pub(crate) client: Client,
    pub(crate) health: Health,
    pub(crate) logkeeper: Arc<logkeeper::Client>,
    pub(crate) table: Arc<TaskTable>,
    pub(crate) exits: Arc<Exits>,
    pub(crate) tracker: TaskTracker,
}

impl Attachments {
    /// Attaches to the streams of a running task.
    pub(crate) async fn attach_task(
        self: &Arc<Self>,
        id: TaskId,
        spec: AttachSpec,
    ) -> Result<Attachment> {
        let entry = self.attachable(id)?;
        let (tty, stdin) = {
            let record = entry.record();
            (record.tty, record.stdin)
        };
        if !entry.uses_logkeeper() && (spec.stdout || spec.stderr) {
            return Err(Error::failed_precondition(format!(
                "the output of task {id} cannot be attached to: it goes elsewhere, or is discarded because the logkeeper was down at the start of the task"
            )));
        }
        let stdout = self
            .live_output(&entry, Stream::Stdout, spec.stdout)
            .await?;
        // A terminal merges both streams into standard output.
        let stderr = self
            .live_output(&entry, Stream::Stderr, spec.stderr && !tty)
            .await?;
        let stdin = if spec.stdin && stdin {
            Some(self.attach_input(&entry).await?)
        } else {
            None
        };
        Ok(Attachment {
            stdin,
            stdout,
            stderr,
        })
    }

    /// Sets the size of a running task's terminal.
    pub(crate) async fn resize_task(&self, id: TaskId, width: u16, height: u16) -> Result<()> {
        let entry = self.attachable(id)?;
        if !entry.record().tty {
            return Ok(());
        }
        let request = api::ResizePtyRequest {
            container_id: id.to_string(),
            exec_id: String::new(),
            width: u32::from(width),
            height: u32::from(height),
        };
        let what = format!("resize the terminal of task {id}");
        ignore_not_found(call(&what, QUICK, self.client.tasks().resize_pty(request)).await)
    }

    fn attachable(&self, id: TaskId) -> Result<Arc<TaskEntry>> {
        let entry = self.table.get(id)?;
        if !entry.runs() {
            return Err(Error::failed_precondition(format!(
                "task {id} does not run"
            )));
        }
        Ok(entry)
    }

    async fn live_output(
        &self,
        entry: &TaskEntry,
        stream: Stream,
        wanted: bool,
    ) -> Result<Option<Source>> {
        if !wanted {
            return Ok(None);
        }
        self.exits.logkeeper_up_for(entry)?;
        let output = self
            .logkeeper
            .attach(&entry.id.to_string(), stream)
            .await
            .map_err(from_logkeeper)?;
        Ok(Some(Source::new(output)))
    }

    /// Attaches a client to a task's input. A client that goes away meanwhile has attached and detached:
    /// otherwise the next daemon would end the input for a client that this one has not seen.
    async fn attach_input(self: &Arc<Self>, entry: &Arc<TaskEntry>) -> Result<Sink> {
        let attachments = Arc::clone(self);
        let taken = Arc::clone(entry);
        let attached = self
            .tracker
            .spawn(async move { attachments.take_input(&taken).await });
        attached.await.unwrap_or_else(|fault| {
            let id = entry.id;
            Err(
                Error::internal(format!("attaching to the input of task {id} broke off"))
                    .with_source(fault),
            )
        })
    }

    /// Makes the input of a client; to be completed once begun.
    async fn take_input(self: Arc<Self>, entry: &Arc<TaskEntry>) -> Result<Sink> {
        let has_ended = entry.inputs.lock().ended;
        let pipe = if has_ended {
            None
        } else {
            open(&entry.dirs.stdin())?
        };
        let Some(pipe) = pipe else {
            return Ok(Box::new(StdinWriter::closed()));
        };
        let ends = entry.record().stdin_ends_on_detach();
        if ends {
            let path = entry.dirs.input_taken();
            // Before the client gets its input: a daemon that is killed from here on leaves the file to its
            // successor, which ends the input.
            tokio::fs::write(&path, "")
                .await
                .map_err(|fault| io_error("write", &path, fault))?;
            reach(CrashPoint::InputTaken);
        }
        let mut inputs = entry.inputs.lock();
        // Ended by another client while the file was written.
        if inputs.ended {
            return Ok(Box::new(StdinWriter::closed()));
        }
        let end = StdinPipe::open(pipe);
        inputs.open.retain(|end| end.strong_count() > 0);
        inputs.open.push(Arc::downgrade(&end));
        drop(inputs);
        let entry = Arc::clone(entry);
        Ok(Box::new(StdinWriter::new(end, move || {
            if ends {
                self.end_input(&entry);
            }
        })))
    }

    /// Ends the input of a task for all attached clients, and for the task, in the background.
    pub(crate) fn end_input(self: &Arc<Self>, entry: &Arc<TaskEntry>) {
        {
            let mut inputs = entry.inputs.lock();
            // One call of `CloseIO` is enough, whoever ended the input first.
            if std::mem::replace(&mut inputs.ended, true) {
                return;
            }
            for end in inputs.open.drain(..).filter_map(|end| end.upgrade()) {
                end.close();
            }
        }
        let attachments = Arc::clone(self);
        let entry = Arc::clone(entry);
        self.tracker.spawn(async move {
            let id = entry.id.to_string();
            let mut tries = Retries::default();
            while entry.reported_exit().is_none() {
                let request = api::CloseIoRequest {
                    container_id: id.clone(),
                    exec_id: String::new(),
                    stdin: true,
                };
                let what = format!("close the input of task {}", entry.id);
                let Err(error) = ignore_not_found(
                    call(&what, QUICK, attachments.client.tasks().close_io(request)).await,
                ) else {
                    return reach(CrashPoint::InputEnded);
                };
                tries
                    .log_and_wait(
                        &attachments.health,
                        &id,
                        "cannot close the input of a task",
                        &error,
                    )
                    .await;
            }
        });
    }

    /// Ends the input of a task whose client was disconnected when a predecessor exited.
    pub(crate) fn end_taken_input(self: &Arc<Self>, entry: &Arc<TaskEntry>) {
        if entry.record().stdin_ends_on_detach() && entry.dirs.input_taken().exists() {
            self.end_input(entry);
        }
    }
}

/// Opens a FIFO for writing; `None` if it has no reader any more.
fn open(path: &Path) -> Result<Option<pipe::Sender>> {
    match pipe::OpenOptions::new().open_sender(path) {
        Ok(pipe) => Ok(Some(pipe)),
        // `ENXIO`: a FIFO without readers cannot be opened for writing without blocking.
        Err(fault) if fault.raw_os_error() == Some(Errno::ENXIO as i32) => Ok(None),
        Err(fault) => Err(io_error("open", path, fault)),
    }
}
