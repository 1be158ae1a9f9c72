//! ExecTaskStreaming: a command whose streams are connected to a client.
//!
//! ```text
//!  client ── setup, input, sizes ──► listen ──► process ──► pump ── output ──► client
//!                                                  └ exit ─► rest of the output, close both, exit code, end
//! ```
//!
//! A client never closes its half of the stream; when it goes away, everything is dropped, which kills the
//! process. Empty messages are keep-alives.

use std::future::ready;
use std::time::Duration;

use futures::stream::{self, Stream, StreamExt};
use switchyard_core::backend::{ExecControl, ExecProcess};
use switchyard_core::spec::ExecSpec;
use switchyard_core::stream::{Sink, Source};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::exec_task_streaming_request::{Setup, TerminalSize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::exec::command_in_task;
use super::{Driver, DriverStream};
use crate::status::{shutting_down, status};
use crate::to_proto;

/// Limit for a client to send its setup message.
const SETUP: Duration = Duration::from_secs(30);

/// Limit for the size of the terminal, which clients send next.
const SIZE: Duration = Duration::from_millis(100);

/// Limit for output that children keep open after the command has exited. Unread output is read in any case.
const DRAIN: Duration = Duration::from_millis(200);

/// Maximum number of responses that are queued for the client.
const ANSWERS: usize = 4;

/// The largest data size of one response, in bytes.
const CHUNK: usize = 32 << 10;

/// Limit in bytes for output that is read after the end of the drain: the capacity of a pipe.
const LATE: usize = 64 << 10;

type StreamingRequest = nomad::ExecTaskStreamingRequest;
type StreamingResponse = nomad::ExecTaskStreamingResponse;

/// One of the two output streams.
#[derive(Debug, Clone, Copy)]
enum Output {
    Stdout,
    Stderr,
}

impl Driver {
    /// Runs a command in a task for as long as its client is connected.
    ///
    /// # Errors
    /// `InvalidArgument` if the first message is not a setup; `NotFound`; those of
    /// [`ScopedCommands::exec`](switchyard_core::gateway::ScopedCommands::exec).
    pub(super) async fn exec_streaming<S>(
        &self,
        metadata: &MetadataMap,
        mut requests: S,
    ) -> Result<DriverStream<StreamingResponse>, Status>
    where
        S: Stream<Item = Result<StreamingRequest, Status>> + Send + Unpin + 'static,
    {
        let first = tokio::time::timeout(SETUP, requests.next())
            .await
            .ok()
            .flatten()
            .transpose()?;
        let mut first = first.unwrap_or_default();
        let Some(Setup {
            task_id,
            command,
            tty,
        }) = first.setup.take()
        else {
            let error = Error::new(
                ErrorKind::InvalidArgument,
                "first message should always be setup",
            );
            return Err(status(&error));
        };
        self.await_recovery(metadata, &task_id).await;
        let scope = &self.shared.scope;
        let task = self
            .task(&task_id)
            .map_err(|error| status(&error))?
            .id
            .to_string();
        let named = !command.is_empty();
        let second = if tty {
            first_size(&mut requests).await
        } else {
            None
        };
        let size = second
            .as_ref()
            .and_then(|message| message.as_ref().ok()?.tty_size)
            .and_then(size);
        let spec = ExecSpec {
            tty,
            size,
            ..command_in_task(command, true)
        };
        match scope.commands().exec(&task, &spec).await {
            Ok(process) => {
                let requests =
                    stream::iter(std::iter::once(Ok(first)).chain(second)).chain(requests);
                Ok(response_stream(process, requests, scope.ended()))
            }
            Err(error) if named && error.kind() == ErrorKind::InvalidArgument => {
                Ok(refused_stream(tty, &error))
            }
            Err(error) => Err(status(&error)),
        }
    }
}

/// The client's next message, if it comes soon: normally the size of its terminal, which the command should
/// have from its start.
async fn first_size<S>(requests: &mut S) -> Option<Result<StreamingRequest, Status>>
where
    S: Stream<Item = Result<StreamingRequest, Status>> + Unpin,
{
    tokio::time::timeout(SIZE, requests.next())
        .await
        .ok()
        .flatten()
}

/// A command that cannot be run ends with the exit codes of a shell.
fn refused_stream(tty: bool, error: &Error) -> DriverStream<StreamingResponse> {
    let text = error.report();
    let code = if text.contains("ermission denied") {
        126
    } else {
        127
    };
    let output = if tty { Output::Stdout } else { Output::Stderr };
    let messages = std::iter::once(output.data_message(format!("{text}\r\n").into_bytes()))
        .chain(final_messages(code));
    Box::pin(stream::iter(messages.map(Ok)))
}

/// The final messages.
fn final_messages(code: i32) -> [StreamingResponse; 3] {
    let exited = StreamingResponse {
        exited: true,
        result: Some(to_proto::exit_code(code)),
        ..StreamingResponse::default()
    };
    [
        Output::Stdout.close_message(),
        Output::Stderr.close_message(),
        exited,
    ]
}

fn response_stream<S>(
    process: ExecProcess,
    requests: S,
    ended: WaitForCancellationFutureOwned,
) -> DriverStream<StreamingResponse>
where
    S: Stream<Item = Result<StreamingRequest, Status>> + Send + Unpin + 'static,
{
    let (sender, receiver) = mpsc::channel(ANSWERS);
    let serving = AbortOnDropHandle::new(tokio::spawn(async move {
        let ExecProcess {
            stdin,
            stdout,
            stderr,
            control,
        } = process;
        let control = control.as_ref();
        tokio::select! {
            served = serve(stdout, stderr, control, &sender) => {
                if let Err(error) = served {
                    // An error means that the client is gone.
                    let _ = sender.send(Err(status(&error))).await;
                }
            }
            // The client is gone, so the process is killed.
            () = listen(requests, stdin, control) => {}
            () = ended => {
                let _ = sender.send(Err(shutting_down())).await;
            }
        }
    }));
    let stream = stream::unfold((receiver, serving), async |(mut receiver, serving)| {
        receiver
            .recv()
            .await
            .map(|message| (message, (receiver, serving)))
    });
    Box::pin(stream)
}

/// Sends output to the client until the process has exited and all output is sent. Output that the runtime does not close
/// is read for [`CUT_PATIENCE`](switchyard_core::backend::CUT_PATIENCE) after it was cut off, and then the client gets the exit
/// code. Output of a child that writes without a pause is not cut off, so the client gets the exit code when it ends.
async fn serve(
    stdout: Option<Source>,
    stderr: Option<Source>,
    control: &dyn ExecControl,
    sender: &mpsc::Sender<Result<StreamingResponse, Status>>,
) -> Result<()> {
    let late = CancellationToken::new();
    let output = async {
        tokio::join!(
            pump(stdout, Output::Stdout, sender, &late),
            pump(stderr, Output::Stderr, sender, &late)
        )
    };
    tokio::pin!(output);
    let (code, drained) = tokio::select! {
        code = control.wait() => (code?, false),
        _ = &mut output => (control.wait().await?, true),
    };
    if !drained {
        tokio::select! {
            _ = &mut output => {}
            () = control.cut_output(DRAIN) => {
                late.cancel();
                output.await;
            }
        }
    }
    for message in final_messages(code) {
        // An error means that the client is gone.
        let _ = sender.send(Ok(message)).await;
    }
    Ok(())
}

/// Sends an output stream to the client until it ends; once it is `late`, only what can be read at once, and no more than
/// [`LATE`], since a child may write on.
async fn pump(
    source: Option<Source>,
    output: Output,
    responses: &mpsc::Sender<Result<StreamingResponse, Status>>,
    late: &CancellationToken,
) {
    let Some(mut source) = source else { return };
    let mut chunk = vec![0; CHUNK];
    let mut left = None;
    while left != Some(0) {
        let read = tokio::select! {
            biased;
            () = late.cancelled(), if left.is_none() => {
                left = Some(LATE);
                continue;
            }
            read = source.read(&mut chunk) => read,
            () = ready(()), if left.is_some() => return,
        };
        match read {
            Ok(0) => return,
            Ok(read) => {
                left = left.map(|left| left.saturating_sub(read));
                if responses
                    .send(Ok(output.data_message(chunk[..read].to_vec())))
                    .await
                    .is_err()
                {
                    return;
                }
            }
            // This is also how the output of a terminal ends.
            Err(fault) => {
                tracing::debug!(error = %fault, ?output, "cannot read the output of a command");
                return;
            }
        }
    }
}

/// Handles the client's messages until it goes away. Its input does not wait for the sizes of its terminal.
async fn listen<S>(requests: S, stdin: Option<Sink>, control: &dyn ExecControl)
where
    S: Stream<Item = Result<StreamingRequest, Status>> + Send + Unpin,
{
    let (sizes, latest_size) = watch::channel((0, 0));
    tokio::select! {
        () = receive(requests, stdin, &sizes) => {}
        () = resizes(latest_size, control) => {}
    }
}

/// Receives the client's messages until it goes away, and passes its input on to the process.
async fn receive<S>(mut requests: S, mut stdin: Option<Sink>, sizes: &watch::Sender<(u16, u16)>)
where
    S: Stream<Item = Result<StreamingRequest, Status>> + Send + Unpin,
{
    while let Some(request) = requests.next().await {
        let Ok(StreamingRequest {
            setup: _,
            tty_size,
            stdin: input,
        }) = request
        else {
            return;
        };
        if let Some(size) = tty_size.and_then(size) {
            sizes.send_replace(size);
        }
        if let Some(nomad::ExecTaskStreamingIoOperation { data, close }) = input {
            stdin = feed(stdin.take(), &data, close).await;
        }
    }
    // It has closed its half but still receives.
    std::future::pending().await
}

/// Sets the received sizes of the terminal; of those that are received while one is being set, only the last. Ends with
/// the sender.
async fn resizes(mut latest_size: watch::Receiver<(u16, u16)>, control: &dyn ExecControl) {
    while latest_size.changed().await.is_ok() {
        let (width, height) = *latest_size.borrow_and_update();
        if let Err(error) = control.resize(width, height).await {
            tracing::debug!(error = error.report(), "cannot set the size of a terminal");
        }
    }
}

/// Writes to the process; returns `None` once its input is closed.
async fn feed(stdin: Option<Sink>, data: &[u8], close: bool) -> Option<Sink> {
    let mut stdin = stdin?;
    let fed = async {
        if !data.is_empty() {
            stdin.write_all(data).await?;
            stdin.flush().await?;
        }
        if close {
            stdin.shutdown().await
        } else {
            Ok(())
        }
    };
    match fed.await {
        Ok(()) if !close => Some(stdin),
        Ok(()) => None,
        // It has closed its input.
        Err(fault) => {
            tracing::debug!(error = %fault, "cannot write to the input of a command");
            None
        }
    }
}

/// Width and height, if they are in range.
fn size(TerminalSize { height, width }: TerminalSize) -> Option<(u16, u16)> {
    Some((u16::try_from(width).ok()?, u16::try_from(height).ok()?))
}

// === impl Output ===

impl Output {
    fn data_message(self, data: Vec<u8>) -> StreamingResponse {
        self.message(nomad::ExecTaskStreamingIoOperation { data, close: false })
    }

    fn close_message(self) -> StreamingResponse {
        self.message(nomad::ExecTaskStreamingIoOperation {
            data: Vec::new(),
            close: true,
        })
    }

    fn message(self, operation: nomad::ExecTaskStreamingIoOperation) -> StreamingResponse {
        match self {
            Self::Stdout => StreamingResponse {
                stdout: Some(operation),
                ..StreamingResponse::default()
            },
            Self::Stderr => StreamingResponse {
                stderr: Some(operation),
                ..StreamingResponse::default()
            },
        }
    }
}
