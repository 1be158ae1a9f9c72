//! Sandboxes.

use super::*;

#[test]
fn pod_config_translates_to_a_sandbox() {
    let mut config = pod();
    config.labels = map(&[("app", "web")]);
    config.annotations = map(&[("kubernetes.io/ingress-bandwidth", "10M"), ("note", "x")]);
    let (asked, dns) = names_of_a_cluster();
    config.dns_config = Some(asked);
    config.port_mappings = vec![
        cri::PortMapping {
            protocol: cri::Protocol::Udp.into(),
            container_port: 53,
            host_port: 5353,
            host_ip: "10.1.2.3".into(),
        },
        cri::PortMapping {
            container_port: 80,
            ..Default::default()
        },
    ];
    let bytes = crate::record::encode(&SandboxRecord {
        config: Some(config.clone()),
        runtime_handler: "crun".into(),
    });
    let spec = sandbox_of(config.clone()).expect("it is well formed");
    let expected = SandboxSpec {
        meta: Meta {
            owner: Owner::Kubernetes,
            name: "web_shop_u-1_2".into(),
            labels: map(&[("app", "web")]),
            created_at: now(),
            record: bytes,
        },
        handler: "crun".into(),
        hostname: "web".into(),
        network: SandboxNetwork::Pod(network_of_web(config.annotations)),
        host_ports: HostPorts {
            group: "u-1".into(),
            ports: vec![claim(Protocol::Udp, 5353, "10.1.2.3")],
        },
        uts: UtsMode::Network,
        ipc: IpcMode::Shared,
        pid: SandboxPid::PerTask,
        dns: Some(dns),
        extra_hosts: Vec::new(),
        sysctls: map(&[
            ("net.ipv4.ip_unprivileged_port_start", "0"),
            ("net.ipv4.ping_group_range", "0 2147483647"),
        ]),
        shm_size_bytes: 64 << 20,
        log_dir: "/var/log/pods/shop_web_u-1".into(),
        cgroup: CgroupPlacement::Parent("/kubepods/burstable/podu-1".into()),
        privileged: false,
        annotations: map(&[
            ("io.kubernetes.cri.container-type", "sandbox"),
            ("io.kubernetes.cri.sandbox-id", "{id}"),
            ("io.kubernetes.cri.sandbox-name", "web"),
            ("io.kubernetes.cri.sandbox-namespace", "shop"),
            ("io.kubernetes.cri.sandbox-uid", "u-1"),
        ]),
        selinux: None,
        users: None,
    };
    assert_eq!(spec, expected);
}

/// The network of the pod `shop/web`, which has a port and a limit of its bandwidth.
fn network_of_web(annotations: BTreeMap<String, String>) -> PodNetwork {
    PodNetwork {
        link: Link::Node,
        mac: None,
        ports: vec![PortMapping {
            protocol: Protocol::Udp,
            container_port: 53,
            host_port: 5353,
            host_ip: Some("10.1.2.3".parse().expect("it is an address")),
        }],
        bandwidth: Some(Bandwidth {
            ingress_bits: Some(10_000_000),
            egress_bits: None,
        }),
        args: [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", "shop"),
            ("K8S_POD_NAME", "web"),
            ("K8S_POD_INFRA_CONTAINER_ID", "{id}"),
            ("K8S_POD_UID", "u-1"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .to_vec(),
        capabilities: BTreeMap::from([("io.kubernetes.cri.pod-annotations".into(), annotations)]),
    }
}

/// A host port; at all addresses if `ip` is empty.
fn claim(protocol: Protocol, port: u16, ip: &str) -> HostPort {
    HostPort {
        protocol,
        port,
        ip: ip.parse().ok(),
    }
}

/// A resolver configuration as it is requested, and its conversion.
fn names_of_a_cluster() -> (cri::DnsConfig, Dns) {
    let servers = strings(&["10.0.0.10"]);
    let searches = strings(&["svc.local", "."]);
    let options = strings(&["ndots:5"]);
    let asked = cri::DnsConfig {
        servers: servers.clone(),
        searches: searches.clone(),
        options: options.clone(),
    };
    (
        asked,
        Dns {
            servers,
            searches,
            options,
            host_defaults: false,
        },
    )
}

#[test]
fn pod_with_only_a_name_shares_pod_namespaces() {
    let config = cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: "a".into(),
            namespace: "b".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let spec = sandbox_of(config).expect("it is well formed");
    assert!(matches!(spec.network, SandboxNetwork::Pod(_)));
    assert_eq!(
        (spec.pid, spec.ipc, spec.dns),
        (SandboxPid::Shared, IpcMode::Shared, None)
    );
    assert_eq!(spec.cgroup, CgroupPlacement::default());
}

#[test]
fn host_network_pod_has_no_ports_sysctls_or_hostname() {
    let mut config = pod();
    let node = cri::NamespaceMode::Node.into();
    pod_context(&mut config).namespace_options = Some(cri::NamespaceOption {
        network: node,
        pid: node,
        ipc: node,
        ..Default::default()
    });
    config.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: 80,
        ..Default::default()
    }];
    let spec = sandbox_of(config).expect("it is well formed");
    assert_eq!(
        spec.host_ports.ports,
        [claim(Protocol::Tcp, 80, "")],
        "its processes bind it"
    );
    assert_eq!(
        (spec.network, spec.pid, spec.ipc),
        (SandboxNetwork::Host, SandboxPid::Host, IpcMode::Host)
    );
    assert_eq!(
        (spec.sysctls, spec.hostname.as_str()),
        (BTreeMap::new(), "")
    );
}

#[test]
fn pod_sysctl_overrides_the_default_in_any_spelling() {
    let mut config = pod();
    config.linux.as_mut().expect("it is set").sysctls = map(&[
        ("net.ipv4.ping_group_range", "1 2"),
        ("net/ipv4/ip_unprivileged_port_start", "80"),
    ]);
    let spec = sandbox_of(config.clone()).expect("it is well formed");
    assert_eq!(spec.sysctls, config.linux.expect("it is set").sysctls);
}

#[test]
fn default_sysctls_can_be_switched_off() {
    let settings = Config {
        unprivileged_icmp: false,
        unprivileged_ports: false,
        ..Config::default()
    };
    let record = SandboxRecord {
        config: Some(pod()),
        runtime_handler: String::new(),
    };
    assert_eq!(
        sandbox(record, &settings, now())
            .expect("it is well formed")
            .sysctls,
        BTreeMap::new()
    );
}

#[test]
fn malformed_pod_is_rejected_by_field() {
    use ErrorKind::InvalidArgument as Invalid;
    let record = SandboxRecord {
        config: None,
        runtime_handler: String::new(),
    };
    let error = sandbox(record, &Config::default(), now()).expect_err("there is no configuration");
    assert_eq!(error.report(), "config: it is missing");
    refuses_pod(
        |c| c.metadata = None,
        Invalid,
        "config.metadata: it is missing",
    );
    refuses_pod(
        |c| c.metadata.as_mut().unwrap().name.clear(),
        Invalid,
        "config.metadata.name: it is empty",
    );
    refuses_pod(
        |c| c.metadata.as_mut().unwrap().namespace = "a;b".into(),
        Invalid,
        "config.metadata.namespace: it contains ';'",
    );
    refuses_pod(
        |c| c.hostname = "x".repeat(65),
        Invalid,
        "config.hostname: it is longer than 64 bytes",
    );
    refuses_pod(
        |c| c.hostname = "a b".into(),
        Invalid,
        "config.hostname: it contains ' '",
    );
    refuses_pod(
        |c| c.log_directory = "logs".into(),
        Invalid,
        "config.log_directory: \"logs\" is not an absolute path",
    );
    refuses_pod(
        |c| c.log_directory = "/a/../b".into(),
        Invalid,
        "config.log_directory: \"/a/../b\" contains \"..\"",
    );
    refuses_pod(
        |c| c.linux.as_mut().unwrap().cgroup_parent = "/a/../..".into(),
        Invalid,
        "config.linux.cgroup_parent: \"/a/../..\" contains \"..\"",
    );
    let dns = |servers: &[&str]| {
        Some(cri::DnsConfig {
            servers: strings(servers),
            ..Default::default()
        })
    };
    refuses_pod(
        |c| c.dns_config = dns(&["1.1.1.1", "x\ny"]),
        Invalid,
        "config.dns_config.servers[1]: \"x\\ny\" is not one word",
    );
    refuses_pod(
        |c| c.annotations = map(&[("kubernetes.io/egress-bandwidth", "lots")]),
        Invalid,
        "config.annotations[\"kubernetes.io/egress-bandwidth\"]: \"lots\" is not a quantity such as \"10M\"",
    );
    refuses_pod(
        |c| c.annotations = map(&[("kubernetes.io/egress-bandwidth", "1")]),
        Invalid,
        "config.annotations[\"kubernetes.io/egress-bandwidth\"]: \"1\" is not between 1k and 1P",
    );
}

#[test]
fn malformed_port_is_rejected_by_field() {
    let refuses = |change: fn(&mut cri::PortMapping), message: &str| {
        refuses_pod(
            |config| {
                let mut port = cri::PortMapping {
                    container_port: 80,
                    host_port: 8080,
                    ..Default::default()
                };
                change(&mut port);
                config.port_mappings = vec![port];
            },
            ErrorKind::InvalidArgument,
            &format!("config.port_mappings[0].{message}"),
        );
    };
    refuses(
        |port| port.protocol = 7,
        "protocol: 7 is not one of its values",
    );
    refuses(
        |port| port.host_port = 65_536,
        "host_port: 65536 is not between 0 and 65535",
    );
    refuses(
        |port| port.host_port = -1,
        "host_port: -1 is not between 0 and 65535",
    );
    refuses(
        |port| port.container_port = 0,
        "container_port: 0 is not a port",
    );
    refuses(
        |port| port.host_ip = "localhost".into(),
        "host_ip: \"localhost\" is not an IP address",
    );
}

#[test]
fn sysctl_of_a_host_namespace_is_rejected() {
    let refuses = |host: bool, name: &str, message: &str| {
        refuses_pod(
            |config| {
                let node = cri::NamespaceMode::Node.into();
                if host {
                    pod_context(config).namespace_options = Some(cri::NamespaceOption {
                        network: node,
                        ipc: node,
                        ..Default::default()
                    });
                }
                config.linux.as_mut().unwrap().sysctls = map(&[(name, "1")]);
            },
            ErrorKind::InvalidArgument,
            &format!("config.linux.sysctls[{name:?}]: {message}"),
        );
    };
    refuses(
        true,
        "net.core.somaxconn",
        "the sandbox uses the host's network namespace",
    );
    refuses(
        true,
        "net/core/somaxconn",
        "the sandbox uses the host's network namespace",
    );
    refuses(
        true,
        "kernel.shm_rmid_forced",
        "the sandbox uses the host's IPC namespace",
    );
    refuses(
        true,
        "fs.mqueue.msg_max",
        "the sandbox uses the host's IPC namespace",
    );
    refuses(
        true,
        "kernel.domainname",
        "the sandbox uses the host's UTS namespace",
    );
    refuses(
        false,
        "kernel.hostname",
        "it belongs to the whole node, not to a namespace of the sandbox",
    );
    refuses(
        false,
        "vm.swappiness",
        "it belongs to the whole node, not to a namespace of the sandbox",
    );
    refuses(
        false,
        "net/../vm",
        "it is not the name of a kernel parameter",
    );
    refuses(false, "", "it is not the name of a kernel parameter");
}

#[test]
fn unsupported_pod_namespaces_are_rejected_by_field() {
    let refuses = |change: fn(&mut cri::NamespaceOption), kind, message: &str| {
        refuses_pod(
            |config| change(pod_context(config).namespace_options.as_mut().unwrap()),
            kind,
            &format!("config.linux.security_context.namespace_options.{message}"),
        );
    };
    use ErrorKind::InvalidArgument as Invalid;
    refuses(
        |o| o.network = 1,
        Invalid,
        "network: a sandbox's cannot be CONTAINER",
    );
    refuses(|o| o.ipc = 3, Invalid, "ipc: a sandbox's cannot be TARGET");
    refuses(|o| o.pid = 3, Invalid, "pid: a sandbox's cannot be TARGET");
    refuses(|o| o.pid = 4, Invalid, "pid: 4 is not one of its values");
    refuses(
        |o| o.userns_options = Some(cri::UserNamespace::default()),
        Invalid,
        "userns_options.uids: there must be one mapping, not 0",
    );
    refuses(
        |o| {
            o.userns_options = Some(cri::UserNamespace {
                mode: 1,
                ..Default::default()
            })
        },
        Invalid,
        "userns_options.mode: CONTAINER is neither POD nor NODE",
    );
}

#[test]
fn pod_claims_each_host_port_once_and_shares_only_with_its_attempts() {
    let mapping =
        |protocol: cri::Protocol, container_port, host_port, host_ip: &str| cri::PortMapping {
            protocol: protocol.into(),
            container_port,
            host_port,
            host_ip: host_ip.into(),
        };
    let claims = |uid: &str, attempt| {
        let mut config = pod();
        let metadata = config.metadata.as_mut().expect("it is set");
        (metadata.uid, metadata.attempt) = (uid.into(), attempt);
        config.port_mappings = vec![
            mapping(cri::Protocol::Sctp, 1, 7, ""),
            mapping(cri::Protocol::Tcp, 80, 8080, "::1"),
            mapping(cri::Protocol::Tcp, 81, 8080, "::1"),
            mapping(cri::Protocol::Tcp, 82, 0, ""),
        ];
        sandbox_of(config).expect("it is well formed").host_ports
    };
    let claimed = claims("u-1", 2);
    assert_eq!(
        claimed.ports,
        [
            claim(Protocol::Tcp, 8080, "::1"),
            claim(Protocol::Sctp, 7, "")
        ]
    );
    for (is_host, expected) in [(false, "::"), (true, "")] {
        let mut config = pod();
        let mode = if is_host {
            cri::NamespaceMode::Node
        } else {
            cri::NamespaceMode::Pod
        };
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context
            .namespace_options
            .get_or_insert_default()
            .set_network(mode);
        config.port_mappings = vec![mapping(cri::Protocol::Tcp, 80, 8080, "::")];
        // Of a process on the host's network, it is a port of IPv4 as well.
        let claimed = sandbox_of(config).expect("it is well formed").host_ports;
        assert_eq!(claimed.ports, [claim(Protocol::Tcp, 8080, expected)]);
    }
    assert_eq!(claims("u-1", 3), claimed);
    assert_ne!(claims("u-2", 2).group, claimed.group);
    assert_eq!(claims("", 2).group, "shop/web");
}
