//! Checks of values beyond their types.

use std::path::Path;

use switchyard_core::spec::OomScoreAdj;
use switchyard_cri::is_runtime_name;
use switchyard_devices::Group;
use switchyard_linux::report;
use switchyard_nomad::HEALTHY_SLOTS;
use switchyard_telemetry::parse_level;

use super::devices::DevicesConfig;
use super::sections::{Config, CriConfig};
use super::{ContainerdMode, ImagesConfig};

mod admin;
mod distinct;
mod streaming;

/// The longest path of a unix socket that the kernel accepts, without the final NUL.
const SOCKET_PATH_MAX: usize = 107;

/// The largest manifest or configuration of an image: it is written to containerd in one message, which may
/// have 16 MiB.
const DOCUMENT_MAX: u64 = 15 << 20;

/// The most ranges that the registry client downloads ahead, of all layers.
const RANGES_MAX: usize = 12;

/// The dotted key of an invalid value, and the reason.
type Fault = (String, String);

/// Checks all values.
pub(super) fn check(config: &Config) -> Result<(), Fault> {
    let fault = |key: &str, why: String| Err((key.to_owned(), why));
    for (key, path) in paths(config) {
        absolute(key, path)?;
    }
    for (key, path) in config.devices.kubelet.paths() {
        absolute(&format!("devices.kubelet.{key}"), path)?;
    }
    check_socket_paths(config)?;
    distinct::check(config)?;
    admin::check(&config.admin)?;
    if let Err((key, why)) = config.cgroup.check() {
        return fault(&format!("cgroup.{key}"), why);
    }
    if let Err(error) = parse_level(&config.log.level) {
        return fault("log.level", report(&error));
    }
    let containerd = &config.containerd;
    if !containerd
        .runtimes
        .contains_key(&containerd.default_runtime)
    {
        let known: Vec<_> = containerd.runtimes.keys().map(String::as_str).collect();
        let why = format!(
            "{:?} is not one of the configured runtimes: {}",
            containerd.default_runtime,
            known.join(", ")
        );
        return fault("containerd.default_runtime", why);
    }
    for (name, runtime) in &containerd.runtimes {
        if let Err((key, why)) = runtime.check() {
            return fault(&format!("containerd.runtimes.{name}.{key}"), why);
        }
    }
    if let Err((key, why)) = containerd.check_proxy_plugins() {
        return fault(&format!("containerd.{key}"), why);
    }
    if !is_identifier(&containerd.namespace) {
        let why = format!(
            "{:?} is no containerd namespace: letters, digits, and `-`, `_`, `.` between them, at most 76",
            containerd.namespace
        );
        return fault("containerd.namespace", why);
    }
    check_devices(&config.devices)?;
    if let Err((key, why)) = config.network.check() {
        return fault(&format!("network.{key}"), why);
    }
    if let Err((key, why)) = config.swarm.check() {
        return fault(&format!("swarm.{key}"), why);
    }
    if let Err((key, why)) = config.registry.check() {
        return fault(&format!("registry.{key}"), why);
    }
    if let Err(why) = config.advisories.check() {
        return fault("advisories.ignore", why);
    }
    if let Err(error) = OomScoreAdj::new(config.managed.oom_score) {
        return fault("managed.oom_score", error.to_string());
    }
    check_at_least_one(config)?;
    check_images(&config.images)?;
    check_cri(&config.cri)?;
    check_parallel_ranges(config.registry.parallel_ranges)?;
    if config.logkeeper.mode == ContainerdMode::External && config.logkeeper.state_dir.is_some() {
        return fault(
            "logkeeper.state_dir",
            "is only used with logkeeper.mode = \"managed\"".into(),
        );
    }
    Ok(())
}

/// Refuses socket paths that the kernel would refuse.
fn check_socket_paths(config: &Config) -> Result<(), Fault> {
    // A socket without a path of its own is in the run directory.
    let key = |key, is_set: bool| if is_set { key } else { "paths.run" };
    for (key, socket) in [
        (
            key("cri.socket", config.cri.socket.is_some()),
            config.cri_socket(),
        ),
        (
            key("nomad.socket", config.nomad.socket.is_some()),
            config.nomad_socket(),
        ),
        (
            key(
                "containerd.address",
                config.containerd.mode == ContainerdMode::External,
            ),
            config.containerd_socket(),
        ),
        (
            key("logkeeper.socket", config.logkeeper.socket.is_some()),
            config.logkeeper_socket(),
        ),
        ("paths.run", config.paths.admin_socket()),
    ] {
        let length = socket.as_os_str().len();
        if length > SOCKET_PATH_MAX {
            let why = format!(
                "the socket path {} has {length} bytes, but the kernel allows {SOCKET_PATH_MAX}: choose a shorter one",
                socket.display()
            );
            return Err((key.to_owned(), why));
        }
    }
    Ok(())
}

/// Checks `[devices]`.
fn check_devices(devices: &DevicesConfig) -> Result<(), Fault> {
    let fault = |key: &str, why: String| Err((key.to_owned(), why));
    if let Err(error) = Group::check(&devices.groups) {
        return fault("devices.groups", error.to_string());
    }
    if devices
        .groups
        .iter()
        .any(|group| group.attributes.contains_key(HEALTHY_SLOTS))
    {
        let why = format!(
            "attributes: {HEALTHY_SLOTS} is set by the gateway, as the count of healthy slots: use another name"
        );
        return fault("devices.groups", why);
    }
    if let Err((key, why)) = devices.kubelet.check() {
        return fault(&format!("devices.kubelet.{key}"), why);
    }
    let kubelets: Vec<&Path> = devices.kubelet.paths().map(|(_, path)| path).collect();
    if let Err((key, why)) = devices.host.check(&kubelets) {
        return fault(&format!("devices.host.{key}"), why);
    }
    let taken = devices.reserved_names();
    if let Some(resource) = devices
        .host
        .resources
        .iter()
        .find(|resource| taken.has(&resource.name))
    {
        let why = format!(
            "name: {} is a group of devices.groups, so that no plugin can register it: set the quota of that group, or rename the group",
            resource.name
        );
        return fault("devices.host.resources", why);
    }
    Ok(())
}

/// Maximum number of groups that a warning names.
const NAMED_GROUPS: usize = 5;

/// Warnings about values that are valid but probably not intended.
pub(super) fn warnings(config: &Config) -> Vec<Fault> {
    let is_shared = config.nomad.enabled && config.devices.kubelet.enabled;
    let shared = is_shared.then(|| shared_without_quota(&config.devices.groups));
    let zone = streaming::has_zone(config.admin.listen).then(|| {
        let why = format!(
            "browsers open no link to {}, an address with a zone: listen on another one to use the status page",
            config.admin.listen
        );
        ("admin.listen".to_owned(), why)
    });
    shared.flatten().into_iter().chain(zone).collect()
}

/// The warning about groups that kubelets and Nomad compete for; one for all of them, since a node can have
/// dozens.
fn shared_without_quota(groups: &[Group]) -> Option<Fault> {
    let shared: Vec<String> = groups
        .iter()
        .filter(|group| !group.resource.is_empty() && group.quota.is_empty())
        .map(|group| format!("{} (as {})", group.full_name(), group.resource))
        .collect();
    let more = match shared.len().saturating_sub(NAMED_GROUPS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = shared.get(..NAMED_GROUPS).unwrap_or(&shared).join(", ");
    let why = format!(
        "{named}{more}: offered to kubelets and to Nomad, and each device goes to the first that requests it: set \
         a quota for each group, such as quota = {{ kubernetes = 1, nomad = 1 }}"
    );
    (!shared.is_empty()).then(|| ("devices.groups".to_owned(), why))
}

/// Checks values that must not be 0.
fn check_at_least_one(config: &Config) -> Result<(), Fault> {
    let containerd = &config.containerd;
    for (key, is_zero) in [
        ("admin.max_connections", config.admin.max_connections == 0),
        (
            "managed.start_timeout_seconds",
            config.managed.start_timeout_seconds == 0,
        ),
        (
            "containerd.max_concurrent_downloads",
            containerd.max_concurrent_downloads == 0,
        ),
        (
            "containerd.answer_timeout_seconds",
            containerd.answer_timeout_seconds == 0,
        ),
        (
            "containerd.shim_timeout_seconds",
            containerd.shim_timeout_seconds == 0,
        ),
        (
            "network.plugin_timeout_seconds",
            config.network.plugin_timeout_seconds == 0,
        ),
        (
            "registry.idle_timeout_seconds",
            config.registry.idle_timeout_seconds == 0,
        ),
        (
            "images.max_account_file_bytes",
            config.images.max_account_file_bytes == 0,
        ),
        ("devices.lease_minutes", config.devices.lease_minutes == 0),
        (
            "devices.restart_grace_seconds",
            config.devices.restart_grace_seconds == 0,
        ),
        ("exec.max_output_bytes", config.exec.max_output_bytes == 0),
        ("exec.max_per_container", config.exec.max_per_container == 0),
        ("cri.max_connections", config.cri.max_connections == 0),
        ("cri.max_streams", config.cri.max_streams == 0),
        ("nomad.max_connections", config.nomad.max_connections == 0),
        (
            "cri.streaming.idle_timeout_seconds",
            config.cri.streaming.idle_timeout_seconds == 0,
        ),
    ] {
        if is_zero {
            return Err((key.to_owned(), "must be at least 1".into()));
        }
    }
    Ok(())
}

/// Checks the number of concurrent requests for one layer.
fn check_parallel_ranges(ranges: usize) -> Result<(), Fault> {
    if (1..=RANGES_MAX).contains(&ranges) {
        return Ok(());
    }
    let why = format!("{ranges} is not between 1, for one response, and {RANGES_MAX}");
    Err(("registry.parallel_ranges".to_owned(), why))
}

/// Checks the limits of images.
fn check_images(images: &ImagesConfig) -> Result<(), Fault> {
    let fault = |key: &str, why: String| Err((key.to_owned(), why));
    for (key, bytes) in [
        ("images.max_config_bytes", images.max_config_bytes),
        ("images.max_manifest_bytes", images.max_manifest_bytes),
    ] {
        if bytes == 0 {
            return fault(key, "must be at least 1".into());
        }
        if bytes > DOCUMENT_MAX {
            let why = format!(
                "{bytes} is more than containerd accepts in one message: at most {DOCUMENT_MAX}"
            );
            return fault(key, why);
        }
    }
    if images.max_layers == 0 {
        return fault("images.max_layers", "must be at least 1".into());
    }
    Ok(())
}

/// Checks the CRI server.
fn check_cri(cri: &CriConfig) -> Result<(), Fault> {
    if !is_runtime_name(&cri.runtime_name) {
        let why = format!(
            "{:?} is no name of a runtime: lower-case letters, digits, and `-` between them, at most 63, as \"containerd\"",
            cri.runtime_name
        );
        return Err(("cri.runtime_name".to_owned(), why));
    }
    streaming::check(&cri.streaming)
}

fn paths(config: &Config) -> Vec<(&'static str, &Path)> {
    let mut paths: Vec<(&str, &Path)> = vec![
        ("paths.state", &config.paths.state),
        ("paths.run", &config.paths.run),
        ("network.conf_dir", &config.network.conf_dir),
        (
            "network.bridge.addresses_dir",
            &config.network.bridge.addresses_dir,
        ),
        ("containerd.address", &config.containerd.address),
        ("devices.host.directory", &config.devices.host.directory),
        ("audit.file", &config.audit.file),
    ];
    paths.extend(
        config
            .network
            .bin_dirs
            .iter()
            .map(|dir| ("network.bin_dirs", dir.as_path())),
    );
    paths.extend(
        config
            .devices
            .cdi_spec_dirs
            .iter()
            .map(|dir| ("devices.cdi_spec_dirs", dir.as_path())),
    );
    paths.extend(
        config
            .registry
            .config_dirs
            .iter()
            .map(|dir| ("registry.config_dirs", dir.as_path())),
    );
    let optional = [
        ("cri.socket", &config.cri.socket),
        (
            "admin.metrics_tls_certificate",
            &config.admin.metrics_tls_certificate,
        ),
        ("admin.metrics_tls_key", &config.admin.metrics_tls_key),
        ("admin.metrics_client_ca", &config.admin.metrics_client_ca),
        (
            "admin.metrics_bearer_token_file",
            &config.admin.metrics_bearer_token_file,
        ),
        (
            "cri.streaming.tls_certificate",
            &config.cri.streaming.tls_certificate,
        ),
        ("cri.streaming.tls_key", &config.cri.streaming.tls_key),
        ("nomad.socket", &config.nomad.socket),
        ("swarm.join_token_file", &config.swarm.join_token_file),
        ("logkeeper.socket", &config.logkeeper.socket),
        ("logkeeper.state_dir", &config.logkeeper.state_dir),
    ];
    paths.extend(
        optional
            .into_iter()
            .filter_map(|(key, path)| Some((key, path.as_deref()?))),
    );
    paths
}

fn absolute(key: &str, path: &Path) -> Result<(), Fault> {
    let clean = !path.components().any(|part| part.as_os_str() == "..");
    if path.is_absolute() && clean && path != Path::new("/") {
        return Ok(());
    }
    Err((
        key.to_owned(),
        format!(
            "{:?} is not an absolute path without `..`",
            path.display().to_string()
        ),
    ))
}

/// containerd's rule for identifiers: `[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*`, at most 76 bytes.
fn is_identifier(text: &str) -> bool {
    text.len() <= 76
        && text
            .split(['.', '_', '-'])
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_plugins_are_written_in_one_line_or_as_tables_and_checked() {
        let with = |text: &str| toml::from_str::<Config>(&format!("version = 1\n{text}"));
        for text in [
            "[containerd.proxy_plugins.stargz]\naddress = \"/run/stargz.sock\"\n",
            "[containerd]\nproxy_plugins = { stargz = { type = \"snapshot\", address = \"/run/stargz.sock\" } }\n",
        ] {
            let config = with(text).unwrap();
            let plugin = &config.containerd.proxy_plugins["stargz"];
            assert_eq!(plugin.address, Path::new("/run/stargz.sock"), "{text}");
            assert_eq!(plugin.type_.as_str(), "snapshot");
            check(&config).unwrap();
        }
        for text in [
            "[containerd.proxy_plugins.x]\ntype = \"content\"\naddress = \"/x\"\n",
            "[containerd.proxy_plugins.x]\naddress = \"/x\"\nplatform = \"linux/amd64\"\n",
        ] {
            assert!(with(text).is_err(), "{text}");
        }
        for (text, wrong) in [
            (
                "[containerd.proxy_plugins.zfs]\naddress = \"/run/x.sock\"\n",
                "containerd.proxy_plugins",
            ),
            (
                "[containerd.proxy_plugins.x]\n",
                "containerd.proxy_plugins.x.address",
            ),
        ] {
            let (key, why) = check(&with(text).unwrap()).unwrap_err();
            assert_eq!(key, wrong, "{why}");
        }
    }

    #[test]
    fn parallel_ranges_are_bounded() {
        let fault = |ranges| {
            let mut config = Config::default();
            config.registry.parallel_ranges = ranges;
            check(&config).err()
        };
        for ranges in [1, 2, 4, 12] {
            assert_eq!(fault(ranges), None, "{ranges}");
        }
        for ranges in [0, 13, 1000, usize::MAX] {
            let fault = fault(ranges);
            assert!(
                fault
                    .as_ref()
                    .is_some_and(|(key, why)| key == "registry.parallel_ranges"
                        && why.contains(&format!("{ranges} is not between"))),
                "{fault:?}"
            );
        }
    }
}
