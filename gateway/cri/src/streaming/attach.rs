//! A client that is attached to a container. The container does not notice when a client connects or
//! disconnects, except for `stdin_once`.
//!
//! A client that closes its input still receives output for a moment, for answers of the container; then its
//! session ends, as in other runtimes. Otherwise a client whose input is a pipe would stay for as long as the
//! container runs.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use switchyard_core::ErrorKind;
use switchyard_core::gateway::Scope;
use switchyard_core::id::TaskId;
use switchyard_core::stream::{AttachSpec, Attachment, Sink, Source};
use switchyard_streaming::{Command, Control, Input, Outcome, Output, Process, Refusal, Size};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::to_refusal;

/// Time for which a client receives output after it has closed its input.
const ANSWER: Duration = Duration::from_secs(1);

/// An attach whose client has not connected yet.
#[derive(Debug)]
pub(super) struct PendingAttach {
    pub(super) scope: Scope,
    pub(super) task: TaskId,
    pub(super) spec: AttachSpec,
    /// True if the session lasts until the container exits, although the client has closed its input.
    pub(super) until_the_end: bool,
}

/// A client that is attached.
struct Attached {
    scope: Scope,
    task: TaskId,
    /// The client has closed its input, and the session is to end because of that.
    stdin_closed: CancellationToken,
    /// The session is over.
    session_ended: CancellationToken,
}

/// The container's input, for one client.
struct AttachedStdin {
    sink: Sink,
    stdin_closed: CancellationToken,
    until_the_end: bool,
}

/// The container's output, until the session is over.
struct AttachedOutput {
    source: Source,
    session_ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

#[async_trait]
impl Command for PendingAttach {
    async fn open(self: Box<Self>) -> Result<Process, Refusal> {
        let Self {
            scope,
            task,
            spec,
            until_the_end,
        } = *self;
        let joined = scope
            .tasks()
            .attach(&task.to_string(), spec)
            .await
            .map_err(|error| to_refusal(&error))?;
        let Attachment {
            stdin,
            stdout,
            stderr,
        } = joined;
        let stdin_closed = CancellationToken::new();
        let over = CancellationToken::new();
        let hearing = |source| {
            Output::new(AttachedOutput {
                source,
                session_ended: Box::pin(over.clone().cancelled_owned()),
            })
        };
        // The input of a client is discarded if the container has none.
        let saying = match stdin {
            Some(sink) => Input::new(AttachedStdin {
                sink,
                stdin_closed: stdin_closed.clone(),
                until_the_end,
            }),
            None => Input::new(tokio::io::sink()),
        };
        Ok(Process {
            stdin: spec.stdin.then_some(saying),
            stdout: stdout.map(hearing),
            stderr: stderr.map(hearing),
            control: Arc::new(Attached {
                scope,
                task,
                stdin_closed,
                session_ended: over,
            }),
        })
    }
}

#[async_trait]
impl Control for Attached {
    async fn resize(&self, size: Size) -> Result<(), Refusal> {
        let width = size.width.get();
        let height = size.height.get();
        let resized = self
            .scope
            .tasks()
            .resize(&self.task.to_string(), width, height)
            .await;
        resized.map_err(|error| to_refusal(&error))
    }

    async fn wait(&self) -> Outcome {
        let silent = async {
            self.stdin_closed.cancelled().await;
            tokio::time::sleep(ANSWER).await;
        };
        let task = self.task.to_string();
        let outcome = tokio::select! {
            ended = self.scope.tasks().wait(&task) => match ended {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    Outcome::Failed(to_refusal(&error))
                }
                // The output streams end when all output has been sent.
                Ok(_) | Err(_) => return Outcome::Exited(0),
            },
            () = silent => Outcome::Exited(0),
        };
        self.session_ended.cancel();
        outcome
    }

    async fn hang_up(&self) {
        self.session_ended.cancel();
    }
}

impl AsyncWrite for AttachedStdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.sink).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.sink).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        if !self.until_the_end {
            self.stdin_closed.cancel();
        }
        Pin::new(&mut self.sink).poll_shutdown(cx)
    }
}

impl AsyncRead for AttachedOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.source).poll_read(cx, buffer);
        // Available output is delivered first; a read of zero bytes is the end of the stream.
        if read.is_pending() && self.session_ended.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        read
    }
}
