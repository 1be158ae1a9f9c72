//! Shared by the tests: a keeper in this process, FIFOs as a shim has them, and a parser of logs.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::Mode;
use switchyard_logkeeper::{Client, Config, Error, LogSpec, Server};
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Time limit of any step before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with everything that a keeper and its containers need.
pub(crate) struct Site {
    pub(crate) dir: TempDir,
    pub(crate) config: Config,
    pub(crate) client: Client,
}

/// A keeper that runs in this process.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), Error>>,
}

/// A container's FIFOs, both ends held open as a shim does.
pub(crate) struct Output {
    pub(crate) stdout: File,
    pub(crate) stderr: File,
}

/// One parsed line of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logged {
    pub(crate) stream: String,
    pub(crate) tag: String,
    pub(crate) content: Vec<u8>,
}

impl Site {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::new(dir.path().join("keeper.sock"), dir.path().join("state"));
        let client = Client::new(&config.socket);
        Self {
            dir,
            config,
            client,
        }
    }

    /// Starts a keeper and waits until it answers.
    pub(crate) async fn start(&self) -> Running {
        let server = Server::start(&self.config).await.unwrap();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            server.serve(async { drop(stopped.await) }).await;
            Ok(())
        });
        Running { stop, task }
    }

    pub(crate) fn spec(&self, id: &str) -> LogSpec {
        LogSpec {
            id: id.into(),
            stdout: Some(self.dir.path().join(format!("{id}.out"))),
            stderr: Some(self.dir.path().join(format!("{id}.err"))),
            log: Some(self.dir.path().join(format!("logs/{id}/0.log"))),
            tty: false,
            max_line: 16384,
        }
    }

    /// Creates a container's FIFOs and opens both ends.
    pub(crate) fn output(&self, spec: &LogSpec) -> Output {
        let [stdout, stderr] = [&spec.stdout, &spec.stderr].map(|path| {
            let path = path.as_ref().unwrap();
            nix::unistd::mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        });
        Output { stdout, stderr }
    }

    pub(crate) async fn lines_of(&self, id: &str) -> u64 {
        let entries = self.client.list().await.unwrap();
        entries
            .iter()
            .find(|entry| entry.id == id)
            .map_or(0, |entry| entry.counters.lines)
    }

    pub(crate) async fn await_lines(&self, id: &str, lines: u64) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.lines_of(id).await;
            if now >= lines {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{id} has {now} lines and never got {lines}"
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Running {
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.task.await.unwrap().unwrap();
    }

    /// Waits for a keeper that was asked to end over its socket.
    pub(crate) async fn ended(self) {
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

impl Output {
    pub(crate) fn out(&mut self, text: impl AsRef<[u8]>) {
        self.stdout.write_all(text.as_ref()).unwrap();
    }

    pub(crate) fn err(&mut self, text: impl AsRef<[u8]>) {
        self.stderr.write_all(text.as_ref()).unwrap();
    }
}

/// The log of a container that has one.
pub(crate) fn log(spec: &LogSpec) -> &Path {
    spec.log.as_deref().unwrap()
}

/// Parses a log and fails on anything that is not a CRI log line.
pub(crate) fn parse(path: &Path) -> Vec<Logged> {
    let bytes = fs::read(path).unwrap();
    assert!(
        bytes.is_empty() || bytes.ends_with(b"\n"),
        "{} ends within a line",
        path.display()
    );
    bytes
        .split_inclusive(|byte| *byte == b'\n')
        .map(parse_line)
        .collect()
}

fn parse_line(line: &[u8]) -> Logged {
    let shown = String::from_utf8_lossy(line);
    let mut parts = line[..line.len() - 1].splitn(4, |byte| *byte == b' ');
    let mut next = || {
        parts
            .next()
            .unwrap_or_else(|| panic!("torn line {shown:?}"))
            .to_vec()
    };
    let [time, stream, tag] = [next(), next(), next()].map(|part| String::from_utf8(part).unwrap());
    let content = next();
    assert_eq!(time.len(), 30, "time of {shown:?}");
    time.parse::<jiff::Timestamp>()
        .unwrap_or_else(|error| panic!("{error} in {shown:?}"));
    assert!(
        ["stdout", "stderr"].contains(&stream.as_str()),
        "stream of {shown:?}"
    );
    assert!(["F", "P"].contains(&tag.as_str()), "tag of {shown:?}");
    Logged {
        stream,
        tag,
        content,
    }
}

/// The contents of a log's lines as text, with stream and tag: `stdout F text`.
pub(crate) fn texts(path: &Path) -> Vec<String> {
    let shown = |Logged {
                     stream,
                     tag,
                     content,
                 }| format!("{stream} {tag} {}", String::from_utf8_lossy(&content));
    parse(path).into_iter().map(shown).collect()
}
