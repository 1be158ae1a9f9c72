//! 1xx: the node and its kernel.

use switchyard_operator_api::{FeatureView, LimitView};

use super::ipv6::pods_on;
use super::*;

#[test]
fn kernel_without_overlay() {
    check(
        |node| node.file("/proc/filesystems", "\text4\n"),
        &["SY101 error"],
    );
    let loadable = "kernel/fs/overlayfs/overlay.ko: x\nkernel/net/bridge.ko:\nkernel/veth.ko:\n/veth.ko /bridge.ko";
    check(
        |node| {
            node.file("/proc/filesystems", "\text4\n");
            node.file("/lib/modules/6.1.0/modules.dep", loadable);
        },
        &[],
    );
}

#[test]
fn kernel_without_features_for_networks() {
    let lists = "kernel/net/bridge/bridge.ko:\n";
    let found = check(
        |node| node.file("/lib/modules/6.1.0/modules.dep", lists),
        &["SY102 error"],
    );
    assert!(found[0].found.contains("veth"), "{found:?}");
    check(
        |node| node.remove("/sys/module/nf_tables"),
        &["SY102 error"],
    );
    // Where the kernel has no package of modules, it cannot be known.
    check(|node| node.remove("/lib/modules"), &[]);
    // NixOS has them elsewhere.
    check(
        |node| {
            node.remove("/lib/modules");
            let dir = "/run/booted-system/kernel-modules/lib/modules/6.1.0";
            node.file(&format!("{dir}/modules.dep"), lists);
            node.file(&format!("{dir}/modules.builtin"), "");
        },
        &["SY102 error"],
    );
}

#[test]
fn node_that_does_not_forward() {
    let found = check(
        |node| node.file("/proc/sys/net/ipv4/ip_forward", "0\n"),
        &["SY103 warning"],
    );
    assert_eq!(
        found[0].command.as_deref(),
        Some("sysctl -w net.ipv4.ip_forward=1")
    );
    check(
        |node| {
            node.config("[network.bridge]\nsubnets = [\"fd00:1::/64\"]");
            node.file("/proc/sys/net/ipv6/conf/all/forwarding", "0\n");
        },
        &["SY103 warning"],
    );
    let six = "/proc/sys/net/ipv6/conf/all/forwarding";
    check(|node| node.file(six, "0\n"), &[]);
    check(
        |node| {
            pods_on(node, &["10.85.0.0/16", "fd00:85::/64"]);
            node.file(six, "0\n");
        },
        &["SY103 warning"],
    );
    // Nothing on a node of IPv6 alone needs the other one.
    check(
        |node| {
            pods_on(node, &["fd00:85::/64"]);
            node.config("[network.bridge]\nsubnets = [\"fd00:1::/64\"]");
            node.file("/proc/sys/net/ipv4/ip_forward", "0\n");
        },
        &[],
    );
    // A network with its own management of addresses.
    check(
        |node| {
            pods_on(node, &[]);
            node.config("[network.bridge]\nsubnets = [\"fd00:1::/64\"]");
            node.file("/proc/sys/net/ipv4/ip_forward", "0\n");
        },
        &["SY103 warning"],
    );
}

#[test]
fn bridged_packets_that_bypass_rules() {
    let key = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    check(|node| node.file(key, "0\n"), &["SY104 warning"]);
    check(
        |node| node.remove("/proc/sys/net/bridge"),
        &["SY104 warning"],
    );
    let six = "/proc/sys/net/bridge/bridge-nf-call-ip6tables";
    check(|node| node.file(six, "0\n"), &[]);
    check(
        |node| {
            pods_on(node, &["10.85.0.0/16", "fd00:85::/64"]);
            node.file(six, "0\n");
        },
        &["SY104 warning"],
    );
}

fn without_kubelet(node: &mut TestNode) {
    node.remove("/var/lib/kubelet");
    node.remove("/proc/200");
}

#[test]
fn cgroup_hierarchies_and_controllers() {
    let v1 = |node: &mut TestNode| {
        without_kubelet(node);
        node.remove("/sys/fs/cgroup");
        node.file("/sys/fs/cgroup/memory/tasks", "");
        node.file(
            "/proc/cgroups",
            "#name\nmemory 1 5 1\ncpu 2 1 1\npids 3 1 1\n",
        );
    };
    check(v1, &["SY105 warning"]);
    let found = check(
        |node| {
            v1(node);
            node.file("/sys/fs/cgroup/unified/cgroup.procs", "");
            node.file(
                "/proc/cgroups",
                "#name\nmemory 1 5 0\ncpu 2 1 1\npids 3 1 1\n",
            );
        },
        &["SY105 warning", "SY106 error"],
    );
    assert!(
        found[0].found.contains("memory") && found[1].found.contains("hybrid"),
        "{found:?}"
    );
    check(
        |node| node.file("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n"),
        &["SY106 error"],
    );
}

#[test]
fn low_limits_of_the_kernel() {
    let instances = "/proc/sys/fs/inotify/max_user_instances";
    check(|node| node.file(instances, "128\n"), &["SY107 warning"]);
    check(
        |node| node.file("/proc/sys/fs/inotify/max_user_watches", "8192\n"),
        &["SY107 warning"],
    );
    check(
        |node| {
            without_kubelet(node);
            node.file(instances, "128\n");
        },
        &["SY107 note"],
    );
    check(
        |node| node.file("/proc/sys/kernel/pid_max", "32768\n"),
        &["SY108 note"],
    );
    check(
        |node| node.file("/proc/100/limits", "Max open files 1024 4096 files\n"),
        &["SY109 warning"],
    );
    let count = "/proc/sys/net/netfilter/nf_conntrack_count";
    check(|node| node.file(count, "80\n"), &["SY110 warning"]);
}

#[test]
fn limits_that_are_nearly_reached() {
    let found = check(
        |node| {
            node.file("/proc/loadavg", "0.2 0.1 0.1 2/95000 4711\n");
            node.file("/proc/sys/kernel/threads-max", "100000\n");
        },
        &["SY122 warning"],
    );
    let text = "95000 of 100000 processes and threads";
    assert!(found[0].found.starts_with(text), "{found:?}");
    check(
        |node| node.file("/proc/sys/fs/file-nr", "950\t0\t1000\n"),
        &["SY122 warning"],
    );
    check(
        |node| node.file("/proc/sys/fs/file-nr", "850\t0\t1000\n"),
        &[],
    );
    let limit = |name, used| LimitView::new(name, used, 100);
    let reported = |limits: Vec<LimitView>, expected: &[&str]| {
        check(
            |node| node.status.as_mut().expect("it runs").limits = limits,
            expected,
        )
    };
    let found = reported(
        vec![
            limit("inotify_instances", 95),
            limit("group_processes", 99),
            limit("connections", 99),
        ],
        &["SY122 warning", "SY122 warning"],
    );
    assert!(
        found[0].found.starts_with("95 of 100 inotify instances"),
        "{found:?}"
    );
    reported(vec![limit("group_processes", 80)], &[]);
}

#[test]
fn features_that_the_kernel_or_the_node_takes_away() {
    let enabled = "/sys/module/apparmor/parameters/enabled";
    for (name, expected) in [
        ("openat2", &["SY126 error"][..]),
        ("mount_setattr", &["SY127 note"]),
        ("native_bridge", &["SY315 warning"]),
        ("native_bridge_pins", &["SY320 warning"]),
        ("of_a_later_version", &["SY127 note"]),
        ("initial_user_namespace", &["SY128 note"]),
        ("apparmor", &["SY129 note"]),
        ("executable_memory", &[]),
        ("executable_run", &[]),
    ] {
        let fault = || Some("it is refused".to_owned());
        // What the daemon says counts.
        let reported = |node: &mut TestNode| {
            let view = |name: &str, fault| FeatureView {
                name: name.to_owned(),
                fault,
            };
            let status = node.status.as_mut().expect("it runs");
            status.features = vec![view("other", None), view(name, fault())];
            node.features.add("mount_setattr", fault());
        };
        let found = check(reported, expected);
        assert!(
            found
                .iter()
                .all(|finding| finding.found.contains("it is refused")),
            "{found:?}"
        );
        // Of a daemon that says nothing of features, what the command finds.
        let own = |node: &mut TestNode| node.features.add(name, fault());
        if name != "of_a_later_version" {
            check(own, expected);
        }
    }
    let off = |node: &mut TestNode| {
        node.file(enabled, "N\n");
        node.features
            .add("apparmor", Some("AppArmor is off".to_owned()));
    };
    check(off, &["SY116 note"]);
}

#[test]
fn node_without_security_modules() {
    check(|node| node.remove("/sys/module/apparmor"), &["SY116 note"]);
}

/// The file contexts of a policy: of the system, of containers, and of the daemon's directories.
const OF_SYSTEM: &str = "/.*\tsystem_u:object_r:default_t:s0\n/run/.*\t<<none>>\n";
const OF_CONTAINERS: &str =
    "/var/lib/containerd/[^/]*/snapshots(/.*)?\tsystem_u:object_r:container_file_t:s0\n";
const OF_RUN: &str = "/run/switchyard(/.*)?\tsystem_u:object_r:container_var_run_t:s0\n";
const OF_STATE: &str = "/var/lib/switchyard(/.*)?\tsystem_u:object_r:container_var_lib_t:s0\n";

#[test]
fn selinux_labels_are_advised_where_the_policy_has_what_they_need() {
    let all = [OF_SYSTEM, OF_CONTAINERS, OF_RUN, OF_STATE].concat();
    let without_state = [OF_SYSTEM, OF_CONTAINERS, OF_RUN].concat();
    let of_another = [
        OF_SYSTEM,
        OF_CONTAINERS,
        OF_STATE,
        "/run/switchyard-old(/.*)?\tx\n",
    ]
    .concat();
    let before_rhel_10 = all.replace("/run/switchyard", "/var/run/switchyard");
    let named_by_operator = all.replace("/run/switchyard", "/run/switchyar\\d");
    // Whether SELinux enforces, containerd.selinux, the file contexts if they can be read, the findings.
    let cases: [(bool, bool, Option<&str>, &[&str]); 12] = [
        (true, false, Some(&all), &["SY115 note"]),
        (true, false, None, &["SY115 note"]),
        (true, false, Some(&without_state), &["SY115 note"]),
        (true, false, Some(OF_SYSTEM), &["SY125 note"]),
        (false, false, Some(OF_SYSTEM), &[]),
        (true, true, Some(&all), &[]),
        (true, true, None, &[]),
        (true, true, Some(&before_rhel_10), &[]),
        (true, true, Some(&named_by_operator), &[]),
        (true, true, Some(&without_state), &["SY125 warning"]),
        (true, true, Some(&of_another), &["SY125 warning"]),
        (false, true, Some(OF_SYSTEM), &["SY125 error"]),
    ];
    for (enforces, labels, contexts, expected) in cases {
        let change = |node: &mut TestNode| {
            node.file("/sys/fs/selinux/enforce", if enforces { "1" } else { "0" });
            node.file(
                "/etc/selinux/config",
                "# SELINUXTYPE=other\nSELINUXTYPE=mine\n",
            );
            if let Some(text) = contexts {
                node.file("/etc/selinux/mine/contexts/files/file_contexts", text);
            }
            node.config(&format!("[containerd]\nselinux = {labels}"));
        };
        check(change, expected);
    }
    // Directories that the configuration names, and contexts that the operator has added.
    let moved = |node: &mut TestNode| {
        node.file("/sys/fs/selinux/enforce", "1");
        node.file("/etc/selinux/targeted/contexts/files/file_contexts", &all);
        node.config("[containerd]\nselinux = true\n[paths]\nstate = \"/srv/switchyard\"");
    };
    let is_of_moved =
        |finding: &Finding| finding.code == "SY125" && finding.found.ends_with(" /srv/switchyard");
    assert!(look(moved).findings.iter().any(is_of_moved));
    let labelled = look(|node| {
        moved(node);
        node.file(
            "/etc/selinux/targeted/contexts/files/file_contexts.subs",
            "/srv/switchyard /var/lib/switchyard\n",
        );
    });
    assert!(!labelled.findings.iter().any(is_of_moved));
}

fn units(node: &mut TestNode, from: &str, to: &str) {
    let (_, text) = node
        .commands
        .get_mut("systemctl show --property=Id")
        .unwrap();
    *text = text.replacen(from, to, 1);
}

#[test]
fn units_of_systemd() {
    check(
        |node| units(node, "UnitFileState=enabled", "UnitFileState=disabled"),
        &["SY117 warning"],
    );
    check(
        |node| units(node, "LoadState=loaded", "LoadState=masked"),
        &["SY117 warning"],
    );
    check(
        |node| units(node, "LoadState=loaded", "LoadState=not-found"),
        &["SY117 note"],
    );
    check(
        |node| units(node, "Delegate=yes", "Delegate=no"),
        &["SY118 error"],
    );
    check(
        |node| units(node, "KillMode=process", "KillMode=control-group"),
        &["SY118 error"],
    );
    let limit = "StartLimitIntervalUSec=10s";
    check(
        |node| units(node, "StartLimitIntervalUSec=0", limit),
        &["SY119 warning"],
    );
    check(
        |node| units(node, "Result=success", "Result=start-limit-hit"),
        &["SY119 error"],
    );
    check(
        |node| {
            node.commands
                .get_mut("systemctl show --property=Id")
                .unwrap()
                .0 = 1
        },
        &[],
    );
}

#[test]
fn what_could_not_be_looked_at() {
    let found = check(
        |node| node.denied.push("/etc/nomad.d".into()),
        &["SY120 note"],
    );
    assert!(found[0].found.contains("/etc/nomad.d"));
    // A daemon that another user may not ask does not count as down.
    check(
        |node| node.denied.push("/run/switchyard/admin.sock".into()),
        &["SY120 note"],
    );
}

#[test]
fn check_that_hangs_or_fails_is_reported() {
    let unfinished = "SY121 warning";
    let hanging = super::super::within("disks", std::time::Duration::from_millis(10), || {
        std::thread::sleep(std::time::Duration::from_secs(2));
    });
    let failing = super::super::within::<()>("disks", std::time::Duration::from_secs(20), || {
        panic!("as meant")
    });
    for finding in [hanging.unwrap_err(), failing.unwrap_err()] {
        assert_eq!(
            format!("{} {}", finding.code, finding.severity.as_str()),
            unfinished
        );
        assert!(finding.found.starts_with("disks: "), "{finding:?}");
    }
}

#[test]
fn commands_are_those_of_what_supervises_services() {
    let socket = "/run/switchyard/logkeeper/logkeeper.sock";
    for (supervisor, verb, service, expected) in [
        (
            "/run/systemd/system/x",
            "status",
            "switchyard",
            "systemctl status switchyard",
        ),
        (
            "/run/systemd/system/x",
            "restart",
            "switchyard-logkeeper",
            "systemctl restart switchyard-logkeeper",
        ),
        (
            "/run/openrc/softlevel",
            "status",
            "switchyard",
            "rc-service switchyard status",
        ),
        (
            "/run/openrc/softlevel",
            "restart",
            "switchyard-logkeeper",
            "rc-service switchyard-logkeeper restart",
        ),
        ("/run/runit/stopit", "status", "switchyard", ""),
        ("/run/runit/stopit", "restart", "switchyard-logkeeper", ""),
    ] {
        let report = look(|node| {
            node.remove("/run/systemd");
            node.file(supervisor, "");
            match verb {
                "status" => node.kill_daemon(),
                _ => node.socket(socket, false),
            }
        });
        let code = if verb == "status" { "SY801" } else { "SY803" };
        let finding = report.findings.iter().find(|finding| finding.code == code);
        let command = finding.expect(code).command.as_deref();
        assert_eq!(
            command.unwrap_or_default(),
            expected,
            "{supervisor} {verb} {service}"
        );
    }
}
