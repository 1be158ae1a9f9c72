//! A task that cannot begin, for operators: what it waits for, or why it was rejected.

use switchyard_core::event::UnmetWork;
use switchyard_core::names::Names;
use switchyard_linux::beginning;
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::Worker;
use crate::life::{Report, State};
use crate::waiting::{NAME_MAX, REASON_MAX};

impl Worker {
    /// Notes for operators what a task waits for, or why it was rejected, before it has an object.
    pub(super) fn note_waiting(&self, report: &Report) {
        let is_rejected = report.state == State::Rejected;
        let waits = report.state < State::Running && !report.error.is_empty();
        let Some(task) = self.task.as_ref().filter(|_| is_rejected || waits) else {
            return;
        };
        let service = service_of(task);
        let waiting = &self.shared.settings.waiting;
        if waiting.note(service, &report.error, is_rejected) {
            self.shared.scope.announce_unmet(UnmetWork {
                names: unmet_names(service, task),
                reason: beginning(&report.error, REASON_MAX).to_owned(),
                is_rejected,
            });
        }
    }

    /// The task waits for nothing any more, and is not needed as it was assigned.
    pub(super) fn forget_assignment(&mut self) {
        if let Some(task) = self.task.take() {
            self.shared.settings.waiting.forget(service_of(&task));
        }
    }
}

/// The name of the service that a task is of; empty for none.
fn service_of(task: &swarm::Task) -> &str {
    let service = task.service_annotations.as_ref();
    service.map_or("", |service| service.name.as_str())
}

/// The names of a task without an object, as those of one that has one. Tasks of global services have no slot.
fn unmet_names(service: &str, task: &swarm::Task) -> Names {
    let service = beginning(service, NAME_MAX);
    let display = match (service, task.slot) {
        ("", _) => task.id.clone(),
        (service, 0) => service.to_owned(),
        (service, slot) => format!("{service}.{slot}"),
    };
    Names::new(display)
        .with("swarm_service", service)
        .with("swarm_task", task.id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_a_task_with_an_object() {
        let task = |service: &str, slot| {
            let annotations = swarm::Annotations {
                name: service.to_owned(),
                ..swarm::Annotations::default()
            };
            swarm::Task {
                id: "t1".to_owned(),
                slot,
                service_annotations: Some(annotations),
                ..swarm::Task::default()
            }
        };
        for (service, slot, expected) in [("web", 3, "web.3"), ("agent", 0, "agent"), ("", 3, "t1")]
        {
            let task = task(service, slot);
            let names = unmet_names(service_of(&task), &task);
            assert_eq!(names.to_string(), expected);
            assert_eq!(names.get("swarm_task"), Some("t1"));
        }
        assert_eq!(service_of(&swarm::Task::default()), "");
    }
}
