//! Tests of the display of tables, and of when they may be removed.

use switchyard_network::nft::{BridgeName, NftSubnet, Transport};

use super::*;

fn port(at: Option<&str>, protocol: Transport, port: u16, to: &str, to_port: u16) -> Element {
    Element::Port {
        at: at.map(|at| at.parse().unwrap()),
        protocol,
        port,
        to: to.parse().unwrap(),
        to_port,
    }
}

fn bridge() -> Element {
    Element::Bridge(BridgeName::new("switchyard0").unwrap())
}

fn subnet() -> Element {
    Element::Masqueraded(NftSubnet::new("172.26.80.0".parse().unwrap(), 20).unwrap())
}

fn view(family: NftFamily, intact: bool, elements: &[Element]) -> TableView {
    let elements = elements.iter().cloned().collect();
    TableView::new(family, &TableName::default(), intact, &elements)
}

#[test]
fn tables_are_shown_with_their_elements_and_ports() {
    let four = [
        port(Some("192.0.2.1"), Transport::Tcp, 8080, "172.26.80.3", 80),
        port(None, Transport::Udp, 53, "172.26.80.2", 5353),
        Element::Hairpin("172.26.80.2".parse().unwrap()),
        bridge(),
        subnet(),
    ];
    let six = [port(None, Transport::Sctp, 9, "fd00:88::2", 9)];
    let mut node = TablesView {
        tables: vec![
            view(NftFamily::Ip4, true, &four),
            view(NftFamily::Ip6, false, &six),
            view(NftFamily::Bridge, true, &[]),
        ],
        sandboxes: ["a1".to_owned()].into(),
    };
    let expected = "\
TABLE              RULES              ELEMENTS
ip switchyard      intact             ports_at 1, ports 1, hairpins 1, masqueraded 1, bridges 1
ip6 switchyard     changed by others  ports 1
bridge switchyard  intact             -

PORT  PROTOCOL  ADDRESS    LEADS TO          TABLE
53    udp       *          172.26.80.2:5353  ip switchyard
8080  tcp       192.0.2.1  172.26.80.3:80    ip switchyard
9     sctp      *          [fd00:88::2]:9    ip6 switchyard

sandboxes whose network was made without CNI plugins: 1
";
    assert_eq!(shown(&node), expected);
    let json = serde_json::to_value(&node).unwrap();
    let first = &json["tables"][0];
    assert_eq!(
        (
            &first["intact"],
            &first["elements"]["apart"],
            &first["elements"]["ports_at"]
        ),
        (&true.into(), &0.into(), &1.into())
    );
    for (table, sets) in [(0_usize, 9), (1, 9), (2, 4)] {
        let elements = json["tables"][table]["elements"].as_object().unwrap();
        assert_eq!(elements.len(), sets, "{elements:?}");
    }
    let published = serde_json::json!({
        "port": 53, "protocol": "udp", "address": null, "to": "172.26.80.2", "to_port": 5353,
    });
    assert_eq!(first["ports"][0], published);
    assert_eq!(json["sandboxes"], serde_json::json!(["a1"]));
    node.tables = vec![view(NftFamily::Ip4, true, &[])];
    assert!(shown(&node).contains("ip switchyard  intact  -\n"));
    node.tables.clear();
    assert_eq!(
        shown(&node),
        "no daemon has made a table in this network namespace\n"
    );
}

#[test]
#[expect(clippy::too_many_lines, reason = "it is one table of cases")]
fn tables_are_removed_only_if_nothing_needs_or_makes_them() {
    let none = NativeSandboxes::default();
    let some = NativeSandboxes {
        ids: ["a1".to_owned()].into(),
        ..NativeSandboxes::default()
    };
    let unknown = NativeSandboxes {
        unknown: vec!["cannot read x".to_owned()],
        ..NativeSandboxes::default()
    };
    let socket = Path::new("/run/switchyard/admin.sock");
    let published = port(None, Transport::Tcp, 80, "172.26.80.2", 80);
    let hairpin = Element::Hairpin("172.26.80.2".parse().unwrap());
    let ports = "has 1 published ports, and 0 containers";
    for (name, elements, sandboxes, daemon, force, expected) in [
        ("unused", vec![bridge(), subnet()], &none, None, false, None),
        (
            "a port",
            vec![published.clone()],
            &none,
            None,
            false,
            Some(ports),
        ),
        (
            "a hairpin",
            vec![hairpin],
            &none,
            None,
            false,
            Some("has 0 published ports, and 1 containers"),
        ),
        (
            "a sandbox without ports",
            vec![bridge()],
            &some,
            None,
            false,
            Some("needed by sandbox a1"),
        ),
        (
            "perhaps a sandbox",
            vec![],
            &unknown,
            None,
            false,
            Some("cannot read x"),
        ),
        ("forced", vec![published.clone()], &some, None, true, None),
        (
            "a daemon",
            vec![],
            &none,
            Some(socket),
            false,
            Some("the daemon at /run"),
        ),
        (
            "a daemon, forced",
            vec![published],
            &none,
            Some(socket),
            true,
            Some("the daemon at /run"),
        ),
    ] {
        // The first table is never the reason.
        let tables = [
            view(NftFamily::Ip4, true, &[]),
            view(NftFamily::Ip4, false, &elements),
        ];
        let tables: Vec<&TableView> = tables.iter().collect();
        let why = refusal(&tables, sandboxes, daemon, force).map(|why| why.to_string());
        match expected {
            None => assert_eq!(why, None, "{name}"),
            Some(part) => assert!(
                why.as_ref().is_some_and(|why| why.contains(part)),
                "{name}: {why:?}"
            ),
        }
    }
    // Others have flushed the tables, and there may be rules in iptables.
    for (sandboxes, daemon, force, is_refused) in [
        (&none, None, false, false),
        (&none, Some(socket), true, true),
        (&some, None, false, true),
        (&some, None, true, false),
    ] {
        let why = refusal(&[], sandboxes, daemon, force);
        assert_eq!(why.is_some(), is_refused, "{why:?}");
    }
}
