//! The device plugin as an agent uses it: the devices it lists, what a task is given, and what works without
//! the daemon.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use switchyard_proto::nomad::base::proto as base;
use switchyard_proto::nomad::device as nomad;
use switchyard_proto::nomad::device::device_plugin_client::DevicePluginClient;
use switchyard_proto::nomad::drivers::proto as driver;
pub(crate) use switchyard_tests::devices::make_device;
use switchyard_tests::node::TestNode;
use switchyard_tests::nomad::agent::{install_plugins, socket_args};
use switchyard_tests::nomad::plugin::GRACE;
use switchyard_tests::nomad::{Agent, PluginProcess};
use switchyard_tests::root::PrivateRoot;
use tokio::runtime::Runtime;
use tonic::{Code, Status, Streaming};

/// Time for which an agent waits for the exit of a plugin whose calls fail.
const EXIT_WAIT: Duration = Duration::from_secs(3);
/// Time for news to arrive.
const SOON: Duration = Duration::from_secs(20);

/// A device plugin that was launched as an agent does it.
pub(crate) struct LaunchedDevicePlugin {
    plugin: PluginProcess,
    runtime: Arc<Runtime>,
}

impl LaunchedDevicePlugin {
    pub(crate) fn launch(root: &PrivateRoot) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = Arc::new(runtime.expect("a runtime can be made"));
        let plugin = PluginProcess::launch(
            &install_plugins(root).join("switchyard-device"),
            &socket_args(root),
            &runtime,
        );
        let plugin = plugin.unwrap_or_else(|failed| panic!("it does not start: {failed:?}"));
        let info = plugin.info().expect("it says what it is");
        assert_eq!(
            (info.r#type(), info.plugin_api_versions),
            (base::PluginType::Device, vec!["v0.1.0".to_owned()])
        );
        assert_eq!(
            plugin.config_schema().expect("it says what it takes").spec,
            None,
            "it takes nothing"
        );
        Self { plugin, runtime }
    }

    fn call<T>(
        &self,
        call: impl AsyncFnOnce(
            DevicePluginClient<tonic::transport::Channel>,
        ) -> Result<tonic::Response<T>, Status>,
    ) -> Result<T, Status> {
        let client = DevicePluginClient::new(self.plugin.channel());
        self.runtime
            .block_on(async { Ok(call(client).await?.into_inner()) })
    }

    fn fingerprint(&self) -> Streaming<nomad::FingerprintResponse> {
        let asked =
            self.call(async |mut client| client.fingerprint(nomad::FingerprintRequest {}).await);
        asked.expect("it is opened")
    }

    pub(crate) fn reserve(&self, ids: &[&str]) -> Result<nomad::ContainerReservation, Status> {
        let device_ids = ids.iter().map(|id| (*id).to_owned()).collect();
        let answer = self
            .call(async |mut client| client.reserve(nomad::ReserveRequest { device_ids }).await)?;
        Ok(answer
            .container_res
            .expect("an agent falls over without it"))
    }

    /// The next message of a stream that does not end.
    #[track_caller]
    fn next<T>(&self, stream: &mut Streaming<T>) -> T {
        let next = self
            .runtime
            .block_on(async { tokio::time::timeout(SOON, stream.message()).await });
        next.expect("it comes soon")
            .expect("it is no error")
            .expect("it does not end")
    }

    /// Reads on until the devices are these, each with its health.
    #[track_caller]
    fn wait(&self, stream: &mut Streaming<nomad::FingerprintResponse>, wanted: &[(&str, bool)]) {
        loop {
            let latest = self.next(stream);
            let devices = latest.device_group.iter().flat_map(|group| &group.devices);
            // The id of a node in a directory of a test has that directory before its name.
            let name = |id: &'_ str| id.rsplit('_').next().unwrap_or_default().to_owned();
            let now: Vec<_> = devices
                .map(|device| (name(&device.id), device.healthy))
                .collect();
            let wanted: Vec<_> = wanted
                .iter()
                .map(|(name, healthy)| ((*name).to_owned(), *healthy))
                .collect();
            if now == wanted {
                return;
            }
        }
    }
}

/// A node with two devices, of a group that may have more.
fn node_with_devices() -> TestNode {
    TestNode::start_configured(|root| {
        let dir = root.path().join("dev");
        std::fs::create_dir(&dir).expect("the root can be written");
        for name in ["acme0", "acme1", "acmectl"] {
            make_device(&dir.join(name));
        }
        format!(
            "[[devices.groups]]\nvendor = \"acme\"\ntype = \"tpu\"\nname = \"v2\"\npaths = [\"{0}/acme[0-9]\"]\n\
             shared = [\"{0}/acmectl\"]\nenv = \"ACME_DEVICES\"\nattributes = {{ memory = \"16 GiB\" }}\n",
            dir.display()
        )
    })
}

#[test]
fn fingerprint_follows_devices_and_task_gets_reserved_ones() {
    let node = node_with_devices();
    let dir = node.root().path().join("dev");
    let devices = LaunchedDevicePlugin::launch(node.root());
    let mut stream = devices.fingerprint();
    devices.wait(&mut stream, &[("acme0", true), ("acme1", true)]);
    make_device(&dir.join("acme2"));
    devices.wait(
        &mut stream,
        &[("acme0", true), ("acme1", true), ("acme2", true)],
    );
    std::fs::remove_file(dir.join("acme2")).expect("it is ours");
    devices.wait(
        &mut stream,
        &[("acme0", true), ("acme1", true), ("acme2", false)],
    );
    // By its path, as agents know it that learned of it from earlier versions.
    let id = dir.join("acme1").display().to_string();
    let given = devices.reserve(&[&id]).expect("it is there");
    assert_eq!(devices.reserve(&[&id]).expect("it is there still"), given);
    assert!(given.mounts.is_empty(), "{given:?}");
    let gone = devices
        .reserve(&[&dir.join("acme2").display().to_string()])
        .expect_err("it is gone");
    assert_eq!(gone.code(), Code::FailedPrecondition, "{gone}");
    let unknown = devices
        .reserve(&[&dir.join("acme3").display().to_string()])
        .expect_err("it never was");
    assert_eq!(unknown.code(), Code::NotFound, "{unknown}");

    let agent = Agent::start(node.root(), &json!({}));
    let script = format!(
        "echo $ACME_DEVICES; ls {0}; echo x > {0}/acme1 && echo written",
        dir.display()
    );
    let mut task = super::shell(&node, &agent, &script);
    task.config.device_env.extend(given.envs.clone());
    task.config.env.extend(given.envs);
    task.config.devices = given
        .devices
        .into_iter()
        .map(
            |nomad::DeviceSpec {
                 task_path,
                 host_path,
                 permissions,
             }| driver::Device {
                task_path,
                host_path,
                cgroup_permissions: permissions,
            },
        )
        .collect();
    let driver = agent.driver();
    driver.start(&task.config).expect("it starts");
    driver.wait(task.id(), SOON).expect("it ends");
    task.wait_stdout(|text| text == format!("{id}\nacme1\nacmectl\nwritten\n"));
    driver
        .destroy(task.id(), true)
        .expect("it can be destroyed");
    task.remove_cgroups();

    let request = nomad::StatsRequest {
        collection_interval: None,
    };
    let mut stats = devices
        .call(async |mut client| client.stats(request).await)
        .expect("it is opened");
    for _ in 0..2 {
        let response = devices.next(&mut stats);
        let all = &response.groups[0].instance_stats;
        assert_eq!(all.len(), 3);
        assert!(
            all.values()
                .all(|stats| stats.timestamp.is_some() && stats.summary.is_some()),
            "{response:?}"
        );
    }
    drop((stream, stats));
    assert!(devices.plugin.kill(), "it ends when it is asked to");
}

#[test]
fn empty_fingerprint_is_sent_at_once_and_plugin_exits_with_daemon() {
    let node = TestNode::start();
    let mut devices = LaunchedDevicePlugin::launch(node.root());
    let mut stream = devices.fingerprint();
    assert_eq!(
        devices.next(&mut stream),
        nomad::FingerprintResponse::default()
    );
    node.daemon().kill9();
    // An agent that saw the end of the stream alone would drop all devices for good.
    assert!(
        devices.plugin.exit(EXIT_WAIT).is_some(),
        "it has not ended within {EXIT_WAIT:?}"
    );
    // Started while the daemon is away it has no devices, and the next daemon's as soon as that is there.
    let again = LaunchedDevicePlugin::launch(node.root());
    let mut stream = again.fingerprint();
    assert_eq!(
        again.next(&mut stream),
        nomad::FingerprintResponse::default()
    );
    node.daemon().restart();
    assert!(again.reserve(&["/dev/none"]).is_err());
    assert!(
        again.plugin.kill(),
        "it ends when it is asked to, within {GRACE:?}"
    );
}
