//! Remains of failures, others and kills: flushed tables, attachments of a former process, links without a record, containers of plugins.

use std::net::UdpSocket;

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use super::*;

/// The port of the node of an element that is one.
fn published(element: &Element) -> Option<u16> {
    if let Element::Port { port, .. } = element {
        Some(*port)
    } else {
        None
    }
}

#[test]
fn failed_attachment_leaves_nothing_and_can_be_repeated() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let first = Container::with_ports("first", &both(8080));
        let attached = node.driver.attach(&first.request).unwrap();
        let before = (devices(), elements_of(NftFamily::Ip4), node.in_use());
        let mut second = Container::with_ports(
            "second",
            &[port(Transport::Tcp, 81), port(Transport::Tcp, 8080)],
        );
        let error = node.driver.attach(&second.request).unwrap_err();
        let there = address(&attached, NftFamily::Ip4);
        let taken = format!("port 8080 tcp leads to {there}:{SERVED}");
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("{taken} of the container first already"))
                && error.is_undone(),
            "{text}"
        );
        // As the next process, which does not know the container yet.
        let next = node.next_driver().attach(&second.request).unwrap_err();
        let text = next.to_string();
        assert!(text.starts_with(&format!("{taken} already")), "{text}");
        assert_eq!(
            (devices(), elements_of(NftFamily::Ip4), node.in_use()),
            before
        );
        second.request.netns = "/nowhere".into();
        let error = node.driver.attach(&second.request).unwrap_err();
        assert!(error.to_string().contains("/nowhere"), "{error}");
        assert_eq!(
            (devices(), elements_of(NftFamily::Ip4), node.in_use()),
            before
        );
        node.driver
            .detach(&first.attachment(Some(&attached)))
            .unwrap();
        second.request.netns = format!("/proc/self/fd/{}", second.netns.as_raw_fd()).into();
        node.driver.attach(&second.request).unwrap();
    });
}

#[test]
fn flushed_tables_are_restored_with_all_ports() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let container = Container::with_ports("a", &both(8080));
        node.driver.attach(&container.request).unwrap();
        let wanted: Vec<_> = NftFamily::ALL.map(elements_of).into();
        run("nft", "nftables", &["flush", "ruleset"]);
        let repairs = node.driver.tables.restore().unwrap();
        assert!(
            repairs.iter().all(|(_, repair)| *repair == Repair::Whole),
            "{repairs:?}"
        );
        assert_eq!(Vec::from(NftFamily::ALL.map(elements_of)), wanted);
        let repairs = node.driver.tables.restore().unwrap();
        assert!(
            repairs.iter().all(|(_, repair)| *repair == Repair::Nothing),
            "{repairs:?}"
        );
        // An attachment, or a detachment, that comes before the repair.
        for _ in 0..2 {
            run("nft", "nftables", &["flush", "ruleset"]);
            let second = Container::with_ports("b", &both(8081));
            let attached = node.driver.attach(&second.request).unwrap();
            let ports = elements_of(NftFamily::Ip4);
            let ports: BTreeSet<_> = ports.iter().filter_map(published).collect();
            assert_eq!(ports, BTreeSet::from([8080, 8081]));
            run("nft", "nftables", &["flush", "ruleset"]);
            node.driver
                .detach(&second.attachment(Some(&attached)))
                .unwrap();
        }
        node.driver.tables.restore().unwrap();
        assert_eq!(Vec::from(NftFamily::ALL.map(elements_of)), wanted);
    });
}

#[test]
fn next_process_keeps_what_is_on_record_and_removes_the_rest() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let kept = Container::with_ports("kept", &both(8080));
        let forgotten = Container::with_ports("forgotten", &both(8081));
        let cut_off = Container::with_ports("cut-off", &both(8082));
        let ending = Container::with_ports("ending", &both(8083));
        let kept_attached = node.driver.attach(&kept.request).unwrap();
        node.driver.attach(&forgotten.request).unwrap();
        let cut_off_attached = node.driver.attach(&cut_off.request).unwrap();

        let next = node.next_driver();
        let ending_attached = node.driver.attach(&ending.request).unwrap();
        ip(&format!("link set {} down", ending_attached.host_link));
        adopt(
            &next,
            &[
                kept.attachment(Some(&kept_attached)),
                // A kill came before it was on record which addresses it got.
                cut_off.attachment(None),
                // A kill came while it was detached, before its journal was removed.
                ending.attachment(Some(&ending_attached)),
            ],
            true,
        );
        next.tables.restore().unwrap();
        let ports: BTreeSet<u16> = elements_of(NftFamily::Ip4)
            .iter()
            .filter_map(published)
            .collect();
        assert_eq!(ports, BTreeSet::from([8080]));
        assert_eq!(next.tables.sweep().unwrap(), 1);
        assert_eq!(next.tables.sweep().unwrap(), 0);
        assert!(links().contains(kept_attached.host_link.as_str()));
        assert!(links().contains(cut_off_attached.host_link.as_str()));
        next.detach(&cut_off.attachment(None)).unwrap();
        next.detach(&ending.attachment(Some(&ending_attached)))
            .unwrap();
        next.detach(&forgotten.attachment(None)).unwrap();
        assert_eq!(node.in_use().len(), 2);
        let server = kept.serving(NftFamily::Ip4);
        let here = Host::node(NftFamily::Ip4);
        let to = SocketAddr::new([127, 0, 0, 1].into(), 8080);
        assert!(here.tcp(to, &server, LONG).is_some());
    });
}

#[test]
fn two_instances_on_a_node_leave_each_other_alone() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let dir = tempfile::tempdir().unwrap();
        let of_other = BridgeSettings {
            name: LinkName::new("swtest1").unwrap(),
            ..settings(dir.path(), &["10.99.0.0/24"])
        };
        let other = driver(of_other, TableName::of_instance("other").unwrap());
        let [a, b] = ["a", "b"]
            .map(|id| Container::with_ports(id, &both(if id == "a" { 8080 } else { 8081 })));
        let attached = node.driver.attach(&a.request).unwrap();
        other.attach(&b.request).unwrap();
        for driver in [&node.driver, &other] {
            adopt(driver, &[], true);
            driver.tables.restore().unwrap();
            assert_eq!(driver.tables.sweep().unwrap(), 0);
        }
        node.driver.detach(&a.attachment(Some(&attached))).unwrap();
        let here = Host::node(NftFamily::Ip4);
        let server = b.serving(NftFamily::Ip4);
        let to = SocketAddr::new([127, 0, 0, 1].into(), 8081);
        assert!(here.tcp(to, &server, LONG).is_some());
    });
}

/// As after a change of the configuration that was made although containers were there.
#[test]
fn ports_of_a_family_that_the_bridge_has_no_more_go_with_their_container() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let container = Container::with_ports("a", &both(8080));
        let attached = node.driver.attach(&container.request).unwrap();
        let attachment = container.attachment(Some(&attached));
        let of_four = settings(node.addresses.path(), &SUBNETS[..1]);
        let next = driver(of_four, TableName::default());
        adopt(&next, std::slice::from_ref(&attachment), true);
        next.tables.restore().unwrap();
        next.detach(&attachment).unwrap();
        for family in NftFamily::ALL {
            let elements = elements_of(family);
            assert!(
                elements.iter().all(|one| published(one).is_none()),
                "{elements:?}"
            );
        }
        assert!(node.in_use().is_empty());
    });
}

/// Returns whether what a client sends by UDP arrives at a server.
pub(super) fn is_received(client: &UdpSocket, server: &Host) -> bool {
    server.udp.set_read_timeout(Some(SHORT)).unwrap();
    // A port without a server answers with an error, which the next call reports.
    let _ = client.send(b"question");
    let _ = client.send(b"question");
    server.udp.recv_from(&mut [0; 16]).is_ok()
}

/// Way by which a port of UDP comes from one container to the next one, or away from a container and back to it.
#[derive(Debug, Clone, Copy)]
enum Change {
    Detached,
    /// By the next process, which does not know the addresses.
    CutOff,
    /// By a process that was killed before it has removed the connections.
    KilledBehind,
    /// The client begins before the port is published, and the process is killed before it has removed the connection.
    KilledBeforeRemoval,
    /// The same container is attached once more.
    AttachedAgain,
    /// Others have flushed the tables, and the client begins meanwhile.
    Flushed,
}

/// Nobody asks for the removal of connections, but behind a repair.
#[test]
fn client_that_goes_on_sending_reaches_whoever_has_the_port_by_now() {
    for change in [
        Change::Detached,
        Change::CutOff,
        Change::KilledBehind,
        Change::KilledBeforeRemoval,
        Change::AttachedAgain,
        Change::Flushed,
    ] {
        in_private_netns(|| follow_the_port(change));
    }
}

fn follow_the_port(change: Change) {
    let node = Node::new(&SUBNETS[..1]);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect("127.0.0.1:8080").unwrap();
    let arrives = |server: &Host| (0..20).any(|_| is_received(&client, server));
    let ports = [port(Transport::Udp, 8080)];
    let other = Container::new("other");
    let first = Container::with_ports("first", &ports);
    let begins_before = matches!(change, Change::KilledBeforeRemoval);
    if begins_before {
        // The kernel knows connections since there are rules that ask for them.
        node.driver.attach(&other.request).unwrap();
        client.send(b"early").unwrap();
    }
    let attached = node.driver.attach(&first.request).unwrap();
    let server = first.serving(NftFamily::Ip4);
    if !begins_before && !matches!(change, Change::Flushed) {
        assert!(arrives(&server), "{change:?}");
    }
    let second = Container::with_ports("second", &ports);
    let by_second = |driver: &BridgeDriver| {
        driver.attach(&second.request).unwrap();
        second.serving(NftFamily::Ip4)
    };
    let next = node.next_driver();
    let server = match change {
        Change::Detached => {
            let whole = first.attachment(Some(&attached));
            node.driver.detach(&whole).unwrap();
            by_second(&node.driver)
        }
        Change::CutOff => {
            let cut_off = first.attachment(None);
            adopt(&next, std::slice::from_ref(&cut_off), true);
            next.detach(&cut_off).unwrap();
            by_second(&next)
        }
        Change::KilledBehind => {
            let whole = first.attachment(Some(&attached));
            node.driver.detach(&whole).unwrap();
            adopt(&next, &[], true);
            by_second(&next)
        }
        Change::KilledBeforeRemoval => {
            let whole = first.attachment(Some(&attached));
            adopt(&next, std::slice::from_ref(&whole), true);
            next.tables.restore().unwrap();
            next.tables.forget_past_flows();
            server
        }
        Change::AttachedAgain => {
            node.driver.attach(&first.request).unwrap();
            server
        }
        Change::Flushed => {
            // The rules of others, by which the kernel goes on to know connections.
            let others = "flush ruleset; add table ip others; \
                add chain ip others out { type filter hook output priority 0; }; \
                add rule ip others out ct state invalid counter";
            run("nft", "nftables", &[others]);
            assert!(!is_received(&client, &server), "nothing leads there");
            node.driver.tables.restore().unwrap();
            node.driver.tables.forget_past_flows();
            server
        }
    };
    assert!(arrives(&server), "{change:?}");
}

/// A socket for whole packets of SCTP, of which a kernel may know no more than conntrack needs.
fn raw_sctp() -> UdpSocket {
    let flags = SockFlag::SOCK_CLOEXEC;
    let raw = socket(
        AddressFamily::Inet,
        SockType::Raw,
        flags,
        SockProtocol::Sctp,
    );
    UdpSocket::from(raw.unwrap())
}

#[test]
fn sctp_is_led_to_whoever_has_the_port_by_now() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let ports = [port(Transport::Sctp, 8080)];
        let [first, second] = ["first", "second"].map(|id| Container::with_ports(id, &ports));
        let client = raw_sctp();
        // Ports, no tag and no checksum, and a chunk INIT.
        let mut init = [4000_u16, 8080].map(u16::to_be_bytes).concat();
        init.extend([0; 8]);
        init.extend([1, 0, 0, 20, 0, 0, 0x12, 0x34, 0, 0, 0xff, 0xff]);
        init.extend([0, 1, 0, 1, 0, 0, 0, 1]);
        let arrives = |container: &Container| {
            let server = inside(&container.netns, raw_sctp);
            server.set_read_timeout(Some(SHORT)).unwrap();
            let is_received = || {
                let _ = client.send_to(&init, "10.88.0.1:0");
                let mut packet = [0; 256];
                // The second port is behind the 20 bytes of the head of IP, and the first one.
                let received = server.recv_from(&mut packet).is_ok();
                received && packet[22..24] == SERVED.to_be_bytes()
            };
            (0..20).any(|_| is_received())
        };
        let attached = node.driver.attach(&first.request).unwrap();
        assert!(arrives(&first));
        let whole = first.attachment(Some(&attached));
        node.driver.detach(&whole).unwrap();
        node.driver.attach(&second.request).unwrap();
        assert!(arrives(&second));
    });
}

/// A client that goes on sending by UDP to a port is led on as its connection began: to a container that is gone, or to the node.
#[test]
fn connections_follow_their_port_to_the_next_container() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let here = Host::node(NftFamily::Ip4);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect("127.0.0.1:8080").unwrap();
        let received = |server: &Host| is_received(&client, server);
        assert!(!received(&here), "the node has no server on this port");
        let ports = [port(Transport::Udp, 8080)];
        let first = Container::with_ports("first", &ports);
        let attached = node.driver.attach(&first.request).unwrap();
        let server = first.serving(NftFamily::Ip4);
        node.driver.tables.forget_past_flows();
        assert!(
            received(&server),
            "a client of before the port was published"
        );
        node.driver
            .detach(&first.attachment(Some(&attached)))
            .unwrap();
        // The same address, before anybody has asked for the removal.
        let mut second = Container::new("second");
        second.request.addresses = vec![address(&attached, NftFamily::Ip4)];
        node.driver.attach(&second.request).unwrap();
        let server = second.serving(NftFamily::Ip4);
        assert!(!received(&server), "a connection of the container before");
    });
}

#[test]
fn ports_of_unknown_attachments_stay_until_all_are_known() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let unread = Container::with_ports("unread", &both(8080));
        let unread_attached = node.driver.attach(&unread.request).unwrap();
        let next = node.next_driver();
        let ports = || -> BTreeSet<u16> {
            let elements = elements_of(NftFamily::Ip4);
            elements.iter().filter_map(published).collect()
        };
        adopt(&next, &[], false);
        next.tables.restore().unwrap();
        assert_eq!(ports(), BTreeSet::from([8080]));
        assert_eq!(next.tables.sweep().unwrap(), 0, "its devices stay too");
        let another = Container::with_ports("another", &both(8081));
        let another_attached = next.attach(&another.request).unwrap();
        assert_eq!(ports(), BTreeSet::from([8080, 8081]));
        next.detach(&another.attachment(Some(&another_attached)))
            .unwrap();
        assert_eq!(ports(), BTreeSet::from([8080]));
        // It can be read by now, and is known from then on.
        adopt(&next, &[unread.attachment(Some(&unread_attached))], true);
        next.tables.restore().unwrap();
        assert_eq!(ports(), BTreeSet::from([8080]));
        next.detach(&unread.attachment(Some(&unread_attached)))
            .unwrap();
        next.tables.restore().unwrap();
        assert_eq!(ports(), BTreeSet::new());
    });
}

#[test]
fn tables_that_nobody_needs_are_not_made_again() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let container = Container::new("a");
        let attached = node.driver.attach(&container.request).unwrap();
        let tables = Arc::new(BridgeTables::new(TableName::default()));
        let next = BridgeDriver::new(node.driver.settings.clone(), tables).unwrap();
        adopt(&next, &[container.attachment(Some(&attached))], true);
        let is_there = || {
            let mut tables = NftTables::open(TableName::default()).unwrap();
            tables.read(NftFamily::Ip4).unwrap().is_some()
        };
        let remove = || run("nft", "nftables", &["flush", "ruleset"]);
        remove();
        next.tables.restore().unwrap();
        assert!(is_there(), "a container needs it");
        next.detach(&container.attachment(Some(&attached))).unwrap();
        remove();
        next.tables.restore().unwrap();
        assert!(!is_there());
    });
}

#[test]
fn containers_are_connected_again_if_their_bridge_was_deleted() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        let first = Container::new("first");
        node.driver.attach(&first.request).unwrap();
        ip("link del swtest0");
        let second = Container::new("second");
        node.driver.attach(&second.request).unwrap();
        let here = Host::node(NftFamily::Ip4);
        let server = first.serving(NftFamily::Ip4);
        let to = SocketAddr::new("10.88.0.1".parse().unwrap(), SERVED);
        assert!(server.tcp(to, &here, LONG).is_some());
        // By which they reach their own published ports.
        let ports = run("bridge", "iproute2", &["-details", "link", "show"]);
        assert_eq!(ports.matches("hairpin on").count(), 2, "{ports}");
    });
}

#[test]
fn neighbours_of_a_container_that_a_kill_cut_off_go_with_it() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS);
        let container = Container::new("a");
        node.driver.attach(&container.request).unwrap();
        let neighbours = || run("ip", "iproute2", &["neigh", "show", "dev", "swtest0"]);
        assert!(neighbours().contains("PERMANENT"), "{}", neighbours());
        let next = node.next_driver();
        adopt(&next, &[container.attachment(None)], true);
        next.detach(&container.attachment(None)).unwrap();
        assert!(!neighbours().contains("PERMANENT"), "{}", neighbours());
        assert!(node.in_use().is_empty());
    });
}
