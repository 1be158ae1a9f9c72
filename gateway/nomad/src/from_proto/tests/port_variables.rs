//! Tests of the variables by which a task learns its ports.

use super::ports::with_ports;
use super::*;

/// A request with these ports, as agents give them to jobs of the old form, and this environment.
fn with_old_ports<const N: usize>(
    entries: [(&str, Value); N],
    ports: &[(&str, i32)],
    env: &[(&str, &str)],
) -> nomad::TaskConfig {
    let port = |(label, value): &(&str, i32)| nomad::NetworkPort {
        label: (*label).to_owned(),
        value: *value,
    };
    let network = nomad::NetworkResource {
        ip: "10.0.0.1".to_owned(),
        dynamic_ports: ports.iter().map(port).collect(),
        ..Default::default()
    };
    let allocated = nomad::AllocatedTaskResources {
        networks: vec![network],
        ..Default::default()
    };
    let env = env
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    nomad::TaskConfig {
        resources: Some(nomad::Resources {
            allocated_resources: Some(allocated),
            ..Default::default()
        }),
        env: env.collect(),
        ..task(entries)
    }
}

#[test]
fn task_learns_the_port_that_it_listens_on_as_from_dockers_driver() {
    let check = |task: &nomad::TaskConfig, expected: &[(&str, &str)]| {
        let made = plan(task, &session(PluginConfig::default())).unwrap();
        let variables: Vec<_> = made
            .task
            .env
            .iter()
            .filter(|variable| {
                let of_ports = ["NOMAD_ADDR_", "NOMAD_HOST_PORT_", "NOMAD_PORT_"];
                of_ports
                    .iter()
                    .any(|prefix| variable.name.starts_with(prefix))
            })
            .map(|variable| {
                let value = std::str::from_utf8(&variable.value).unwrap();
                (variable.name.as_str(), value)
            })
            .collect();
        assert_eq!(variables, expected);
    };
    let of_agent = [
        ("NOMAD_ADDR_http", "10.0.0.1:20000"),
        ("NOMAD_HOST_PORT_http", "20000"),
        ("NOMAD_PORT_http", "20000"),
    ];
    let outside = [of_agent[0], of_agent[1]];
    let with = |port: (&'static str, &'static str)| [outside.as_slice(), &[port]].concat();
    let mapped = |port: &str| [("port_map", pairs(&[("http", port)]))];
    let http = [("http", 20000)];
    check(
        &with_old_ports(mapped("80"), &http, &of_agent),
        &with(("NOMAD_PORT_http", "80")),
    );
    // Not mapped, or mapped to 0: the host's port is the one inside.
    check(
        &with_old_ports([], &http, &of_agent),
        &with(("NOMAD_PORT_http", "20000")),
    );
    check(
        &with_old_ports(mapped("0"), &http, &of_agent),
        &with(("NOMAD_PORT_http", "20000")),
    );
    // Characters that names of variables do not have.
    check(
        &with_old_ports(
            [("port_map", pairs(&[("http-ui.v1 ü", "80")]))],
            &[("http-ui.v1 ü", 20000)],
            &[],
        ),
        &[("NOMAD_PORT_http_ui.v1___", "80")],
    );
    // Not published: by the network, and because the job has no such port.
    let host = [
        ("port_map", pairs(&[("http", "80")])),
        ("network_mode", "host".into()),
    ];
    check(
        &with_old_ports(host, &http, &of_agent),
        &with(("NOMAD_PORT_http", "80")),
    );
    check(
        &with_old_ports(mapped("80"), &[], &[]),
        &[("NOMAD_PORT_http", "80")],
    );
    // Ports of the group: the number that is published, whatever port_map says.
    for (to, expected) in [(8080, "8080"), (0, "20000")] {
        let named = [
            ("ports", texts(&["http"])),
            ("port_map", pairs(&[("http", "80")])),
        ];
        check(
            &with_ports(named, &[("http", 20000, to, "")]),
            &[("NOMAD_PORT_http", expected)],
        );
    }
}
