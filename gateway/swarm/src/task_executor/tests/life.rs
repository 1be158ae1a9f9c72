//! Each state of a task, and what is reported.

use swarm::task_status::RuntimeStatus;
use switchyard_core::ErrorKind;
use switchyard_core::image::Credentials;
use switchyard_fake::{BUSYBOX, FakeImage};

use super::*;

fn container_status(status: &swarm::TaskStatus) -> swarm::ContainerStatus {
    match status.runtime_status.clone() {
        Some(RuntimeStatus::Container(container)) => container,
        None => panic!("it has no container: {status:?}"),
    }
}

#[tokio::test]
async fn task_runs_until_it_is_stopped_and_goes_with_its_removal() {
    let node = TestNode::new().await;
    node.assign(running(1, &[])).await;
    let status = node.reported(1, State::Running).await;
    assert_eq!(
        (status.message.as_str(), status.err.as_str()),
        ("started", "")
    );
    assert!(status.timestamp.is_some());
    let container = container_status(&status);
    assert_eq!(container.container_id, node.object(1).to_string());
    assert!(container.pid > 0);
    node.assign(wanted(running(1, &[]), State::Shutdown)).await;
    let status = node.reported(1, State::Shutdown).await;
    assert_eq!(
        (status.message.as_str(), container_status(&status).exit_code),
        ("shutdown", 143)
    );
    assert!(!node.fake.runs(node.object(1)));
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn exit_is_reported_in_dockers_words() {
    let node = TestNode::new().await;
    node.assign(wanted(running(1, &["true"]), State::Complete))
        .await;
    let status = node.reported(1, State::Complete).await;
    assert_eq!(
        (status.message.as_str(), status.err.as_str()),
        ("finished", "")
    );
    node.assign(running(2, &["exit", "3"])).await;
    let status = node.reported(2, State::Failed).await;
    assert_eq!(
        (status.err.as_str(), container_status(&status).exit_code),
        ("task: non-zero exit (3)", 3)
    );
    node.assign(running(3, &[])).await;
    node.reported(3, State::Running).await;
    node.fake.oom_kill(node.object(3)).unwrap();
    let status = node.reported(3, State::Failed).await;
    assert!(
        status.err.starts_with("task: non-zero exit (137): "),
        "{}",
        status.err
    );
    node.assign(running(4, &["/no/such/program"])).await;
    let status = node.reported(4, State::Failed).await;
    assert!(
        status.err.starts_with("starting container failed: "),
        "{}",
        status.err
    );
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn task_of_a_rolling_update_is_prepared_and_waits() {
    let node = TestNode::new().await;
    node.assign(wanted(running(1, &[]), State::Ready)).await;
    let status = node.reported(1, State::Ready).await;
    assert_eq!(
        (status.message.as_str(), status.runtime_status),
        ("prepared", None)
    );
    assert!(!node.fake.runs(node.object(1)));
    node.assign(running(1, &[])).await;
    node.reported(1, State::Running).await;
    // A lower state is ignored.
    node.assign(wanted(running(1, &[]), State::Ready)).await;
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn malformed_task_is_rejected_and_leaves_nothing() {
    let node = TestNode::new().await;
    let mut wrong = running(1, &[]);
    wrong.networks = vec![swarm::NetworkAttachment::default(); 2];
    node.assign(wrong).await;
    let status = node.reported(1, State::Rejected).await;
    assert!(
        status.err.contains("a task has one network here"),
        "{}",
        status.err
    );
    assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn image_on_the_node_serves_where_a_pull_fails() {
    let node = TestNode::over(Fake::with_local_busybox().await).await;
    node.fake
        .fail_next(Method::Pull, Error::unavailable("the registry is away"));
    node.assign(running(1, &[])).await;
    node.reported(1, State::Running).await;
    let mut missing = running(2, &[]);
    missing.spec = task(
        2,
        swarm::ContainerSpec {
            image: "nobody/nothing:1".into(),
            ..container()
        },
    )
    .spec;
    node.assign(missing).await;
    let status = node.reported(2, State::Rejected).await;
    assert!(
        status.err.starts_with("pull image \"nobody/nothing:1\": "),
        "{}",
        status.err
    );
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn image_that_a_digest_names_is_pulled_once() {
    let node = TestNode::new().await;
    node.assign(running(1, &[])).await;
    node.reported(1, State::Running).await;
    let image = node
        .gateway
        .scope(Owner::Swarm)
        .images()
        .find(BUSYBOX)
        .await
        .unwrap()
        .unwrap();
    let pulls = node.fake.count(Method::Pull);
    let pinned = swarm::ContainerSpec {
        image: image.repo_digests[0].clone(),
        ..container()
    };
    node.assign(task(2, pinned)).await;
    node.reported(2, State::Running).await;
    assert_eq!(node.fake.count(Method::Pull), pulls);
    within(node.executor.remove_all()).await.unwrap();
}

#[tokio::test]
async fn credentials_of_the_service_pull_a_private_image() {
    let credentials = Credentials::Basic {
        username: "u".into(),
        password: "hunter2".into(),
    };
    let image = FakeImage {
        credentials,
        ..FakeImage::default()
    };
    let node = TestNode::over(Fake::new().with_image("r.test/private:1", image)).await;
    let registry_auth = "eyJ1c2VybmFtZSI6InUiLCJwYXNzd29yZCI6Imh1bnRlcjIifQ==".to_owned();
    let pull_options = Some(swarm::container_spec::PullOptions { registry_auth });
    let private = swarm::ContainerSpec {
        image: "r.test/private:1".into(),
        pull_options,
        ..container()
    };
    node.assign(task(1, private.clone())).await;
    node.reported(1, State::Running).await;
    let spec = node.fake.spec(node.object(1)).unwrap();
    let has = |bytes: &[u8]| bytes.windows(7).any(|window| window == b"hunter2");
    assert!(!has(&spec.meta.record) && !has(format!("{spec:?}").as_bytes()));
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn runtime_that_is_away_for_a_while_rejects_nothing() {
    let node = TestNode::new().await;
    for _ in 0..30 {
        node.fake.fail_next(
            Method::CreateSandbox,
            Error::unavailable("containerd is away"),
        );
    }
    node.assign(running(1, &[])).await;
    let away = async {
        loop {
            if node
                .status(1)
                .is_some_and(|status| status.err == "containerd is away")
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(away).await;
    assert_eq!(
        State::from_wire(node.status(1).unwrap().state),
        State::Preparing
    );
    let status = tokio::time::timeout(
        Duration::from_secs(600),
        node.reported_later(1, State::Running),
    )
    .await;
    assert_eq!(status.unwrap().err, "");
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn other_temporary_errors_are_tried_a_bounded_number_of_times() {
    let node = TestNode::new().await;
    for _ in 0..50 {
        node.fake
            .fail_next(Method::CreateTask, Error::deadline("it takes too long"));
    }
    node.assign(running(1, &[])).await;
    let status = tokio::time::timeout(
        Duration::from_secs(600),
        node.reported_later(1, State::Rejected),
    )
    .await;
    assert_eq!(status.unwrap().err, "it takes too long");
    assert_eq!(node.fake.count(Method::CreateTask), 10);
    assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn failure_of_the_node_rejects_the_task_with_its_reason() {
    let node = TestNode::new().await;
    node.fake.fail_next(
        Method::CreateTask,
        Error::new(ErrorKind::ResourceExhausted, "the disk is full"),
    );
    node.assign(running(1, &[])).await;
    assert_eq!(
        node.reported(1, State::Rejected).await.err,
        "the disk is full"
    );
    assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn stop_during_the_pull_ends_it() {
    let node = TestNode::new().await;
    let hold = node.fake.hold(Method::Pull);
    node.assign(running(1, &[])).await;
    hold.arrived(1).await;
    node.assign(wanted(running(1, &[]), State::Shutdown)).await;
    node.reported(1, State::Shutdown).await;
    drop(hold);
    assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
    node.remove(1).await;
    node.is_empty().await;
}

#[tokio::test]
async fn removal_during_a_creation_waits_for_it_and_leaves_nothing() {
    for method in [Method::CreateSandbox, Method::CreateTask, Method::StartTask] {
        let node = TestNode::new().await;
        let hold = node.fake.hold(method);
        node.assign(running(1, &[])).await;
        hold.arrived(1).await;
        node.remove(1).await;
        drop(hold);
        node.is_empty().await;
    }
}

#[tokio::test]
async fn ports_are_chosen_reported_and_free_for_the_next_task_when_one_has_ended() {
    let node = TestNode::new().await;
    let with_port = |number: usize, published_port: u32| {
        let port = swarm::PortConfig {
            target_port: 80,
            published_port,
            publish_mode: 1,
            ..Default::default()
        };
        let endpoint = Some(swarm::Endpoint {
            ports: vec![port],
            ..Default::default()
        });
        swarm::Task {
            endpoint,
            ..running(number, &[])
        }
    };
    let mut chosen = BTreeSet::new();
    for number in 1..=4 {
        node.assign(with_port(number, 0)).await;
        let status = node.reported(number, State::Running).await;
        let ports = status.port_status.unwrap().ports;
        assert_eq!(
            (ports.len(), ports[0].target_port, ports[0].publish_mode),
            (1, 80, 1)
        );
        chosen.insert(ports[0].published_port);
    }
    assert_eq!(chosen, BTreeSet::from([61_000, 61_001, 61_002, 61_003]));
    // The range is used up.
    node.assign(with_port(5, 0)).await;
    let status = node.reported(5, State::Rejected).await;
    assert!(
        status.err.contains("61000-61003 (swarm.port_range)"),
        "{}",
        status.err
    );
    let first = node.status(1).unwrap().port_status.unwrap().ports[0].published_port;
    node.assign(with_port(6, first)).await;
    let status = node.reported(6, State::Rejected).await;
    assert!(status.err.contains(&first.to_string()), "{}", status.err);
    // The port of a task that has ended is free, although the task is kept as history.
    node.assign(wanted(with_port(1, 0), State::Shutdown)).await;
    node.reported(1, State::Shutdown).await;
    node.assign(with_port(7, first)).await;
    node.reported(7, State::Running).await;
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn secrets_are_files_of_the_task_until_it_ends() {
    let node = TestNode::new().await;
    let mut given = running(1, &[]);
    let with_secret = swarm::ContainerSpec {
        secrets: vec![secret_reference("s1", "db")],
        ..container()
    };
    given.spec = task(1, with_secret).spec;
    // The secret comes after the task that uses it.
    let changes = vec![
        Change::Task(Arc::new(given.clone())),
        Change::Secret(Arc::new(secret("s1", b"hunter2", false))),
        Change::Config(Arc::new(config("c1", b"x", false))),
    ];
    node.apply(true, changes).await;
    node.reported(1, State::Running).await;
    let spec = node.fake.spec(node.object(1)).unwrap();
    let mount = spec.mounts.last().unwrap();
    let switchyard_core::spec::MountSource::Host { path, .. } = &mount.source else {
        panic!("{mount:?}")
    };
    assert_eq!(
        (mount.destination.to_str(), mount.readonly),
        (Some("/run/secrets/db"), true)
    );
    assert_eq!(std::fs::read(path).unwrap(), b"hunter2");
    assert!(!format!("{spec:?}").contains("hunter2"));
    // It is withdrawn before the task is stopped.
    node.apply(false, vec![Change::SecretGone("s1".to_owned())])
        .await;
    assert_eq!(node.files(), 1);
    node.assign(wanted(given, State::Shutdown)).await;
    node.reported(1, State::Shutdown).await;
    assert_eq!(node.files(), 0);
    let mut late = running(2, &[]);
    let with_secret = swarm::ContainerSpec {
        secrets: vec![secret_reference("s1", "db")],
        ..container()
    };
    late.spec = task(2, with_secret).spec;
    node.assign(late).await;
    let status = node.reported(2, State::Rejected).await;
    assert!(status.err.contains("not found"), "{}", status.err);
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test]
async fn anonymous_volume_goes_with_its_task_alone() {
    let node = TestNode::new().await;
    let volume = |source: &str, target: &str| swarm::Mount {
        r#type: 1,
        source: source.into(),
        target: target.into(),
        ..Default::default()
    };
    let mounts = vec![volume("", "/a"), volume("data", "/b")];
    node.assign(task(
        1,
        swarm::ContainerSpec {
            mounts,
            ..container()
        },
    ))
    .await;
    node.reported(1, State::Running).await;
    node.remove(1).await;
    node.is_empty().await;
    let removed: Vec<_> = node
        .fake
        .calls()
        .into_iter()
        .filter(|call| call.method == Method::RemoveVolume)
        .collect();
    assert_eq!(removed.len(), 1);
    assert_ne!(removed[0].object, "data");
}

#[tokio::test]
async fn log_of_a_task_stays_until_its_removal() {
    let node = TestNode::new().await;
    node.assign(running(1, &["true"])).await;
    node.reported(1, State::Complete).await;
    let dir = node.place.path().join("logs").join(task_id(1));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("output.log.1"), b"line").unwrap();
    node.assign(wanted(running(1, &["true"]), State::Shutdown))
        .await;
    assert!(dir.exists());
    node.remove(1).await;
    node.is_empty().await;
    assert!(!dir.exists());
}

#[tokio::test]
async fn grace_of_the_service_passes_before_the_kill() {
    let node = TestNode::new().await;
    let mut stubborn = running(1, &["ignore-term"]);
    let period = prost_types::Duration {
        seconds: 0,
        nanos: 50_000_000,
    };
    let given = swarm::ContainerSpec {
        args: vec!["ignore-term".into()],
        stop_grace_period: Some(period),
        ..container()
    };
    stubborn.spec = task(1, given).spec;
    node.assign(stubborn.clone()).await;
    node.reported(1, State::Running).await;
    let object = node.object(1);
    node.assign(wanted(stubborn, State::Remove)).await;
    node.reported(1, State::Shutdown).await;
    let signals: Vec<u8> = node
        .fake
        .signals(object)
        .into_iter()
        .map(|signal| signal.number())
        .collect();
    assert_eq!(signals, [15, 9]);
    node.remove(1).await;
    node.is_empty().await;
}

impl TestNode {
    /// As [`TestNode::reported`], without its own limit of time.
    pub(super) async fn reported_later(&self, number: usize, state: State) -> swarm::TaskStatus {
        let mut changes = self.statuses.clone();
        loop {
            if let Some(status) = self
                .status(number)
                .filter(|status| State::from_wire(status.state) == state)
            {
                return status;
            }
            changes.changed().await.unwrap();
        }
    }
}
