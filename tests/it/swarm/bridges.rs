//! Bridge networks of a swarm: what tasks on them reach, and that neither bridge nor address is left.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use nix::net::if_::if_nametoindex;
use swarm::TaskState;
use swarm::task_status::RuntimeStatus;
use switchyard_containerd::config::BridgeDriverChoice::{self, Cni, Native};
use switchyard_contract::Fixture;
use switchyard_core::id::Owner;
use switchyard_crash_points::{CrashPoint, Operation};
use switchyard_network::nft::NftFamily;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::Change;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::{self, ask, eventually};
use switchyard_tests::network::TestNetwork;
use switchyard_tests::prereq;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::node::{LIMIT, SwarmNode, assigned, task};
use switchyard_tests::swarm::worker::SwarmWorker;

use super::services::{registry, tasks, wait_all_removed};

mod drivers;

/// Answers every connection to port 80 with a greeting.
pub(super) const SERVE: &str = "while true; do echo hello | nc -l -p 80; done";

/// A network of the swarm with this driver's specification.
fn network(id: &str, change: impl FnOnce(&mut swarm::NetworkSpec)) -> swarm::NetworkAttachment {
    let annotations = Some(swarm::Annotations {
        name: format!("net-{id}"),
        ..Default::default()
    });
    let mut spec = swarm::NetworkSpec {
        annotations,
        ..Default::default()
    };
    change(&mut spec);
    let network = swarm::Network {
        id: id.to_owned(),
        spec: Some(spec),
        driver_state: Some(swarm::Driver {
            name: "bridge".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    swarm::NetworkAttachment {
        network: Some(network),
        ..Default::default()
    }
}

fn with_subnet(subnet: &str) -> Option<swarm::IpamOptions> {
    let config = swarm::IpamConfig {
        subnet: subnet.to_owned(),
        ..Default::default()
    };
    Some(swarm::IpamOptions {
        driver: None,
        configs: vec![config],
    })
}

fn on(task: swarm::Task, network: &swarm::NetworkAttachment) -> swarm::Task {
    swarm::Task {
        networks: vec![network.clone()],
        ..task
    }
}

/// The address of a task.
fn address(node: &SwarmNode, id: &str) -> Ipv4Addr {
    let scope = node.gateway.scope(Owner::Swarm);
    let task = scope
        .tasks()
        .named(id)
        .expect("names are unique")
        .expect("it is there");
    let sandbox = scope
        .sandboxes()
        .find(&task.sandbox.to_string())
        .expect("it has a sandbox");
    match sandbox.details.ips.as_slice() {
        [IpAddr::V4(address)] => *address,
        other => panic!("its addresses are {other:?}"),
    }
}

/// The bridges of clusters that a run directory knows.
fn bridges(run: &Path) -> Vec<String> {
    let entries = fs::read_dir(run.join("networks"))
        .expect("the directory is there")
        .flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The packet rules that name this.
pub(super) fn rules(part: &str) -> Vec<String> {
    rules_by(
        Command::new(prereq::require("iptables-save", "iptables")),
        part,
    )
}

#[track_caller]
fn rules_by(mut iptables_save: Command, part: &str) -> Vec<String> {
    // What a failed look does not show would be taken for gone.
    let text = host::run(&mut iptables_save);
    text.lines()
        .filter(|line| line.starts_with("-A ") && line.contains(part))
        .map(str::to_owned)
        .collect()
}

/// A backend that attaches sandboxes to bridges by this driver.
fn with_driver(driver: BridgeDriverChoice) -> BackendFixture {
    let with = || BackendFixture::with(|settings| settings.network.bridge.driver = Some(driver));
    tokio::task::block_in_place(with)
}

/// The elements of the gateway's table that name this.
fn elements(world: &BackendFixture, part: &str) -> Vec<String> {
    let mut tables = world.root().bridge().tables();
    let table = tables.read(NftFamily::Ip4).expect("root may read it");
    let elements = table.iter().flat_map(|table| table.elements());
    elements
        .map(ToString::to_string)
        .filter(|element| element.contains(part))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_network_reach_each_other_and_its_bridge_goes_with_the_last() {
    reach_each_other(Cni).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_network_without_plugins_reach_each_other_and_its_bridge_goes_with_the_last() {
    reach_each_other(Native).await;
}

async fn reach_each_other(driver: BridgeDriverChoice) {
    let world = with_driver(driver);
    let node = SwarmNode::over(&world).await;
    let free = TestNetwork::new("own", &world.root().path().join("own"));
    let run = world.root().run();
    let back = network("ymkwbbwalorn3wk0pf1a1y09r", |spec| {
        spec.ipam = with_subnet(&free.subnet())
    });

    let mut server = on(task(&world, "t1", SERVE, |_| {}), &back);
    let port = swarm::PortConfig {
        target_port: 80,
        publish_mode: 1,
        ..Default::default()
    };
    server.endpoint = Some(swarm::Endpoint {
        ports: vec![port],
        ..Default::default()
    });
    node.apply(true, vec![assigned(server)]).await;
    let status = node.reported("t1", TaskState::Running).await;
    let server = address(&node, "t1");
    assert!(
        free.contains(server),
        "{server} is not of {}",
        free.subnet()
    );
    let port = status.port_status.expect("it has a port").ports[0].published_port;
    let Some(RuntimeStatus::Container(_)) = status.runtime_status else {
        panic!("it has no container")
    };
    let published = SocketAddr::from((
        Ipv4Addr::LOCALHOST,
        u16::try_from(port).expect("it is a port"),
    ));
    let is_greeted = || ask(published, b"").as_deref() == Some("hello\n");
    assert!(
        tokio::task::block_in_place(|| eventually(LIMIT, is_greeted)),
        "nobody answers on {published}"
    );

    let ask = format!(
        "until nc -w 2 {server} 80 </dev/null; do sleep 0.2; done; ip route; exec sleep 1000"
    );
    node.apply(
        false,
        vec![assigned(on(task(&world, "t2", &ask, |_| {}), &back))],
    )
    .await;
    let log = node.log(&world, "t2", "default via").await;
    assert!(
        log.contains(" hello\n") && log.contains(&format!("default via {}", free.gateway())),
        "{log}"
    );
    let [bridge] = &bridges(&run)[..] else {
        panic!("{:?}", bridges(&run))
    };
    assert!(if_nametoindex(bridge.as_str()).is_ok(), "{bridge}");
    let by_daemon = !elements(&world, bridge).is_empty();
    assert_eq!(by_daemon, driver == Native);
    // Those of which none is to be left.
    let by_plugins = !rules(&format!("{server}/32")).is_empty();
    assert_eq!(by_plugins, driver == Cni);

    assert_addresses_are_of_one_network(&world, &node, &free.subnet()).await;

    assert_bridge_goes_with_the_last_task(&node, &run, bridge, server).await;
    let beginning = server.to_string();
    for part in [bridge.as_str(), beginning.as_str()] {
        assert_eq!(elements(&world, part), Vec::<String>::new());
    }
    node.end().await;
}

async fn assert_addresses_are_of_one_network(
    world: &BackendFixture,
    node: &SwarmNode,
    subnet: &str,
) {
    let other = network("other", |spec| spec.ipam = with_subnet(subnet));
    node.apply(
        false,
        vec![assigned(on(task(world, "t3", "true", |_| {}), &other))],
    )
    .await;
    let refused = node.reported("t3", TaskState::Rejected).await;
    let expected = format!(
        "\"net-other\": {0} is taken on this node: network \"net-",
        subnet
    );
    assert!(refused.err.contains(&expected), "{}", refused.err);
}

async fn assert_bridge_goes_with_the_last_task(
    node: &SwarmNode,
    run: &Path,
    bridge: &str,
    server: Ipv4Addr,
) {
    node.apply(
        false,
        vec![Change::TaskGone("t1".into()), Change::TaskGone("t3".into())],
    )
    .await;
    let gone = || {
        node.gateway
            .scope(Owner::Swarm)
            .tasks()
            .named("t1")
            .expect("names are unique")
            .is_none()
    };
    assert!(
        tokio::task::block_in_place(|| eventually(LIMIT, gone)),
        "t1 stays"
    );
    assert!(if_nametoindex(bridge).is_ok(), "t2 still has it");
    node.apply(false, vec![Change::TaskGone("t2".into())]).await;
    assert!(
        tokio::task::block_in_place(|| eventually(LIMIT, || bridges(run).is_empty())),
        "{bridge} stays"
    );
    assert!(if_nametoindex(bridge).is_err(), "{bridge} stays");
    assert_rules_go(&format!("{server}/32"));
    assert_rules_go(bridge);
}

/// Checks that rules of the driver without plugins, which it has where the policy of FORWARD drops, go right behind the bridge.
#[track_caller]
fn assert_rules_go(part: &str) {
    let are_gone = || rules(part).is_empty();
    assert!(
        tokio::task::block_in_place(|| eventually(LIMIT, are_gone)),
        "{:?}",
        rules(part)
    );
}

/// Creates a service on this network, on the worker.
fn create_on(cluster: &SwarmCluster, name: &str, network: &str, image: &str, script: &str) {
    let options = [
        "service",
        "create",
        "--detach",
        "--no-resolve-image",
        "--restart-delay",
        "500ms",
    ];
    let place = [
        "--stop-grace-period",
        "100ms",
        "--constraint",
        "node.role==worker",
        "--network",
        network,
        "--name",
        name,
    ];
    cluster.docker(&[&options[..], &place, &[image, "sh", "-c", script]].concat());
}

/// The bridges of clusters in the network namespace of the worker.
fn devices(cluster: &SwarmCluster) -> Vec<String> {
    let ip = prereq::require("ip", "iproute2");
    let show = ["-brief", "link", "show", "type", "bridge"];
    let text = host::run(cluster.inside(&ip).args(show));
    text.lines()
        .filter(|line| line.starts_with("swy-"))
        .map(str::to_owned)
        .collect()
}

#[track_caller]
fn wait_running(cluster: &SwarmCluster, service: &str) {
    let runs = || {
        tasks(cluster, service)
            .iter()
            .any(|task| task.contains(" Running "))
    };
    cluster.wait_until("the task runs", runs);
}

#[track_caller]
fn remove(cluster: &SwarmCluster, worker: &SwarmWorker, service: &str) {
    cluster.docker(&["service", "rm", service]);
    wait_all_removed(cluster, worker);
}

#[test]
fn network_that_a_manager_creates_is_made_on_the_node() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let create = [
        "network", "create", "--driver", "bridge", "--scope", "swarm",
    ];
    cluster.docker(
        &[
            &create[..],
            &["--subnet", "10.7.7.0/24", "--gateway", "10.7.7.9", "back"],
        ]
        .concat(),
    );
    let show = "ip -4 addr show dev eth0; ip route; exec sleep 1000";
    create_on(&cluster, "own", "back", &image, show);
    wait_running(&cluster, "own");
    let log = worker.output(&["logs", "own.1"]);
    assert!(
        log.contains("inet 10.7.7.") && log.contains("default via 10.7.7.9"),
        "{log}"
    );
    assert_eq!(devices(&cluster).len(), 1);
    remove(&cluster, &worker, "own");
    assert_eq!(devices(&cluster), Vec::<String>::new());
}

#[test]
fn neither_bridge_nor_address_is_left_when_the_daemon_is_killed_amid_a_set_up_or_a_removal() {
    let set_up = (1..=3).map(|nth| (CrashPoint::PluginAdded, nth));
    kill_amid("", set_up.collect(), vec![(CrashPoint::PluginDeleted, 2)]);
}

#[test]
fn neither_bridge_nor_address_is_left_when_the_daemon_that_makes_it_is_killed() {
    let steps = |operation: Operation| {
        let steps = operation.crash_points().iter();
        steps.map(|step| (*step, 1)).collect()
    };
    kill_amid(
        "[network.bridge]\ndriver = \"native\"\nipv6 = false\n",
        steps(Operation::AttachToBridge),
        steps(Operation::DetachFromBridge),
    );
}

/// Kills the daemon, with this configuration, at each step of holding and leaving a bridge, and at these of attaching to it and detaching
/// from it.
fn kill_amid(configuration: &str, attach: Vec<(CrashPoint, u32)>, detach: Vec<(CrashPoint, u32)>) {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let mut worker = SwarmWorker::start(&cluster, |_| configuration.to_owned());
    worker.join(&cluster, &cluster.token("worker"));
    let create = [
        "network",
        "create",
        "--driver",
        "bridge",
        "--scope",
        "swarm",
        "--subnet",
        "10.7.7.0/24",
    ];
    cluster.docker(&[&create[..], &["back"]].concat());
    let begins = Operation::HoldClusterBridge
        .crash_points()
        .iter()
        .map(|step| (*step, 1));
    let begins: Vec<_> = begins.chain(attach).collect();
    let ends = Operation::LeaveClusterBridge
        .crash_points()
        .iter()
        .map(|step| (*step, 1));
    let ends: Vec<_> = ends.chain(detach).collect();
    // Each service is killed at a step of its set-up and at one of its removal.
    for number in 0..begins.len().max(ends.len()) {
        let [begin, end] = [begins.get(number), ends.get(number)];
        let service = format!("killed{number}");
        if let Some(begin) = begin {
            worker.daemon().kill_at(&[*begin]);
        }
        create_on(&cluster, &service, "back", &image, "exec sleep 1000");
        if begin.is_some() {
            worker.daemon().wait_killed();
            worker.daemon().restart();
        }
        wait_running(&cluster, &service);
        assert_eq!(devices(&cluster).len(), 1, "{begin:?}");
        if let Some(end) = end {
            worker.daemon().kill_at(&[*end]);
        }
        cluster.docker(&["service", "rm", &service]);
        if end.is_some() {
            worker.daemon().wait_killed();
            worker.daemon().restart();
        }
        wait_all_removed(&cluster, &worker);
        let is_clean = || devices(&cluster).is_empty() && bridges(&worker.root().run()).is_empty();
        assert!(
            eventually(LIMIT, is_clean),
            "{begin:?}, {end:?}: {:?}",
            devices(&cluster)
        );
    }
    let iptables_save = prereq::require("iptables-save", "iptables");
    let left = ["swy-", " 10.7.7."].map(|part| rules_by(cluster.inside(&iptables_save), part));
    assert_eq!(left, [const { Vec::<String>::new() }; 2]);
    let nft = prereq::require("nft", "nftables");
    let rules = host::run(cluster.inside(&nft).args(["list", "ruleset"]));
    let is_left = rules.contains("swy-") || rules.contains(" 10.7.7.");
    assert!(!is_left, "{rules}");
}
