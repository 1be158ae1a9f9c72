//! Tests of devices: a task's leases, refusals, and the offer to the scheduler.

use std::collections::BTreeSet;

use switchyard_core::ErrorKind;
use switchyard_core::device::{self, Device, DeviceGroup, Inventory};
use switchyard_core::gateway::Scope;

use super::*;

/// The resource of the devices.
const TPU: &str = "acme.com/tpu";

/// Longer than the grace period in which a device is kept for a restart.
const GRACE_OVER: Duration = Duration::from_secs(25);

/// Longer than the delay until managers receive a change.
const TOLD: Duration = Duration::from_secs(6);

/// An inventory of these devices, each with a node and a CDI name.
fn inventory(ids: &[&str]) -> Arc<Inventory> {
    let device = |id: &&str| Device {
        cdi: vec![format!("{TPU}={id}")],
        ..Device::new(id, device::node(format!("/dev/{id}").into(), "rw"))
    };
    let group = DeviceGroup {
        resource: TPU.to_owned(),
        variable: "ACME_DEVICES".to_owned(),
        devices: ids.iter().map(device).collect(),
        ..DeviceGroup::new("acme", "tpu", "v2")
    };
    Arc::new(Inventory::of([group]))
}

impl TestNode {
    /// Has these devices from now on, until others are sent.
    async fn equip(&self, ids: &[&str]) -> watch::Sender<Option<Arc<Inventory>>> {
        let (tell, inventories) = watch::channel(Some(inventory(ids)));
        self.gateway.devices().watch(inventories);
        let mut view = self.gateway.scope(Owner::Swarm).devices().subscribe();
        view.wait_for(Option::is_some).await.unwrap();
        tell
    }

    fn pods(&self) -> Scope {
        self.gateway.scope(Owner::Kubernetes)
    }

    /// Makes an executor that offers the node's resources to managers.
    async fn offering(&self) -> TaskExecutor {
        let settings = self.executor.shared.settings.clone();
        let scope = self.gateway.scope(Owner::Swarm);
        let executor =
            TaskExecutor::offering(scope, settings, NodeFacts::default(), Arc::default());
        executor.serve(&member(CLUSTER));
        executor.recover().await;
        executor
    }
}

/// Returns the ids of the devices that are offered to managers.
fn told(executor: &TaskExecutor) -> Vec<String> {
    let facts = executor.facts().borrow().clone();
    assert!(
        facts.named.iter().all(|(kind, _)| kind == TPU),
        "{:?}",
        facts.named
    );
    facts.named.into_iter().map(|(_, id)| id).collect()
}

/// A task to which the scheduler has assigned devices.
fn with_devices(task: swarm::Task, ids: &[&str]) -> swarm::Task {
    let resource = |id: &&str| {
        let named = swarm::NamedGenericResource {
            kind: TPU.to_owned(),
            value: (*id).to_owned(),
        };
        let resource = Some(swarm::generic_resource::Resource::NamedResourceSpec(named));
        swarm::GenericResource { resource }
    };
    swarm::Task {
        assigned_generic_resources: ids.iter().map(resource).collect(),
        ..task
    }
}

/// A task whose service names devices.
fn naming(number: usize, names: &str) -> swarm::Task {
    let labels = [("switchyard.io/device".to_owned(), names.to_owned())].into();
    task(
        number,
        swarm::ContainerSpec {
            args: vec!["serve".to_owned()],
            labels,
            ..container()
        },
    )
}

/// Returns the error of a pod that does not get a device.
async fn refused(pods: &Scope, id: &str) -> String {
    let error = pods
        .devices()
        .lease(&[id.parse().unwrap()])
        .await
        .expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    error.report()
}

#[tokio::test(start_paused = true)]
async fn devices_belong_to_a_task_until_its_end() {
    let node = TestNode::new().await;
    let _devices = node.equip(&["a0", "a1"]).await;
    node.assign(with_devices(running(1, &[]), &["a1", "a0"]))
        .await;
    node.reported(1, State::Running).await;
    let spec = node.fake.spec(node.object(1)).unwrap();
    let paths: Vec<_> = spec
        .devices
        .iter()
        .map(|node| node.host_path.display().to_string())
        .collect();
    assert_eq!(paths, ["/dev/a0", "/dev/a1"]);
    let variable = |name: &str| {
        let variable = spec
            .env
            .iter()
            .find(|variable| variable.name == name)
            .unwrap();
        String::from_utf8(variable.value.clone()).unwrap()
    };
    assert_eq!(variable("DOCKER_RESOURCE_ACME.COM/TPU"), "a1,a0");
    assert_eq!(variable("ACME_DEVICES"), "/dev/a0,/dev/a1");
    for id in ["a0", "a1"] {
        let text = refused(&node.pods(), id).await;
        assert!(
            text.contains(&task_id(1)) && text.contains("of swarm"),
            "{text}"
        );
    }
    node.assign(wanted(running(1, &[]), State::Shutdown)).await;
    node.reported(1, State::Shutdown).await;
    // The task that replaces it has them as soon as the end is reported.
    node.assign(with_devices(running(2, &[]), &["a0"])).await;
    node.reported(2, State::Running).await;
    tokio::time::sleep(GRACE_OVER).await;
    node.pods()
        .devices()
        .lease(&["a1".parse().unwrap()])
        .await
        .unwrap();
    refused(&node.pods(), "a0").await;
    within(node.executor.remove_all()).await.unwrap();
    tokio::time::sleep(GRACE_OVER).await;
    node.pods()
        .devices()
        .lease(&["a0".parse().unwrap()])
        .await
        .unwrap();
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn device_that_cannot_be_had_rejects_the_task_and_takes_nothing() {
    let node = TestNode::new().await;
    let _devices = node.equip(&["a0", "a1"]).await;
    node.pods()
        .devices()
        .lease(&["a0".parse().unwrap()])
        .await
        .unwrap();
    node.assign(with_devices(running(1, &[]), &["a1", "a0"]))
        .await;
    let error = node.reported(1, State::Rejected).await.err;
    assert!(error.contains("\"a0\" is held by kubernetes"), "{error}");
    node.pods()
        .devices()
        .lease(&["a1".parse().unwrap()])
        .await
        .expect("nobody has it");
    node.assign(with_devices(running(2, &[]), &["b7"])).await;
    let error = node.reported(2, State::Rejected).await.err;
    assert!(error.contains("\"b7\" is not on this node"), "{error}");
    let number = swarm::DiscreteGenericResource {
        kind: "ssd".to_owned(),
        value: 2,
    };
    let resource = Some(swarm::generic_resource::Resource::DiscreteResourceSpec(
        number,
    ));
    let assigned_generic_resources = vec![swarm::GenericResource { resource }];
    node.assign(swarm::Task {
        assigned_generic_resources,
        ..running(3, &[])
    })
    .await;
    let error = node.reported(3, State::Rejected).await.err;
    assert!(
        error.starts_with("assigned_generic_resources[0]: \"ssd\" is a number"),
        "{error}"
    );
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn rejected_task_gives_its_devices_back() {
    let node = TestNode::new().await;
    let _devices = node.equip(&["a0"]).await;
    node.fake
        .fail_next(Method::CreateTask, Error::failed_precondition("no"));
    node.assign(with_devices(running(1, &[]), &["a0"])).await;
    node.reported(1, State::Rejected).await;
    node.assign(with_devices(running(2, &[]), &["a0"])).await;
    node.reported(2, State::Running).await;
    node.fake.exit(node.object(2), 1).unwrap();
    node.reported(2, State::Failed).await;
    tokio::time::sleep(GRACE_OVER).await;
    node.pods()
        .devices()
        .lease(&["a0".parse().unwrap()])
        .await
        .unwrap();
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn device_of_a_task_that_still_ends_is_waited_for() {
    let node = TestNode::new().await;
    let _devices = node.equip(&["a0"]).await;
    node.assign(with_devices(running(1, &[]), &["a0"])).await;
    node.reported(1, State::Running).await;
    // A manager that took the node for down has assigned it again.
    node.assign(with_devices(running(2, &[]), &["a0"])).await;
    node.reported(2, State::Preparing).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        node.status(2).unwrap().state,
        i32::from(State::Preparing.to_wire())
    );
    node.remove(1).await;
    node.reported(2, State::Running).await;
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn devices_are_held_and_offered_over_a_kill_of_the_daemon() {
    let node = TestNode::new().await;
    let devices = node.equip(&["a0", "a1"]).await;
    node.assign(with_devices(running(1, &[]), &["a1"])).await;
    node.reported(1, State::Running).await;
    drop(devices);
    let node = node.killed().await;
    // The device is gone, and no manager has said yet what is assigned.
    let devices = node.equip(&["a0"]).await;
    let executor = node.offering().await;
    assert_eq!(told(&executor), ["a1", "a0"]);
    devices.send_replace(Some(inventory(&["a0", "a1"])));
    tokio::time::sleep(TOLD).await;
    assert!(refused(&node.pods(), "a1").await.contains(&task_id(1)));
    let task = known(with_devices(running(1, &[]), &["a1"]), State::Running);
    node.apply(true, vec![Change::Task(Arc::new(task))]).await;
    node.remove(1).await;
    within(node.executor.idle()).await;
    devices.send_replace(Some(inventory(&["a0"])));
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a0"]);
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn scheduler_is_told_of_devices_that_nobody_else_has() {
    let node = TestNode::new().await;
    let devices = node.equip(&["a0", "a1", "a2"]).await;
    let executor = node.offering().await;
    assert_eq!(told(&executor), ["a2", "a1", "a0"]);
    let pod = node
        .pods()
        .devices()
        .lease(&["a0".parse().unwrap()])
        .await
        .unwrap();
    let assigned = with_devices(running(1, &[]), &["a1"]);
    executor
        .apply(Changes {
            is_complete: false,
            list: vec![Change::Task(Arc::new(assigned))],
        })
        .await;
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a2", "a1"]);
    // Unhealthy or not, a task has it.
    devices.send_replace(Some(inventory(&["a0", "a2"])));
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a2", "a1"]);
    node.gateway
        .devices()
        .release_lease(pod.token)
        .await
        .unwrap();
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a2", "a1", "a0"]);
    within(executor.remove_all()).await.unwrap();
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a2", "a0"]);
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn device_that_a_service_names_is_claimed_and_not_offered() {
    let node = TestNode::new().await;
    let _devices = node.equip(&["a0", "a1"]).await;
    let name = format!("{TPU}=a1");
    node.assign(naming(1, &name)).await;
    let error = node.reported(1, State::Rejected).await.err;
    assert!(
        error.contains("swarm.allow_devices") && error.contains(&name),
        "{error}"
    );
    node.executor
        .shared
        .settings
        .allowed_devices
        .set(BTreeSet::from([name.clone()]));
    node.assign(naming(2, &name)).await;
    node.reported(2, State::Running).await;
    let spec = node.fake.spec(node.object(2)).unwrap();
    assert_eq!(spec.cdi_devices, [name]);
    assert!(!spec.meta.labels.contains_key("switchyard.io/device"));
    assert!(refused(&node.pods(), "a1").await.contains(&task_id(2)));
    let executor = node.offering().await;
    assert_eq!(told(&executor), ["a0"]);
    within(node.executor.remove_all()).await.unwrap();
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a1", "a0"]);
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn devices_of_tasks_are_hidden_from_managers_that_end_tasks_for_them() {
    let node = TestNode::new().await;
    let _devices = node.equip(&["a0", "a1"]).await;
    let executor = node.offering().await;
    let first = with_devices(running(1, &[]), &["a1"]);
    let apply = async |task: swarm::Task| {
        executor
            .apply(Changes {
                is_complete: false,
                list: vec![Change::Task(Arc::new(task))],
            })
            .await;
    };
    apply(first.clone()).await;
    let status = swarm::TaskStatus {
        state: swarm::TaskState::Rejected.into(),
        err: "assigned node no longer meets constraints".to_owned(),
        timestamp: Some(std::time::SystemTime::now().into()),
        ..Default::default()
    };
    apply(wanted(
        swarm::Task {
            status: Some(status),
            ..first
        },
        State::Shutdown,
    ))
    .await;
    apply(with_devices(running(2, &[]), &["a1"])).await;
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a0"]);
    within(executor.remove_all()).await.unwrap();
    tokio::time::sleep(TOLD).await;
    assert_eq!(told(&executor), ["a1", "a0"]);
    node.is_empty().await;
}

#[tokio::test(start_paused = true)]
async fn devices_of_tasks_are_hidden_from_the_first_session_on_if_that_is_known() {
    let node = TestNode::new().await;
    let _devices = node.equip(&["a0", "a1"]).await;
    node.assign(with_devices(running(1, &[]), &["a1"])).await;
    node.reported(1, State::Running).await;
    for (kept, expected) in [
        (None, &["a1", "a0"][..]),
        (Some(DeviceCheck::Plain), &["a1", "a0"][..]),
        (Some(DeviceCheck::Inverted), &["a0"][..]),
    ] {
        let settings = node.executor.shared.settings.clone();
        let scope = node.gateway.scope(Owner::Swarm);
        let executor =
            TaskExecutor::offering(scope, settings, NodeFacts::default(), Arc::default());
        // An offer is made before what was kept is read.
        tokio::time::sleep(Duration::from_secs(1)).await;
        executor.serve(&member(CLUSTER));
        if let Some(kept) = kept {
            executor.resume_device_check(kept);
        }
        executor.recover().await;
        assert_eq!(told(&executor), expected, "{kept:?}");
        assert_eq!(*executor.device_check().borrow(), kept);
    }
    within(node.executor.remove_all()).await.unwrap();
    node.is_empty().await;
}
