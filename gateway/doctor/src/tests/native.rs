//! Findings about the network without CNI plugins.

use super::ipv6::pods_on_bridge;
use super::*;
use crate::NetworkTable;

/// A node whose driver is native, with more keys of its bridge.
fn native(node: &mut TestNode, more: &str) {
    node.config(&format!("[network.bridge]\ndriver = \"native\"\n{more}"));
}

const SIX: &str = "subnets = [\"172.26.80.0/20\", \"fd00:26:80::/64\"]";

/// Removes a module of the kernel.
fn without(node: &mut TestNode, module: &str) {
    let lists = "/lib/modules/6.1.0/modules.dep";
    let text = node.files[Path::new(lists)].clone();
    let kept = text
        .lines()
        .filter(|line| !line.contains(&format!("/{module}.ko")));
    let kept: Vec<&str> = kept.collect();
    node.file(lists, &kept.join("\n"));
}

#[test]
fn kernel_without_what_the_tables_need() {
    check(|node| native(node, ""), &[]);
    check(|node| native(node, SIX), &[]);
    for module in [
        "nft_nat",
        "nft_chain_nat",
        "nft_masq",
        "nft_ct",
        "nft_fib_ipv4",
    ] {
        let lacking = |node: &mut TestNode| {
            native(node, "");
            without(node, module);
        };
        let found = check(lacking, &["SY315 warning"]);
        assert!(found[0].found.ends_with(module), "{found:?}");
        // Plugins do not need it.
        check(|node| without(node, module), &[]);
        let loaded = |node: &mut TestNode| {
            native(node, "");
            without(node, module);
            node.file(&format!("/sys/module/{module}/refcnt"), "1\n");
        };
        check(loaded, &[]);
    }
    let for_six = |more: &'static str| {
        move |node: &mut TestNode| {
            native(node, more);
            without(node, "nft_fib_ipv6");
        }
    };
    check(for_six(""), &[]);
    // A node without tasks has no such bridge.
    let without_tasks = |node: &mut TestNode| {
        without(node, "nft_nat");
        node.config("[network.bridge]\ndriver = \"native\"\n[nomad]\nenabled = false");
    };
    check(without_tasks, &["SY506 error"]);
    check(for_six(SIX), &["SY315 warning"]);
}

/// A node whose policy drops what is forwarded, with these rules.
fn forward(node: &mut TestNode, rules: &str) {
    node.command("iptables -S FORWARD", &format!("-P FORWARD DROP\n{rules}"));
    // The network of pods is not the subject.
    node.file(
        "/etc/cni/net.d/10-net.conflist",
        r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/16"}]]}},{"type":"firewall"}]}"#,
    );
    native(node, "");
}

#[test]
fn forwarded_packets_of_the_bridge_that_are_dropped() {
    let docker = "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n";
    let ufw = "-A FORWARD -j ufw-before-forward\n";
    let plugins = "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n";
    for (rules, cure) in [
        (
            "",
            "iptables -I FORWARD -i switchyard0 -o switchyard0 -j ACCEPT && iptables -I FORWARD -s 172.26.80.0/20 -i switchyard0 -j ACCEPT && iptables -I FORWARD -o switchyard0 -m conntrack",
        ),
        (
            "-A FORWARD -i docker0 -j ACCEPT\n",
            "iptables -I FORWARD -i",
        ),
        // It accepts addresses of its own containers.
        (plugins, "iptables -I FORWARD -i"),
        (docker, "iptables -I DOCKER-USER -i switchyard0"),
        (
            ufw,
            "ufw route allow in on switchyard0 from 172.26.80.0/20 && ufw route allow out on switchyard0",
        ),
    ] {
        let found = check(|node| forward(node, rules), &["SY316 warning"]);
        let command = found[0].command.as_deref().unwrap();
        assert!(command.starts_with(cure), "{rules}: {command}");
    }
    let none = ("iptables -S NONE", "");
    for (rules, (command, accepted)) in [
        ("-A FORWARD -j ACCEPT\n", none),
        (
            "-A FORWARD -i switchyard0 -j ACCEPT\n-A FORWARD -o switchyard0 -j ACCEPT\n",
            none,
        ),
        // As the daemon adds it.
        (
            "-A FORWARD -j DOCKER-USER\n\
             -A FORWARD -i switchyard0 -o switchyard0 -m comment --comment switchyard -j ACCEPT\n\
             -A FORWARD -s 172.26.80.0/20 -i switchyard0 -m comment --comment switchyard -j ACCEPT\n\
             -A FORWARD -o switchyard0 -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -m comment --comment switchyard -j ACCEPT\n",
            none,
        ),
        // As a firewall has it for all answers.
        (
            "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -i switchyard0 ! -o switchyard0 -j ACCEPT\n",
            none,
        ),
        (
            docker,
            (
                "iptables -S DOCKER-USER",
                "-N DOCKER-USER\n-A DOCKER-USER -i switchyard0 -j ACCEPT\n-A DOCKER-USER -o switchyard0 -j ACCEPT\n",
            ),
        ),
        (
            ufw,
            (
                "iptables -S ufw-user-forward",
                "-N ufw-user-forward\n-A ufw-user-forward -i switchyard0 -j ACCEPT\n-A ufw-user-forward -o switchyard0 -j ACCEPT\n",
            ),
        ),
    ] {
        let accepts = |node: &mut TestNode| {
            forward(node, rules);
            let before = "-N ufw-before-forward\n-A ufw-before-forward -j ufw-user-forward\n";
            node.command("iptables -S ufw-before-forward", before);
            node.command(command, accepted);
        };
        check(accepts, &[]);
    }
    // With plugins, the plugin firewall accepts them.
    let cni = |node: &mut TestNode| {
        forward(node, docker);
        node.config("");
    };
    check(cni, &[]);
}

#[test]
fn forwarded_packets_of_the_bridge_that_are_dropped_one_way() {
    let [all, goes, comes] = ["", "what goes to ", "what comes from "];
    for (rules, lacking) in [
        ("-A FORWARD -i switchyard0 -j ACCEPT\n", goes),
        (
            "-A FORWARD -s 172.26.80.0/20 -i switchyard0 -m comment --comment switchyard -j ACCEPT\n",
            goes,
        ),
        ("-A FORWARD -o switchyard0 -j ACCEPT\n", comes),
        (
            "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n",
            comes,
        ),
        // Those of another bridge, and of neighbours.
        (
            "-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n",
            all,
        ),
        ("-A FORWARD -i switchyard0 -o switchyard0 -j ACCEPT\n", all),
        (
            "-A FORWARD -i docker0 ! -o switchyard0 -j ACCEPT\n-A FORWARD ! -i switchyard0 -o docker0 -j ACCEPT\n",
            all,
        ),
        ("-A FORWARD -i switchyard0 -j DROP\n", all),
    ] {
        let found = check(|node| forward(node, rules), &["SY316 warning"]);
        let expected = format!("no rule accepts {lacking}switchyard0");
        assert!(found[0].found.ends_with(&expected), "{rules}: {found:?}");
    }
}

/// As operators write it: by the device or the addresses at the other end alone.
#[test]
fn forwarded_packets_that_are_accepted_by_an_uplink_or_a_subnet_alone() {
    let [none, goes, comes, all] = [
        None,
        Some("what goes to "),
        Some("what comes from "),
        Some(""),
    ];
    let from = "-A FORWARD -i switchyard0 -j ACCEPT\n";
    let to = "-A FORWARD -o switchyard0 -j ACCEPT\n";
    let state = "-m conntrack --ctstate RELATED,ESTABLISHED";
    for (first, rule, lacking) in [
        // Answers that come by one uplink, or all that comes by it.
        (from, format!("-i eth0 {state}"), none),
        (from, "-i eth0 -m state --state ESTABLISHED".into(), none),
        (from, "-i eth0".into(), none),
        (from, format!("-i eth+ {state}"), none),
        (from, format!("-i wl+ {state}"), goes),
        (from, format!("-i eth1 {state}"), goes),
        (from, format!("! -i eth0 {state}"), goes),
        (from, "-i eth0 -o docker0".into(), goes),
        (from, "-i eth0 -p tcp -m tcp --dport 22".into(), goes),
        (from, "-i eth0 -m mark --mark 0x1".into(), goes),
        // What begins a connection to a published port, but no answers; some senders alone.
        (from, "-i eth0 -m conntrack --ctstatus DNAT".into(), goes),
        (from, "-i eth0 -m conntrack --ctdir ORIGINAL".into(), goes),
        (from, "-i eth0 -m rpfilter".into(), goes),
        (
            from,
            format!("-i eth0 -m comment --comment \"uplink to all\" {state}"),
            none,
        ),
        // What goes to addresses of the bridge.
        (from, "-d 172.26.80.0/20".into(), none),
        (from, format!("-d 172.16.0.0/12 {state}"), none),
        (from, format!("-d 172.26.80.0/20 -i eth0 {state}"), none),
        (from, "-d 172.26.80.0/24".into(), goes),
        (from, "! -d 172.26.80.0/20".into(), goes),
        (from, "-s 192.0.2.0/24 -d 172.26.80.0/20".into(), goes),
        // And the other way.
        (to, "-s 172.26.80.0/20".into(), none),
        (to, "-s 172.26.80.0/20 -o eth0".into(), none),
        (to, "-o eth0".into(), none),
        (to, "-i switchyard+ ! -o switchyard+".into(), none),
        (
            to,
            "-s 172.26.80.0/20 -m conntrack --ctstate NEW".into(),
            comes,
        ),
        (
            to,
            "-s 172.26.80.0/20 -m conntrack --ctstate NEW,ESTABLISHED".into(),
            none,
        ),
        (to, "-o eth1".into(), comes),
        (to, "-s 172.26.96.0/20".into(), comes),
        (to, format!("-s 172.26.80.0/20 {state}"), comes),
        ("", "-m mark --mark 0x1".into(), all),
    ] {
        let rules = format!("{first}-A FORWARD {rule} -j ACCEPT\n");
        let accepts = |node: &mut TestNode| {
            forward(node, &rules);
            let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                          eth0\t00000000\t01010101\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
            node.file("/proc/net/route", routes);
        };
        let Some(lacking) = lacking else {
            check(accepts, &[]);
            continue;
        };
        let found = check(accepts, &["SY316 warning"]);
        let expected = format!("no rule accepts {lacking}switchyard0");
        assert!(found[0].found.ends_with(&expected), "{rules}: {found:?}");
    }
    // Without a default route no interface is known to be an uplink.
    let rules = format!("{from}-A FORWARD -i eth0 {state} -j ACCEPT\n");
    check(|node| forward(node, &rules), &["SY316 warning"]);
}

#[test]
fn forwarded_packets_that_are_accepted_by_one_of_several_uplinks() {
    let from = "-A FORWARD -i switchyard0 -j ACCEPT\n";
    let state = "-m conntrack --ctstate RELATED,ESTABLISHED";
    let routes = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                  eth0\t00000000\t01010101\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                  wlan0\t00000000\t01010101\t0003\t0\t0\t600\t00000000\t0\t0\t0\n";
    for (rule, found) in [
        (
            format!("-i eth0 {state}"),
            "no rule accepts what goes to switchyard0 by wlan0",
        ),
        (
            format!("-i ppp0 {state}"),
            "no rule accepts what goes to switchyard0",
        ),
    ] {
        let rules = format!("{from}-A FORWARD {rule} -j ACCEPT\n");
        let accepts = |node: &mut TestNode| {
            forward(node, &rules);
            node.file("/proc/net/route", routes);
        };
        let told = check(accepts, &["SY316 warning"]);
        assert!(told[0].found.ends_with(found), "{rules}: {told:?}");
    }
}

#[test]
fn rules_are_added_by_ufw_in_both_families() {
    let ufw = |node: &mut TestNode| {
        let ranges = "10.244.3.0/24, fd00:244:3::/64";
        pods_on_bridge(node, ranges, "[network.bridge]\ndriver = \"native\"");
        node.file("/sys/class/net/switchyard-pods/brif/veth0", "");
        node.command("ip6tables --version", "ip6tables v1.8.9 (nf_tables)\n");
        for (list, chain) in [
            ("iptables -S FORWARD", "ufw-before-forward"),
            ("ip6tables -S FORWARD", "ufw6-before-forward"),
        ] {
            let rules = format!("-P FORWARD DROP\n-A FORWARD -j {chain}\n");
            node.command(list, &rules);
        }
    };
    let found = check(ufw, &["SY316 warning"; 2]);
    for one in &found {
        let command = one.command.as_deref().unwrap();
        let begins = "ufw route allow in on switchyard-pods from ";
        assert!(command.starts_with(begins), "{found:?}");
    }
}

#[test]
fn bridge_of_pods_without_the_kernel_or_the_filter_for_it() {
    let native = "[network.bridge]\ndriver = \"native\"";
    let [four, both] = ["10.244.3.0/24", "10.244.3.0/24, fd00:244:3::/64"];
    let lacks = &["SY315 warning"][..];
    let modules: [(&str, &str, &[&str]); 4] = [
        (four, "nft_nat", lacks),
        (both, "nft_fib_ipv6", lacks),
        (four, "nft_fib_ipv6", &[]),
        // As one of IPv4.
        ("", "nft_fib_ipv4", lacks),
    ];
    for (told, module, expected) in modules {
        let lacking = |node: &mut TestNode| {
            pods_on_bridge(node, told, native);
            without(node, module);
        };
        check(lacking, expected);
        // Plugins do not need it.
        let with_plugins = |node: &mut TestNode| {
            lacking(node);
            pods_on_bridge(node, told, "");
        };
        check(with_plugins, &[]);
    }
    let without_pods = |node: &mut TestNode, told: &str, rules: &str| {
        pods_on_bridge(node, told, native);
        let forward = format!("-P FORWARD DROP\n{rules}");
        node.command("iptables -S FORWARD", &forward);
        node.command("ip6tables --version", "ip6tables v1.8.9 (nf_tables)\n");
        node.command("ip6tables -S FORWARD", &forward);
    };
    let dropped = |node: &mut TestNode, told: &str, rules: &str| {
        without_pods(node, told, rules);
        node.file("/sys/class/net/switchyard-pods/brif/veth0", "");
    };
    let own = "-A FORWARD -i switchyard0 -j ACCEPT\n";
    // By one filter, or by that of each family.
    let twice = ["SY316 warning"; 2];
    let of_four = "iptables -I FORWARD -s 10.244.3.0/24 -i switchyard-pods -j ACCEPT";
    let of_six = "ip6tables -I FORWARD -s fd00:244:3::/64 -i switchyard-pods -j ACCEPT";
    for (told, cures) in [
        // The daemon has the ranges on record.
        ("", &["systemctl restart switchyard"][..]),
        (four, &[of_four][..]),
        (both, &[of_four, of_six][..]),
    ] {
        let found = check(|node| dropped(node, told, own), &twice[..cures.len()]);
        let is_named = |one: &Finding| one.found.ends_with("no rule accepts switchyard-pods");
        assert!(found.iter().all(is_named), "{found:?}");
        for cure in cures {
            let mut commands = found.iter().filter_map(|one| one.command.as_deref());
            assert!(commands.any(|one| one.contains(cure)), "{found:?}");
        }
        // Before the first pod the daemon has no rules for it, whether there is a bridge or not.
        check(|node| without_pods(node, told, own), &[]);
        let made = |node: &mut TestNode| {
            without_pods(node, told, own);
            node.file("/sys/class/net/switchyard-pods/bridge/stp_state", "0\n");
            node.file("/sys/class/net/switchyard0/brif/veth0", "");
        };
        check(made, &[]);
    }
    // As the daemon adds it.
    let added = "-A FORWARD -s 10.244.3.0/24 -i switchyard-pods -m comment --comment switchyard -j ACCEPT\n\
                 -A FORWARD -o switchyard-pods -m conntrack --ctstate RELATED,ESTABLISHED,DNAT -m comment --comment switchyard -j ACCEPT\n";
    check(|node| dropped(node, four, added), &[]);
    // Also where only the daemon knows the ranges.
    check(|node| dropped(node, "", added), &[]);
    // On a node with tasks of Nomad both bridges are looked at.
    let of_both = |node: &mut TestNode| {
        dropped(node, four, "");
        let plugins = "client {\n  max_dynamic_port = 29999\n}\nplugin \"switchyard\" {}\nplugin \"switchyard-device\" {}\n";
        node.file("/etc/nomad.d/switchyard.hcl", plugins);
    };
    check(of_both, &twice);
}

#[test]
fn table_that_others_have_changed() {
    let table = |name: &str, intact| NetworkTable {
        name: name.to_owned(),
        intact,
    };
    let tables = [
        table("ip switchyard", true),
        table("ip6 switchyard", false),
        table("ip switchyard_second", false),
    ];
    let of = |tables: Vec<NetworkTable>| move |node: &mut TestNode| node.tables = Ok(tables);
    check(of(tables[..1].to_vec()), &[]);
    // Whatever the driver is by now.
    let found = check(of(tables.to_vec()), &["SY317 warning"]);
    let names = "ip switchyard_second, ip6 switchyard";
    assert!(found[0].found.contains(names), "{found:?}");
    // A look would load the module, or is not permitted.
    let no_module = |node: &mut TestNode| {
        node.tables = Ok(tables.to_vec());
        node.remove("/sys/module/nf_tables");
        node.file("/lib/modules/6.1.0/modules.dep", "kernel/net/netfilter/nf_tables.ko:\nkernel/net/bridge/bridge.ko.xz: x\nkernel/drivers/net/veth.ko.xz:\n");
    };
    check(no_module, &[]);
    check(
        |node| node.tables = Err("permission denied".to_owned()),
        &[],
    );
}
