//! The section `[registry]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The longest name of a host or registry, in bytes: that of a DNS name, and a port.
const MAX_NAME: usize = 253 + 6;

/// `[registry]`: how registries are accessed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryConfig {
    /// Directories with a `<host>/hosts.toml` for each registry, as containerd's `certs.d`; the first that
    /// has one for the host is used.
    pub config_dirs: Vec<PathBuf>,
    /// A download that receives no byte for this long is aborted and retried, in seconds.
    pub idle_timeout_seconds: u64,
    /// True if a registry that is accessed with TLS may redirect downloads that are verified by digest to
    /// plain HTTP.
    pub allow_http_redirects: bool,
    /// Maximum number of concurrent requests for one large layer, each for a range of it.
    pub parallel_ranges: usize,
    /// Settings that are given here for hosts of `hosts.toml` files, by their names with ports.
    pub hosts: BTreeMap<String, RegistryHost>,
}

/// `[registry.hosts."NAME"]`: what `hosts.toml` has no key for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RegistryHost {
    /// The registry whose credentials the host gets, when it is asked for an image of that registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_credentials_of: Option<String>,
}

impl Default for RegistryConfig {
    fn default() -> Self {
        Self {
            config_dirs: vec![
                "/etc/switchyard/certs.d".into(),
                "/etc/containerd/certs.d".into(),
            ],
            idle_timeout_seconds: 60,
            allow_http_redirects: false,
            parallel_ranges: 4,
            hosts: BTreeMap::new(),
        }
    }
}

impl RegistryConfig {
    /// Checks the names of hosts and registries.
    ///
    /// # Errors
    /// The key that is wrong, and why.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let named = self.hosts.iter().flat_map(|(host, settings)| {
            let RegistryHost {
                send_credentials_of,
            } = settings;
            std::iter::once(host).chain(send_credentials_of)
        });
        let wrong = named.into_iter().find(|name| !is_host(name));
        wrong.map_or(Ok(()), |name| {
            let why = format!(
                "{name:?} is no host as in \"mirror.example:5000\": its name, and a port if it is not that of https, without scheme and path"
            );
            Err(("hosts", why))
        })
    }

    /// The registry whose credentials a host gets, by the name of the host.
    pub(crate) fn credentials_of(&self) -> BTreeMap<String, String> {
        let hosts = self.hosts.iter();
        hosts
            .filter_map(|(host, settings)| {
                let registry = settings.send_credentials_of.clone()?;
                Some((host.clone(), registry))
            })
            .collect()
    }
}

fn is_host(name: &str) -> bool {
    let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_registries_are_names_with_ports() {
        let check = |host: &str, registry: Option<&str>| {
            let settings = RegistryHost {
                send_credentials_of: registry.map(str::to_owned),
            };
            let config = RegistryConfig {
                hosts: BTreeMap::from([(host.to_owned(), settings)]),
                ..RegistryConfig::default()
            };
            config.check()
        };
        for (host, registry) in [
            ("mirror.example", None),
            ("mirror.example:5000", Some("docker.io")),
            ("[2001:db8::1]:5000", Some("registry.example:5000")),
        ] {
            check(host, registry).unwrap();
        }
        let long = "x".repeat(MAX_NAME + 1);
        for (host, registry) in [
            ("https://mirror.example", None),
            ("mirror.example/v2", Some("docker.io")),
            ("", Some("docker.io")),
            (long.as_str(), Some("docker.io")),
            ("mirror.example", Some("https://registry.example")),
            ("mirror.example", Some("")),
            ("mirror.example", Some("docker.io/library")),
        ] {
            let (key, why) = check(host, registry).unwrap_err();
            assert!(key == "hosts" && why.contains("is no host"), "{why}");
        }
    }
}
