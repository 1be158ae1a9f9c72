//! Tests of devices and host ports on the admin socket and on the command line.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use http::{Method, StatusCode};
use switchyard_contract::specs;
use switchyard_core::ErrorKind;
use switchyard_core::device::{Device, DeviceGroup, Health, node as device_node};
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::object::{Sandbox, Task};
use switchyard_core::spec::{
    ComputeClaim, CpuList, HostPort, HostPorts, LeaseClaim, Protocol, Reserved, Resources,
    SandboxSpec, TaskSpec,
};
use switchyard_daemon::reports::plugins;
use switchyard_device_host::{LastError, PluginReport, PluginState, Report};
use switchyard_operator::control::{PluginHost, Reporter};
use switchyard_operator::metrics::ReportedFigures;
use switchyard_operator::status::Part;
use switchyard_operator_api::text::short;
use switchyard_operator_api::{AmountView, ComputeView, DevicesView, HostView};

use super::node::{CAPACITY, TestNode, endless, labelled, pod};
use super::{Pages, run};

/// Two plugins, of which one has ended, and one that could not register.
fn reported() -> Report {
    let since = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let error = |text: &str| {
        Some(LastError {
            at: since,
            text: text.into(),
        })
    };
    let gpu = PluginReport {
        resource: "acme.com/gpu".into(),
        endpoint: "gpu.sock".into(),
        state: PluginState::Connected,
        since,
        devices: 3,
        healthy: 2,
        last_error: None,
    };
    let nic = PluginReport {
        resource: "acme.com/nic".into(),
        endpoint: "nic.sock".into(),
        state: PluginState::Ended,
        devices: 4,
        healthy: 0,
        last_error: error("it has ended its ListAndWatch"),
        ..gpu.clone()
    };
    Report {
        fault: None,
        plugins: vec![gpu, nic],
        refused: error("nobody listens on x.sock"),
        failures: vec![("late", 3)],
    }
}

/// The holdings of a job and a pod on a node, on which the names of objects come from their labels.
pub(super) struct Held {
    /// The task `jobs/train` of Nomad, with a slot and the processors 2 and 3.
    pub(super) train: Arc<Task>,
    /// The pod `shop/web`, with a port of the host.
    pub(super) web: Arc<Sandbox>,
    /// The lease of the slot of the task.
    pub(super) bound: LeaseToken,
    /// A lease of Nomad, of another slot of the same device.
    pub(super) unbound: LeaseToken,
}

/// Hosts the plugins of the report.
pub(super) struct VendorPlugins;

/// Three devices, which two tasks may share; the last one is gone.
fn group() -> DeviceGroup {
    let device = |number: u8| {
        Device::new(
            &format!("acme-{number}"),
            device_node(format!("/dev/acme{number}").into(), "rw"),
        )
    };
    let gone = Device {
        health: Health::Gone,
        ..device(2)
    };
    DeviceGroup {
        shares: 2,
        devices: vec![device(0), device(1), gone],
        ..DeviceGroup::new("acme", "tpu", "v2")
    }
}

// === impl Held ===

impl Held {
    /// Gives a node three devices, and creates their holders. Three requests of Kubernetes for a slot are refused.
    pub(super) async fn on(node: &TestNode) -> Self {
        node.add_devices([group()]).await;
        let bound = node.lease(Owner::Nomad, "acme-0::0").await.unwrap();
        let unbound = node.lease(Owner::Nomad, "acme-0::1").await.unwrap();
        for _ in 0..3 {
            let refused = node
                .lease(Owner::Kubernetes, "acme-0::0")
                .await
                .unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::FailedPrecondition);
        }
        let job = specs::sandbox(Owner::Nomad, "train");
        let meta = labelled(job.meta.clone(), "display", "jobs/train");
        let job = node.sandbox(SandboxSpec { meta, ..job }).await;
        let task = TaskSpec {
            leases: vec![LeaseClaim::new(bound)],
            resources: Resources {
                cpuset_cpus: CpuList::new("2-3").ok(),
                ..Resources::default()
            },
            compute: ComputeClaim {
                reserved: Reserved {
                    cpu_milli: 2550,
                    memory_bytes: 256 << 20,
                },
                exclusive_cpus: true,
            },
            ..endless(Owner::Nomad, "train")
        };
        let train = node.start(&job, task).await;
        let port = HostPort {
            protocol: Protocol::Tcp,
            port: 8080,
            ip: None,
        };
        let web = SandboxSpec {
            meta: labelled(pod().meta, "display", "shop/web"),
            host_ports: HostPorts {
                group: "uid".into(),
                ports: vec![port],
            },
            ..pod()
        };
        let web = node.sandbox(web).await;
        Self {
            train,
            web,
            bound,
            unbound,
        }
    }

    /// The pages about such a node.
    async fn pages() -> (Pages, Self) {
        let node = TestNode::new()
            .await
            .named_by_labels()
            .with_plugins(Arc::new(VendorPlugins));
        let held = Self::on(&node).await;
        (Pages::serve(node).await, held)
    }
}

// === impl VendorPlugins ===

impl PluginHost for VendorPlugins {
    fn view(&self) -> Option<HostView> {
        Some(plugins::view(reported()))
    }
}

impl Reporter for VendorPlugins {
    fn parts(&self) -> Vec<Part> {
        Vec::new()
    }

    fn count(&self, figures: &mut ReportedFigures) {
        figures.plugins = Some(plugins::figures(&reported()));
    }
}

#[tokio::test]
async fn device_and_port_holders_are_served_on_the_unix_socket_only() {
    let (
        pages,
        Held {
            train,
            web,
            bound,
            unbound,
        },
    ) = Held::pages().await;
    let (status, body) = pages.get("/v1/devices").await;
    assert_eq!(status, StatusCode::OK);
    let devices: DevicesView = serde_json::from_str(&body).unwrap();
    assert_eq!(devices, pages.node.node().named_devices());
    assert!(devices.ready);
    let group = &devices.groups[0];
    assert_eq!((group.capacity, group.free, group.held[0].slots), (4, 2, 2));
    assert_slots_have_their_holders(&devices, &train, bound, unbound);
    let port = &devices.ports[0];
    assert_eq!(
        (port.sandbox.clone(), port.display_name.as_str()),
        (web.id.to_string(), "shop/web")
    );
    assert_eq!(
        (port.name.as_str(), port.group.as_str()),
        ("web_shop_u1_0", "uid")
    );
    assert_cores_have_their_holder(&devices.compute, &train);
    assert_eq!(
        (
            devices.refusals[0].reason.as_str(),
            devices.refusals[0].count
        ),
        ("held", 3)
    );
    let json: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(json["groups"][0]["type"], "tpu");
    assert_eq!(json["slots"][0]["holders"][0]["state"], "bound");
    assert_eq!(json["ports"][0]["address"], serde_json::Value::Null);
    assert_eq!(json["compute"]["reserved"][0]["cpu_milli"], 2550);
    assert_eq!(
        json["host"]["plugins"][1]["last_error"]["error"],
        "it has ended its ListAndWatch"
    );
    assert!(
        pages
            .get_tcp("/v1/devices")
            .await
            .starts_with("HTTP/1.1 404")
    );
}

fn assert_cores_have_their_holder(compute: &ComputeView, train: &Task) {
    let Reserved {
        cpu_milli,
        memory_bytes,
    } = CAPACITY;
    assert_eq!(
        compute.capacity,
        Some(AmountView {
            cpu_milli,
            memory_bytes
        })
    );
    let exclusive = &compute.exclusive[0];
    assert_eq!(
        (exclusive.cpus.as_str(), &exclusive.task),
        ("2-3", &train.id.to_string())
    );
    assert_eq!(
        (exclusive.count, exclusive.display_name.as_str()),
        (2, "jobs/train")
    );
}

fn assert_slots_have_their_holders(
    devices: &DevicesView,
    train: &Task,
    bound: LeaseToken,
    unbound: LeaseToken,
) {
    let slots: Vec<_> = devices
        .slots
        .iter()
        .map(|slot| (slot.id.as_str(), slot.healthy))
        .collect();
    let expected = [
        ("acme-0::0", true),
        ("acme-0::1", true),
        ("acme-1::0", true),
        ("acme-1::1", true),
        ("acme-2::0", false),
        ("acme-2::1", false),
    ];
    assert_eq!(slots, expected);
    assert_eq!(devices.slots[5].reason, "it is not there any more");
    let holder = &devices.slots[0].holders[0];
    assert_eq!(
        (holder.name.as_str(), holder.display_name.as_str()),
        ("train", "jobs/train")
    );
    assert_eq!(
        (holder.sandbox.clone(), &holder.token),
        (Some(train.sandbox.to_string()), &bound.to_string())
    );
    let holder = &devices.slots[1].holders[0];
    assert_eq!(
        (holder.state.as_str(), &holder.token),
        ("unbound", &unbound.to_string())
    );
    assert_eq!((&holder.sandbox, holder.display_name.as_str()), (&None, ""));
}

#[tokio::test]
async fn lease_is_released_on_the_unix_socket_by_token_only() {
    let (pages, Held { bound, unbound, .. }) = Held::pages().await;
    let path = |token: &str| format!("/v1/devices/leases/{token}");
    let ours = path(&unbound.to_string());
    let words = format!("DELETE {ours} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    assert!(pages.say(&words).await.starts_with("HTTP/1.1 404"));
    assert_eq!(pages.get(&ours).await.0, StatusCode::METHOD_NOT_ALLOWED);
    let holders = || pages.node.node().devices().slots[1].holders.len();
    assert_eq!(holders(), 1);
    assert_eq!(
        pages.ask(Method::DELETE, &ours).await,
        (StatusCode::NO_CONTENT, String::new())
    );
    assert_eq!(holders(), 0);
    let (status, why) = pages.ask(Method::DELETE, &path(&bound.to_string())).await;
    assert_eq!(
        (status, why.contains("is in use by train of nomad")),
        (StatusCode::CONFLICT, true),
        "{why}"
    );
    for wrong in ["07", "..%2f..", &"0G".repeat(16), &"a".repeat(4000)] {
        let (status, why) = pages.ask(Method::DELETE, &path(wrong)).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{why}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn command_line_shows_devices_and_ports_and_releases_leases() {
    let (
        pages,
        Held {
            train,
            web,
            bound,
            unbound,
        },
    ) = Held::pages().await;
    let socket = pages.socket();
    let output = run(&["devices", "--socket", &socket]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let since = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let days = since.elapsed().unwrap().as_secs() / (24 * 60 * 60);
    let expected = format!(
        "SLOT       GROUP        STATE      OWNER  NAME        LEASE\n\
         acme-0::0  acme/tpu/v2  bound      nomad  jobs/train  {bound}\n\
         acme-0::1  acme/tpu/v2  unbound    nomad  -           {unbound}\n\
         acme-1::0  acme/tpu/v2  free       -      -           -\n\
         acme-1::1  acme/tpu/v2  free       -      -           -\n\
         acme-2::0  acme/tpu/v2  unhealthy  -      -           -\n\
         acme-2::1  acme/tpu/v2  unhealthy  -      -           -\n\
         \n\
         HOST PORT  ADDRESS  OWNER       SANDBOX        NAME\n\
         8080/tcp   all      kubernetes  {web}  shop/web\n\
         \n\
         RESERVED BY  PROCESSORS  MEMORY\n\
         nomad        2.55        256 MiB\n\
         (the node)   8.00        16384 MiB\n\
         \n\
         EXCLUSIVE CORES  OWNER  SANDBOX        NAME\n\
         2-3              nomad  {train}  jobs/train\n\
         \n\
         PLUGIN OF     SOCKET    STATE      FOR    HEALTHY  LAST ERROR\n\
         acme.com/gpu  gpu.sock  connected  {days}d  2 of 3   -\n\
         acme.com/nic  nic.sock  ended      {days}d  0 of 4   2023-11-14T22:13:20.000Z it has ended its ListAndWatch\n\
         The last plugin that could not register: 2023-11-14T22:13:20.000Z nobody listens on x.sock\n\
         \n\
         UNHEALTHY DEVICE  REASON\n\
         acme-2            it is not there any more\n",
        web = short(&web.id.to_string()),
        train = short(&train.sandbox.to_string()),
    );
    assert_eq!(text, expected);
    let output = run(&["devices", "--output", "json", "--socket", &socket]).await;
    let shown = serde_json::from_slice::<DevicesView>(&output.stdout).unwrap();
    assert_eq!(shown, pages.node.node().named_devices());

    assert_unused_leases_are_released(&pages, bound, unbound).await;
}

/// A lease that a task has is not released.
async fn assert_unused_leases_are_released(pages: &Pages, bound: LeaseToken, unbound: LeaseToken) {
    let other = pages
        .node
        .lease(Owner::Kubernetes, "acme-1::0")
        .await
        .unwrap()
        .to_string();
    let unbound = unbound.to_string();
    let socket = pages.socket();
    for (token, args) in [
        (
            &unbound,
            ["devices", "release", &unbound, "--socket", &socket],
        ),
        (&other, ["devices", "--socket", &socket, "release", &other]),
    ] {
        let output = run(&args).await;
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            format!("released {token}\n")
        );
        assert_eq!(output.status.code(), Some(0));
    }
    let output = run(&[
        "devices",
        "release",
        &bound.to_string(),
        "--socket",
        &socket,
    ])
    .await;
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is in use by train of nomad"), "{stderr}");
    let output = run(&["devices", "release", "07", "--socket", &socket]).await;
    assert_eq!(
        output.status.code(),
        Some(2),
        "a token that is none is wrong usage"
    );
}
