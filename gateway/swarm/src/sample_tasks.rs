//! Tasks of services, as managers send them, for tests.

use std::sync::Arc;

use switchyard_proto::docker::swarmkit::v1 as swarm;

use crate::plan::PlanContext;
use crate::test_util::service_task;

/// The cluster of tests.
pub(crate) const CLUSTER: &str = "cluster1";

/// The id of a task: 25 letters and digits, as managers make them.
pub(crate) fn task_id(number: usize) -> String {
    format!("{number:0>25}")
}

/// Properties of the sample node.
pub(crate) fn node() -> PlanContext {
    PlanContext {
        cluster_id: CLUSTER.into(),
        node_id: "node1".into(),
        hostname: "host-1".into(),
        architecture: "x86_64".into(),
        log_dir: "/var/lib/switchyard/swarm/logs".into(),
        recursive_readonly_mounts: false,
        allowed_devices: Arc::default(),
    }
}

/// A task of the service `web`, with this container.
pub(crate) fn task(number: usize, container: swarm::ContainerSpec) -> swarm::Task {
    swarm::Task {
        node_id: "node1".into(),
        ..service_task(&task_id(number), container)
    }
}

/// A container of the image that the fake has.
pub(crate) fn container() -> swarm::ContainerSpec {
    swarm::ContainerSpec {
        image: switchyard_fake::BUSYBOX.to_owned(),
        ..Default::default()
    }
}

/// The secret `s1`.
pub(crate) fn secret(id: &str, data: &[u8], template: bool) -> swarm::Secret {
    let templating = template.then(|| swarm::Driver {
        name: "golang".into(),
        ..Default::default()
    });
    let spec = Some(swarm::SecretSpec {
        data: data.to_vec(),
        templating,
        ..Default::default()
    });
    swarm::Secret {
        id: id.to_owned(),
        spec,
        ..Default::default()
    }
}

/// The config of this id.
pub(crate) fn config(id: &str, data: &[u8], template: bool) -> swarm::Config {
    let templating = template.then(|| swarm::Driver {
        name: "golang".into(),
        ..Default::default()
    });
    let spec = Some(swarm::ConfigSpec {
        data: data.to_vec(),
        templating,
        ..Default::default()
    });
    swarm::Config {
        id: id.to_owned(),
        spec,
        ..Default::default()
    }
}

/// The reference to the secret, as a file of this name.
pub(crate) fn secret_reference(id: &str, name: &str) -> swarm::SecretReference {
    let file = swarm::FileTarget {
        name: name.to_owned(),
        mode: 0o444,
        ..Default::default()
    };
    swarm::SecretReference {
        secret_id: id.to_owned(),
        secret_name: format!("name of {id}"),
        target: Some(swarm::secret_reference::Target::File(file)),
    }
}
