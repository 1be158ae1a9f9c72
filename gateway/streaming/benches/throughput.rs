//! The throughput of the server: `cargo bench -p switchyard-streaming`. Client and server run on the same
//! machine.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark stops at what fails, and prints"
)]

use std::process::Stdio;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use switchyard_streaming::client::{ClientEvent, Receiver, Spdy};
use switchyard_streaming::{
    Command, Config, Connection, Control, Dial, Input, Outcome, Output, Process, Refusal, Server,
    Sessions, Size, Streams,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use url::Url;

const LENGTH: usize = 1 << 30;

/// A shell command with piped streams.
struct Shell(String);

struct Running(Mutex<Child>);

struct Loopback;

#[async_trait]
impl Command for Shell {
    async fn open(self: Box<Self>) -> Result<Process, Refusal> {
        let mut command = tokio::process::Command::new("sh");
        command
            .args(["-c", &self.0])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| Refusal::Failed(error.to_string()))?;
        let stdout = child.stdout.take().unwrap().into_owned_fd().unwrap();
        let stdin = child.stdin.take().unwrap().into_owned_fd().unwrap();
        Ok(Process {
            stdin: Some(Input::from(pipe::Sender::from_owned_fd(stdin).unwrap())),
            stdout: Some(Output::from(pipe::Receiver::from_owned_fd(stdout).unwrap())),
            stderr: None,
            control: Arc::new(Running(Mutex::new(child))),
        })
    }
}

#[async_trait]
impl Control for Running {
    async fn resize(&self, _: Size) -> Result<(), Refusal> {
        Ok(())
    }

    async fn wait(&self) -> Outcome {
        Outcome::Exited(self.0.lock().await.wait().await.unwrap().code().unwrap())
    }

    async fn hang_up(&self) {
        self.0.lock().await.kill().await.unwrap();
    }
}

#[async_trait]
impl Dial for Loopback {
    async fn dial(&self, port: u16) -> Result<Connection, Refusal> {
        Ok(TcpStream::connect(("127.0.0.1", port))
            .await
            .unwrap()
            .into())
    }
}

/// Reads until the server closes; returns the received bytes.
async fn drain(receiver: &mut Receiver) -> usize {
    let mut got = 0;
    while let Some(event) = receiver.event().await.unwrap() {
        if let ClientEvent::Data { bytes, .. } = event {
            got += bytes.len();
        }
    }
    got
}

async fn open(url: &Url, protocol: &str, streams: &[&[(&str, &str)]]) -> Spdy {
    let mut spdy = Spdy::open(url, &[protocol]).await.unwrap().unwrap();
    for headers in streams {
        spdy.sender.open(headers).await.unwrap();
    }
    spdy
}

async fn exec(sessions: &Sessions, script: &str) -> Spdy {
    let streams = Streams {
        stdin: true,
        stdout: true,
        stderr: false,
        tty: false,
    };
    let url = sessions
        .exec(streams, Box::new(Shell(script.to_owned())))
        .unwrap();
    let kinds = ["error", "stdin", "stdout"].map(|kind| [("streamtype", kind)]);
    open(
        &url,
        "v4.channel.k8s.io",
        &kinds.each_ref().map(|headers| &headers[..]),
    )
    .await
}

async fn forward(sessions: &Sessions, port: u16) -> Spdy {
    let url = sessions
        .port_forward(Vec::new(), Arc::new(Loopback))
        .unwrap();
    let port = port.to_string();
    let kinds =
        ["error", "data"].map(|kind| [("streamtype", kind), ("port", &*port), ("requestid", "0")]);
    open(
        &url,
        "portforward.k8s.io",
        &kinds.each_ref().map(|headers| &headers[..]),
    )
    .await
}

/// Sends the measured amount in frames of 32 KiB, as real clients do.
async fn send(spdy: &mut Spdy, stream: u32) {
    let piece = vec![7; 32 * 1024];
    for _ in 0..LENGTH / piece.len() {
        spdy.sender.data(stream, &piece, false).await.unwrap();
    }
    spdy.sender.data(stream, &[], true).await.unwrap();
}

fn report(what: &str, begin: Instant) {
    let seconds = begin.elapsed().as_secs_f64();
    println!(
        "{what:32} {:8.0} MB/s",
        f64::from(u32::try_from(LENGTH).unwrap()) / 1e6 / seconds
    );
}

#[tokio::main]
async fn main() {
    let server = Server::bind(Config::default()).await.unwrap();
    let sessions = server.sessions();
    let stop = CancellationToken::new();
    let serving = tokio::spawn(server.run(stop.clone()));
    for _ in 0..3 {
        let begin = Instant::now();
        let mut spdy = exec(&sessions, &format!("head -c {LENGTH} /dev/zero")).await;
        assert!(drain(&mut spdy.receiver).await >= LENGTH);
        report("exec, standard output", begin);

        let begin = Instant::now();
        let mut spdy = exec(&sessions, "cat >/dev/null").await;
        send(&mut spdy, 3).await;
        drain(&mut spdy.receiver).await;
        report("exec, standard input", begin);

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let begin = Instant::now();
        let mut spdy = forward(&sessions, port).await;
        let (mut socket, _) = listener.accept().await.unwrap();
        let give = tokio::spawn(async move {
            let piece = vec![7; 256 * 1024];
            for _ in 0..LENGTH / piece.len() {
                socket.write_all(&piece).await.unwrap();
            }
        });
        let mut got = 0;
        while got < LENGTH {
            if let ClientEvent::Data { bytes, .. } = spdy.receiver.event().await.unwrap().unwrap() {
                got += bytes.len();
            }
        }
        give.await.unwrap();
        report("port-forward, from the port", begin);

        let begin = Instant::now();
        let mut spdy = forward(&sessions, port).await;
        let (mut socket, _) = listener.accept().await.unwrap();
        let take = tokio::spawn(async move {
            let mut got = 0;
            let mut buffer = vec![0; 256 * 1024];
            while got < LENGTH {
                got += socket.read(&mut buffer).await.unwrap();
            }
        });
        send(&mut spdy, 3).await;
        take.await.unwrap();
        report("port-forward, to the port", begin);
    }
    stop.cancel();
    serving.await.unwrap();
}
