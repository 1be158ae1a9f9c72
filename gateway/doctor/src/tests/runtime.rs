//! 2xx: containerd and runtimes. 3xx: the network.

use switchyard_operator_api::AdvisoryView;

use super::*;

const SOCKET: &str = "/run/containerd/containerd.sock";

fn external(node: &mut TestNode) {
    node.config("[containerd]\nmode = \"external\"");
    node.sockets.insert(SOCKET.into(), true);
    node.file(
        "/etc/containerd/config.toml",
        "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\"]\n",
    );
}

#[test]
fn snapshotters_that_containerd_cannot_use() {
    let fault = "SnapshotterUnusable: the snapshotter overlayfs cannot be used: no d_type";
    for (name, is_needed, detail, expected) in [
        ("runtime", true, fault, "SY209 error"),
        ("snapshotters", false, fault, "SY209 warning"),
        (
            "snapshotters",
            false,
            "SnapshotterUnavailable: stargz: refused",
            "SY802 warning",
        ),
        (
            "runtime",
            true,
            "ContainerdUnavailable: SnapshotterUnusable",
            "SY802 error",
        ),
    ] {
        let change = |status: &mut StatusReport| {
            let part = &mut status.parts[1];
            part.name = name.into();
            part.up = false;
            part.needed = is_needed;
            part.detail = detail.into();
        };
        let found = check(|node| change(node.status.as_mut().unwrap()), &[expected]);
        assert_eq!(found[0].found, format!("{name}: {detail}"));
    }
    // Of the default one both parts say it.
    let both = |status: &mut StatusReport| {
        let part = &mut status.parts[1];
        (part.up, part.detail) = (false, fault.into());
        let mut all = part.clone();
        all.name = "snapshotters".into();
        status.parts.push(all);
    };
    check(|node| both(node.status.as_mut().unwrap()), &["SY209 error"]);
}

#[test]
fn cri_plugin_of_containerd_in_the_same_namespace() {
    check(external, &[]);
    let enabled = "version = 3\ndisabled_plugins = [\"other\"]\n";
    let found = check(
        |node| {
            external(node);
            node.file("/etc/containerd/config.toml", enabled);
        },
        &["SY201 error"],
    );
    assert!(
        found[0].found.contains("/etc/containerd/config.toml"),
        "{found:?}"
    );
    check(
        |node| {
            external(node);
            node.remove("/etc/containerd");
        },
        &["SY201 error"],
    );
    check(
        |node| {
            external(node);
            node.remove("/etc/containerd");
            node.config("[containerd]\nmode = \"external\"\nnamespace = \"switchyard\"");
        },
        &[],
    );
    // The file that the process was started with counts, and what it imports.
    check(
        |node| {
            external(node);
            node.remove("/etc/containerd");
            node.process(300, "/usr/bin/containerd -c /srv/containerd.toml");
            node.file("/srv/containerd.toml", "imports = [\"more.toml\"]\n");
            node.file("/srv/more.toml", "disabled_plugins = [\"cri\"]\n");
        },
        &[],
    );
    check(
        |node| {
            external(node);
            node.file("/etc/containerd/config.toml", "not = toml = at all");
        },
        &["SY208 warning"],
    );
}

#[test]
fn containerd_that_does_not_listen() {
    let stale = |node: &mut TestNode| {
        external(node);
        node.sockets.insert(SOCKET.into(), false);
    };
    check(stale, &["SY202 error"]);
    check(
        |node| {
            external(node);
            node.remove(SOCKET);
        },
        &["SY202 error"],
    );
    let managed = "/run/switchyard/containerd/containerd.sock";
    check(|node| node.socket(managed, false), &["SY202 error"]);
    check(|node| node.remove(managed), &[]);
}

#[test]
fn programs_that_are_missing() {
    check(|node| node.remove("/usr/bin/containerd"), &["SY203 error"]);
    check(|node| node.remove("/usr/bin/runc"), &["SY204 error"]);
    check(|node| node.remove("/usr/bin/crun"), &["SY204 note"]);
    let found = check(
        |node| node.remove("/usr/bin/containerd-shim-runc-v2"),
        &["SY205 error", "SY205 note"],
    );
    assert!(
        found[0].found.contains("containerd-shim-runc-v2"),
        "{found:?}"
    );
}

#[test]
fn versions_with_vulnerabilities_and_old_ones() {
    let advisory = AdvisoryView {
        program: "runc".into(),
        version: "1.1.5".into(),
        ids: vec!["CVE-2024-21626".into()],
    };
    let found = check(
        |node| node.status.as_mut().unwrap().advisories.push(advisory),
        &["SY206 warning"],
    );
    assert!(
        found[0].found.contains("runc 1.1.5: CVE-2024-21626"),
        "{found:?}"
    );
    let report = look(|node| {
        node.kill_daemon();
        node.command("runc --version", "runc version 1.1.5+ds1\ncommit: x\n");
    });
    let mut of_runc = report
        .findings
        .iter()
        .filter(|finding| finding.code == "SY206");
    assert!(
        of_runc
            .next()
            .is_some_and(|finding| finding.found.contains("CVE-2024-21626")),
        "{report:?}"
    );
    let old = "containerd github.com/containerd/containerd 1.5.9~ds1 1.5.9~ds1-1\n";
    check(
        |node| node.command("containerd --version", old),
        &["SY207 error"],
    );
}

const CONFLIST: &str = "/etc/cni/net.d/10-net.conflist";

#[test]
fn network_configurations() {
    check(|node| node.remove(CONFLIST), &["SY301 warning"]);
    check(
        |node| {
            node.remove(CONFLIST);
            node.config("[cri]\nenabled = false");
            node.file("/var/lib/kubelet/config.yaml", "cgroupDriver: systemd\n");
        },
        &[],
    );
    let found = check(
        |node| node.file("/etc/cni/net.d/05-broken.conf", "{\"name\": \"x\"}"),
        &["SY302 warning"],
    );
    assert!(found[0].found.contains("05-broken.conf"), "{found:?}");
    check(
        |node| {
            node.remove(CONFLIST);
            node.file("/etc/cni/net.d/05-broken.conflist", "{");
        },
        &["SY301 warning", "SY302 warning"],
    );
}

#[test]
fn plugins_that_are_missing() {
    let single = r#"{"cniVersion":"0.4.0","name":"x","type":"vendor","ipam":{"type":"dhcp"}}"#;
    let found = check(
        |node| {
            node.remove(CONFLIST);
            node.file("/etc/cni/net.d/10-x.conf", single);
        },
        &["SY303 error", "SY303 error"],
    );
    assert!(
        found[0].found.contains("\"dhcp\"") && found[1].found.contains("\"vendor\""),
        "{found:?}"
    );
    check(
        |node| node.remove("/usr/lib/cni/firewall"),
        &["SY304 error"],
    );
    check(
        |node| node.remove("/usr/lib/cni/portmap"),
        &["SY303 error", "SY304 error"],
    );
    check(|node| node.remove("/usr/bin/iptables"), &["SY305 error"]);
    check(|node| node.remove("/usr/bin/ip6tables"), &["SY305 error"]);
    // Pods on a bridge of the gateway need no configuration, and the plugins of that bridge unless the daemon makes it.
    let on_bridge = |driver: &'static str, nomad: bool| {
        move |node: &mut TestNode| {
            let keys = format!(
                "[cri]\nnetwork = \"bridge\"\n[nomad]\nenabled = {nomad}\n[network.bridge]\ndriver = \"{driver}\""
            );
            node.config(&keys);
            node.remove(CONFLIST);
            node.remove("/usr/lib/cni/firewall");
        }
    };
    check(on_bridge("cni", true), &["SY304 error"]);
    check(on_bridge("native", true), &[]);
    // The agent of this node is not the subject.
    check(on_bridge("cni", false), &["SY304 error", "SY506 error"]);
    check(on_bridge("native", false), &["SY506 error"]);
    let without_programs = |node: &mut TestNode| {
        node.config("[network.bridge]\ndriver = \"native\"");
        node.remove("/usr/bin/iptables");
    };
    check(without_programs, &[]);
}

#[test]
fn what_is_missing_is_installed_by_the_command_of_the_distribution() {
    const BRIDGE: &str = "/usr/lib/cni/bridge";
    const IPTABLES: &str = "/usr/bin/iptables";
    const CONTAINERD: &str = "/usr/bin/containerd";
    for (file, release, missing, code, expected) in [
        (
            "/etc/os-release",
            "ID=debian",
            IPTABLES,
            "SY305",
            "apt-get install iptables",
        ),
        (
            "/etc/os-release",
            "ID=rocky\nID_LIKE=\"rhel centos fedora\"",
            IPTABLES,
            "SY305",
            "dnf install iptables-nft",
        ),
        (
            "/etc/os-release",
            "ID=alpine",
            BRIDGE,
            "SY304",
            "apk add cni-plugins",
        ),
        (
            "/usr/lib/os-release",
            "ID=opensuse-leap\nID_LIKE=\"suse opensuse\"",
            CONTAINERD,
            "SY203",
            "zypper install containerd",
        ),
        ("/etc/os-release", "ID=flatcar", IPTABLES, "SY305", ""),
        ("/etc/os-release", "ID=of-nobody", BRIDGE, "SY304", ""),
    ] {
        let report = look(|node| {
            node.file(file, release);
            node.remove(missing);
        });
        let finding = report.findings.iter().find(|finding| finding.code == code);
        let command = finding.expect(code).command.as_deref();
        assert_eq!(command.unwrap_or_default(), expected, "{release}");
    }
}

#[test]
fn plugins_are_found_where_distributions_have_them() {
    for dir in [
        "/opt/cni/bin",
        "/usr/lib/cni",
        "/usr/libexec/cni",
        "/usr/local/lib/cni",
        "/usr/local/libexec/cni",
    ] {
        check(
            |node| {
                let moved = |program: PathBuf| match program.strip_prefix("/usr/lib/cni") {
                    Ok(name) => Path::new(dir).join(name),
                    Err(_) => program,
                };
                let programs = std::mem::take(&mut node.programs);
                node.programs = programs.into_iter().map(moved).collect();
            },
            &[],
        );
    }
}

#[test]
fn networks_that_overlap() {
    let other = |subnet: &str| {
        format!(
            r#"{{"cniVersion":"1.0.0","name":"b","plugins":[{{"type":"bridge","ipam":{{"type":"host-local","subnet":"{subnet}"}}}}]}}"#
        )
    };
    let path = "/etc/cni/net.d/20-b.conflist";
    let found = check(
        |node| node.file(path, &other("10.85.3.0/24")),
        &["SY307 warning"],
    );
    assert!(
        found[0].found.contains("10-net.conflist has 10.85.0.0/16"),
        "{found:?}"
    );
    let found = check(
        |node| node.file(path, &other("172.26.0.0/16")),
        &["SY307 warning"],
    );
    assert!(
        found[0].found.contains("network.bridge (switchyard0)"),
        "{found:?}"
    );
    check(|node| node.file(path, &other("10.86.0.0/16")), &[]);
}

#[test]
fn port_ranges_that_overlap() {
    let agent = "data_dir = \"/opt/nomad/data\"\nclient {\n  enabled = true\n}\n";
    let found = check(
        |node| node.file("/etc/nomad.d/nomad.hcl", agent),
        &["SY308 warning"],
    );
    assert!(found[0].found.contains("30000 to 32000"), "{found:?}");
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    let found = check(|node| node.file(range, "32000 60999\n"), &["SY308 warning"]);
    assert!(found[0].found.contains("32000 to 32767"), "{found:?}");
    check(
        |node| {
            node.file(range, "32000 60999\n");
            node.file(
                "/proc/sys/net/ipv4/ip_local_reserved_ports",
                "30000-32767\n",
            );
        },
        &[],
    );
    // Whole ranges are reserved, the ports of servers are not.
    let found = check(
        |node| {
            node.file(range, "1024 60999\n");
            node.file(
                "/proc/sys/net/ipv4/ip_local_reserved_ports",
                "20000-32767\n",
            );
        },
        &["SY308 note"],
    );
    assert!(
        found[0].found.contains("9640, 10248, 10250, 4646"),
        "{found:?}"
    );
}

#[test]
fn forwarded_packets_that_are_dropped() {
    let rules = |node: &mut TestNode, rules: &str| {
        node.command("iptables -S FORWARD", &format!("-P FORWARD DROP\n{rules}"));
    };
    check(
        |node| rules(node, "-A FORWARD -i docker0 -j ACCEPT\n"),
        &["SY309 warning"],
    );
    for accepted in [
        "-A FORWARD -i cni0 -j ACCEPT\n",
        // By its addresses alone.
        "-A FORWARD -s 10.85.0.0/16 -j ACCEPT\n",
        "-A FORWARD -j ACCEPT\n",
        "-A FORWARD -j CNI-FORWARD\n",
    ] {
        check(|node| rules(node, accepted), &[]);
    }
    // A legacy iptables would load its module.
    check(
        |node| {
            rules(node, "");
            node.command("iptables --version", "iptables v1.8.9 (legacy)\n");
        },
        &[],
    );
    check(
        |node| {
            rules(node, "");
            node.command("iptables --version", "iptables v1.8.9 (legacy)\n");
            node.file("/proc/net/ip_tables_names", "nat\nfilter\n");
        },
        &["SY309 warning"],
    );
}

/// Reserves addresses of the network of pods, from the second one on, as host-local does.
fn reserve(node: &mut TestNode, count: u8, holder: &str) {
    for last in 2..2 + count {
        let path = format!("/var/lib/cni/networks/net/10.9.0.{last}");
        node.file(&path, &format!("{holder}\r\neth0"));
    }
    node.file("/var/lib/cni/networks/net/last_reserved_ip.0", "10.9.0.2");
}

#[test]
fn addresses_that_are_nearly_used_up() {
    // Fourteen addresses, one of which is the gateway's.
    let ipam = r#"{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/28"}]]}"#;
    let network = |node: &mut TestNode, ipam: &str, count: u8, holder: &str| {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{{"type":"bridge","bridge":"cni0","capabilities":{{"ipRanges":true}},"ipam":{ipam}}}]}}"#
        );
        node.file(CONFLIST, &text);
        reserve(node, count, holder);
    };
    check(|node| network(node, ipam, 11, "stranger"), &[]);
    let found = check(
        |node| network(node, ipam, 12, "stranger"),
        &["SY310 warning"],
    );
    let text = "net: 12 of 13 addresses are in use (10.9.0.1 to 10.9.0.14); 12 of them for containers that the daemon does not \
                know: 10.9.0.10 (stranger), 10.9.0.11 (stranger), 10.9.0.12 (stranger) and 9 more";
    assert_eq!(found[0].found, text);
    let found = check(
        |node| {
            network(node, ipam, 13, "known");
            node.objects.unreadable.push(UnreadableView {
                id: "known".into(),
                kind: "sandbox".into(),
                owner: "kubernetes".into(),
                name: String::new(),
                reason: "of version 9".into(),
            });
        },
        &["SY310 error"],
    );
    assert!(!found[0].found.contains("does not know"), "{found:?}");
    // A part of the range, and the ranges of the node.
    let part = r#"{"type":"host-local","subnet":"10.9.0.0/24","rangeStart":"10.9.0.2","rangeEnd":"10.9.0.5"}"#;
    check(|node| network(node, part, 4, "stranger"), &["SY310 error"]);
    check(
        |node| {
            network(node, r#"{"type":"host-local"}"#, 13, "stranger");
            let facts = &mut node.status.as_mut().unwrap().facts;
            facts.insert("network.ranges".into(), "kubernetes: 10.9.0.0/28".into());
        },
        &["SY310 error"],
    );
    // The bridges of the gateway: that of pods, and its own.
    for ranges in ["subnets = [\"10.9.0.0/28\"]", ""] {
        let on_bridge = |node: &mut TestNode| {
            node.remove(CONFLIST);
            node.config(&format!(
                "[cri]\nnetwork = \"bridge\"\n[network.pods]\nname = \"net\"\n{ranges}"
            ));
            if ranges.is_empty() {
                let facts = &mut node.status.as_mut().unwrap().facts;
                facts.insert("network.ranges".into(), "kubernetes: 10.9.0.0/28".into());
            }
            reserve(node, 13, "stranger");
        };
        check(on_bridge, &["SY310 error"]);
    }
    check(
        |node| {
            node.config("[network.bridge]\nname = \"net\"\nsubnets = [\"10.9.0.0/28\"]");
            reserve(node, 13, "stranger");
        },
        &["SY310 error"],
    );
}
