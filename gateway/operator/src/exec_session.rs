//! The session of a command that an operator runs in a task, over a connection that has ceased to be HTTP.
//!
//! ```text
//! client ─► frames ─► one input at most ─► standard input
//!        ◄─ frames ◄─ standard output and error, exit
//! ```
//!
//! Frames are read all the time, so that a client that goes away is noticed although the command does not read its input.
//! The command is killed when the session is dropped: when its client goes away, and with the listener.

use std::future::pending;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::BytesMut;
use switchyard_core::Result;
use switchyard_core::backend::{ExecControl, ExecProcess};
use switchyard_core::gateway::Gateway;
use switchyard_core::spec::ExecSpec;
use switchyard_core::stream::{Sink, Source};
use switchyard_operator_api::{
    ExecEnd, ExecRequest, FRAME_HEAD, FRAME_MAX, FrameHead, FrameKind, parse_size,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use crate::find;
use crate::owners::Owners;

/// Limit for output after the command has exited, while a child of it keeps the output open.
const DRAIN: Duration = Duration::from_secs(2);

/// A command that runs, and whose client is not connected to it yet. Dropping it kills the command.
#[derive(Debug)]
pub(crate) struct ExecSession {
    process: ExecProcess,
}

/// Standard input as the client has sent it.
#[derive(Debug)]
enum InputPart {
    Bytes(Vec<u8>),
    End,
}

// === impl ExecSession ===

impl ExecSession {
    /// Starts the command in the task of any owner that is meant by the request: see `find::task`.
    ///
    /// # Errors
    /// Those of `find::task` and [`ScopedCommands::exec`](switchyard_core::gateway::ScopedCommands::exec).
    pub(crate) async fn start(
        gateway: &Gateway,
        owners: &Owners,
        request: ExecRequest,
    ) -> Result<Self> {
        let ExecRequest {
            task,
            command,
            stdin,
            tty,
            size,
        } = request;
        let (_, task) = find::task(gateway, owners, &task)?;
        let spec = ExecSpec {
            command,
            tty,
            size: size.filter(|_| tty),
            stdin,
            env: Vec::new(),
            cwd: None,
            drain: DRAIN,
        };
        let scope = gateway.scope(task.meta.owner);
        let process = scope.commands().exec(&task.id.to_string(), &spec).await?;
        Ok(Self { process })
    }

    /// Carries the streams of the command until it has ended or the client is gone.
    pub(crate) async fn run(self, stream: impl AsyncRead + AsyncWrite + Send) {
        let ExecProcess {
            stdin,
            stdout,
            stderr,
            control,
        } = self.process;
        let control = &*control;
        let (from_client, to_client) = tokio::io::split(stream);
        // One part that is not confirmed, and the end.
        let (parts, received) = mpsc::channel(2);
        let (confirm, taken) = mpsc::channel(2);
        let sent = send(to_client, (stdout, stderr), taken, control);
        let read = receive(from_client, parts, control);
        tokio::select! {
            biased;
            sent = sent => if let Err(error) = sent {
                tracing::debug!(%error, "the client of a command cannot be written to");
            },
            error = read => {
                tracing::debug!(%error, "the client of a command has gone away");
            }
            () = pass_on(received, stdin, confirm) => {}
        }
    }
}

/// Sends the output and the end of the command, and confirms input that was passed on.
///
/// # Errors
/// The client cannot be written to.
async fn send(
    mut to_client: impl AsyncWrite + Unpin,
    (mut stdout, mut stderr): (Option<Source>, Option<Source>),
    mut taken: mpsc::Receiver<()>,
    control: &dyn ExecControl,
) -> io::Result<()> {
    let mut out = BytesMut::with_capacity(FRAME_MAX);
    let mut err = BytesMut::with_capacity(FRAME_MAX);
    let mut exit = pin!(control.wait());
    // Begun when the command has exited.
    let mut cut = pin!(async { control.cut_output(DRAIN).await });
    let mut ended = None;
    while ended.is_none() || stdout.is_some() || stderr.is_some() {
        tokio::select! {
            read = read_some(&mut stdout, &mut out) => {
                output(&mut to_client, FrameKind::Stdout, &mut stdout, read, &out).await?;
            }
            read = read_some(&mut stderr, &mut err) => {
                output(&mut to_client, FrameKind::Stderr, &mut stderr, read, &err).await?;
            }
            Some(()) = taken.recv() => frame(&mut to_client, FrameKind::InputTaken, &[]).await?,
            code = &mut exit, if ended.is_none() => match code {
                Ok(code) => ended = Some(Ok(code)),
                // Nothing is known of the output any more.
                Err(error) => {
                    ended = Some(Err(error));
                    break;
                }
            },
            () = &mut cut, if ended.is_some() => break,
        }
    }
    let end = match ended {
        Some(Ok(code)) => ExecEnd {
            code: Some(code),
            error: None,
        },
        Some(Err(error)) => ExecEnd {
            code: None,
            error: Some(error.status_text()),
        },
        None => ExecEnd::default(),
    };
    let end = serde_json::to_vec(&end)?;
    frame(&mut to_client, FrameKind::End, &end).await?;
    to_client.shutdown().await
}

/// Reads what there is of a source, into an empty buffer. Does not return for a source that has ended. Cancel-safe.
async fn read_some(source: &mut Option<Source>, buffer: &mut BytesMut) -> io::Result<usize> {
    let Some(source) = source else {
        return pending().await;
    };
    buffer.clear();
    // No more than a frame takes.
    let mut limited = bytes::BufMut::limit(buffer, FRAME_MAX);
    source.read_buf(&mut limited).await
}

/// Sends what was read of a source, or notes its end.
async fn output(
    to_client: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    source: &mut Option<Source>,
    read: io::Result<usize>,
    bytes: &[u8],
) -> io::Result<()> {
    match read {
        Ok(0) => *source = None,
        Ok(_) => frame(to_client, kind, bytes).await?,
        Err(error) => {
            tracing::debug!(%error, "output of a command cannot be read");
            *source = None;
        }
    }
    Ok(())
}

/// Sends a frame.
async fn frame(
    to_client: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    content: &[u8],
) -> io::Result<()> {
    let head = FrameHead::write(kind, content.len()).map_err(io::Error::other)?;
    to_client.write_all(&head).await?;
    to_client.write_all(content).await?;
    to_client.flush().await
}

/// Reads the frames of the client until it goes away or sends something else; returns the reason.
async fn receive(
    mut from_client: impl AsyncRead + Unpin,
    parts: mpsc::Sender<InputPart>,
    control: &dyn ExecControl,
) -> io::Error {
    loop {
        let read = async {
            let mut head = [0; FRAME_HEAD];
            from_client.read_exact(&mut head).await?;
            let FrameHead { kind, length } = FrameHead::parse(head).map_err(io::Error::other)?;
            let mut content = vec![0; length];
            from_client.read_exact(&mut content).await?;
            Ok::<_, io::Error>((kind, content))
        };
        let (kind, content) = match read.await {
            Ok(read) => read,
            Err(error) => return error,
        };
        let part = match kind {
            FrameKind::Input => InputPart::Bytes(content),
            FrameKind::InputEnd => InputPart::End,
            FrameKind::Resize => {
                if let Some((width, height)) = parse_size(&content)
                    && let Err(error) = control.resize(width, height).await
                {
                    tracing::debug!(error = error.report(), "a terminal cannot be resized");
                }
                continue;
            }
            FrameKind::InputTaken | FrameKind::Stdout | FrameKind::Stderr | FrameKind::End => {
                return io::Error::other("the client has sent a frame of the daemon");
            }
        };
        if parts.try_send(part).is_err() {
            return io::Error::other("the client has not waited until its input was taken");
        }
    }
}

/// Passes input on to the command, and confirms each part; never returns. What the command does not want any more is
/// confirmed too.
async fn pass_on(
    mut parts: mpsc::Receiver<InputPart>,
    mut stdin: Option<Sink>,
    confirm: mpsc::Sender<()>,
) {
    while let Some(part) = parts.recv().await {
        match part {
            InputPart::Bytes(bytes) => {
                if let Some(sink) = &mut stdin
                    && let Err(error) = write(sink, &bytes).await
                {
                    tracing::debug!(%error, "a command does not read its input any more");
                    stdin = None;
                }
                // The other half has ended if nobody receives it.
                let _ = confirm.send(()).await;
            }
            InputPart::End => {
                if let Some(mut sink) = stdin.take()
                    && let Err(error) = sink.shutdown().await
                {
                    tracing::debug!(%error, "the input of a command cannot be ended");
                }
            }
        }
    }
    pending().await
}

async fn write(sink: &mut Sink, bytes: &[u8]) -> io::Result<()> {
    sink.write_all(bytes).await?;
    sink.flush().await
}
