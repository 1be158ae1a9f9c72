//! Leftovers of tests in networks are found and removed.

use std::fs;
use std::path::Path;
use std::process::Command;

use switchyard_network::driver::group_of;
use switchyard_network::nft::TableName;
use switchyard_tests::host::{self, random_name};
use switchyard_tests::leak_scan::LeakScan;
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;

/// The programs of both families.
const PROGRAMS: [&str; 2] = ["iptables", "ip6tables"];

#[track_caller]
fn run(program: &str, words: &str) -> String {
    let mut command = Command::new(prereq::require(program, "iptables"));
    host::run(command.args(["-w", "20"]).args(words.split(' ')))
}

/// The number of rules in FORWARD for a bridge, of each family.
fn forwarding(bridge: &str) -> [usize; 2] {
    PROGRAMS.map(|program| {
        let listed = run(program, "-S FORWARD");
        let rules = listed.lines().filter(|rule| rule.contains(bridge));
        rules.count()
    })
}

#[test]
fn what_a_daemon_accepts_in_forward_goes_with_its_root_and_nothing_else() {
    let roots = [PrivateRoot::new(), PrivateRoot::new()];
    let bridges = [0, 1].map(|number: usize| roots[number].bridge().bridge().to_owned());
    let instances = [0, 1].map(|number: usize| format!("switchyard_{}", bridges[number]));
    for (bridge, instance) in bridges.iter().zip(&instances) {
        for program in PROGRAMS {
            for condition in [
                format!("-i {bridge} -o {bridge}"),
                format!("-i {bridge}"),
                format!("-o {bridge} -m conntrack --ctstate RELATED,ESTABLISHED,DNAT"),
            ] {
                let rule = format!("FORWARD {condition} -m comment --comment {instance} -j ACCEPT");
                run(program, &format!("-A {rule}"));
            }
        }
    }
    let [first, second] = roots;
    drop(first);
    assert_eq!(forwarding(&bridges[0]), [0, 0]);
    assert_eq!(forwarding(&bridges[1]), [3, 3]);
    drop(second);
    assert_eq!(forwarding(&bridges[1]), [0, 0]);
}

/// Makes a pair of devices, one of them in this group, as the daemon makes them and the device for a limit of bandwidth.
fn make_devices(name: &str, group: u32) {
    let ip = prereq::require("ip", "iproute2");
    let words = format!("link add {name}a group {group} up type veth peer name {name}b");
    let made = Command::new(ip).args(words.split(' ')).status();
    assert!(made.is_ok_and(|status| status.success()), "{words}");
}

#[test]
fn devices_of_a_daemon_that_are_on_no_bridge_are_found_and_go_with_its_root() {
    let root = PrivateRoot::new();
    let of_other = PrivateRoot::new();
    let group = |root: &PrivateRoot| {
        let table = TableName::of_instance(root.bridge().bridge());
        group_of(&table.expect("it has small letters and digits"))
    };
    let names = [0, 1].map(|_| format!("swtl{}", random_name()));
    make_devices(&names[0], group(&root));
    make_devices(&names[1], group(&of_other));
    let exists = |name: &str| Path::new("/sys/class/net").join(name).exists();
    for (root, name) in [(&root, &names[0]), (&of_other, &names[1])] {
        let bridge = root.bridge().bridge();
        let expected = format!("interface {name}a of the daemon with {bridge}");
        assert_eq!(LeakScan::of(root).findings, [expected]);
    }
    drop(root);
    assert!(!exists(&format!("{}a", names[0])));
    assert!(exists(&format!("{}a", names[1])));
    drop(of_other);
    assert!(!exists(&format!("{}a", names[1])));
}

#[test]
fn addresses_of_all_bridges_of_a_gateway_are_found() {
    let root = PrivateRoot::new();
    let bridge = root.bridge();
    // Its own, that of its pods, and one of both families.
    let spare = bridge.spare().to_string();
    let of_pods = root.network().spare().to_string();
    for (network, address) in [
        (bridge.bridge(), spare.as_str()),
        (root.network().bridge(), of_pods.as_str()),
        (root.network().bridge(), "fd00::7"),
        ("another", "192.0.2.7"),
    ] {
        let directory = bridge.data_dir().join(network);
        fs::create_dir_all(&directory).expect("the root can be written");
        fs::write(directory.join("lock"), "").expect("it was just made");
        let file = directory.join(address);
        fs::write(&file, "holder\r\neth0").expect("it was just made");
        let parsed = address.parse().expect("it is an address");
        assert_eq!(bridge.holders(parsed), ["holder"], "{address}");
        let findings = LeakScan::of(&root).findings;
        assert_eq!(findings, [format!("address {address} leased to holder")]);
        fs::remove_file(file).expect("it was just made");
    }
    LeakScan::of(&root).assert_clean();
}
