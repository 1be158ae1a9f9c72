//! Clients of `runtime.v1alpha2` beside those of v1, on one socket.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_proto::cri::v1alpha2::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1alpha2::runtime_service_client::RuntimeServiceClient;
use switchyard_tests::cri::{image_spec, namespaces};
use switchyard_tests::host::{block_device, cgroups, random_name};
use switchyard_tests::image::busybox;
use switchyard_tests::node::{TestNode, TestPod, log_content};
use tonic::{Code, Response, Status};

mod volumes;

/// Calls the RuntimeService of the older version.
fn runtime<T>(
    node: &TestNode,
    call: impl AsyncFnOnce(
        RuntimeServiceClient<tonic::transport::Channel>,
    ) -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    node.cri()
        .channel(async |channel| call(RuntimeServiceClient::new(channel)).await)
}

fn create(node: &TestNode, pod: &str, config: old::ContainerConfig) -> Result<String, Status> {
    node.cri().create_v1alpha2(pod, &config)
}

fn status(node: &TestNode, container: &str) -> old::ContainerStatus {
    let request = cri::ContainerStatusRequest {
        container_id: container.to_owned(),
        verbose: false,
    };
    let answer = runtime(node, async |mut client| {
        client.container_status(request).await
    });
    answer
        .expect("it is there")
        .status
        .expect("it is always set")
}

/// A container that runs this script.
fn shell(image: &str, name: &str, script: &str) -> old::ContainerConfig {
    old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(image)),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: format!("{name}.log"),
        ..Default::default()
    }
}

#[test]
fn v1alpha2_pods_are_visible_in_v1() {
    let node = TestNode::shared();
    let (image, volumes) = pull(&node);

    let pod = node.pod("v1alpha2");
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.id().to_owned(),
        verbose: false,
    };
    let seen = runtime(&node, async |mut client| {
        client.pod_sandbox_status(request).await
    });
    assert_eq!(seen.expect("it is there").status, Some(pod.status()));

    let mut config = shell(&image, "main", "echo limit $(ulimit -n); exec sleep 1000");
    config.envs = vec![cri::KeyValue {
        key: "OWN".into(),
        value: "x".into(),
    }];
    let resources = old::LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        memory_reservation: 32 << 20,
        ulimits: vec![old::Ulimit {
            name: "nofile".into(),
            hard: 512,
            soft: 256,
        }],
        ..Default::default()
    };
    config.linux = Some(old::LinuxContainerConfig {
        resources: Some(resources),
        ..Default::default()
    });
    let main = create(&node, pod.id(), config).expect("it is well formed");
    let request = cri::StartContainerRequest {
        container_id: main.clone(),
    };
    runtime(&node, async |mut client| {
        client.start_container(request).await
    })
    .expect("it starts");

    assert_command_and_stats_work(&node, &pod, &main);

    let old = status(&node, &main);
    let new = node.cri().status(&main).expect("v1 sees it");
    assert_eq!(
        (old.state, &old.image_ref, old.started_at),
        (new.state, &new.image_ref, new.started_at)
    );
    assert_eq!((&old.volumes, old.log_path), (&volumes, new.log_path));
    let limits = old.pouch_resources.expect("they are reported");
    assert_eq!(
        (limits.memory_reservation, limits.ulimits.len()),
        (32 << 20, 1)
    );
    let envs: Vec<_> = old
        .envs
        .iter()
        .map(|env| (env.key.as_str(), env.value.as_slice()))
        .collect();
    assert!(
        envs.contains(&("FROM", b"image")) && envs.contains(&("OWN", b"x")),
        "{envs:?}"
    );

    // As after a pull of a newer image, when the old one is no longer wanted.
    node.cri()
        .remove_image(&image)
        .expect("its container keeps its files");
    assert_eq!(status(&node, &main).volumes, volumes);

    let request = cri::StopContainerRequest {
        container_id: main.clone(),
        timeout: 0,
    };
    runtime(&node, async |mut client| {
        client.stop_container(request).await
    })
    .expect("it stops");
    assert_eq!(
        node.cri().status(&main).expect("v1 sees it").state(),
        cri::ContainerState::ContainerExited
    );
}

/// Pulls an image with a variable and a volume. Returns its reference and its volumes.
fn pull(node: &TestNode) -> (String, BTreeMap<String, old::Volume>) {
    let name = "v1alpha2:1";
    node.registry().push(
        name,
        &busybox().env("FROM", "image").volume("/data").build(),
    );
    let image = node.registry().reference(name);
    let request = old::PullImageRequest {
        image: Some(image_spec(&image)),
        ..Default::default()
    };
    let pulled = node
        .cri()
        .channel(async |channel| ImageServiceClient::new(channel).pull_image(request).await);
    let id = pulled.expect("it can be pulled").image_ref;
    let request = cri::ImageStatusRequest {
        image: Some(image_spec(&image)),
        verbose: false,
    };
    let found = node
        .cri()
        .channel(async |channel| ImageServiceClient::new(channel).image_status(request).await);
    let found = found.expect("it answers").image.expect("it was pulled");
    let volumes = BTreeMap::from([("/data".to_owned(), old::Volume {})]);
    assert_eq!((found.id, found.volumes), (id, volumes.clone()));
    (image, volumes)
}

fn assert_command_and_stats_work(node: &TestNode, pod: &TestPod<'_>, main: &str) {
    let lines = pod.wait_log("main", |lines| !lines.is_empty());
    assert_eq!(log_content(&lines[0]), "limit 256");
    assert_eq!(
        cgroups::value(main, ["memory.soft_limit_in_bytes", "memory.low"]),
        (32 << 20).to_string()
    );
    let request = cri::ExecSyncRequest {
        container_id: main.to_owned(),
        cmd: vec!["ls".into(), "/data".into()],
        timeout: 30,
    };
    let ran = runtime(node, async |mut client| client.exec_sync(request).await).expect("it runs");
    assert_eq!((ran.exit_code, ran.stdout.len()), (0, 0));
    let request = cri::ContainerStatsRequest {
        container_id: main.to_owned(),
    };
    let stats = runtime(node, async |mut client| {
        client.container_stats(request).await
    });
    assert!(
        stats
            .expect("it runs")
            .stats
            .and_then(|stats| stats.memory)
            .is_some()
    );
}

#[test]
fn v1alpha2_only_limits_are_applied_or_rejected() {
    let node = TestNode::shared();
    let pod = node.pod("old-limits");
    let disk = block_device();
    let rate = |rate| {
        vec![old::ThrottleDevice {
            path: disk.clone(),
            rate,
        }]
    };
    let limited = |resources: old::LinuxContainerResources| old::ContainerConfig {
        linux: Some(old::LinuxContainerConfig {
            resources: Some(resources),
            ..Default::default()
        }),
        ..shell(&node.image(), "main", "exec sleep 1000")
    };
    let throttled = old::LinuxContainerResources {
        blkio_device_read_bps: rate(1 << 20),
        blkio_device_write_i_ops: rate(77),
        ..Default::default()
    };
    let id = create(&node, pod.id(), limited(throttled.clone())).expect("it is well formed");
    // A created container keeps them when others are updated.
    let change = cri::LinuxContainerResources {
        cpu_shares: 512,
        ..Default::default()
    };
    node.cri().update(&id, change).expect("it can be changed");
    node.cri().start(&id).expect("it starts");
    let read = cgroups::value(&id, ["blkio.throttle.read_bps_device", "io.max"]);
    assert!(read.contains(&(1 << 20).to_string()), "{read}");
    let write = cgroups::value(&id, ["blkio.throttle.write_iops_device", "io.max"]);
    assert!(write.contains("77"), "{write}");
    let reported = status(&node, &id)
        .pouch_resources
        .expect("they are reported");
    assert_eq!(
        reported.blkio_device_read_bps,
        throttled.blkio_device_read_bps
    );

    assert_updates_keep_other_limits(&node, &id, &rate, &throttled);

    let mut config = limited(old::LinuxContainerResources {
        blkio_weight: 200,
        ..Default::default()
    });
    config.metadata = Some(cri::ContainerMetadata {
        name: "weighed".to_owned(),
        attempt: 0,
    });
    match create(&node, pod.id(), config) {
        Ok(id) => {
            node.cri().start(&id).expect("it starts");
            // The second is the same share on another scale.
            let weight = cgroups::value(&id, ["blkio.bfq.weight", "io.weight"]);
            assert!(
                ["200", "default 200", "default 1920"].contains(&weight.as_str()),
                "{weight}"
            );
            assert_eq!(
                status(&node, &id)
                    .pouch_resources
                    .expect("they are reported")
                    .blkio_weight,
                200
            );
        }
        Err(refused) => assert!(
            refused
                .message()
                .contains("blkio_weight: is not supported: "),
            "{refused}"
        ),
    }

    let swappiness = Some(cri::Int64Value { value: 7 });
    let config = limited(old::LinuxContainerResources {
        memory_swappiness: swappiness,
        ..Default::default()
    });
    assert_swappiness_is_set_or_refused(&node, &pod, config);
}

fn assert_swappiness_is_set_or_refused(
    node: &TestNode,
    pod: &TestPod<'_>,
    mut config: old::ContainerConfig,
) {
    config.metadata = Some(cri::ContainerMetadata {
        name: "swappy".to_owned(),
        attempt: 0,
    });
    let made = create(node, pod.id(), config);
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        let refused = made.expect_err("cgroup v2 has no swappiness");
        assert!(
            refused
                .message()
                .contains("memory_swappiness: is not supported"),
            "{refused}"
        );
    } else {
        let id = made.expect("it is well formed");
        node.cri().start(&id).expect("it starts");
        assert_eq!(cgroups::value(&id, ["memory.swappiness"; 2]), "7");
    }
}

fn assert_updates_keep_other_limits(
    node: &TestNode,
    id: &str,
    rate: &dyn Fn(u64) -> Vec<old::ThrottleDevice>,
    before: &old::LinuxContainerResources,
) {
    let update = |change| {
        node.cri()
            .update_v1alpha2(id, change)
            .expect("it can be changed")
    };
    let read = || cgroups::value(id, ["blkio.throttle.read_bps_device", "io.max"]);
    update(old::LinuxContainerResources {
        blkio_device_read_bps: rate(2 << 20),
        ..Default::default()
    });
    assert!(read().contains(&(2 << 20).to_string()), "{}", read());
    // An update of another field keeps this one, although runtimes know only its initial value.
    update(old::LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    assert!(read().contains(&(2 << 20).to_string()), "{}", read());
    let write = cgroups::value(id, ["blkio.throttle.write_iops_device", "io.max"]);
    assert!(write.contains("77"), "{write}");
    let reported = status(node, id).pouch_resources.expect("they are reported");
    assert_eq!(reported.blkio_device_read_bps, rate(2 << 20));
    assert_eq!(
        reported.blkio_device_write_i_ops,
        before.blkio_device_write_i_ops
    );
}

#[test]
fn network_priority_is_applied_or_rejected_by_name() {
    let node = TestNode::shared();
    let with = |name: &str| old::ContainerConfig {
        net_priority: 3,
        ..shell(&node.image(), name, "exec sleep 1000")
    };
    let own = node.pod("own-network");
    let refused =
        create(&node, own.id(), with("main")).expect_err("its interface is not the host's");
    assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
    assert!(
        refused
            .message()
            .contains("net_priority: is not supported: the kernel has"),
        "{refused}"
    );

    let hosts = node.pod_with("host-network", |config| {
        namespaces(config).set_network(cri::NamespaceMode::Node)
    });
    let made = create(&node, hosts.id(), with("main"));
    if Path::new("/sys/fs/cgroup/net_prio/net_prio.ifpriomap").exists() {
        let id = made.expect("this kernel has priorities");
        node.cri().start(&id).expect("it starts");
        let map = cgroups::value(&id, ["net_prio.ifpriomap"; 2]);
        let cards = fs::read_dir("/sys/class/net")
            .expect("the kernel lists its interfaces")
            .flatten();
        for card in cards.filter(|card| card.path().join("device").exists()) {
            let line = format!("{} 3", card.file_name().display());
            assert!(
                map.lines().any(|other| other == line),
                "{line} is not in {map}"
            );
        }
    } else {
        let refused = made.expect_err("there is no controller for it");
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        assert!(
            refused
                .message()
                .contains("net_priority: is not supported: this node has no"),
            "{refused}"
        );
    }
}

/// The network has one address, so that the next pod gets what a stopped one had.
#[test]
fn restarted_pod_keeps_its_address_unless_taken() {
    let node = TestNode::start();
    let file = node.root().cni_conf().join("10-test.conflist");
    let text = fs::read_to_string(&file).expect("it was written");
    let mut conf: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let [a, b, c, _] = node.root().network().gateway().octets();
    let only = Ipv4Addr::new(a, b, c, 77).to_string();
    let range = &mut conf["plugins"][0]["ipam"]["ranges"][0][0];
    (range["rangeStart"], range["rangeEnd"]) = (only.as_str().into(), only.as_str().into());
    fs::write(&file, conf.to_string()).expect("the root can be written");

    let config = node.pod_config("first");
    let first = node.cri().run_pod(&config).expect("it is well formed");
    let status = |node: &TestNode, pod: &str| node.cri().pod_status(pod).expect("it is there");
    let made = status(&node, &first);
    assert_eq!(
        made.network.as_ref().map(|network| network.ip.as_str()),
        Some(only.as_str())
    );
    node.cri().start_pod(&first).expect("it is ready");
    let main = node
        .cri()
        .create(&first, &node.container("main", &["sleep", "1000"]), &config);
    let main = main.expect("it is well formed");
    node.cri().start(&main).expect("it starts");

    node.cri().stop_pod(&first).expect("it stops");
    let second = node
        .cri()
        .run_pod(&node.pod_config("second"))
        .expect("an address is free");
    let refused = node
        .cri()
        .start_pod(&first)
        .expect_err("its address is taken");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(
        refused
            .message()
            .contains(&format!("its address {only} is not available any more")),
        "{refused}"
    );
    assert_eq!(
        status(&node, &first).state(),
        cri::PodSandboxState::SandboxNotready
    );
    node.cri().remove_pod(&second).expect("it can be removed");

    node.daemon().restart();
    node.cri().start_pod(&first).expect("its address is free");
    assert_eq!(status(&node, &first), made);
    // What was in it has ended, and something new runs there.
    assert_eq!(
        node.cri().status(&main).expect("it is there").state(),
        cri::ContainerState::ContainerExited
    );
    let next = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "main".to_owned(),
            attempt: 1,
        }),
        ..node.container("main", &["sleep", "1000"])
    };
    let next = node
        .cri()
        .create(&first, &next, &config)
        .expect("it is well formed");
    node.cri().start(&next).expect("it starts");
    let seen = node.cri().sh(&next, "ip -4 addr show eth0");
    assert!(seen.contains(&only), "{seen}");
    node.cri().remove_pod(&first).expect("it can be removed");
}
