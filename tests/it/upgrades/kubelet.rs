//! A model of a kubelet that lists pods and containers: it compares each list with the one before, and takes what is lacking
//! for gone, so that it counts a restart and starts another attempt. It asks for a status where a list has changed, and where it
//! starts; of a pod whose status is refused it changes nothing.

use switchyard_proto::cri::v1 as cri;
use switchyard_tests::node::{TestNode, TestPod};
use tonic::{Code, Status};

/// The lists of one node, as a kubelet has seen them.
pub(super) struct KubeletView<'n> {
    node: &'n TestNode,
    pods: Vec<cri::PodSandbox>,
    containers: Vec<cri::Container>,
}

// === impl KubeletView ===

impl<'n> KubeletView<'n> {
    #[track_caller]
    pub(super) fn of(node: &'n TestNode) -> Self {
        Self {
            node,
            pods: node.cri().pods().expect("they can be listed"),
            containers: node.cri().containers().expect("they can be listed"),
        }
    }

    /// Fails if a kubelet that has seen these lists would count a restart now, or begin anything about one of their pods:
    /// unless each pod and container is listed as before, and its status says the same, or is refused.
    #[track_caller]
    pub(super) fn assert_nothing_changed(&self, when: &str) {
        let now = Self::of(self.node);
        let cri = self.node.cri();
        for pod in &self.pods {
            let listed = now.pods.iter().find(|other| other.id == pod.id);
            assert_eq!(listed.map(key_of_pod), Some(key_of_pod(pod)), "{when}");
            let state = known(cri.pod_status(&pod.id), when).map(|status| status.state());
            assert!(
                state.is_none_or(|state| state == pod.state()),
                "{when}: {state:?} of {pod:?}"
            );
        }
        for container in &self.containers {
            let mut listed = now.containers.iter();
            let listed = listed.find(|other| other.id == container.id);
            let before = key_of_container(container);
            assert_eq!(listed.map(key_of_container), Some(before), "{when}");
            let status = known(cri.status(&container.id), when);
            let state = status.map(|status| status.state());
            assert!(
                state.is_none_or(|state| state == container.state()),
                "{when}: {state:?} of {container:?}"
            );
        }
    }
}

/// The answer, if there is one; fails if the object is said not to exist, which counts as its end.
#[track_caller]
fn known<T>(answer: Result<T, Status>, when: &str) -> Option<T> {
    match answer {
        Ok(status) => Some(status),
        Err(status) => {
            assert_ne!(status.code(), Code::NotFound, "{when}: {status:?}");
            None
        }
    }
}

/// The fields by which a kubelet knows a pod and whether it has changed.
fn key_of_pod(pod: &cri::PodSandbox) -> cri::PodSandbox {
    cri::PodSandbox {
        id: pod.id.clone(),
        metadata: pod.metadata.clone(),
        state: pod.state,
        labels: pod.labels.clone(),
        ..Default::default()
    }
}

/// The same of a container, which a kubelet passes over if it has no image.
fn key_of_container(container: &cri::Container) -> cri::Container {
    cri::Container {
        id: container.id.clone(),
        pod_sandbox_id: container.pod_sandbox_id.clone(),
        metadata: container.metadata.clone(),
        image: container.image.as_ref().map(|_| cri::ImageSpec::default()),
        state: container.state,
        labels: container.labels.clone(),
        ..Default::default()
    }
}

/// Gives a pod the labels that a kubelet gives it.
pub(super) fn label_pod(config: &mut cri::PodSandboxConfig) {
    let pod = config.metadata.clone().unwrap_or_default();
    let labels = [
        ("name", pod.name),
        ("namespace", pod.namespace),
        ("uid", pod.uid),
    ];
    for (key, value) in labels {
        let key = format!("io.kubernetes.pod.{key}");
        config.labels.insert(key, value);
    }
}

/// The labels that a kubelet gives a container of this name.
pub(super) fn container_labels(pod: &TestPod<'_>, name: &str) -> [(String, String); 4] {
    let mut config = pod.config().clone();
    label_pod(&mut config);
    let of_pod = |key: &str| {
        let key = format!("io.kubernetes.pod.{key}");
        let value = config.labels.get(&key).cloned().unwrap_or_default();
        (key, value)
    };
    let own = ("io.kubernetes.container.name".to_owned(), name.to_owned());
    [of_pod("name"), of_pod("namespace"), of_pod("uid"), own]
}
