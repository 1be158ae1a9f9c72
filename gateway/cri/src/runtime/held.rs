//! Pods and containers that cannot be read, in the lists of kubelets.
//!
//! A kubelet takes what a list lacks for gone, and counts a restart. Of what is listed as before it asks nothing; where
//! it does ask, the refusal makes it leave the pod as it is. So they are listed by their name, from which all that identifies
//! them can be read, and by what the runtime says of them. One without a name, or with a name of another form, is not.

use switchyard_core::Result;
use switchyard_core::backend::{Unreadable, UnreadableKind};
use switchyard_core::gateway::Scope;
use switchyard_core::id::SandboxId;
use switchyard_proto::cri::v1 as cri;

use crate::{filter, to_proto};

/// The pods that cannot be read and match a filter. An id that begins with that of the filter matches.
pub(super) fn pods(
    scope: &Scope,
    filter: Option<&cri::PodSandboxFilter>,
) -> Result<Vec<cri::PodSandbox>> {
    let all = scope.sandboxes().unreadable()?;
    let listed = all.iter().filter_map(|held| pod(held));
    let is_meant = |pod: &cri::PodSandbox| filter.is_none_or(|wanted| matches_pod(pod, wanted));
    Ok(listed.filter(is_meant).collect())
}

/// As [`pods`], for containers.
pub(super) fn containers(
    scope: &Scope,
    filter: Option<&cri::ContainerFilter>,
) -> Result<Vec<cri::Container>> {
    let all = scope.sandboxes().unreadable()?;
    let listed = all.iter().filter_map(|held| container(held));
    let is_meant = |container: &cri::Container| {
        filter.is_none_or(|wanted| matches_container(container, wanted))
    };
    Ok(listed.filter(is_meant).collect())
}

/// Returns whether a container of this pod cannot be read.
pub(super) fn has_container_of(scope: &Scope, sandbox: SandboxId) -> Result<bool> {
    let all = scope.sandboxes().unreadable()?;
    Ok(all.iter().any(|held| held.sandbox == Some(sandbox)))
}

/// A pod, whose name is `POD_NAMESPACE_UID_ATTEMPT`.
fn pod(held: &Unreadable) -> Option<cri::PodSandbox> {
    if held.kind != UnreadableKind::Sandbox {
        return None;
    }
    let mut parts = held.name.rsplitn(4, '_');
    let attempt = parts.next()?.parse().ok()?;
    let uid = parts.next()?.to_owned();
    let namespace = parts.next()?.to_owned();
    let name = parts.next()?.to_owned();
    let state = if held.facts.runs {
        cri::PodSandboxState::SandboxReady
    } else {
        cri::PodSandboxState::SandboxNotready
    };
    Some(cri::PodSandbox {
        id: held.id.clone(),
        metadata: Some(cri::PodSandboxMetadata {
            name,
            uid,
            namespace,
            attempt,
        }),
        state: state.into(),
        created_at: created_at(held),
        labels: held.facts.labels.clone(),
        ..Default::default()
    })
}

/// A container, whose name is `CONTAINER_ATTEMPT_SANDBOX`.
fn container(held: &Unreadable) -> Option<cri::Container> {
    if held.kind != UnreadableKind::Task {
        return None;
    }
    let sandbox = held.sandbox?.to_string();
    let (attempted, _) = held.name.rsplit_once('_')?;
    let (name, attempt) = attempted.rsplit_once('_')?;
    let state = if held.facts.runs {
        cri::ContainerState::ContainerRunning
    } else {
        cri::ContainerState::ContainerExited
    };
    Some(cri::Container {
        id: held.id.clone(),
        pod_sandbox_id: sandbox,
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: attempt.parse().ok()?,
        }),
        // A kubelet passes over a container without one.
        image: Some(cri::ImageSpec {
            image: held.facts.image.clone(),
            ..Default::default()
        }),
        image_ref: held.facts.image.clone(),
        state: state.into(),
        created_at: created_at(held),
        labels: held.facts.labels.clone(),
        ..Default::default()
    })
}

fn created_at(held: &Unreadable) -> i64 {
    held.facts
        .created_at
        .map(to_proto::nanoseconds)
        .unwrap_or_default()
}

fn matches_pod(pod: &cri::PodSandbox, wanted: &cri::PodSandboxFilter) -> bool {
    let cri::PodSandboxFilter {
        id,
        state,
        label_selector,
    } = wanted;
    pod.id.starts_with(id.as_str())
        && state.as_ref().is_none_or(|state| state.state == pod.state)
        && filter::carries(&pod.labels, label_selector)
}

fn matches_container(container: &cri::Container, wanted: &cri::ContainerFilter) -> bool {
    let cri::ContainerFilter {
        id,
        state,
        pod_sandbox_id,
        label_selector,
    } = wanted;
    container.id.starts_with(id.as_str())
        && container
            .pod_sandbox_id
            .starts_with(pod_sandbox_id.as_str())
        && state
            .as_ref()
            .is_none_or(|state| state.state == container.state)
        && filter::carries(&container.labels, label_selector)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use switchyard_core::backend::{HeldClaims, ObjectFacts};
    use switchyard_core::id::Owner;

    use super::*;

    const SANDBOX: SandboxId = SandboxId::from_bytes([1; 32]);

    fn held(kind: UnreadableKind, name: &str, runs: bool) -> Unreadable {
        Unreadable {
            id: "ab".repeat(32),
            kind,
            owner: Some(Owner::Kubernetes),
            name: name.to_owned(),
            sandbox: (kind == UnreadableKind::Task).then_some(SANDBOX),
            reason: "of version 9".to_owned(),
            claims: HeldClaims::default(),
            facts: ObjectFacts {
                labels: [("tier".to_owned(), "front".to_owned())].into(),
                image: "busybox:1".to_owned(),
                created_at: Some(UNIX_EPOCH + Duration::from_nanos(7)),
                runs,
            },
        }
    }

    #[test]
    fn pod_is_listed_by_its_name_and_what_the_runtime_says() {
        let of = |name: &str, runs| pod(&held(UnreadableKind::Sandbox, name, runs));
        let web = of("web_1_shop_u-1_2", true).unwrap();
        let metadata = cri::PodSandboxMetadata {
            name: "web_1".to_owned(),
            uid: "u-1".to_owned(),
            namespace: "shop".to_owned(),
            attempt: 2,
        };
        assert_eq!(web.metadata, Some(metadata));
        assert_eq!(web.state(), cri::PodSandboxState::SandboxReady);
        assert_eq!((web.created_at, web.labels["tier"].as_str()), (7, "front"));
        let stopped = of("web_shop_u-1_0", false).unwrap();
        assert_eq!(stopped.state(), cri::PodSandboxState::SandboxNotready);
        for name in ["", "web", "shop_u-1_0", "web_shop_u-1_x"] {
            assert_eq!(of(name, true), None, "{name:?}");
        }
        let task = held(UnreadableKind::Task, "web_shop_u-1_0", true);
        assert_eq!(pod(&task), None);
    }

    #[test]
    fn container_is_listed_by_its_name_and_what_the_runtime_says() {
        let of = |name: &str, runs| container(&held(UnreadableKind::Task, name, runs));
        let main = of("my_main_3_0101", true).unwrap();
        let metadata = cri::ContainerMetadata {
            name: "my_main".to_owned(),
            attempt: 3,
        };
        assert_eq!(main.metadata, Some(metadata));
        assert_eq!(main.pod_sandbox_id, SANDBOX.to_string());
        assert_eq!(main.state(), cri::ContainerState::ContainerRunning);
        assert_eq!(main.image.unwrap().image, "busybox:1");
        let ended = of("main_0_0101", false).unwrap();
        assert_eq!(ended.state(), cri::ContainerState::ContainerExited);
        for name in ["", "main", "main_0", "main_x_0101"] {
            assert_eq!(of(name, true), None, "{name:?}");
        }
        let without_pod = Unreadable {
            sandbox: None,
            ..held(UnreadableKind::Task, "main_0_0101", true)
        };
        assert_eq!(container(&without_pod), None);
    }

    #[test]
    fn filters_count_for_what_cannot_be_read_too() {
        let web = pod(&held(UnreadableKind::Sandbox, "web_shop_u-1_0", true)).unwrap();
        let main = container(&held(UnreadableKind::Task, "main_0_0101", true)).unwrap();
        let pod_filter = |change: fn(&mut cri::PodSandboxFilter)| {
            let mut wanted = cri::PodSandboxFilter::default();
            change(&mut wanted);
            matches_pod(&web, &wanted)
        };
        assert!(pod_filter(|_| {}));
        assert!(pod_filter(|wanted| wanted.id = "abab".to_owned()));
        assert!(!pod_filter(|wanted| wanted.id = "cd".to_owned()));
        let not_ready = cri::PodSandboxStateValue {
            state: cri::PodSandboxState::SandboxNotready.into(),
        };
        let wanted = cri::PodSandboxFilter {
            state: Some(not_ready),
            ..Default::default()
        };
        assert!(!matches_pod(&web, &wanted));
        let container_filter = |change: fn(&mut cri::ContainerFilter)| {
            let mut wanted = cri::ContainerFilter::default();
            change(&mut wanted);
            matches_container(&main, &wanted)
        };
        assert!(container_filter(|_| {}));
        assert!(container_filter(
            |wanted| wanted.pod_sandbox_id = SANDBOX.to_string()
        ));
        assert!(!container_filter(
            |wanted| wanted.pod_sandbox_id = "02".to_owned()
        ));
        assert!(!container_filter(|wanted| {
            let label = ("tier".to_owned(), "back".to_owned());
            wanted.label_selector = [label].into();
        }));
    }
}
