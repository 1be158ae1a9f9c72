//! Sandboxes.

use std::time::SystemTime;

use switchyard_core::Error;
use switchyard_core::id::Owner;
use switchyard_core::spec::{
    CgroupPlacement, DEFAULT_SHM_BYTES, HostPorts, IpcMode, Meta, SandboxNetwork, SandboxPid,
    SandboxSpec, UtsMode,
};
use switchyard_fake::Method;
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::support::{ServiceFixture, code, map, pod};

mod reports;

async fn stop(node: &mut ServiceFixture, id: &str) {
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: id.to_owned(),
    };
    node.runtime
        .stop_pod_sandbox(request)
        .await
        .expect("it is stopped");
}

async fn remove(node: &mut ServiceFixture, id: &str) {
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: id.to_owned(),
    };
    node.runtime
        .remove_pod_sandbox(request)
        .await
        .expect("it is removed");
}

async fn list(node: &mut ServiceFixture, filter: cri::PodSandboxFilter) -> Vec<String> {
    let request = cri::ListPodSandboxRequest {
        filter: Some(filter),
    };
    let items = node
        .runtime
        .list_pod_sandbox(request)
        .await
        .expect("it answers")
        .into_inner()
        .items;
    items.into_iter().map(|item| item.id).collect()
}

/// A sandbox that another program has created through the core.
fn foreign(owner: Owner, record: Vec<u8>) -> SandboxSpec {
    SandboxSpec {
        meta: Meta {
            owner,
            name: "other".to_owned(),
            labels: map(&[("io.kubernetes.pod.name", "old")]),
            created_at: SystemTime::now(),
            record,
        },
        handler: String::new(),
        hostname: String::new(),
        network: SandboxNetwork::Isolated,
        host_ports: HostPorts::default(),
        uts: UtsMode::Network,
        ipc: IpcMode::Shared,
        pid: SandboxPid::PerTask,
        dns: None,
        extra_hosts: Vec::new(),
        sysctls: map(&[]),
        shm_size_bytes: DEFAULT_SHM_BYTES,
        log_dir: "".into(),
        cgroup: CgroupPlacement::default(),
        privileged: false,
        annotations: map(&[]),
        selinux: None,
        users: None,
    }
}

#[tokio::test]
async fn pod_is_ready_with_an_address_until_stopped_and_removed() {
    let mut node = ServiceFixture::new().await;
    let id = node.run(pod("web")).await.expect("it is well formed");
    let ready = node.pod_status(&id).await.expect("it is there");
    assert_eq!(ready.state(), cri::PodSandboxState::SandboxReady);
    assert!(!ready.network.expect("it is ready").ip.is_empty());
    assert!(ready.created_at > 0);
    for _ in 0..2 {
        stop(&mut node, &id).await;
        let stopped = node.pod_status(&id).await.expect("it is kept");
        assert_eq!(
            (stopped.state(), stopped.network),
            (cri::PodSandboxState::SandboxNotready, None)
        );
    }
    for _ in 0..2 {
        remove(&mut node, &id).await;
        assert_eq!(code(node.pod_status(&id).await), Code::NotFound);
    }
    assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
    node.is_sound();
}

#[tokio::test]
async fn pod_status_echoes_its_request_after_restart() {
    let mut node = ServiceFixture::new().await;
    let config = pod("web");
    let id = node.run(config.clone()).await.expect("it is well formed");
    let before = node.pod_status(&id).await.expect("it is there");
    assert_eq!(before.metadata, config.metadata);
    assert_eq!(
        (&before.labels, &before.annotations),
        (&config.labels, &config.annotations)
    );
    let options = before
        .linux
        .clone()
        .and_then(|linux| linux.namespaces)
        .and_then(|n| n.options);
    let asked = config
        .linux
        .and_then(|linux| linux.security_context)
        .and_then(|c| c.namespace_options);
    assert_eq!(options, asked);
    let mut node = node.restarted().await;
    assert_eq!(node.pod_status(&id).await.expect("it is recovered"), before);
    node.is_sound();
}

#[tokio::test]
async fn retried_run_returns_the_same_sandbox_and_name_conflict_is_rejected() {
    let mut node = ServiceFixture::new().await;
    let id = node.run(pod("web")).await.expect("it is well formed");
    assert_eq!(
        node.run(pod("web")).await.expect("it is the same request"),
        id
    );
    let mut other = pod("web");
    other.hostname = "elsewhere".to_owned();
    assert_eq!(code(node.run(other).await), Code::AlreadyExists);
    assert_eq!(node.fake.count(Method::CreateSandbox), 1);
}

#[tokio::test]
async fn concurrent_runs_share_one_sandbox() {
    let node = ServiceFixture::new().await;
    let run = || {
        let mut runtime = node.runtime.clone();
        let request = cri::RunPodSandboxRequest {
            config: Some(pod("web")),
            ..Default::default()
        };
        async move {
            runtime
                .run_pod_sandbox(request)
                .await
                .expect("it is made")
                .into_inner()
                .pod_sandbox_id
        }
    };
    let (one, other) = tokio::join!(run(), run());
    assert_eq!(one, other);
    assert_eq!(node.fake.count(Method::CreateSandbox), 1);
}

#[tokio::test]
async fn malformed_or_failed_run_leaves_nothing_behind() {
    let mut node = ServiceFixture::new().await;
    let mut config = pod("web");
    config.hostname = "not a name".to_owned();
    let refusal = node.run(config).await.expect_err("it is malformed");
    assert_eq!(refusal.code(), Code::InvalidArgument);
    assert_eq!(refusal.message(), "config.hostname: it contains ' '");
    let request = cri::RunPodSandboxRequest {
        config: Some(pod("web")),
        runtime_handler: "kata".to_owned(),
    };
    assert_eq!(
        code(node.runtime.run_pod_sandbox(request).await),
        Code::InvalidArgument
    );
    assert_eq!(node.fake.count(Method::CreateSandbox), 0);
    node.fake
        .fail_next(Method::CreateSandbox, Error::unavailable("no network"));
    assert_eq!(code(node.run(pod("web")).await), Code::Unavailable);
    assert_eq!(
        list(&mut node, cri::PodSandboxFilter::default()).await,
        Vec::<String>::new()
    );
    assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
}

#[tokio::test]
async fn unknown_pods_can_be_stopped_and_removed_but_not_queried() {
    let mut node = ServiceFixture::new().await;
    for id in ["", "nothing", &"0".repeat(64)] {
        stop(&mut node, id).await;
        remove(&mut node, id).await;
        assert_eq!(code(node.pod_status(id).await), Code::NotFound);
        let request = cri::PodSandboxStatsRequest {
            pod_sandbox_id: id.to_owned(),
        };
        assert_eq!(
            code(node.runtime.pod_sandbox_stats(request).await),
            Code::NotFound
        );
    }
}

#[tokio::test]
async fn objects_of_other_owners_are_not_found() {
    let mut node = ServiceFixture::new().await;
    let scope = node.gateway.scope(Owner::Nomad);
    let id = scope
        .sandboxes()
        .create(foreign(Owner::Nomad, vec![1]))
        .await
        .expect("it is made")
        .id
        .to_string();
    assert_eq!(
        list(&mut node, cri::PodSandboxFilter::default()).await,
        Vec::<String>::new()
    );
    assert_eq!(code(node.pod_status(&id).await), Code::NotFound);
    remove(&mut node, &id).await;
    assert_eq!(
        node.fake.remaining_objects().len(),
        1,
        "the removal touched nothing"
    );
}

#[tokio::test]
async fn pod_without_a_record_can_be_listed_and_removed() {
    let mut node = ServiceFixture::new().await;
    let scope = node.gateway.scope(Owner::Kubernetes);
    let spec = foreign(Owner::Kubernetes, Vec::new());
    let id = scope
        .sandboxes()
        .create(spec)
        .await
        .expect("it is made")
        .id
        .to_string();
    let status = node
        .pod_status(&id)
        .await
        .expect("it is described by its labels");
    assert_eq!(status.metadata.expect("clients insist on it").name, "old");
    assert_eq!(
        code(node.create(&id, crate::support::app("a")).await),
        Code::FailedPrecondition
    );
    remove(&mut node, &id).await;
    assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
}

#[tokio::test]
async fn pod_resources_are_reported_after_restart() {
    let mut node = ServiceFixture::new().await;
    let id = node.run(pod("web")).await.expect("it is well formed");
    let limits = |cpu_shares| cri::LinuxContainerResources {
        cpu_shares,
        ..Default::default()
    };
    let request = |overhead, resources| cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.clone(),
        overhead,
        resources,
    };
    let both = request(Some(limits(100)), Some(limits(200)));
    node.runtime
        .update_pod_sandbox_resources(both)
        .await
        .expect("it is ready");
    let later = request(None, Some(limits(300)));
    node.runtime
        .update_pod_sandbox_resources(later)
        .await
        .expect("it is ready");
    let wrong = request(None, Some(limits(-1)));
    assert_eq!(
        code(node.runtime.update_pod_sandbox_resources(wrong).await),
        Code::InvalidArgument
    );
    let mut node = node.restarted().await;
    let verbose = cri::PodSandboxStatusRequest {
        pod_sandbox_id: id.clone(),
        verbose: true,
    };
    let info = node
        .runtime
        .pod_sandbox_status(verbose)
        .await
        .expect("it answers")
        .into_inner()
        .info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    let reported = |part: &str| info["config"]["linux"][part]["cpu_shares"].clone();
    assert_eq!(
        (reported("overhead"), reported("resources")),
        (100.into(), 300.into())
    );
    stop(&mut node, &id).await;
    let late = request(None, Some(limits(400)));
    assert_eq!(
        code(node.runtime.update_pod_sandbox_resources(late).await),
        Code::FailedPrecondition
    );
    let unknown = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: "ff".repeat(32),
        ..Default::default()
    };
    assert_eq!(
        code(node.runtime.update_pod_sandbox_resources(unknown).await),
        Code::NotFound
    );
    node.is_sound();
}

#[tokio::test]
async fn overlapping_changes_of_pod_resources_are_all_kept() {
    let mut node = ServiceFixture::new().await;
    let id = node.run(pod("web")).await.expect("it is well formed");
    let hold = node.fake.hold(Method::AmendSandbox);
    let limits = |cpu_shares| cri::LinuxContainerResources {
        cpu_shares,
        ..Default::default()
    };
    let runtime = node.runtime.clone();
    let change = |overhead, resources| {
        let mut runtime = runtime.clone();
        let pod_sandbox_id = id.clone();
        let request = cri::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id,
            overhead,
            resources,
        };
        tokio::spawn(async move { runtime.update_pod_sandbox_resources(request).await })
    };
    let first = change(Some(limits(100)), None);
    hold.arrived(1).await;
    let second = change(None, Some(limits(200)));
    // A later call on the connection is answered: the second has begun too.
    node.pod_status(&id).await.expect("it is there");
    hold.release();
    for change in [first, second] {
        change
            .await
            .expect("it does not panic")
            .expect("it is ready");
    }
    let verbose = cri::PodSandboxStatusRequest {
        pod_sandbox_id: id,
        verbose: true,
    };
    let info = node
        .runtime
        .pod_sandbox_status(verbose)
        .await
        .expect("it answers")
        .into_inner()
        .info;
    let info: serde_json::Value = serde_json::from_str(&info["info"]).expect("it is JSON");
    let reported = |part: &str| info["config"]["linux"][part]["cpu_shares"].clone();
    assert_eq!(
        (reported("overhead"), reported("resources")),
        (100.into(), 200.into())
    );
    node.is_sound();
}
