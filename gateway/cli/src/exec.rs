//! `switchyard exec`: a command in a task of any owner. The daemon starts it; the streams are carried over the admin socket.

use std::io::{self, IsTerminal, Read};
use std::process::ExitCode;
use std::thread;

use clap::Args;
use http::StatusCode;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use switchyard_operator_api::{
    EXEC_PATH, EXEC_PROTOCOL, ExecEnd, ExecRequest, FRAME_HEAD, FRAME_MAX, FrameHead, FrameKind,
    write_size,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, mpsc};

use super::daemon::{self, DaemonError, Socket};
use crate::output::{announce_bytes, announce_error_bytes};

/// The exit status if nobody reads the output any more: that of a program that SIGPIPE ends.
const CLOSED_OUTPUT: i32 = 128 + 13;

/// The task, and the command to run in it.
#[derive(Debug, Args)]
pub(super) struct ExecArgs {
    #[command(flatten)]
    socket: Socket,
    /// Connect standard input.
    #[arg(long, short)]
    interactive: bool,
    /// Give the command a terminal; with `--interactive`, standard input must be one too.
    #[arg(long, short)]
    tty: bool,
    /// The beginning of the task's id, or its name as `switchyard ps` shows it; of several of one owner with this
    /// name, the newest.
    task: String,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Reason why a command has no exit code.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    #[error(
        "--tty with --interactive needs a terminal, and standard input is none: leave one of them out"
    )]
    NoTerminal,
    #[error("cannot set the terminal up")]
    Terminal(#[source] io::Error),
    #[error("cannot begin to read standard input")]
    Input(#[source] io::Error),
    #[error("the exit of the command is not known: {0}")]
    Unknown(String),
    #[error(
        "the session has ended before the command: the daemon kills a command whose session ends, as when the daemon is restarted"
    )]
    Cut(#[source] io::Error),
}

/// The terminal of this process without its own treatment of keys, until it is dropped.
struct RawTerminal {
    before: Termios,
}

/// Runs a command in a task; its exit code is that of this process.
pub(super) async fn exec(args: &ExecArgs) -> Result<ExitCode, ExecError> {
    let ExecArgs {
        socket,
        interactive,
        tty,
        task,
        command,
    } = args;
    // As docker: a command may have a terminal of its own without one here, as in a job of cron.
    if *tty && *interactive && !io::stdin().is_terminal() {
        return Err(ExecError::NoTerminal);
    }
    let request = ExecRequest {
        task: task.clone(),
        command: command.clone(),
        stdin: *interactive,
        tty: *tty,
        size: tty.then(window_size).flatten(),
    };
    let connection = match daemon::upgrade(socket, EXEC_PATH, EXEC_PROTOCOL, &request).await {
        // The daemon's words name the task or the command.
        Err(DaemonError::Refused {
            status: StatusCode::NOT_FOUND | StatusCode::CONFLICT | StatusCode::BAD_REQUEST,
            text,
            ..
        }) if !text.is_empty() => return Err(DaemonError::Message(text).into()),
        opened => opened?,
    };
    // Only now: what failed before is an ordinary error on an ordinary terminal.
    let is_raw = *tty && *interactive;
    let ending = is_raw
        .then(ending_signals)
        .transpose()
        .map_err(ExecError::Terminal)?;
    let raw = is_raw
        .then(RawTerminal::enter)
        .transpose()
        .map_err(ExecError::Terminal)?;
    let window = tty
        .then(|| signal(SignalKind::window_change()))
        .transpose()
        .map_err(ExecError::Terminal)?;
    let input = interactive.then(read_input).transpose()?;
    let ended = tokio::select! {
        ended = carry(connection, input, window) => ended,
        code = ended_by(ending) => Ok(ExecEnd { code: Some(code), error: None }),
    };
    drop(raw);
    match ended {
        Ok(ExecEnd {
            code: Some(code), ..
        }) => Ok(exit_code(code)),
        Ok(ExecEnd { code: None, error }) => {
            let why = error.unwrap_or_else(|| "the daemon does not say why".to_owned());
            Err(ExecError::Unknown(why))
        }
        Err(error) => Err(ExecError::Cut(error)),
    }
}

/// The signals that end this process: its terminal is set back before.
fn ending_signals() -> io::Result<[Signal; 3]> {
    Ok([
        signal(SignalKind::hangup())?,
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    ])
}

/// Waits for a signal that ends this process, and returns the exit status for it. Does not return without signals: they
/// end the process by themselves then.
async fn ended_by(signals: Option<[Signal; 3]>) -> i32 {
    const BY_SIGNAL: i32 = 128;
    let Some([mut hangup, mut interrupt, mut terminate]) = signals else {
        return std::future::pending().await;
    };
    tokio::select! {
        Some(()) = hangup.recv() => BY_SIGNAL + SignalKind::hangup().as_raw_value(),
        Some(()) = interrupt.recv() => BY_SIGNAL + SignalKind::interrupt().as_raw_value(),
        Some(()) = terminate.recv() => BY_SIGNAL + SignalKind::terminate().as_raw_value(),
        else => std::future::pending().await,
    }
}

/// The exit status of this process for the exit code of a command. Pure.
fn exit_code(code: i32) -> ExitCode {
    // A code that a process cannot have is a failure.
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Carries the streams until the command has ended.
async fn carry(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    input: Option<mpsc::Receiver<Vec<u8>>>,
    window: Option<Signal>,
) -> io::Result<ExecEnd> {
    let (from_daemon, to_daemon) = tokio::io::split(connection);
    let taken = Notify::new();
    let sent = async {
        // If the connection is broken, its other direction ends too, after an exit that was sent before.
        drop(send(to_daemon, input, window, &taken).await);
        std::future::pending().await
    };
    tokio::select! {
        ended = receive(from_daemon, &taken) => ended,
        never = sent => never,
    }
}

/// Prints the output of the command until its end.
async fn receive(mut from_daemon: impl AsyncRead + Unpin, taken: &Notify) -> io::Result<ExecEnd> {
    let mut content = Vec::with_capacity(FRAME_MAX);
    loop {
        let mut head = [0; FRAME_HEAD];
        from_daemon.read_exact(&mut head).await?;
        let FrameHead { kind, length } = FrameHead::parse(head).map_err(io::Error::other)?;
        content.resize(length, 0);
        from_daemon.read_exact(&mut content).await?;
        let printed = match kind {
            FrameKind::Stdout => announce_bytes(&content),
            FrameKind::Stderr => announce_error_bytes(&content),
            FrameKind::InputTaken => {
                taken.notify_one();
                Ok(())
            }
            FrameKind::End => return Ok(serde_json::from_slice(&content)?),
            FrameKind::Input | FrameKind::InputEnd | FrameKind::Resize => {
                return Err(io::Error::other("the daemon has sent a frame of a client"));
            }
        };
        match printed {
            // As in `switchyard exec TASK cat FILE | head -1`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Ok(ExecEnd {
                    code: Some(CLOSED_OUTPUT),
                    error: None,
                });
            }
            printed => printed?,
        }
    }
}

/// Sends input, one part after the other has been taken, and the size of the terminal when it changes. Returns only with an
/// error.
async fn send(
    mut to_daemon: impl AsyncWrite + Unpin,
    mut input: Option<mpsc::Receiver<Vec<u8>>>,
    mut window: Option<Signal>,
    taken: &Notify,
) -> io::Result<()> {
    let mut may_send = true;
    loop {
        tokio::select! {
            part = next_part(&mut input), if may_send => match part {
                Some(part) => {
                    frame(&mut to_daemon, FrameKind::Input, &part).await?;
                    may_send = false;
                }
                None => {
                    frame(&mut to_daemon, FrameKind::InputEnd, &[]).await?;
                    input = None;
                }
            },
            () = taken.notified(), if !may_send => may_send = true,
            () = changed(&mut window) => if let Some(size) = window_size() {
                frame(&mut to_daemon, FrameKind::Resize, &write_size(size)).await?;
            },
        }
    }
}

/// The next part of the input, `None` at its end. Does not return if there is no input, or no more. Cancel-safe.
async fn next_part(input: &mut Option<mpsc::Receiver<Vec<u8>>>) -> Option<Vec<u8>> {
    match input {
        Some(input) => input.recv().await,
        None => std::future::pending().await,
    }
}

/// Waits for a change of the terminal's size; for ever without a terminal. Cancel-safe.
async fn changed(window: &mut Option<Signal>) {
    match window {
        Some(window) => {
            if window.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

async fn frame(
    to_daemon: &mut (impl AsyncWrite + Unpin),
    kind: FrameKind,
    content: &[u8],
) -> io::Result<()> {
    let head = FrameHead::write(kind, content.len()).map_err(io::Error::other)?;
    to_daemon.write_all(&head).await?;
    to_daemon.write_all(content).await?;
    to_daemon.flush().await
}

/// Begins to read standard input, on a thread: a read of a terminal ends with a key or with this process.
fn read_input() -> Result<mpsc::Receiver<Vec<u8>>, ExecError> {
    let (parts, received) = mpsc::channel(1);
    let read = move || {
        let mut buffer = vec![0; FRAME_MAX];
        loop {
            match io::stdin().lock().read(&mut buffer) {
                // An error ends the input as its end does.
                Ok(0) => return,
                Ok(length) => {
                    if parts.blocking_send(buffer[..length].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    };
    let started = thread::Builder::new().name("stdin".into()).spawn(read);
    started.map_err(ExecError::Input)?;
    Ok(received)
}

/// Width and height of the terminal at standard input, in characters; `None` if they are not known.
fn window_size() -> Option<(u16, u16)> {
    let size = tcgetwinsize(io::stdin()).ok()?;
    let known = size.ws_col > 0 && size.ws_row > 0;
    known.then_some((size.ws_col, size.ws_row))
}

// === impl RawTerminal ===

impl RawTerminal {
    /// Passes keys on as they are, Ctrl-C too.
    fn enter() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Drain, &raw)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // Nothing can be done about a terminal that is gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a client with this input against a daemon that takes each part and then ends the command. Returns the client's result and the
    /// frames that the daemon received.
    async fn carried(
        parts: &[&str],
        end: &str,
    ) -> (io::Result<ExecEnd>, Vec<(FrameKind, Vec<u8>)>) {
        let (client, mut daemon) = tokio::io::duplex(1 << 20);
        let (sender, receiver) = mpsc::channel(8);
        for part in parts {
            sender.send(part.as_bytes().to_vec()).await.unwrap();
        }
        drop(sender);
        let served = async {
            let mut received = Vec::new();
            loop {
                let mut head = [0; FRAME_HEAD];
                daemon.read_exact(&mut head).await.unwrap();
                let FrameHead { kind, length } = FrameHead::parse(head).unwrap();
                let mut content = vec![0; length];
                daemon.read_exact(&mut content).await.unwrap();
                received.push((kind, content));
                if kind == FrameKind::InputEnd {
                    break;
                }
                frame(&mut daemon, FrameKind::InputTaken, &[])
                    .await
                    .unwrap();
            }
            frame(&mut daemon, FrameKind::End, end.as_bytes())
                .await
                .unwrap();
            drop(daemon);
            received
        };
        tokio::join!(carry(client, Some(receiver), None), served)
    }

    #[tokio::test]
    async fn input_is_sent_part_by_part_and_its_end_is_told() {
        for parts in [&[][..], &["a"], &["a", "", "bc"]] {
            let (ended, received) = carried(parts, r#"{"code":3}"#).await;
            assert_eq!(ended.unwrap().code, Some(3));
            let mut expected: Vec<_> = parts
                .iter()
                .map(|part| (FrameKind::Input, part.as_bytes().to_vec()))
                .collect();
            expected.push((FrameKind::InputEnd, Vec::new()));
            assert_eq!(received, expected);
        }
    }

    #[tokio::test]
    async fn end_of_the_connection_is_no_end_of_the_command() {
        let (client, daemon) = tokio::io::duplex(64);
        drop(daemon);
        let ended = carry(client, None, None).await;
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (ended, _) = carried(&[], "[").await;
        assert!(ended.is_err());
    }

    #[test]
    fn exit_code_is_that_of_the_command() {
        for (code, expected) in [
            (0, ExitCode::SUCCESS),
            (1, ExitCode::FAILURE),
            (137, ExitCode::from(137)),
            (255, ExitCode::from(255)),
            (256, ExitCode::FAILURE),
            (-1, ExitCode::FAILURE),
        ] {
            assert_eq!(format!("{:?}", exit_code(code)), format!("{expected:?}"));
        }
    }
}
