//! The id of a container of ours, whichever kind it is of.

use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use switchyard_core::id::{ParseIdError, SandboxId, TaskId};

/// The id of a container as containerd and its shims know it. It can be made of ids of ours alone, so that whatever is named after it lies
/// where it should: a process can call itself a shim for `../..`.
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
        // Ids of both kinds look the same.
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
        for text in ["", ".", "..", "/etc", "../../..", "nginx", &long, &long[..63]] {
            assert!(text.parse::<ContainerId>().is_err(), "{text:?}");
        }
    }
}
