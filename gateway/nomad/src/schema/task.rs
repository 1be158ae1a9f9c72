//! The schema of a task's `config`: that of Nomad's docker driver, including unsupported options, so that
//! their refusal can give the reason.

use switchyard_proto::nomad::shared::hclspec;

use super::{
    FLAG, NUMBER, PAIRS, SchemaEntry, TEXT, TEXTS, attr, block, block_attrs, blocks, object,
    required,
};

/// The schema of a task's configuration.
pub(crate) fn task_schema() -> hclspec::Spec {
    object(
        image()
            .into_iter()
            .chain(process())
            .chain(security())
            .chain(network())
            .chain(storage())
            .chain(resources())
            .chain(without_effect()),
    )
}

fn image() -> Vec<SchemaEntry> {
    vec![
        required("image", TEXT),
        attr("load", TEXT),
        attr("force_pull", FLAG),
        attr("image_pull_timeout", TEXT),
        block(
            "auth",
            [
                attr("username", TEXT),
                attr("password", TEXT),
                attr("email", TEXT),
                attr("server_address", TEXT),
            ],
        ),
        attr("auth_soft_fail", FLAG),
    ]
}

fn process() -> Vec<SchemaEntry> {
    vec![
        attr("entrypoint", TEXTS),
        attr("command", TEXT),
        attr("args", TEXTS),
        attr("work_dir", TEXT),
        attr("init", FLAG),
        attr("interactive", FLAG),
        attr("tty", FLAG),
        attr("hostname", TEXT),
        attr("labels", PAIRS),
        attr("group_add", TEXTS),
        attr("runtime", TEXT),
    ]
}

fn security() -> Vec<SchemaEntry> {
    vec![
        attr("privileged", FLAG),
        attr("cap_add", TEXTS),
        attr("cap_drop", TEXTS),
        attr("security_opt", TEXTS),
        attr("readonly_rootfs", FLAG),
        attr("pid_mode", TEXT),
        attr("ipc_mode", TEXT),
        attr("uts_mode", TEXT),
        attr("userns_mode", TEXT),
        attr("cgroupns", TEXT),
        attr("isolation", TEXT),
    ]
}

fn network() -> Vec<SchemaEntry> {
    vec![
        attr("network_mode", TEXT),
        attr("network_aliases", TEXTS),
        attr("ports", TEXTS),
        attr("port_map", PAIRS),
        attr("ipv4_address", TEXT),
        attr("ipv6_address", TEXT),
        attr("mac_address", TEXT),
        attr("advertise_ipv6_address", FLAG),
        attr("extra_hosts", TEXTS),
        attr("dns_servers", TEXTS),
        attr("dns_search_domains", TEXTS),
        attr("dns_options", TEXTS),
    ]
}

fn storage() -> Vec<SchemaEntry> {
    vec![
        attr("volumes", TEXTS),
        attr("volume_driver", TEXT),
        blocks("mount", mount()),
        blocks("mounts", mount()),
        attr("tmpfs", TEXTS),
        attr("shm_size", NUMBER),
        block_attrs("storage_opt"),
        blocks(
            "devices",
            [
                attr("host_path", TEXT),
                attr("container_path", TEXT),
                attr("cgroup_permissions", TEXT),
            ],
        ),
    ]
}

fn mount() -> Vec<SchemaEntry> {
    vec![
        attr("type", TEXT),
        attr("target", TEXT),
        attr("source", TEXT),
        attr("readonly", FLAG),
        block("bind_options", [attr("propagation", TEXT)]),
        block(
            "tmpfs_options",
            [attr("size", NUMBER), attr("mode", NUMBER)],
        ),
        block(
            "volume_options",
            [
                attr("no_copy", FLAG),
                attr("labels", PAIRS),
                block(
                    "driver_config",
                    [attr("name", TEXT), attr("options", PAIRS)],
                ),
            ],
        ),
    ]
}

fn resources() -> Vec<SchemaEntry> {
    vec![
        attr("cpu_hard_limit", FLAG),
        attr("cpu_cfs_period", NUMBER),
        attr("cpuset_cpus", TEXT),
        attr("memory_hard_limit", NUMBER),
        attr("pids_limit", NUMBER),
        attr("oom_score_adj", NUMBER),
        attr("ulimit", PAIRS),
        attr("sysctl", PAIRS),
    ]
}

fn without_effect() -> Vec<SchemaEntry> {
    vec![
        block(
            "logging",
            [
                attr("type", TEXT),
                attr("driver", TEXT),
                attr("config", PAIRS),
            ],
        ),
        block("healthchecks", [attr("disable", FLAG)]),
        attr("container_exists_attempts", NUMBER),
    ]
}
