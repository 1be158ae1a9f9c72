//! Keys of a job that are malformed, do not exist, or are not allowed, each with the expected error.

use super::*;

/// An addition to a job's `config`, and the expected error.
type Config = (fn() -> Value, Code, &'static str);

/// Values in a job that are malformed, do not exist, or are not allowed. The other keys are covered by the
/// unit tests of the frontend.
pub(super) const CONFIGS: [Config; 59] = [
    // Images.
    (
        || json!({ "image": "" }),
        InvalidArgument,
        "image: image name required",
    ),
    (
        || json!({ "image": "two words" }),
        InvalidArgument,
        "image: \"two words\" names no image",
    ),
    (
        || json!({ "image": "x/UPPER:1" }),
        InvalidArgument,
        "x/UPPER:1",
    ),
    (
        || json!({ "image": "x:1@sha256:short" }),
        InvalidArgument,
        "x:1@sha256:short",
    ),
    (
        || json!({ "image": "x:bad tag" }),
        InvalidArgument,
        "image: \"x:bad tag\" names no image",
    ),
    (
        || json!({ "image": "x:".to_owned() + &"y".repeat(129) }),
        InvalidArgument,
        "yyy",
    ),
    (
        || json!({ "image": "127.0.0.1:99999/x:1" }),
        InvalidArgument,
        "127.0.0.1:99999/x:1",
    ),
    (
        || json!({ "load": "../x.tar" }),
        InvalidArgument,
        "load: \"../x.tar\" is not in the task's local",
    ),
    (
        || json!({ "load": "none.tar" }),
        InvalidArgument,
        "load: none.tar cannot be read in the task's local",
    ),
    (
        || json!({ "load": "." }),
        InvalidArgument,
        "load: . cannot be read in the task's local directory: it is no regular file",
    ),
    (
        || json!({ "image_pull_timeout": "soon" }),
        InvalidArgument,
        "image_pull_timeout: \"soon\"",
    ),
    // What runs.
    (
        || json!({ "command": "a\0b" }),
        InvalidArgument,
        "command: it contains a NUL byte",
    ),
    (
        || json!({ "args": ["a\0b"] }),
        InvalidArgument,
        "args[0]: it contains a NUL byte",
    ),
    (
        || json!({ "command": "/no/such" }),
        InvalidArgument,
        "exec: \"/no/such\"",
    ),
    (
        || json!({ "entrypoint": ["/etc"] }),
        InvalidArgument,
        "exec: \"/etc\"",
    ),
    (
        || json!({ "work_dir": "relative" }),
        InvalidArgument,
        "work_dir: \"relative\" is not an absolute",
    ),
    (
        || json!({ "work_dir": "/etc/passwd" }),
        InvalidArgument,
        "mkdir /etc/passwd: not a directory",
    ),
    (
        || json!({ "hostname": "a b" }),
        InvalidArgument,
        "hostname: \"a b\" is no host name",
    ),
    (
        || json!({ "runtime": "no-such-runtime" }),
        InvalidArgument,
        "runtime: requested runtime",
    ),
    (
        || json!({ "runtime": "gone" }),
        InvalidArgument,
        "runtime: ",
    ),
    (
        || json!({ "group_add": ["no-such-group"] }),
        InvalidArgument,
        "group_add[0]: ",
    ),
    (
        || json!({ "group_add": ["a b"] }),
        InvalidArgument,
        "group_add[0]: \"a b\"",
    ),
    // What it may.
    (
        || json!({ "privileged": true }),
        InvalidArgument,
        "allow_privileged",
    ),
    (
        || json!({ "cap_add": ["SYS_ADMIN"] }),
        InvalidArgument,
        "cap_add[0]: driver does not allow",
    ),
    (
        || json!({ "cap_drop": ["a b"] }),
        InvalidArgument,
        "cap_drop[0]: \"a b\"",
    ),
    (
        || json!({ "pid_mode": "host" }),
        InvalidArgument,
        "pid_mode: \"host\" is not allowed",
    ),
    (
        || json!({ "ipc_mode": "container:x" }),
        Unimplemented,
        "ipc_mode: \"container:x\"",
    ),
    (
        || json!({ "cgroupns": "sideways" }),
        InvalidArgument,
        "cgroupns: \"sideways\"",
    ),
    (
        || json!({ "security_opt": ["seccomp=x"] }),
        InvalidArgument,
        "security_opt[0]: \"x\"",
    ),
    (
        || json!({ "security_opt": ["seccomp=/no/such"] }),
        InvalidArgument,
        "security_opt[0]: ",
    ),
    (
        || json!({ "security_opt": ["apparmor=no-such"] }),
        FailedPrecondition,
        "security_opt[0]: ",
    ),
    (
        || json!({ "security_opt": ["none"] }),
        InvalidArgument,
        "security_opt[0]: \"none\"",
    ),
    // Networks.
    (
        || json!({ "network_mode": "overlay" }),
        Unimplemented,
        "network_mode: \"overlay\"",
    ),
    (
        || json!({ "network_mode": "container:x" }),
        FailedPrecondition,
        "network_mode: task \"x\" of the allocation does not run",
    ),
    (
        || json!({ "ports": ["http"] }),
        InvalidArgument,
        "ports[0]: Port \"http\" not found",
    ),
    (
        || json!({ "mac_address": "02:42:00:00:00:01" }),
        InvalidArgument,
        "mac_address: ",
    ),
    (
        || json!({ "network_mode": "bridge", "mac_address": "x" }),
        InvalidArgument,
        "mac_address",
    ),
    (
        || json!({ "network_mode": "bridge", "ipv4_address": "x" }),
        InvalidArgument,
        "ipv4_address: \"x\"",
    ),
    (
        || json!({ "network_mode": "bridge", "ipv4_address": "192.0.2.1" }),
        FailedPrecondition,
        "all requested IPs: 192.0.2.1",
    ),
    (
        || json!({ "extra_hosts": ["nowhere"] }),
        InvalidArgument,
        "extra_hosts[0]: \"nowhere\"",
    ),
    (
        || json!({ "dns_servers": ["one"] }),
        InvalidArgument,
        "dns_servers[0]: \"one\" is no IP address",
    ),
    (
        || json!({ "sysctl": [{ "vm.swappiness": "1" }] }),
        InvalidArgument,
        "sysctl.vm.swappiness: ",
    ),
    (
        || json!({ "network_mode": "none", "sysctl": [{ "net.no.such": "1" }] }),
        InvalidArgument,
        "cannot set sysctl net.no.such",
    ),
    (
        || json!({ "network_mode": "none", "sysctl": [{ "net.ipv4.ip_forward": "x" }] }),
        InvalidArgument,
        "net.ipv4.ip_forward",
    ),
    // Mounts and devices.
    (
        || json!({ "volumes": ["/etc:/host"] }),
        InvalidArgument,
        "volumes[0]: volumes are not enabled",
    ),
    (
        || json!({ "volumes": ["../../../etc:/x"] }),
        InvalidArgument,
        "volumes[0]: volumes are not enabled",
    ),
    (
        || json!({ "volumes": ["local/x:relative"] }),
        InvalidArgument,
        "volumes[0]: invalid mount path",
    ),
    (
        || json!({ "volumes": ["local/x"] }),
        InvalidArgument,
        "volumes[0]: invalid docker volume",
    ),
    (
        || json!({ "volumes": ["local/x:/x:sideways"] }),
        InvalidArgument,
        "volumes[0]: \"sideways\"",
    ),
    (
        || json!({ "volumes": ["local/x:/secrets"] }),
        InvalidArgument,
        "volumes[0]: Duplicate mount point",
    ),
    (
        || bind("local/none", ""),
        InvalidArgument,
        "mounts[0].source: ",
    ),
    (
        || bind("local", "sideways"),
        InvalidArgument,
        "mounts[0].bind_options.propagation: \"sideways\"",
    ),
    (
        || json!({ "mounts": [{ "type": "what", "target": "/x" }] }),
        InvalidArgument,
        "mounts[0].type: \"what\"",
    ),
    (
        || {
            let driver = json!({ "options": [{ "type": "tmpfs", "device": "tmpfs" }] });
            json!({ "mounts": [{ "target": "/x", "volume_options": { "driver_config": driver } }] })
        },
        InvalidArgument,
        "mounts[0].volume_options.driver_config.options: volumes are not enabled",
    ),
    (
        || json!({ "tmpfs": ["/x:size=much"] }),
        InvalidArgument,
        "tmpfs[0]: \"size=much\"",
    ),
    (
        || device_of("/dev/none", "rwm"),
        InvalidArgument,
        "devices[0].host_path: ",
    ),
    (
        || device_of("/etc/passwd", "rwm"),
        InvalidArgument,
        "devices[0].host_path: ",
    ),
    (
        || device_of("/dev/null", "x"),
        InvalidArgument,
        "devices[0].cgroup_permissions: \"x\"",
    ),
    // Limits.
    (
        || json!({ "ulimit": [{ "nofile": "9:1" }] }),
        InvalidArgument,
        "ulimit.nofile: the soft limit",
    ),
];

fn bind(source: &str, propagation: &str) -> Value {
    json!({ "mounts": [{
        "type": "bind", "source": source, "target": "/x", "bind_options": { "propagation": propagation }
    }] })
}

fn device_of(host_path: &str, permissions: &str) -> Value {
    json!({ "devices": [{ "host_path": host_path, "cgroup_permissions": permissions }] })
}
