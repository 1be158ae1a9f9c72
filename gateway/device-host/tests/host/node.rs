//! A node with a gateway that hosts plugins and offers their devices to a kubelet.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_contract::specs;
use switchyard_core::device::{Device, Health, Inventory};
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::id::{LeaseToken, Owner};
use switchyard_core::spec::{LeaseClaim, TaskSpec};
use switchyard_core::{Error, Result};
use switchyard_device_host::{
    Config, Host, Hosted, PluginState, ReservedNames, ResourceConfig, inventory,
};
use switchyard_device_plugin::Frontend;
use switchyard_fake::{BUSYBOX, Fake};
use switchyard_kubelet::vendor::VendorPlugin;
use switchyard_kubelet::{Kubelet, Options, RunOptions};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) const GPU: &str = "acme.com/gpu";

/// Vendor's ids that are valid as our ids too.
pub(crate) const IDS: [&str; 3] = ["GPU-8a2f3c11-0", "GPU-8a2f3c11-1", "GPU-8a2f3c11-2"];

pub(crate) struct HostFixture {
    pub(crate) gateway: Gateway,
    pub(crate) hosted: Hosted,
    pub(crate) fake: Fake,
    hardware: watch::Sender<Option<Arc<Inventory>>>,
    stop: CancellationToken,
    dir: TempDir,
}

impl Drop for HostFixture {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl HostFixture {
    /// A node without configured devices.
    pub(crate) async fn new() -> Self {
        Self::with(Inventory::default()).await
    }

    /// A node with these configured groups.
    pub(crate) async fn with(inventory: Inventory) -> Self {
        Self::configured(inventory, Vec::new()).await
    }

    /// A node with these configured groups and these settings of resources.
    pub(crate) async fn configured(inventory: Inventory, resources: Vec<ResourceConfig>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let fake = Fake::with_local_busybox().await;
        let taken = ReservedNames {
            resources: inventory
                .groups
                .iter()
                .map(|group| group.resource.clone())
                .collect(),
            names: vec![[
                "taken.com".to_owned(),
                "gpu".to_owned(),
                "default".to_owned(),
            ]],
        };
        let config = Config {
            enabled: true,
            directory: dir.path().join("host"),
            resources,
        };
        let hosted = Hosted::new(taken, &config);
        let gateway = Gateway::new(Arc::new(fake.clone()), Limits::default());
        let (hardware, inventories) = watch::channel(Some(Arc::new(inventory)));
        gateway.devices().set_provider(Arc::new(hosted.clone()));
        gateway.devices().watch(inventory::merged(
            inventories,
            hosted.groups(),
            stop.clone(),
        ));
        gateway.recover().await.unwrap();
        tokio::spawn(Host::new(hosted.clone(), config).serve(stop.clone()));
        let config = switchyard_device_plugin::Config {
            directory: dir.path().join("kubelet"),
            pod_resources_socket: dir.path().join("none"),
            ..Default::default()
        };
        tokio::spawn(Frontend::new(gateway.scope(Owner::Kubernetes), config).serve(stop.clone()));
        let node = Self {
            gateway,
            hosted,
            fake,
            hardware,
            stop,
            dir,
        };
        // The file is there before anybody listens.
        let registry = node.directory().join("kubelet.sock");
        until("plugins can register", || {
            UnixStream::connect(&registry).is_ok()
        })
        .await;
        node
    }

    /// The directory in which plugins register.
    pub(crate) fn directory(&self) -> PathBuf {
        self.dir.path().join("host")
    }

    /// Changes the configured devices.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Inventory)) {
        self.hardware.send_modify(|inventory| {
            let mut next = inventory.as_deref().cloned().unwrap_or_default();
            change(&mut next);
            *inventory = Some(Arc::new(next));
        });
    }

    /// A plugin that has registered.
    pub(crate) async fn vendor(&self, name: &str, ids: &[&str]) -> VendorPlugin {
        let vendor = VendorPlugin::start(&self.directory(), name, GPU, ids);
        vendor.register().await.unwrap();
        vendor
    }

    /// A kubelet, once it knows `healthy` healthy devices of the resource.
    pub(crate) async fn kubelet(&self, healthy: usize) -> Kubelet {
        let kubelet = Kubelet::start(&self.dir.path().join("kubelet"), Options::default());
        kubelet
            .wait_until("they are offered", |kubelet| {
                kubelet.capacity(GPU).1 == healthy
            })
            .await;
        kubelet
    }

    /// The devices of the resource as an owner sees them, once the condition holds.
    pub(crate) async fn seen(&self, owner: Owner, so: impl Fn(&[Device]) -> bool) -> Vec<Device> {
        let mut view = self.gateway.scope(owner).devices().subscribe();
        let of_it = |inventory: &Inventory| {
            let group = inventory.groups.iter().find(|group| group.resource == GPU);
            group.map(|group| group.devices.clone()).unwrap_or_default()
        };
        let seen = view.wait_for(|now| now.as_deref().is_some_and(|now| so(&of_it(now))));
        let seen = tokio::time::timeout(Duration::from_secs(20), seen)
            .await
            .expect("it comes to that");
        of_it(seen.unwrap().as_deref().unwrap())
    }

    /// Waits until Nomad sees `count` healthy devices.
    pub(crate) async fn healthy(&self, count: usize) {
        self.seen(Owner::Nomad, |devices| {
            devices
                .iter()
                .filter(|device| device.health == Health::Healthy)
                .count()
                == count
        })
        .await;
    }

    /// Creates and starts a task with a lease, in a sandbox of its own; returns the sandbox and the spec of
    /// the task.
    pub(crate) async fn run(
        &self,
        owner: Owner,
        name: &str,
        token: LeaseToken,
    ) -> Result<(String, TaskSpec)> {
        let scope = self.gateway.scope(owner);
        let sandbox = scope
            .sandboxes()
            .create(specs::sandbox(owner, name))
            .await?
            .id
            .to_string();
        let spec = self.task(owner, &sandbox, name, token).await?;
        Ok((sandbox, spec))
    }

    /// Creates and starts a task with a lease.
    pub(crate) async fn task(
        &self,
        owner: Owner,
        sandbox: &str,
        name: &str,
        token: LeaseToken,
    ) -> Result<TaskSpec> {
        let scope = self.gateway.scope(owner);
        let mut spec = specs::task(owner, name, BUSYBOX, &["serve"]);
        spec.leases = vec![LeaseClaim::new(token)];
        let task = scope.tasks().create(sandbox, spec).await?;
        scope.tasks().start(&task.id.to_string()).await?;
        self.fake
            .spec(task.id)
            .ok_or_else(|| Error::internal("it was just made"))
    }

    /// The number of plugins in a state.
    pub(crate) fn count(&self, state: PluginState) -> usize {
        self.hosted.report().count(state)
    }

    /// Returns the number of failures of a kind.
    pub(crate) fn failures(&self, word: &str) -> u64 {
        let report = self.hosted.report();
        report
            .failures
            .iter()
            .find(|(name, _)| *name == word)
            .expect("it is one")
            .1
    }
}

/// The token of the lease in an answer to Allocate.
pub(crate) fn token(options: &RunOptions) -> LeaseToken {
    let mut tokens = options
        .annotations
        .keys()
        .filter_map(|key| key.strip_prefix("devices.switchyard.io/"));
    tokens
        .next()
        .expect("there is a token")
        .parse()
        .expect("it is one")
}

/// The value of an environment variable.
pub(crate) fn variable<'a>(spec: &'a TaskSpec, name: &str) -> Option<&'a str> {
    let found = spec.env.iter().find(|variable| variable.name == name)?;
    Some(std::str::from_utf8(&found.value).unwrap())
}

pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let condition = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), condition)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

/// The names of the files in a directory.
pub(crate) fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap().flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
