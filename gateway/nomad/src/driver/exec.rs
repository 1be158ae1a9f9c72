//! ExecTask: a command that runs to its end, for script checks and templates.

use std::time::Duration;

use switchyard_core::Result;
use switchyard_core::spec::ExecSpec;
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use crate::to_proto;

/// The part of each stream that agents keep of a check.
const OUTPUT_BYTES: usize = 4 << 10;

/// The time limit of a command if the agent sets none.
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// Limit for output that children keep open after the command has exited.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

impl Driver {
    /// Runs a command in a task to its end, and returns the last part of its output. Cancel-safe: the command
    /// is killed.
    ///
    /// # Errors
    /// `NotFound`; those of [`ScopedCommands::exec_tail`](switchyard_core::gateway::ScopedCommands::exec_tail).
    pub(super) async fn exec(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<nomad::ExecTaskResponse> {
        let task = self.task(id)?.id.to_string();
        let limit = if timeout.is_zero() { LONGEST } else { timeout };
        let spec = command_in_task(command, false);
        let output = self
            .shared
            .scope
            .commands()
            .exec_tail(&task, &spec, Some(limit), OUTPUT_BYTES)
            .await?;
        Ok(nomad::ExecTaskResponse {
            stdout: output.stdout.into(),
            stderr: output.stderr.into(),
            result: Some(to_proto::exit_code(output.code)),
        })
    }
}

/// A command that runs like the task's main process: with its environment, directory and user.
pub(super) const fn command_in_task(command: Vec<String>, stdin: bool) -> ExecSpec {
    ExecSpec {
        command,
        tty: false,
        size: None,
        stdin,
        env: Vec::new(),
        cwd: None,
        drain: DRAIN,
    }
}
