//! The names by which Kubernetes knows a sandbox or container, and where its logs are.

use std::path::PathBuf;

use switchyard_core::names::Names;
use switchyard_core::spec::Meta;

use crate::{record, to_proto};

/// The names of the sandbox with this record, or of a task in it: the labels `namespace`, `pod` and `uid`, and
/// for a task `container` and `image`, the image as the pod's author wrote it.
///
/// A name that is neither in the record nor in the labels that kubelets set is left out.
#[must_use]
pub fn names(sandbox: &Meta, task: Option<&Meta>) -> Names {
    let pod = record::pod_metadata(sandbox).unwrap_or_else(|| to_proto::labelled_pod(sandbox));
    let place = if pod.namespace.is_empty() {
        pod.name.clone()
    } else {
        format!("{}/{}", pod.namespace, pod.name)
    };
    let Some(task) = task else {
        return Names::new(place)
            .with("namespace", pod.namespace)
            .with("pod", pod.name)
            .with("uid", pod.uid);
    };
    let (container, image) = record::container_names(task);
    let container = container.unwrap_or_else(|| to_proto::labelled_container(task));
    Names::new(format!("{place}/{}", container.name))
        .with("namespace", pod.namespace)
        .with("pod", pod.name)
        .with("uid", pod.uid)
        .with("container", container.name)
        .with("image", to_proto::written_image(image, "").image)
}

/// The directory that a kubelet has chosen for the logs of this sandbox's containers.
#[must_use]
pub fn log_directory(sandbox: &Meta) -> Option<PathBuf> {
    record::log_directory(sandbox).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use switchyard_core::object::{Sandbox, Task};
    use switchyard_core::state::SandboxState;
    use switchyard_proto::cri::v1 as cri;

    use super::*;
    use crate::record::{ContainerRecord, SandboxRecord, encode};
    use crate::to_proto::tests as samples;

    fn metadata() -> cri::PodSandboxMetadata {
        cri::PodSandboxMetadata {
            name: "web-1".into(),
            uid: "u-1".into(),
            namespace: "shop".into(),
            attempt: 2,
        }
    }

    fn pod(config: cri::PodSandboxConfig) -> Sandbox {
        let mut sandbox = samples::sandbox(SandboxState::Ready);
        let record = SandboxRecord {
            config: Some(config),
            runtime_handler: "crun".into(),
        };
        Arc::make_mut(&mut sandbox.meta).record = encode(&record);
        sandbox
    }

    fn container(image: cri::ImageSpec) -> Task {
        let mut task = samples::task();
        let metadata = Some(cri::ContainerMetadata {
            name: "nginx".into(),
            attempt: 1,
        });
        let env = cri::KeyValue {
            key: "TOKEN".into(),
            value: "hunter2".into(),
        };
        let config = cri::ContainerConfig {
            metadata,
            image: Some(image),
            envs: vec![env],
            ..Default::default()
        };
        let record = ContainerRecord {
            config: Some(config),
            net_priority: 7,
            ..Default::default()
        };
        Arc::make_mut(&mut task.meta).record = encode(&record);
        task
    }

    #[test]
    fn log_directory_comes_from_the_record_of_the_request() {
        let log_directory = "/var/log/pods/shop_web-1_u-1".to_owned();
        let with_logs = pod(cri::PodSandboxConfig {
            log_directory,
            ..Default::default()
        });
        assert_eq!(
            log_directory_of(&with_logs).as_deref(),
            Some("/var/log/pods/shop_web-1_u-1")
        );
        assert_eq!(
            log_directory_of(&pod(cri::PodSandboxConfig::default())),
            None
        );
    }

    fn log_directory_of(sandbox: &Sandbox) -> Option<String> {
        log_directory(&sandbox.meta).map(|path| path.display().to_string())
    }

    #[test]
    fn names_come_from_the_record_of_the_request() {
        let labels = [("io.kubernetes.pod.name".to_owned(), "another".to_owned())].into();
        let pod = pod(cri::PodSandboxConfig {
            metadata: Some(metadata()),
            labels,
            ..Default::default()
        });
        let names_of_pod = names(&pod.meta, None);
        assert_eq!(names_of_pod.to_string(), "shop/web-1");
        let expected = [("namespace", "shop"), ("pod", "web-1"), ("uid", "u-1")];
        assert_eq!(names_of_pod.iter().collect::<Vec<_>>(), expected);

        let image = cri::ImageSpec {
            image: "sha256:12".into(),
            user_specified_image: "nginx:1".into(),
            ..Default::default()
        };
        let names_of_task = names(&pod.meta, Some(&container(image).meta));
        assert_eq!(names_of_task.to_string(), "shop/web-1/nginx");
        let more = [("container", "nginx"), ("image", "nginx:1")];
        assert_eq!(
            names_of_task.iter().collect::<Vec<_>>(),
            [&expected[..], &more].concat()
        );
    }

    #[test]
    fn names_and_status_agree() {
        let pod = pod(cri::PodSandboxConfig {
            metadata: Some(metadata()),
            ..Default::default()
        });
        for image in ["", "nginx:1"] {
            let task = container(cri::ImageSpec {
                image: image.into(),
                ..Default::default()
            });
            let names = names(&pod.meta, Some(&task.meta));
            let records = record::Records::default();
            let status = to_proto::container_status(&task, records.task(&task).as_deref());
            let shown = status.image.map(|image| image.image);
            let requested = shown.filter(|shown| *shown != task.details.image_ref);
            assert_eq!(names.get("image"), requested.as_deref());
            assert_eq!(
                names.get("container"),
                status.metadata.as_ref().map(|found| found.name.as_str())
            );
        }
    }

    #[test]
    fn unreadable_record_falls_back_to_labels_and_then_to_the_raw_name() {
        let mut pod = samples::sandbox(SandboxState::Ready);
        let meta = Arc::make_mut(&mut pod.meta);
        meta.record = vec![9, 1, 2];
        meta.labels = [("io.kubernetes.pod.namespace".to_owned(), "shop".to_owned())].into();
        let raw = meta.name.clone();
        assert_eq!(names(&pod.meta, None).to_string(), format!("shop/{raw}"));
        let mut task = samples::task();
        Arc::make_mut(&mut task.meta).record = Vec::new();
        Arc::make_mut(&mut task.meta).labels.clear();
        let names = names(&pod.meta, Some(&task.meta));
        assert_eq!(names.get("container"), Some(task.meta.name.as_str()));
        assert_eq!(names.get("image"), None);
    }
}
