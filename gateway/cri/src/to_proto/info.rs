//! The `info` of verbose answers: JSON for people and their scripts, under the keys that containerd's users know.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use switchyard_core::backend::{BackendStatus, CgroupDriver, Condition, Handler, Inspection};
use switchyard_core::id::Owner;
use switchyard_core::image::{Image, Right};
use switchyard_core::state::{SandboxState, TaskState};
use switchyard_core::table::{Sandbox, Task};
use switchyard_proto::cri::v1 as cri;

use crate::record::{ContainerRecord, SandboxNote, SandboxRecord, note};

/// The map of an answer with one entry.
type Info = BTreeMap<String, String>;

/// What there is to say of a sandbox.
pub(crate) fn sandbox_info(
    sandbox: &Sandbox,
    record: Option<&SandboxRecord>,
    inspection: &Inspection,
) -> Info {
    let mut info = inspected(inspection);
    info.insert("processStatus".to_owned(), json!(sandbox.state.as_str()));
    info.insert("runtimeHandler".to_owned(), json!(sandbox.handler));
    info.insert("netNamespaceClosed".to_owned(), json!(sandbox.details.netns.is_none()));
    info.insert(
        "config".to_owned(),
        record
            .and_then(|record| record.config.as_ref())
            .map_or(Value::Null, |config| pod_config(config, &note(sandbox))),
    );
    if let SandboxState::Unknown { reason } = &sandbox.state {
        info.insert("reason".to_owned(), json!(reason));
    }
    if !inspection.cni_result.is_empty() {
        info.insert("cniResult".to_owned(), parsed(&inspection.cni_result));
    }
    wrapped("info", info)
}

/// What there is to say of a container.
pub(crate) fn container_info(task: &Task, record: Option<&ContainerRecord>, inspection: &Inspection) -> Info {
    let mut info = inspected(inspection);
    info.insert("sandboxID".to_owned(), json!(task.sandbox.to_string()));
    info.insert("removing".to_owned(), json!(matches!(task.state, TaskState::Removing { .. })));
    info.insert(
        "config".to_owned(),
        record.and_then(|record| record.config.as_ref()).map_or(Value::Null, container_config),
    );
    wrapped("info", info)
}

/// What there is to say of an image: its configuration, as its author wrote it, and who holds it.
pub(crate) fn image_info(image: &Image, config: &str) -> Info {
    let holder = |(owner, right): (&Owner, &Right)| {
        let right = match right {
            Right::Open => "open",
            Right::Private => "private",
        };
        (owner.as_str().to_owned(), json!(right))
    };
    let holders: Map<String, Value> = image.holders.iter().map(holder).collect();
    wrapped(
        "info",
        Map::from_iter([
            ("imageSpec".to_owned(), parsed(config)),
            ("holders".to_owned(), Value::Object(holders)),
        ]),
    )
}

/// What there is to say of the node.
pub(crate) fn status_info(backend: &BackendStatus, handlers: &[Handler]) -> Info {
    let driver = match backend.cgroup_driver {
        CgroupDriver::Systemd => "systemd",
        CgroupDriver::Cgroupfs => "cgroupfs",
    };
    let handlers: Vec<_> = handlers.iter().map(|handler| &handler.name).collect();
    let mut config: Map<String, Value> =
        backend.facts.iter().map(|(name, fact)| (name.clone(), json!(fact))).collect();
    config.insert("backend".to_owned(), json!(backend.version));
    config.insert("cgroupDriver".to_owned(), json!(driver));
    config.insert("handlers".to_owned(), json!(handlers));
    let loaded = match &backend.network {
        Condition::True => "OK".to_owned(),
        Condition::False { reason: _, message } => message.clone(),
    };
    let mut info = wrapped("config", config);
    info.insert("lastCNILoadStatus".to_owned(), loaded);
    info
}

fn wrapped(key: &str, info: Map<String, Value>) -> Info {
    Info::from([(key.to_owned(), Value::Object(info).to_string())])
}

fn inspected(inspection: &Inspection) -> Map<String, Value> {
    let Inspection {
        pid,
        runtime_type,
        snapshotter,
        snapshot_key,
        runtime_spec,
        runtime_options,
        // For sandboxes only.
        cni_result: _,
    } = inspection;
    let mut info = Map::new();
    info.insert("pid".to_owned(), json!(pid.unwrap_or(0)));
    info.insert("runtimeType".to_owned(), json!(runtime_type));
    info.insert("snapshotter".to_owned(), json!(snapshotter));
    info.insert("snapshotKey".to_owned(), json!(snapshot_key));
    info.insert("runtimeOptions".to_owned(), parsed(runtime_options));
    info.insert("runtimeSpec".to_owned(), parsed(runtime_spec));
    info
}

/// JSON as it is, other text as a string, nothing as null.
fn parsed(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { serde_json::from_str(text).unwrap_or_else(|_| json!(text)) }
}

fn pod_config(config: &cri::PodSandboxConfig, note: &SandboxNote) -> Value {
    let said = config.linux.clone().unwrap_or_default();
    // What was said last counts.
    let overhead = note.overhead.clone().or(said.overhead);
    let resources_now = note.resources.clone().or(said.resources);
    let linux = config.linux.as_ref().map(|linux| {
        json!({
            "cgroup_parent": linux.cgroup_parent,
            "sysctls": linux.sysctls,
            "overhead": overhead.as_ref().map(resources),
            "resources": resources_now.as_ref().map(resources),
            "security_context": linux.security_context.as_ref().map(|context| json!({
                "privileged": context.privileged,
                "namespace_options": context.namespace_options.as_ref().map(namespaces),
            })),
        })
    });
    let dns = config
        .dns_config
        .as_ref()
        .map(|dns| json!({ "servers": dns.servers, "searches": dns.searches, "options": dns.options }));
    let port = |port: &cri::PortMapping| {
        json!({
            "protocol": port.protocol,
            "container_port": port.container_port,
            "host_port": port.host_port,
            "host_ip": port.host_ip,
        })
    };
    json!({
        "metadata": config.metadata.as_ref().map(|metadata| json!({
            "name": metadata.name,
            "uid": metadata.uid,
            "namespace": metadata.namespace,
            "attempt": metadata.attempt,
        })),
        "hostname": config.hostname,
        "log_directory": config.log_directory,
        "dns_config": dns,
        "port_mappings": config.port_mappings.iter().map(port).collect::<Vec<_>>(),
        "labels": config.labels,
        "annotations": config.annotations,
        "linux": linux,
    })
}

fn container_config(config: &cri::ContainerConfig) -> Value {
    let env = |env: &cri::KeyValue| json!({ "key": env.key, "value": String::from_utf8_lossy(&env.value) });
    let mount = |mount: &cri::Mount| {
        json!({
            "container_path": mount.container_path,
            "host_path": mount.host_path,
            "readonly": mount.readonly,
            "propagation": mount.propagation,
            "selinux_relabel": mount.selinux_relabel,
            "recursive_read_only": mount.recursive_read_only,
        })
    };
    let device = |device: &cri::Device| {
        json!({
            "container_path": device.container_path,
            "host_path": device.host_path,
            "permissions": device.permissions,
        })
    };
    json!({
        "metadata": config.metadata.as_ref().map(|metadata| json!({
            "name": metadata.name,
            "attempt": metadata.attempt,
        })),
        "image": config.image.as_ref().map(|image| json!({
            "image": image.image,
            "user_specified_image": image.user_specified_image,
            "runtime_handler": image.runtime_handler,
            "annotations": image.annotations,
        })),
        "command": config.command,
        "args": config.args,
        "working_dir": config.working_dir,
        "envs": config.envs.iter().map(env).collect::<Vec<_>>(),
        "mounts": config.mounts.iter().map(mount).collect::<Vec<_>>(),
        "devices": config.devices.iter().map(device).collect::<Vec<_>>(),
        "labels": config.labels,
        "annotations": config.annotations,
        "log_path": config.log_path,
        "stdin": config.stdin,
        "stdin_once": config.stdin_once,
        "tty": config.tty,
        "CDI_devices": config.cdi_devices.iter().map(|device| json!({ "name": device.name })).collect::<Vec<_>>(),
        "stop_signal": config.stop_signal,
        "linux": config.linux.as_ref().map(|linux| json!({
            "resources": linux.resources.as_ref().map(resources),
            "security_context": linux.security_context.as_ref().map(|context| json!({
                "privileged": context.privileged,
                "namespace_options": context.namespace_options.as_ref().map(namespaces),
                "run_as_user": context.run_as_user.map(|user| user.value),
                "run_as_username": context.run_as_username,
                "run_as_group": context.run_as_group.map(|group| group.value),
                "supplemental_groups": context.supplemental_groups,
                "readonly_rootfs": context.readonly_rootfs,
                "no_new_privs": context.no_new_privs,
                "seccomp": context.seccomp.as_ref().map(profile),
                "apparmor": context.apparmor.as_ref().map(profile),
            })),
        })),
    })
}

fn profile(profile: &cri::SecurityProfile) -> Value {
    json!({ "profile_type": profile.profile_type, "localhost_ref": profile.localhost_ref })
}

/// Limits; what is not limited is left out.
fn resources(limits: &cri::LinuxContainerResources) -> Value {
    let mut all = Map::new();
    let numbers = [
        ("cpu_period", limits.cpu_period),
        ("cpu_quota", limits.cpu_quota),
        ("cpu_shares", limits.cpu_shares),
        ("memory_limit_in_bytes", limits.memory_limit_in_bytes),
        ("memory_swap_limit_in_bytes", limits.memory_swap_limit_in_bytes),
        ("oom_score_adj", limits.oom_score_adj),
    ];
    let given = numbers.into_iter().filter(|(_, number)| *number != 0);
    all.extend(given.map(|(name, number)| (name.to_owned(), json!(number))));
    let texts = [("cpuset_cpus", &limits.cpuset_cpus), ("cpuset_mems", &limits.cpuset_mems)];
    let given = texts.into_iter().filter(|(_, text)| !text.is_empty());
    all.extend(given.map(|(name, text)| (name.to_owned(), json!(text))));
    if !limits.unified.is_empty() {
        all.insert("unified".to_owned(), json!(limits.unified));
    }
    let pages: Vec<_> = limits
        .hugepage_limits
        .iter()
        .map(|pages| json!({ "page_size": pages.page_size, "limit": pages.limit }))
        .collect();
    if !pages.is_empty() {
        all.insert("hugepage_limits".to_owned(), json!(pages));
    }
    Value::Object(all)
}

fn namespaces(options: &cri::NamespaceOption) -> Value {
    json!({ "network": options.network, "pid": options.pid, "ipc": options.ipc, "target_id": options.target_id })
}
