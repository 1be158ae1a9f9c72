//! All sandboxes and tasks of the node, as `/v1/objects` answers.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use switchyard_core::backend::Unreadable;
use switchyard_core::id::{Owner, SandboxId};
use switchyard_core::names::Names;
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::state::TaskState;

use crate::text::rfc3339;

/// All sandboxes and tasks of the node, the content of `/v1/objects`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Objects {
    /// Sandboxes.
    pub sandboxes: Vec<SandboxView>,
    /// Tasks.
    pub tasks: Vec<TaskView>,
    /// Objects that cannot be read, which are in neither list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableView>,
}

/// An object that cannot be read, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableView {
    /// The id of its container.
    pub id: String,
    /// `sandbox`, `task`, or `container` if its kind is not known.
    pub kind: String,
    /// Its owner; empty if that is not known.
    pub owner: String,
    /// The name under which its owner requested it; empty if that is not known.
    pub name: String,
    /// Reason why it cannot be read.
    pub reason: String,
}

/// A sandbox, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxView {
    /// Its id.
    pub id: String,
    /// Its owner.
    pub owner: String,
    /// The name under which its owner requested it.
    pub name: String,
    /// The name that its owner's users give it, on one line.
    #[serde(default)]
    pub display_name: String,
    /// Its names, by label: its pod, job or the like.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// Its state, in one word.
    pub state: String,
    /// Its runtime handler; empty for the default.
    pub handler: String,
    /// Its addresses, the primary one first.
    pub ips: Vec<IpAddr>,
    /// Time of the request that created it, as RFC 3339.
    pub created_at: String,
}

/// A task, for display.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskView {
    /// Its id.
    pub id: String,
    /// The sandbox it belongs to.
    pub sandbox: String,
    /// Its owner.
    pub owner: String,
    /// The name under which its owner requested it.
    pub name: String,
    /// The name that its owner's users give it, on one line.
    #[serde(default)]
    pub display_name: String,
    /// Its names, by label: its container, task or the like.
    #[serde(default)]
    pub names: BTreeMap<String, String>,
    /// Its state, in one word.
    pub state: String,
    /// Its image.
    pub image: String,
    /// The pid of its main process, while it runs.
    pub pid: Option<u32>,
    /// Its exit code, if it has exited.
    pub exit_code: Option<i32>,
    /// Time of the request that created it, as RFC 3339.
    pub created_at: String,
}

impl Objects {
    /// The view of these objects, in the order in which people look for them. `names` gives the names of a
    /// sandbox, or of a task in it.
    #[must_use]
    pub fn of(
        sandboxes: &[Arc<Sandbox>],
        tasks: &[Arc<Task>],
        names: impl Fn(&Sandbox, Option<&Task>) -> Names,
    ) -> Self {
        let by_id: HashMap<SandboxId, &Arc<Sandbox>> = sandboxes
            .iter()
            .map(|sandbox| (sandbox.id, sandbox))
            .collect();
        let names_of_task = |task: &Task| match by_id.get(&task.sandbox) {
            Some(sandbox) => names(sandbox, Some(task)),
            // The sandbox was removed while the lists were made.
            None => Names::new(&task.meta.name),
        };
        let mut sandboxes: Vec<_> = sandboxes
            .iter()
            .map(|sandbox| sandbox_view(sandbox, &names(sandbox, None)))
            .collect();
        let mut tasks: Vec<_> = tasks
            .iter()
            .map(|task| task_view(task, &names_of_task(task)))
            .collect();
        sandboxes.sort_by(|a, b| {
            (&a.owner, &a.display_name, &a.id).cmp(&(&b.owner, &b.display_name, &b.id))
        });
        tasks.sort_by(|a, b| {
            (&a.owner, &a.display_name, &a.id).cmp(&(&b.owner, &b.display_name, &b.id))
        });
        Self {
            sandboxes,
            tasks,
            unreadable: Vec::new(),
        }
    }

    /// With objects that cannot be read.
    #[must_use]
    pub fn with_unreadable(mut self, unreadable: &[Arc<Unreadable>]) -> Self {
        self.unreadable = unreadable
            .iter()
            .map(|held| unreadable_view(held))
            .collect();
        self.unreadable
            .sort_by(|a, b| (&a.owner, &a.name, &a.id).cmp(&(&b.owner, &b.name, &b.id)));
        self
    }

    /// Those of one owner.
    #[must_use]
    pub fn of_owner(mut self, owner: Owner) -> Self {
        self.sandboxes
            .retain(|sandbox| sandbox.owner == owner.as_str());
        self.tasks.retain(|task| task.owner == owner.as_str());
        self.unreadable.retain(|held| held.owner == owner.as_str());
        self
    }
}

fn unreadable_view(held: &Unreadable) -> UnreadableView {
    let Unreadable {
        id,
        kind,
        owner,
        name,
        sandbox: _,
        reason,
        claims: _,
        facts: _,
    } = held;
    UnreadableView {
        id: id.clone(),
        kind: kind.as_str().to_owned(),
        owner: owner.map(|owner| owner.to_string()).unwrap_or_default(),
        name: name.clone(),
        reason: reason.clone(),
    }
}

fn sandbox_view(sandbox: &Sandbox, names: &Names) -> SandboxView {
    SandboxView {
        id: sandbox.id.to_string(),
        owner: sandbox.meta.owner.to_string(),
        name: sandbox.meta.name.clone(),
        display_name: names.to_string(),
        names: names.to_map(),
        state: sandbox.state.as_str().into(),
        handler: sandbox.handler.clone(),
        ips: sandbox.details.ips.clone(),
        created_at: rfc3339(sandbox.meta.created_at),
    }
}

fn task_view(task: &Task, names: &Names) -> TaskView {
    let (pid, exit_code) = match &task.state {
        TaskState::Running { pid, .. } | TaskState::Stopping { pid, .. } => (Some(*pid), None),
        TaskState::Exited { exit, .. }
        | TaskState::Removing {
            exit: Some(exit), ..
        } => (None, Some(exit.code)),
        TaskState::Created
        | TaskState::Starting
        | TaskState::Unattended
        | TaskState::Removing { exit: None, .. } => (None, None),
    };
    TaskView {
        id: task.id.to_string(),
        sandbox: task.sandbox.to_string(),
        owner: task.meta.owner.to_string(),
        name: task.meta.name.clone(),
        display_name: names.to_string(),
        names: names.to_map(),
        state: task.state.as_str().into(),
        image: task.details.image_ref.clone(),
        pid,
        exit_code,
        created_at: rfc3339(task.meta.created_at),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn answer_of_the_first_version_is_read_and_written() {
        let golden: Value = serde_json::from_str(include_str!("golden/objects.json")).unwrap();
        let read: Objects = serde_json::from_value(golden.clone()).unwrap();
        assert_eq!(
            (read.tasks[0].pid, read.sandboxes[0].ips.len()),
            (Some(4711), 2)
        );
        assert_eq!(serde_json::to_value(&read).unwrap(), golden);
        let mut later = golden;
        later["tasks"][0]["of_a_later_version"] = Value::from(1);
        assert_eq!(serde_json::from_value::<Objects>(later).unwrap(), read);
    }
}
