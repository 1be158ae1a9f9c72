//! Containers.

use switchyard_core::Error;
use switchyard_core::id::TaskId;
use switchyard_core::spec::Signal;
use switchyard_fake::Method;
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::support::{ServiceFixture, app, code, map, pod};

mod reports;

fn id(text: &str) -> TaskId {
    text.parse().expect("the service gives ids")
}

async fn stop(node: &mut ServiceFixture, id: &str, timeout: i64) {
    let request = cri::StopContainerRequest {
        container_id: id.to_owned(),
        timeout,
    };
    node.runtime
        .stop_container(request)
        .await
        .expect("it is stopped");
}

async fn remove(node: &mut ServiceFixture, id: &str) {
    let request = cri::RemoveContainerRequest {
        container_id: id.to_owned(),
    };
    node.runtime
        .remove_container(request)
        .await
        .expect("it is removed");
}

async fn list(node: &mut ServiceFixture, filter: cri::ContainerFilter) -> Vec<String> {
    let request = cri::ListContainersRequest {
        filter: Some(filter),
    };
    let items = node
        .runtime
        .list_containers(request)
        .await
        .expect("it answers")
        .into_inner()
        .containers;
    items.into_iter().map(|item| item.id).collect()
}

#[tokio::test]
async fn container_lifecycle_completes() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let container = node
        .create(&sandbox, app("app"))
        .await
        .expect("it is well formed");
    let created = node.status(&container).await.expect("it is there");
    assert_eq!(created.state(), cri::ContainerState::ContainerCreated);
    assert_eq!(
        (
            created.started_at,
            created.finished_at,
            created.reason.as_str()
        ),
        (0, 0, "")
    );
    node.start(&container).await.expect("it can be started");
    let running = node.status(&container).await.expect("it is there");
    assert_eq!(running.state(), cri::ContainerState::ContainerRunning);
    assert!(running.started_at >= running.created_at && running.finished_at == 0);
    assert_eq!(code(node.start(&container).await), Code::FailedPrecondition);
    for _ in 0..2 {
        stop(&mut node, &container, 10).await;
    }
    let exited = node.status(&container).await.expect("it is there");
    assert_eq!(exited.state(), cri::ContainerState::ContainerExited);
    assert!(exited.finished_at >= exited.started_at && exited.started_at > 0);
    assert_eq!(node.fake.signals(id(&container)), [Signal::TERM]);
    for _ in 0..2 {
        remove(&mut node, &container).await;
        assert_eq!(code(node.status(&container).await), Code::NotFound);
    }
    node.is_sound();
}

#[tokio::test]
async fn retried_create_returns_the_same_container_and_name_conflict_is_rejected() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let container = node
        .create(&sandbox, app("app"))
        .await
        .expect("it is well formed");
    assert_eq!(
        node.create(&sandbox, app("app"))
            .await
            .expect("it is the same request"),
        container
    );
    let mut other = app("app");
    other.tty = true;
    assert_eq!(
        code(node.create(&sandbox, other).await),
        Code::AlreadyExists
    );
    let elsewhere = node.run(pod("db")).await.expect("it is well formed");
    assert_ne!(
        node.create(&elsewhere, app("app"))
            .await
            .expect("names are per sandbox"),
        container
    );
}

#[tokio::test]
async fn failed_create_leaves_nothing_behind() {
    let mut node = ServiceFixture::new().await;
    assert_eq!(
        code(node.create("nothing", app("app")).await),
        Code::NotFound
    );
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    assert_eq!(
        code(node.create(&sandbox, app("app")).await),
        Code::NotFound,
        "the image is not here"
    );
    node.pull().await;
    let mut config = app("app");
    config.working_dir = "srv".to_owned();
    let refusal = node
        .create(&sandbox, config)
        .await
        .expect_err("it is malformed");
    assert_eq!(refusal.code(), Code::InvalidArgument);
    assert_eq!(
        refusal.message(),
        "config.working_dir: \"srv\" is not an absolute path"
    );
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: sandbox.clone(),
    };
    node.runtime
        .stop_pod_sandbox(request)
        .await
        .expect("it is stopped");
    assert_eq!(
        code(node.create(&sandbox, app("app")).await),
        Code::FailedPrecondition
    );
    assert_eq!(node.fake.tasks(), Vec::<TaskId>::new());
}

#[tokio::test]
async fn failed_start_is_reported_by_call_and_status() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let container = node
        .create(&sandbox, app("app"))
        .await
        .expect("it is well formed");
    node.fake
        .fail_next(Method::StartTask, Error::invalid("command", "no such file"));
    assert_eq!(code(node.start(&container).await), Code::InvalidArgument);
    let status = node.status(&container).await.expect("it is there");
    assert_eq!(status.state(), cri::ContainerState::ContainerExited);
    assert_eq!(
        (status.exit_code, status.reason.as_str()),
        (128, "StartError")
    );
    assert!(
        status.message.contains("no such file"),
        "{}",
        status.message
    );
    assert!(status.started_at > 0 && status.finished_at > 0);
}

#[tokio::test]
async fn container_exit_has_code_and_reason() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    for (name, code, reason) in [
        ("good", 0, "Completed"),
        ("bad", 7, "Error"),
        ("oom", 137, "OOMKilled"),
    ] {
        let container = node
            .create(&sandbox, app(name))
            .await
            .expect("it is well formed");
        node.start(&container).await.expect("it can be started");
        match name {
            "oom" => node.fake.oom_kill(id(&container)).expect("it runs"),
            _ => node.fake.exit(id(&container), code).expect("it runs"),
        }
        node.ended(&container).await;
        let status = node.status(&container).await.expect("it is there");
        assert_eq!((status.exit_code, status.reason.as_str()), (code, reason));
    }
}

#[tokio::test]
async fn unknown_containers_can_be_stopped_and_removed_only() {
    let mut node = ServiceFixture::new().await;
    let container_id = "f".repeat(64);
    stop(&mut node, &container_id, 1).await;
    stop(&mut node, "", -1).await;
    remove(&mut node, &container_id).await;
    assert_eq!(code(node.status(&container_id).await), Code::NotFound);
    assert_eq!(code(node.start(&container_id).await), Code::NotFound);
    assert_eq!(
        code(node.exec(&container_id, &["true"], 1).await),
        Code::NotFound
    );
    let request = cri::ContainerStatsRequest {
        container_id: container_id.clone(),
    };
    assert_eq!(
        code(node.runtime.container_stats(request).await),
        Code::NotFound
    );
    let request = cri::ReopenContainerLogRequest {
        container_id: container_id.clone(),
    };
    assert_eq!(
        code(node.runtime.reopen_container_log(request).await),
        Code::NotFound
    );
    let request = cri::UpdateContainerResourcesRequest {
        container_id,
        ..Default::default()
    };
    assert_eq!(
        code(node.runtime.update_container_resources(request).await),
        Code::NotFound
    );
}

#[tokio::test]
async fn zero_or_negative_grace_period_kills_at_once() {
    let mut node = ServiceFixture::new().await;
    let (sandbox, first) = node.running().await;
    stop(&mut node, &first, 0).await;
    assert_eq!(node.fake.signals(id(&first)), [Signal::KILL]);
    let second = node
        .create(&sandbox, app("second"))
        .await
        .expect("it is well formed");
    node.start(&second).await.expect("it can be started");
    stop(&mut node, &second, -5).await;
    assert_eq!(node.fake.signals(id(&second)), [Signal::KILL]);
}

#[tokio::test]
async fn exec_returns_output_and_code_and_honours_its_timeout() {
    let mut node = ServiceFixture::new().await;
    let (_, container) = node.running().await;
    let ran = node
        .exec(&container, &["echo", "hello"], 10)
        .await
        .expect("it runs");
    assert_eq!(
        (ran.stdout.as_slice(), ran.exit_code),
        (b"hello\n".as_slice(), 0)
    );
    let failed = node
        .exec(&container, &["false"], 0)
        .await
        .expect("a failing command is an answer");
    assert_eq!(failed.exit_code, 1);
    assert_eq!(
        code(node.exec(&container, &[], 0).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(node.exec(&container, &["sleep", "1000"], 1).await),
        Code::DeadlineExceeded
    );
    assert_eq!(node.fake.processes(), 0);
    stop(&mut node, &container, 0).await;
    assert_eq!(
        code(node.exec(&container, &["true"], 1).await),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn updated_limits_are_reported_and_failed_update_keeps_old_ones() {
    let mut node = ServiceFixture::new().await;
    let (_, container) = node.running().await;
    let request = |cpu_shares| cri::UpdateContainerResourcesRequest {
        container_id: container.clone(),
        linux: Some(cri::LinuxContainerResources {
            cpu_shares,
            ..Default::default()
        }),
        ..Default::default()
    };
    node.runtime
        .update_container_resources(request(1024))
        .await
        .expect("they are taken");
    node.fake
        .fail_next(Method::UpdateTask, Error::internal("no cgroup"));
    assert_eq!(
        code(node.runtime.update_container_resources(request(2048)).await),
        Code::Unknown
    );
    assert_eq!(
        code(node.runtime.update_container_resources(request(-1)).await),
        Code::InvalidArgument
    );
    let limits = node
        .status(&container)
        .await
        .expect("it is there")
        .resources
        .and_then(|r| r.linux);
    let limits = limits.expect("they are reported");
    assert_eq!(
        (limits.cpu_shares, limits.memory_limit_in_bytes),
        (1024, 64 << 20)
    );
}

#[tokio::test]
async fn log_reopen_needs_a_running_container() {
    let mut node = ServiceFixture::new().await;
    let (_, container) = node.running().await;
    let request = cri::ReopenContainerLogRequest {
        container_id: container.clone(),
    };
    node.runtime
        .reopen_container_log(request.clone())
        .await
        .expect("it runs");
    stop(&mut node, &container, 0).await;
    assert_eq!(
        code(node.runtime.reopen_container_log(request).await),
        Code::FailedPrecondition
    );
}

#[tokio::test]
async fn pid_target_must_be_a_running_container_of_the_pod() {
    let mut node = ServiceFixture::new().await;
    let (web, running) = node.running().await;
    let db = node.run(pod("db")).await.expect("it is well formed");
    let created = node
        .create(&web, app("created"))
        .await
        .expect("it is well formed");
    let debugger = |target: &str| {
        let mut config = app("debug");
        let options = cri::NamespaceOption {
            pid: cri::NamespaceMode::Target.into(),
            target_id: target.to_owned(),
            ..Default::default()
        };
        config.linux.as_mut().expect("it is set").security_context =
            Some(cri::LinuxContainerSecurityContext {
                namespace_options: Some(options),
                ..Default::default()
            });
        config
    };
    assert_eq!(
        code(node.create(&db, debugger(&running)).await),
        Code::InvalidArgument
    );
    assert_eq!(
        code(node.create(&web, debugger(&created)).await),
        Code::FailedPrecondition
    );
    assert_eq!(
        code(node.create(&web, debugger("nothing")).await),
        Code::NotFound
    );
    node.create(&web, debugger(&running))
        .await
        .expect("it runs in the same pod");
}

/// A kubelet's actions after StartContainer has exceeded its deadline, in each state.
#[tokio::test]
async fn start_without_caller_is_unknown_until_it_has_ended() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let first = node
        .create(&sandbox, app("app"))
        .await
        .expect("it is well formed");
    let hold = node.fake.hold(Method::StartTask);
    let mut runtime = node.runtime.clone();
    let request = cri::StartContainerRequest {
        container_id: first.clone(),
    };
    let call = tokio::spawn(async move { runtime.start_container(request).await });
    hold.arrived(1).await;
    let starting = node.status(&first).await.expect("it is there");
    assert_eq!(
        starting.state(),
        cri::ContainerState::ContainerCreated,
        "its caller waits"
    );
    call.abort();
    let mut state = starting.state();
    while state == cri::ContainerState::ContainerCreated {
        state = node.status(&first).await.expect("it is there").state();
    }
    assert_eq!(state, cri::ContainerState::ContainerUnknown);
    let mut again = app("app");
    again.metadata.get_or_insert_default().attempt = 1;
    let next = node
        .create(&sandbox, again)
        .await
        .expect("it is another attempt");
    let mut runtime = node.runtime.clone();
    let request = cri::StartContainerRequest {
        container_id: next.clone(),
    };
    let call = tokio::spawn(async move { runtime.start_container(request).await });
    hold.arrived(2).await;
    hold.release();
    call.await
        .expect("it does not panic")
        .expect("it can be started");
    // A kubelet stops it first; that waits for the end of the start.
    stop(&mut node, &first, 10).await;
    let ended = node.status(&first).await.expect("it is there");
    assert_eq!(
        (ended.state(), ended.exit_code),
        (cri::ContainerState::ContainerExited, 128)
    );
    assert_eq!(ended.reason, "StartError");
    assert!(node.fake.runs(id(&next)) && !node.fake.runs(id(&first)));
    node.is_sound();
}
