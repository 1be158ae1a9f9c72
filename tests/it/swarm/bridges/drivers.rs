//! Bridges of a swarm that are found again, that lead nowhere, and whose tasks plugins and the daemon have attached.

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn bridge_is_found_again_although_its_file_was_damaged() {
    find_again(Cni).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bridge_without_plugins_is_found_again_although_its_file_was_damaged() {
    find_again(Native).await;
}

async fn find_again(driver: BridgeDriverChoice) {
    let world = with_driver(driver);
    let node = SwarmNode::over(&world).await;
    let free = TestNetwork::new("own", &world.root().path().join("own"));
    let run = world.root().run();
    let back = network("ymkwbbwalorn3wk0pf1a1y09r", |spec| {
        spec.ipam = with_subnet(&free.subnet())
    });
    let first = on(task(&world, "t1", "exec sleep 1000", |_| {}), &back);
    node.apply(true, vec![assigned(first.clone())]).await;
    node.reported("t1", TaskState::Running).await;
    let before = bridges(&run);
    node.gateway
        .shut_down(LIMIT)
        .await
        .expect("nothing is in flight");
    drop(node);
    fs::write(
        run.join("networks").join(&before[0]).join("network.json"),
        "{",
    )
    .expect("it can be written");

    world.reopen().await;
    let node = SwarmNode::over(&world).await;
    let status = Some(swarm::TaskStatus {
        state: TaskState::Running.into(),
        ..Default::default()
    });
    let second = on(task(&world, "t2", "exec sleep 1000", |_| {}), &back);
    node.apply(
        true,
        vec![assigned(swarm::Task { status, ..first }), assigned(second)],
    )
    .await;
    // The route of the bridge itself does not take its addresses.
    node.reported("t2", TaskState::Running).await;
    assert_eq!(bridges(&run), before);
    assert_ne!(address(&node, "t1"), address(&node, "t2"));
    node.end().await;
    assert_eq!(bridges(&run), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_network_leads_nowhere_and_one_without_a_subnet_has_free_addresses() {
    lead_nowhere(Cni).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn internal_network_without_plugins_leads_nowhere_and_has_free_addresses() {
    lead_nowhere(Native).await;
}

/// A change of the key is for new tasks: those of before are ended by whoever has attached them, and the bridge goes with the last of both.
#[tokio::test(flavor = "multi_thread")]
async fn bridge_has_tasks_of_both_drivers_after_a_change_of_the_key() {
    let world = with_driver(Native);
    let node = SwarmNode::over(&world).await;
    let free = TestNetwork::new("own", &world.root().path().join("own"));
    let run = world.root().run();
    let back = network("ymkwbbwalorn3wk0pf1a1y09r", |spec| {
        spec.ipam = with_subnet(&free.subnet())
    });
    let first = on(task(&world, "t1", SERVE, |_| {}), &back);
    node.apply(true, vec![assigned(first.clone())]).await;
    node.reported("t1", TaskState::Running).await;
    let server = address(&node, "t1");
    let ended = node.gateway.shut_down(LIMIT).await;
    ended.expect("nothing is in flight");
    drop(node);
    drop(world.reopen_with(|settings| settings.network.bridge.driver = Some(Cni)));
    let node = SwarmNode::over(&world).await;
    let status = Some(swarm::TaskStatus {
        state: TaskState::Running.into(),
        ..Default::default()
    });
    let ask = format!("until nc -w 2 {server} 80 </dev/null; do sleep 0.2; done; exec sleep 1000");
    let second = on(task(&world, "t2", &ask, |_| {}), &back);
    let both = vec![assigned(swarm::Task { status, ..first }), assigned(second)];
    node.apply(true, both).await;
    node.log(&world, "t2", "hello").await;
    let [bridge] = &bridges(&run)[..] else {
        panic!("{:?}", bridges(&run))
    };
    assert!(!elements(&world, bridge).is_empty(), "t1 needs them");
    let gone = ["t1", "t2"].map(|id| Change::TaskGone(id.into()));
    node.apply(false, gone.into()).await;
    node.end().await;
    assert_eq!(bridges(&run), Vec::<String>::new());
    assert!(if_nametoindex(bridge.as_str()).is_err(), "{bridge} stays");
    assert_eq!(elements(&world, bridge), Vec::<String>::new());
    assert_rules_go(bridge);
}

async fn lead_nowhere(driver: BridgeDriverChoice) {
    let world = with_driver(driver);
    let node = SwarmNode::over(&world).await;
    // The id is random, so that tests that run at the same time seldom begin at the same addresses.
    let random = world
        .root()
        .path()
        .file_name()
        .expect("it has a name")
        .to_string_lossy()
        .into_owned();
    let random: String = random.chars().filter(char::is_ascii_alphanumeric).collect();
    let internal = network(&random, |spec| spec.internal = true);
    let script = "ip route; echo end; exec sleep 1000";
    for id in ["t1", "t2"] {
        node.apply(
            false,
            vec![assigned(on(task(&world, id, script, |_| {}), &internal))],
        )
        .await;
        let log = node.log(&world, id, " end").await;
        assert!(
            log.contains(" 172.29.") && !log.contains("default"),
            "{log}"
        );
    }
    let [one, two] = ["t1", "t2"].map(|id| address(&node, id));
    assert_eq!(one.octets()[..3], two.octets()[..3]);
    node.end().await;
    assert_eq!(bridges(&world.root().run()), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn network_with_ipv6_has_addresses_of_both_families() {
    have_both_families(Cni).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn network_with_ipv6_without_plugins_has_addresses_of_both_families() {
    have_both_families(Native).await;
}

async fn have_both_families(driver: BridgeDriverChoice) {
    let world = with_driver(driver);
    let node = SwarmNode::over(&world).await;
    let free = TestNetwork::new("own", &world.root().path().join("own"));
    let [_, a, b, _] = free.gateway().octets();
    let six = format!("fd00:{a:x}:{b:x}:51::");
    let both = network("dual", |spec| {
        spec.ipv6_enabled = true;
        let configs = [free.subnet(), format!("{six}/64")].map(|subnet| swarm::IpamConfig {
            subnet,
            ..Default::default()
        });
        spec.ipam = Some(swarm::IpamOptions {
            driver: None,
            configs: configs.into(),
        });
    });
    let ips = |id: &str| -> Vec<IpAddr> {
        let scope = node.gateway.scope(Owner::Swarm);
        let task = scope.tasks().named(id).expect("names are unique");
        let sandbox = task.expect("it is there").sandbox.to_string();
        let found = scope.sandboxes().find(&sandbox);
        found.expect("it has a sandbox").details.ips.clone()
    };
    node.apply(
        true,
        vec![assigned(on(task(&world, "t1", SERVE, |_| {}), &both))],
    )
    .await;
    node.reported("t1", TaskState::Running).await;
    let found = ips("t1");
    let [first, second] = found[..] else {
        panic!("its addresses are {found:?}")
    };
    assert!(
        first.is_ipv4() && second.to_string().starts_with(&six),
        "{first} {second}"
    );
    let ask = format!(
        "until nc -w 2 {second} 80 </dev/null; do sleep 0.2; done; ip -6 route; exec sleep 1000"
    );
    node.apply(
        false,
        vec![assigned(on(task(&world, "t2", &ask, |_| {}), &both))],
    )
    .await;
    let gateway = format!("default via {six}1");
    let log = node.log(&world, "t2", &gateway).await;
    assert!(log.contains("hello"), "{log}");
    node.end().await;
    assert_eq!(bridges(&world.root().run()), Vec::<String>::new());
}
