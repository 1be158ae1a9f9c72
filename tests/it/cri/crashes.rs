//! Kills during requests: the daemon, containerd and the logkeeper, alone and together, and clients that give
//! up.

use std::time::Duration;

use switchyard_proto::cri::v1::{
    ContainerConfig, ContainerState, PodSandboxState, StartContainerRequest,
};
use switchyard_proto::cri::v1::{StopContainerRequest, StopPodSandboxRequest};
use switchyard_tests::cri::{image_spec, retry};
use switchyard_tests::host::{eventually, processes, random_bytes};
use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::node::{TestNode, TestPod, log_content};
use switchyard_tests::registry_proxy::RegistryFault;
use tonic::Request;

/// Time for something to come back.
const LIMIT: Duration = Duration::from_secs(40);

/// Waits for a random time of up to `most` milliseconds.
fn pause(most: u64) {
    let [high, low] = random_bytes();
    std::thread::sleep(Duration::from_micros(
        u64::from(u16::from_be_bytes([high, low])) * most / 66,
    ));
}

#[test]
fn kill_during_creates_and_starts_leaves_each_container_once() {
    let node = TestNode::start();
    let pod = node.pod("amid");
    for round in 0..3 {
        let configs: Vec<_> = (0..6)
            .map(|index| {
                let name = format!("round{round}-{index}");
                node.container(&name, &["sh", "-c", "echo started; exec sleep 1000"])
            })
            .collect();
        std::thread::scope(|scope| {
            for config in &configs {
                // Most of them never get an answer.
                scope.spawn(|| drop(pod.try_create(config).and_then(|id| node.cri().start(&id))));
            }
            pause(400);
            node.daemon().kill9();
        });
        node.daemon().restart();
        for config in &configs {
            let id = pod.create(config);
            let mut status = node.cri().status(&id).expect("it has a status");
            if matches!(
                status.state(),
                ContainerState::ContainerCreated | ContainerState::ContainerUnknown
            ) {
                // It waits for the start of the killed daemon. It may fail: containerd may be busy for too long.
                let _ = node.cri().start(&id);
                status = node.cri().status(&id).expect("it has a status");
            }
            match status.state() {
                ContainerState::ContainerRunning => {}
                ContainerState::ContainerCreated => panic!("a failed start is an end: {status:?}"),
                // The start in progress has failed with an error.
                ContainerState::ContainerExited | ContainerState::ContainerUnknown => {
                    assert_ne!(status.exit_code, 0, "{status:?}");
                    continue;
                }
            }
            assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
            let name = &config.metadata.as_ref().expect("it has a name").name;
            pod.wait_log(name, |lines| lines.len() == 1);
        }
        let containers = node.cri().containers().expect("they can be listed");
        assert_eq!(containers.len(), 6 * (round + 1), "{containers:#?}");
    }
    drop(pod);
    node.assert_clean();
}

#[test]
fn pods_run_eventually_despite_containerd_kills() {
    let node = TestNode::start();
    let configs: Vec<_> = (0..6)
        .map(|index| node.pod_config(&format!("stubborn-{index}")))
        .collect();
    let pods: Vec<_> = std::thread::scope(|scope| {
        let runs: Vec<_> = configs
            .iter()
            .map(|config| {
                scope.spawn(|| {
                    let pod = retry(LIMIT, "RunPodSandbox", || node.cri().run_pod(config));
                    let container = node.container("main", &["sleep", "1000"]);
                    let id = retry(LIMIT, "CreateContainer", || {
                        node.cri().create(&pod, &container, config)
                    });
                    // A start that failed is for good.
                    let _ = node.cri().start(&id);
                    TestPod::adopt(&node, pod, config.clone())
                })
            })
            .collect();
        pause(400);
        node.kill_managed("containerd");
        runs.into_iter()
            .map(|run| run.join().expect("a run does not panic"))
            .collect()
    });
    assert_eq!(node.cri().pods().expect("they can be listed").len(), 6);
    for pod in &pods {
        assert_eq!(pod.status().state(), PodSandboxState::SandboxReady);
    }
    for pod in &pods {
        retry(LIMIT, "StopPodSandbox", || node.cri().stop_pod(pod.id()));
        retry(LIMIT, "RemovePodSandbox", || {
            node.cri().remove_pod(pod.id())
        });
    }
    // What could not be undone without containerd is undone by the next daemon at the latest.
    node.daemon().restart();
    node.assert_clean();
}

#[test]
fn killing_daemon_logkeeper_and_containerd_together_loses_nothing() {
    let node = TestNode::start();
    let pod = node.pod("all");
    let id = pod.start_shell(
        "counting",
        "n=0; while :; do n=$((n+1)); echo $n; sleep 0.005; done",
    );
    let started = node.cri().status(&id).expect("it has a status").started_at;
    for _ in 0..2 {
        let so_far = pod.log("counting").len();
        pod.wait_log("counting", |lines| lines.len() > so_far + 20);
        node.daemon().kill9();
        node.kill_managed("logkeeper");
        node.kill_managed("containerd");
        node.daemon().restart();
    }
    let so_far = pod.log("counting").len();
    let lines = pod.wait_log("counting", |lines| lines.len() > so_far + 20);
    let numbers: Vec<_> = lines[..lines.len() - 1]
        .iter()
        .map(|line| log_content(line).to_owned())
        .collect();
    let expected: Vec<_> = (1..=numbers.len())
        .map(|number| number.to_string())
        .collect();
    assert_eq!(numbers, expected);
    let status = node.cri().status(&id).expect("it has a status");
    assert_eq!(
        (status.state(), status.started_at),
        (ContainerState::ContainerRunning, started)
    );
    assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
}

#[test]
fn kill_during_pull_leaves_no_lease_and_pull_can_be_retried() {
    let node = TestNode::start();
    let image = busybox().layer(random_layer(300_000, 77)).build();
    node.registry().push("crashes/pull:1", &image);
    let reference = node.registry().reference("crashes/pull:1");
    let layer = &image.layers[1].digest;
    node.registry()
        .proxy()
        .add_fault(layer, RegistryFault::Hold);
    std::thread::scope(|scope| {
        let pull = scope.spawn(|| node.cri().pull(&reference, None));
        assert!(eventually(LIMIT, || node.registry().proxy().count(layer) == 1));
        node.daemon().kill9();
        node.registry().proxy().release();
        pull.join()
            .expect("a call does not panic")
            .expect_err("nobody answers");
    });
    node.daemon().restart();
    node.cri().pull(&reference, None).expect("it can be pulled");
    let clean = eventually(LIMIT, || node.leak_scan().findings.is_empty());
    assert!(clean, "{:?}", node.leak_scan().findings);
    let pod = node.pod("pulled");
    let seen = pod.run_shell("ls /random | wc -l", |config| {
        config.image = Some(image_spec(&reference))
    });
    assert_eq!(seen, "1");
}

#[test]
fn cancelled_start_leaves_nothing_running_and_cancelled_stop_is_completed() {
    let node = TestNode::start();
    let pod = node.pod("hasty");
    for (index, milliseconds) in [1, 5, 20, 50].into_iter().enumerate() {
        let name = format!("main{index}");
        let command = format!("sleep 3143{index}");
        let config = node.container(&name, &command.split(' ').collect::<Vec<_>>());
        let first = pod.create(&config);
        let mut request = Request::new(StartContainerRequest {
            container_id: first.clone(),
        });
        request.set_timeout(Duration::from_millis(milliseconds));
        let answered = node
            .cri()
            .runtime(async |mut client| client.start_container(request).await);
        let id = if answered.is_ok() {
            first
        } else {
            next_attempt(&node, &pod, &config, &first)
        };
        assert_eq!(node.cri().sh(&id, "echo reached"), "reached");
        let all = processes::belonging_to(node.root().path());
        let running = all
            .iter()
            .filter(|process| process.command == command)
            .count();
        assert_eq!(running, 1, "after {milliseconds} ms");
        let mut request = Request::new(StopContainerRequest {
            container_id: id.clone(),
            timeout: 0,
        });
        request.set_timeout(Duration::from_millis(milliseconds));
        let _ = node
            .cri()
            .runtime(async |mut client| client.stop_container(request).await);
        node.cri().stop(&id, 0).expect("it can be stopped");
        assert_eq!(
            node.cri().status(&id).expect("it has a status").exit_code,
            137
        );
    }
    let mut request = Request::new(StopPodSandboxRequest {
        pod_sandbox_id: pod.id().to_owned(),
    });
    request.set_timeout(Duration::from_millis(5));
    let _ = node
        .cri()
        .runtime(async |mut client| client.stop_pod_sandbox(request).await);
    drop(pod);
    node.assert_clean();
}

/// The container that a kubelet starts after a start that was given up: it kills what is unknown or runs
/// first.
fn next_attempt(
    node: &TestNode,
    pod: &TestPod<'_>,
    config: &ContainerConfig,
    first: &str,
) -> String {
    let ended = [
        ContainerState::ContainerCreated,
        ContainerState::ContainerExited,
    ];
    // The start may reach the daemon after a stop.
    let is_ended = || {
        node.cri().stop(first, 0).expect("it can be stopped");
        let status = node.cri().status(first).expect("it has a status");
        ended.contains(&status.state())
    };
    assert!(
        eventually(LIMIT, is_ended),
        "{:?}",
        node.cri().status(first)
    );
    let mut config = config.clone();
    config.metadata.get_or_insert_default().attempt = 1;
    let id = pod.create(&config);
    node.cri().start(&id).expect("it can be started");
    id
}

#[test]
fn twenty_concurrent_pods_run_and_are_removed() {
    let node = TestNode::start();
    std::thread::scope(|scope| {
        for index in 0..20 {
            let node = &node;
            scope.spawn(move || {
                let mut config = node.pod_config(&format!("crowd-{index}"));
                config.hostname = format!("crowd-{index}");
                let pod = node.cri().run_pod(&config).expect("it can be run");
                let container = node.container("main", &["sh", "-c", "echo here; exec sleep 1000"]);
                let id = node
                    .cri()
                    .create(&pod, &container, &config)
                    .expect("a container can be made");
                node.cri().start(&id).expect("it can be started");
                assert_eq!(node.cri().sh(&id, "hostname"), config.hostname);
                node.cri().stop_pod(&pod).expect("it can be stopped");
                node.cri().remove_pod(&pod).expect("it can be removed");
            });
        }
    });
    node.assert_clean();
}
