//! Further processes in running tasks.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use super::access::OwnerAccess;
use super::context::Context;
use crate::backend::{CUT_PATIENCE, ExecControl, ExecPlace, ExecProcess};
use crate::error::{Error, ErrorKind, Reason, Result};
use crate::id::{Owner, TaskId};
use crate::object::Task;
use crate::operation::{OperationKind, Subject, step};
use crate::spec::{ExecSpec, Signal};
use crate::stream::Source;

mod bounds;
mod drain;

use bounds::{CommandCounts, OutputBudget, OutputCharge};

pub use bounds::OutputShare;

/// Bytes of each stream that [`ScopedCommands::exec_sync`] keeps; the rest is read and discarded.
pub(crate) const OUTPUT_LIMIT: usize = 16 << 20;

/// Limit for a start, with its wait for a place at the backend.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Limit for a killed process to exit.
const KILL_PATIENCE: Duration = Duration::from_secs(10);

/// The part of each output stream of a command that is kept; the rest is read and discarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retain {
    /// The first bytes, at most this many.
    First(usize),
    /// The last bytes, at most this many.
    Last(usize),
}

/// The output and exit code of a command.
#[derive(Debug)]
pub struct ExecOutput {
    /// Exit code; 128 plus the signal if a signal ended it.
    pub code: i32,
    /// The kept part of standard output.
    pub stdout: Bytes,
    /// The kept part of standard error.
    pub stderr: Bytes,
    /// The part of `exec.max_output_bytes` that both occupy: whoever keeps large output keeps this with it.
    pub share: OutputShare,
}

/// The commands that run in tasks, and their output that callers wait for.
#[derive(Debug)]
pub struct Commands {
    context: Arc<Context>,
    exec_counts: CommandCounts,
    /// Output of commands that is collected, or held for callers.
    exec_output: OutputBudget,
}

/// Commands in the tasks of one owner.
#[derive(Debug, Clone, Copy)]
pub struct ScopedCommands<'s> {
    access: &'s OwnerAccess,
    commands: &'s Commands,
}

// === impl Commands ===

impl Commands {
    /// Without commands.
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            exec_counts: CommandCounts::default(),
            exec_output: OutputBudget::default(),
        }
    }

    /// Has the backend start a command, as soon as there is a place for it in its task.
    async fn exec_in(&self, task: &Task, spec: &ExecSpec) -> Result<ExecProcess> {
        let context = &self.context;
        let permit = self
            .exec_counts
            .acquire(task.id, context.limits.get().exec_per_task)
            .await?;
        let place = ExecPlace::new(permit);
        let start = async {
            let started =
                tokio::time::timeout(START_LIMIT, context.backend.exec(task.id, spec, place)).await;
            started.map_err(|_| {
                let why =
                    "does the runtime hang, or are very many others being started on this node?";
                Error::unavailable(format!(
                    "the command was not started within {START_LIMIT:?}: {why}"
                ))
            })?
        };
        step("start_command", start).await
    }

    /// Reads an output stream of a command in a task of this owner to its end.
    async fn collect(
        &self,
        (owner, task): (Owner, TaskId),
        stream: Option<Source>,
        keep: Retain,
    ) -> Result<Collected> {
        let mut charge =
            self.exec_output
                .charge(owner, task, self.context.limits.get().exec_output_bytes);
        let mut kept = BytesMut::new();
        let Some(mut stream) = stream else {
            return Ok(Collected {
                bytes: kept,
                charge,
            });
        };
        let mut chunk = BytesMut::with_capacity(64 << 10);
        loop {
            chunk.clear();
            let read = stream.read_buf(&mut chunk).await.map_err(|error| {
                Error::internal("read the output of a command").with_source(error)
            })?;
            if read == 0 {
                return Ok(Collected {
                    bytes: kept,
                    charge,
                });
            }
            match keep {
                Retain::First(limit) => {
                    let room = limit - kept.len();
                    chunk.truncate(room);
                    charge.resize(kept.len() + chunk.len())?;
                    kept.extend_from_slice(&chunk);
                }
                Retain::Last(limit) => {
                    charge.resize(kept.len() + chunk.len())?;
                    kept.extend_from_slice(&chunk);
                    kept.advance(kept.len().saturating_sub(limit));
                    charge.resize(kept.len())?;
                }
            }
        }
    }
}

// === impl ScopedCommands ===

impl<'s> ScopedCommands<'s> {
    pub(super) const fn new(access: &'s OwnerAccess, commands: &'s Commands) -> Self {
        Self { access, commands }
    }

    /// Starts a further process in a running task, with its streams. Dropping the returned value kills the
    /// process.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if the task does not run; `ResourceExhausted` if too many commands
    /// run in it; `Unavailable` if it was not started in time, which says nothing about the command; those of [`ExecBackend::exec`](crate::backend::ExecBackend::exec).
    pub async fn exec(self, id: &str, spec: &ExecSpec) -> Result<ExecProcess> {
        if spec.command.is_empty() {
            return Err(Error::invalid("cmd", "a command is needed"));
        }
        let task = self.access.running_task(id)?;
        let operation = self
            .access
            .begin(OperationKind::Exec, self.command_subject(&task, spec));
        operation.run(self.commands.exec_in(&task, spec)).await
    }

    /// The subject of a command in a task. Of the command only the program is shown: arguments may be secret.
    fn command_subject(self, task: &Task, spec: &ExecSpec) -> Subject {
        let program = spec.command.first().map(String::as_str).unwrap_or_default();
        self.access
            .context()
            .task_subject(task.id)
            .with_argument(program)
    }

    /// Runs a command in a running task to its end, and keeps the first 16 MiB of each stream. `timeout` counts
    /// from its start, which has a deadline of its own, to its exit; `None` waits for ever. The end of the output is
    /// awaited for [`ExecSpec::drain`] after the exit, also beyond the timeout.
    /// Cancel-safe: the process is killed.
    ///
    /// # Errors
    /// Those of [`ScopedCommands::exec`]; `DeadlineExceeded` with [`Reason::CommandTimeout`] if it did not exit in time:
    /// it has been killed, as far as that is possible; `FailedPrecondition` with its exit code if it has exited, and a
    /// child of it kept the output open; `ResourceExhausted` if its output exceeds what the node can hold now: it has
    /// been killed; `Unavailable` if it has not exited in time as far as is known, and the runtime cannot be reached to
    /// kill it.
    pub async fn exec_sync(
        self,
        id: &str,
        spec: &ExecSpec,
        timeout: Option<Duration>,
    ) -> Result<ExecOutput> {
        self.exec_collected(id, spec, timeout, Retain::First(OUTPUT_LIMIT))
            .await
    }

    /// As [`ScopedCommands::exec_sync`], but keeps only the last `bytes` bytes of each stream, and cuts off
    /// output that children keep open after the exit; that is not an error. Children that continue to write
    /// are cut off when the timeout is over too.
    ///
    /// # Errors
    /// Those of [`ScopedCommands::exec_sync`], apart from that for output that is kept open; `Unavailable` if
    /// the runtime does not close it.
    pub async fn exec_tail(
        self,
        id: &str,
        spec: &ExecSpec,
        timeout: Option<Duration>,
        bytes: usize,
    ) -> Result<ExecOutput> {
        self.exec_collected(id, spec, timeout, Retain::Last(bytes))
            .await
    }

    async fn exec_collected(
        self,
        id: &str,
        spec: &ExecSpec,
        timeout: Option<Duration>,
        keep: Retain,
    ) -> Result<ExecOutput> {
        let task = self.access.running_task(id)?;
        let operation = self
            .access
            .begin(OperationKind::ExecSync, self.command_subject(&task, spec));
        operation
            .run(self.exec_to_end(&task, spec, timeout, keep))
            .await
    }

    /// Starts a command, collects its output, and waits for both its exit and the end of the output. A command that is
    /// not waited for any more is killed: at its deadline, when its output is refused, or with the caller.
    async fn exec_to_end(
        self,
        task: &Task,
        spec: &ExecSpec,
        timeout: Option<Duration>,
        keep: Retain,
    ) -> Result<ExecOutput> {
        let mut process = self.exec(&task.id.to_string(), spec).await?;
        // A deadline that the clock cannot represent is no limit.
        let deadline = timeout.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        process.stdin = None;
        let stdout = process.stdout.take();
        let stderr = process.stderr.take();
        // Dropping it kills and deletes the process; no caller waits for that.
        let control = process.control;
        let collected = async {
            let holder = (self.access.owner(), task.id);
            tokio::try_join!(
                self.commands.collect(holder, stdout, keep),
                self.commands.collect(holder, stderr, keep)
            )
        };
        tokio::pin!(collected);
        let exit = async {
            let exit = control.wait();
            tokio::pin!(exit);
            tokio::select! {
                biased;
                code = &mut exit => Ok::<_, Error>((code?, None)),
                // Both streams have ended; only the exit is outstanding.
                output = &mut collected => {
                    let output = output?;
                    Ok((exit.await?, Some(output)))
                }
            }
        };
        // The timeout is for the command itself: what its children do after its exit is not its fault.
        let (code, output) = match deadline {
            None => exit.await?,
            Some((limit, at)) => match tokio::time::timeout_at(at, exit).await {
                Ok(ended) => ended?,
                Err(_) => {
                    let killed = kill(control.as_ref()).await;
                    killed.map_err(|error| not_killed(limit, error))?;
                    let text = format!("the command did not end within {limit:?} and was killed");
                    return Err(Error::deadline(text).with_reason(Reason::CommandTimeout));
                }
            },
        };
        if let Some(output) = output {
            return Ok(finish(code, output));
        }
        // A child may keep the pipes open for ever, so the rest of the output is awaited for a limited time.
        match keep {
            Retain::First(_) => match tokio::time::timeout(spec.drain, collected).await {
                Ok(output) => Ok(finish(code, output?)),
                Err(_) => Err(drain::output_kept_open(code, spec.drain)),
            },
            Retain::Last(_) => {
                let cut =
                    drain::cut_output(control.as_ref(), spec.drain, deadline.map(|(_, at)| at));
                tokio::select! {
                    output = &mut collected => Ok(finish(code, output?)),
                    () = cut => Err(drain::output_not_closed(code, CUT_PATIENCE)),
                }
            }
        }
    }
}

async fn kill(control: &dyn ExecControl) -> Result<()> {
    let killed = async {
        control.signal(Signal::KILL).await?;
        control.wait().await.map(drop)
    };
    match tokio::time::timeout(KILL_PATIENCE, killed).await {
        Ok(killed) => killed,
        Err(_) => Err(Error::deadline(format!(
            "it has not exited within {KILL_PATIENCE:?} of SIGKILL"
        ))),
    }
}

/// The error for a command that has not exited in time, and was not killed because of `error`. A runtime that cannot be
/// reached has perhaps not reported the exit, so that this is no timeout of the command.
fn not_killed(limit: Duration, error: Error) -> Error {
    let text = format!("the command did not end within {limit:?}, and could not be killed");
    if error.kind() == ErrorKind::Unavailable {
        error.context(text)
    } else {
        Error::deadline(text)
            .with_reason(Reason::CommandTimeout)
            .with_source(error)
    }
}

/// The bytes that have been read of a stream, and what they occupy of the budget.
struct Collected {
    bytes: BytesMut,
    charge: OutputCharge,
}

fn finish(code: i32, (stdout, stderr): (Collected, Collected)) -> ExecOutput {
    ExecOutput {
        code,
        stdout: stdout.bytes.freeze(),
        stderr: stderr.bytes.freeze(),
        share: OutputShare::new(stdout.charge, stderr.charge),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_that_cannot_be_killed_has_timed_out_unless_the_runtime_is_away() {
        let limit = Duration::from_secs(3);
        let timeout = (ErrorKind::DeadlineExceeded, Some(Reason::CommandTimeout));
        for error in [
            Error::internal("kill: permission denied"),
            Error::deadline("it has not exited within 10s of SIGKILL"),
        ] {
            let cause = error.report();
            let late = not_killed(limit, error);
            assert_eq!((late.kind(), late.reason()), timeout);
            assert_eq!(
                late.report(),
                format!("the command did not end within 3s, and could not be killed: {cause}")
            );
        }
        let away = not_killed(limit, Error::unavailable("containerd does not answer"));
        assert_eq!((away.kind(), away.reason()), (ErrorKind::Unavailable, None));
    }
}
