//! CPUs and memory of containers: what a kubelet requests, and from whom they are protected.

use switchyard_contract::specs;
use switchyard_core::id::Owner;
use switchyard_core::spec::{ComputeClaim, CpuList, Resources, TaskSpec};
use switchyard_core::{ErrorKind, Result};
use switchyard_fake::{BUSYBOX, Method};
use switchyard_proto::cri::v1 as cri;
use tonic::Code;

use crate::support::{ServiceFixture, app, code, pod};

/// A container bound to these CPUs, as by a kubelet with a static CPU manager.
fn bound(name: &str, cpuset_cpus: &str) -> cri::ContainerConfig {
    let mut config = app(name);
    let limits = config
        .linux
        .get_or_insert_default()
        .resources
        .get_or_insert_default();
    limits.cpuset_cpus = cpuset_cpus.to_owned();
    limits.cpu_shares = 1024;
    limits.memory_limit_in_bytes = 64 << 20;
    limits.oom_score_adj = -997;
    config
}

/// Gives a task of Nomad exclusive CPUs.
async fn nomad_takes(node: &ServiceFixture, cpu: &str) -> Result<()> {
    let scope = node.gateway.scope(Owner::Nomad);
    let name = format!("nomad-{cpu}");
    let sandbox = scope
        .sandboxes()
        .create(specs::sandbox(Owner::Nomad, &name))
        .await?;
    let task = TaskSpec {
        resources: Resources {
            cpuset_cpus: CpuList::new(cpu).ok(),
            ..Resources::default()
        },
        compute: ComputeClaim {
            exclusive_cpus: true,
            ..ComputeClaim::default()
        },
        ..specs::task(Owner::Nomad, &name, BUSYBOX, &["serve"])
    };
    scope
        .tasks()
        .create(&sandbox.id.to_string(), task)
        .await
        .map(drop)
}

/// The exclusive CPUs of all containers.
fn own(node: &ServiceFixture) -> Vec<String> {
    let report = node.gateway.claims().report();
    let own = report
        .compute
        .exclusive()
        .filter(|(_, holder, _)| holder.owner == Owner::Kubernetes);
    own.map(|(_, _, cpus)| cpus.to_string()).collect()
}

#[tokio::test]
async fn exclusive_kubelet_cpus_are_reserved_and_shared_pool_is_not() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let own_cpu = node
        .create(&sandbox, bound("own", "1"))
        .await
        .expect("it is free");
    node.create(&sandbox, bound("pool", "0,2-3"))
        .await
        .expect("a pool is nobody's own");
    node.create(&sandbox, bound("partly", "1-2"))
        .await
        .expect("so is this");
    assert_eq!(own(&node), ["1"]);
    let error = nomad_takes(&node, "1")
        .await
        .expect_err("it is the container's");
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    nomad_takes(&node, "3")
        .await
        .expect("that is reported, and not refused");
    let reserved = node.gateway.claims().report().compute.reserved()[&Owner::Kubernetes];
    assert_eq!(
        (reserved.cpu_milli, reserved.memory_bytes),
        (3000, 3 * (64 << 20))
    );

    // A container that its CPU manager takes out of the pool, and puts back.
    for (cpus, expected) in [
        ("0", vec!["1"]),
        ("1", vec!["1", "1"]),
        ("", vec!["1", "1"]),
        ("0", vec!["1"]),
    ] {
        let pool = node
            .runtime
            .list_containers(cri::ListContainersRequest::default())
            .await;
        let all = pool.expect("they are listed").into_inner().containers;
        let is_pool = |found: &&cri::Container| {
            found
                .metadata
                .as_ref()
                .is_some_and(|data| data.name == "pool")
        };
        let pool = all.iter().find(is_pool).expect("it is there").id.clone();
        let limits = cri::LinuxContainerResources {
            cpuset_cpus: cpus.to_owned(),
            ..Default::default()
        };
        let request = cri::UpdateContainerResourcesRequest {
            container_id: pool,
            linux: Some(limits),
            ..Default::default()
        };
        node.runtime
            .update_container_resources(request)
            .await
            .expect("it can be changed");
        assert_eq!(own(&node), expected, "{cpus:?}");
    }
    node.start(&own_cpu).await.expect("it is created");
    node.is_sound();
}

#[tokio::test]
async fn exclusive_cpu_held_by_nomad_is_refused() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    nomad_takes(&node, "1").await.expect("it is free");
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let refused = node.create(&sandbox, bound("own", "1")).await;
    let text = refused
        .as_ref()
        .expect_err("it is held")
        .message()
        .to_owned();
    assert!(
        text.contains("the set 1 of processors is held by nomad-1 of nomad"),
        "{text}"
    );
    assert_eq!(code(refused), Code::FailedPrecondition);
    node.create(&sandbox, bound("pool", "0-3"))
        .await
        .expect("a pool is reported, and not refused");
}

#[tokio::test]
async fn overlapping_updates_are_all_reserved() {
    let mut node = ServiceFixture::new().await;
    node.pull().await;
    let sandbox = node.run(pod("web")).await.expect("it is well formed");
    let id = node
        .create(&sandbox, bound("app", "0"))
        .await
        .expect("it is well formed");
    let hold = node.fake.hold(Method::UpdateTask);
    let update = |limits: cri::LinuxContainerResources| {
        let mut runtime = node.runtime.clone();
        let request = cri::UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(limits),
            ..Default::default()
        };
        tokio::spawn(async move { runtime.update_container_resources(request).await })
    };
    let first = update(cri::LinuxContainerResources {
        cpu_shares: 2048,
        ..Default::default()
    });
    hold.arrived(1).await;
    let second = update(cri::LinuxContainerResources {
        memory_limit_in_bytes: 96 << 20,
        ..Default::default()
    });
    // The second has been read, and waits for the first.
    let in_flight = || node.operations.in_flight().len();
    while in_flight() < 2 {
        tokio::task::yield_now().await;
    }
    hold.release();
    for update in [first, second] {
        update
            .await
            .expect("it does not panic")
            .expect("it can be changed");
    }
    let reserved = node.gateway.claims().report().compute.reserved()[&Owner::Kubernetes];
    assert_eq!(
        (reserved.cpu_milli, reserved.memory_bytes),
        (2000, 96 << 20)
    );
    node.is_sound();
}
