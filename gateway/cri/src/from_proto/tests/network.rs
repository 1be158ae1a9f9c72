//! DNS and the number of host ports of a pod.

use super::*;

#[test]
fn empty_dns_config_uses_the_hosts() {
    let mut config = pod();
    config.dns_config = Some(cri::DnsConfig::default());
    assert_eq!(sandbox_of(config).expect("it is well formed").dns, None);
}

#[test]
fn empty_words_of_a_dns_config_are_left_out() {
    let found = |servers: &[&str], searches: &[&str], options: &[&str]| {
        let mut config = pod();
        config.dns_config = Some(cri::DnsConfig {
            servers: strings(servers),
            searches: strings(searches),
            options: strings(options),
        });
        sandbox_of(config).map(|spec| spec.dns)
    };
    let dns = |searches: &[&str], options: &[&str]| {
        Some(Dns {
            servers: strings(&["1.1.1.1"]),
            searches: strings(searches),
            options: strings(options),
            host_defaults: false,
        })
    };
    for (searches, options, expected) in [
        (&[][..], &[""][..], dns(&[], &[])),
        (&[""][..], &[][..], dns(&[], &[])),
        (
            &["a.test", ""][..],
            &["", "ndots:5", ""][..],
            dns(&["a.test"], &["ndots:5"]),
        ),
    ] {
        let found = found(&["1.1.1.1"], searches, options).expect("it is well formed");
        assert_eq!(found, expected);
    }
    assert_eq!(
        found(&[], &[""], &["", ""]).expect("it is well formed"),
        None
    );
    found(&[""], &[], &[]).expect_err("an address is not empty");
}

#[test]
fn host_ports_of_a_pod_are_limited() {
    let many = |count: i32| {
        (1..=count)
            .map(|host_port| cri::PortMapping {
                container_port: 1,
                host_port,
                ..Default::default()
            })
            .collect::<Vec<_>>()
    };
    let most = cri::PodSandboxConfig {
        port_mappings: [many(4096), many(4096)].concat(),
        ..pod()
    };
    assert_eq!(
        sandbox_of(most)
            .expect("it is well formed")
            .host_ports
            .ports
            .len(),
        HOST_PORTS_MAX
    );
    for count in [4097, 65_535] {
        let text =
            format!("config.port_mappings: it has {count} ports of the host, and may have 4096");
        refuses_pod(
            |config| config.port_mappings = many(count),
            ErrorKind::InvalidArgument,
            &text,
        );
    }
}
