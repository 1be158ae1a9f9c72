//! The id of a container of this backend: of a sandbox or of a task.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use switchyard_core::id::{ParseIdError, SandboxId, TaskId};

/// The id of a container as containerd and its shims know it. It can only be created from a valid id of a
/// sandbox or a task, so that paths with it stay in their directory: any process can claim, by its arguments,
/// to be the shim of `../..`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ContainerId(String);

impl From<SandboxId> for ContainerId {
    fn from(id: SandboxId) -> Self {
        Self(id.to_string())
    }
}

impl From<TaskId> for ContainerId {
    fn from(id: TaskId) -> Self {
        Self(id.to_string())
    }
}

impl FromStr for ContainerId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        // The ids of sandboxes and tasks have the same syntax.
        text.parse::<TaskId>().map(Self::from)
    }
}

impl Deref for ContainerId {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_but_an_id_of_ours_names_a_container() {
        let sandbox = SandboxId::random();
        let task = TaskId::random();
        assert_eq!(*ContainerId::from(sandbox), sandbox.to_string());
        assert_eq!(task.to_string().parse(), Ok(ContainerId::from(task)));
        let long = format!("{task}/..");
        for text in [
            "",
            ".",
            "..",
            "/etc",
            "../../..",
            "nginx",
            &long,
            &long[..63],
        ] {
            assert!(text.parse::<ContainerId>().is_err(), "{text:?}");
        }
    }
}
