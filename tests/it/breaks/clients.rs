//! A client disconnects during every changing call, at any moment: nothing leaks, the object has a
//! well-defined state, and a retry works.

use std::time::Duration;

use futures::future::join_all;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use switchyard_proto::cri::v1::{ContainerState, PodSandboxState};
use switchyard_proto::cri::v1alpha2 as old;
use switchyard_proto::cri::v1alpha2::runtime_service_client as old_runtime;
use switchyard_tests::cri::image_spec;
use switchyard_tests::host::{eventually, processes, random_bytes};
use switchyard_tests::image::{busybox, random_layer};
use switchyard_tests::node::{TestNode, TestPod};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::{LIMIT, SuspendedProcess, assert_no_leaks_since, retry};

/// Number of calls of one connection that are given up at once.
const GIVEN_UP: usize = 300;

/// Number of times each call is abandoned.
const TIMES: u64 = 4;

/// A random moment below `most` milliseconds; each of the [`TIMES`] attempts has its own part of the range.
fn random_delay(time: u64, most: u64) -> Duration {
    let [random] = random_bytes();
    let part = most * 1000 / TIMES;
    Duration::from_micros(part * time + part * u64::from(random) / 256)
}

/// Makes a call, and after a moment drops the call and the connection, as a client does that is killed.
fn abandon_call<T>(
    node: &TestNode,
    after: Duration,
    call: impl AsyncFnOnce(RuntimeServiceClient<Channel>) -> Result<Response<T>, Status>,
) {
    let left = node.cri().runtime(async |client| {
        tokio::time::timeout(after, call(client))
            .await
            .unwrap_or_else(|_| Err(Status::cancelled("left")))
    });
    // The answer may or may not have arrived before.
    drop(left);
}

fn abandon_image_call<T>(
    node: &TestNode,
    after: Duration,
    call: impl AsyncFnOnce(ImageServiceClient<Channel>) -> Result<Response<T>, Status>,
) {
    let left = node.cri().images(async |client| {
        tokio::time::timeout(after, call(client))
            .await
            .unwrap_or_else(|_| Err(Status::cancelled("left")))
    });
    drop(left);
}

fn abandon_v1alpha2_call<T>(
    node: &TestNode,
    after: Duration,
    call: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
) {
    let left = node.cri().channel(async |channel| {
        tokio::time::timeout(after, call(channel))
            .await
            .unwrap_or_else(|_| Err(Status::cancelled("left")))
    });
    drop(left);
}

#[test]
fn disconnects_during_pod_calls_leave_nothing_behind() {
    let node = TestNode::start();
    let before = node.leak_scan();
    for time in 0..TIMES {
        let config = node.pod_config(&format!("vanish-{time}"));
        let request = cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            ..Default::default()
        };
        abandon_call(&node, random_delay(time, 200), async |mut client| {
            client.run_pod_sandbox(request).await
        });
        let id = node.cri().run_pod(&config).expect("it can be run");
        let pods = node.cri().pods().expect("they can be listed");
        assert_eq!(pods.len(), 1, "it was made twice: {pods:#?}");
        let status = node.cri().pod_status(&id).expect("it has a status");
        assert_eq!(status.state(), PodSandboxState::SandboxReady);
        let container = node.container("main", &["sleep", "1000"]);
        let main = node
            .cri()
            .create(&id, &container, &config)
            .expect("it can be made");
        node.cri().start(&main).expect("it can be started");

        let request = cri::StopPodSandboxRequest {
            pod_sandbox_id: id.clone(),
        };
        abandon_call(&node, random_delay(time, 200), async |mut client| {
            client.stop_pod_sandbox(request).await
        });
        retry("StopPodSandbox", || node.cri().stop_pod(&id));
        let status = node.cri().pod_status(&id).expect("it has a status");
        assert_eq!(status.state(), PodSandboxState::SandboxNotready);
        assert_eq!(
            node.cri().status(&main).expect("it has a status").exit_code,
            137
        );

        let request = old::StartPodSandboxRequest {
            pod_sandbox_id: id.clone(),
        };
        abandon_v1alpha2_call(&node, random_delay(time, 200), async |channel| {
            old_runtime::RuntimeServiceClient::new(channel)
                .start_pod_sandbox(request)
                .await
        });
        retry("StartPodSandbox", || node.cri().start_pod(&id));
        let status = node.cri().pod_status(&id).expect("it has a status");
        assert_eq!(status.state(), PodSandboxState::SandboxReady);
        node.cri().stop_pod(&id).expect("it can be stopped");

        let request = cri::RemovePodSandboxRequest {
            pod_sandbox_id: id.clone(),
        };
        abandon_call(&node, random_delay(time, 100), async |mut client| {
            client.remove_pod_sandbox(request).await
        });
        retry("RemovePodSandbox", || node.cri().remove_pod(&id));
        assert_eq!(
            node.cri().pod_status(&id).expect_err("it is gone").code(),
            Code::NotFound
        );
        assert_no_leaks_since(&node, &before);
    }
}

#[test]
fn disconnects_during_container_calls_leave_nothing_behind() {
    let node = TestNode::start();
    let pod = node.pod("vanish");
    let before = node.leak_scan();
    for time in 0..TIMES {
        // On some kernels criu ends the sleep of a process that it dumps, and lets run on: `sleep` then exits with 0.
        let sleep = "while :; do sleep 1000; done";
        let config = node.container(&format!("main-{time}"), &["sh", "-c", sleep]);
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod.id().to_owned(),
            config: Some(config.clone()),
            sandbox_config: Some(pod.config().clone()),
        };
        abandon_call(&node, random_delay(time, 60), async |mut client| {
            client.create_container(request).await
        });
        let id = pod.create(&config);
        assert_eq!(
            node.cri().containers().expect("they can be listed").len(),
            1,
            "it was made twice"
        );

        let request = cri::StartContainerRequest {
            container_id: id.clone(),
        };
        abandon_call(&node, random_delay(time, 150), async |mut client| {
            client.start_container(request).await
        });
        let id = run_after_abandoned_start(&node, &pod, &config, id);
        abandon_changes(&node, &pod, &id, time);

        let request = cri::StopContainerRequest {
            container_id: id.clone(),
            timeout: 0,
        };
        abandon_call(&node, random_delay(time, 60), async |mut client| {
            client.stop_container(request).await
        });
        retry("StopContainer", || node.cri().stop(&id, 0));
        let status = node.cri().status(&id).expect("it has a status");
        assert_eq!(
            (status.state(), status.exit_code),
            (ContainerState::ContainerExited, 137)
        );

        let request = cri::RemoveContainerRequest {
            container_id: id.clone(),
        };
        abandon_call(&node, random_delay(time, 60), async |mut client| {
            client.remove_container(request).await
        });
        retry("RemoveContainer", || node.cri().remove(&id));
        assert_eq!(
            node.cri().status(&id).expect_err("it is gone").code(),
            Code::NotFound
        );
        assert_no_leaks_since(&node, &before);
    }
}

/// Runs a container whose start was abandoned; if that start has ended it, another one in its place.
#[track_caller]
fn run_after_abandoned_start(
    node: &TestNode,
    pod: &TestPod<'_>,
    config: &cri::ContainerConfig,
    id: String,
) -> String {
    // As a kubelet does. It waits for the end of the start.
    node.cri().stop(&id, 0).expect("it can be stopped");
    let status = node.cri().status(&id).expect("it has a status");
    let id = match status.state() {
        ContainerState::ContainerCreated => id,
        ContainerState::ContainerExited => {
            assert_ne!(status.exit_code, 0, "{status:?}");
            node.cri().remove(&id).expect("it can be removed");
            pod.create(config)
        }
        ContainerState::ContainerRunning | ContainerState::ContainerUnknown => {
            panic!("it was stopped: {status:?}")
        }
    };
    // The abandoned request may arrive only now, and be withdrawn.
    retry("StartContainer", || node.cri().start(&id));
    id
}

/// Abandons the calls that change a running container.
fn abandon_changes(node: &TestNode, pod: &TestPod<'_>, id: &str, time: u64) {
    // A command line that no other test uses: the test checks that it is not left running.
    let command = format!("sleep 3142{time}");
    let cmd = command.split(' ').map(str::to_owned).collect();
    let request = cri::ExecSyncRequest {
        container_id: id.to_owned(),
        cmd,
        timeout: 0,
    };
    abandon_call(node, random_delay(time, 200), async |mut client| {
        client.exec_sync(request).await
    });
    assert_eq!(node.cri().sh(id, "echo reached"), "reached");
    let runs = || processes::running(node.root().path(), &command).is_some();
    assert!(
        eventually(LIMIT, || !runs()),
        "the command of a client that vanished still runs"
    );

    abandon_updates(node, pod, id, time);

    // On a kernel that criu does not support no checkpoint is made; `tests/guest/checkpoint.rs` abandons one
    // that is.
    let location = pod.log_path("checkpoint").with_extension("tar");
    let request = cri::CheckpointContainerRequest {
        container_id: id.to_owned(),
        location: location.display().to_string(),
        timeout: 0,
    };
    abandon_call(node, random_delay(time, 60), async |mut client| {
        client.checkpoint_container(request).await
    });
    assert_eq!(node.cri().sh(id, "echo reached"), "reached");

    let name = format!("main-{time}");
    let old = pod.log_path(&name).with_extension("old");
    std::fs::rename(pod.log_path(&name), &old).expect("it has a log");
    let request = cri::ReopenContainerLogRequest {
        container_id: id.to_owned(),
    };
    abandon_call(node, random_delay(time, 10), async |mut client| {
        client.reopen_container_log(request).await
    });
    node.cri().reopen_log(id).expect("it can be opened again");
    assert!(pod.log_path(&name).exists(), "there is no new log");
}

/// Abandons updates of the limits of a container and of its pod. Each can be repeated.
fn abandon_updates(node: &TestNode, pod: &TestPod<'_>, id: &str, time: u64) {
    let limit = (64 + i64::try_from(time).expect("it is small")) << 20;
    let limits = cri::LinuxContainerResources {
        memory_limit_in_bytes: limit,
        ..Default::default()
    };
    let request = cri::UpdateContainerResourcesRequest {
        container_id: id.to_owned(),
        linux: Some(limits.clone()),
        ..Default::default()
    };
    abandon_call(node, random_delay(time, 60), async |mut client| {
        client.update_container_resources(request).await
    });
    node.cri()
        .update(id, limits)
        .expect("it can be changed again");
    let resources = node
        .cri()
        .status(id)
        .expect("it has a status")
        .resources
        .unwrap_or_default();
    let linux = resources.linux.unwrap_or_default();
    assert_eq!(linux.memory_limit_in_bytes, limit);

    let request = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.id().to_owned(),
        overhead: None,
        resources: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: limit,
            ..Default::default()
        }),
    };
    let again = request.clone();
    abandon_call(node, random_delay(time, 30), async |mut client| {
        client.update_pod_sandbox_resources(request).await
    });
    let amended = node
        .cri()
        .runtime(async |mut client| client.update_pod_sandbox_resources(again).await);
    amended.expect("it can be reported again");
    assert!(
        node.cri()
            .pod_info(pod.id())
            .contains(&format!("\"memory_limit_in_bytes\":{limit}"))
    );
}

#[test]
fn disconnects_during_volume_removal_leave_nothing_behind() {
    let node = TestNode::start();
    let before = node.leak_scan();
    for time in 0..TIMES {
        let pod = node.pod("volume");
        let config = old::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: "main".to_owned(),
                attempt: 0,
            }),
            image: Some(image_spec(&node.image())),
            command: ["sleep", "1000"].map(str::to_owned).to_vec(),
            mounts: vec![old::Mount {
                container_path: "/bin".to_owned(),
                name: "left".to_owned(),
                ..Default::default()
            }],
            ..Default::default()
        };
        node.cri()
            .create_v1alpha2(pod.id(), &config)
            .expect("it can be made");
        drop(pod);
        let request = old::RemoveVolumeRequest {
            volume_name: "left".to_owned(),
        };
        abandon_v1alpha2_call(&node, random_delay(time, 20), async |channel| {
            old::volume_service_client::VolumeServiceClient::new(channel)
                .remove_volume(request)
                .await
        });
        node.cri().remove_volume("left").expect("it can be removed");
        assert_no_leaks_since(&node, &before);
    }
}

#[test]
fn disconnects_during_image_calls_leave_nothing_behind() {
    let node = TestNode::start();
    let image = busybox().layer(random_layer(2_000_000, 9431)).build();
    node.registry().push("vanish/image:1", &image);
    let reference = node.registry().reference("vanish/image:1");
    for time in 0..TIMES {
        let request = cri::PullImageRequest {
            image: Some(image_spec(&reference)),
            ..Default::default()
        };
        abandon_image_call(&node, random_delay(time, 200), async |mut client| {
            client.pull_image(request).await
        });
        let clean = eventually(LIMIT, || node.leak_scan().findings.is_empty());
        assert!(clean, "{:#?}", node.leak_scan().findings);
        assert_eq!(
            node.cri().pull(&reference, None).expect("it can be pulled"),
            image.config.digest
        );
        assert!(
            node.cri()
                .image(&reference)
                .expect("it is asked for")
                .is_some()
        );

        let request = cri::RemoveImageRequest {
            image: Some(image_spec(&reference)),
        };
        abandon_image_call(&node, random_delay(time, 30), async |mut client| {
            client.remove_image(request).await
        });
        node.cri()
            .remove_image(&reference)
            .expect("it can be removed");
        assert_eq!(node.cri().image(&reference).expect("it is asked for"), None);
        let clean = eventually(LIMIT, || node.leak_scan().findings.is_empty());
        assert!(clean, "{:#?}", node.leak_scan().findings);
    }
}

/// The daemon is held up meanwhile, as on a loaded node, so that it finds all these calls at once.
#[test]
fn many_calls_that_are_given_up_end_no_other_call_of_their_connection() {
    let node = TestNode::start();
    let pod = node.pod("kept");
    let id = pod.start_shell("main", "exec sleep 1000");
    let exec = |script: &str| cri::ExecSyncRequest {
        container_id: id.clone(),
        cmd: ["sh", "-c", script].map(str::to_owned).to_vec(),
        timeout: 60,
    };
    let answer = node.cri().runtime(async |client| {
        let mut kept = client.clone();
        let command = exec("touch /begun; until [ -e /go ]; do sleep 0.05; done; echo reached");
        let kept = tokio::spawn(async move { kept.exec_sync(command).await });
        let mut further = client.clone();
        further
            .exec_sync(exec("until [ -e /begun ]; do sleep 0.05; done"))
            .await?;
        let held_up = SuspendedProcess::new(node.daemon().pid());
        let given_up = (0..GIVEN_UP).map(|_| {
            let mut client = client.clone();
            let list = cri::ListContainersRequest::default();
            async move {
                tokio::time::timeout(Duration::from_millis(50), client.list_containers(list)).await
            }
        });
        let answered = join_all(given_up)
            .await
            .iter()
            .filter(|answer| answer.is_ok())
            .count();
        assert_eq!(answered, 0, "it is held up");
        drop(held_up);
        further.exec_sync(exec("touch /go")).await?;
        kept.await.expect("it does not panic")
    });
    assert_eq!(
        answer.expect("its connection is not closed").stdout,
        b"reached\n"
    );
}
