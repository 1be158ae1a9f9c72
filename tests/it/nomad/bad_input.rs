//! Requests that are malformed or cannot be satisfied: each is refused at once with a clear error, and leaves
//! nothing behind.

use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};
use tonic::Code;

use super::shell;

use Code::{FailedPrecondition, InvalidArgument, NotFound, Unimplemented};

/// An addition to a job's `config`, and the expected error.
type Config = (fn() -> Value, Code, &'static str);

/// A change of a request, and the expected error.
type Request = (fn(&mut nomad::TaskConfig), Code, &'static str);

/// The bytes of an invalid `config`, and the expected error.
type Bytes = (fn() -> Vec<u8>, &'static str);

/// Values in a job that are malformed, do not exist, or are not allowed. The other keys are covered by the
/// unit tests of the frontend.
const CONFIGS: [Config; 58] = [
    // Images.
    (|| json!({ "image": "" }), InvalidArgument, "image: image name required"),
    (|| json!({ "image": "two words" }), InvalidArgument, "image: \"two words\" names no image"),
    (|| json!({ "image": "x/UPPER:1" }), InvalidArgument, "x/UPPER:1"),
    (|| json!({ "image": "x:1@sha256:short" }), InvalidArgument, "x:1@sha256:short"),
    (|| json!({ "image": "x:bad tag" }), InvalidArgument, "image: \"x:bad tag\" names no image"),
    (|| json!({ "image": "x:".to_owned() + &"y".repeat(129) }), InvalidArgument, "yyy"),
    (|| json!({ "image": "127.0.0.1:99999/x:1" }), InvalidArgument, "127.0.0.1:99999/x:1"),
    (|| json!({ "load": "../x.tar" }), InvalidArgument, "load: \"../x.tar\" is not in the task's local"),
    (|| json!({ "load": "none.tar" }), InvalidArgument, "load: none.tar cannot be read in the task's local"),
    (
        || json!({ "load": "." }),
        InvalidArgument,
        "load: . cannot be read in the task's local directory: it is no regular file",
    ),
    (|| json!({ "image_pull_timeout": "soon" }), InvalidArgument, "image_pull_timeout: \"soon\""),
    // What runs.
    (|| json!({ "command": "a\0b" }), InvalidArgument, "command: it contains a NUL byte"),
    (|| json!({ "args": ["a\0b"] }), InvalidArgument, "args[0]: it contains a NUL byte"),
    (|| json!({ "command": "/no/such" }), InvalidArgument, "exec: \"/no/such\""),
    (|| json!({ "entrypoint": ["/etc"] }), InvalidArgument, "exec: \"/etc\""),
    (|| json!({ "work_dir": "relative" }), InvalidArgument, "work_dir: \"relative\" is not an absolute"),
    (|| json!({ "work_dir": "/etc/passwd" }), InvalidArgument, "mkdir /etc/passwd: not a directory"),
    (|| json!({ "hostname": "a b" }), InvalidArgument, "hostname: \"a b\" is no host name"),
    (|| json!({ "runtime": "no-such-runtime" }), InvalidArgument, "runtime: requested runtime"),
    (|| json!({ "runtime": "gone" }), InvalidArgument, "gone"),
    (
        || json!({ "group_add": ["no-such-group"] }),
        InvalidArgument,
        "group \"no-such-group\" is not in /etc/group",
    ),
    (|| json!({ "group_add": ["a b"] }), InvalidArgument, "group_add[0]: \"a b\""),
    // What it may.
    (|| json!({ "privileged": true }), InvalidArgument, "allow_privileged"),
    (|| json!({ "cap_add": ["SYS_ADMIN"] }), InvalidArgument, "capabilities: sys_admin"),
    (|| json!({ "cap_drop": ["a b"] }), InvalidArgument, "cap_drop[0]: \"a b\""),
    (|| json!({ "pid_mode": "host" }), InvalidArgument, "pid_mode: \"host\" is not allowed"),
    (|| json!({ "ipc_mode": "container:x" }), Unimplemented, "ipc_mode: \"container:x\""),
    (|| json!({ "cgroupns": "sideways" }), InvalidArgument, "cgroupns: \"sideways\""),
    (|| json!({ "security_opt": ["seccomp=x"] }), InvalidArgument, "security_opt[0]: \"x\""),
    (|| json!({ "security_opt": ["seccomp=/no/such"] }), InvalidArgument, "profile /no/such cannot be read"),
    (
        || json!({ "security_opt": ["apparmor=no-such"] }),
        FailedPrecondition,
        "AppArmor profile no-such cannot be used",
    ),
    (|| json!({ "security_opt": ["none"] }), InvalidArgument, "security_opt[0]: \"none\""),
    // Networks.
    (|| json!({ "network_mode": "overlay" }), Unimplemented, "network_mode: \"overlay\""),
    (|| json!({ "network_mode": "container:x" }), Unimplemented, "network_mode: \"container:x\""),
    (|| json!({ "ports": ["http"] }), InvalidArgument, "ports[0]: Port \"http\" not found"),
    (|| json!({ "mac_address": "02:42:00:00:00:01" }), InvalidArgument, "mac_address: "),
    (|| json!({ "network_mode": "bridge", "mac_address": "x" }), InvalidArgument, "mac_address"),
    (|| json!({ "network_mode": "bridge", "ipv4_address": "x" }), InvalidArgument, "ipv4_address: \"x\""),
    (
        || json!({ "network_mode": "bridge", "ipv4_address": "192.0.2.1" }),
        FailedPrecondition,
        "all requested IPs: 192.0.2.1",
    ),
    (|| json!({ "extra_hosts": ["nowhere"] }), InvalidArgument, "extra_hosts[0]: \"nowhere\""),
    (|| json!({ "dns_servers": ["one"] }), InvalidArgument, "dns_servers[0]: \"one\" is no IP address"),
    (|| json!({ "sysctl": [{ "vm.swappiness": "1" }] }), InvalidArgument, "sysctl.vm.swappiness: "),
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
    (|| json!({ "volumes": ["/etc:/host"] }), InvalidArgument, "volumes[0]: volumes are not enabled"),
    (|| json!({ "volumes": ["../../../etc:/x"] }), InvalidArgument, "volumes[0]: volumes are not enabled"),
    (|| json!({ "volumes": ["local/x:relative"] }), InvalidArgument, "volumes[0]: invalid mount path"),
    (|| json!({ "volumes": ["local/x"] }), InvalidArgument, "volumes[0]: invalid docker volume"),
    (|| json!({ "volumes": ["local/x:/x:sideways"] }), InvalidArgument, "volumes[0]: \"sideways\""),
    (|| json!({ "volumes": ["local/x:/secrets"] }), InvalidArgument, "volumes[0]: Duplicate mount point"),
    (|| bind("local/none", ""), InvalidArgument, "mounts[0].source: "),
    (|| bind("local", "sideways"), InvalidArgument, "mounts[0].bind_options.propagation: \"sideways\""),
    (
        || json!({ "mounts": [{ "type": "what", "target": "/x" }] }),
        InvalidArgument,
        "mounts[0].type: \"what\"",
    ),
    (|| json!({ "tmpfs": ["/x:size=much"] }), InvalidArgument, "tmpfs[0]: \"size=much\""),
    (|| device_of("/dev/none", "rwm"), InvalidArgument, "devices: /dev/none cannot be used"),
    (|| device_of("/etc/passwd", "rwm"), InvalidArgument, "/etc/passwd is neither a device nor a directory"),
    (|| device_of("/dev/null", "x"), InvalidArgument, "devices[0].cgroup_permissions: \"x\""),
    // Limits.
    (|| json!({ "ulimit": [{ "nofile": "9:1" }] }), InvalidArgument, "ulimit.nofile: the soft limit"),
];

/// Requests with faults in the agent's own fields.
const REQUESTS: [Request; 33] = [
    (|task| task.id.clear(), InvalidArgument, "task.id: it is missing"),
    (|task| task.id = "a".repeat(4096), InvalidArgument, "task.id: it is longer than"),
    (|task| task.id.push('\n'), InvalidArgument, "task.id: "),
    (|task| task.id = "network/x".into(), InvalidArgument, "task.id: \"network/x\" is no id of a task"),
    (|task| task.name.clear(), InvalidArgument, "task.name: it is missing"),
    (|task| task.name = "../up".into(), InvalidArgument, "task.name: \"../up\" names no directory"),
    (|task| task.alloc_id.clear(), InvalidArgument, "task.alloc_id: it is missing"),
    (
        |task| task.alloc_id = "../../up".into(),
        InvalidArgument,
        "task.alloc_id: \"../../up\" names no directory",
    ),
    (|task| task.alloc_dir = "relative".into(), InvalidArgument, "task.alloc_dir: \"relative\""),
    (|task| task.alloc_dir = "/no/such/alloc".into(), InvalidArgument, "task.alloc_dir: /no/such/alloc/"),
    (
        |task| task.user = "no-such-user".into(),
        InvalidArgument,
        "user: \"no-such-user\" is not in /etc/passwd",
    ),
    (|task| task.user = "a:b:c".into(), InvalidArgument, "user: \"a\" is not in /etc/passwd"),
    (|task| task.user = "0:no-such-group".into(), InvalidArgument, "group \"no-such-group\" is not in"),
    (|task| task.user = "4294967296".into(), InvalidArgument, "user: 4294967296 is no user or group id"),
    (|task| task.user = "-1".into(), InvalidArgument, "user: \"-1\" is not in /etc/passwd"),
    (|task| task.user = "two words".into(), InvalidArgument, "task.user: \"two words\""),
    (|task| env(task, "A=B", "c"), InvalidArgument, "task.env: \"A=B\" is not a variable's name"),
    (|task| env(task, "", "c"), InvalidArgument, "task.env: \"\" is not a variable's name"),
    (|task| env(task, "A", "c\0"), InvalidArgument, "task.env[\"A\"]: it contains a NUL byte"),
    (|task| env(task, "NOMAD_TASK_DIR", "local"), InvalidArgument, "task.env[\"NOMAD_TASK_DIR\"]: "),
    (|task| task.stdout_path = "fifo".into(), InvalidArgument, "task.stdout_path: \"fifo\""),
    (|task| task.stdout_path.push_str(".none"), FailedPrecondition, "the output of the task: "),
    (|task| task.stderr_path = task.alloc_dir.clone(), FailedPrecondition, "neither a FIFO nor a file"),
    (|task| mount(task, "/x", "relative", ""), InvalidArgument, "task.mounts[0].host_path: "),
    (|task| mount(task, "relative", "/tmp", ""), InvalidArgument, "task.mounts[0].task_path: "),
    (
        |task| mount(task, "/x", "/no/such", ""),
        InvalidArgument,
        "mounts: source /no/such of /x cannot be used",
    ),
    (|task| mount(task, "/bin", "/etc/passwd", ""), InvalidArgument, "not a directory"),
    (|task| mount(task, "/x", "/tmp", "sideways"), InvalidArgument, "task.mounts[0].propagation_mode: "),
    (|task| device(task, "/dev/none", "rwm"), InvalidArgument, "devices: /dev/none cannot be used"),
    (|task| device(task, "/dev/null", "x"), InvalidArgument, "task.devices[0].cgroup_permissions: \"x\""),
    (|task| linux(task).cpuset_cpus = "one".into(), InvalidArgument, "cpuset_cpus: \"one\" is not a list"),
    (|task| cpuset_cgroup(task, "/etc"), InvalidArgument, "cpuset_cgroup: \"/etc\" is no group"),
    (|task| cpuset_cgroup(task, "/sys/fs/cgroup/../../etc/x.scope"), InvalidArgument, "cpuset_cgroup: "),
];

/// The same for the network of a group, for a task that requests none.
const GROUPS: [Request; 3] = [
    (|task| group(task, 9, ""), InvalidArgument, "task.network_isolation_spec.mode: 9"),
    (|task| group(task, 1, "netns"), InvalidArgument, "task.network_isolation_spec.path: \"netns\""),
    (|task| group(task, 1, "/no/such/netns"), FailedPrecondition, "network namespace /no/such/netns"),
];

/// Bytes that no encoder writes.
const BYTES: [Bytes; 14] = [
    (|| vec![0xc1], "config: it is not MessagePack: byte 0 is 0xc1, which begins no value"),
    (|| b"\x81\xa5image\xc1".to_vec(), "byte 7 is 0xc1, which begins no value"),
    (|| b"\x81\xa5image".to_vec(), "config: it is not MessagePack: it is cut short after 7 bytes"),
    (|| b"\x80\x80".to_vec(), "config: it is not MessagePack: it ends after 1 of 2 bytes"),
    (|| [vec![0x91; 100_000], vec![0xc0]].concat(), "byte 16 is more than 16 lists and blocks deep"),
    // They say that more follows than there is memory for.
    (|| b"\xdd\xff\xff\xff\xff".to_vec(), "it is cut short after 5 bytes"),
    (|| b"\xdf\xff\xff\xff\xff".to_vec(), "it is cut short after 5 bytes"),
    (|| b"\xc6\xff\xff\xff\xff".to_vec(), "it is cut short after 5 bytes"),
    (|| vec![0xc0; 5 << 20], "config: it has 5242880 bytes, and may have 4194304"),
    (|| b"\x90".to_vec(), "config: a block is wanted here, not a list"),
    (|| b"\x81\x01\xc0".to_vec(), "config: a text is wanted here, not a number"),
    (|| b"\x81\xa5image\xa1\xff".to_vec(), "image: it is not UTF-8"),
    (|| b"\x81\xa5image\x07".to_vec(), "image: a text is wanted here, not a number"),
    (|| b"\x81\xa5image\xd4\x00\x00".to_vec(), "image: a text is wanted here, not an extension"),
];

fn bind(source: &str, propagation: &str) -> Value {
    json!({ "mounts": [{
        "type": "bind", "source": source, "target": "/x", "bind_options": { "propagation": propagation }
    }] })
}

fn device_of(host_path: &str, permissions: &str) -> Value {
    json!({ "devices": [{ "host_path": host_path, "cgroup_permissions": permissions }] })
}

fn env(task: &mut nomad::TaskConfig, name: &str, value: &str) {
    task.env.insert(name.into(), value.into());
}

fn mount(task: &mut nomad::TaskConfig, task_path: &str, host_path: &str, propagation_mode: &str) {
    let task_path = task_path.into();
    let host_path = host_path.into();
    let propagation_mode = propagation_mode.into();
    task.mounts.push(nomad::Mount { task_path, host_path, propagation_mode, ..Default::default() });
}

fn device(task: &mut nomad::TaskConfig, host_path: &str, permissions: &str) {
    task.devices.push(nomad::Device {
        task_path: "/dev/x".into(),
        host_path: host_path.into(),
        cgroup_permissions: permissions.into(),
    });
}

fn group(task: &mut nomad::TaskConfig, mode: i32, path: &str) {
    task.network_isolation_spec =
        Some(nomad::NetworkIsolationSpec { mode, path: path.into(), ..Default::default() });
}

fn linux(task: &mut nomad::TaskConfig) -> &mut nomad::LinuxResources {
    task.resources.as_mut().and_then(|resources| resources.linux_resources.as_mut()).expect("it has some")
}

fn cpuset_cgroup(task: &mut nomad::TaskConfig, path: &str) {
    linux(task).cpuset_cgroup = path.into();
}

/// Starts a task that must be rejected; returns what is wrong with the error, if anything.
fn refused(agent: &Agent, mut task: TaskSetup, code: Code, text: &str) -> Option<String> {
    let driver = agent.driver();
    let status = match driver.start(&task.config) {
        Ok(_) => {
            driver.destroy(task.id(), true).expect("it can be destroyed");
            task.remove_cgroups();
            return Some(format!("{text:?}: it is started"));
        }
        Err(status) => status,
    };
    // Fails if something is in it.
    task.remove_cgroups();
    let left = driver.inspect(task.id()).is_ok();
    let actual = status.code();
    let message = status.message();
    // An error that a retry cannot repair is not marked as recoverable, so that an agent does not retry.
    let again = !status.details().is_empty();
    let right = actual == code && message.contains(text) && again == (code == FailedPrecondition) && !left;
    (!right).then(|| format!("{text:?}: {actual:?}, again {again}, left {left}: {message}"))
}

#[test]
fn malformed_task_fields_are_rejected_by_name_and_leave_nothing_behind() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({ "allow_runtimes": ["runc", "gone"] }));
    let task = |more: Value| {
        let mut config = json!({
            "image": node.image(), "command": "sh", "args": ["-c", "sleep 1000"], "network_mode": "host"
        });
        config.as_object_mut().expect("it is one").extend(more.as_object().expect("it is one").clone());
        TaskSetup::new(node.root(), &agent, "task", &config)
    };
    let mut wrong = Vec::new();
    let none = node.registry().reference("library/none:1");
    let text = format!("Error: image {none} not found");
    wrong.extend(refused(&agent, task(json!({ "image": none })), NotFound, &text));
    for (config, code, text) in CONFIGS {
        wrong.extend(refused(&agent, task(config()), code, text));
    }
    for (change, code, text) in REQUESTS {
        let mut task = shell(&node, &agent, "sleep 1000");
        change(&mut task.config);
        wrong.extend(refused(&agent, task, code, text));
    }
    for (change, code, text) in GROUPS {
        let config = json!({ "image": node.image(), "command": "true" });
        let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
        change(&mut task.config);
        wrong.extend(refused(&agent, task, code, text));
    }
    for (bytes, text) in BYTES {
        let mut task = shell(&node, &agent, "sleep 1000");
        task.config.msgpack_driver_config = bytes();
        wrong.extend(refused(&agent, task, InvalidArgument, text));
    }
    assert!(wrong.is_empty(), "refused in another way:\n{}", wrong.join("\n"));
    node.assert_clean();
}

#[test]
fn calls_for_unknown_tasks_are_not_found_or_no_ops() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let long = "x".repeat(1 << 20);
    let unread = "a/b\n\0";
    for id in ["", "3a7c/web/0123abcd", "../../etc", "network/x", "a b/ü/0123abcd", unread, &long] {
        let code =
            |status: tonic::Status| (status.code(), status.message().contains("task not found for given id"));
        let unknown = Err((NotFound, true));
        assert_eq!(driver.wait(id, Duration::from_secs(20)).map(drop).map_err(code), unknown);
        assert_eq!(driver.inspect(id).map(drop).map_err(code), unknown);
        assert_eq!(driver.signal(id, "SIGHUP").map_err(code), unknown);
        assert_eq!(driver.exec(id, &["true"], Duration::from_secs(5)).map(drop).map_err(code), unknown);
        assert_eq!(driver.exec_streaming(id, &["true"], false, b"", true).map(drop).map_err(code), unknown);
        assert_eq!(driver.stats(id, Duration::ZERO).map(drop).map_err(code), unknown);
        let handle = nomad::TaskHandle {
            config: Some(nomad::TaskConfig { id: id.to_owned(), ..Default::default() }),
            ..Default::default()
        };
        assert_eq!(driver.recover(&handle).map_err(code), unknown);
        driver.stop(id, Duration::ZERO, "").expect("what is gone is stopped");
        driver.destroy(id, false).expect("what is gone is destroyed");
    }
    for (id, hostname) in
        [("", "host"), (unread, "host"), (&long, "host"), ("3a7c", "two words"), ("3a7c", "a\n")]
    {
        let refused = driver.create_network(id, hostname).expect_err("nobody could use it");
        assert_eq!(refused.code(), InvalidArgument, "{refused}");
    }
    driver
        .destroy_network("3a7c", nomad::NetworkIsolationSpec::default())
        .expect("what is gone is destroyed");
}

#[test]
fn invalid_signals_and_commands_do_not_affect_a_task_of_any_name() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let mut task = shell(&node, &agent, "echo begun; exec sleep 1000");
    task.config.id = format!("{}/../we.b/ü ✓/0123abcd", task.config.alloc_id);
    driver.start(&task.config).expect("it is as good a name as any");
    task.wait_stdout(|text| text == "begun\n");
    let unsaid = driver.signal(task.id(), "").expect_err("which signal?");
    assert!(unsaid.message().contains("failed to parse signal: \"\" is neither"), "{unsaid}");
    for signal in ["SIGNONE", "SIG", "0", "65", "-1", "1e1", "SIGRTMIN+31", "HUP TERM", "TERM\0"] {
        let status = driver.signal(task.id(), signal).expect_err("it is no signal");
        assert_eq!(status.code(), InvalidArgument, "{signal:?}: {status}");
        let stopped = driver.stop(task.id(), Duration::ZERO, signal).expect_err("it is no signal");
        assert!(stopped.message().contains("failed to parse signal"), "{signal:?}: {stopped}");
    }
    let nothing = driver.exec(task.id(), &[], Duration::from_secs(5)).expect_err("it is no command");
    assert_eq!(nothing.code(), InvalidArgument, "{nothing}");
    let nothing = driver.exec_streaming(task.id(), &[], false, b"", true).expect_err("it is no command");
    assert_eq!(nothing.code(), InvalidArgument, "{nothing}");
    let inspected = driver.inspect(task.id()).expect("it is there").task.expect("it has a state");
    assert_eq!(inspected.state(), nomad::TaskState::Running);
    driver.destroy(task.id(), true).expect("it can be destroyed");
    assert_eq!(driver.inspect(task.id()).map(drop).map_err(|status| status.code()), Err(NotFound));
    task.remove_cgroups();
}

#[test]
fn task_disk_quota_is_applied_or_rejected_by_key() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let config = json!({
        "image": node.image(), "command": "dd", "args": ["if=/dev/zero", "of=/big", "bs=1M", "count=64"],
        "network_mode": "host", "storage_opt": [{ "size": "16M" }]
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    match driver.start(&task.config) {
        // The kernel has project quotas, and the disk is mounted with them.
        Ok(_) => {
            let end = driver.wait(task.id(), Duration::from_secs(60)).expect("it ends");
            assert_ne!(end.exit_code, 0, "it has written four times what it may");
            driver.destroy(task.id(), true).expect("it can be destroyed");
        }
        Err(status) => {
            assert_eq!(status.code(), FailedPrecondition, "{status}");
            let text = status.message();
            assert!(text.contains("storage_opt.size: ") && text.contains("prjquota"), "{status}");
            assert_eq!(driver.inspect(task.id()).map(drop).map_err(|status| status.code()), Err(NotFound));
        }
    }
    task.remove_cgroups();
}
