//! Clients of `runtime.v1alpha2` beside those of v1, on one socket.

use std::collections::BTreeMap;
use std::fs;

use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_proto::cri::v1alpha2::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1alpha2::runtime_service_client::RuntimeServiceClient;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::{cgroups, random_name};
use switchyard_tests::image::busybox;
use switchyard_tests::node::{Node, content};
use tonic::{Code, Response, Status};

/// Calls the RuntimeService of the older version.
fn runtime<T>(
    node: &Node,
    call: impl AsyncFnOnce(RuntimeServiceClient<tonic::transport::Channel>) -> Result<Response<T>, Status>,
) -> Result<T, Status> {
    node.cri().channel(async |channel| call(RuntimeServiceClient::new(channel)).await)
}

fn create(node: &Node, pod: &str, config: old::ContainerConfig) -> Result<String, Status> {
    let request = old::CreateContainerRequest {
        pod_sandbox_id: pod.to_owned(),
        config: Some(config),
        sandbox_config: None,
    };
    runtime(node, async |mut client| client.create_container(request).await).map(|answer| answer.container_id)
}

fn status(node: &Node, container: &str) -> old::ContainerStatus {
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

/// The value of the first of these files in the container's groups.
fn value(container: &str, names: [&str; 2]) -> String {
    let groups = cgroups::named(container);
    let mut files = groups.iter().flat_map(|group| names.map(|name| group.join(name)));
    let file = files.find(|file| file.exists());
    let file = file.unwrap_or_else(|| panic!("neither of {names:?} in {groups:?}"));
    fs::read_to_string(file).expect("it was just found").trim().to_owned()
}

#[test]
fn a_client_of_v1alpha2_runs_pods_that_v1_sees() {
    let node = Node::shared();
    let name = "v1alpha2:1";
    node.registry().push(name, &busybox().env("FROM", "image").volume("/data").build());
    let image = node.registry().reference(name);
    let request = cri::PullImageRequest { image: Some(image_spec(&image)), ..Default::default() };
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

    let lines = pod.wait_log("main", |lines| !lines.is_empty());
    assert_eq!(content(&lines[0]), "limit 256");
    assert_eq!(value(&main, ["memory.soft_limit_in_bytes", "memory.low"]), (32 << 20).to_string());
    let request = cri::ExecSyncRequest {
        container_id: main.clone(),
        cmd: vec!["ls".into(), "/data".into()],
        timeout: 30,
    };
    let ran = runtime(&node, async |mut client| client.exec_sync(request).await).expect("it runs");
    assert_eq!((ran.exit_code, ran.stdout.len()), (0, 0));
    let request = cri::ContainerStatsRequest { container_id: main.clone() };
    let stats = runtime(&node, async |mut client| client.container_stats(request).await);
    assert!(stats.expect("it runs").stats.and_then(|stats| stats.memory).is_some());

    let old = status(&node, &main);
    let new = node.cri().status(&main).expect("v1 sees it");
    assert_eq!((old.state, &old.image_ref, old.started_at), (new.state, &new.image_ref, new.started_at));
    assert_eq!((old.volumes, old.log_path), (volumes, new.log_path));
    let limits = old.pouch_resources.expect("they are told");
    assert_eq!((limits.memory_reservation, limits.ulimits.len()), (32 << 20, 1));
    let envs: Vec<_> = old.envs.iter().map(|env| (env.key.as_str(), env.value.as_slice())).collect();
    assert!(envs.contains(&("FROM", b"image")) && envs.contains(&("OWN", b"x")), "{envs:?}");

    let request = cri::StopContainerRequest { container_id: main.clone(), timeout: 0 };
    runtime(&node, async |mut client| client.stop_container(request).await).expect("it stops");
    assert_eq!(node.cri().status(&main).expect("v1 sees it").state(), cri::ContainerState::ContainerExited);
}

#[test]
fn a_host_path_that_is_missing_is_an_error_of_v1alpha2_alone() {
    let node = Node::shared();
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
