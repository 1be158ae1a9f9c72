//! 3xx: IPv6, routes and DNS servers.

use super::*;

/// The configuration of the network of pods.
const CONFLIST: &str = "/etc/cni/net.d/10-net.conflist";

/// A network of pods with these ranges.
pub(super) fn pods_on(node: &mut TestNode, ranges: &[&str]) {
    let ranges: Vec<String> = ranges
        .iter()
        .map(|range| format!(r#"[{{"subnet":"{range}"}}]"#))
        .collect();
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{{"type":"bridge","bridge":"cni0","ipam":{{"type":"host-local","ranges":[{}]}}}}]}}"#,
        ranges.join(",")
    );
    node.file(CONFLIST, &text);
}

/// A node without a Nomad agent whose pods are on a bridge of the gateway: with these ranges by the status of the daemon, and
/// more of the configuration, which begins in the section of that bridge.
pub(super) fn pods_on_bridge(node: &mut TestNode, told: &str, more: &str) {
    node.remove("/etc/nomad.d");
    node.remove("/proc/201");
    node.config(&format!(
        "[cri]\nnetwork = \"bridge\"\n[network.pods]\n{more}"
    ));
    if !told.is_empty() {
        let facts = &mut node.status.as_mut().unwrap().facts;
        facts.insert("network.ranges".into(), format!("kubernetes: {told}"));
    }
}

#[test]
fn bridge_of_pods_that_has_ipv6() {
    type Change = fn(&mut TestNode);
    let troubles: [(Change, &str); 5] = [
        (
            |node| node.file("/proc/sys/net/ipv6/conf/all/forwarding", "0\n"),
            "SY103 warning",
        ),
        (
            |node| node.file("/proc/sys/net/bridge/bridge-nf-call-ip6tables", "0\n"),
            "SY104 warning",
        ),
        (|node| node.remove("/proc/net/if_inet6"), "SY313 error"),
        (
            |node| {
                let dir = "/proc/sys/net/ipv6/conf/switchyard-pods";
                node.file(&format!("{dir}/disable_ipv6"), "1\n");
            },
            "SY313 error",
        ),
        (
            |node| {
                let learnt = "20010db8000000000000000000000005 02 40 00 00 eth0\n";
                node.file("/proc/net/if_inet6", learnt);
                node.file("/proc/sys/net/ipv6/conf/eth0/accept_ra", "1\n");
            },
            "SY314 warning",
        ),
    ];
    let six = "subnets = [\"fd00:244:3::/64\"]";
    for (change, code) in troubles {
        for (told, config, has_six) in [
            ("10.244.3.0/24, fd00:244:3::/64", "", true),
            ("", six, true),
            // The configuration's ranges have no effect then.
            ("10.244.3.0/24", six, false),
            ("", "", false),
        ] {
            let found = [code];
            let expected = if has_six { &found[..] } else { &[] };
            check(
                |node| {
                    pods_on_bridge(node, told, config);
                    change(node);
                },
                expected,
            );
        }
        // A CNI configuration has no effect there.
        check(
            |node| {
                pods_on_bridge(node, "10.244.3.0/24", "");
                pods_on(node, &["fd00:85::/64"]);
                change(node);
            },
            &[],
        );
    }
    // Without known ranges it counts as one of IPv4.
    for (config, expected) in [("", &["SY103 warning"][..]), (six, &[][..])] {
        check(
            |node| {
                pods_on_bridge(node, "", config);
                node.file("/proc/sys/net/ipv4/ip_forward", "0\n");
            },
            expected,
        );
    }
}

#[test]
fn bridge_of_pods_that_overlaps_another_network() {
    // Of a network add-on that was there before, and of the gateway's own bridge.
    for (told, other) in [
        ("10.85.3.0/24", CONFLIST),
        ("172.26.80.0/24", "network.bridge (switchyard0)"),
    ] {
        let found = check(|node| pods_on_bridge(node, told, ""), &["SY307 warning"]);
        let text = &found[0].found;
        assert!(text.contains("network.pods (switchyard-pods)"), "{text}");
        assert!(text.contains(other), "{text}");
    }
    check(|node| pods_on_bridge(node, "10.244.3.0/24", ""), &[]);
}

#[test]
fn node_without_ipv6_for_its_networks() {
    let dual = "[network.bridge]\nsubnets = [\"172.26.80.0/20\", \"fd00:1::/64\"]";
    let default = format!(
        "{0} 00 {0} 00 {0} 00000100 00000001 00000000 00000001 eth0\n",
        "0".repeat(32)
    );
    let route = |node: &mut TestNode| node.file("/proc/net/ipv6_route", &default);
    // Clients may use IPv6, which does not lead to published ports.
    let found = check(route, &["SY312 note"]);
    assert!(found[0].found.contains("by eth0"), "{found:?}");
    check(
        |node| {
            route(node);
            node.config(dual);
        },
        &[],
    );
    // A node without tasks publishes no ports.
    check(
        |node| {
            route(node);
            node.config("[nomad]\nenabled = false");
        },
        &["SY506 error"],
    );
    let none = |node: &mut TestNode| node.remove("/proc/net/if_inet6");
    check(none, &[]);
    check(
        |node| {
            none(node);
            node.config(dual);
        },
        &["SY313 error"],
    );
    // Disabled for interfaces that are made, or for the bridge that is there.
    for (interface, expected) in [
        ("default", &["SY313 error"][..]),
        ("switchyard0", &["SY313 error"][..]),
        ("eth0", &[][..]),
    ] {
        let found = check(
            |node| {
                node.config(dual);
                let dir = "/proc/sys/net/ipv6/conf";
                node.file(&format!("{dir}/{interface}/disable_ipv6"), "1\n");
            },
            expected,
        );
        let command = format!("sysctl -w net/ipv6/conf/{interface}/disable_ipv6=0");
        let is_told = |one: &Finding| one.command.as_ref() == Some(&command);
        assert!(found.iter().all(is_told), "{found:?}");
    }
    let pods = |gateway: &str| {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"net","plugins":[{{"type":"bridge"{gateway},"ipam":{{"type":"host-local","subnet":"fd00:85::/64"}}}}]}}"#
        );
        move |node: &mut TestNode| {
            node.file(CONFLIST, &text);
            node.file("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1\n");
        }
    };
    check(pods(r#","isGateway":true"#), &["SY313 error"]);
    check(pods(r#","isDefaultGateway":true"#), &["SY313 error"]);
    // Such a bridge gets no address.
    check(pods(""), &[]);
}

/// Whether forwarding is to be switched on or is on.
#[test]
fn cure_is_for_all_interfaces_that_listen_to_routers() {
    let dual = "[network.bridge]\nsubnets = [\"172.26.80.0/20\", \"fd00:1::/64\"]";
    let lost = &["SY314 warning"][..];
    let two = "20010db8000000000000000000000005 02 40 00 00 eth0\n\
               20010db8000000000000000000000006 03 40 00 00 wlan0.7\n";
    let both = "sysctl -w net/ipv6/conf/eth0/accept_ra=2 net/ipv6/conf/wlan0.7/accept_ra=2";
    let switched_on = format!("{both} net.ipv6.conf.all.forwarding=1");
    for (forwarding, expected, cures) in [
        ("1\n", lost, vec![both]),
        (
            "0\n",
            &["SY103 warning", "SY314 warning"][..],
            vec![both, switched_on.as_str()],
        ),
    ] {
        let found = check(
            |node| {
                node.config(dual);
                node.file("/proc/net/if_inet6", two);
                for interface in ["eth0", "wlan0.7"] {
                    let dir = format!("/proc/sys/net/ipv6/conf/{interface}");
                    node.file(&format!("{dir}/accept_ra"), "1\n");
                }
                node.file("/proc/sys/net/ipv6/conf/all/forwarding", forwarding);
            },
            expected,
        );
        let commands = found.iter().filter_map(|one| one.command.as_deref());
        let mut commands: Vec<&str> = commands.collect();
        commands.sort_unstable();
        assert_eq!(commands, cures, "{forwarding}");
    }
}

#[test]
fn node_that_loses_its_routes_of_ipv6_once_it_forwards() {
    let dual = "[network.bridge]\nsubnets = [\"172.26.80.0/20\", \"fd00:1::/64\"]";
    let learnt = "20010db8000000000000000000000005 02 40 00 00 eth0\n";
    let given = "20010db8000000000000000000000005 02 40 00 80 eth0\n";
    let link_local = "fe800000000000000000000000000005 02 40 20 00 eth0\n";
    let lost = &["SY314 warning"][..];
    let cases: [(&str, &str, &str, &[&str]); 6] = [
        (dual, learnt, "1\n", lost),
        ("", learnt, "1\n", &[]),
        (dual, given, "1\n", &[]),
        (dual, link_local, "1\n", &[]),
        // The kernel goes on listening to routers, or another program does.
        (dual, learnt, "2\n", &[]),
        (dual, learnt, "0\n", &[]),
    ];
    for (config, address, accept_ra, expected) in cases {
        let found = check(
            |node| {
                node.config(config);
                node.file("/proc/net/if_inet6", address);
                node.file("/proc/sys/net/ipv6/conf/eth0/accept_ra", accept_ra);
            },
            expected,
        );
        let is_named = |one: &Finding| one.found.ends_with("accept_ra = 1 of eth0");
        assert!(found.iter().all(is_named), "{found:?}");
    }
    // Forwarding was switched off by hand: the cure costs no route.
    let found = check(
        |node| {
            node.config(dual);
            node.file("/proc/net/if_inet6", learnt);
            node.file("/proc/sys/net/ipv6/conf/eth0/accept_ra", "1\n");
            node.file("/proc/sys/net/ipv6/conf/all/forwarding", "0\n");
        },
        &["SY103 warning", "SY314 warning"],
    );
    let cure = "sysctl -w net/ipv6/conf/eth0/accept_ra=2 net.ipv6.conf.all.forwarding=1";
    let mut commands = found.iter().filter_map(|one| one.command.as_deref());
    assert!(commands.any(|command| command == cure), "{found:?}");
    // The default route alone, beside an address that was given, as where an operator gives addresses.
    let zero = "0".repeat(32);
    let route = format!("{zero} 00 {zero} 00 {zero} 00000400 00000001 00000000 00450003 eth0\n");
    check(
        |node| {
            node.config(dual);
            node.file("/proc/net/if_inet6", given);
            node.file("/proc/net/ipv6_route", &route);
            node.file("/proc/sys/net/ipv6/conf/eth0/accept_ra", "1\n");
        },
        lost,
    );
    check(
        |node| {
            pods_on(node, &["10.85.0.0/16", "fd00:85::/64"]);
            node.file("/proc/net/if_inet6", learnt);
            node.file("/proc/sys/net/ipv6/conf/eth0/accept_ra", "1\n");
        },
        lost,
    );
}

#[test]
fn tasks_without_a_dns_server() {
    let told = |texts: &[(&str, &str)], config: &str, expected: &[&str]| {
        check(
            |node| {
                node.config(config);
                for (path, text) in texts {
                    node.file(path, text);
                }
            },
            expected,
        )
    };
    let own = "/etc/resolv.conf";
    let missing = &["SY311 warning"];
    let found = told(
        &[(own, "nameserver 127.0.0.1\nnameserver fe80::1%eth0\n")],
        "",
        missing,
    );
    assert!(
        found[0]
            .found
            .contains("127.0.0.1 is an address of the node's own loopback, fe80::1%eth0"),
        "{found:?}"
    );
    told(&[(own, "nameserver fd00::53\n")], "", missing);
    told(&[(own, "search a.test\n")], "", missing);
    let six = "[network.bridge]\nsubnets = [\"fd00:5::/64\"]";
    told(&[(own, "nameserver fd00::53\n")], six, &[]);
    told(&[(own, "nameserver 192.0.2.53\n")], six, missing);
    let local = (own, "nameserver 127.0.0.53\n");
    told(&[local], "[network]\ndns = [\"192.0.2.53\"]", &[]);
    told(
        &[local],
        "[network]\ndns = [\"fd00::53\", \"192.0.2.53\"]",
        &[],
    );
    let other = "[network]\ndns = [\"fd00::53\"]";
    told(&[(own, "nameserver 192.0.2.53\n")], other, &[]);
    let found = told(&[local], other, missing);
    assert!(
        found[0].found.contains("fd00::53 (network.dns)"),
        "{found:?}"
    );
    for upstream in [
        "/run/systemd/resolve/resolv.conf",
        "/run/NetworkManager/no-stub-resolv.conf",
    ] {
        told(&[local, (upstream, "nameserver 192.0.2.53\n")], "", &[]);
    }
}

#[test]
fn forwarded_packets_of_ipv6_that_are_dropped() {
    let dropped = |node: &mut TestNode| {
        node.command("ip6tables --version", "ip6tables v1.8.9 (nf_tables)\n");
        node.command("ip6tables -S FORWARD", "-P FORWARD DROP\n");
    };
    check(dropped, &[]);
    let found = check(
        |node| {
            dropped(node);
            node.file(
                CONFLIST,
                r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","subnet":"fd00:85::/64"}}]}"#,
            );
        },
        &["SY309 warning"],
    );
    assert!(found[0].found.starts_with("ip6tables: "), "{found:?}");
}

#[test]
fn bridge_that_overlaps_a_route() {
    let [to, mask] = [[172, 26, 64, 0], [255, 255, 0, 0]].map(u32::from_ne_bytes);
    let route = |interface: &str| {
        format!(
            "Iface\tDestination\n{interface}\t{to:08X}\t00000000\t0001\t0\t0\t0\t{mask:08X}\t0\t0\t0\n"
        )
    };
    let found = check(
        |node| node.file("/proc/net/route", &route("eth1")),
        &["SY306 error"],
    );
    assert!(
        found[0].found.contains("172.26.0.0/16 by eth1"),
        "{found:?}"
    );
    check(
        |node| node.file("/proc/net/route", &route("switchyard0")),
        &[],
    );
    let default =
        "Iface\tDestination\neth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
    check(|node| node.file("/proc/net/route", default), &[]);
    let zero = "0".repeat(32);
    let six = |to: &str, interface: &str| {
        format!("{to} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001 {interface}\n")
    };
    let dual = "[network.bridge]\nsubnets = [\"fd00:5::/60\"]";
    check(
        |node| {
            node.config(dual);
            node.file(
                "/proc/net/ipv6_route",
                &six("fd000005000000000000000000000000", "eth1"),
            );
        },
        &["SY306 error"],
    );
    for (to, interface) in [
        ("fe800000000000000000000000000000", "eth1"),
        ("fd000005000000000000000000000000", "switchyard0"),
    ] {
        check(
            |node| {
                node.config(dual);
                node.file("/proc/net/ipv6_route", &six(to, interface));
            },
            &[],
        );
    }
    // Half of all addresses, as a program for a VPN adds it.
    let half = u32::from_ne_bytes([128, 0, 0, 0]);
    let text = format!(
        "Iface\tDestination\ntun0\t{half:08X}\t00000000\t0001\t0\t0\t0\t{half:08X}\t0\t0\t0\n"
    );
    check(|node| node.file("/proc/net/route", &text), &[]);
}

/// The daemon decides before it makes the bridge.
#[test]
fn bridge_that_has_a_range_of_ipv6_by_itself() {
    let range = "fd33:fbb1:fdc2:c40e::/64\n";
    let off = "[network.bridge]\nipv6 = false";
    let on = "[network.bridge]\nipv6 = true";
    let configured = "[network.bridge]\nsubnets = [\"172.26.80.0/20\", \"fd00:26:80::/64\"]";
    for (record, device, config, has_six) in [
        (range, "switchyard0", on, true),
        (range, "switchyard1", on, false),
        ("none\n", "switchyard0", on, false),
        (
            "withheld fd33:fbb1:fdc2:c40e::/64\n",
            "switchyard0",
            on,
            false,
        ),
        ("", "switchyard0", on, false),
        (range, "switchyard0", off, false),
        (range, "switchyard1", configured, true),
    ] {
        let found = ["SY103 warning"];
        let expected = if has_six { &found[..] } else { &[] };
        let forwards = "/proc/sys/net/ipv6/conf/all/forwarding";
        check(
            |node| {
                node.config(config);
                node.file("/var/lib/switchyard/network/switchyard0.ipv6", record);
                node.file(&format!("/sys/class/net/{device}/ifindex"), "7\n");
                node.file(forwards, "0\n");
            },
            expected,
        );
    }
}

#[test]
fn ports_answer_on_ipv6_once_the_bridge_is_made_with_its_range() {
    let default = format!(
        "{0} 00 {0} 00 {0} 00000100 00000001 00000000 00000001 eth0\n",
        "0".repeat(32)
    );
    let only_four = &["SY312 note"][..];
    for (record, config, expected) in [
        ("fd33:fbb1:fdc2:c40e::/64\n", "", &[][..]),
        (
            "fd33:fbb1:fdc2:c40e::/64\n",
            "[network.bridge]\nipv6 = false",
            only_four,
        ),
        ("withheld fd33:fbb1:fdc2:c40e::/64\n", "", only_four),
        ("none\n", "", only_four),
        ("", "", only_four),
    ] {
        check(
            |node| {
                node.config(config);
                node.file("/proc/net/ipv6_route", &default);
                node.file("/var/lib/switchyard/network/switchyard0.ipv6", record);
            },
            expected,
        );
    }
}
