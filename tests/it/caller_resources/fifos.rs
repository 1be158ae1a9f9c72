//! Output that goes directly into FIFOs of the caller.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use switchyard_core::ErrorKind;
use switchyard_core::spec::{Output, TaskSpec};
use switchyard_core::state::{ExitCause, TaskState};
use switchyard_core::stream::AttachSpec;
use switchyard_tests::host::eventually;

use super::CallerFixture;

/// Time for words to arrive.
const LIMIT: Duration = Duration::from_secs(20);
/// The number of tasks that print and exit concurrently.
const SHORT: usize = 10;
/// The number of tasks whose FIFOs are full at the same time.
const UNREAD: usize = 8;

/// The FIFOs of one task, as the caller that collects its output creates them.
struct OutputFifos {
    stdout: PathBuf,
    stderr: PathBuf,
}

/// A non-blocking reader of a FIFO.
struct FifoReader {
    file: File,
    text: String,
}

impl OutputFifos {
    fn new(caller: &CallerFixture, name: &str) -> Self {
        let path = |stream: &str| caller.fifo_dir.path().join(format!("{name}.{stream}.fifo"));
        let pipes = Self {
            stdout: path("stdout"),
            stderr: path("stderr"),
        };
        for fifo in [&pipes.stdout, &pipes.stderr] {
            nix::unistd::mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO can be made");
        }
        pipes
    }

    fn output(&self) -> Output {
        Output::Fifos {
            stdout: self.stdout.clone(),
            stderr: self.stderr.clone(),
        }
    }

    /// Has a task write into them.
    fn applied(&self) -> impl FnOnce(&mut TaskSpec) {
        let output = self.output();
        |spec| spec.stdio.output = output
    }
}

impl FifoReader {
    fn open(path: &PathBuf) -> Self {
        let opened = std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path);
        Self {
            file: opened.expect("the FIFO is there"),
            text: String::new(),
        }
    }

    /// Reads what has come; what it all is so far.
    fn read(&mut self) -> &str {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = self.file.read(&mut buffer) {
            self.text
                .push_str(std::str::from_utf8(&buffer[..length]).expect("tasks write ASCII here"));
        }
        &self.text
    }

    #[track_caller]
    fn wait(&mut self, wanted: impl Fn(&str) -> bool) {
        let came = eventually(LIMIT, || wanted(self.read()));
        assert!(came, "it has read only {:?}", self.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_tasks_lose_no_output() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let all: Vec<_> = (0..SHORT)
        .map(|number| (number, OutputFifos::new(&caller, &format!("short{number}"))))
        .collect();
    let runs = all.iter().map(async |(number, pipes)| {
        let mut stdout = FifoReader::open(&pipes.stdout);
        let mut stderr = FifoReader::open(&pipes.stderr);
        let script = format!("echo out {number}; echo err {number} >&2");
        let task = caller.task(sandbox, &script, pipes.applied()).await;
        assert_eq!(caller.end(task).await.code, 0);
        // All output was readable before the exit was reported.
        assert_eq!(stdout.read(), format!("out {number}\n"));
        assert_eq!(stderr.read(), format!("err {number}\n"));
    });
    futures::future::join_all(runs).await;
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_starts_and_runs_without_a_fifo_reader() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let pipes = OutputFifos::new(&caller, "alone");
    let script = "echo early; i=0; while true; do i=$((i+1)); echo $i; sleep 0.05; done";
    let task = caller.task(sandbox, script, pipes.applied()).await;
    let mut reader = FifoReader::open(&pipes.stdout);
    reader.wait(|text| text.starts_with("early\n1\n2\n"));
    // One that goes away ends nothing; the next has what was said meanwhile.
    drop(reader);
    let mut next = FifoReader::open(&pipes.stdout);
    next.wait(|text| text.lines().count() > 10);
    let numbers: Vec<u32> = next
        .text
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    assert!(
        numbers.windows(2).all(|pair| pair[1] == pair[0] + 1),
        "{numbers:?}"
    );
    let refused = caller
        .backend
        .attach(
            task,
            AttachSpec {
                stdout: true,
                ..AttachSpec::default()
            },
        )
        .await;
    assert_eq!(
        refused.expect_err("they are somebody else's").kind(),
        ErrorKind::FailedPrecondition
    );
    drop(next);
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn task_does_not_block_without_a_fifo_reader() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let pipes = OutputFifos::new(&caller, "unread");
    // More than the FIFO and the buffers before it hold.
    let script = "head -c 1000000 /dev/zero; echo >&2 done; exit 4";
    let task = caller.task(sandbox, script, pipes.applied()).await;
    assert_eq!(caller.end(task).await.code, 4);
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_task_blocks_however_many_fifos_have_no_reader() {
    let caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let all: Vec<_> = (0..UNREAD)
        .map(|number| OutputFifos::new(&caller, &format!("unread{number}")))
        .collect();
    let runs = all.iter().map(async |pipes| {
        let script =
            "head -c 1000000 /dev/zero & head -c 1000000 /dev/zero >&2; wait; echo end; exit 4";
        let task = caller.task(sandbox, script, pipes.applied()).await;
        assert_eq!(caller.end(task).await.code, 4);
    });
    futures::future::join_all(runs).await;
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn output_continues_while_the_daemon_is_down() {
    let mut caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let pipes = OutputFifos::new(&caller, "on");
    let mut reader = FifoReader::open(&pipes.stdout);
    let script = "i=0; while [ $i -lt 200 ]; do i=$((i+1)); echo $i; sleep 0.02; done; exit 6";
    let task = caller.task(sandbox, script, pipes.applied()).await;
    reader.wait(|text| text.lines().count() > 3);
    caller.reopen().await;
    let exit = caller.end(task).await;
    assert_eq!((exit.code, exit.cause), (6, ExitCause::Exited));
    let numbers: Vec<u32> = reader
        .read()
        .lines()
        .map(|line| line.parse().expect("each is whole"))
        .collect();
    assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
    drop(reader);
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_fifo_fails_the_start_by_name() {
    let mut caller = CallerFixture::new().await;
    let sandbox = caller.plain().await;
    let missing = PathBuf::from("/no/such/stdout.fifo");
    let output = Output::Fifos {
        stdout: missing.clone(),
        stderr: missing,
    };
    let refused = caller
        .try_task(sandbox, "true", |spec| spec.stdio.output = output)
        .await;
    let refused = refused.expect_err("it has nowhere to write to");
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    assert!(
        refused.report().contains("/no/such/stdout.fifo"),
        "{}",
        refused.report()
    );
    let found = caller.reopen().await;
    assert!(
        matches!(&found.tasks[..], [task] if matches!(task.state, TaskState::Exited { .. })),
        "{found:#?}"
    );
    caller.close().await;
}
