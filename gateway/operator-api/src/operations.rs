//! Operations in flight, as `/v1/operations` shows them.

use serde::{Deserialize, Serialize};
use switchyard_core::image::PullProgress;
use switchyard_core::names::Names;
use switchyard_core::operation::{OperationInFlight, OperationKind};
use switchyard_core::spec::Meta;

use crate::text::{rfc3339, size};

/// An operation in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OperationView {
    /// Its number in this run of the daemon.
    pub number: u64,
    /// Name of the operation, for example `create_task`.
    pub operation: String,
    /// Owner of the objects that it changes; empty for the daemon's own operations.
    pub owner: String,
    /// The id of the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// The id of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<String>,
    /// The name of the object for people, and what else identifies the change.
    pub subject: String,
    /// Its caller: the listener, and the process if it is known.
    pub caller: String,
    /// Its start, as RFC 3339.
    pub began_at: String,
    /// For how long it has run, in seconds.
    pub seconds: f64,
    /// Its current work and waits, in the order of their beginning.
    pub steps: Vec<StepView>,
    /// The progress of a pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pull: Option<PullView>,
    /// The processes that hold it up, with what they wait for in the kernel; if that was asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blockers: Vec<String>,
}

/// The progress of a pull in flight.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullView {
    /// The registry, by the name in the reference of the image; a mirror may serve it.
    pub registry: String,
    /// Its layers; `None` while they are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayersView>,
}

/// The compressed layers of an image that is pulled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayersView {
    /// Number of layers.
    pub count: usize,
    /// Number of those that are on the node.
    pub done: usize,
    /// The size of all, in bytes.
    pub bytes: u64,
    /// The part of it that is on the node, in bytes.
    pub bytes_done: u64,
}

/// A step of an operation in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepView {
    /// Description of the work or wait.
    pub step: String,
    /// For how long, in seconds.
    pub seconds: f64,
}

impl OperationView {
    /// The view of an operation; `name` gives what people call the object that it changes.
    #[must_use]
    pub fn of(operation: OperationInFlight, name: impl Fn(&Meta, Option<&Meta>) -> Names) -> Self {
        let OperationInFlight {
            number,
            kind,
            owner,
            subject,
            caller,
            began_at,
            age,
            steps,
            pull,
        } = operation;
        let pull = (kind == OperationKind::PullImage).then(|| PullView {
            registry: subject.registry().unwrap_or_default(),
            layers: pull.map(LayersView::from),
        });
        let sandbox = subject.sandbox_meta.as_deref();
        let name = sandbox.map(|sandbox| name(sandbox, subject.task_meta.as_deref()).to_string());
        let words: Vec<_> = [name, subject.argument].into_iter().flatten().collect();
        let caller = caller.map(|caller| match caller.pid {
            Some(pid) => format!("{} ({pid})", caller.listener),
            None => caller.listener.to_owned(),
        });
        Self {
            number,
            operation: kind.as_str().to_owned(),
            owner: owner.map(|owner| owner.to_string()).unwrap_or_default(),
            sandbox: subject.sandbox.map(|id| id.to_string()),
            task: subject.task.map(|id| id.to_string()),
            subject: words.join(" "),
            caller: caller.unwrap_or_default(),
            began_at: rfc3339(began_at),
            seconds: age.as_secs_f64(),
            steps: steps
                .into_iter()
                .map(|(step, time)| StepView {
                    step: step.to_owned(),
                    seconds: time.as_secs_f64(),
                })
                .collect(),
            pull,
            blockers: Vec::new(),
        }
    }
}

impl PullView {
    /// The progress as text, such as `1.5 MiB of 3.0 MiB, 1 of 4 layers, from registry.example`.
    #[must_use]
    pub fn summary(&self) -> String {
        let Self { registry, layers } = self;
        match layers {
            Some(LayersView {
                count,
                done,
                bytes,
                bytes_done,
            }) => format!(
                "{} of {}, {done} of {count} layers, from {registry}",
                size(*bytes_done),
                size(*bytes)
            ),
            None => format!("from {registry}"),
        }
    }
}

impl From<PullProgress> for LayersView {
    fn from(
        PullProgress {
            layers,
            layers_done,
            bytes,
            bytes_done,
        }: PullProgress,
    ) -> Self {
        Self {
            count: layers,
            done: layers_done,
            bytes,
            bytes_done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_says_how_far_it_is_once_its_size_is_known() {
        let mut pull = PullView {
            registry: "registry.example".to_owned(),
            layers: None,
        };
        assert_eq!(pull.summary(), "from registry.example");
        pull.layers = Some(LayersView {
            count: 4,
            done: 1,
            bytes: 3 << 20,
            bytes_done: 3 << 19,
        });
        assert_eq!(
            pull.summary(),
            "1.5 MiB of 3.0 MiB, 1 of 4 layers, from registry.example"
        );
    }
}
