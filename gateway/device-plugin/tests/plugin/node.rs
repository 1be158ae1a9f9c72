//! A node under test: a fake backend, a gateway, the frontend, and a directory for kubelets.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_core::device::{Device, DeviceGroup, Inventory, node};
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::Owner;
use switchyard_device_plugin::{Config, Frontend, Registrations};
use switchyard_fake::Fake;
use switchyard_kubelet::{Kubelet, Options};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(crate) const TPU: &str = "acme.com/tpu";

pub(crate) struct PluginFixture {
    pub(crate) gateway: Gateway,
    pub(crate) registrations: Registrations,
    config: Config,
    hardware: watch::Sender<Option<Arc<Inventory>>>,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    dir: TempDir,
}

impl Drop for PluginFixture {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl PluginFixture {
    /// A node with these devices, and a running frontend.
    pub(crate) async fn with(inventory: Inventory) -> Self {
        Self::configured(inventory, |_, _| {}).await
    }

    /// A node with another configuration of the frontend.
    pub(crate) async fn configured(
        inventory: Inventory,
        configure: impl FnOnce(&mut Config, &Path),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            directory: dir.path().join("device-plugins"),
            pod_resources_socket: dir.path().join("pod-resources/kubelet.sock"),
            ..Config::default()
        };
        configure(&mut config, dir.path());
        let fake = Fake::with_local_busybox().await;
        let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
        let (hardware, inventories) = watch::channel(Some(Arc::new(inventory)));
        gateway.devices().watch(inventories);
        gateway.recover().await.unwrap();
        let frontend = Frontend::new(gateway.scope(Owner::Kubernetes), config.clone())
            .listing_each(Duration::from_millis(50));
        let stop = CancellationToken::new();
        let registrations = frontend.registrations();
        let serving = tokio::spawn(frontend.serve(stop.clone()));
        Self {
            gateway,
            registrations,
            config,
            hardware,
            stop,
            serving,
            dir,
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.config.directory
    }

    /// A path in the node's temporary directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A kubelet that starts for the first time.
    pub(crate) fn kubelet(&self) -> Kubelet {
        Kubelet::start(self.directory(), Options::default())
    }

    /// A kubelet, once `resources` resources are registered with it.
    pub(crate) async fn followed(&self, resources: usize) -> Kubelet {
        let kubelet = self.kubelet();
        registered(&kubelet, resources).await;
        kubelet
    }

    /// Waits until the frontend counts this many of its resources as followed.
    pub(crate) async fn follows(&self, resources: usize) {
        let followed = async {
            while self.registrations.followed() != resources {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), followed)
            .await
            .expect("they are followed");
    }

    /// Changes the inventory.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Inventory)) {
        self.hardware.send_modify(|inventory| {
            let mut next = inventory.as_deref().cloned().unwrap_or_default();
            change(&mut next);
            *inventory = Some(Arc::new(next));
        });
    }

    /// Changes the first group of the inventory.
    pub(crate) fn change_group(&self, change: impl FnOnce(&mut DeviceGroup)) {
        self.change(|inventory| change(Arc::make_mut(&mut inventory.groups[0])));
    }

    /// Ends the frontend, as the daemon does on shutdown.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(10), &mut self.serving).await;
        ended.expect("it ends").unwrap();
        let left: Vec<_> = std::fs::read_dir(self.directory())
            .unwrap()
            .flatten()
            .collect();
        let ours = |entry: &std::fs::DirEntry| {
            entry
                .file_name()
                .to_string_lossy()
                .starts_with("switchyard-")
        };
        assert!(!left.iter().any(ours), "{left:?}");
    }

    /// The path of the plugin's socket that was registered last for a resource.
    pub(crate) fn endpoint(&self, kubelet: &Kubelet, resource: &str) -> PathBuf {
        let all = kubelet.registrations();
        let last = all
            .iter()
            .rev()
            .find(|registered| registered.resource == resource);
        self.directory()
            .join(&last.expect("it is registered").endpoint)
    }
}

/// Waits until a kubelet has the devices of this many resources.
pub(crate) async fn registered(kubelet: &Kubelet, resources: usize) {
    kubelet
        .wait_until("the resources are registered", |kubelet| {
            let all = kubelet.registrations();
            all.len() >= resources && all.iter().all(|one| kubelet.capacity(&one.resource).1 > 0)
        })
        .await;
}

/// A group with this many devices, each with `shares` slots.
pub(crate) fn group(resource: &str, devices: usize, shares: u16) -> DeviceGroup {
    let name = resource.replace(['.', '/'], "-");
    let device = |number: usize| Device {
        cdi: vec![format!("{resource}={number}")],
        numa_node: u32::try_from(number % 2).ok(),
        ..Device::new(
            &format!("{name}-{number:03}"),
            node(format!("/dev/{name}{number}").into(), "rw"),
        )
    };
    let mut devices: Vec<Device> = (0..devices).map(device).collect();
    devices.sort_by(|one, other| one.id.cmp(&other.id));
    DeviceGroup {
        resource: resource.to_owned(),
        shares,
        devices,
        variable: "DEVICES".to_owned(),
        ..DeviceGroup::new("acme", "tpu", &name)
    }
}

pub(crate) fn inventory(groups: impl IntoIterator<Item = DeviceGroup>) -> Inventory {
    Inventory::of(groups)
}
