//! The gateway's own network, beside the node's network.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use switchyard_containerd::config::BridgeDriverChoice;
use switchyard_containerd::{Containerd, Settings};
use switchyard_core::ErrorKind;
use switchyard_core::backend::{Backend, Condition, SandboxBackend, unobserved};
use switchyard_core::id::{SandboxId, TaskId};
use switchyard_core::object::SandboxDetails;
use switchyard_core::spec::{
    HostAddress, HostEntry, MacAddress, PortMapping, Protocol, SandboxNetwork, Signal,
};
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::{ask, eventually, free_port, within};

use super::{CallerFixture, bridged};

/// Time for a server to answer.
pub(super) const LIMIT: Duration = Duration::from_secs(20);
/// Time for a datagram.
const TRY: Duration = Duration::from_secs(2);
/// The number of sandboxes that are created concurrently.
const MANY: u8 = 12;
/// Answers every connection to port 80 with a greeting.
pub(super) const SERVE: &str = "while true; do echo hello | nc -l -p 80; done";

tests_with_driver! {
    Cni:
    port_is_published_only_on_the_given_address => publish_a_port,
    a_task_reaches_its_own_published_port => reach_its_own_port,
    sandbox_has_requested_mac_address_and_host_entries => ask_for_a_mac_address,
    sandbox_on_a_bridge_of_both_families_has_files_that_name_both => have_both_families,
    sandbox_gets_its_requested_address_or_fails => ask_for_an_address,
    concurrent_sandboxes_get_distinct_addresses_and_release_them => get_distinct_addresses,
    restarted_sandbox_keeps_its_address_or_is_refused => keep_an_address,
}

pub(super) fn first(details: &SandboxDetails) -> Ipv4Addr {
    match details.ips.first() {
        Some(IpAddr::V4(address)) => *address,
        other => panic!("its first address is {other:?}"),
    }
}

pub(super) fn mapping(protocol: Protocol, host_ip: Ipv4Addr, host_port: u16) -> PortMapping {
    PortMapping {
        protocol,
        container_port: 80,
        host_port,
        host_ip: Some(host_ip.into()),
    }
}

pub(super) fn is_greeted(address: SocketAddr) -> bool {
    ask(address, b"").as_deref() == Some("hello\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn bridge_works_with_and_without_node_networks() {
    let caller = CallerFixture::new().await;
    let root = caller.fixture.root();
    let (_, on_node) = caller.sandbox(|_| {}).await;
    let (_, on_bridge) = caller.sandbox(|spec| spec.network = bridged(|_| {})).await;
    assert!(root.network().contains(first(&on_node)), "{on_node:?}");
    assert!(root.bridge().contains(first(&on_bridge)), "{on_bridge:?}");
    let files = |dir| {
        std::fs::read_dir(dir)
            .expect("it can be read")
            .flatten()
            .count()
    };
    assert_eq!(
        files(root.cni_conf()),
        1,
        "nothing is added to the node's configurations"
    );
    let report = root
        .state()
        .join("network")
        .join(format!("{}.conflist", root.bridge().name()));
    assert!(report.is_file(), "{} is for people", report.display());

    std::fs::remove_dir_all(root.cni_conf()).expect("it is ours");
    let found = caller.backend.fresh_status().await.network;
    assert!(
        matches!(found, Condition::False { .. }),
        "kubelets learn that the node has no network: {found:?}"
    );
    let refused = caller
        .try_sandbox(|_| {})
        .await
        .expect_err("the node has no network");
    assert_eq!(
        refused.kind(),
        ErrorKind::Unavailable,
        "{}",
        refused.report()
    );
    let (_, still) = caller.sandbox(|spec| spec.network = bridged(|_| {})).await;
    assert!(root.bridge().contains(first(&still)), "{still:?}");
    caller.close().await;
}

pub(super) async fn publish_a_port(driver: BridgeDriverChoice) {
    let caller = CallerFixture::with_driver(driver).await;
    let port = free_port();
    let gateway = caller.fixture.root().bridge().gateway();
    let ports = vec![
        mapping(Protocol::Tcp, Ipv4Addr::LOCALHOST, port),
        mapping(Protocol::Udp, Ipv4Addr::LOCALHOST, port),
    ];
    let (sandbox, details) = caller
        .sandbox(|spec| spec.network = bridged(|network| network.ports.clone_from(&ports)))
        .await;
    let task = caller.task(sandbox, SERVE, |_| {}).await;
    let published = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert!(
        eventually(LIMIT, || is_greeted(published)),
        "nobody answers on {published}"
    );
    assert!(
        eventually(LIMIT, || is_greeted((first(&details), 80).into())),
        "nobody answers inside"
    );
    assert!(
        !is_greeted((gateway, port).into()),
        "it is published on an address that was not asked for"
    );
    assert_udp_received(&details, published);
    wait_ended(&caller, task).await;
    caller
        .backend
        .stop_sandbox(sandbox)
        .await
        .expect("it can be stopped");
    caller.backend.wait_network_released(sandbox).await;
    assert!(!is_greeted(published), "{published} still leads somewhere");
    caller.close().await;
}

async fn wait_ended(caller: &CallerFixture, task: TaskId) {
    caller
        .backend
        .signal_task(task, Signal::KILL)
        .await
        .expect("it can be killed");
    caller.end(task).await;
}

/// A socket for datagrams at port 80 of a network namespace: busybox has no program for that.
fn listen_in(netns: &Path) -> UdpSocket {
    let bind = || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 80));
    let bound = within(netns, bind).join().expect("the thread ends");
    let socket = bound.expect("the port is free in it");
    socket.set_read_timeout(Some(TRY)).expect("it is a socket");
    socket
}

/// A datagram to the published port is received in the sandbox.
fn assert_udp_received(details: &SandboxDetails, published: SocketAddr) {
    let inside = listen_in(details.netns.as_deref().expect("it has one"));
    let outside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    outside.send_to(b"word", published).expect("it can be sent");
    let mut received = [0; 16];
    let length = loop {
        match inside.recv(&mut received) {
            // A wait with a timeout is not resumed after the process was stopped (signal(7)).
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            length => break length.expect("a datagram comes within two seconds"),
        }
    };
    assert_eq!(&received[..length], b"word");
}

pub(super) async fn reach_its_own_port(driver: BridgeDriverChoice) {
    let caller = CallerFixture::with_driver(driver).await;
    let port = free_port();
    let gateway = caller.fixture.root().bridge().gateway();
    // The address of the bridge is one of the node, and comes with the first sandbox.
    let (other, _) = caller.sandbox(|spec| spec.network = bridged(|_| {})).await;
    let (sandbox, _) = caller
        .sandbox(|spec| {
            spec.network =
                bridged(|network| network.ports = vec![mapping(Protocol::Tcp, gateway, port)])
        })
        .await;
    let task = caller.task(sandbox, SERVE, |_| {}).await;
    let neighbour = caller.task(other, "exec sleep 1000", |_| {}).await;
    for (who, from) in [("itself", task), ("a neighbour", neighbour)] {
        let script = format!(
            "for i in 1 2 3 4 5 6 7 8 9 10; do nc -w 2 {gateway} {port} </dev/null && break; sleep 0.3; done"
        );
        assert_eq!(
            caller.shell_output(from, &script).await,
            "hello",
            "{who} does not reach it"
        );
    }
    caller.close().await;
}

pub(super) async fn ask_for_a_mac_address(driver: BridgeDriverChoice) {
    let caller = CallerFixture::with_driver(driver).await;
    let mac = MacAddress::parse("02:42:ac:11:65:43").expect("it is one");
    let (sandbox, details) = caller
        .sandbox(|spec| {
            spec.network = bridged(|network| network.mac = Some(mac));
            spec.hostname = "web".to_owned();
            spec.extra_hosts = vec![
                HostEntry {
                    ip: HostAddress::Ip(Ipv4Addr::new(10, 9, 8, 7).into()),
                    names: vec!["db".to_owned()],
                },
                HostEntry {
                    ip: HostAddress::Gateway,
                    names: vec!["host.docker.internal".to_owned()],
                },
            ];
        })
        .await;
    let task = caller.task(sandbox, "exec sleep 1000", |_| {}).await;
    assert_eq!(
        caller
            .shell_output(task, "cat /sys/class/net/eth0/address")
            .await,
        mac.to_string()
    );
    let hosts = caller.shell_output(task, "cat /etc/hosts").await;
    let own = format!("{}\tweb", first(&details));
    let host = format!(
        "{}\thost.docker.internal",
        caller.fixture.root().bridge().gateway()
    );
    for line in [own.as_str(), "10.9.8.7\tdb", &host] {
        assert!(
            hosts.lines().any(|known| known == line),
            "{line} is not in {hosts}"
        );
    }
    caller.close().await;
}

pub(super) async fn have_both_families(driver: BridgeDriverChoice) {
    let mut range = String::new();
    let fixture = tokio::task::block_in_place(|| {
        BackendFixture::with(|settings| {
            let bridge = &mut settings.network.bridge;
            bridge.driver = Some(driver);
            let four = bridge.subnets[0].replace('.', ":");
            let unique = four.strip_suffix(":0/24").expect("it is a /24");
            range = format!("fd00:{unique}::");
            bridge.subnets.push(format!("{range}/64"));
            settings.network.dns = vec!["192.0.2.53".to_owned(), "fd00::53".to_owned()];
        })
    });
    let caller = CallerFixture::with_fixture(fixture).await;
    let (sandbox, details) = caller
        .sandbox(|spec| {
            spec.network = bridged(|_| {});
            spec.hostname = "web".to_owned();
            spec.extra_hosts = vec![HostEntry {
                ip: HostAddress::Gateway,
                names: vec!["host.docker.internal".to_owned()],
            }];
        })
        .await;
    let [four, six] = details.ips[..] else {
        panic!("{details:?}");
    };
    assert!(four.is_ipv4() && six.is_ipv6(), "{details:?}");
    let task = caller.task(sandbox, "exec sleep 1000", |_| {}).await;
    let hosts = caller.shell_output(task, "cat /etc/hosts").await;
    let gateway = caller.fixture.root().bridge().gateway();
    let gateway_six: IpAddr = format!("{range}1").parse().expect("it is one");
    for line in [
        "::1\tlocalhost ip6-localhost ip6-loopback".to_owned(),
        "ff02::1\tip6-allnodes".to_owned(),
        format!("{four}\tweb"),
        format!("{six}\tweb"),
        format!("{gateway}\thost.docker.internal"),
        format!("{gateway_six}\thost.docker.internal"),
    ] {
        assert!(
            hosts.lines().any(|known| known == line),
            "{line} is not in {hosts}"
        );
    }
    let servers = caller
        .shell_output(task, "grep nameserver /etc/resolv.conf")
        .await;
    assert_eq!(
        servers.trim_end(),
        "nameserver 192.0.2.53\nnameserver fd00::53"
    );
    caller.close().await;
}

pub(super) async fn ask_for_an_address(driver: BridgeDriverChoice) {
    let caller = CallerFixture::with_driver(driver).await;
    let [a, b, c, _] = caller.fixture.root().bridge().gateway().octets();
    let wanted = Ipv4Addr::new(a, b, c, 77);
    let (_, details) = caller.sandbox(|spec| spec.network = asking(wanted)).await;
    assert_eq!(first(&details), wanted);
    for (address, why) in [
        (wanted, "it is another's"),
        (Ipv4Addr::new(192, 0, 2, 1), "it is of no range here"),
    ] {
        let refused = caller
            .try_sandbox(|spec| spec.network = asking(address))
            .await
            .expect_err(why);
        assert!(
            refused.report().contains(&address.to_string()),
            "{}",
            refused.report()
        );
    }
    caller.close().await;
}

/// A network of the gateway's own with this address.
fn asking(address: Ipv4Addr) -> SandboxNetwork {
    let args = vec![
        ("IgnoreUnknown".to_owned(), "1".to_owned()),
        ("IP".to_owned(), address.to_string()),
    ];
    bridged(|network| network.args = args)
}

pub(super) async fn keep_an_address(driver: BridgeDriverChoice) {
    let caller = CallerFixture::with_driver(driver).await;
    let mut spec = caller.sandbox_spec();
    spec.network = bridged(|_| {});
    let id = SandboxId::random();
    let backend = &caller.backend;
    let created = backend.create_sandbox(id, &spec).await;
    let address = first(&created.expect("it can be created"));
    let stop = async |id| {
        backend.stop_sandbox(id).await.expect("it can be stopped");
        backend.wait_network_released(id).await;
    };
    stop(id).await;
    let started = backend.start_sandbox(id, &spec).await;
    assert_eq!(first(&started.expect("its address is free")), address);
    stop(id).await;
    let (other, _) = caller.sandbox(|spec| spec.network = asking(address)).await;
    let refused = backend.start_sandbox(id, &spec).await;
    let refused = refused.expect_err("another sandbox has its address");
    assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
    let text = format!("its address {address} is not available any more");
    assert!(refused.report().contains(&text), "{}", refused.report());
    stop(other).await;
    let started = backend.start_sandbox(id, &spec).await;
    assert_eq!(first(&started.expect("it is free again")), address);
    caller.close().await;
}

pub(super) async fn get_distinct_addresses(driver: BridgeDriverChoice) {
    let caller = CallerFixture::with_driver(driver).await;
    let port = free_port();
    let made = (0..MANY).map(async |number| {
        let host_ip = Ipv4Addr::new(127, 0, 1, number);
        let ports = vec![
            mapping(Protocol::Tcp, host_ip, port),
            mapping(Protocol::Udp, host_ip, port),
        ];
        caller
            .sandbox(|spec| spec.network = bridged(|network| network.ports = ports))
            .await
    });
    let made = futures::future::join_all(made).await;
    let addresses: BTreeSet<Ipv4Addr> = made.iter().map(|(_, details)| first(details)).collect();
    assert_eq!(addresses.len(), made.len(), "{addresses:?}");
    let removed = made.iter().map(async |(id, _)| {
        caller
            .backend
            .stop_sandbox(*id)
            .await
            .expect("it can be stopped");
        caller
            .backend
            .remove_sandbox(*id)
            .await
            .expect("and removed");
    });
    futures::future::join_all(removed).await;
    assert_eq!(
        caller.fixture.root().bridge().in_use(),
        Vec::<String>::new()
    );
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_bridge_plugins_are_named() {
    let world = tokio::task::block_in_place(|| {
        BackendFixture::with(|settings| settings.network.bin_dirs = vec!["/no/such/plugins".into()])
    });
    let caller = CallerFixture::with_fixture(world).await;
    let refused = caller
        .try_sandbox(|spec| spec.network = bridged(|_| {}))
        .await
        .expect_err("it has no plugins");
    let report = refused.report();
    assert!(
        report.contains("plugin bridge") && report.contains("/no/such/plugins"),
        "{report}"
    );
    caller.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bridge_subnet_with_a_conflicting_route_is_rejected() {
    let caller = CallerFixture::new().await;
    // The node's own network is up, and in the way.
    caller.sandbox(|_| {}).await;
    let mut settings = second_gateway_settings(&caller);
    settings.network.bridge.name = "swt-in-the-way".to_owned();
    settings.network.bridge.subnets = vec![caller.fixture.root().network().subnet()];
    let second = Containerd::connect(settings, unobserved()).expect("it can be set up");
    second.recover().await.expect("it recovers");
    let mut spec = caller.sandbox_spec();
    spec.network = bridged(|_| {});
    let refused = second
        .create_sandbox(SandboxId::random(), &spec)
        .await
        .expect_err("the range is taken");
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    let report = refused.report();
    assert!(
        report.contains("network.bridge.subnets")
            && report.contains(caller.fixture.root().network().bridge()),
        "{report}"
    );
    drop(second);
    caller.close().await;
}

/// The settings of another gateway on the same containerd.
fn second_gateway_settings(caller: &CallerFixture) -> Settings {
    let state = caller.fixture.root().path().join("state2");
    let run = caller.fixture.root().path().join("run2");
    for dir in [&state, &run] {
        std::fs::create_dir_all(dir).expect("the scratch directory can be written");
    }
    Settings {
        state,
        run,
        ..caller.fixture.settings().clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_gateways_share_a_bridge_without_address_conflicts() {
    let caller = CallerFixture::new().await;
    let second = Containerd::connect(second_gateway_settings(&caller), unobserved())
        .expect("it can be set up");
    second.recover().await.expect("it recovers");
    let mut spec = caller.sandbox_spec();
    spec.network = bridged(|_| {});
    let mine = SandboxId::random();
    let theirs = SandboxId::random();
    let (first_made, second_made) = tokio::join!(
        caller.backend.create_sandbox(mine, &spec),
        second.create_sandbox(theirs, &spec)
    );
    let first_made = first_made.expect("one is made");
    let second_made = second_made.expect("so is another");
    assert_ne!(first(&first_made), first(&second_made));
    second
        .stop_sandbox(theirs)
        .await
        .expect("it can be stopped");
    second.remove_sandbox(theirs).await.expect("and removed");
    drop(second);
    caller.close().await;
}
