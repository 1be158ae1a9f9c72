//! Findings about the network without CNI plugins.

use super::*;
use crate::NetworkTable;

/// A node whose driver is native, with more keys of its bridge.
fn native(node: &mut TestNode, more: &str) {
    node.config(&format!("[network.bridge]\ndriver = \"native\"\n{more}"));
}

const SIX: &str = "subnets = [\"172.26.80.0/20\", \"fd00:26:80::/64\"]";

#[test]
fn kernel_without_what_the_tables_need() {
    check(|node| native(node, ""), &[]);
    check(|node| native(node, SIX), &[]);
    let lists = "/lib/modules/6.1.0/modules.dep";
    let without = |node: &mut TestNode, module: &str| {
        let text = node.files[Path::new(lists)].clone();
        let kept = text
            .lines()
            .filter(|line| !line.contains(&format!("/{module}.ko")));
        let kept: Vec<&str> = kept.collect();
        node.file(lists, &kept.join("\n"));
    };
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

#[test]
fn forwarded_packets_of_the_bridge_that_are_dropped() {
    let forward = |node: &mut TestNode, rules: &str| {
        node.command("iptables -S FORWARD", &format!("-P FORWARD DROP\n{rules}"));
        // The network of pods is not the subject.
        node.file(
            "/etc/cni/net.d/10-net.conflist",
            r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","bridge":"cni0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.85.0.0/16"}]]}},{"type":"firewall"}]}"#,
        );
        native(node, "");
    };
    let docker = "-A FORWARD -j DOCKER-USER\n-A FORWARD -j DOCKER-FORWARD\n";
    let ufw = "-A FORWARD -j ufw-before-forward\n";
    let plugins = "-A FORWARD -m comment --comment \"CNI firewall plugin rules\" -j CNI-FORWARD\n";
    for (rules, cure) in [
        (
            "",
            "iptables -I FORWARD -i switchyard0 -j ACCEPT && iptables -I FORWARD -o switchyard0 -m conntrack",
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
            "ufw route allow in on switchyard0 && ufw route allow out on switchyard0",
        ),
    ] {
        let found = check(|node| forward(node, rules), &["SY316 warning"]);
        let command = found[0].command.as_deref().unwrap();
        assert!(command.starts_with(cure), "{rules}: {command}");
    }
    let none = ("iptables -S NONE", "");
    for (rules, (command, accepted)) in [
        ("-A FORWARD -j ACCEPT\n", none),
        ("-A FORWARD -i switchyard0 -j ACCEPT\n", none),
        // As the daemon adds it.
        (
            "-A FORWARD -j DOCKER-USER\n-A FORWARD -i switchyard0 -m comment --comment switchyard -j ACCEPT\n",
            none,
        ),
        (
            docker,
            (
                "iptables -S DOCKER-USER",
                "-N DOCKER-USER\n-A DOCKER-USER -i switchyard0 -j ACCEPT\n",
            ),
        ),
        (
            ufw,
            (
                "iptables -S ufw-user-forward",
                "-N ufw-user-forward\n-A ufw-user-forward -i switchyard0 -j ACCEPT\n",
            ),
        ),
    ] {
        let accepts = |node: &mut TestNode| {
            forward(node, rules);
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
