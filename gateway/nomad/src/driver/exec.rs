//! ExecTask: a command with an end, for script checks and templates.

use std::time::Duration;

use switchyard_core::Result;
use switchyard_core::spec::ExecSpec;
use switchyard_proto::nomad::drivers::proto as nomad;

use super::Driver;
use crate::to_proto;

/// What agents keep of each stream of a check.
const OUTPUT_BYTES: usize = 4 << 10;

/// How long a command may take where the agent names no time.
const LONGEST: Duration = Duration::from_secs(10 * 60);

/// How long output is waited for that children of a command hold open when it has ended.
pub(super) const DRAIN: Duration = Duration::from_secs(2);

impl Driver {
    /// Runs a command in a task to its end, and gives the last of what it wrote. Cancel-safe: it is killed.
    ///
    /// # Errors
    /// `NotFound`; those of [`Scope::exec_tail`](switchyard_core::gateway::Scope::exec_tail).
    pub(super) async fn exec(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<nomad::ExecTaskResponse> {
        let task = self.task(id)?.id.to_string();
        let limit = if timeout.is_zero() { LONGEST } else { timeout };
        let spec = command_in_task(command, false);
        let output = self.shared.scope.exec_tail(&task, &spec, Some(limit), OUTPUT_BYTES).await?;
        Ok(nomad::ExecTaskResponse {
            stdout: output.stdout.into(),
            stderr: output.stderr.into(),
            result: Some(to_proto::exit_code(output.code)),
        })
    }
}

/// A command as the task's main process: its environment, directory and user.
pub(super) const fn command_in_task(command: Vec<String>, stdin: bool) -> ExecSpec {
    ExecSpec { command, tty: false, size: None, stdin, env: Vec::new(), cwd: None, drain: DRAIN }
}
