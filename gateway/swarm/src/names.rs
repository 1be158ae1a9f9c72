//! The names by which a swarm knows a sandbox or task.

use switchyard_core::names::Names;
use switchyard_core::spec::Meta;

use crate::record::Record;

/// The names of the sandbox with this record, or of a task in it: the labels `swarm_service` and `swarm_task`,
/// and for a task `image`, the image as the service names it. People read `service.slot`.
#[must_use]
pub fn names(sandbox: &Meta, task: Option<&Meta>) -> Names {
    let meta = task.unwrap_or(sandbox);
    let Record {
        service_name,
        task_id,
        slot,
        image,
        ..
    } = Record::of(meta);
    let display = match (service_name.as_str(), slot.as_str()) {
        // There is no record, or the task has no service.
        ("", _) | (_, "") => meta.name.clone(),
        (service, slot) => format!("{service}.{slot}"),
    };
    let names = Names::new(display)
        .with("swarm_service", service_name)
        .with("swarm_task", task_id);
    if task.is_some() {
        names.with("image", image)
    } else {
        names
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use switchyard_core::id::Owner;

    use super::*;

    #[test]
    fn names_are_those_of_the_service() {
        let record = Record {
            service_name: "web".into(),
            slot: "3".into(),
            task_id: "t1".into(),
            image: "nginx".into(),
            ..Record::default()
        };
        let meta = |record: Vec<u8>| Meta {
            owner: Owner::Swarm,
            name: "t1".into(),
            labels: BTreeMap::new(),
            created_at: SystemTime::UNIX_EPOCH,
            record,
        };
        let known = meta(record.encode());
        let names_of_task = names(&known, Some(&known));
        assert_eq!(names_of_task.to_string(), "web.3");
        assert_eq!(
            names_of_task.iter().collect::<Vec<_>>(),
            [
                ("swarm_service", "web"),
                ("swarm_task", "t1"),
                ("image", "nginx")
            ]
        );
        assert_eq!(names(&known, None).get("image"), None);
        let unknown = names(&meta(vec![9]), None);
        assert_eq!(
            (unknown.to_string().as_str(), unknown.iter().count()),
            ("t1", 0)
        );
    }
}
