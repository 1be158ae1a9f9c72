//! Properties that hold for any bytes that CRI clients send. Called only by fuzz targets and tests.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use prost::Message;
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::spec::{SandboxSpec, TaskSpec};
use switchyard_core::{Error, ErrorKind, Result};
use switchyard_proto::cri::v1 as cri;

use crate::config::Config;
use crate::from_proto::{self, Parent};
use crate::record::SandboxRecord;
use crate::v1alpha2;

/// Decodes the bytes as a request for a pod: it is converted as requested, or refused as malformed or
/// unsupported.
///
/// # Panics
/// If a property does not hold.
pub fn pod(data: &[u8]) {
    let Ok(request) = cri::RunPodSandboxRequest::decode(data) else {
        return;
    };
    let cri::RunPodSandboxRequest {
        config,
        runtime_handler,
    } = request;
    let labels = config
        .as_ref()
        .map(|config| (config.labels.clone(), config.annotations.clone()));
    let record = SandboxRecord {
        config,
        runtime_handler,
    };
    match from_proto::sandbox(
        record,
        &Config::default(),
        UNIX_EPOCH + Duration::from_secs(1),
    ) {
        Ok(spec) => {
            let (labels, _) = labels.expect("a pod without a configuration is refused");
            assert_eq!(spec.meta.labels, labels);
            assert!(
                !spec.meta.name.is_empty() && !spec.meta.name.contains(['/', '\0']),
                "{:?}",
                spec.meta.name
            );
            assert!(spec.hostname.len() <= 64, "{:?}", spec.hostname);
            assert!(
                !spec
                    .log_dir
                    .components()
                    .any(|part| part.as_os_str() == ".."),
                "{}",
                spec.log_dir.display()
            );
        }
        Err(error) => is_refusal(&error),
    }
}

/// Decodes the bytes as a request for a container, likewise.
///
/// # Panics
/// If a property does not hold.
pub fn container(data: &[u8]) {
    let Ok(request) = cri::CreateContainerRequest::decode(data) else {
        return;
    };
    let pod = request.sandbox_config.unwrap_or_default();
    let volumes = BTreeMap::new();
    let parent = Parent {
        id: SandboxId::random(),
        config: &pod,
        recursive_readonly: true,
        volumes: &volumes,
    };
    let target = |_: &str| Ok(TaskId::random());
    let Some(config) = request.config else { return };
    let labels = config.labels.clone();
    match from_proto::container(config, &parent, &Config::default(), &target, UNIX_EPOCH) {
        Ok(spec) => {
            assert_eq!(spec.meta.labels, labels);
            assert!(!spec.image.is_empty());
            assert!(
                spec.mounts
                    .iter()
                    .all(|mount| mount.destination.is_absolute()),
                "{:?}",
                spec.mounts
            );
            assert!(
                spec.cwd.as_ref().is_none_or(|cwd| cwd.is_absolute()),
                "{:?}",
                spec.cwd
            );
            let privileged = pod
                .linux
                .as_ref()
                .and_then(|linux| linux.security_context.as_ref())
                .is_some_and(|context| context.privileged);
            assert!(
                privileged || !spec.security.privileged,
                "the pod is not privileged"
            );
        }
        Err(error) => is_refusal(&error),
    }
}

/// Makes the spec of the container request that the bytes encode, in the pod of the request.
///
/// # Errors
/// The bytes encode no request, or it is refused.
pub fn container_spec(data: &[u8]) -> Result<TaskSpec> {
    let request = cri::CreateContainerRequest::decode(data).map_err(not_a_message)?;
    let pod = request.sandbox_config.unwrap_or_default();
    let volumes = BTreeMap::new();
    let parent = Parent {
        id: SandboxId::random(),
        config: &pod,
        recursive_readonly: true,
        volumes: &volumes,
    };
    let target = |_: &str| Ok(TaskId::random());
    from_proto::container(
        request.config.unwrap_or_default(),
        &parent,
        &Config::default(),
        &target,
        UNIX_EPOCH,
    )
}

/// Makes the spec of the pod request that the bytes encode.
///
/// # Errors
/// As [`container_spec`].
pub fn pod_spec(data: &[u8]) -> Result<SandboxSpec> {
    let request = cri::RunPodSandboxRequest::decode(data).map_err(not_a_message)?;
    let cri::RunPodSandboxRequest {
        config,
        runtime_handler,
    } = request;
    from_proto::sandbox(
        SandboxRecord {
            config,
            runtime_handler,
        },
        &Config::default(),
        UNIX_EPOCH,
    )
}

fn not_a_message(error: prost::DecodeError) -> Error {
    Error::invalid("request", "it is no message").with_source(error)
}

/// Decodes the bytes as requests of `v1alpha2`: each is a valid request of v1 too, and additions are
/// converted or refused.
///
/// # Panics
/// If a property does not hold.
pub fn old_version(data: &[u8]) {
    v1alpha2::any_bytes(data)
        .into_iter()
        .for_each(|error| is_refusal(&error));
}

/// An invalid request must be reported as the client's error.
fn is_refusal(error: &Error) {
    let known = matches!(
        error.kind(),
        ErrorKind::InvalidArgument | ErrorKind::Unimplemented | ErrorKind::FailedPrecondition
    );
    assert!(known, "{:?}: {}", error.kind(), error.report());
}
