//! Tests of ports: which are published, and which ports of the node a task claims.

use super::networks::group;
use super::*;

/// A request with these ports of its group.
pub(super) fn with_ports<const N: usize>(
    entries: [(&str, Value); N],
    ports: &[(&str, i32, i32, &str)],
) -> nomad::TaskConfig {
    let ports = ports
        .iter()
        .map(|(label, value, to, host_ip)| nomad::PortMapping {
            label: (*label).to_owned(),
            value: *value,
            to: *to,
            host_ip: (*host_ip).to_owned(),
        });
    let resources = nomad::Resources {
        ports: ports.collect(),
        ..nomad::Resources::default()
    };
    nomad::TaskConfig {
        resources: Some(resources),
        ..task(entries)
    }
}

#[test]
fn named_ports_are_published_for_tcp_and_udp() {
    let task = with_ports(
        [("ports", texts(&["http", "same", "http"]))],
        &[
            ("http", 23456, 8080, "192.168.1.2"),
            ("other", 1, 2, ""),
            ("same", 9000, 0, "::1"),
        ],
    );
    let plan = plan(&task, &session(PluginConfig::default())).unwrap();
    let named = |label: &str, host_port, container_port, ip: &str| NamedPort {
        label: label.to_owned(),
        host_port,
        container_port,
        host_ip: Some(ip.parse().unwrap()),
    };
    assert_eq!(
        plan.ports,
        [
            named("http", 23456, 8080, "192.168.1.2"),
            named("same", 9000, 9000, "::1")
        ]
    );
    let SandboxNetwork::Pod(network) = plan.sandbox.network else {
        panic!("it has a network of its own")
    };
    let published: Vec<_> = network
        .ports
        .iter()
        .map(|port| (port.protocol, port.host_port, port.container_port))
        .collect();
    use Protocol::{Tcp, Udp};
    assert_eq!(
        published,
        [
            (Tcp, 23456, 8080),
            (Udp, 23456, 8080),
            (Tcp, 9000, 9000),
            (Udp, 9000, 9000)
        ]
    );
}

#[test]
fn unknown_port_labels_are_rejected_in_dockers_words() {
    let refused = |task: &nomad::TaskConfig, text: &str| {
        refused_task(
            task,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            text,
        );
    };
    let named = [("ports", texts(&["web"]))];
    refused(
        &with_ports(named.clone(), &[]),
        "ports[0]: Port \"web\" not found, check network block",
    );
    // Nomad has no ranges: it is a label like others.
    refused(
        &with_ports(
            [("ports", texts(&["web", "8000-8010"]))],
            &[("web", 8000, 0, "")],
        ),
        "ports[1]: Port \"8000-8010\" not found, check network block",
    );
    let host = [("ports", texts(&["web"])), ("network_mode", "host".into())];
    refused(
        &with_ports(host, &[]),
        "ports[0]: Port \"web\" not found, check network block",
    );
    refused(
        &with_ports(named.clone(), &[("web", 70000, 0, "")]),
        "ports[0]: 70000 is no port",
    );
    refused(
        &with_ports(named.clone(), &[("web", 0, 80, "")]),
        "ports[0]: 0 is no port",
    );
    refused(
        &with_ports(named, &[("web", 1, 80, "here")]),
        "ports[0]: \"here\" is no IP address",
    );
    refused(
        &with_ports(
            [("port_map", pairs(&[("web", "80")]))],
            &[("web", 1, 80, "")],
        ),
        "port_map: 'port_map' cannot map group network ports, use 'ports' instead",
    );
}

#[test]
fn unknown_ports_are_a_warning_only_in_the_group_network() {
    use nomad::network_isolation_spec::NetworkIsolationMode as Mode;
    let with = |mode: &str, isolation| nomad::TaskConfig {
        network_isolation_spec: isolation,
        ..with_ports(
            [
                ("ports", texts(&["http", "web"])),
                ("network_mode", mode.into()),
            ],
            &[("http", 70000, 8080, "")],
        )
    };
    let joined = || group(Mode::Group, "/var/run/netns/a1");
    let made = plan(&with("", joined()), &session(PluginConfig::default())).unwrap();
    assert_eq!(
        made.warnings,
        ["ports has no effect for \"web\": the network of the group has no such port"]
    );
    assert!(made.ports.is_empty());
    for (mode, isolation) in [
        ("host", joined()),
        ("none", joined()),
        ("", group(Mode::None, "")),
    ] {
        let mut task = with(mode, isolation);
        task.resources.as_mut().unwrap().ports[0].value = 20000;
        let text = "ports[1]: Port \"web\" not found, check network block";
        refused_task(
            &task,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            text,
        );
    }
}

#[test]
fn labels_without_effect_are_one_warning() {
    let labels: Vec<String> = (0..1024).map(|number| format!("p{number}")).collect();
    let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
    let warnings = |task: &nomad::TaskConfig| {
        plan(task, &session(PluginConfig::default()))
            .unwrap()
            .warnings
    };
    let joined = group(
        nomad::network_isolation_spec::NetworkIsolationMode::Group,
        "/var/run/netns/a1",
    );
    let ports = with_ports([("ports", texts(&labels))], &[("p1", 20000, 0, "")]);
    assert_eq!(
        warnings(&nomad::TaskConfig {
            network_isolation_spec: joined.clone(),
            ..ports
        }),
        [
            "ports has no effect for \"p0\", \"p2\", \"p3\" and 1020 more: the network of the group has no such port"
        ]
    );
    let twice = with_ports([("ports", texts(&["web", "web"]))], &[]);
    assert_eq!(
        warnings(&nomad::TaskConfig {
            network_isolation_spec: joined,
            ..twice
        }),
        ["ports has no effect for \"web\": the network of the group has no such port"]
    );
    let map: Vec<(&str, &str)> = labels.iter().map(|label| (*label, "80")).collect();
    assert_eq!(
        warnings(&task([("port_map", pairs(&map))])),
        [
            "port_map has no effect for \"p0\", \"p1\", \"p10\" and 1021 more: the job has no such port"
        ]
    );
}

#[test]
fn of_ports_with_one_label_the_first_is_published() {
    let named = [("ports", texts(&["http"]))];
    let twice = with_ports(named, &[("http", 20000, 80, ""), ("http", 20001, 81, "")]);
    let made = plan(&twice, &session(PluginConfig::default())).unwrap();
    let ports: Vec<_> = made
        .ports
        .iter()
        .map(|port| (port.host_port, port.container_port))
        .collect();
    assert_eq!(ports, [(20000, 80)]);
}

#[test]
fn ports_are_limited_in_number() {
    let many: Vec<Value> = (0..2000).map(|port| format!("p{port}").into()).collect();
    invalid(
        "ports",
        Value::Array(many),
        "ports: it has 2000 entries, and may have 1024",
    );
}

#[test]
fn port_map_beside_named_ports_has_no_effect_as_in_docker() {
    let both = [
        ("port_map", pairs(&[("web", "80")])),
        ("ports", texts(&["web"])),
    ];
    let made = plan(
        &with_ports(both, &[("web", 20000, 8080, "")]),
        &session(PluginConfig::default()),
    )
    .unwrap();
    assert_eq!(
        (made.ports[0].host_port, made.ports[0].container_port),
        (20000, 8080)
    );
    assert_eq!(
        made.warnings,
        ["port_map has no effect: ports says which are published"]
    );
}

#[test]
fn legacy_jobs_publish_all_ports_by_port_map() {
    let port = |label: &str, value| nomad::NetworkPort {
        label: label.to_owned(),
        value,
    };
    let network = nomad::NetworkResource {
        ip: "10.0.0.1".to_owned(),
        reserved_ports: vec![port("db", 6379)],
        dynamic_ports: vec![port("http", 20000)],
        ..Default::default()
    };
    let allocated = nomad::AllocatedTaskResources {
        networks: vec![network],
        ..Default::default()
    };
    let resources = nomad::Resources {
        allocated_resources: Some(allocated),
        ..Default::default()
    };
    let request = |map: &[(&str, &str)]| nomad::TaskConfig {
        resources: Some(resources.clone()),
        ..task([("port_map", pairs(map))])
    };
    let made = plan(
        &request(&[("http", "80"), ("gone", "1")]),
        &session(PluginConfig::default()),
    )
    .unwrap();
    let ports: Vec<_> = made
        .ports
        .iter()
        .map(|port| (port.label.as_str(), port.host_port, port.container_port))
        .collect();
    assert_eq!(ports, [("db", 6379, 6379), ("http", 20000, 80)]);
    assert_eq!(
        made.warnings,
        ["port_map has no effect for \"gone\": the job has no such port"]
    );
    let text = "port_map.http: \"www\" is no port";
    refused_task(
        &request(&[("http", "www")]),
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
}

/// The claims of a port of the node for both protocols.
fn claim(port: u16, ip: &str) -> [HostPort; 2] {
    [Protocol::Tcp, Protocol::Udp].map(|protocol| HostPort {
        protocol,
        port,
        ip: ip.parse().ok(),
    })
}

/// The ports of the node that a task claims.
fn claims(task: &nomad::TaskConfig) -> Vec<HostPort> {
    let sandbox = plan(task, &session(PluginConfig::default()))
        .unwrap()
        .sandbox;
    let HostPorts { group, mut ports } = sandbox.host_ports;
    // Only of ports that are forwarded to it is the task the only one in its allocation.
    let is_forwarded = matches!(sandbox.network, SandboxNetwork::Pod(_));
    let expected = HostPorts::new(task.alloc_id.clone(), [], "").unwrap();
    let expected = if is_forwarded {
        expected.forwarded_to(&task.name)
    } else {
        expected
    };
    assert_eq!(group, expected.group);
    ports.sort_by_key(|port| (port.port, port.protocol));
    ports
}

#[test]
fn task_claims_its_host_ports_in_every_network_mode() {
    use nomad::network_isolation_spec::NetworkIsolationMode as Mode;
    let given = [
        ("http", 20000, 8080, "192.168.1.2"),
        ("any", 20001, 0, ""),
        ("none", 0, 0, ""),
        ("bad", 70000, 1, ""),
    ];
    let with = |mode: &str, isolation| {
        let entries = [("network_mode", mode.into()), ("ports", texts(&["http"]))];
        nomad::TaskConfig {
            network_isolation_spec: isolation,
            ..with_ports(entries, &given)
        }
    };
    let http = claim(20000, "192.168.1.2");
    let all = [http, claim(20001, "")].concat();
    assert_eq!(claims(&with("bridge", None)), http, "what is published");
    assert_eq!(claims(&with("host", None)), all);
    assert_eq!(
        claims(&with("", group(Mode::Group, "/var/run/netns/a1"))),
        all
    );
    assert_eq!(claims(&with("none", None)), [], "nothing leads to it");
}

#[test]
fn task_claims_the_ports_that_older_agents_name_by_networks() {
    let port = |label: &str, value| nomad::NetworkPort {
        label: label.to_owned(),
        value,
    };
    let network = |ip: &str, reserved, dynamic| nomad::NetworkResource {
        ip: ip.to_owned(),
        reserved_ports: vec![port("db", reserved)],
        dynamic_ports: vec![port("http", dynamic)],
        ..Default::default()
    };
    let networks = vec![
        network("10.0.0.1", 6379, 20000),
        network("fd00::1", 6379, 20002),
    ];
    let allocated = nomad::AllocatedTaskResources {
        networks,
        ..Default::default()
    };
    let resources = nomad::Resources {
        allocated_resources: Some(allocated),
        ..Default::default()
    };
    let old = |mode: &str| nomad::TaskConfig {
        resources: Some(resources.clone()),
        ..task([("network_mode", mode.into())])
    };
    let mut both = [claim(6379, "10.0.0.1"), claim(6379, "fd00::1")].concat();
    both.sort_by_key(|port| port.protocol);
    assert_eq!(
        claims(&old("bridge")),
        [claim(6379, "10.0.0.1"), claim(20000, "10.0.0.1")].concat()
    );
    assert_eq!(
        claims(&old("host")),
        [
            both,
            [claim(20000, "10.0.0.1"), claim(20002, "fd00::1")].concat()
        ]
        .concat()
    );
}

#[test]
fn claimed_task_ports_are_limited_in_number() {
    let labels: Vec<String> = (0..30_000).map(|port| format!("p{port}")).collect();
    let many = |count: usize| -> Vec<(&str, i32, i32, &str)> {
        labels
            .iter()
            .zip(1..)
            .take(count)
            .map(|(label, port)| (label.as_str(), port, 0, ""))
            .collect()
    };
    let host = [("network_mode", Value::from("host"))];
    let claimed = |ports: &[(&str, i32, i32, &str)]| {
        plan(
            &with_ports(host.clone(), ports),
            &session(PluginConfig::default()),
        )
        .unwrap()
        .sandbox
        .host_ports
        .ports
    };
    assert_eq!(claimed(&many(2048)).len(), HOST_PORTS_MAX);
    assert_eq!(
        claimed(&[many(2048), many(2048)].concat()).len(),
        HOST_PORTS_MAX,
        "each once"
    );
    for (count, named) in [(2049, 4098), (30_000, 60_000)] {
        let text = format!("task.resources: it has {named} ports of the host, and may have 4096");
        let task = with_ports(host.clone(), &many(count));
        refused_task(
            &task,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            &text,
        );
    }
}
