//! Shared by the tests: a running server, real processes and sockets behind it, and timeouts.

use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use switchyard_streaming::{
    Command, Config, Connection, Control, Dial, Input, Outcome, Output, Process, Refusal, Server,
    Sessions, Size, Streams,
};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Standard output only.
pub(crate) const STDOUT: Streams = Streams {
    stdin: false,
    stdout: true,
    stderr: false,
    tty: false,
};
/// All three streams, without a terminal.
pub(crate) const ALL: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: true,
    tty: false,
};
/// A terminal.
pub(crate) const TTY: Streams = Streams {
    stdin: true,
    stdout: true,
    stderr: false,
    tty: true,
};

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) sessions: Sessions,
    pub(crate) stop: CancellationToken,
    pub(crate) serving: JoinHandle<()>,
}

/// The events of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happened {
    Opened,
    Resized(u16, u16),
    HungUp,
}

/// A process on this machine.
pub(crate) struct Shell {
    script: String,
    streams: Streams,
    happened: mpsc::UnboundedSender<Happened>,
}

/// A process whose streams are given by the test.
pub(crate) struct Given {
    pub(crate) process: Result<Process, Refusal>,
}

struct Child {
    child: Mutex<tokio::process::Child>,
    happened: mpsc::UnboundedSender<Happened>,
}

/// The events of a process that the test controls.
pub(crate) struct ControlledProcess {
    pub(crate) end: CancellationToken,
    pub(crate) happened: mpsc::UnboundedSender<Happened>,
}

/// Dials ports of this machine's loopback interface.
#[derive(Debug)]
pub(crate) struct Loopback;

/// Fails the test if the future takes too long.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what)
        .await
        .expect("it hangs")
}

pub(crate) async fn serve(config: Config) -> Running {
    let server = Server::bind(config).await.unwrap();
    let sessions = server.sessions();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.run(stop.clone()));
    Running {
        sessions,
        stop,
        serving,
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A shell that runs `script`, and its events.
pub(crate) fn shell(
    streams: Streams,
    script: &str,
) -> (Box<Shell>, mpsc::UnboundedReceiver<Happened>) {
    let (happened, events) = mpsc::unbounded_channel();
    (
        Box::new(Shell {
            script: script.to_owned(),
            streams,
            happened,
        }),
        events,
    )
}

/// A process with these streams that lives until the token is cancelled.
pub(crate) fn given(
    stdin: Option<Input>,
    stdout: Option<Output>,
) -> (
    Box<Given>,
    CancellationToken,
    mpsc::UnboundedReceiver<Happened>,
) {
    let (happened, events) = mpsc::unbounded_channel();
    let end = CancellationToken::new();
    let control = Arc::new(ControlledProcess {
        end: end.clone(),
        happened,
    });
    (
        Box::new(Given {
            process: Ok(Process {
                stdin,
                stdout,
                stderr: None,
                control,
            }),
        }),
        end,
        events,
    )
}

#[async_trait]
impl Command for Shell {
    async fn open(self: Box<Self>) -> Result<Process, Refusal> {
        let stdio = |wanted: bool| {
            if wanted {
                Stdio::piped()
            } else {
                Stdio::null()
            }
        };
        let mut child = tokio::process::Command::new("sh")
            .args(["-c", &self.script])
            .stdin(stdio(self.streams.stdin))
            .stdout(stdio(self.streams.stdout))
            .stderr(stdio(self.streams.stderr))
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Refusal::Failed(error.to_string()))?;
        let _unwatched = self.happened.send(Happened::Opened);
        Ok(Process {
            stdin: child.stdin.take().map(Input::new),
            stdout: child.stdout.take().map(Output::new),
            stderr: child.stderr.take().map(Output::new),
            control: Arc::new(Child {
                child: Mutex::new(child),
                happened: self.happened,
            }),
        })
    }
}

#[async_trait]
impl Command for Given {
    async fn open(self: Box<Self>) -> Result<Process, Refusal> {
        self.process
    }
}

#[async_trait]
impl Control for Child {
    async fn resize(&self, size: Size) -> Result<(), Refusal> {
        let _unwatched = self
            .happened
            .send(Happened::Resized(size.width.get(), size.height.get()));
        Ok(())
    }

    async fn wait(&self) -> Outcome {
        match self.child.lock().await.wait().await {
            Ok(status) => Outcome::Exited(
                status
                    .code()
                    .or(status.signal().map(|signal| 128 + signal))
                    .unwrap(),
            ),
            Err(error) => Outcome::Failed(Refusal::Failed(error.to_string())),
        }
    }

    async fn hang_up(&self) {
        let _unwatched = self.happened.send(Happened::HungUp);
        self.child.lock().await.kill().await.unwrap();
    }
}

#[async_trait]
impl Control for ControlledProcess {
    async fn resize(&self, size: Size) -> Result<(), Refusal> {
        let _unwatched = self
            .happened
            .send(Happened::Resized(size.width.get(), size.height.get()));
        Ok(())
    }

    async fn wait(&self) -> Outcome {
        self.end.cancelled().await;
        Outcome::Exited(0)
    }

    async fn hang_up(&self) {
        let _unwatched = self.happened.send(Happened::HungUp);
    }
}

#[async_trait]
impl Dial for Loopback {
    async fn dial(&self, port: u16) -> Result<Connection, Refusal> {
        let dialled = TcpStream::connect(("127.0.0.1", port)).await;
        dialled
            .map(Connection::from)
            .map_err(|error| Refusal::Failed(error.to_string()))
    }
}

/// Bytes whose pattern does not repeat, so that errors are not hidden.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
