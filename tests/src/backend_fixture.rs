//! Runs our backend on a real containerd in the test's own process, with all state in a private root.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use switchyard_containerd::config::{
    AdvisoriesConfig, BridgeConfig, CgroupConfig, ContainerdConfig, ContainerdMode, DevicesConfig,
    ImagesConfig, NetworkConfig, PodNetworkChoice, RecoveryConfig, RegistryConfig, Runtime,
};
use switchyard_containerd::crash_points::Faults;
use switchyard_containerd::{Containerd, Settings};
use switchyard_contract::{Fixture, clear};
use switchyard_core::backend::Backend;
use switchyard_core::id::Owner;
use switchyard_core::spec::{CgroupPlacement, SandboxSpec};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::external_containerd::ExternalContainerd;
use crate::host::eventually;
use crate::image::busybox;
use crate::leak_scan::{LeakScan, NAMESPACE, orphaned_content};
use crate::prereq;
use crate::registry::Registry;
use crate::root::PrivateRoot;

/// The image that tests of the fixture run.
const IMAGE: &str = "library/busybox:latest";
/// Limit for the logkeeper to listen.
const START: Duration = Duration::from_secs(30);
/// Limit for the removal of content and snapshots that belong to no image.
const CLEAR_LIMIT: Duration = Duration::from_secs(20);

/// A backend under test with the containerd, logkeeper and registry that it works on. If no test failed,
/// dropping it removes everything that the test created and then fails when anything is left behind.
#[derive(Debug)]
pub struct BackendFixture {
    backend: Mutex<Arc<Containerd>>,
    faults: Faults,
    settings: Settings,
    registry: Registry,
    logkeeper: InProcessLogkeeper,
    containerd: ExternalContainerd,
    // Must be the last field: dropping the root removes the files that the other fields use.
    root: PrivateRoot,
}

/// A logkeeper on a thread of the test's own process.
#[derive(Debug)]
struct InProcessLogkeeper {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BackendFixture {
    /// Starts a registry, a containerd, a logkeeper and a backend. Must be called within a tokio runtime.
    ///
    /// # Panics
    /// If a prerequisite is missing (its package is named) or something does not start.
    #[must_use]
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    /// As [`BackendFixture::new`], with other settings of the backend.
    ///
    /// # Panics
    /// As [`BackendFixture::new`].
    #[must_use]
    pub fn with(change: impl FnOnce(&mut Settings)) -> Self {
        let root = PrivateRoot::new();
        let registry = Registry::start();
        registry.push(IMAGE, &busybox().build());
        let mut settings = settings(&root);
        change(&mut settings);
        let containerd = ExternalContainerd::start(&root, &settings.address);
        let keeper = InProcessLogkeeper::start(&root, &settings);
        let faults = Faults::default();
        let backend = Mutex::new(Arc::new(open(&settings, &faults)));
        Self {
            backend,
            faults,
            settings,
            registry,
            logkeeper: keeper,
            containerd,
            root,
        }
    }

    /// A new backend with other settings, as after a restart of the daemon with another configuration.
    #[must_use]
    pub fn reopen_with(&self, change: impl FnOnce(&mut Settings)) -> Arc<dyn Backend> {
        let mut settings = self.settings.clone();
        change(&mut settings);
        *self.backend.lock() = Arc::new(open(&settings, &self.faults));
        self.backend()
    }

    /// The private root.
    #[must_use]
    pub const fn root(&self) -> &PrivateRoot {
        &self.root
    }

    /// The registry, which has the fixture's image.
    #[must_use]
    pub const fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The handle by which a test makes steps of the backend fail.
    #[must_use]
    pub const fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The backend's settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }
}

impl BackendFixture {
    /// Removes all objects and images; fails when anything is left on the node or in containerd's store.
    #[track_caller]
    fn assert_leaves_nothing(&self) {
        if !LeakScan::of(&self.root).is_clean() {
            Handle::current().block_on(clear(self));
        }
        let socket = self
            .root
            .containerd_socket()
            .expect("containerd has been started");
        let mut left = Vec::new();
        eventually(CLEAR_LIMIT, || {
            left = orphaned_content(&socket, NAMESPACE);
            left.is_empty()
        });
        assert!(
            left.is_empty(),
            "stored for no image:\n  {}",
            left.join("\n  ")
        );
    }
}

impl Default for BackendFixture {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BackendFixture {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            tokio::task::block_in_place(|| self.assert_leaves_nothing());
        }
        self.logkeeper.stop();
        // Dropping the root kills shims and containers. containerd is killed first, so that it does not see
        // them exit.
        self.containerd.kill();
    }
}

fn settings(root: &PrivateRoot) -> Settings {
    Settings {
        // No runtime that has to be probed: the probe would still run in the test's process when the fixture
        // is dropped.
        containerd: ContainerdConfig {
            mode: ContainerdMode::Managed,
            runtimes: BTreeMap::from([("runc".to_owned(), Runtime::default())]),
            ..ContainerdConfig::default()
        },
        network: NetworkConfig {
            conf_dir: root.cni_conf(),
            bin_dirs: vec![prereq::CNI_BIN_DIR.into()],
            bridge: BridgeConfig {
                name: root.bridge().name().to_owned(),
                subnets: vec![root.bridge().subnet()],
                addresses_dir: root.bridge().data_dir().to_owned(),
                // It depends on the node on which a test runs.
                ipv6: false,
                ..BridgeConfig::default()
            },
            ..NetworkConfig::default()
        },
        pod_network: PodNetworkChoice::default(),
        devices: DevicesConfig {
            cdi_spec_dirs: vec![root.cdi()],
        },
        images: ImagesConfig::default(),
        registry: RegistryConfig {
            config_dirs: vec![root.certs()],
            ..RegistryConfig::default()
        },
        cgroup: CgroupConfig {
            default_parent: root.cgroup_name(),
            ..CgroupConfig::default()
        },
        advisories: AdvisoriesConfig::default(),
        recovery: RecoveryConfig {
            grace_milliseconds: 1000,
            ..RecoveryConfig::default()
        },
        address: root.run().join("containerd/containerd.sock"),
        state: root.state(),
        run: root.run(),
        logkeeper: root.run().join("logkeeper.sock"),
        check_request: |_, _| Ok(()),
    }
}

fn open(settings: &Settings, faults: &Faults) -> Containerd {
    Containerd::connect_with_faults(settings.clone(), faults.clone())
        .expect("the settings of a test can work")
}

impl InProcessLogkeeper {
    fn start(root: &PrivateRoot, settings: &Settings) -> Self {
        let state = root.run().join("logkeeper");
        fs::create_dir_all(&state).expect("the scratch directory can be written");
        let config = switchyard_logkeeper::Config::new(&settings.logkeeper, state);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            let stopped = async { drop(stopped.await) };
            runtime
                .expect("a runtime can be made")
                .block_on(switchyard_logkeeper::Server::run(&config, stopped))
                .expect("a logkeeper can run in a fresh directory");
        });
        assert!(
            eventually(START, || settings.logkeeper.exists()),
            "the logkeeper does not listen"
        );
        Self {
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic has been printed already.
            let _ = thread.join();
        }
    }
}

#[async_trait]
impl Fixture for BackendFixture {
    fn backend(&self) -> Arc<dyn Backend> {
        Arc::clone(&*self.backend.lock()) as Arc<dyn Backend>
    }

    fn image(&self) -> String {
        self.registry.reference(IMAGE)
    }

    fn sandbox_spec(&self, name: &str) -> SandboxSpec {
        SandboxSpec {
            cgroup: CgroupPlacement::Parent(self.root.cgroup_parent().into()),
            ..switchyard_contract::specs::sandbox(Owner::Host, name)
        }
    }

    async fn reopen(&self) -> Arc<dyn Backend> {
        self.reopen_with(|_| {})
    }

    async fn remaining_objects(&self) -> Vec<String> {
        tokio::task::block_in_place(|| LeakScan::of(&self.root).findings)
    }
}
