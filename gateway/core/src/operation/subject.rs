//! Subjects of operations.

use std::sync::Arc;

use crate::id::{SandboxId, TaskId};
use crate::image::ImageReference;
use crate::object::{Sandbox, Task};
use crate::spec::Meta;

/// The longest argument of an operation, in bytes; the rest of a longer one is left out.
pub const ARGUMENT_MAX: usize = 256;

/// The subject of an operation: objects, and one word of the request.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// The id of the sandbox.
    pub sandbox: Option<SandboxId>,
    /// The id of the task.
    pub task: Option<TaskId>,
    /// The frontend's data of the sandbox.
    pub sandbox_meta: Option<Arc<Meta>>,
    /// The frontend's data of the task.
    pub task_meta: Option<Arc<Meta>>,
    /// Further identification of the change: the reference of an image, the program of a command, a port. At
    /// most [`ARGUMENT_MAX`] bytes.
    pub argument: Option<String>,
}

impl Subject {
    /// A sandbox.
    #[must_use]
    pub fn sandbox(sandbox: &Sandbox) -> Self {
        Self::new_sandbox(sandbox.id, Arc::clone(&sandbox.meta))
    }

    /// A sandbox that is not in the table yet.
    #[must_use]
    pub fn new_sandbox(id: SandboxId, meta: Arc<Meta>) -> Self {
        Self {
            sandbox: Some(id),
            sandbox_meta: Some(meta),
            ..Self::default()
        }
    }

    /// A task of a sandbox; `None` if the sandbox is not known any more.
    #[must_use]
    pub fn task(task: &Task, sandbox: Option<&Sandbox>) -> Self {
        Self::new_task(task.id, Arc::clone(&task.meta), task.sandbox, sandbox)
    }

    /// A task that is not in the table yet.
    #[must_use]
    pub fn new_task(id: TaskId, meta: Arc<Meta>, of: SandboxId, sandbox: Option<&Sandbox>) -> Self {
        Self {
            sandbox: Some(of),
            task: Some(id),
            sandbox_meta: sandbox.map(|sandbox| Arc::clone(&sandbox.meta)),
            task_meta: Some(meta),
            argument: None,
        }
    }

    /// Something that only a word of the request identifies.
    #[must_use]
    pub fn argument(argument: &str) -> Self {
        Self::default().with_argument(argument)
    }

    /// The registry of the image that the argument names; `None` if it is no reference of an image.
    #[must_use]
    pub fn registry(&self) -> Option<String> {
        // The argument may be cut, which leaves no valid digest.
        let name = self.argument.as_deref()?.split('@').next()?;
        let parsed: ImageReference = name.parse().ok()?;
        Some(parsed.registry().to_owned())
    }

    /// The subject with a word of the request, cut to [`ARGUMENT_MAX`] bytes.
    #[must_use]
    pub fn with_argument(self, argument: &str) -> Self {
        let end = argument.floor_char_boundary(ARGUMENT_MAX);
        Self {
            argument: Some(argument[..end].to_owned()),
            ..self
        }
    }
}
