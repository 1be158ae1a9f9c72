//! Networks and ports.

use swarm::network_spec::ConfigFrom;
use switchyard_core::spec::{
    ClusterBridge, Link, NetworkName, PodNetwork, Protocol, SandboxNetwork,
};

use super::*;

mod bridges;

fn network(name: &str, driver: &str, predefined: bool) -> swarm::NetworkAttachment {
    let labels = if predefined {
        [("com.docker.swarm.predefined".to_owned(), "true".to_owned())].into()
    } else {
        BTreeMap::new()
    };
    let annotations = Some(swarm::Annotations {
        name: name.into(),
        labels,
        ..Default::default()
    });
    let network = swarm::Network {
        spec: Some(swarm::NetworkSpec {
            annotations,
            ..Default::default()
        }),
        driver_state: Some(swarm::Driver {
            name: driver.into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    swarm::NetworkAttachment {
        network: Some(network),
        ..Default::default()
    }
}

fn on(networks: Vec<swarm::NetworkAttachment>) -> swarm::Task {
    swarm::Task {
        networks,
        ..task(1, container())
    }
}

fn port(published: u32, target: u32, mode: i32) -> swarm::PortConfig {
    swarm::PortConfig {
        name: "web".into(),
        protocol: 1,
        target_port: target,
        published_port: published,
        publish_mode: mode,
    }
}

fn published(
    networks: Vec<swarm::NetworkAttachment>,
    ports: Vec<swarm::PortConfig>,
) -> swarm::Task {
    swarm::Task {
        endpoint: Some(swarm::Endpoint {
            ports,
            ..Default::default()
        }),
        ..on(networks)
    }
}

#[test]
fn task_without_a_network_and_one_on_bridge_have_the_gateways_bridge() {
    for asked in [on(Vec::new()), on(vec![network("bridge", "bridge", true)])] {
        let SandboxNetwork::Pod(PodNetwork { link, ports, .. }) =
            planned_task(&asked).sandbox.network
        else {
            panic!("{asked:?}")
        };
        assert_eq!((link, ports), (Link::Bridge, Vec::new()));
    }
}

#[test]
fn network_of_the_host_keeps_its_name() {
    let made = planned_task(&on(vec![network("host", "host", true)]));
    assert_eq!(
        (made.sandbox.network, made.sandbox.hostname.as_str()),
        (SandboxNetwork::Host, "")
    );
    assert_eq!(made.sandbox.sysctls.len(), 0);
    let mut named = on(vec![network("host", "host", true)]);
    let given = swarm::ContainerSpec {
        hostname: "other".into(),
        ..container()
    };
    named.spec = task(1, given).spec;
    let made = planned_task(&named);
    assert_eq!(
        (made.sandbox.uts, made.sandbox.hostname.as_str()),
        (UtsMode::Own, "other")
    );
}

#[test]
fn other_networks_are_refused_by_name() {
    let text = |networks: Vec<swarm::NetworkAttachment>| {
        let error = refusal(&on(networks));
        assert_eq!(error.kind(), ErrorKind::Unimplemented);
        error.report()
    };
    assert_eq!(
        text(vec![network("front", "overlay", false)]),
        "networks[0]: network \"front\" with driver \"overlay\" is not supported: there are the host's network, \
         \"bridge\", bridge networks of the swarm, and networks with the configuration of one of the node's own \
         (--config-from)"
    );
    assert!(text(vec![network("b", "macvlan", false)]).contains("\"b\" with driver \"macvlan\""));
    assert!(text(vec![network("host", "host", false)]).contains("with driver \"host\""));
    let mut ingress = network("ingress", "", false);
    ingress
        .network
        .as_mut()
        .unwrap()
        .spec
        .as_mut()
        .unwrap()
        .ingress = true;
    assert!(text(vec![ingress]).contains("(ingress)"));
    let two = text(vec![
        network("a", "bridge", true),
        network("b", "bridge", true),
    ]);
    assert_eq!(
        two,
        "networks: 2 of them, [\"a\", \"b\"]: a task has one network here"
    );
    assert_eq!(
        refusal(&on(vec![Default::default()])).report(),
        "networks[0]: it is missing"
    );
}

fn with_configuration(name: &str) -> swarm::NetworkAttachment {
    let mut attachment = network("front", "bridge", false);
    let spec = attachment
        .network
        .as_mut()
        .and_then(|network| network.spec.as_mut());
    spec.unwrap().config_from = Some(ConfigFrom::Network(name.into()));
    attachment
}

#[test]
fn network_with_a_configuration_is_the_nodes_network_of_that_name() {
    let made = planned_task(&published(
        vec![with_configuration("storage.v2_a-b")],
        vec![port(8080, 80, 1)],
    ));
    let SandboxNetwork::Pod(PodNetwork { link, ports, .. }) = made.sandbox.network else {
        panic!("it has a network of its own")
    };
    assert_eq!(
        link,
        Link::Named(NetworkName::parse("name", "storage.v2_a-b").unwrap())
    );
    assert_eq!(ports.len(), 1);
    for name in [
        "",
        ".",
        "../10-test",
        "-x",
        "a/b",
        "a b",
        "a\0",
        "ä",
        &"x".repeat(129),
    ] {
        let error = refusal(&on(vec![with_configuration(name)]));
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(
            error
                .report()
                .starts_with("networks[0]: the configuration of network \"front\": "),
            "{error:?}"
        );
    }
}

#[test]
fn ports_of_the_node_lead_into_the_task() {
    let made = planned_task(&published(
        Vec::new(),
        vec![port(8080, 80, 1), port(0, 81, 1)],
    ));
    let numbers: Vec<_> = made
        .ports
        .iter()
        .map(|port| (port.published, port.target, port.protocol))
        .collect();
    assert_eq!(
        numbers,
        [(Some(8080), 80, Protocol::Udp), (None, 81, Protocol::Udp)]
    );
    let claimed: Vec<u16> = made
        .sandbox
        .host_ports
        .ports
        .iter()
        .map(|port| port.port)
        .collect();
    assert_eq!(claimed, [8080]);
    let SandboxNetwork::Pod(network) = made.sandbox.network else {
        panic!("it has a network of its own")
    };
    assert_eq!(
        (
            network.ports.len(),
            network.ports[0].host_port,
            network.ports[0].container_port
        ),
        (1, 8080, 80)
    );
}

#[test]
fn task_on_the_hosts_network_claims_what_it_listens_on() {
    let host = vec![network("host", "host", true)];
    let made = planned_task(&published(host, vec![port(8080, 80, 1), port(0, 81, 1)]));
    let claimed: Vec<u16> = made
        .sandbox
        .host_ports
        .ports
        .iter()
        .map(|port| port.port)
        .collect();
    assert_eq!(claimed, [80, 81]);
}

#[test]
fn ports_of_the_cluster_and_malformed_ones_are_refused() {
    let text = |port: swarm::PortConfig| refusal(&published(Vec::new(), vec![port])).report();
    assert!(
        text(port(80, 80, 0))
            .starts_with("endpoint.ports[0]: ports of the whole cluster (ingress)")
    );
    assert_eq!(
        text(port(80, 0, 1)),
        "endpoint.ports[0].target_port: 0 is no port"
    );
    assert_eq!(
        text(port(70_000, 80, 1)),
        "endpoint.ports[0].published_port: 70000 is no port"
    );
    assert_eq!(
        text(port(80, 80, 7)),
        "endpoint.ports[0].publish_mode: 7 is not known"
    );
    let many = vec![port(0, 80, 1); 2_000];
    assert!(
        refusal(&published(Vec::new(), many))
            .report()
            .contains("may have 1024")
    );
}
