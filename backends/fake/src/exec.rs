//! Execs in tasks, with real streams.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use switchyard_core::backend::{CUT_PATIENCE, ExecControl, ExecPlace, ExecProcess};
use switchyard_core::id::TaskId;
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_core::state::Exit;
use switchyard_core::stream::{Sink, Source};
use switchyard_core::{Error, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::program::{Program, Step};
use crate::session::{Method, Session};

/// The capacity of a pipe.
const PIPE_BYTES: usize = 64 << 10;

/// Maximum number of signals that are queued for one process.
const SIGNALS: usize = 16;

struct Control {
    signals: mpsc::Sender<Signal>,
    code: watch::Receiver<Option<i32>>,
    process: AbortHandle,
    unended: Unended,
    left: LeftOutput,
    session: Arc<Session>,
    task: TaskId,
}

/// The processes whose clients have gone and that could not be ended, as in a container whose shim hangs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unended(Arc<Mutex<Option<Vec<AbortHandle>>>>);

impl Unended {
    /// From now on no process is ended when its client goes, until this is called again.
    pub(crate) fn begin(&self) {
        self.end();
        *self.0.lock() = Some(Vec::new());
    }

    /// Ends the processes, and those of clients that go from now on.
    pub(crate) fn end(&self) {
        self.0
            .lock()
            .take()
            .into_iter()
            .flatten()
            .for_each(|process| process.abort());
    }

    /// Ends a process, if that works.
    fn end_or_keep(&self, process: &AbortHandle) {
        match self.0.lock().as_mut() {
            Some(unended) => unended.push(process.clone()),
            None => process.abort(),
        }
    }
}

/// The fate of the output that a child keeps open after the exit of an exec.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LeftOutput {
    /// It is closed as soon as it is cut off.
    #[default]
    Closed,
    /// The child writes without a pause, so that only the deletion of the exec closes it.
    Busy,
    /// It stays open after it was cut off, as when the runtime cannot be reached.
    Open,
    /// As [`LeftOutput::Busy`], and the deletion never ends.
    Hung,
}

#[derive(Default)]
struct Streams {
    stdin: Option<DuplexStream>,
    stdout: Option<DuplexStream>,
    /// `None` with a terminal: then it is part of standard output.
    stderr: Option<DuplexStream>,
}

/// Counts the running processes, and holds the place of one.
struct ProcessCount {
    count: Arc<AtomicUsize>,
    _place: ExecPlace,
}

/// Starts a process, which has this place; it is killed when the task's `end` is received.
pub(crate) fn spawn(
    program: Program,
    spec: &ExecSpec,
    place: ExecPlace,
    end: watch::Receiver<Option<Exit>>,
    (count, unended, left): (&Arc<AtomicUsize>, &Unended, LeftOutput),
    (session, task): (&Arc<Session>, TaskId),
) -> ExecProcess {
    let mut ours = Streams::default();
    let mut theirs = Streams::default();
    let pipe = || {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        (Some(near), Some(far))
    };
    if spec.stdin {
        (theirs.stdin, ours.stdin) = pipe();
    }
    (theirs.stdout, ours.stdout) = pipe();
    if !spec.tty {
        (theirs.stderr, ours.stderr) = pipe();
    }
    let (signals, inbox) = mpsc::channel(SIGNALS);
    let (report, code) = watch::channel(None);
    count.fetch_add(1, Ordering::SeqCst);
    let alive = ProcessCount {
        count: Arc::clone(count),
        _place: place,
    };
    let process =
        tokio::spawn(run_process(program, ours, inbox, end, report, alive)).abort_handle();
    ExecProcess {
        stdin: theirs.stdin.map(|stream| Box::new(stream) as Sink),
        stdout: theirs.stdout.map(Source::new),
        stderr: theirs.stderr.map(Source::new),
        control: Box::new(Control {
            signals,
            code,
            process,
            unended: unended.clone(),
            left,
            session: Arc::clone(session),
            task,
        }),
    }
}

async fn run_process(
    program: Program,
    mut streams: Streams,
    mut signals: mpsc::Receiver<Signal>,
    mut end: watch::Receiver<Option<Exit>>,
    report: watch::Sender<Option<i32>>,
    _alive: ProcessCount,
) {
    let task_end = async { end.wait_for(Option::is_some).await.map(drop) };
    tokio::pin!(task_end);
    let killed = 128 + i32::from(Signal::KILL.number());
    let (code, by_itself) = {
        let steps = streams.run(&program);
        tokio::pin!(steps);
        loop {
            tokio::select! {
                biased;
                // The sender is dropped with the task, which is removed only after its exit.
                _ = &mut task_end => break (killed, false),
                Some(signal) = signals.recv() => if let Some(code) = program.ends_by(signal) {
                    break (code, false);
                },
                code = &mut steps => break (code, true),
            }
        }
    };
    if by_itself && program.leaves_child {
        report.send_replace(Some(code));
        // The child holds the streams until the task exits; dropping the process aborts this.
        let _ = task_end.await;
        return;
    }
    drop(streams);
    report.send_replace(Some(code));
}

// === impl Streams ===

impl Streams {
    async fn run(&mut self, program: &Program) -> i32 {
        let mut code = 0;
        for step in &program.steps {
            // If the reader is gone, the writer gets SIGPIPE.
            let written = match step {
                Step::Write { text, stderr } => self.write(text, *stderr).await,
                Step::Zeros(count) => self.zeros(*count).await,
                Step::Cat => self.cat().await,
                Step::Sleep(time) => {
                    tokio::time::sleep(*time).await;
                    Ok(())
                }
                Step::Forever => std::future::pending().await,
                Step::Status(status) => {
                    code = *status;
                    continue;
                }
                Step::Exit(status) => return *status,
            };
            code = 0;
            if written.is_err() {
                return 141;
            }
        }
        code
    }

    async fn write(&mut self, bytes: &[u8], stderr: bool) -> std::io::Result<()> {
        let to = if stderr && self.stderr.is_some() {
            &mut self.stderr
        } else {
            &mut self.stdout
        };
        match to {
            Some(stream) => stream.write_all(bytes).await,
            None => Ok(()),
        }
    }

    async fn zeros(&mut self, mut count: u64) -> std::io::Result<()> {
        let block = vec![0; PIPE_BYTES];
        while count > 0 {
            let some = usize::try_from(count).map_or(PIPE_BYTES, |count| count.min(PIPE_BYTES));
            self.write(&block[..some], false).await?;
            count -= u64::try_from(some).expect("a block is small");
        }
        Ok(())
    }

    async fn cat(&mut self) -> std::io::Result<()> {
        let Some(mut stdin) = self.stdin.take() else {
            return Ok(());
        };
        let mut block = vec![0; PIPE_BYTES];
        loop {
            match stdin.read(&mut block).await? {
                0 => return Ok(()),
                some => self.write(&block[..some], false).await?,
            }
        }
    }
}

impl Drop for ProcessCount {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

// === impl Control ===

impl ExecControl for Control {
    fn wait(&self) -> BoxFuture<'_, Result<i32>> {
        Box::pin(async move {
            let mut code = self.code.clone();
            let code = code.wait_for(Option::is_some).await.map(|code| *code);
            code.ok()
                .flatten()
                .ok_or_else(|| Error::unavailable("the process was deleted while it ran"))
        })
    }

    fn signal(&self, signal: Signal) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            // Sending fails if the process has exited.
            let _ = self.signals.send(signal).await;
            Ok(())
        })
    }

    fn resize(&self, width: u16, height: u16) -> BoxFuture<'_, Result<()>> {
        let object = format!("{} {width}x{height}", self.task);
        Box::pin(async move {
            self.session
                .act(Method::ResizeExec, object, || Ok(()))
                .await
        })
    }

    fn cut_output(&self, after: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if matches!(self.left, LeftOutput::Busy | LeftOutput::Hung) {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(after).await;
            if self.left == LeftOutput::Closed {
                self.process.abort();
            }
            tokio::time::sleep(CUT_PATIENCE).await;
        })
    }

    fn delete(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            match self.left {
                LeftOutput::Closed | LeftOutput::Busy => self.process.abort(),
                LeftOutput::Open => {}
                LeftOutput::Hung => std::future::pending().await,
            }
            Ok(())
        })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.unended.end_or_keep(&self.process);
    }
}
