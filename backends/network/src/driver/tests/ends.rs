//! Ends of ports of a bridge in the kernel, and of connections to containers of a former process.

use std::net::UdpSocket;

use super::left_behind::is_received;
use super::*;
use crate::driver::error::PORTS_MAX;

/// Makes this number of ports, which is even, on the bridge of a node: the ends of pairs.
fn add_ports(count: usize) {
    let pair = |number| {
        [
            format!("link add full{number} master swtest0 type veth peer name fill{number}"),
            format!("link set fill{number} master swtest0"),
        ]
    };
    let lines: Vec<String> = (0..count / 2).flat_map(pair).collect();
    let dir = tempfile::tempdir().unwrap();
    let batch = dir.path().join("batch");
    fs::write(&batch, lines.join("\n")).unwrap();
    run("ip", "iproute2", &["-batch", batch.to_str().unwrap()]);
}

#[test]
fn full_bridge_refuses_a_container_and_a_second_bridge_takes_it() {
    in_private_netns(|| {
        let node = Node::new(&SUBNETS[..1]);
        // Its port goes with it.
        let first = Container::new("first");
        node.driver.attach(&first.request).unwrap();
        add_ports(PORTS_MAX - 1);
        let over = Container::with_ports("over", &both(8080));
        let before = (node.in_use(), devices(), elements_of(NftFamily::Ip4));
        for _ in 0..2 {
            let error = node.driver.attach(&over.request).unwrap_err();
            let is_full = matches!(error, DriverError::BridgeFull { .. });
            assert!(is_full && error.is_undone(), "{error}");
            let text = error.to_string();
            assert!(
                text.starts_with(
                    "the bridge swtest0 has 1023 ports, the most that Linux gives one"
                ),
                "{text}"
            );
            let after = (node.in_use(), devices(), elements_of(NftFamily::Ip4));
            assert_eq!(after, before);
        }
        let dir = tempfile::tempdir().unwrap();
        let second = BridgeSettings {
            name: LinkName::new("swtest1").unwrap(),
            ..settings(dir.path(), &["10.99.0.0/24"])
        };
        let second = BridgeDriver::new(second, Arc::clone(&node.driver.tables)).unwrap();
        second.attach(&over.request).unwrap();
        // Both ends of it were ports.
        ip("link del full0");
        let next = Container::new("next");
        node.driver.attach(&next.request).unwrap();
    });
}

/// It was killed behind its answer, and the port is published on another bridge before its own has a container again.
#[test]
fn connection_to_a_bridge_of_a_former_process_follows_its_port_to_another_one() {
    for (failures, is_led) in [
        (0, true),
        (1, true),
        (ABANDONED_TRIES - 1, true),
        // Then it is given up.
        (ABANDONED_TRIES, false),
    ] {
        in_private_netns(|| {
            let node = Node::new(&SUBNETS[..1]);
            let client = UdpSocket::bind("127.0.0.1:0").unwrap();
            client.connect("127.0.0.1:8080").unwrap();
            let arrives = |server: &Host| (0..20).any(|_| is_received(&client, server));
            let ports = [port(Transport::Udp, 8080)];
            let former = Container::with_ports("former", &ports);
            let attached = node.driver.attach(&former.request).unwrap();
            assert!(arrives(&former.serving(NftFamily::Ip4)));
            let attachment = former.attachment(Some(&attached));
            node.driver.detach(&attachment).unwrap();
            let next = node.next_driver();
            // The addresses cannot be read for some time.
            let [dir, aside] = ["swtest0", "aside"].map(|name| node.addresses.path().join(name));
            fs::rename(&dir, &aside).unwrap();
            fs::write(&dir, "").unwrap();
            for _ in 0..failures {
                next.forget_abandoned_flows();
            }
            fs::remove_file(&dir).unwrap();
            fs::rename(&aside, &dir).unwrap();
            next.forget_abandoned_flows();
            let second = BridgeSettings {
                name: LinkName::new("swtest1").unwrap(),
                ..settings(node.addresses.path(), &["10.99.0.0/24"])
            };
            let second = BridgeDriver::new(second, Arc::clone(&next.tables)).unwrap();
            let container = Container::with_ports("container", &ports);
            second.attach(&container.request).unwrap();
            let server = container.serving(NftFamily::Ip4);
            assert_eq!(arrives(&server), is_led, "{failures}");
        });
    }
}
