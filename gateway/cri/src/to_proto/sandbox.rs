//! Converts sandboxes.

use std::collections::BTreeMap;

use switchyard_core::object::Sandbox;
use switchyard_core::spec::Meta;
use switchyard_core::state::SandboxState;
use switchyard_proto::cri::v1 as cri;

use super::time::nanoseconds;
use crate::record::SandboxRecord;

/// Only a ready sandbox is reported as ready; the kubelet replaces all others.
pub(crate) const fn sandbox_state(state: &SandboxState) -> cri::PodSandboxState {
    match state {
        SandboxState::Ready => cri::PodSandboxState::SandboxReady,
        SandboxState::Stopping
        | SandboxState::Stopped
        | SandboxState::Starting
        | SandboxState::Removing
        | SandboxState::Unknown { .. } => cri::PodSandboxState::SandboxNotready,
    }
}

/// A sandbox in a list.
pub(crate) fn pod_sandbox(sandbox: &Sandbox, record: Option<&SandboxRecord>) -> cri::PodSandbox {
    cri::PodSandbox {
        id: sandbox.id.to_string(),
        metadata: Some(metadata(sandbox, record)),
        state: sandbox_state(&sandbox.state).into(),
        created_at: nanoseconds(sandbox.meta.created_at),
        labels: sandbox.meta.labels.clone(),
        annotations: annotations(record),
        runtime_handler: sandbox.handler.clone(),
    }
}

/// A sandbox's full status.
pub(crate) fn sandbox_status(
    sandbox: &Sandbox,
    record: Option<&SandboxRecord>,
) -> cri::PodSandboxStatus {
    let options = namespaces(sandbox, record);
    cri::PodSandboxStatus {
        id: sandbox.id.to_string(),
        metadata: Some(metadata(sandbox, record)),
        state: sandbox_state(&sandbox.state).into(),
        created_at: nanoseconds(sandbox.meta.created_at),
        network: network(sandbox),
        linux: Some(cri::LinuxPodSandboxStatus {
            namespaces: Some(cri::Namespace {
                options: Some(options),
            }),
        }),
        labels: sandbox.meta.labels.clone(),
        annotations: annotations(record),
        runtime_handler: sandbox.handler.clone(),
    }
}

/// The pod's name, namespace, uid and attempt; without a record, from the labels that kubelets set.
pub(super) fn metadata(
    sandbox: &Sandbox,
    record: Option<&SandboxRecord>,
) -> cri::PodSandboxMetadata {
    record
        .and_then(|record| record.config.as_ref())
        .and_then(|config| config.metadata.clone())
        .unwrap_or_else(|| labelled_pod(&sandbox.meta))
}

/// The pod's name, namespace and uid from the labels that kubelets set; its name is never empty.
pub(crate) fn labelled_pod(sandbox: &Meta) -> cri::PodSandboxMetadata {
    let label = |name: &str| {
        sandbox
            .labels
            .get(&format!("io.kubernetes.pod.{name}"))
            .cloned()
    };
    cri::PodSandboxMetadata {
        name: label("name").unwrap_or_else(|| sandbox.name.clone()),
        uid: label("uid").unwrap_or_default(),
        namespace: label("namespace").unwrap_or_default(),
        attempt: 0,
    }
}

/// The annotations of the request; none without a record.
pub(super) fn annotations(record: Option<&SandboxRecord>) -> BTreeMap<String, String> {
    record
        .and_then(|record| record.config.as_ref())
        .map(|config| config.annotations.clone())
        .unwrap_or_default()
}

/// The addresses of a ready sandbox: the primary one first, none on the host's network. A sandbox that is not
/// ready has no addresses.
fn network(sandbox: &Sandbox) -> Option<cri::PodSandboxNetworkStatus> {
    if !sandbox.state.is_ready() {
        return None;
    }
    let mut addresses = sandbox.details.ips.iter().map(ToString::to_string);
    Some(cri::PodSandboxNetworkStatus {
        ip: addresses.next().unwrap_or_default(),
        additional_ips: addresses.map(|ip| cri::PodIp { ip }).collect(),
    })
}

/// The namespaces of the request; without a record, the network mode only.
fn namespaces(sandbox: &Sandbox, record: Option<&SandboxRecord>) -> cri::NamespaceOption {
    match record.and_then(|record| record.config.as_ref()) {
        Some(config) => config
            .linux
            .as_ref()
            .and_then(|linux| linux.security_context.as_ref())
            .and_then(|context| context.namespace_options.clone())
            .unwrap_or_default(),
        None => {
            let network = if sandbox.details.netns.is_some() {
                cri::NamespaceMode::Pod
            } else {
                cri::NamespaceMode::Node
            };
            cri::NamespaceOption {
                network: network.into(),
                ..Default::default()
            }
        }
    }
}
