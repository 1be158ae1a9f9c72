//! Invariants for arbitrary bytes as a task: called by the fuzz target and the tests.

use std::sync::Arc;

use prost::Message;
use switchyard_core::ErrorKind;
use switchyard_core::id::Owner;
use switchyard_core::spec::{IpcMode, MountSource, PidMode, SandboxPid, is_volume_name};
#[cfg(feature = "fuzzing")]
use switchyard_core::{Error, Result, spec::TaskSpec};
use switchyard_proto::docker::swarmkit::v1 as swarm;

use super::{check_id, plan};
use crate::dependencies::Dependencies;
use crate::plan::PlanContext;

/// Decodes bytes as a task. It is refused as malformed, not supported or incomplete, or it has no more access to
/// the node than docker gives to services.
///
/// # Panics
/// An invariant is violated.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(task) = swarm::Task::decode(bytes) else {
        return;
    };
    let node = node();
    let dependencies = dependencies();
    let made = match plan(&task, &node, &dependencies) {
        Ok(made) => made,
        Err(error) => {
            let kind = error.kind();
            let known = [
                ErrorKind::InvalidArgument,
                ErrorKind::Unimplemented,
                ErrorKind::NotFound,
            ];
            assert!(known.contains(&kind), "{kind:?} {error}");
            return;
        }
    };
    check_id("id", &task.id).expect("it is a part of paths");
    let sandbox = &made.sandbox;
    let spec = &made.task;
    assert_eq!(
        (sandbox.meta.name.as_str(), sandbox.meta.owner),
        (task.id.as_str(), Owner::Swarm)
    );
    assert!(!sandbox.privileged && !spec.security.privileged && sandbox.users.is_none());
    assert!(
        sandbox.ipc != IpcMode::Host
            && spec.pid == PidMode::Private
            && sandbox.pid == SandboxPid::PerTask
    );
    assert!(spec.devices.is_empty() && spec.leases.is_empty());
    assert!(
        spec.cdi_devices
            .iter()
            .all(|name| node.allowed_devices.contains(name)),
        "{:?}",
        spec.cdi_devices
    );
    assert!(spec.annotations.is_empty() && sandbox.annotations.is_empty());
    assert!(!spec.security.masked_paths.is_empty() && sandbox.hostname.len() <= 64);
    assert!(
        sandbox.log_dir.as_os_str().is_empty() || sandbox.log_dir == node.log_dir.join(&task.id)
    );
    for name in spec.meta.labels.keys() {
        assert!(!name.starts_with("switchyard.io/"), "{name}");
    }
    for mount in &spec.mounts {
        assert!(
            mount.destination.is_absolute() && mount.destination.parent().is_some(),
            "{mount:?}"
        );
        match &mount.source {
            MountSource::Host { path, .. } => assert!(path.is_absolute(), "{mount:?}"),
            MountSource::Volume { name, sub_path, .. } => {
                assert!(is_volume_name(name) && !sub_path.is_absolute(), "{mount:?}");
                assert!(
                    !sub_path.components().any(|part| part.as_os_str() == ".."),
                    "{mount:?}"
                );
            }
            MountSource::Nfs { export, .. } => assert!(export.contains(":/"), "{mount:?}"),
            MountSource::Tmpfs { mode, .. } => assert!(*mode <= 0o7777),
            MountSource::Beneath { .. } | MountSource::Image { .. } => {
                panic!("{mount:?}: nobody asks for it")
            }
        }
    }
    assert_eq!(
        plan(&task, &node, &dependencies).expect("it was made before"),
        made
    );
}

/// Properties of the sample node.
fn node() -> PlanContext {
    PlanContext {
        cluster_id: "cluster1".into(),
        node_id: "node1".into(),
        hostname: "host-1".into(),
        architecture: "x86_64".into(),
        log_dir: "/logs".into(),
        recursive_readonly_mounts: true,
        allowed_devices: Arc::new(["acme.com/tpu=a".to_owned()].into()),
    }
}

/// The secret `s`, and the config `c`, which is a template.
fn dependencies() -> Dependencies {
    let mut dependencies = Dependencies::default();
    let spec = Some(swarm::SecretSpec {
        data: b"hunter2".to_vec(),
        ..Default::default()
    });
    dependencies.put_secret(Arc::new(swarm::Secret {
        id: "s".into(),
        spec,
        ..Default::default()
    }));
    let templating = Some(swarm::Driver {
        name: "golang".into(),
        ..Default::default()
    });
    let spec = Some(swarm::ConfigSpec {
        data: b"{{.Task.ID}}".to_vec(),
        templating,
        ..Default::default()
    });
    dependencies.put_config(Arc::new(swarm::Config {
        id: "c".into(),
        spec,
        ..Default::default()
    }));
    dependencies
}

/// Plans the task that the bytes encode.
#[cfg(feature = "fuzzing")]
pub(crate) fn task_spec(bytes: &[u8]) -> Result<TaskSpec> {
    let task = swarm::Task::decode(bytes)
        .map_err(|error| Error::invalid("task", "it is no message").with_source(error))?;
    Ok(plan(&task, &node(), &dependencies().of_task(&task)?)?.task)
}
