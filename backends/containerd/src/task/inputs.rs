//! The clients that are attached to the standard input of a task.

use std::sync::Weak;

use crate::base::input::StdinPipe;

/// The inputs of the clients that are attached to one task.
#[derive(Debug, Default)]
pub(crate) struct Inputs {
    pub(super) open: Vec<Weak<StdinPipe>>,
    /// True if the task's input has ended.
    pub(super) ended: bool,
}
