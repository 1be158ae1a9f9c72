//! Tests of networks and names.

use super::*;

pub(super) fn group(
    mode: nomad::network_isolation_spec::NetworkIsolationMode,
    path: &str,
) -> Option<nomad::NetworkIsolationSpec> {
    let spec = nomad::NetworkIsolationSpec {
        mode: mode.into(),
        path: path.to_owned(),
        ..Default::default()
    };
    Some(spec)
}

fn network_of(task: &nomad::TaskConfig) -> SandboxNetwork {
    plan(task, &session(PluginConfig::default()))
        .unwrap()
        .sandbox
        .network
}

#[test]
fn network_mode_comes_from_task_or_group() {
    use nomad::network_isolation_spec::NetworkIsolationMode as Mode;
    let with = |mode: &str, isolation| nomad::TaskConfig {
        network_isolation_spec: isolation,
        ..task([("network_mode", mode.into())])
    };
    let joined = || group(Mode::Group, "/var/run/netns/a1");
    let bridge = SandboxNetwork::Pod(PodNetwork {
        link: Link::Bridge,
        ..PodNetwork::default()
    });
    for (mode, isolation, expected) in [
        ("", None, bridge.clone()),
        ("", group(Mode::Host, ""), bridge.clone()),
        ("", group(Mode::Task, ""), bridge.clone()),
        (
            "",
            joined(),
            SandboxNetwork::Joined("/var/run/netns/a1".into()),
        ),
        ("", group(Mode::None, ""), SandboxNetwork::Isolated),
        ("bridge", joined(), bridge.clone()),
        ("default", None, bridge),
        ("host", joined(), SandboxNetwork::Host),
        ("none", None, SandboxNetwork::Isolated),
    ] {
        assert_eq!(network_of(&with(mode, isolation)), expected, "{mode}");
    }
    let text = "task.network_isolation_spec.path: \"\" is not an absolute path";
    refused_task(
        &with("", group(Mode::Group, "")),
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
    let unknown = nomad::NetworkIsolationSpec {
        mode: 9,
        ..Default::default()
    };
    let text = "task.network_isolation_spec.mode: 9 is none of its values";
    refused_task(
        &with("", Some(unknown)),
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
    for mode in ["mynet", "task:web", "macvlan", "container"] {
        let error = plan(&with(mode, None), &session(PluginConfig::default())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unimplemented);
        assert!(
            error
                .to_string()
                .starts_with(&format!("network_mode: {mode:?} is not supported: ")),
            "{error}"
        );
    }
}

#[test]
fn static_addresses_need_a_private_network() {
    let made = planned([
        ("ipv4_address", "172.26.64.9".into()),
        ("mac_address", "02-42-ac-11-00-02".into()),
    ]);
    let SandboxNetwork::Pod(network) = made.sandbox.network else {
        panic!("it has a network of its own")
    };
    assert_eq!(network.mac.unwrap().to_string(), "02:42:ac:11:00:02");
    assert_eq!(
        network.args,
        [("IgnoreUnknown", "1"), ("IP", "172.26.64.9")].map(|(k, v)| (k.to_owned(), v.to_owned()))
    );
    invalid(
        "ipv4_address",
        "fe80::1",
        "ipv4_address: \"fe80::1\" is no address",
    );
    invalid(
        "mac_address",
        "x",
        "mac_address: \"x\" is no hardware address, as 02:42:ac:11:00:02 is",
    );
    for (key, value) in [
        ("ipv4_address", "172.26.64.9"),
        ("mac_address", "02:42:ac:11:00:02"),
    ] {
        let task = task([("network_mode", "host".into()), (key, value.into())]);
        let text = format!("{key}: the task has no network interface of its own");
        refused_task(
            &task,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            &text,
        );
    }
}

#[test]
fn hostname_comes_from_task_group_or_allocation() {
    let hosts = nomad::HostsConfig {
        hostname: "of-group".to_owned(),
        address: "10.0.0.2".to_owned(),
    };
    let isolation = nomad::NetworkIsolationSpec {
        mode: 1,
        path: "/n".to_owned(),
        hosts_config: Some(hosts),
        ..Default::default()
    };
    let grouped = |entries| nomad::TaskConfig {
        network_isolation_spec: Some(isolation.clone()),
        ..entries
    };
    let named = |task: &nomad::TaskConfig| {
        let sandbox = plan(task, &session(generous())).unwrap().sandbox;
        (sandbox.hostname, sandbox.uts)
    };
    let name = |name: &str, uts| (name.to_owned(), uts);
    assert_eq!(
        named(&grouped(task([]))),
        name("of-group", UtsMode::Network)
    );
    assert_eq!(
        named(&grouped(task([("hostname", "own".into())]))),
        name("own", UtsMode::Network)
    );
    assert_eq!(named(&task([])), name("f3a1b2c40000", UtsMode::Network));
    assert_eq!(
        named(&nomad::TaskConfig {
            alloc_id: "-".to_owned(),
            ..task([])
        }),
        name("task", UtsMode::Network)
    );
    let host = ("network_mode", Value::from("host"));
    assert_eq!(
        named(&task([host.clone()])),
        name("", UtsMode::Network),
        "the host's"
    );
    assert_eq!(
        named(&task([host, ("hostname", "own".into())])),
        name("own", UtsMode::Own)
    );
    assert_eq!(
        named(&task([("uts_mode", "host".into())])),
        name("", UtsMode::Host)
    );
    let both = task([("uts_mode", "host".into()), ("hostname", "own".into())]);
    let text = "hostname: uts_mode is \"host\": the host keeps its name";
    refused_task(&both, generous(), ErrorKind::InvalidArgument, text);
    invalid("hostname", "a_b c", "hostname: \"a_b c\" is no host name");
    invalid("hostname", "-a", "hostname: \"-a\" is no host name");
    invalid(
        "hostname",
        "x".repeat(65),
        "hostname: it is longer than 64 bytes",
    );
}

#[test]
fn dns_comes_from_task_then_job() {
    let job = nomad::DnsConfig {
        servers: strings(&["9.9.9.9"]),
        searches: strings(&["job.test"]),
        options: strings(&["ndots:2"]),
    };
    let with = |entries: nomad::TaskConfig, dns| nomad::TaskConfig { dns, ..entries };
    let dns = |task: &nomad::TaskConfig| {
        plan(task, &session(PluginConfig::default()))
            .unwrap()
            .sandbox
            .dns
    };
    assert_eq!(dns(&task([])), None);
    assert_eq!(
        dns(&with(task([]), Some(nomad::DnsConfig::default()))),
        None
    );
    let made = dns(&with(task([]), Some(job.clone()))).unwrap();
    assert!(
        made.host_defaults,
        "what neither says is as the host has it"
    );
    assert_eq!(
        (made.servers, made.searches, made.options),
        (
            strings(&["9.9.9.9"]),
            strings(&["job.test"]),
            strings(&["ndots:2"])
        )
    );
    let own = task([
        ("dns_servers", texts(&["1.1.1.1", "fe80::1%eth0"])),
        ("dns_options", texts(&["use-vc"])),
    ]);
    let made = dns(&with(own, Some(job))).unwrap();
    assert_eq!(
        (made.servers, made.searches, made.options),
        (
            strings(&["1.1.1.1", "fe80::1%eth0"]),
            strings(&["job.test"]),
            strings(&["use-vc"])
        )
    );
    invalid(
        "dns_servers",
        texts(&["1.1.1.1", "dns.test"]),
        "dns_servers[1]: \"dns.test\" is no IP address",
    );
    invalid(
        "dns_search_domains",
        texts(&["a b"]),
        "dns_search_domains[0]: \"a b\" is not one word",
    );
    invalid(
        "dns_options",
        texts(&["#x"]),
        "dns_options[0]: \"#x\" is not one word",
    );
    let bad = nomad::DnsConfig {
        servers: strings(&["x"]),
        ..Default::default()
    };
    let text = "task.dns.servers[0]: \"x\" is no IP address";
    refused_task(
        &with(task([]), Some(bad)),
        PluginConfig::default(),
        ErrorKind::InvalidArgument,
        text,
    );
}

#[test]
fn extra_hosts_are_names_with_addresses() {
    let entries = [
        "db:10.0.0.5",
        "six:fe80::1",
        "seven:[::1]",
        "eight=1.2.3.4",
        "host.docker.internal:host-gateway",
    ];
    let made = planned([("extra_hosts", texts(&entries))]);
    let host = |name: &str, ip: &str| HostEntry {
        names: strings(&[name]),
        ip: HostAddress::Ip(ip.parse().unwrap()),
    };
    let gateway = HostEntry {
        names: strings(&["host.docker.internal"]),
        ip: HostAddress::Gateway,
    };
    let addresses = [
        host("db", "10.0.0.5"),
        host("six", "fe80::1"),
        host("seven", "::1"),
        host("eight", "1.2.3.4"),
        gateway,
    ];
    assert_eq!(made.sandbox.extra_hosts, addresses);
    for entry in ["db", ":10.0.0.5", "db:ten", "db:"] {
        let text = format!("extra_hosts[0]: {entry:?} is not of the form \"name:address\"");
        invalid("extra_hosts", texts(&[entry]), &text);
    }
    invalid(
        "extra_hosts",
        texts(&["d b:1.2.3.4"]),
        "extra_hosts[0]: \"d b\" is no host name",
    );
    let alone = task([
        ("network_mode", "none".into()),
        ("extra_hosts", texts(&["host:host-gateway"])),
    ]);
    let text = "extra_hosts[0]: host-gateway is known on the gateway's own bridge and the host's network alone; give the address";
    refused_task(
        &alone,
        PluginConfig::default(),
        ErrorKind::Unimplemented,
        text,
    );
}

#[test]
fn sysctls_are_limited_to_private_namespaces() {
    let made = planned([(
        "sysctl",
        pairs(&[
            ("net.core.somaxconn", "1024"),
            ("kernel.shmmax", "1"),
            ("net/ipv4/ping_group_range", "1 1"),
        ]),
    )]);
    let expected = [
        ("kernel.shmmax", "1"),
        ("net.core.somaxconn", "1024"),
        ("net.ipv4.ip_unprivileged_port_start", "0"),
        ("net/ipv4/ping_group_range", "1 1"),
    ];
    assert_eq!(
        made.sandbox.sysctls,
        expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    assert_eq!(
        planned([("network_mode", "host".into())]).sandbox.sysctls,
        BTreeMap::new()
    );
    let isolation = group(
        nomad::network_isolation_spec::NetworkIsolationMode::Group,
        "/run/netns/a1",
    );
    let grouped = task([("sysctl", pairs(&[("net.core.somaxconn", "7")]))]);
    let grouped = nomad::TaskConfig {
        network_isolation_spec: isolation,
        ..grouped
    };
    let made = plan(&grouped, &session(PluginConfig::default()))
        .unwrap()
        .sandbox
        .sysctls;
    let expected = [
        ("net.core.somaxconn", "7"),
        ("net.ipv4.ip_unprivileged_port_start", "0"),
        ("net.ipv4.ping_group_range", "0 2147483647"),
    ];
    assert_eq!(
        made,
        expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
    );
    for (name, why) in [
        (
            "vm.swappiness",
            "it belongs to the whole node, not to a namespace of the task",
        ),
        ("net..x", "it is not the name of a kernel parameter"),
    ] {
        invalid(
            "sysctl",
            pairs(&[(name, "1")]),
            &format!("sysctl.{name}: {why}"),
        );
    }
    for (mode, value, name, kind) in [
        ("network_mode", "host", "net.core.somaxconn", "network"),
        ("ipc_mode", "host", "kernel.shmmax", "ipc"),
        ("uts_mode", "host", "kernel.domainname", "uts"),
    ] {
        let task = task([(mode, value.into()), ("sysctl", pairs(&[(name, "1")]))]);
        let text = format!("sysctl.{name}: sysctl {name:?} not allowed in host {kind} namespace");
        refused_task(&task, generous(), ErrorKind::InvalidArgument, &text);
    }
}

#[test]
fn network_of_another_task_of_the_allocation_is_named_by_the_plan() {
    let alloc = task([]).alloc_id;
    let with = |name: &str, more: (&str, Value)| {
        task([
            ("network_mode", format!("container:{name}").into()),
            ("hostname", "own".into()),
            more,
        ])
    };
    let none = || ("tty", false.into());
    for (name, sibling) in [
        ("db", "db"),
        (&format!("db-{alloc}"), "db"),
        ("db-1", "db-1"),
        (&format!("web-{alloc}-{alloc}"), &format!("web-{alloc}")),
        ("ü b", "ü b"),
    ] {
        let sysctl = ("sysctl", pairs(&[("net.core.somaxconn", "9")]));
        let plan = plan(&with(name, sysctl), &session(PluginConfig::default())).unwrap();
        assert_eq!(plan.sibling.as_deref(), Some(sibling), "{name}");
        assert_eq!(plan.sandbox.hostname, "own");
        assert!(plan.sandbox.host_ports.ports.is_empty());
        // Nothing is set in the network of another task that was not asked for.
        let set: Vec<_> = plan.sandbox.sysctls.keys().map(String::as_str).collect();
        assert_eq!(set, ["net.core.somaxconn"]);
    }
    let refused = |task: &nomad::TaskConfig, text: &str| {
        refused_task(
            task,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            text,
        );
    };
    for name in ["", "a/b", "a\nb", &format!("-{alloc}")] {
        let mode = format!("container:{name}");
        refused(
            &with(name, none()),
            &format!("network_mode: {mode:?} names no task of the allocation"),
        );
    }
    for name in ["web", &format!("web-{alloc}")] {
        let mode = format!("container:{name}");
        refused(
            &with(name, none()),
            &format!("network_mode: {mode:?} is the task itself"),
        );
    }
    refused(
        &with("db", ("mac_address", "02:42:ac:11:00:02".into())),
        "mac_address: the task has no network interface of its own",
    );
}
