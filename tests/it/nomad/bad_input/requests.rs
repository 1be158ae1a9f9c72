//! Fields of requests that are malformed or not allowed, and bytes that are no `config`, each with the expected error.

use super::*;

/// A change of a request, and the expected error.
type Request = (fn(&mut nomad::TaskConfig), Code, &'static str);

/// The bytes of an invalid `config`, and the expected error.
type Bytes = (fn() -> Vec<u8>, &'static str);

/// Requests with faults in the agent's own fields.
pub(super) const REQUESTS: [Request; 33] = [
    (
        |task| task.id.clear(),
        InvalidArgument,
        "task.id: it is missing",
    ),
    (
        |task| task.id = "a".repeat(4096),
        InvalidArgument,
        "task.id: it is longer than",
    ),
    (|task| task.id.push('\n'), InvalidArgument, "task.id: "),
    (
        |task| task.id = "network/x".into(),
        InvalidArgument,
        "task.id: \"network/x\" is no id of a task",
    ),
    (
        |task| task.name.clear(),
        InvalidArgument,
        "task.name: it is missing",
    ),
    (
        |task| task.name = "../up".into(),
        InvalidArgument,
        "task.name: \"../up\" names no directory",
    ),
    (
        |task| task.alloc_id.clear(),
        InvalidArgument,
        "task.alloc_id: it is missing",
    ),
    (
        |task| task.alloc_id = "../../up".into(),
        InvalidArgument,
        "task.alloc_id: \"../../up\" names no directory",
    ),
    (
        |task| task.alloc_dir = "relative".into(),
        InvalidArgument,
        "task.alloc_dir: \"relative\"",
    ),
    (
        |task| task.alloc_dir = "/no/such/alloc".into(),
        InvalidArgument,
        "task.alloc_dir: /no/such/alloc/",
    ),
    (
        |task| task.user = "no-such-user".into(),
        InvalidArgument,
        "user: \"no-such-user\" is not in /etc/passwd",
    ),
    (
        |task| task.user = "a:b:c".into(),
        InvalidArgument,
        "user: \"a\" is not in /etc/passwd",
    ),
    (
        |task| task.user = "0:no-such-group".into(),
        InvalidArgument,
        "group \"no-such-group\" is not in",
    ),
    (
        |task| task.user = "4294967296".into(),
        InvalidArgument,
        "user: 4294967296 is no user or group id",
    ),
    (
        |task| task.user = "-1".into(),
        InvalidArgument,
        "user: \"-1\" is not in /etc/passwd",
    ),
    (
        |task| task.user = "two words".into(),
        InvalidArgument,
        "task.user: \"two words\"",
    ),
    (
        |task| env(task, "A=B", "c"),
        InvalidArgument,
        "task.env: \"A=B\" is not a variable's name",
    ),
    (
        |task| env(task, "", "c"),
        InvalidArgument,
        "task.env: \"\" is not a variable's name",
    ),
    (
        |task| env(task, "A", "c\0"),
        InvalidArgument,
        "task.env[\"A\"]: it contains a NUL byte",
    ),
    (
        |task| env(task, "NOMAD_TASK_DIR", "local"),
        InvalidArgument,
        "task.env[\"NOMAD_TASK_DIR\"]: ",
    ),
    (
        |task| task.stdout_path = "fifo".into(),
        InvalidArgument,
        "task.stdout_path: \"fifo\"",
    ),
    (
        |task| task.stdout_path.push_str(".none"),
        FailedPrecondition,
        "the output of the task: ",
    ),
    (
        |task| task.stderr_path = task.alloc_dir.clone(),
        FailedPrecondition,
        "neither a FIFO nor a file",
    ),
    (
        |task| mount(task, "/x", "relative", ""),
        InvalidArgument,
        "task.mounts[0].host_path: ",
    ),
    (
        |task| mount(task, "relative", "/tmp", ""),
        InvalidArgument,
        "task.mounts[0].task_path: ",
    ),
    (
        |task| mount(task, "/x", "/no/such", ""),
        InvalidArgument,
        "mounts: source /no/such of /x cannot be used",
    ),
    (
        |task| mount(task, "/bin", "/etc/passwd", ""),
        InvalidArgument,
        "not a directory",
    ),
    (
        |task| mount(task, "/x", "/tmp", "sideways"),
        InvalidArgument,
        "task.mounts[0].propagation_mode: ",
    ),
    (
        |task| device(task, "/dev/none", "rwm"),
        InvalidArgument,
        "devices: /dev/none cannot be used",
    ),
    (
        |task| device(task, "/dev/null", "x"),
        InvalidArgument,
        "task.devices[0].cgroup_permissions: \"x\"",
    ),
    (
        |task| linux(task).cpuset_cpus = "one".into(),
        InvalidArgument,
        "cpuset_cpus: \"one\" is not a list",
    ),
    (
        |task| cpuset_cgroup(task, "/etc"),
        InvalidArgument,
        "cpuset_cgroup: \"/etc\" is no group",
    ),
    (
        |task| cpuset_cgroup(task, "/sys/fs/cgroup/../../etc/x.scope"),
        InvalidArgument,
        "cpuset_cgroup: ",
    ),
];

/// The same for the network of a group, for a task that requests none.
pub(super) const GROUPS: [Request; 3] = [
    (
        |task| group(task, 9, ""),
        InvalidArgument,
        "task.network_isolation_spec.mode: 9",
    ),
    (
        |task| group(task, 1, "netns"),
        InvalidArgument,
        "task.network_isolation_spec.path: \"netns\"",
    ),
    (
        |task| group(task, 1, "/no/such/netns"),
        FailedPrecondition,
        "network namespace /no/such/netns",
    ),
];

/// Bytes that no encoder writes.
pub(super) const BYTES: [Bytes; 14] = [
    (
        || vec![0xc1],
        "config: it is not MessagePack: byte 0 is 0xc1, which begins no value",
    ),
    (
        || b"\x81\xa5image\xc1".to_vec(),
        "byte 7 is 0xc1, which begins no value",
    ),
    (
        || b"\x81\xa5image".to_vec(),
        "config: it is not MessagePack: it is cut short after 7 bytes",
    ),
    (
        || b"\x80\x80".to_vec(),
        "config: it is not MessagePack: it ends after 1 of 2 bytes",
    ),
    (
        || [vec![0x91; 100_000], vec![0xc0]].concat(),
        "byte 16 is more than 16 lists and blocks deep",
    ),
    // They say that more follows than there is memory for.
    (
        || b"\xdd\xff\xff\xff\xff".to_vec(),
        "it is cut short after 5 bytes",
    ),
    (
        || b"\xdf\xff\xff\xff\xff".to_vec(),
        "it is cut short after 5 bytes",
    ),
    (
        || b"\xc6\xff\xff\xff\xff".to_vec(),
        "it is cut short after 5 bytes",
    ),
    (
        || vec![0xc0; 5 << 20],
        "config: it has 5242880 bytes, and may have 4194304",
    ),
    (
        || b"\x90".to_vec(),
        "config: a block is wanted here, not a list",
    ),
    (
        || b"\x81\x01\xc0".to_vec(),
        "config: a text is wanted here, not a number",
    ),
    (
        || b"\x81\xa5image\xa1\xff".to_vec(),
        "image: it is not UTF-8",
    ),
    (
        || b"\x81\xa5image\x07".to_vec(),
        "image: a text is wanted here, not a number",
    ),
    (
        || b"\x81\xa5image\xd4\x00\x00".to_vec(),
        "image: a text is wanted here, not an extension",
    ),
];

fn env(task: &mut nomad::TaskConfig, name: &str, value: &str) {
    task.env.insert(name.into(), value.into());
}

fn mount(task: &mut nomad::TaskConfig, task_path: &str, host_path: &str, propagation_mode: &str) {
    let task_path = task_path.into();
    let host_path = host_path.into();
    let propagation_mode = propagation_mode.into();
    task.mounts.push(nomad::Mount {
        task_path,
        host_path,
        propagation_mode,
        ..Default::default()
    });
}

fn device(task: &mut nomad::TaskConfig, host_path: &str, permissions: &str) {
    task.devices.push(nomad::Device {
        task_path: "/dev/x".into(),
        host_path: host_path.into(),
        cgroup_permissions: permissions.into(),
    });
}

fn group(task: &mut nomad::TaskConfig, mode: i32, path: &str) {
    task.network_isolation_spec = Some(nomad::NetworkIsolationSpec {
        mode,
        path: path.into(),
        ..Default::default()
    });
}

fn linux(task: &mut nomad::TaskConfig) -> &mut nomad::LinuxResources {
    task.resources
        .as_mut()
        .and_then(|resources| resources.linux_resources.as_mut())
        .expect("it has some")
}

fn cpuset_cgroup(task: &mut nomad::TaskConfig, path: &str) {
    linux(task).cpuset_cgroup = path.into();
}
