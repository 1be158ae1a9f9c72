//! Tests of devices leased by the device plugin: from the reservation to the start of a task, and through its
//! restarts.

use switchyard_core::ErrorKind;
use switchyard_core::device::{Health, Inventory};
use switchyard_core::gateway::Scope;
use switchyard_core::spec::{DeviceNode, MountSource};
use switchyard_fake::Method;
use switchyard_proto::nomad::device as plugin;
use switchyard_proto::nomad::device::device_plugin_server::DevicePlugin as _;
use tokio::sync::watch;

use super::*;
use crate::configs::devices;
use crate::device::DeviceService;
use crate::plan::Plan;
use crate::preparation;

/// Longer than the grace period in which a device is kept for a restart.
pub(super) const GRACE_OVER: Duration = Duration::from_secs(25);

/// A fixture with the device `acme0`, and everything that a task can get with it.
pub(super) async fn fixture_with_devices() -> DriverFixture {
    let fixture = fixture().await;
    fixture.equip().await;
    fixture
}

impl DriverFixture {
    async fn equip(&self) {
        let (tell, inventories) = watch::channel(Some(Arc::new(devices(&["acme0"], 1))));
        self.gateway.devices().watch(inventories);
        let mut view = self.gateway.scope(Owner::Nomad).devices().subscribe();
        view.wait_for(Option::is_some)
            .await
            .expect("the gateway lives");
        // The scanner ends: the inventory stays as it is.
        drop(tell);
    }

    /// The variables that Nomad's device plugin gives to a task with the device.
    pub(super) async fn reserve(&self) -> BTreeMap<String, String> {
        let service = DeviceService::new(self.gateway.scope(Owner::Nomad));
        let request = plugin::ReserveRequest {
            device_ids: vec!["acme0".to_owned()],
        };
        let answer = service
            .reserve(Request::new(request))
            .await
            .expect("it is free")
            .into_inner();
        answer
            .container_res
            .expect("it is always set")
            .envs
            .into_iter()
            .collect()
    }

    /// The request of a task with these device variables, as sent by an agent that was restarted: it has
    /// forgotten nodes and mounts.
    pub(super) fn leased(
        &self,
        start: &str,
        device_env: &BTreeMap<String, String>,
    ) -> nomad::TaskConfig {
        let mut request = self.request(start, &["serve"]);
        request.device_env = device_env.clone();
        request.env.extend(device_env.clone());
        request
    }

    pub(super) fn pods(&self) -> Scope {
        self.gateway.scope(Owner::Kubernetes)
    }
}

/// The reason why a kubelet does not get the device.
async fn refused(pods: &Scope) -> String {
    let error = pods
        .devices()
        .lease(&["acme0".parse().unwrap()])
        .await
        .expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    error.report()
}

#[tokio::test(start_paused = true)]
async fn restarted_task_keeps_its_device_and_others_release_it() {
    let fixture = fixture_with_devices().await;
    let given = fixture.reserve().await;
    let first = fixture.leased("00000001", &given);
    fixture.start(&first).await.expect("it starts");
    let text = refused(&fixture.pods()).await;
    assert!(
        text.contains("\"acme0\"") && text.contains(&first.id) && text.contains("of nomad"),
        "{text}"
    );
    fixture.stop(&first.id, "", 5).await.expect("it listens");
    fixture
        .destroy(&first.id, false)
        .await
        .expect("it has ended");
    refused(&fixture.pods()).await;
    // The restart policy determines the delay.
    tokio::time::sleep(Duration::from_secs(15)).await;
    let second = fixture.leased("00000002", &given);
    fixture
        .start(&second)
        .await
        .expect("its device is still there for it");
    let nodes = fixture.fake.devices(fixture.task(&second.id));
    let nodes: Vec<_> = nodes
        .iter()
        .map(|node| node.container_path.to_str())
        .collect();
    assert_eq!(
        nodes,
        [Some("/dev/acme0"), Some("/dev/acmectl")],
        "although its agent has not named them"
    );
    tokio::time::sleep(GRACE_OVER).await;
    refused(&fixture.pods()).await;
    fixture
        .destroy(&second.id, true)
        .await
        .expect("it is killed");
    tokio::time::sleep(GRACE_OVER).await;
    fixture
        .pods()
        .devices()
        .lease(&["acme0".parse().unwrap()])
        .await
        .expect("it was given back");
    let late = fixture
        .start(&fixture.leased("00000003", &given))
        .await
        .expect_err("it is another's now");
    assert_eq!(
        (late.code(), late.details().is_empty()),
        (Code::FailedPrecondition, false)
    );
    assert!(
        late.message()
            .contains("may have been given to others meanwhile"),
        "{late:?}"
    );
    assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
    assert_eq!(fixture.fake.breaches(), Vec::<String>::new());
}

#[tokio::test]
async fn leased_devices_are_injected_although_the_agent_omits_them() {
    let fixture = fixture_with_devices().await;
    let given = fixture.reserve().await;
    let mut request = fixture.leased("00000001", &given);
    let session = session(PluginConfig::default());
    let equip = |request: &nomad::TaskConfig| {
        fixture
            .driver
            .with_lease_devices(preparation::prepare(request, &session).expect("it is well formed"))
            .expect("it is leased")
    };
    let plan = equip(&request);
    let paths = |nodes: &[DeviceNode]| -> Vec<_> {
        nodes
            .iter()
            .map(|node| (node.host_path.clone(), node.container_path.clone()))
            .collect()
    };
    let same = |path: &str| (PathBuf::from(path), PathBuf::from(path));
    assert_eq!(
        paths(&plan.task.devices),
        [same("/dev/acme0"), same("/dev/acmectl")]
    );
    assert_eq!(plan.task.cdi_devices, ["acme.com/tpu=acme0"]);
    let library = |plan: &Plan| {
        let mut mounts = plan
            .task
            .mounts
            .iter()
            .filter(|mount| mount.destination.ends_with("opt/acme"));
        (
            mounts.next().map(|mount| mount.source.clone()),
            mounts.count(),
        )
    };
    assert!(
        matches!(library(&plan), (Some(MountSource::Host { path, .. }), 0) if path.ends_with("opt/acme"))
    );
    assert_eq!(
        fixture
            .driver
            .with_lease_devices(plan.clone())
            .expect("it is leased"),
        plan,
        "a second time changes nothing"
    );
    let tokens = |plan: &Plan| plan.task.leases.len();
    let has_lease_variable = plan
        .task
        .env
        .iter()
        .any(|variable| variable.name.starts_with("SWITCHYARD_LEASE_"));
    assert_eq!(
        (tokens(&plan), has_lease_variable),
        (1, false),
        "the task itself has no use for the token"
    );
    // Entries that the agent has forwarded, and those of the job, stay as they are.
    request.devices = vec![nomad::Device {
        task_path: "/dev/acmectl".to_owned(),
        host_path: "/dev/other".to_owned(),
        cgroup_permissions: "r".to_owned(),
    }];
    request.mounts = vec![nomad::Mount {
        task_path: "/opt/acme".to_owned(),
        host_path: "/var/own".to_owned(),
        ..Default::default()
    }];
    let plan = equip(&request);
    let other = (PathBuf::from("/dev/other"), PathBuf::from("/dev/acmectl"));
    assert_eq!(paths(&plan.task.devices), [other, same("/dev/acme0")]);
    assert!(
        matches!(library(&plan), (Some(MountSource::Host { path, .. }), 0) if path.ends_with("var/own"))
    );
    request
        .env
        .insert("SWITCHYARD_LEASE_01234567".to_owned(), "0".repeat(32));
    assert_eq!(
        tokens(&equip(&request)),
        1,
        "a variable of the job's own is no lease"
    );
}

#[tokio::test]
async fn running_task_keeps_its_device_across_daemon_restart() {
    let fixture = fixture_with_devices().await;
    let request = fixture.leased("00000001", &fixture.reserve().await);
    fixture.start(&request).await.expect("it starts");
    let fixture = fixture.restarted().await;
    fixture.equip().await;
    let text = refused(&fixture.pods()).await;
    assert!(text.contains(&request.id), "{text}");
    fixture.start(&request).await.expect("it runs");
    assert_eq!(fixture.fake.count(Method::CreateTask), 0);
}

#[tokio::test]
async fn unknown_lease_is_rejected_as_recoverable() {
    let fixture = fixture_with_devices().await;
    let unknown = BTreeMap::from([("SWITCHYARD_LEASE_01234567".to_owned(), "01234567".repeat(4))]);
    let kubelets = fixture
        .pods()
        .devices()
        .lease(&["acme0".parse().unwrap()])
        .await
        .expect("it is free")
        .token
        .to_string();
    let kubelets = BTreeMap::from([(format!("SWITCHYARD_LEASE_{}", &kubelets[..8]), kubelets)]);
    let events = fixture
        .driver
        .task_events(call(nomad::TaskEventsRequest {}))
        .await
        .expect("there is a session");
    let mut events = events.into_inner();
    for env in [unknown, kubelets] {
        let refused = fixture
            .start(&fixture.leased("00000001", &env))
            .await
            .expect_err("it is nobody's of Nomad");
        assert_eq!(
            (refused.code(), refused.details().is_empty()),
            (Code::FailedPrecondition, false)
        );
        assert!(refused.message().contains("lease"), "{refused:?}");
        assert_eq!(fixture.fake.remaining_objects(), Vec::<String>::new());
        loop {
            let event = events
                .next()
                .await
                .expect("it is open")
                .expect("it is an event");
            if event.message.starts_with("Cannot start yet: the lease ") {
                break;
            }
        }
    }
}

#[tokio::test]
async fn malformed_lease_is_rejected_by_name() {
    let fixture = fixture_with_devices().await;
    let token = "01234567".repeat(4);
    for (name, value) in [
        ("SWITCHYARD_LEASE_", token.as_str()),
        ("SWITCHYARD_LEASE_76543210", &token),
        ("SWITCHYARD_LEASE_0123456", &token),
        ("SWITCHYARD_LEASE_01234567", ""),
        ("SWITCHYARD_LEASE_01234567", "01234567"),
        ("SWITCHYARD_LEASE_01234567", &token[..31]),
        ("SWITCHYARD_LEASE_01234567", &format!("{token}0")),
        ("SWITCHYARD_LEASE_ABCDEF01", &"ABCDEF01".repeat(4)),
        (
            "SWITCHYARD_LEASE_../../..",
            "../../../../../../../../../../..",
        ),
    ] {
        let env = BTreeMap::from([(name.to_owned(), value.to_owned())]);
        let refused = fixture
            .start(&fixture.leased("00000001", &env))
            .await
            .expect_err("it is malformed");
        assert_eq!(
            (refused.code(), refused.details().is_empty()),
            (Code::InvalidArgument, true)
        );
        assert!(
            refused
                .message()
                .starts_with(&format!("task.device_env[{name:?}]: ")),
            "{refused:?}"
        );
    }
    let digits = |number: u32| format!("{number:08x}");
    let many = (0..1025)
        .map(|n| {
            (
                format!("SWITCHYARD_LEASE_{}", digits(n)),
                digits(n).repeat(4),
            )
        })
        .collect();
    let refused = fixture
        .start(&fixture.leased("00000001", &many))
        .await
        .expect_err("they are too many");
    assert!(
        refused
            .message()
            .ends_with("the task has 1024 leases of devices without it, and may have 1024")
    );
    assert_eq!(fixture.fake.count(Method::CreateSandbox), 0);
}

#[tokio::test]
async fn task_start_with_an_unhealthy_leased_device_is_rejected() {
    let fixture = fixture().await;
    let (tell, inventories) = watch::channel(Some(Arc::new(devices(&["acme0"], 1))));
    fixture.gateway.devices().watch(inventories);
    let given = fixture.reserve().await;
    tell.send_replace(Some(Arc::new(devices(&["acme9"], 1))));
    let mut view = fixture.gateway.scope(Owner::Nomad).devices().subscribe();
    let knows = |view: &Option<Arc<Inventory>>| {
        view.as_ref()
            .is_some_and(|view| view.groups[0].devices.len() == 2)
    };
    view.wait_for(knows).await.expect("the gateway lives");
    let refused = fixture
        .start(&fixture.leased("00000001", &given))
        .await
        .expect_err("it was pulled out");
    assert_eq!(
        (refused.code(), refused.details().is_empty()),
        (Code::FailedPrecondition, false)
    );
    assert!(
        refused.message().contains("acme0") && refused.message().contains("not there"),
        "{refused:?}"
    );
    tell.send_replace(Some(Arc::new(devices(&["acme0", "acme9"], 1))));
    view.wait_for(|view| {
        let all = view.iter().flat_map(|view| &view.groups[0].devices);
        all.filter(|device| device.health == Health::Healthy)
            .count()
            == 2
    })
    .await
    .expect("the gateway lives");
    fixture
        .start(&fixture.leased("00000001", &given))
        .await
        .expect("it is there again");
}
