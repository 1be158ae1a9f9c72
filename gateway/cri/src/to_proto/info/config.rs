//! The request in verbose answers: JSON with the names of the wire fields.

use serde_json::{Map, Value, json};
use switchyard_proto::cri::v1 as cri;

use crate::record::SandboxNote;

/// The configuration of a pod.
pub(super) fn pod_config(config: &cri::PodSandboxConfig, note: &SandboxNote) -> Value {
    let requested = config.linux.clone().unwrap_or_default();
    // Later updates count, also for a pod that was created without a Linux section.
    let overhead = note.overhead.clone().or(requested.overhead);
    let resources_now = note.resources.clone().or(requested.resources);
    let has_linux = config.linux.is_some() || overhead.is_some() || resources_now.is_some();
    let linux = has_linux.then(|| {
        json!({
            "cgroup_parent": requested.cgroup_parent,
            "sysctls": requested.sysctls,
            "overhead": overhead.as_ref().map(resources),
            "resources": resources_now.as_ref().map(resources),
            "security_context": requested.security_context.as_ref().map(sandbox_context),
        })
    });
    let dns = config.dns_config.as_ref().map(
        |dns| json!({ "servers": dns.servers, "searches": dns.searches, "options": dns.options }),
    );
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

fn port(port: &cri::PortMapping) -> Value {
    json!({
        "protocol": port.protocol,
        "container_port": port.container_port,
        "host_port": port.host_port,
        "host_ip": port.host_ip,
    })
}

/// The configuration of a container.
pub(super) fn container_config(config: &cri::ContainerConfig) -> Value {
    let env = |env: &cri::KeyValue| json!({ "key": env.key, "value": String::from_utf8_lossy(&env.value) });
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
        "image": config.image.as_ref().map(image_spec),
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
            "security_context": linux.security_context.as_ref().map(container_context),
        })),
    })
}

fn profile(profile: &cri::SecurityProfile) -> Value {
    json!({ "profile_type": profile.profile_type, "localhost_ref": profile.localhost_ref })
}

/// Limits; unlimited resources are left out.
fn resources(limits: &cri::LinuxContainerResources) -> Value {
    let mut all = Map::new();
    let numbers = [
        ("cpu_period", limits.cpu_period),
        ("cpu_quota", limits.cpu_quota),
        ("cpu_shares", limits.cpu_shares),
        ("memory_limit_in_bytes", limits.memory_limit_in_bytes),
        (
            "memory_swap_limit_in_bytes",
            limits.memory_swap_limit_in_bytes,
        ),
        ("oom_score_adj", limits.oom_score_adj),
    ];
    let given = numbers.into_iter().filter(|(_, number)| *number != 0);
    all.extend(given.map(|(name, number)| (name.to_owned(), json!(number))));
    let texts = [
        ("cpuset_cpus", &limits.cpuset_cpus),
        ("cpuset_mems", &limits.cpuset_mems),
    ];
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
    let cri::NamespaceOption {
        network,
        pid,
        ipc,
        target_id,
        userns_options,
    } = options;
    json!({
        "network": network,
        "pid": pid,
        "ipc": ipc,
        "target_id": target_id,
        "userns_options": userns_options.as_ref().map(user_namespace),
    })
}

fn user_namespace(users: &cri::UserNamespace) -> Value {
    let cri::UserNamespace { mode, uids, gids } = users;
    json!({ "mode": mode, "uids": mappings(uids), "gids": mappings(gids) })
}

fn mappings(mappings: &[cri::IdMapping]) -> Vec<Value> {
    mappings
        .iter()
        .map(|mapping| {
            let cri::IdMapping {
                host_id,
                container_id,
                length,
            } = mapping;
            json!({ "host_id": host_id, "container_id": container_id, "length": length })
        })
        .collect()
}

fn mount(mount: &cri::Mount) -> Value {
    let cri::Mount {
        container_path,
        host_path,
        readonly,
        selinux_relabel,
        propagation,
        uid_mappings,
        gid_mappings,
        recursive_read_only,
        image,
        image_sub_path,
        mount_options,
    } = mount;
    json!({
        "container_path": container_path,
        "host_path": host_path,
        "readonly": readonly,
        "propagation": propagation,
        "selinux_relabel": selinux_relabel,
        "recursive_read_only": recursive_read_only,
        "uidMappings": mappings(uid_mappings),
        "gidMappings": mappings(gid_mappings),
        "image": image.as_ref().map(image_spec),
        "image_sub_path": image_sub_path,
        "mount_options": mount_options,
    })
}

fn image_spec(image: &cri::ImageSpec) -> Value {
    let cri::ImageSpec {
        image,
        annotations,
        user_specified_image,
        runtime_handler,
        image_ref,
    } = image;
    json!({
        "image": image,
        "user_specified_image": user_specified_image,
        "runtime_handler": runtime_handler,
        "annotations": annotations,
        "image_ref": image_ref,
    })
}

fn sandbox_context(context: &cri::LinuxSandboxSecurityContext) -> Value {
    let cri::LinuxSandboxSecurityContext {
        namespace_options,
        selinux_options,
        run_as_user,
        run_as_group,
        readonly_rootfs,
        supplemental_groups,
        supplemental_groups_policy,
        privileged,
        seccomp,
        apparmor,
        // Deprecated fields for the same.
        seccomp_profile_path: _,
    } = context;
    json!({
        "privileged": privileged,
        "namespace_options": namespace_options.as_ref().map(namespaces),
        "selinux_options": selinux_options.as_ref().map(selinux),
        "run_as_user": run_as_user.map(|user| user.value),
        "run_as_group": run_as_group.map(|group| group.value),
        "readonly_rootfs": readonly_rootfs,
        "supplemental_groups": supplemental_groups,
        "supplemental_groups_policy": supplemental_groups_policy,
        "seccomp": seccomp.as_ref().map(profile),
        "apparmor": apparmor.as_ref().map(profile),
    })
}

fn container_context(context: &cri::LinuxContainerSecurityContext) -> Value {
    let cri::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options,
        selinux_options,
        run_as_user,
        run_as_username,
        readonly_rootfs,
        supplemental_groups,
        no_new_privs,
        run_as_group,
        masked_paths,
        readonly_paths,
        seccomp,
        apparmor,
        supplemental_groups_policy,
        apparmor_profile,
        seccomp_profile_path,
    } = context;
    let capabilities = capabilities.as_ref().map(|all| {
        let cri::Capability {
            add_capabilities,
            drop_capabilities,
            add_ambient_capabilities,
        } = all;
        json!({
            "add_capabilities": add_capabilities,
            "drop_capabilities": drop_capabilities,
            "add_ambient_capabilities": add_ambient_capabilities,
        })
    });
    json!({
        "capabilities": capabilities,
        "privileged": privileged,
        "namespace_options": namespace_options.as_ref().map(namespaces),
        "selinux_options": selinux_options.as_ref().map(selinux),
        "run_as_user": run_as_user.map(|user| user.value),
        "run_as_username": run_as_username,
        "run_as_group": run_as_group.map(|group| group.value),
        "supplemental_groups": supplemental_groups,
        "supplemental_groups_policy": supplemental_groups_policy,
        "readonly_rootfs": readonly_rootfs,
        "no_new_privs": no_new_privs,
        "masked_paths": masked_paths,
        "readonly_paths": readonly_paths,
        "seccomp": seccomp.as_ref().map(profile),
        "apparmor": apparmor.as_ref().map(profile),
        "apparmor_profile": apparmor_profile,
        "seccomp_profile_path": seccomp_profile_path,
    })
}

fn selinux(label: &cri::SeLinuxOption) -> Value {
    let cri::SeLinuxOption {
        user,
        role,
        r#type,
        level,
    } = label;
    json!({ "user": user, "role": role, "type": r#type, "level": level })
}
