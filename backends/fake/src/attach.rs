//! Clients that attach to the streams of a task, or connect to a port of a sandbox.
//!
//! A main process that copies its input to its output does so for all attached clients; other processes write
//! nothing. [`ECHO_PORT`] of a sandbox echoes its input; all other ports are closed.

use std::sync::{Arc, Weak};

use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::state::Exit;
use switchyard_core::stream::{AttachSpec, Attachment, Dialled, Sink, Source};
use switchyard_core::table::{no_sandbox, no_task};
use switchyard_core::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex, split};
use tokio::sync::{broadcast, watch};

use crate::program::Step;
use crate::world::{FakeState, exited};

/// The port on which every sandbox echoes.
pub const ECHO_PORT: u16 = 7;

/// The capacity of a pipe.
const PIPE_BYTES: usize = 64 << 10;

/// Attaches to the streams of a running task.
pub(crate) fn attach(world: &Arc<FakeState>, id: TaskId, spec: AttachSpec) -> Result<Attachment> {
    let state = world.lock();
    let task = state.tasks.get(&id).ok_or_else(|| no_task(id))?;
    if !task.state.is_running() {
        let word = task.state.as_str();
        return Err(Error::failed_precondition(format!(
            "task {id} is {word}, not running"
        )));
    }
    let live = &task.streams;
    if !live.attachable && (spec.stdout || spec.stderr) {
        return Err(Error::failed_precondition(format!(
            "the output of task {id} goes elsewhere"
        )));
    }
    let stdout = spec.stdout.then(|| {
        let (near, far) = duplex(PIPE_BYTES);
        tokio::spawn(forward_output(
            live.output.subscribe(),
            far,
            task.end.subscribe(),
        ));
        Source::new(near)
    });
    let stderr = (spec.stderr && !live.tty).then(|| {
        let (near, far) = duplex(PIPE_BYTES);
        // Nothing is written to this stream, but it ends with the task.
        tokio::spawn(forward_output(
            broadcast::channel(1).1,
            far,
            task.end.subscribe(),
        ));
        Source::new(near)
    });
    let stdin = (spec.stdin && task.stdin_open).then(|| {
        let (near, far) = duplex(PIPE_BYTES);
        if !live.ended {
            tokio::spawn(forward_input(
                Arc::downgrade(world),
                id,
                far,
                task.end.subscribe(),
            ));
        }
        Box::new(near) as Sink
    });
    Ok(Attachment {
        stdin,
        stdout,
        stderr,
    })
}

/// Connects to a port of a sandbox.
pub(crate) fn dial(world: &FakeState, id: SandboxId, port: u16) -> Result<Dialled> {
    if !world.lock().sandboxes.contains_key(&id) {
        return Err(no_sandbox(id));
    }
    if port != ECHO_PORT {
        return Err(Error::unavailable(format!(
            "no process listens on port {port} inside sandbox {id}"
        )));
    }
    let (near, far) = duplex(PIPE_BYTES);
    tokio::spawn(async move {
        let (mut from, mut to) = split(far);
        // An error means that the client has disconnected, which ends the connection.
        let _ = tokio::io::copy(&mut from, &mut to).await;
        let _ = to.shutdown().await;
    });
    let (output, input) = split(near);
    Ok(Dialled {
        input: Box::new(input),
        output: Source::new(output),
    })
}

/// Sends a client the output of the task until the task exits.
async fn forward_output(
    mut output: broadcast::Receiver<Vec<u8>>,
    mut client: DuplexStream,
    mut end: watch::Receiver<Option<Exit>>,
) {
    let ended = async { drop(end.wait_for(Option::is_some).await) };
    tokio::pin!(ended);
    let mut open = true;
    loop {
        let piece = tokio::select! {
            biased;
            piece = output.recv(), if open => piece,
            () = &mut ended => return,
        };
        match piece {
            Ok(piece) => {
                if client.write_all(&piece).await.is_err() {
                    return;
                }
            }
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => open = false,
        }
    }
}

/// Reads a client's input, and ends the task's input with it if it has `stdin_once`.
async fn forward_input(
    world: Weak<FakeState>,
    id: TaskId,
    mut client: DuplexStream,
    mut end: watch::Receiver<Option<Exit>>,
) {
    let ended = async { drop(end.wait_for(Option::is_some).await) };
    tokio::pin!(ended);
    let mut block = vec![0; PIPE_BYTES];
    loop {
        let read = tokio::select! {
            read = client.read(&mut block) => read.unwrap_or(0),
            () = &mut ended => return,
        };
        let Some(world) = world.upgrade() else { return };
        let mut state = world.lock();
        let Some(task) = state.tasks.get_mut(&id) else {
            return;
        };
        let copies = task.program.steps.contains(&Step::Cat);
        match block.get(..read) {
            Some(said) if read > 0 => {
                if copies && !task.streams.ended {
                    // Sending fails if no client is attached.
                    let _ = task.streams.output.send(said.to_vec());
                }
            }
            _ => {
                if task.streams.stdin_once && !task.streams.tty {
                    task.streams.ended = true;
                    if copies {
                        // The task may have exited just now.
                        let _ = state.end(id, exited(0));
                    }
                }
                return;
            }
        }
    }
}
