//! A command that is run for a client: it is started when the client connects, and killed when the client
//! disconnects.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use switchyard_core::backend::{ExecControl, ExecProcess};
use switchyard_core::gateway::Scope;
use switchyard_core::id::TaskId;
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_streaming::{Command, Control, Input, Outcome, Process, Refusal, Size};
use tokio::task::AbortHandle;

use super::{output, to_refusal};

/// An exec whose client has not connected yet.
#[derive(Debug)]
pub(super) struct PendingExec {
    pub(super) scope: Scope,
    pub(super) task: TaskId,
    pub(super) spec: ExecSpec,
}

/// A running command. Dropping it kills the command if necessary, and removes it.
struct RunningExec {
    process: Arc<dyn ExecControl>,
    drain: Duration,
    /// Ends the output streams that children of the command still hold open.
    cut: Mutex<Option<AbortHandle>>,
}

#[async_trait]
impl Command for PendingExec {
    async fn open(self: Box<Self>) -> Result<Process, Refusal> {
        let Self { scope, task, spec } = *self;
        let started = scope.exec(&task.to_string(), &spec).await.map_err(|error| to_refusal(&error))?;
        let ExecProcess { stdin, stdout, stderr, control } = started;
        let running = RunningExec { process: control.into(), drain: spec.drain, cut: Mutex::default() };
        Ok(Process {
            stdin: stdin.map(Input::new),
            stdout: stdout.map(output),
            stderr: stderr.map(output),
            control: Arc::new(running),
        })
    }
}

#[async_trait]
impl Control for RunningExec {
    async fn resize(&self, size: Size) -> Result<(), Refusal> {
        self.process.resize(size.width.get(), size.height.get()).await.map_err(|error| to_refusal(&error))
    }

    async fn wait(&self) -> Outcome {
        match self.process.wait().await {
            Ok(code) => {
                let process = Arc::clone(&self.process);
                let drain = self.drain;
                let cut = tokio::spawn(async move { process.cut_output(drain).await });
                *self.cut.lock() = Some(cut.abort_handle());
                Outcome::Exited(code)
            }
            Err(error) => Outcome::Failed(error.report()),
        }
    }

    async fn hang_up(&self) {
        if let Err(error) = self.process.signal(Signal::KILL).await {
            tracing::debug!(
                error = error.report(),
                "cannot kill a command whose client is gone; it is killed later"
            );
        }
    }
}

impl Drop for RunningExec {
    fn drop(&mut self) {
        if let Some(cut) = self.cut.lock().take() {
            cut.abort();
        }
    }
}
