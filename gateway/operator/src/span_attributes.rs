//! The names of objects as attributes of spans, so that a trace is found by the pod or the job that people know. The keys are
//! OpenTelemetry's as far as it has them, and others in its style.

use switchyard_core::operation::Subject;

use crate::owners::Owners;

/// The labels of the frontends' names, with their keys. Other labels are in no span.
const KEYS: [(&str, &str); 12] = [
    ("namespace", "k8s.namespace.name"),
    ("pod", "k8s.pod.name"),
    ("uid", "k8s.pod.uid"),
    ("container", "k8s.container.name"),
    ("image", "container.image.name"),
    ("nomad_namespace", "nomad.namespace.name"),
    ("nomad_job", "nomad.job.name"),
    ("nomad_group", "nomad.group.name"),
    ("nomad_alloc", "nomad.alloc.id"),
    ("nomad_task", "nomad.task.name"),
    ("swarm_service", "swarm.service.name"),
    ("swarm_task", "swarm.task.id"),
];

/// Returns the attributes of the sandbox and the task that an operation is about.
pub(crate) fn of(owners: Owners, subject: &Subject) -> Vec<(&'static str, String)> {
    let Some(sandbox) = subject.sandbox_meta.as_deref() else {
        return Vec::new();
    };
    let names = owners.names_in_record(sandbox, subject.task_meta.as_deref());
    let known = KEYS
        .into_iter()
        .filter_map(|(label, key)| Some((key, names.get(label)?.to_owned())));
    known.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use switchyard_container_metrics::samples;
    use switchyard_core::id::{Owner, TaskId};
    use switchyard_core::names::Names;

    use super::*;
    use crate::owners::OwnerFunctions;

    #[test]
    fn names_are_under_the_keys_of_the_conventions() {
        let owners = Owners::new(|_| OwnerFunctions {
            names: |_, task| {
                let names = Names::new("shop/web")
                    .with("namespace", "shop")
                    .with("pod", "web")
                    .with("secret", "s");
                match task {
                    Some(_) => names.with("container", "nginx"),
                    None => names,
                }
            },
            ..OwnerFunctions::default()
        });
        let task = samples::task(Owner::Kubernetes, TaskId::from_bytes([1; 32]));
        let sandbox = samples::sandbox(&task);
        let of_sandbox = Subject::new_sandbox(sandbox.id, Arc::clone(&sandbox.meta));
        let pod = [
            ("k8s.namespace.name", "shop".to_owned()),
            ("k8s.pod.name", "web".to_owned()),
        ];
        assert_eq!(of(owners, &of_sandbox), pod);
        let container = ("k8s.container.name", "nginx".to_owned());
        assert_eq!(
            of(owners, &Subject::task(&task, Some(&sandbox))),
            [&pod[..], &[container]].concat()
        );
        assert!(of(owners, &Subject::argument("busybox")).is_empty());
    }

    #[test]
    fn each_label_has_a_key_of_its_own() {
        let keys: BTreeSet<_> = KEYS.iter().map(|(_, key)| key).collect();
        let labels: BTreeSet<_> = KEYS.iter().map(|(label, _)| label).collect();
        assert_eq!((keys.len(), labels.len()), (KEYS.len(), KEYS.len()));
    }
}
