//! The annotations of a sandbox or container.

use std::collections::BTreeMap;

use switchyard_core::spec::Meta;

use crate::record;

/// The annotations of the sandbox with this record, or of a task in it, as they were requested; none if the
/// record cannot be read. Their values may be secret.
#[must_use]
pub fn annotations(sandbox: &Meta, task: Option<&Meta>) -> BTreeMap<String, String> {
    match task {
        Some(task) => record::container_annotations(task),
        None => record::pod_annotations(sandbox),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use switchyard_core::state::SandboxState;
    use switchyard_proto::cri::v1 as cri;

    use super::*;
    use crate::record::{ContainerRecord, SandboxRecord, encode};
    use crate::to_proto::tests as samples;

    #[test]
    fn annotations_are_those_of_the_request() {
        let pair = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let config = cri::PodSandboxConfig {
            annotations: pair("pod", "1"),
            ..Default::default()
        };
        let mut pod = samples::sandbox(SandboxState::Ready);
        Arc::make_mut(&mut pod.meta).record = encode(&SandboxRecord {
            config: Some(config),
            ..Default::default()
        });
        let config = cri::ContainerConfig {
            annotations: pair("container", "2"),
            ..Default::default()
        };
        let mut task = samples::task();
        Arc::make_mut(&mut task.meta).record = encode(&ContainerRecord {
            config: Some(config),
            ..Default::default()
        });
        assert_eq!(annotations(&pod.meta, None), pair("pod", "1"));
        assert_eq!(
            annotations(&pod.meta, Some(&task.meta)),
            pair("container", "2")
        );
        Arc::make_mut(&mut pod.meta).record = vec![9, 1];
        assert_eq!(annotations(&pod.meta, None), BTreeMap::new());
    }
}
