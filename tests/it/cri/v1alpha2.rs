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

/// Calls the RuntimeService of the older version.
fn runtime<T>(
    node: &TestNode,
    call: impl AsyncFnOnce(RuntimeServiceClient<tonic::transport::Channel>) -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    node.cri().channel(async |channel| call(RuntimeServiceClient::new(channel)).await)
}

fn create(node: &TestNode, pod: &str, config: old::ContainerConfig) -> Result<String, Status> {
    node.cri().create_v1alpha2(pod, &config)
}

fn status(node: &TestNode, container: &str) -> old::ContainerStatus {
    let request = cri::ContainerStatusRequest { container_id: container.to_owned(), verbose: false };
    let answer = runtime(node, async |mut client| client.container_status(request).await);
    answer.expect("it is there").status.expect("it is always set")
}

/// A container that runs this script.
fn shell(image: &str, name: &str, script: &str) -> old::ContainerConfig {
    old::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: name.to_owned(), attempt: 0 }),
        image: Some(image_spec(image)),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        log_path: format!("{name}.log"),
        ..Default::default()
    }
}

#[test]
fn v1alpha2_pods_are_visible_in_v1() {
    let node = TestNode::shared();
    let name = "v1alpha2:1";
    node.registry().push(name, &busybox().env("FROM", "image").volume("/data").build());
    let image = node.registry().reference(name);
    let request = old::PullImageRequest { image: Some(image_spec(&image)), ..Default::default() };
    let pulled =
        node.cri().channel(async |channel| ImageServiceClient::new(channel).pull_image(request).await);
    let id = pulled.expect("it can be pulled").image_ref;
    let request = cri::ImageStatusRequest { image: Some(image_spec(&image)), verbose: false };
    let found =
        node.cri().channel(async |channel| ImageServiceClient::new(channel).image_status(request).await);
    let found = found.expect("it answers").image.expect("it was pulled");
    let volumes = BTreeMap::from([("/data".to_owned(), old::Volume {})]);
    assert_eq!((found.id, found.volumes), (id, volumes.clone()));

    let pod = node.pod("v1alpha2");
    let request = cri::PodSandboxStatusRequest { pod_sandbox_id: pod.id().to_owned(), verbose: false };
    let seen = runtime(&node, async |mut client| client.pod_sandbox_status(request).await);
    assert_eq!(seen.expect("it is there").status, Some(pod.status()));

    let mut config = shell(&image, "main", "echo limit $(ulimit -n); exec sleep 1000");
    config.envs = vec![cri::KeyValue { key: "OWN".into(), value: "x".into() }];
    let resources = old::LinuxContainerResources {
        memory_limit_in_bytes: 64 << 20,
        memory_reservation: 32 << 20,
        ulimits: vec![old::Ulimit { name: "nofile".into(), hard: 512, soft: 256 }],
        ..Default::default()
    };
    config.linux = Some(old::LinuxContainerConfig { resources: Some(resources), ..Default::default() });
    let main = create(&node, pod.id(), config).expect("it is well formed");
    let request = cri::StartContainerRequest { container_id: main.clone() };
    runtime(&node, async |mut client| client.start_container(request).await).expect("it starts");

    assert_command_and_stats_work(&node, &pod, &main);

    let old = status(&node, &main);
    let new = node.cri().status(&main).expect("v1 sees it");
    assert_eq!((old.state, &old.image_ref, old.started_at), (new.state, &new.image_ref, new.started_at));
    assert_eq!((&old.volumes, old.log_path), (&volumes, new.log_path));
    let limits = old.pouch_resources.expect("they are reported");
    assert_eq!((limits.memory_reservation, limits.ulimits.len()), (32 << 20, 1));
    let envs: Vec<_> = old.envs.iter().map(|env| (env.key.as_str(), env.value.as_slice())).collect();
    assert!(envs.contains(&("FROM", b"image")) && envs.contains(&("OWN", b"x")), "{envs:?}");

    // As after a pull of a newer image, when the old one is no longer wanted.
    node.cri().remove_image(&image).expect("its container keeps its files");
    assert_eq!(status(&node, &main).volumes, volumes);

    let request = cri::StopContainerRequest { container_id: main.clone(), timeout: 0 };
    runtime(&node, async |mut client| client.stop_container(request).await).expect("it stops");
    assert_eq!(node.cri().status(&main).expect("v1 sees it").state(), cri::ContainerState::ContainerExited);
}

fn assert_command_and_stats_work(node: &TestNode, pod: &TestPod<'_>, main: &str) {
    let lines = pod.wait_log("main", |lines| !lines.is_empty());
    assert_eq!(log_content(&lines[0]), "limit 256");
    assert_eq!(cgroups::value(main, ["memory.soft_limit_in_bytes", "memory.low"]), (32 << 20).to_string());
    let request = cri::ExecSyncRequest {
        container_id: main.to_owned(),
        cmd: vec!["ls".into(), "/data".into()],
        timeout: 30,
    };
    let ran = runtime(node, async |mut client| client.exec_sync(request).await).expect("it runs");
    assert_eq!((ran.exit_code, ran.stdout.len()), (0, 0));
    let request = cri::ContainerStatsRequest { container_id: main.to_owned() };
    let stats = runtime(node, async |mut client| client.container_stats(request).await);
    assert!(stats.expect("it runs").stats.and_then(|stats| stats.memory).is_some());
}

#[test]
fn missing_host_path_is_an_error_only_in_v1alpha2() {
    let node = TestNode::shared();
    let pod = node.pod("missing-path");
    let path = node.root().path().join(format!("missing-{}", random_name()));
    let host_path = path.to_str().expect("it is UTF-8").to_owned();
    let mut config = shell(&node.image(), "old", "true");
    let container_path = "/there".to_owned();
    config.mounts = vec![old::Mount { container_path, host_path: host_path.clone(), ..Default::default() }];
    let refused = create(&node, pod.id(), config).expect_err("nothing is there");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains(&host_path), "{refused}");
    assert!(!path.exists(), "it was made all the same");
    let mut config = node.container("new", &["true"]);
    config.mounts = vec![cri::Mount { container_path: "/there".into(), host_path, ..Default::default() }];
    let _ = pod.create(&config);
    assert!(path.exists(), "v1 makes it");
}

#[test]
fn v1alpha2_only_limits_are_applied_or_rejected() {
    let node = TestNode::shared();
    let pod = node.pod("old-limits");
    let disk = block_device();
    let rate = |rate| vec![old::ThrottleDevice { path: disk.clone(), rate }];
    let limited = |resources: old::LinuxContainerResources| old::ContainerConfig {
        linux: Some(old::LinuxContainerConfig { resources: Some(resources), ..Default::default() }),
        ..shell(&node.image(), "main", "exec sleep 1000")
    };
    let throttled = old::LinuxContainerResources {
        blkio_device_read_bps: rate(1 << 20),
        blkio_device_write_i_ops: rate(77),
        ..Default::default()
    };
    let id = create(&node, pod.id(), limited(throttled.clone())).expect("it is well formed");
    // A created container keeps them when others are updated.
    let change = cri::LinuxContainerResources { cpu_shares: 512, ..Default::default() };
    node.cri().update(&id, change).expect("it can be changed");
    node.cri().start(&id).expect("it starts");
    let read = cgroups::value(&id, ["blkio.throttle.read_bps_device", "io.max"]);
    assert!(read.contains(&(1 << 20).to_string()), "{read}");
    let write = cgroups::value(&id, ["blkio.throttle.write_iops_device", "io.max"]);
    assert!(write.contains("77"), "{write}");
    let reported = status(&node, &id).pouch_resources.expect("they are reported");
    assert_eq!(reported.blkio_device_read_bps, throttled.blkio_device_read_bps);

    assert_updates_keep_other_limits(&node, &id, &rate, &throttled);

    let mut config = limited(old::LinuxContainerResources { blkio_weight: 200, ..Default::default() });
    config.metadata = Some(cri::ContainerMetadata { name: "weighed".to_owned(), attempt: 0 });
    match create(&node, pod.id(), config) {
        Ok(id) => {
            node.cri().start(&id).expect("it starts");
            // The second is the same share on another scale.
            let weight = cgroups::value(&id, ["blkio.bfq.weight", "io.weight"]);
            assert!(["200", "default 200", "default 1920"].contains(&weight.as_str()), "{weight}");
            assert_eq!(status(&node, &id).pouch_resources.expect("they are reported").blkio_weight, 200);
        }
        Err(refused) => assert!(refused.message().contains("blkio_weight: is not supported: "), "{refused}"),
    }

    assert_swappiness_is_set_or_refused(&node, &pod, config);
}

fn assert_swappiness_is_set_or_refused(node: &TestNode, pod: &TestPod<'_>, mut config: old::ContainerConfig) {
    let swappiness = Some(cri::Int64Value { value: 7 });
    config.metadata = Some(cri::ContainerMetadata { name: "swappy".to_owned(), attempt: 0 });
    let made = create(node, pod.id(), config);
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        let refused = made.expect_err("cgroup v2 has no swappiness");
        assert!(refused.message().contains("memory_swappiness: is not supported"), "{refused}");
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
    let update = |change| node.cri().update_v1alpha2(id, change).expect("it can be changed");
    let read = || cgroups::value(id, ["blkio.throttle.read_bps_device", "io.max"]);
    update(old::LinuxContainerResources { blkio_device_read_bps: rate(2 << 20), ..Default::default() });
    assert!(read().contains(&(2 << 20).to_string()), "{}", read());
    // An update of another field keeps this one, although runtimes know only its initial value.
    update(old::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() });
    assert!(read().contains(&(2 << 20).to_string()), "{}", read());
    let write = cgroups::value(id, ["blkio.throttle.write_iops_device", "io.max"]);
    assert!(write.contains("77"), "{write}");
    let reported = status(node, id).pouch_resources.expect("they are reported");
    assert_eq!(reported.blkio_device_read_bps, rate(2 << 20));
    assert_eq!(reported.blkio_device_write_i_ops, before.blkio_device_write_i_ops);
}

/// `tests/guest/quota.rs` shows what comes of one where the kernel has project quotas.
#[test]
fn disk_quota_is_applied_or_rejected_by_mount() {
    let node = TestNode::shared();
    let pod = node.pod("old-quota");
    let quota = |key: &str| {
        let disk_quota = BTreeMap::from([(key.to_owned(), "16m".to_owned())]);
        let resources = old::LinuxContainerResources { disk_quota, ..Default::default() };
        old::ContainerConfig {
            linux: Some(old::LinuxContainerConfig { resources: Some(resources), ..Default::default() }),
            ..shell(&node.image(), "limited", "exec sleep 1000")
        }
    };
    let refused = create(&node, pod.id(), quota("/data")).expect_err("it has no such volume");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    match create(&node, pod.id(), quota("/")) {
        Ok(id) => assert_ne!(status(&node, &id).quota_id, ""),
        Err(refused) => {
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
            let message = refused.message();
            assert!(
                message.contains("disk_quota[\"/\"]: ") && message.contains("mount it with prjquota"),
                "{refused}"
            );
            let filter =
                Some(cri::ContainerFilter { pod_sandbox_id: pod.id().to_owned(), ..Default::default() });
            let request = cri::ListContainersRequest { filter };
            let left = runtime(&node, async |mut client| client.list_containers(request).await);
            assert_eq!(left.expect("they can be listed").containers, []);
        }
    }
}

#[test]
fn network_priority_is_applied_or_rejected_by_name() {
    let node = TestNode::shared();
    let with = |name: &str| old::ContainerConfig {
        net_priority: 3,
        ..shell(&node.image(), name, "exec sleep 1000")
    };
    let own = node.pod("own-network");
    let refused = create(&node, own.id(), with("main")).expect_err("its interface is not the host's");
    assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
    assert!(refused.message().contains("net_priority: is not supported: the kernel has"), "{refused}");

    let hosts =
        node.pod_with("host-network", |config| namespaces(config).set_network(cri::NamespaceMode::Node));
    let made = create(&node, hosts.id(), with("main"));
    if Path::new("/sys/fs/cgroup/net_prio/net_prio.ifpriomap").exists() {
        let id = made.expect("this kernel has priorities");
        node.cri().start(&id).expect("it starts");
        let map = cgroups::value(&id, ["net_prio.ifpriomap"; 2]);
        let cards = fs::read_dir("/sys/class/net").expect("the kernel lists its interfaces").flatten();
        for card in cards.filter(|card| card.path().join("device").exists()) {
            let line = format!("{} 3", card.file_name().display());
            assert!(map.lines().any(|other| other == line), "{line} is not in {map}");
        }
    } else {
        let refused = made.expect_err("there is no controller for it");
        assert_eq!(refused.code(), Code::Unimplemented, "{refused}");
        assert!(refused.message().contains("net_priority: is not supported: this node has no"), "{refused}");
    }
}

/// Pouch reports the path and the name of a volume, and its clients send both back.
#[test]
fn mount_with_name_and_host_path_uses_the_host_path() {
    let node = TestNode::shared();
    let pod = node.pod("both");
    let dir = node.root().path().join(format!("both-{}", random_name()));
    fs::create_dir(&dir).expect("the root can be written");
    let host_path = dir.to_str().expect("it is UTF-8").to_owned();
    let mut config = shell(&node.image(), "main", "exec sleep 1000");
    let name = format!("called-{}", random_name());
    config.mounts = vec![old::Mount {
        container_path: "/there".to_owned(),
        host_path: host_path.clone(),
        name: name.clone(),
        ..Default::default()
    }];
    let id = create(&node, pod.id(), config).expect("it is well formed");
    node.cri().start(&id).expect("it starts");
    let _ = node.cri().sh(&id, "echo x > /there/file");
    assert_eq!(fs::read_to_string(dir.join("file")).expect("it was written there"), "x\n");
    let reported = &status(&node, &id).mounts[0];
    assert_eq!((&reported.host_path, &reported.name), (&host_path, &name));
    node.cri().remove_volume(&name).expect("there is no such volume, and nothing to remove");
    assert!(dir.join("file").exists(), "the host's path is not the gateway's");
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
    assert_eq!(made.network.as_ref().map(|network| network.ip.as_str()), Some(only.as_str()));
    node.cri().start_pod(&first).expect("it is ready");
    let main = node.cri().create(&first, &node.container("main", &["sleep", "1000"]), &config);
    let main = main.expect("it is well formed");
    node.cri().start(&main).expect("it starts");

    node.cri().stop_pod(&first).expect("it stops");
    let second = node.cri().run_pod(&node.pod_config("second")).expect("an address is free");
    let refused = node.cri().start_pod(&first).expect_err("its address is taken");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(
        refused.message().contains(&format!("its address {only} is not available any more")),
        "{refused}"
    );
    assert_eq!(status(&node, &first).state(), cri::PodSandboxState::SandboxNotready);
    node.cri().remove_pod(&second).expect("it can be removed");

    node.daemon().restart();
    node.cri().start_pod(&first).expect("its address is free");
    assert_eq!(status(&node, &first), made);
    // What was in it has ended, and something new runs there.
    assert_eq!(node.cri().status(&main).expect("it is there").state(), cri::ContainerState::ContainerExited);
    let next = cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: "main".to_owned(), attempt: 1 }),
        ..node.container("main", &["sleep", "1000"])
    };
    let next = node.cri().create(&first, &next, &config).expect("it is well formed");
    node.cri().start(&next).expect("it starts");
    let seen = node.cri().sh(&next, "ip -4 addr show eth0");
    assert!(seen.contains(&only), "{seen}");
    node.cri().remove_pod(&first).expect("it can be removed");
}

#[test]
fn named_volume_is_shared_and_persists_until_removed() {
    let node = TestNode::start();
    node.registry().push("named:1", &busybox().volume("/bin").build());
    let image = node.registry().reference("named:1");
    node.cri().pull(&image, None).expect("it can be pulled");
    let pod = node.pod("named");
    let at = |name: &str, container_path: &str| {
        let mut config = shell(&image, name, "exec sleep 1000");
        let container_path = container_path.to_owned();
        config.mounts = vec![old::Mount { container_path, name: "data".to_owned(), ..Default::default() }];
        config
    };
    let run = |name: &str, container_path: &str| {
        let id = create(&node, pod.id(), at(name, container_path)).expect("it is well formed");
        node.cri().start(&id).expect("it starts");
        id
    };
    // The first finds what the image has there, the second what the first has written.
    let first = run("first", "/bin");
    assert_eq!(node.cri().sh(&first, "test -e /bin/sh && echo kept > /bin/note; cat /bin/note"), "kept");
    let second = run("second", "/elsewhere");
    assert_eq!(node.cri().sh(&second, "cat /elsewhere/note"), "kept");
    let reported = status(&node, &second).mounts;
    assert_eq!((reported[0].name.as_str(), reported[0].host_path.as_str()), ("data", ""));

    let refused = |id: &str| {
        let refused = node.cri().remove_volume("data").expect_err("a container has it");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        assert!(refused.message().contains(id), "{refused}");
    };
    node.cri().remove(&first).expect("it can be removed");
    refused(&second);
    node.daemon().restart();
    refused(&second);
    node.cri().remove(&second).expect("it can be removed");
    let third = run("third", "/data");
    assert_eq!(node.cri().sh(&third, "cat /data/note"), "kept");
    node.cri().remove(&third).expect("it can be removed");
    node.cri().remove_volume("data").expect("nothing has it");
    node.cri().remove_volume("data").expect("it is gone");
    let fourth = run("fourth", "/data");
    assert_eq!(node.cri().sh(&fourth, "ls -A /data"), "");
    node.cri().remove(&fourth).expect("it can be removed");
    node.cri().remove_volume("data").expect("nothing has it");
    let code = node.cri().remove_volume("../data").expect_err("it is no name").code();
    assert_eq!(code, Code::InvalidArgument);
}
