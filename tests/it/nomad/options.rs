//! Options of Nomad's docker driver, many at once, checked from inside a task.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::{Agent, TaskSetup};

/// Maximum running time of a test's task.
const RUN: Duration = Duration::from_secs(60);

/// An agent whose configuration allows privileged options.
fn permissive_agent(node: &TestNode) -> Agent {
    let config = json!({
        "allow_privileged": true, "allow_caps": ["ALL"], "volumes": { "enabled": true }, "pids_limit": 500,
        "allowed_modes": { "ipc": ["host"], "uts": ["host"], "userns": ["host"] }, "oom_score_adj": 11,
    });
    Agent::start(node.root(), &config)
}

/// Runs a task with these options and returns the output of each probe, a shell command, by its name.
#[track_caller]
fn observe(
    node: &TestNode,
    agent: &Agent,
    options: Value,
    probes: &[(&str, &str)],
) -> BTreeMap<String, String> {
    let mut task = TaskSetup::new(
        node.root(),
        agent,
        "task",
        &json!({ "image": node.image() }),
    );
    fs::create_dir_all(task.task_dir().join("local/given")).expect("the root can be written");
    fs::write(task.task_dir().join("local/given/file"), "given").expect("the root can be written");
    let lines: Vec<String> = probes
        .iter()
        .map(|(name, command)| format!("echo \"{name}=$({{ {command}; }} 2>&1)\""))
        .collect();
    let mut config = json!({ "image": node.image(), "command": "/bin/sh", "args": ["-c", lines.join("; ") + "; echo end"] });
    config
        .as_object_mut()
        .expect("it is one")
        .extend(options.as_object().expect("it is one").clone());
    task.configure(agent, &config);
    let driver = agent.driver();
    driver
        .start(&task.config)
        .unwrap_or_else(|status| panic!("{options}: {status}"));
    let printed = task.wait_stdout(|text| text.trim_end().ends_with("end"));
    driver.wait(task.id(), RUN).expect("it ends");
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
    // A terminal ends lines with a carriage return too.
    let pair = |line: &str| {
        line.trim_end()
            .split_once('=')
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    printed.lines().filter_map(pair).collect()
}

/// Checks the output of probes, by name.
#[track_caller]
fn check(observed: &BTreeMap<String, String>, expected: &[(&str, &str)]) {
    for (name, value) in expected {
        let found = observed.get(*name).map(String::as_str);
        assert_eq!(found, Some(*value), "{name} of {observed:?}");
    }
}

/// Names of what the task looks at, and the commands that do it.
const PROCESS_PROBES: [(&str, &str); 20] = [
    ("cwd", "pwd"),
    ("first", "tr '\\0' ' ' </proc/1/cmdline | cut -d' ' -f1"),
    ("name", "hostname"),
    ("mac", "cat /sys/class/net/eth0/address"),
    ("groups", "id -G"),
    ("db", "grep -w db /etc/hosts | cut -f1"),
    ("host", "grep -c host.docker.internal /etc/hosts"),
    ("dns", "tr '\\n' ';' </etc/resolv.conf"),
    ("somaxconn", "cat /proc/sys/net/core/somaxconn"),
    ("ports", "cat /proc/sys/net/ipv4/ip_unprivileged_port_start"),
    ("msgmax", "cat /proc/sys/kernel/msgmax"),
    ("soft", "ulimit -Sn"),
    ("hard", "ulimit -Hn"),
    ("core", "ulimit -c"),
    (
        "shm",
        "df -k /dev/shm | tail -1 | tr -s ' ' | cut -d' ' -f2",
    ),
    ("gain", "grep NoNewPrivs /proc/self/status | tr -dc 0-9"),
    ("filter", "grep Seccomp: /proc/self/status | tr -dc 0-9"),
    ("caps", "grep CapBnd /proc/self/status | cut -f2"),
    ("hidden", "grep -c ' /proc/kcore ' /proc/self/mountinfo"),
    (
        "groups_root",
        "grep -c '^0::/$\\|:/$' /proc/self/cgroup | head -1",
    ),
];

/// The values that must be seen.
const PROCESS_VALUES: [(&str, &str); 17] = [
    ("cwd", "/usr"),
    ("first", "/dev/init"),
    ("name", "shop"),
    ("mac", "02:42:ac:11:77:01"),
    ("db", "10.1.2.3"),
    ("host", "1"),
    ("somaxconn", "777"),
    ("ports", "0"),
    ("msgmax", "9999"),
    ("soft", "1234"),
    ("hard", "2345"),
    ("core", "0"),
    ("shm", "2048"),
    ("gain", "1"),
    ("filter", "0"),
    ("caps", "0000000000002001"),
    ("hidden", "0"),
];

#[test]
fn task_on_the_bridge_gets_the_requested_names_and_process_options() {
    let node = TestNode::shared();
    let agent = permissive_agent(&node);
    let options = json!({
        "entrypoint": ["/bin/sh", "-c"], "command": "exec \"$@\"", "work_dir": "/usr", "init": true,
        "hostname": "shop", "mac_address": "02:42:ac:11:77:01", "group_add": ["daemon", "4321"],
        "extra_hosts": ["db:10.1.2.3", "host.docker.internal:host-gateway"],
        "dns_servers": ["10.9.8.7"], "dns_search_domains": ["shop.test"], "dns_options": ["ndots:3"],
        "sysctl": { "net.core.somaxconn": "777", "kernel.msgmax": "9999" },
        "ulimit": { "nofile": "1234:2345", "core": "0" }, "shm_size": 2_097_152,
        "security_opt": ["no-new-privileges", "seccomp=unconfined", "systempaths=unconfined"],
        "cap_drop": ["ALL"], "cap_add": ["CAP_NET_RAW", "chown"], "cgroupns": "private",
        "labels": { "team": "a" },
    });
    let mut options = options;
    // The job's entrypoint, command and arguments are one command line: `sh -c 'exec "$@"'` with the arguments.
    options["args"] = json!([
        "sh",
        "/bin/sh",
        "-c",
        PROCESS_PROBES
            .iter()
            .map(|(name, probe)| format!("echo \"{name}=$({{ {probe}; }} 2>&1)\""))
            .collect::<Vec<_>>()
            .join("; ")
            + "; echo end"
    ]);
    let observed = observe(&node, &agent, options, &[]);
    check(&observed, &PROCESS_VALUES);
    assert!(
        observed["groups"].split(' ').any(|group| group == "4321"),
        "{observed:?}"
    );
    assert_eq!(
        observed["dns"],
        "search shop.test;nameserver 10.9.8.7;options ndots:3;"
    );
    assert_ne!(
        observed["groups_root"], "0",
        "its own cgroup is the root: {observed:?}"
    );
}

/// Names of what the task looks at, and the commands that do it.
const FILE_PROBES: [(&str, &str); 21] = [
    ("root", "touch /x | grep -o Read-only"),
    ("given", "cat /given/file"),
    ("given_write", "touch /given/x | grep -o Read-only"),
    ("new", "touch /new/x && ls /new"),
    ("outside", "cat /outside/file"),
    (
        "cache",
        "df -k /cache | tail -1 | tr -s ' ' | cut -d' ' -f2",
    ),
    ("cache_mode", "stat -c %a /cache"),
    ("cache_exec", "grep -c ' /cache .*noexec' /proc/mounts"),
    (
        "bound",
        "cat /bound/file; touch /bound/x | grep -o Read-only",
    ),
    ("data", "touch /data/x && ls /data"),
    (
        "scratch",
        "df -k /scratch | tail -1 | tr -s ' ' | cut -d' ' -f2",
    ),
    ("scratch_mode", "stat -c %a /scratch"),
    ("owned", "stat -c '%u:%g %a' /owned"),
    ("memory", "stat -c %u /memory"),
    (
        "served",
        "cat /served/file; touch /served/x | grep -o Read-only",
    ),
    ("tools", "grep -c ' /tools .*noexec' /proc/mounts"),
    ("sink", "echo x >/dev/sink && echo ok"),
    ("source", "test -c /dev/source && echo ok"),
    ("source_write", "echo x >/dev/source && echo ok"),
    ("logs", "touch /alloc/logs/x | grep -o Read-only"),
    (
        "local",
        "touch /local/x /secrets/x /alloc/data/x && echo ok",
    ),
];

/// The values that must be seen.
const FILE_VALUES: [(&str, &str); 18] = [
    ("root", "Read-only"),
    ("given", "given"),
    ("given_write", "Read-only"),
    ("new", "x"),
    ("outside", "outside"),
    ("cache", "1024"),
    ("cache_mode", "700"),
    ("cache_exec", "1"),
    ("data", "x"),
    ("scratch", "2048"),
    ("scratch_mode", "711"),
    ("owned", "7:8 750"),
    ("memory", "7"),
    ("tools", "0"),
    ("sink", "ok"),
    ("source", "ok"),
    ("logs", "Read-only"),
    ("local", "ok"),
];

#[test]
fn task_gets_the_requested_mounts_and_devices() {
    let node = TestNode::shared();
    let agent = permissive_agent(&node);
    let outside = node.root().path().join("outside");
    fs::create_dir_all(&outside).expect("the root can be written");
    fs::write(outside.join("file"), "outside").expect("the root can be written");
    let outside = outside.to_str().expect("the path is ASCII").to_owned();
    let of_driver = |target: &str, options: Value| {
        let driver = json!({ "name": "local", "options": [options] });
        json!({ "source": "by-driver", "target": target, "volume_options": { "driver_config": driver } })
    };
    let options = json!({
        "readonly_rootfs": true, "network_mode": "none",
        "volumes": ["local/given:/given:ro", "local/new/deep:/new", format!("{outside}:/outside:ro")],
        "mount": [
            { "type": "tmpfs", "target": "/cache", "tmpfs_options": { "size": 1_048_576, "mode": 448 } },
            { "type": "bind", "source": "local/given", "target": "/bound", "readonly": true, "bind_options": { "propagation": "rprivate" } },
        ],
        "mounts": [
            { "type": "volume", "source": "shop-data", "target": "/data" },
            of_driver("/memory", json!({ "type": "tmpfs", "device": "tmpfs", "o": "size=1m,uid=7" })),
            of_driver("/served", json!({ "type": "none", "device": outside, "o": "bind,ro" })),
        ],
        "tmpfs": ["/scratch:size=2m,mode=711", "/tools:exec", "/owned:uid=7,gid=8,mode=750"],
        "devices": [
            { "host_path": "/dev/null", "container_path": "/dev/sink" },
            { "host_path": "/dev/kmsg", "container_path": "/dev/source", "cgroup_permissions": "r" },
        ],
    });
    let observed = observe(
        &node,
        &agent,
        options,
        &FILE_PROBES
            .map(|(name, probe)| (name, probe.replace(" | grep", " 2>&1 | grep")))
            .each_ref()
            .map(|(name, probe)| (*name, probe.as_str())),
    );
    check(&observed, &FILE_VALUES);
    assert_eq!(observed["bound"], "givenRead-only");
    assert_eq!(observed["served"], "outsideRead-only");
    assert!(
        observed["source_write"].contains("not permitted"),
        "it may only be read: {observed:?}"
    );
    // A volume outlives its tasks.
    let kept = node.root().state().join("volumes/nomad/shop-data");
    assert!(kept.join("x").exists(), "{}", kept.display());
    fs::remove_dir_all(kept).expect("nobody uses it any more");
}

#[test]
fn nfs_export_that_nobody_serves_is_refused_by_its_key() {
    let node = TestNode::shared();
    let agent = permissive_agent(&node);
    let driver = json!({ "options": [{ "type": "nfs", "device": ":/none", "o": "addr=127.0.0.1,soft,retrans=0" }] });
    let config = json!({
        "image": node.image(), "command": "true",
        "mounts": [{ "target": "/x", "volume_options": { "driver_config": driver } }],
    });
    let mut task = TaskSetup::new(node.root(), &agent, "task", &config);
    let refused = agent.driver().start(&task.config);
    let refused = refused.expect_err("there is no server, or the kernel has no NFS");
    let text = refused.message();
    assert!(
        text.starts_with("mounts[0].source: ")
            && text.contains("mount the NFS export :/none of 127.0.0.1"),
        "{text}"
    );
    // An agent repeats it: the server may come back.
    assert!(!refused.details().is_empty(), "{refused}");
    task.remove_cgroups();
}

#[test]
fn task_gets_the_requested_limits_or_those_of_the_plugin_configuration() {
    let node = TestNode::shared();
    let agent = permissive_agent(&node);
    // The files of both versions of cgroups: only those of one exist.
    let probes = [
        (
            "pids",
            "cat /sys/fs/cgroup/pids/pids.max /sys/fs/cgroup/pids.max 2>/dev/null",
        ),
        (
            "memory",
            "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null",
        ),
        (
            "soft",
            "cat /sys/fs/cgroup/memory/memory.soft_limit_in_bytes /sys/fs/cgroup/memory.low 2>/dev/null",
        ),
        (
            "period",
            "cat /sys/fs/cgroup/cpu/cpu.cfs_period_us 2>/dev/null || cut -d' ' -f2 /sys/fs/cgroup/cpu.max",
        ),
        (
            "quota",
            "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cut -d' ' -f1 /sys/fs/cgroup/cpu.max",
        ),
        ("oom", "cat /proc/self/oom_score_adj"),
    ];
    let plain = observe(&node, &agent, json!({ "network_mode": "none" }), &probes);
    check(
        &plain,
        &[("pids", "500"), ("memory", "67108864"), ("oom", "11")],
    );
    let limits = json!({
        "network_mode": "none", "pids_limit": 60, "memory_hard_limit": 128, "cpu_hard_limit": true,
        "cpu_cfs_period": 50_000, "oom_score_adj": 222,
    });
    let limited = observe(&node, &agent, limits, &probes);
    check(
        &limited,
        &[
            ("pids", "60"),
            ("memory", "134217728"),
            ("soft", "67108864"),
            ("period", "50000"),
            ("oom", "222"),
        ],
    );
    let quota: i64 = limited["quota"].parse().expect("it is a number");
    assert!((1000..50_000).contains(&quota), "{limited:?}");
}

#[test]
fn task_gets_the_allowed_namespaces_of_the_host() {
    let node = TestNode::shared();
    let agent = permissive_agent(&node);
    let options = json!({
        "network_mode": "host", "pid_mode": "host", "ipc_mode": "host", "uts_mode": "host", "userns_mode": "host",
        "cgroupns": "host",
    });
    let kinds = ["net", "pid", "ipc", "uts", "user", "cgroup"];
    let probes = kinds.map(|kind| (kind, format!("readlink /proc/self/ns/{kind}")));
    let probes = probes
        .each_ref()
        .map(|(kind, probe)| (*kind, probe.as_str()));
    let seen_host = observe(&node, &agent, options, &probes);
    for kind in kinds {
        let host = fs::read_link(format!("/proc/self/ns/{kind}")).expect("the kernel has it");
        check(&seen_host, &[(kind, host.to_str().expect("it is text"))]);
    }
    let own = observe(&node, &agent, json!({ "cgroupns": "private" }), &probes);
    for kind in kinds.into_iter().filter(|kind| *kind != "user") {
        assert_ne!(own[kind], seen_host[kind], "{kind}");
    }
}

#[test]
fn task_gets_the_requested_streams() {
    let node = TestNode::shared();
    let agent = permissive_agent(&node);
    let script =
        "test -t 1 && echo out=terminal || echo out=pipe; timeout 1 cat; echo read=$?; echo end";
    let with = |more: Value| {
        let mut options = json!({ "network_mode": "none", "args": ["-c", script] });
        options
            .as_object_mut()
            .expect("it is one")
            .extend(more.as_object().expect("it is one").clone());
        observe(&node, &agent, options, &[])
    };
    check(&with(json!({})), &[("out", "pipe"), ("read", "0")]);
    check(&with(json!({ "tty": true })), &[("out", "terminal")]);
    let open = with(json!({ "interactive": true }));
    check(&open, &[("out", "pipe")]);
    assert_ne!(open["read"], "0", "its input is at an end: {open:?}");

    let mut task = TaskSetup::new(
        node.root(),
        &agent,
        "task",
        &json!({
            "image": node.image(), "command": "/bin/sh", "args": ["-c", "echo dropped; echo kept >/alloc/data/said"],
            "network_mode": "none", "logging": { "type": "none" },
        }),
    );
    let driver = agent.driver();
    driver.start(&task.config).expect("it starts");
    assert_eq!(driver.wait(task.id(), RUN).expect("it ends").exit_code, 0);
    let said =
        fs::read_to_string(task.alloc_dir().join("alloc/data/said")).expect("it was written");
    assert_eq!((said.as_str(), task.stdout().as_str()), ("kept\n", ""));
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();
}
