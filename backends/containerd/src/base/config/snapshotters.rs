//! The snapshotters that the section `[containerd]` names, and `[containerd.proxy_plugins]`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{ContainerdConfig, ContainerdMode};

/// The snapshotters that are part of containerd, also where it was built or configured without them. All others are processes
/// of their own.
pub(crate) const OF_CONTAINERD: [&str; 8] = [
    "aufs",
    "blockfile",
    "btrfs",
    "devmapper",
    "erofs",
    "native",
    "overlayfs",
    "zfs",
];

/// The longest name of a plugin, in bytes.
const MAX_NAME: usize = 76;

/// The longest path of a unix socket that the kernel accepts, without the final NUL.
const MAX_SOCKET: usize = 107;

/// The most proxy plugins; a node has one or two.
const MAX_PROXIES: usize = 16;

/// `[containerd.proxy_plugins.NAME]`: a plugin of the managed containerd that is a process of its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ProxyPlugin {
    /// Its kind.
    #[serde(rename = "type")]
    pub type_: ProxyPluginType,
    /// The socket on which it listens.
    pub address: PathBuf,
}

/// The kind of a proxy plugin, in containerd's words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProxyPluginType {
    /// A snapshotter.
    #[default]
    Snapshot,
}

// === impl ProxyPluginType ===

impl ProxyPluginType {
    /// containerd's word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
        }
    }
}

// === impl ContainerdConfig ===

impl ContainerdConfig {
    /// The names of all snapshotters that are configured: the default one, and those of runtime handlers.
    #[must_use]
    pub fn snapshotters(&self) -> BTreeSet<&str> {
        let of_handlers = self
            .runtimes
            .values()
            .map(|runtime| runtime.snapshotter.as_str());
        std::iter::once(self.snapshotter.as_str())
            .chain(of_handlers.filter(|name| !name.is_empty()))
            .collect()
    }

    /// The snapshotter without which the node runs nothing that names no handler.
    pub(crate) fn needed_snapshotter(&self) -> &str {
        let of_default = self.runtimes.get(&self.default_runtime);
        of_default
            .map(|runtime| runtime.snapshotter.as_str())
            .filter(|name| !name.is_empty())
            .unwrap_or(&self.snapshotter)
    }

    /// Checks the proxy plugins.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn check_proxy_plugins(&self) -> Result<(), (String, String)> {
        let fault = |key: &str, why: String| Err((format!("proxy_plugins{key}"), why));
        if self.proxy_plugins.is_empty() {
            return Ok(());
        }
        if self.mode == ContainerdMode::External {
            let why = "is only used with containerd.mode = \"managed\": an external containerd has proxy plugins in its own configuration";
            return fault("", why.to_owned());
        }
        if self.proxy_plugins.len() > MAX_PROXIES {
            return fault("", format!("has more than {MAX_PROXIES} entries"));
        }
        for (name, plugin) in &self.proxy_plugins {
            if !is_name(name) {
                let why = format!(
                    "{name:?} is no name of a plugin: letters, digits, `-` and `_`, at most {MAX_NAME}"
                );
                return fault("", why);
            }
            if OF_CONTAINERD.contains(&name.as_str()) {
                let why = format!(
                    "{name:?} is a snapshotter of containerd itself, which does not start with two of one name"
                );
                return fault("", why);
            }
            let address = &plugin.address;
            let has_parent = address.components().any(|part| part.as_os_str() == "..");
            let is_socket =
                address.is_absolute() && !has_parent && address.as_os_str().len() <= MAX_SOCKET;
            if !is_socket {
                let why = format!(
                    "{:?} is no absolute path without `..` of at most {MAX_SOCKET} bytes, for a socket",
                    address.display().to_string()
                );
                return fault(&format!(".{name}.address"), why);
            }
        }
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::base::config::Runtime;

    fn with(name: &str, address: &str) -> ContainerdConfig {
        let plugin = ProxyPlugin {
            address: address.into(),
            ..ProxyPlugin::default()
        };
        ContainerdConfig {
            proxy_plugins: BTreeMap::from([(name.to_owned(), plugin)]),
            ..ContainerdConfig::default()
        }
    }

    #[test]
    fn proxy_plugins_have_names_and_sockets_of_their_own() {
        for (name, address) in [
            (
                "stargz",
                "/run/containerd-stargz-grpc/containerd-stargz-grpc.sock",
            ),
            ("fuse-overlayfs", "/run/fuse.sock"),
            ("nydus_2", "/run/containerd-nydus/grpc.sock"),
        ] {
            with(name, address).check_proxy_plugins().unwrap();
        }
        let long = format!("/run/{}", "x".repeat(MAX_SOCKET));
        for (name, address, key) in [
            ("", "/run/x.sock", "proxy_plugins"),
            ("a.b", "/run/x.sock", "proxy_plugins"),
            ("a\n[grpc]", "/run/x.sock", "proxy_plugins"),
            ("overlayfs", "/run/x.sock", "proxy_plugins"),
            ("native", "/run/x.sock", "proxy_plugins"),
            ("stargz", "", "proxy_plugins.stargz.address"),
            ("stargz", "run/x.sock", "proxy_plugins.stargz.address"),
            ("stargz", "/run/../x.sock", "proxy_plugins.stargz.address"),
            ("stargz", long.as_str(), "proxy_plugins.stargz.address"),
        ] {
            let fault = with(name, address).check_proxy_plugins().unwrap_err();
            assert_eq!(fault.0, key, "{name:?} {address}: {}", fault.1);
        }
        let mut external = with("stargz", "/run/x.sock");
        external.mode = ContainerdMode::External;
        assert!(external.check_proxy_plugins().is_err());
        let mut many = with("stargz", "/run/x.sock");
        let plugin = many.proxy_plugins["stargz"].clone();
        many.proxy_plugins =
            BTreeMap::from_iter((0..=MAX_PROXIES).map(|n| (format!("p{n}"), plugin.clone())));
        assert!(many.check_proxy_plugins().is_err());
    }

    #[test]
    fn snapshotters_are_those_of_the_section_and_of_its_handlers() {
        let mut config = ContainerdConfig::default();
        assert_eq!(config.snapshotters(), BTreeSet::from(["overlayfs"]));
        assert_eq!(config.needed_snapshotter(), "overlayfs");
        let lazy = Runtime {
            snapshotter: "stargz".to_owned(),
            ..Runtime::default()
        };
        config.runtimes.insert("lazy".to_owned(), lazy);
        config.snapshotter = "zfs".to_owned();
        assert_eq!(config.snapshotters(), BTreeSet::from(["stargz", "zfs"]));
        assert_eq!(config.needed_snapshotter(), "zfs");
        config.default_runtime = "lazy".to_owned();
        assert_eq!(config.needed_snapshotter(), "stargz");
    }
}
