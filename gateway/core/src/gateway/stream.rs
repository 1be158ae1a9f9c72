//! Attaching to the streams of a task, and connecting to a port inside a sandbox.

use std::sync::Arc;

use super::Scope;
use crate::error::Result;
use crate::object::{Sandbox, Task};
use crate::operation::{OperationKind, Subject};
use crate::stream::{AttachSpec, Attachment, Dialled};
use crate::table::sandbox_not_ready;

impl Scope {
    /// The task with this id, if it runs.
    ///
    /// # Errors
    /// As for [`Scope::task`]; `FailedPrecondition` if it does not run.
    pub fn require_running_task(&self, id: &str) -> Result<Arc<Task>> {
        self.running_task(id)
    }

    /// The sandbox with this id, if it is ready.
    ///
    /// # Errors
    /// As for [`Scope::sandbox`]; `FailedPrecondition` if it is not ready.
    pub fn require_ready_sandbox(&self, id: &str) -> Result<Arc<Sandbox>> {
        let sandbox = self.sandbox(id)?;
        if sandbox.state.is_ready() {
            Ok(sandbox)
        } else {
            Err(sandbox_not_ready(sandbox.id, &sandbox.state))
        }
    }

    /// Attaches to the streams of a running task. Dropping the returned value does not affect the task.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; those of
    /// [`TaskBackend::attach`](crate::backend::TaskBackend::attach).
    pub async fn attach(&self, id: &str, spec: AttachSpec) -> Result<Attachment> {
        let task = self.running_task(id)?;
        let operation = self.begin_on_task(OperationKind::Attach, task.id);
        operation.run(self.gateway.shared.backend.attach(task.id, spec)).await
    }

    /// Sets the size of a running task's terminal, in characters.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it does not run; `Unavailable` if the runtime cannot be reached.
    pub async fn resize_task(&self, id: &str, width: u16, height: u16) -> Result<()> {
        let task = self.running_task(id)?;
        self.gateway.shared.backend.resize_task(task.id, width, height).await
    }

    /// Connects to a TCP port on the loopback address of a ready sandbox. Cancel-safe.
    ///
    /// # Errors
    /// `NotFound`; `FailedPrecondition` if it is not ready; `Unavailable` if no process listens on the port.
    pub async fn dial(&self, id: &str, port: u16) -> Result<Dialled> {
        let sandbox = self.require_ready_sandbox(id)?;
        let subject = Subject::sandbox(&sandbox).with_argument(&port.to_string());
        let operation = self.begin(OperationKind::PortForward, subject);
        operation.run(self.gateway.shared.backend.dial(sandbox.id, port)).await
    }
}
