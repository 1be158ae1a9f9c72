//! Confinement: capabilities, system calls, paths, privileges.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use switchyard_proto::cri::v1::security_profile::ProfileType;
use switchyard_proto::cri::v1::{Capability, Int64Value, NamespaceMode, SecurityProfile};
use switchyard_tests::cri::{context, limits, namespaces, security};
use switchyard_tests::node::TestNode;
use tonic::Code;

/// The capabilities of a container that asks for nothing, as everybody has them.
const DEFAULT_CAPABILITIES: &str = "00000000a80425fb";

/// A user that owns nothing here.
const NOBODY: u32 = 65_534;

const CAPABILITIES: &str = "sed -n 's/^Cap\\(Eff\\|Bnd\\|Amb\\):\\t//p' /proc/self/status";

#[test]
fn unprivileged_host_users_cannot_access_pod_files() {
    let node = TestNode::shared();
    let pod = node.pod("apart");
    let id = pod.start_shell("main", "exec sleep 1000");
    let _ = node.cri().sh(&id, "echo kept > /dev/shm/kept");
    let run = node.root().run();
    let shm = run.join("sandboxes").join(pod.id()).join("shm/kept");
    assert_eq!(fs::read_to_string(&shm).expect("root sees it"), "kept\n");
    let works = |program: &str, path: &Path| {
        let ended = Command::new(program)
            .arg(path)
            .uid(NOBODY)
            .gid(NOBODY)
            .output()
            .expect("it can be run");
        ended.status.success()
    };
    assert!(
        works("stat", &node.root().cri_socket()),
        "the way to the sockets is open"
    );
    assert!(!works("cat", &shm), "{} can be read", shm.display());
    for below in ["sandboxes", "ns", "tasks", "waits", "stage", "views"] {
        let dir = run.join(below);
        assert!(works("stat", &dir), "{} is not there", dir.display());
        assert!(!works("ls", &dir), "{} can be listed", dir.display());
        assert!(
            !works("stat", &dir.join(".")),
            "{} can be passed",
            dir.display()
        );
    }
}

#[test]
fn capabilities_are_added_to_and_dropped_from_the_default_set() {
    let node = TestNode::shared();
    let pod = node.pod("capabilities");
    let with = |add: &[&str], drop: &[&str]| {
        let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect();
        pod.run_shell(CAPABILITIES, |config| {
            context(config).capabilities = Some(Capability {
                add_capabilities: words(add),
                drop_capabilities: words(drop),
                ..Default::default()
            });
        })
    };
    let mask = |mask: &str| format!("{mask}\n{mask}\n0000000000000000");
    assert_eq!(
        pod.run_shell(CAPABILITIES, |_| {}),
        mask(DEFAULT_CAPABILITIES)
    );
    // NET_RAW is the 13th, SYS_PTRACE the 19th.
    assert_eq!(
        with(&["SYS_PTRACE"], &["CAP_NET_RAW"]),
        mask("00000000a80c05fb")
    );
    assert_eq!(with(&["NET_RAW"], &["ALL"]), mask("0000000000002000"));
}

#[test]
fn ambient_capabilities_apply_to_non_root_users() {
    let node = TestNode::shared();
    let pod = node.pod("ambient");
    let seen = pod.run_shell(CAPABILITIES, |config| {
        let context = context(config);
        context.run_as_user = Some(Int64Value { value: 1000 });
        context.capabilities = Some(Capability {
            add_ambient_capabilities: vec!["NET_BIND_SERVICE".to_owned()],
            ..Default::default()
        });
    });
    // NET_BIND_SERVICE is the 10th.
    assert_eq!(
        seen,
        format!("0000000000000400\n{DEFAULT_CAPABILITIES}\n0000000000000400")
    );
}

#[test]
fn default_seccomp_profile_is_applied_on_request() {
    let node = TestNode::shared();
    let pod = node.pod("seccomp");
    let script = "grep Seccomp: /proc/self/status | tr -d '\\t'; unshare -U true 2>/dev/null && echo allowed || echo refused";
    let with = |kind: ProfileType| {
        pod.run_shell(script, |config| {
            let mut profile = SecurityProfile::default();
            profile.set_profile_type(kind);
            context(config).seccomp = Some(profile);
        })
    };
    assert_eq!(with(ProfileType::RuntimeDefault), "Seccomp:2\nrefused");
    assert!(with(ProfileType::Unconfined).starts_with("Seccomp:0"));
}

#[test]
fn local_seccomp_profile_is_applied() {
    let node = TestNode::shared();
    let pod = node.pod("localhost");
    let path = node.root().path().join("seccomp.json");
    let profile = r#"{ "defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        { "names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1 } ] }"#;
    fs::write(&path, profile).expect("the root can be written");
    let seen = pod.run_shell("mkdir /tmp/dir 2>/dev/null || echo refused", |config| {
        let mut profile = SecurityProfile {
            localhost_ref: path.to_str().expect("the path is ASCII").to_owned(),
            ..Default::default()
        };
        profile.set_profile_type(ProfileType::Localhost);
        context(config).seccomp = Some(profile);
    });
    assert_eq!(seen, "refused");
}

#[test]
fn no_new_privileges_is_applied() {
    let node = TestNode::shared();
    let pod = node.pod("privileges");
    let seen = pod.run_shell(
        "grep NoNewPrivs /proc/self/status | tr -d '\\t'",
        |config| {
            context(config).no_new_privs = true;
        },
    );
    assert_eq!(seen, "NoNewPrivs:1");
}

#[test]
fn masked_and_read_only_paths_are_applied_exactly() {
    let node = TestNode::shared();
    let pod = node.pod("paths");
    let script = "cat /proc/timer_list 2>/dev/null | wc -c; ls /proc/fs | wc -l; \
        echo x 2>/dev/null > /proc/sys/kernel/domainname && echo written || echo refused";
    let seen = pod.run_shell(script, |config| {
        context(config).masked_paths = vec![
            "/proc/timer_list".into(),
            "/proc/fs".into(),
            "/no/such".into(),
        ];
        context(config).readonly_paths = vec!["/proc/sys".into()];
    });
    assert_eq!(
        seen.lines()
            .filter(|line| !line.starts_with("sh:"))
            .collect::<Vec<_>>(),
        ["0", "0", "refused"]
    );
    let open = pod.run_shell("grep -c ' /proc/' /proc/self/mounts || true", |_| {});
    assert_eq!(open, "0");
}

#[test]
fn sys_is_writable_in_privileged_containers_whoever_is_started_first() {
    let node = TestNode::shared();
    // The kernel refuses the directory in any case, but it looks first whether the file system is writable.
    let script = "mkdir /sys/none 2>&1 | grep -c 'Read-only' ; \
        ls /sys/class/net | grep -cx lo; ls /sys/fs/cgroup | grep -q . && echo cgroups";
    // Whatever is done with /sys, what is mounted below it stays as it is.
    let below = "d=/sys/fs/cgroup/memory; test -d $d || d=/sys/fs/cgroup; mkdir $d/none 2>&1 | grep -c 'Read-only'";
    for (name, pid, network, order) in [
        (
            "plain",
            NamespaceMode::Container,
            NamespaceMode::Pod,
            [false, true],
        ),
        (
            "infra",
            NamespaceMode::Pod,
            NamespaceMode::Pod,
            [false, true],
        ),
        (
            "last",
            NamespaceMode::Container,
            NamespaceMode::Pod,
            [true, false],
        ),
        (
            "host",
            NamespaceMode::Container,
            NamespaceMode::Node,
            [false, true],
        ),
    ] {
        let pod = node.pod_with(name, |config| {
            security(config).privileged = true;
            namespaces(config).set_pid(pid);
            namespaces(config).set_network(network);
        });
        for privileged in order {
            let container = if privileged { "mighty" } else { "modest" };
            let id = pod.start_shell_with(container, "exec sleep 1000", |config| {
                context(config).privileged = privileged
            });
            let readonly = if privileged { "0" } else { "1" };
            assert_eq!(
                node.cri().sh(&id, script),
                format!("{readonly}\n1\ncgroups"),
                "{name}: {container}"
            );
            if !privileged {
                assert_eq!(node.cri().sh(&id, below), "1", "{name}: {container}");
            }
        }
    }
}

#[test]
fn privileged_containers_see_what_the_host_sees() {
    let node = TestNode::shared();
    let pod = node.pod_with("privileged", |config| security(config).privileged = true);
    let id = pod.start_shell_with("main", "exec sleep 1000", |config| {
        context(config).privileged = true
    });
    let sh = |script: &str| node.cri().sh(&id, script);
    let own = fs::read_to_string("/proc/self/status").expect("this process has a status");
    let bounding = own
        .lines()
        .find_map(|line| line.strip_prefix("CapBnd:\t"))
        .expect("it has a bounding set");
    assert_eq!(sh("sed -n 's/^CapEff:\\t//p' /proc/self/status"), bounding);
    assert_eq!(
        sh("test -c /dev/kmsg && test -c /dev/loop-control && echo there"),
        "there"
    );
    assert_eq!(
        sh("grep ' /sys sysfs ' /proc/mounts | cut -d' ' -f4 | cut -d, -f1"),
        "rw"
    );
    let modest = node.pod("modest");
    let mut config = node.container("main", &["true"]);
    context(&mut config).privileged = true;
    let status = modest
        .try_create(&config)
        .expect_err("its pod is not privileged");
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert!(
        status
            .message()
            .contains("no privileged container allowed in sandbox"),
        "{status}"
    );
}

#[test]
fn oom_score_is_as_requested_or_the_nearest_permitted() {
    let node = TestNode::shared();
    let pod = node.pod("score");
    let score = |wanted: i64| {
        let seen = pod.run_shell("cat /proc/self/oom_score_adj", |config| {
            limits(config).oom_score_adj = wanted
        });
        seen.parse::<i64>().expect("it is a number")
    };
    assert_eq!(score(500), 500);
    assert_eq!(score(0), 0);
    // Without CAP_SYS_RESOURCE a process cannot go below its initial value.
    let daemon = node.daemon().pid();
    let text =
        fs::read_to_string(format!("/proc/{daemon}/oom_score_adj")).expect("the daemon runs");
    let least: i64 = text.trim().parse().expect("it is a number");
    let lowest = score(-998);
    assert!(
        lowest == -998 || lowest == least,
        "{lowest}, and the daemon has {least}"
    );
}

#[test]
fn rlimits_are_inherited_unchanged() {
    let node = TestNode::shared();
    let pod = node.pod("rlimits");
    let seen = pod.run_shell(
        "grep -E '^Max (open files|processes|core)' /proc/self/limits | tr -s ' '",
        |_| {},
    );
    let own = fs::read_to_string("/proc/self/limits").expect("this process has limits");
    let own: Vec<_> = own
        .lines()
        .filter(|line| {
            ["Max open files", "Max processes", "Max core"]
                .iter()
                .any(|name| line.starts_with(name))
        })
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let seen: Vec<_> = seen
        .lines()
        .map(|line| line.trim_end().to_owned())
        .collect();
    assert_eq!(seen, own, "a limit was changed on the way");
}
