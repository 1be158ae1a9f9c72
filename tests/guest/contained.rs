//! A node that is a container without privileges, as those of LXC, Incus and Proxmox: a user namespace with a range of ids, and mounts,
//! network, processes and cgroups of its own, all made by `contained.sh`. A daemon runs in it, and this program again, which uses it.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::cri::{limits, namespaces};
use switchyard_tests::host::eventually;
use switchyard_tests::http;

use crate::node::{GuestFact, GuestNode, LIMIT, run};
use crate::units::doctor_finds;

pub(crate) const FACTS: &[GuestFact] = &[(
    "pods_run_on_a_node_that_is_a_container_in_a_user_namespace",
    pods_run_in_a_container,
)];

/// The directory of the container.
const DIR: &str = "/var/lib/guest-contained";
const SCRIPT: &str = include_str!("contained.sh");
/// The first id of its range, as the script has it: the root of the container.
const ROOT: u32 = 100_000;
/// The daemon's socket for operators.
const ADMIN: &str = "/run/switchyard/admin.sock";
/// The parent cgroup of the pod.
const PARENT: &str = "/contained";
/// The port of the node that leads to the pod.
const HOST_PORT: u16 = 18_080;
/// The address of the bridge of the guest's CNI network.
const GATEWAY: [u8; 4] = [10, 88, 0, 1];
/// Says what it has got, and serves a page on port 80.
const SERVE: &str = "cat /proc/self/oom_score_adj; tr -s ' ' < /proc/self/uid_map; mkdir -p /tmp/www; \
     echo hello > /tmp/www/index.html; exec httpd -f -p 80 -h /tmp/www";

fn pods_run_in_a_container(_: &GuestNode) {
    let dir = Path::new(DIR);
    let state = dir.join("state");
    fs::create_dir_all(&state).expect("it can be made");
    chown(&state, Some(ROOT), Some(ROOT)).expect("root may");
    let script = dir.join("contained.sh");
    fs::write(&script, SCRIPT).expect("it can be written");
    // A mount point and modules, which the root of a container can neither make nor load.
    fs::create_dir_all("/var/lib/cni").expect("it can be made");
    run(&["modprobe", "--all", "overlay", "br_netfilter"]);
    let words = [
        "systemd-run",
        "--quiet",
        "--wait",
        "--pipe",
        "--collect",
        "--unit=guest-contained",
        "--property=Delegate=yes",
        "--property=RuntimeMaxSec=600",
        "sh",
    ];
    let output = Command::new(words[0])
        .args(&words[1..])
        .arg(&script)
        .args(["outside", DIR])
        .arg(std::env::current_exe().expect("it runs"))
        .arg("contained")
        .output()
        .expect("it can be run");
    assert!(
        output.status.success(),
        "{}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    fs::remove_dir_all(dir).expect("nothing in it is in use");
}

/// Shows, as root of the container, what its daemon can do.
pub(crate) fn run_inside() {
    let node = GuestNode::start();
    daemon_tells_what_the_node_lacks();
    pod_runs_and_outlives_the_daemon(&node);
    user_namespaces_are_refused_with_their_reason(&node);
}

/// Returns what the daemon says of itself; `None` while it does not answer.
fn status() -> Option<Value> {
    let answer = http::get_unix(Path::new(ADMIN), "/statusz").ok()?;
    serde_json::from_slice(&answer.body).ok()
}

fn daemon_tells_what_the_node_lacks() {
    let report = status().expect("it answers");
    let features = report["features"].as_array();
    let features = features.unwrap_or_else(|| panic!("it has features: {report}"));
    let fault_of = |name: &str| {
        let found = features.iter().find(|feature| feature["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {report}"))["fault"].as_str()
    };
    for (name, is_missing) in [
        ("openat2", false),
        ("executable_memory", false),
        ("executable_run", false),
        ("mount_setattr", false),
        ("initial_user_namespace", true),
        // The kernel has it, and the container no directory of it.
        ("apparmor", true),
    ] {
        let fault = fault_of(name);
        assert_eq!(fault.is_some(), is_missing, "{name}: {fault:?}");
    }
    // Its root administers the networks that are its own, whatever else a kernel may lack for them.
    let fault = fault_of("native_bridge").unwrap_or_default();
    assert!(!fault.contains("EPERM"), "{fault}");
    let found = doctor_finds();
    for code in ["SY128 note", "SY129 note"] {
        assert!(
            found.iter().any(|(kind, _)| kind == code),
            "{code}: {found:?}"
        );
    }
}

fn answers(address: IpAddr, port: u16) -> bool {
    let address = SocketAddr::new(address, port);
    eventually(LIMIT, || {
        http::get(address, "/").is_ok_and(|page| page.text() == "hello\n")
    })
}

fn pod_runs_and_outlives_the_daemon(node: &GuestNode) {
    let mut config = node.pod_config("contained");
    config.linux.get_or_insert_default().cgroup_parent = PARENT.to_owned();
    config.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: HOST_PORT.into(),
        ..Default::default()
    }];
    let pod = node.pod_from(config, "");
    let id = pod.start_shell_with("main", SERVE, |config| {
        let limits = limits(config);
        // Better than what the daemon itself has.
        limits.oom_score_adj = -997;
        limits.memory_limit_in_bytes = 64 << 20;
    });
    let own_score = fs::read_to_string("/proc/self/oom_score_adj").expect("the kernel has it");
    let lines = pod.wait_log_lines("main", |lines| lines.len() >= 2);
    assert_eq!(lines[0], own_score.trim());
    assert_eq!(lines[1].trim(), format!("0 {ROOT} 65536"));
    let cgroup = Path::new("/sys/fs/cgroup").join(&PARENT[1..]).join(&id);
    let limit = fs::read_to_string(cgroup.join("memory.max")).expect("it is delegated");
    assert_eq!(limit.trim(), (64 << 20).to_string());
    let ip = node.cri.pod_status(&pod.id).expect("it exists").network;
    let ip: IpAddr = ip
        .unwrap_or_default()
        .ip
        .parse()
        .expect("it has an address");
    assert!(answers(ip, 80), "nobody answers at {ip}");
    assert!(
        answers(GATEWAY.into(), HOST_PORT),
        "its port is not published"
    );
    let failing = pod.start_shell("failing", "exit 7");
    assert_eq!(node.wait_exit(&failing).exit_code, 7);

    let pid_of_daemon = || status().and_then(|report| report["pid"].as_i64());
    let before = pid_of_daemon().expect("it says its process");
    let pid = i32::try_from(before).expect("a process id is an i32");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("it runs");
    let has_successor = || pid_of_daemon().is_some_and(|now| now != before);
    assert!(eventually(LIMIT, has_successor), "no other daemon answers");
    node.wait_ready();
    let state = node.cri.status(&id).expect("it exists").state();
    assert_eq!(state, cri::ContainerState::ContainerRunning);
    let written = node.cri.sh(
        &id,
        "echo kept > /kept && chown 1000:1000 /kept && stat -c %u /kept",
    );
    assert_eq!(written, "1000");
    assert!(answers(GATEWAY.into(), HOST_PORT), "its port is lost");

    let pod_id = pod.id.clone();
    drop(pod);
    assert!(!cgroup.exists(), "{} is left", cgroup.display());
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("the kernel has it");
    for id in [pod_id, id] {
        assert!(!mounts.contains(&id), "mounts of {id} are left: {mounts}");
    }
}

fn user_namespaces_are_refused_with_their_reason(node: &GuestNode) {
    let map = |host_id: u32, length: u32| {
        vec![cri::IdMapping {
            container_id: 0,
            host_id,
            length,
        }]
    };
    // Ids that the container has, that it has in part, and that it lacks.
    for (first, length) in [(1000, 1000), (60_000, 65_536), (300_000, 65_536)] {
        let mut config = node.pod_config("contained-users");
        config.linux.get_or_insert_default().cgroup_parent = PARENT.to_owned();
        namespaces(&mut config).userns_options = Some(cri::UserNamespace {
            mode: cri::NamespaceMode::Pod.into(),
            uids: map(first, length),
            gids: map(first, length),
        });
        let refused = node.cri.run_pod(&config);
        let refused = refused.expect_err("the kernel maps no ids of this disk here");
        let reason = "this node is a container in a user namespace";
        assert!(refused.message().contains(reason), "{refused}");
    }
}
