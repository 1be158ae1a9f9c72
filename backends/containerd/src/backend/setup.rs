//! Values that are detected or created once, when the backend is set up.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use switchyard_cni as cni;
use switchyard_core::backend::BackendObserver;
use switchyard_core::{Error, Result, threads};
use switchyard_linux::{cgroups, report};
use switchyard_namespaces as namespaces;
use switchyard_registry as registry;
use switchyard_runtime_spec::{self as runtime_spec, Host};

use crate::base::config::{CgroupDriverChoice, ContainerdConfig, NetworkConfig, Settings};
use crate::base::crash_points::Faults;
use crate::base::epoch;
use crate::base::fs::read_kernel_sysctl;
use crate::base::layout::Layout;
use crate::client::Client;
use crate::client::features::ContainerdFeatures;
use crate::context::Context;
use crate::image::layer_sync::LayerSync;
use crate::image::lease::Leases;
use crate::image::{ContainerdImageStore, ImagePolicy, Snapshotters};
use crate::network::plugin_runs::PluginRuns;
use crate::node::apparmor::profile::DEFAULT_PROFILE;

/// Makes the data about the node and its configuration that all components share. Creates the directories of
/// the layout.
pub(super) fn context(
    settings: Settings,
    faults: Faults,
    observer: Arc<dyn BackendObserver>,
) -> Result<Context> {
    let layout = Layout::new(&settings.state, &settings.run);
    layout.create_private_dirs()?;
    namespaces::set_program_dir(&layout.infra());
    Ok(Context {
        no_mount_setattr: no_mount_setattr(),
        epoch: epoch::load_or_begin(layout.run()),
        layout,
        host: detect_host(&settings)?,
        host_name: read_kernel_sysctl("hostname")?,
        boot: read_kernel_sysctl("random/boot_id")?,
        faults,
        observer,
        settings: settings.into(),
    })
}

/// Tries mount_setattr(2). Returns the reason why it cannot be used; `None` if it can be, or that cannot be found out now.
fn no_mount_setattr() -> Option<String> {
    match namespaces::try_mount_setattr() {
        Ok(()) => None,
        Err(namespaces::Error::Helper { said }) => Some(said),
        Err(error) => {
            tracing::warn!(error = report(&error), "cannot try mount_setattr");
            None
        }
    }
}

/// Refuses a default runtime that is not configured.
pub(super) fn check_default_runtime(config: &ContainerdConfig) -> Result<()> {
    if config.runtimes.contains_key(&config.default_runtime) {
        return Ok(());
    }
    let why = format!(
        "containerd.runtimes.{} is not configured",
        config.default_runtime
    );
    Err(Error::invalid("containerd.default_runtime", why))
}

/// The features of this node, as far as the settings use them.
fn detect_host(settings: &Settings) -> Result<Host> {
    let driver = cgroup_driver(settings.cgroup.driver);
    let mut host = Host::detect(driver, DEFAULT_PROFILE)
        .map_err(|fault| Error::internal("detect the features of the node").with_source(fault))?;
    host.selinux = host.selinux.filter(|_| settings.containerd.selinux);
    Ok(host)
}

const _: () = assert!(
    cni::THREADS == threads::PLUGIN_POOL,
    "the division of the process's threads counts those of plugins"
);

/// The CNI plugins, with the time that each may take, of the instance whose run directory this is. Their runs are reported to
/// `observer`.
pub(super) fn cni_plugins(
    config: &NetworkConfig,
    run: &Path,
    observer: &Arc<dyn BackendObserver>,
) -> cni::Plugins {
    let limit = Duration::from_secs(config.plugin_timeout_seconds.max(1));
    let limits = cni::Limits {
        plugin: limit,
        undo: limit,
    };
    let runs = PluginRuns::new(Arc::clone(observer));
    cni::Plugins::new(config.bin_dirs.clone(), limits)
        .of_instance(run)
        .observed(Arc::new(runs))
}

/// The cgroup driver for this node. With `auto` it is systemd where systemd runs and the hierarchy is unified
/// (cgroup v2): there systemd owns the tree, and a runtime must not create cgroups behind its back.
fn cgroup_driver(wanted: CgroupDriverChoice) -> runtime_spec::CgroupDriver {
    let systemd_runs = Path::new("/run/systemd/system").is_dir();
    match wanted {
        CgroupDriverChoice::Systemd => runtime_spec::CgroupDriver::Systemd,
        CgroupDriverChoice::Auto if systemd_runs && cgroups::is_unified() => {
            runtime_spec::CgroupDriver::Systemd
        }
        CgroupDriverChoice::Auto | CgroupDriverChoice::Cgroupfs => runtime_spec::CgroupDriver::Fs,
    }
}

/// The store of images on this containerd, which decompresses archives on the disk of `scratch`.
pub(super) fn image_store(
    client: &Client,
    settings: &Settings,
    features: ContainerdFeatures,
    leases: Leases,
    layer_sync: LayerSync,
    scratch: PathBuf,
) -> ContainerdImageStore {
    let registry = registry::Client::new(registry_config(settings));
    let policy = image_policy(settings, registry);
    ContainerdImageStore::new(
        client.clone(),
        features,
        policy,
        leases,
        layer_sync,
        scratch,
    )
}

/// The configuration of the registry client that the settings describe.
fn registry_config(settings: &Settings) -> registry::Config {
    registry::Config {
        hosts_dirs: settings.registry.config_dirs.clone(),
        idle_timeout: Duration::from_secs(settings.registry.idle_timeout_seconds.max(1)),
        http_redirects: settings.registry.allow_http_redirects,
        credentials_of: settings.registry.credentials_of(),
        ranges: registry::RangeConfig {
            at_once: settings.registry.parallel_ranges.max(1),
            ..registry::RangeConfig::default()
        },
        limits: settings.images.limits(),
        ..registry::Config::default()
    }
}

/// The registry client of these settings: the present one, with its connections and tokens, unless its
/// configuration differs.
pub(super) fn registry_client(settings: &Settings, present: &registry::Client) -> registry::Client {
    let config = registry_config(settings);
    if *present.config() == config {
        present.clone()
    } else {
        registry::Client::new(config)
    }
}

/// The image policy that the settings describe.
pub(super) fn image_policy(settings: &Settings, registry: registry::Client) -> ImagePolicy {
    ImagePolicy {
        registry,
        snapshotters: snapshotters(&settings.containerd),
        downloads: settings.containerd.max_concurrent_downloads.max(1),
        pins: settings.images.pinned.clone(),
        limits: settings.images.limits(),
        check_free_space: settings.images.check_free_space,
    }
}

/// The snapshotters that image layers are unpacked into: the default one, and those that a runtime handler
/// names.
fn snapshotters(config: &ContainerdConfig) -> Snapshotters {
    let by_handler = config
        .runtimes
        .iter()
        .filter(|(_, runtime)| !runtime.snapshotter.is_empty())
        .map(|(name, runtime)| (name.clone(), runtime.snapshotter.clone()))
        .collect();
    Snapshotters {
        default: config.snapshotter.clone(),
        by_handler,
    }
}
