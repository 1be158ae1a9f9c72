//! What is found out or made once, when the backend is set up.

use std::time::Duration;

use switchyard_core::Result;
use switchyard_registry as registry;
use switchyard_runtime_spec as runtime_spec;

use crate::config::{CgroupDriverChoice, ContainerdConfig, Settings};
use crate::fs::{io_error, write_durable};
use crate::image::lease::getrandom_fill;
use crate::image::{ImagePolicy, Snapshotters};

/// The name of this gateway among those that may share a containerd: made once, kept in its state directory.
pub(super) fn instance(state: &std::path::Path) -> Result<String> {
    let path = state.join("instance");
    match std::fs::read_to_string(&path) {
        Ok(name) if !name.trim().is_empty() => return Ok(name.trim().to_owned()),
        Ok(_) => {}
        Err(fault) if fault.kind() == std::io::ErrorKind::NotFound => {}
        Err(fault) => return Err(io_error("read", &path, fault)),
    }
    let mut random = [0; 6];
    getrandom_fill(&mut random);
    let name = hex::encode(random);
    // Objects that bear the name are on disk before long: without it nobody would know them as ours after a power cut.
    write_durable(&path, name.as_bytes(), 0o600)?;
    Ok(name)
}

/// systemd makes cgroups where it runs and the hierarchy is unified; there a runtime must not do it beside it.
pub(super) fn cgroup_driver(wanted: CgroupDriverChoice) -> runtime_spec::CgroupDriver {
    let systemd_runs = std::path::Path::new("/run/systemd/system").is_dir();
    let unified = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    match wanted {
        CgroupDriverChoice::Systemd => runtime_spec::CgroupDriver::Systemd,
        CgroupDriverChoice::Auto if systemd_runs && unified => runtime_spec::CgroupDriver::Systemd,
        CgroupDriverChoice::Auto | CgroupDriverChoice::Cgroupfs => runtime_spec::CgroupDriver::Fs,
    }
}

/// The client of registries, as the settings have it.
pub(super) fn registry_of(settings: &Settings) -> registry::Client {
    registry::Client::new(registry::Config {
        hosts_dirs: settings.registry.config_dirs.clone(),
        idle_timeout: Duration::from_secs(settings.registry.idle_timeout_seconds.max(1)),
        http_redirects: settings.registry.allow_http_redirects,
        limits: settings.images.limits(),
        ..registry::Config::default()
    })
}

/// What the settings say of images.
pub(super) fn policy_of(settings: &Settings) -> ImagePolicy {
    ImagePolicy {
        downloads: settings.containerd.max_concurrent_downloads,
        pins: settings.images.pinned.clone(),
        limits: settings.images.limits(),
        check_free_space: settings.images.check_free_space,
    }
}

/// Where the layers of images go, by the handler that runs them.
pub(super) fn snapshotters(config: &ContainerdConfig) -> Snapshotters {
    let by_handler = config
        .runtimes
        .iter()
        .filter(|(_, runtime)| !runtime.snapshotter.is_empty())
        .map(|(name, runtime)| (name.clone(), runtime.snapshotter.clone()))
        .collect();
    Snapshotters { default: config.snapshotter.clone(), by_handler }
}
