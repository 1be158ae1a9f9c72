//! The names by which Nomad knows a sandbox or task, and where an agent writes its logs.

use std::path::PathBuf;

use switchyard_core::names::Names;
use switchyard_core::spec::Meta;

use crate::identity::{Record, is_network};

/// Characters of an allocation's id that are shown to people, as in Nomad's own lists.
const SHORT_ALLOC: usize = 8;

/// The names of the sandbox with this record, or of a task in it: the labels `nomad_namespace`, `nomad_job`, `nomad_group`,
/// `nomad_alloc` and `nomad_task`, and for a task `image`, the image as the job names it.
///
/// Of the network of an allocation only `nomad_alloc` is known, and of a task that an earlier version of the
/// gateway started only `nomad_alloc` and `nomad_task`.
#[must_use]
pub fn names(sandbox: &Meta, task: Option<&Meta>) -> Names {
    let meta = task.unwrap_or(sandbox);
    let Record {
        task_name,
        alloc_id,
        namespace,
        job,
        group,
        image,
        ..
    } = Record::of(meta);
    let alloc: String = alloc_id.chars().take(SHORT_ALLOC).collect();
    let display = if is_network(&meta.name) {
        format!("network ({alloc})")
    } else if alloc_id.is_empty() {
        // There is no record.
        meta.name.clone()
    } else {
        let path: Vec<&str> = [&job, &group, &task_name]
            .into_iter()
            .map(String::as_str)
            .filter(|part| !part.is_empty())
            .collect();
        format!("{} ({alloc})", path.join("/"))
    };
    let names = Names::new(display)
        .with("nomad_namespace", namespace)
        .with("nomad_job", job)
        .with("nomad_group", group)
        .with("nomad_alloc", alloc_id)
        .with("nomad_task", task_name);
    if task.is_some() {
        names.with("image", image)
    } else {
        names
    }
}

/// Returns where an agent writes the output of a task as plain text: the allocation's directory, and the
/// task's name, with which the files in its `alloc/logs` begin. `None` if the record does not contain it.
#[must_use]
pub fn log_files(task: &Meta) -> Option<(PathBuf, String)> {
    let Record {
        alloc_dir,
        task_name,
        ..
    } = Record::of(task);
    let is_known = !alloc_dir.is_empty() && !task_name.is_empty();
    is_known.then(|| (alloc_dir.into(), task_name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::SystemTime;

    use switchyard_core::id::Owner;
    use switchyard_proto::nomad::drivers::proto as nomad;

    use super::*;
    use crate::identity::network_meta;

    const ALLOC: &str = "3a7c5f1e-9d44-4f0e-8f3c-1b2a3c4d5e6f";

    fn with_record(record: &Record) -> Meta {
        Meta {
            owner: Owner::Nomad,
            name: format!("{ALLOC}/web/0123abcd"),
            labels: BTreeMap::new(),
            created_at: SystemTime::UNIX_EPOCH,
            record: record.encode(),
        }
    }

    fn request() -> nomad::TaskConfig {
        nomad::TaskConfig {
            name: "web".into(),
            alloc_id: ALLOC.into(),
            job_name: "the shop".into(),
            job_id: "shop".into(),
            task_group_name: "front".into(),
            namespace: "prod".into(),
            ..Default::default()
        }
    }

    #[test]
    fn names_are_those_of_the_job() {
        let names = names(&with_record(&Record::new(&request())), None);
        assert_eq!(names.to_string(), "shop/front/web (3a7c5f1e)");
        let expected = [
            ("nomad_namespace", "prod"),
            ("nomad_job", "shop"),
            ("nomad_group", "front"),
            ("nomad_alloc", ALLOC),
            ("nomad_task", "web"),
        ];
        assert_eq!(names.iter().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn record_of_the_first_version_has_the_names_and_the_log_of_its_task() {
        let task = Meta {
            record: include_bytes!("golden/task-1.bin").to_vec(),
            ..with_record(&Record::default())
        };
        let known = names(&task, Some(&task));
        assert_eq!(known.to_string(), "shop/front/web (3a7c)");
        assert_eq!(known.get("image"), Some("busybox:1"));
        let log = (PathBuf::from("/opt/nomad/alloc/3a7c"), "web".to_owned());
        assert_eq!(log_files(&task), Some(log));
    }

    #[test]
    fn agent_without_job_ids_gives_the_name_of_the_job() {
        let request = nomad::TaskConfig {
            job_id: String::new(),
            namespace: String::new(),
            ..request()
        };
        let names = names(&with_record(&Record::new(&request)), None);
        assert_eq!(
            (names.get("nomad_job"), names.get("nomad_namespace")),
            (Some("the shop"), None)
        );
    }

    #[test]
    fn record_of_an_earlier_version_has_fewer_names() {
        let record = Record {
            task_name: "web".into(),
            alloc_id: ALLOC.into(),
            ..Record::default()
        };
        let names = names(&with_record(&record), None);
        assert_eq!(names.to_string(), "web (3a7c5f1e)");
        assert_eq!(
            names.iter().collect::<Vec<_>>(),
            [("nomad_alloc", ALLOC), ("nomad_task", "web")]
        );
    }

    #[test]
    fn network_of_an_allocation_has_its_allocation_alone() {
        let names = names(
            &network_meta(ALLOC, "web", None, SystemTime::UNIX_EPOCH),
            None,
        );
        assert_eq!(names.to_string(), "network (3a7c5f1e)");
        assert_eq!(names.iter().collect::<Vec<_>>(), [("nomad_alloc", ALLOC)]);
    }

    #[test]
    fn log_files_are_named_after_the_task() {
        let request = nomad::TaskConfig {
            alloc_dir: "/opt/nomad/alloc/3a7c".into(),
            ..request()
        };
        let known = log_files(&with_record(&Record::new(&request)));
        assert_eq!(
            known,
            Some((PathBuf::from("/opt/nomad/alloc/3a7c"), "web".to_owned()))
        );
        assert_eq!(log_files(&with_record(&Record::default())), None);
    }

    #[test]
    fn unreadable_record_leaves_the_raw_name() {
        let meta = Meta {
            record: vec![9],
            ..with_record(&Record::default())
        };
        let names = names(&meta, None);
        assert_eq!(names.to_string(), meta.name);
        assert_eq!(names.iter().count(), 0);
    }
}
