//! Limits, directories and files of tasks, as a task sees them.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

/// Maximum running time of a test's task.
const RUN: Duration = Duration::from_secs(60);

/// Runs a script until it exits, with more configuration; its output. `change` gets the request before it is
/// sent.
#[track_caller]
fn output(
    agent: &Agent,
    node: &TestNode,
    script: &str,
    more: &Value,
    change: impl FnOnce(&mut TaskSetup),
) -> String {
    let mut config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", format!("{script}\necho; echo done")],
        "network_mode": "host",
    });
    config
        .as_object_mut()
        .expect("it is one")
        .extend(more.as_object().expect("it is one").clone());
    let mut task = TaskSetup::new(node.root(), agent, "task", &config);
    change(&mut task);
    let driver = agent.driver();
    driver
        .start(&task.config)
        .unwrap_or_else(|status| panic!("{more}: {status}"));
    driver.wait(task.id(), RUN).expect("it ends");
    let printed = task.wait_stdout(|text| text.ends_with("done\n"));
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    printed.trim_end_matches("done\n").trim_end().to_owned()
}

#[test]
fn task_runs_in_the_agents_cgroups_with_job_limits() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let script = "cat /proc/self/cgroup; echo score $(cat /proc/self/oom_score_adj); cd /sys/fs/cgroup; \
                  echo memory $(cat memory/memory.limit_in_bytes .$(sed -n s/^0:://p /proc/self/cgroup)/memory.max)";
    let mut group = String::new();
    let printed = output(
        &agent,
        &node,
        script,
        &json!({ "cgroupns": "host" }),
        |task| {
            group = format!("{}.{}", task.config.alloc_id, task.config.name);
        },
    );
    assert!(printed.contains(&group), "{group}: {printed}");
    assert!(
        printed.contains(&format!("memory {}", 64 << 20)),
        "{printed}"
    );
    assert!(
        printed.contains("score 0"),
        "it has the score of its shim: {printed}"
    );
}

#[test]
fn task_without_agent_cgroup_runs_in_a_gateway_cgroup() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    for group in [
        "cpuset/never-made/share",
        "never-made.slice/share.slice/a.task.scope",
    ] {
        let script = "cat /proc/self/cgroup";
        let printed = output(
            &agent,
            &node,
            script,
            &json!({ "cgroupns": "host" }),
            |task| {
                let resources = task.config.resources.as_mut().expect("it has some");
                let linux = resources.linux_resources.as_mut().expect("it has some");
                linux.cpuset_cgroup = format!("/sys/fs/cgroup/{group}");
            },
        );
        assert!(
            printed.contains(":memory:/") || printed.contains("0::/"),
            "{printed}"
        );
        assert!(!printed.contains("never-made"), "{group}: {printed}");
    }
    node.assert_clean();
}

#[test]
fn task_over_its_memory_limit_is_reported_oom_killed() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let driver = agent.driver();
    let script = "x=a; while :; do x=$x$x; done";
    let config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", script], "network_mode": "host"
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    driver.start(&task.config).expect("it starts");
    let result = driver.wait(task.id(), RUN).expect("it ends");
    assert!(
        result.oom_killed && (result.exit_code != 0 || result.signal != 0),
        "{result:?}"
    );
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}

#[test]
fn task_has_its_directories_and_logs_are_read_only() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let script = "echo a >/alloc/data/a; echo b >/local/b; echo c >/secrets/c; touch /alloc/logs/x 2>&1 | tail -1; \
                  rm -f /alloc/logs/.task.stdout.fifo 2>&1 | tail -1; ls -A /alloc";
    let config = json!({
        "image": node.image(), "command": "sh", "args": ["-c", script], "network_mode": "host"
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    let driver = agent.driver();
    driver.start(&task.config).expect("it starts");
    assert_eq!(driver.wait(task.id(), RUN).expect("it ends").exit_code, 0);
    let printed = task.wait_stdout(|text| text.contains("tmp"));
    assert_eq!(
        printed.matches("Read-only file system").count(),
        2,
        "{printed}"
    );
    let read = |path: &str| fs::read_to_string(task.alloc_dir().join(path)).unwrap_or_default();
    assert_eq!(
        (
            read("alloc/data/a"),
            read("task/local/b"),
            read("task/secrets/c")
        ),
        ("a\n".into(), "b\n".into(), "c\n".into())
    );
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}

#[test]
fn agent_mounts_and_devices_are_present_in_the_task() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let volume = node.root().path().join("volume");
    fs::create_dir_all(&volume).expect("the root can be written");
    fs::write(volume.join("file"), "from outside").expect("the root can be written");
    let script = "cat /mnt/deep/volume/file; touch /mnt/deep/volume/x 2>&1; ls -l /dev/mine | cut -c1; echo x >/dev/mine && echo written";
    let printed = output(&agent, &node, script, &json!({}), |task| {
        task.config.mounts.push(nomad::Mount {
            task_path: "/mnt/deep/volume".into(),
            host_path: volume.to_str().expect("the path is ASCII").into(),
            readonly: true,
            ..Default::default()
        });
        task.config.devices.push(nomad::Device {
            task_path: "/dev/mine".into(),
            host_path: "/dev/null".into(),
            cgroup_permissions: "rwm".into(),
        });
    });
    assert!(
        printed.contains("from outside") && printed.contains("Read-only"),
        "{printed}"
    );
    assert!(printed.contains("c\nwritten"), "{printed}");
}

#[test]
fn common_task_options_are_visible_in_the_task() {
    let node = TestNode::shared();
    let agent = Agent::start(
        node.root(),
        &json!({ "allow_privileged": true, "allow_caps": ["ALL"], "volumes": { "enabled": true } }),
    );
    let check = |script: &str, more: Value, expected: &str| {
        let printed = output(&agent, &node, script, &more, |_| {});
        assert!(
            printed.contains(expected),
            "{more}: {printed:?} has no {expected:?}"
        );
    };
    check("pwd", json!({ "work_dir": "/usr" }), "/usr");
    check(
        "hostname",
        json!({ "network_mode": "none", "hostname": "named" }),
        "named",
    );
    check(
        "grep CapBnd /proc/self/status",
        json!({}),
        "00000000a80425fb",
    );
    check(
        "grep CapBnd /proc/self/status",
        json!({ "cap_drop": ["ALL"] }),
        "0000000000000000",
    );
    check(
        "grep CapBnd /proc/self/status",
        json!({ "cap_drop": ["ALL"], "cap_add": ["NET_RAW"] }),
        "0000000000002000",
    );
    check(
        "grep NoNewPrivs /proc/self/status",
        json!({ "security_opt": ["no-new-privileges"] }),
        "1",
    );
    check("grep Seccomp: /proc/self/status", json!({}), "2");
    check(
        "grep Seccomp: /proc/self/status",
        json!({ "privileged": true }),
        "0",
    );
    check(
        "echo score $(cat /proc/self/oom_score_adj)",
        json!({}),
        "score 0",
    );
    check(
        "echo score $(cat /proc/self/oom_score_adj)",
        json!({ "oom_score_adj": 300 }),
        "score 300",
    );
    check_limits_and_mounts(&node, &check);
    check_names_and_namespaces(&check);
}

/// Checks the options of limits, file systems and mounts.
fn check_limits_and_mounts(node: &TestNode, check: &dyn Fn(&str, Value, &str)) {
    check(
        "touch /x 2>&1",
        json!({ "readonly_rootfs": true }),
        "Read-only",
    );
    check(
        "ulimit -n",
        json!({ "ulimit": { "nofile": "1234:2345" } }),
        "1234",
    );
    check(
        "df -k /dev/shm | tail -1",
        json!({ "shm_size": 2_097_152 }),
        "2048",
    );
    check(
        "df -k /scratch | tail -1; touch /scratch/x && echo ok",
        json!({ "tmpfs": ["/scratch:size=1m"] }),
        "ok",
    );
    check(
        "cat /v/file; touch /v/x 2>&1",
        json!({ "volumes": [format!("{}:/v:ro", volume(node))] }),
        "inside",
    );
    check(
        "cat /m/file",
        json!({ "mount": [{ "type": "bind", "source": volume(node), "target": "/m" }] }),
        "inside",
    );
}

/// Checks the options of processes, users, names and the network.
fn check_names_and_namespaces(check: &dyn Fn(&str, Value, &str)) {
    let first = fs::read_to_string("/proc/1/comm").expect("the kernel has it");
    check(
        "cat /proc/1/comm",
        json!({ "pid_mode": "host", "privileged": true }),
        first.trim(),
    );
    check("id -G", json!({ "group_add": ["4321"] }), "4321");
    check(
        "cat /etc/hosts",
        json!({ "network_mode": "none", "extra_hosts": ["db:10.1.2.3"] }),
        "10.1.2.3",
    );
    check(
        "cat /etc/resolv.conf",
        json!({ "network_mode": "none", "dns_servers": ["10.9.8.7"] }),
        "10.9.8.7",
    );
    check(
        "cat /proc/sys/net/core/somaxconn",
        json!({ "network_mode": "none", "sysctl": { "net.core.somaxconn": "777" } }),
        "777",
    );
}

#[test]
fn default_capabilities_match_nomads_docker_driver() {
    let node = TestNode::shared();
    let agent = Agent::start(node.root(), &json!({}));
    let printed = output(
        &agent,
        &node,
        "grep CapBnd /proc/self/status",
        &json!({}),
        |_| {},
    );
    assert!(printed.contains("00000000a80405fb"), "{printed}");
}

fn volume(node: &TestNode) -> String {
    let dir = node.root().path().join("shared-volume");
    fs::create_dir_all(&dir).expect("the root can be written");
    fs::write(dir.join("file"), "inside").expect("the root can be written");
    dir.to_str().expect("the path is ASCII").to_owned()
}

#[test]
fn unsupported_task_options_are_rejected_by_name_and_leave_nothing_behind() {
    let node = TestNode::start();
    let agent = Agent::start(node.root(), &json!({}));
    let refused = |more: Value, change: &dyn Fn(&mut nomad::TaskConfig), expected: &str| {
        assert_refused(&node, &agent, &more, change, expected);
    };
    let as_it_is: &dyn Fn(&mut nomad::TaskConfig) = &|_| {};
    refused(json!({ "privileged": true }), as_it_is, "privileged");
    refused(
        json!({ "cap_add": ["SYS_ADMIN"] }),
        as_it_is,
        "driver does not allow the following capabilities",
    );
    refused(json!({ "pid_mode": "host" }), as_it_is, "pid_mode");
    refused(json!({ "volumes": ["/etc:/x"] }), as_it_is, "volumes");
    refused(json!({ "volumes": ["../../../etc:/x"] }), as_it_is, "etc");
    refused(json!({ "image": "" }), as_it_is, "image");
    refused(json!({ "image": "Not An Image" }), as_it_is, "Not An Image");
    refused(
        json!({ "image": node.registry().reference("library/none:1") }),
        as_it_is,
        "library/none",
    );
    refused(
        json!({ "image_pull_timeout": "never" }),
        as_it_is,
        "image_pull_timeout",
    );
    refused(json!({ "runtime": "no-such" }), as_it_is, "no-such");
    refused(json!({ "ulimit": { "nofile": "x" } }), as_it_is, "ulimit");
    refused(
        json!({ "command": "/no/such/program" }),
        as_it_is,
        "/no/such/program",
    );
    refused(
        json!({}),
        &|task| task.user = "nobody-here".into(),
        "nobody-here",
    );
    refused(json!({}), &|task| task.id = String::new(), "id");
    refused(
        json!({}),
        &|task| task.msgpack_driver_config = vec![0x81],
        "config",
    );
    refused(
        json!({}),
        &|task| {
            task.mounts.push(nomad::Mount {
                task_path: "/x".into(),
                host_path: "/no/such".into(),
                ..Default::default()
            })
        },
        "/no/such",
    );
}

/// A task with one more option is refused with a text, and leaves nothing behind.
fn assert_refused(
    node: &TestNode,
    agent: &Agent,
    more: &Value,
    change: &dyn Fn(&mut nomad::TaskConfig),
    expected: &str,
) {
    let mut config = json!({ "image": node.image(), "command": "true", "network_mode": "host" });
    config
        .as_object_mut()
        .expect("it is one")
        .extend(more.as_object().expect("it is one").clone());
    let mut task = TaskSetup::new(node.root(), agent, "task", &config);
    change(&mut task.config);
    let status = agent.driver().start(&task.config).err();
    let status = status.unwrap_or_else(|| panic!("{more} is taken"));
    assert!(
        status.message().contains(expected),
        "{more}: {status} does not name {expected:?}"
    );
    // An agent destroys what it could not start, with what it has.
    agent
        .driver()
        .destroy(task.id(), true)
        .expect("what is not there is destroyed");
    task.remove_cgroups();
    drop(task);
    let sweep = node.leak_scan();
    assert!(
        sweep.is_clean(),
        "{more}: {status} left {:?}",
        sweep.findings
    );
}
