//! Leftovers of tests in networks are found and removed.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use switchyard_network::driver::group_of;
use switchyard_network::nft::TableName;
use switchyard_tests::host::{self, random_name};
use switchyard_tests::leak_scan::LeakScan;
use switchyard_tests::network::{self, NODE_DIR};
use switchyard_tests::prereq;
use switchyard_tests::root::PrivateRoot;
use switchyard_tests::scratch::Scratch;

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

/// A chain with a rule that accepts what comes from this address, as the plugin firewall has one. Dropping this removes it.
struct AcceptChain(String);

impl AcceptChain {
    fn of(address: Ipv4Addr) -> Self {
        let chain = Self(format!("CNI-swt{}", random_name()));
        run("iptables", &format!("-N {}", chain.0));
        run(
            "iptables",
            &format!("-A {} -s {address} -j ACCEPT", chain.0),
        );
        chain
    }

    fn rules(&self) -> usize {
        // The first line is the chain itself.
        run("iptables", &format!("-S {}", self.0)).lines().count() - 1
    }
}

impl Drop for AcceptChain {
    fn drop(&mut self) {
        let iptables = prereq::require("iptables", "iptables");
        for action in ["-F", "-X"] {
            // It may be what failed.
            let _ = Command::new(&iptables)
                .args(["-w", "20", action, &self.0])
                .status();
        }
    }
}

#[test]
fn rules_of_a_range_stay_as_long_as_a_live_root_has_it() {
    let live = PrivateRoot::new();
    let chain = AcceptChain::of(live.network().spare());
    // That of a killed test which had the range before.
    let dead = Scratch::new();
    let [of_live, of_dead] = [live.path(), dead.path()].map(|path| path.join(NODE_DIR));
    fs::create_dir(&of_dead).expect("the directory of a test can be written");
    for entry in fs::read_dir(of_live).expect("the root has written it") {
        let file = entry.expect("it can be read").path();
        if let Some(name) = file.file_name().filter(|_| file.is_file()) {
            fs::copy(&file, of_dead.join(name)).expect("it can be written");
        }
    }
    let left = network::clear(dead.path(), dead.digits());
    assert_eq!((left, chain.rules()), (Vec::new(), 1));
    drop(live);
    assert_eq!(chain.rules(), 0);
}

#[test]
fn only_what_is_left_of_a_test_itself_fails_it_where_the_filter_cannot_be_read() {
    let nft = prereq::require("nft", "nftables");
    let iptables = prereq::require("iptables-nft", "iptables");
    let root = PrivateRoot::new();
    let bridge = root.bridge().bridge();
    let digits = bridge.strip_prefix("swtb").expect("so they are named");
    let own = format!("iifname \"{bridge}\" accept");
    // None of the first ones is like any rule of iptables.
    for (number, (others, own)) in [
        ("ct state new accept", None),
        ("ct mark 1 accept", None),
        ("fib daddr type local accept", None),
        ("ct state new accept", Some(own.as_str())),
    ]
    .into_iter()
    .enumerate()
    {
        let netns = root.path().join(format!("net{number}"));
        host::pin_network_namespace(&netns);
        let change = |words: &str| host::run(host::inside(&netns, &nft).arg(words));
        change("add table ip filter");
        change("add chain ip filter FORWARD { type filter hook forward priority 0 ; }");
        for rule in [others].into_iter().chain(own) {
            change(&format!("add rule ip filter FORWARD {rule}"));
        }
        let mut list = host::inside(&netns, &iptables);
        let listed = list.args(["-S", "FORWARD"]).output();
        let is_refused = listed.is_ok_and(|listed| !listed.status.success());
        assert!(is_refused, "{others}: iptables can read it");
        let (path, digits) = (root.path().to_owned(), digits.to_owned());
        let cleared = host::within(&netns, move || network::clear(&path, &digits));
        let left = cleared.join().expect("the thread ends");
        assert_eq!(left.len(), usize::from(own.is_some()), "{others}: {left:?}");
    }
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
