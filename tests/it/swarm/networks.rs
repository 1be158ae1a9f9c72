//! Tasks on networks that the node's operator has configured.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use swarm::TaskState;
use swarm::network_spec::ConfigFrom;
use switchyard_containerd::Settings;
use switchyard_containerd::config::BridgeDriverChoice;
use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_swarm::Change;
use switchyard_tests::backend_fixture::BackendFixture;
use switchyard_tests::host::{ask, eventually, free_port};
use switchyard_tests::network::TestNetwork;
use switchyard_tests::swarm::SwarmCluster;
use switchyard_tests::swarm::node::{LIMIT, SwarmNode, assigned, task};
use switchyard_tests::swarm::worker::SwarmWorker;

use super::bridges::SERVE;
use super::services::{registry, tasks};

/// A network of the swarm with this configuration.
fn configured(name: &str) -> swarm::NetworkAttachment {
    let annotations = Some(swarm::Annotations {
        name: "storage".into(),
        ..Default::default()
    });
    let spec = swarm::NetworkSpec {
        annotations,
        config_from: Some(ConfigFrom::Network(name.into())),
        ..Default::default()
    };
    let network = swarm::Network {
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

/// A task on that network, with this port of the node if there is one.
fn on(
    world: &BackendFixture,
    id: &str,
    network: &str,
    port: Option<u32>,
    script: &str,
) -> swarm::Task {
    let ports = port.map(|published| swarm::PortConfig {
        target_port: 80,
        published_port: published,
        publish_mode: swarm::port_config::PublishMode::Host.into(),
        ..Default::default()
    });
    swarm::Task {
        networks: vec![configured(network)],
        endpoint: Some(swarm::Endpoint {
            ports: ports.into_iter().collect(),
            ..Default::default()
        }),
        ..task(world, id, script, |_| {})
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn network_with_a_configuration_is_the_nodes_own_of_that_name() {
    let world = tokio::task::block_in_place(BackendFixture::new);
    let node = SwarmNode::over(&world).await;
    let conf_dir = world.root().cni_conf();
    // It is not the first of the directory, which is for pods.
    let first = r#"{"cniVersion":"1.0.0","name":"first","plugins":[{"type":"no-such-plugin"}]}"#;
    fs::write(conf_dir.join("01-first.conflist"), first).unwrap();
    let network: &TestNetwork = world.root().network();

    let script = "ip -4 -o addr show eth0 | awk '{ print \"address\", $4 }'; exec sleep 1000";
    node.apply(
        true,
        vec![assigned(on(
            &world,
            "t1",
            network.name(),
            Some(61_180),
            script,
        ))],
    )
    .await;
    node.reported("t1", TaskState::Running).await;
    let log = node.log(&world, "t1", "address ").await;
    let address = log
        .rsplit("address ")
        .next()
        .and_then(|rest| rest.split('/').next())
        .unwrap();
    assert!(
        network.contains(address.parse::<Ipv4Addr>().unwrap()),
        "{log:?}"
    );

    let refused = [
        (
            "t2",
            "nowhere",
            None,
            "configures a CNI network with the name \"nowhere\"",
        ),
        (
            "t3",
            "first",
            Some(61_181),
            "the CNI network \"first\": no plugin of it has the capability portMappings",
        ),
    ];
    for (id, name, port, expected) in refused {
        node.apply(false, vec![assigned(on(&world, id, name, port, "true"))])
            .await;
        let status = node.reported(id, TaskState::Rejected).await;
        assert!(status.err.contains(expected), "{}", status.err);
    }
    fs::remove_file(conf_dir.join("01-first.conflist")).unwrap();
    node.apply(false, vec![Change::TaskGone("t1".into())]).await;
    node.end().await;
    assert_eq!(
        switchyard_tests::network::in_use(&[network]),
        Vec::<String>::new()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn task_without_a_network_is_on_the_bridge_that_the_daemon_makes_itself() {
    let native = |settings: &mut Settings| {
        settings.network.bridge.driver = Some(BridgeDriverChoice::Native);
    };
    let world = tokio::task::block_in_place(|| BackendFixture::with(native));
    let node = SwarmNode::over(&world).await;
    let port = free_port();
    let published = swarm::Task {
        networks: Vec::new(),
        ..on(&world, "t1", "", Some(port.into()), SERVE)
    };
    node.apply(true, vec![assigned(published)]).await;
    node.reported("t1", TaskState::Running).await;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    assert!(
        eventually(LIMIT, || ask(address, b"").as_deref() == Some("hello\n")),
        "nobody answers on {address}"
    );
    node.apply(false, vec![Change::TaskGone("t1".into())]).await;
    node.end().await;
    assert_eq!(world.root().bridge().in_use(), Vec::<String>::new());
}

#[test]
fn manager_places_services_on_a_network_with_a_configuration_of_the_node() {
    let cluster = SwarmCluster::new();
    let (_registry, image) = registry(&cluster);
    let worker = SwarmWorker::start(&cluster, |_| String::new());
    worker.join(&cluster, &cluster.token("worker"));
    let own = worker.root().network().name().to_owned();
    let network = [
        "network",
        "create",
        "--driver",
        "bridge",
        "--scope",
        "swarm",
        "--config-from",
    ];
    for (configuration, name) in [(own.as_str(), "storage"), ("absent", "nowhere")] {
        // Newer managers want one that they know.
        cluster.docker(&["network", "create", "--config-only", configuration]);
        cluster.docker(&[&network[..], &[configuration, name]].concat());
    }
    let create = |name: &str, network: &str| {
        let place = [
            "service",
            "create",
            "--detach",
            "--no-resolve-image",
            "--constraint",
            "node.role==worker",
        ];
        let options = [
            "--restart-condition",
            "none",
            "--name",
            name,
            "--network",
            network,
            &image,
        ];
        cluster.docker(&[&place[..], &options, &["sh", "-c", "exec sleep 1000"]].concat());
    };
    create("web", "storage");
    create("lost", "nowhere");
    cluster.wait_until("the task runs", || {
        tasks(&cluster, "web")
            .iter()
            .any(|task| task.contains(" Running "))
    });
    cluster.wait_until("the other one is rejected", || {
        tasks(&cluster, "lost")
            .iter()
            .any(|task| task.contains(" Rejected ") && task.contains("\"absent\""))
    });
    worker.output(&["swarm", "leave"]);
}
