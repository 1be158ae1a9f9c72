//! The bridges of pods that a purge of the package removes, and the tables for all bridges.

use std::fs;

use super::super::{read, repository};
use super::Node;

/// A bridge may have any name that the configuration gave it, and another program's may have that by now.
#[test]
fn purge_removes_the_bridge_that_pods_had_unless_something_else_is_on_it() {
    let node = Node::new();
    let write = |path: &str| {
        let path = node.dir(path);
        let dir = path.parent().expect("it is in a directory");
        fs::create_dir_all(dir).expect("the scratch directory can be written");
        fs::write(path, "").expect("the scratch directory can be written");
    };
    for file in [
        "state/network/pods0.pods",
        "other/network/pods1.pods",
        "state/network/used0.pods",
        "state/network/shared0.pods",
        // No bridge by now, and one of which nobody says that pods had it.
        "state/network/eth0.pods",
        "state/network/gone0.pods",
        "state/network/switchyard0.conflist",
        "devices/used0/brif/veth0",
        "devices/eth0/address",
        "addresses/pods0/last_reserved_ip.0",
        "addresses/pods0/lock",
        "addresses/used0/lock",
        "addresses/shared0/10.9.0.7",
        "addresses/cni0/lock",
    ] {
        write(file);
    }
    for bridge in ["pods0", "pods1", "shared0", "cni0", "switchyard0"] {
        let ports = node.dir("devices").join(bridge).join("brif");
        fs::create_dir_all(ports).expect("the scratch directory can be written");
    }
    let places = format!("state {}\n", node.dir("other").display());
    fs::write(node.dir("state/places"), places).expect("the scratch directory can be written");
    let root = node.scratch.path().display();
    let call = format!(
        "devices={root}/devices addresses={root}/addresses; ip() {{ echo \"$*\"; }}; sleep() {{ :; }}; \
         remove_bridges \"$(bridges_of_pods)\"; cd $addresses; find . -mindepth 1"
    );
    let said = node.output(&call);
    let is_kept = |line: &&String| line.contains("the bridge used0 stays");
    assert_eq!(said.iter().filter(is_kept).count(), 1, "{said:?}");
    let rest: Vec<&str> = said.iter().map(String::as_str).collect();
    let rest: Vec<&str> = rest
        .into_iter()
        .filter(|line| !line.contains("stays"))
        .collect();
    let expected = [
        "./cni0",
        "./cni0/lock",
        "./shared0",
        "./shared0/10.9.0.7",
        "./used0",
        "./used0/lock",
        "link delete dev pods0",
        "link delete dev pods1",
        "link delete dev shared0",
    ];
    assert_eq!(rest, expected);
}

/// Its marks are in the state directory, which goes with the same purge.
#[test]
fn purge_that_was_cut_finds_the_bridge_of_pods_again() {
    let postrm = read(&repository().join("deploy/debian/postrm"));
    let steps = postrm.split_once("    purge)\n");
    let steps = steps.and_then(|(_, steps)| steps.split_once("        report_kept"));
    let (steps, _) = steps.expect("the steps stand before what is told of them");
    for cut in ["remove_bridges", "ip", "remove_empty", "remove_state"] {
        let node = Node::new();
        for dir in ["state/network", "devices/pods0/brif", "addresses/pods0"] {
            let made = fs::create_dir_all(node.dir(dir));
            made.expect("the scratch directory can be written");
        }
        let mark = fs::write(node.dir("state/network/pods0.pods"), "");
        mark.expect("the scratch directory can be written");
        let root = node.scratch.path().display();
        let call = format!(
            "devices={root}/devices addresses={root}/addresses; ip() {{ rm -r \"$devices/$4\"; }}; \
             running_pids() {{ :; }}; end_processes() {{ :; }}; remove_network() {{ :; }}; remove_traces_of_tasks() {{ :; }}; \
             purge() {{\n{steps}}}; ({cut}() {{ exit 1; }}; purge) || echo cut; purge; \
             find {root} -mindepth 1 -name 'pods0*'; [ -e {root}/state ] || echo gone"
        );
        assert_eq!(node.output(&call), ["cut", "gone"], "{cut}");
    }
}

/// A daemon that could not be stopped has left them: the removal clears them otherwise.
#[test]
fn purge_removes_the_tables_of_daemons_alone() {
    let node = Node::new();
    let tables = [
        ("ip switchyard", true),
        ("ip6 switchyard", true),
        ("bridge switchyard", true),
        ("ip switchyard_own0", true),
        ("ip6 switchyard_own0", true),
        ("bridge switchyard_own0", true),
        ("inet switchyard", false),
        ("ip switchyards", false),
        ("bridge filter", false),
    ];
    let list: String = tables
        .iter()
        .map(|(table, _)| format!("table {table}\\n"))
        .collect();
    let root = node.scratch.path().display();
    let call = format!(
        "devices={root}/devices addresses={root}/addresses; \
         nft() {{ if [ \"$1\" = list ]; then printf '{list}'; else echo \"$*\"; fi; }}; remove_network"
    );
    let removed = tables.iter().filter(|(_, is_removed)| *is_removed);
    let mut expected: Vec<String> = removed
        .map(|(table, _)| format!("delete table {table}"))
        .collect();
    expected.sort();
    assert_eq!(node.output(&call), expected);
}
