//! A command that is run for a client: it is started when the client connects, and killed when the client
//! disconnects.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use switchyard_core::backend::{ExecControl, ExecProcess};
use switchyard_core::gateway::Scope;
use switchyard_core::id::TaskId;
use switchyard_core::spec::{ExecSpec, Signal};
use switchyard_streaming::{Command, Control, Input, Outcome, Process, Refusal, Size};

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
    process: Box<dyn ExecControl>,
    drain: Duration,
}

#[async_trait]
impl Command for PendingExec {
    async fn open(self: Box<Self>) -> Result<Process, Refusal> {
        let Self { scope, task, spec } = *self;
        let started = scope
            .commands()
            .exec(&task.to_string(), &spec)
            .await
            .map_err(|error| to_refusal(&error))?;
        let ExecProcess {
            stdin,
            stdout,
            stderr,
            control,
        } = started;
        let running = RunningExec {
            process: control,
            drain: spec.drain,
        };
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
        self.process
            .resize(size.width.get(), size.height.get())
            .await
            .map_err(|error| to_refusal(&error))
    }

    async fn wait(&self) -> Outcome {
        match self.process.wait().await {
            Ok(code) => Outcome::Exited(code),
            Err(error) => Outcome::Failed(to_refusal(&error)),
        }
    }

    /// Ends the output streams that children of the command still hold open.
    async fn cut_outputs(&self) {
        self.process.cut_output(self.drain).await;
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

#[cfg(test)]
mod tests {
    use switchyard_contract::specs;
    use switchyard_core::backend::CUT_PATIENCE;
    use switchyard_core::gateway::{Gateway, Limits};
    use switchyard_core::id::Owner;
    use switchyard_fake::{BUSYBOX, Fake, LeftOutput};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn output_that_the_runtime_does_not_close_is_given_up() {
        let fake = Fake::with_local_busybox().await;
        let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
        gateway.recover().await.expect("the fake recovers");
        let scope = gateway.scope(Owner::Kubernetes);
        let sandbox = scope
            .sandboxes()
            .create(specs::sandbox(Owner::Kubernetes, "pod"))
            .await
            .expect("it is new");
        let task = specs::task(Owner::Kubernetes, "task", BUSYBOX, &["serve"]);
        let task = scope
            .tasks()
            .create(&sandbox.id.to_string(), task)
            .await
            .expect("it is new")
            .id;
        scope
            .tasks()
            .start(&task.to_string())
            .await
            .expect("it starts");
        fake.set_left_output(LeftOutput::Open);
        let spec = specs::exec(&["sh", "-c", "sleep 1000 & exit 5"]);
        let drain = spec.drain;
        let process = Box::new(PendingExec { scope, task, spec })
            .open()
            .await
            .expect("it runs");
        assert_eq!(process.control.wait().await, Outcome::Exited(5));
        let begun = tokio::time::Instant::now();
        process.control.cut_outputs().await;
        assert_eq!(begun.elapsed(), drain + CUT_PATIENCE);
    }
}
