//! Configuration: where plugins register, and the quotas of their resources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use switchyard_core::device::{quota, resource};
use switchyard_core::id::Owner;

/// The longest path of a unix socket that the kernel accepts, without the final NUL.
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// Bytes that the directory must leave for the names of plugins' sockets: generic-device-plugin's names are
/// this long.
const SOCKET_NAME_ROOM: usize = 64;

/// `[devices.host]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// True if vendors' device plugins can register.
    pub enabled: bool,
    /// The directory that replaces a kubelet's directory for device plugins; the daemon serves its
    /// kubelet.sock.
    pub directory: PathBuf,
    /// Settings of resources, whether a plugin has registered them or not.
    pub resources: Vec<ResourceConfig>,
}

/// `[[devices.host.resources]]`: a resource that plugins may register.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceConfig {
    /// The resource name, such as `nvidia.com/gpu`.
    pub name: String,
    /// Maximum number of its devices for each owner; an owner that is not named may hold all.
    #[serde(default)]
    pub quota: BTreeMap<String, usize>,
    /// The kind under which a swarm is offered its devices, such as `NVIDIA-GPU`; empty for its name.
    #[serde(default)]
    pub swarm_kind: String,
}

// === impl Config ===

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: false,
            directory: "/run/switchyard/device-plugins".into(),
            resources: Vec::new(),
        }
    }
}

impl Config {
    /// Checks the values. `kubelets` are the directories in which a kubelet's own plugins register.
    ///
    /// # Errors
    /// The wrong key, and why it is wrong.
    pub fn check(&self, kubelets: &[&Path]) -> Result<(), (&'static str, String)> {
        let most = SOCKET_PATH_MAX - SOCKET_NAME_ROOM - 1;
        let length = self.directory.as_os_str().len();
        if length > most {
            let why = format!(
                "the directory has {length} bytes, but {most} at most leave room for the paths of plugins' sockets: use a shorter one"
            );
            return Err(("directory", why));
        }
        if kubelets.contains(&self.directory.as_path()) {
            let why = format!(
                "{} is the kubelet's own directory: plugins that are to register here need another",
                self.directory.display()
            );
            return Err(("directory", why));
        }
        self.check_resources().map_err(|why| ("resources", why))
    }

    /// The quotas of each resource: how many devices each owner may hold at most.
    pub(crate) fn quotas(&self) -> BTreeMap<String, BTreeMap<Owner, usize>> {
        // A quota that cannot be parsed was refused with the configuration.
        let quota = |resource: &ResourceConfig| quota::parse(&resource.quota).unwrap_or_default();
        self.resources
            .iter()
            .map(|resource| (resource.name.clone(), quota(resource)))
            .collect()
    }

    fn check_resources(&self) -> Result<(), String> {
        let mut names = BTreeSet::new();
        for ResourceConfig {
            name,
            quota,
            swarm_kind,
        } in &self.resources
        {
            if let Err(why) = resource::check(name) {
                return Err(format!(
                    "name: {name:?} is no resource that a device plugin can have: {why}"
                ));
            }
            if !names.insert(name) {
                return Err(format!("name: two of them are {name}"));
            }
            if let Err(error) = quota::parse(quota) {
                return Err(format!("{name}: {error}"));
            }
            if !swarm_kind.is_empty()
                && let Err(why) = resource::check_plain_kind(swarm_kind)
            {
                return Err(format!("{name}: swarm_kind: {swarm_kind:?}: {why}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_directory_too_long_or_of_the_kubelet_is_rejected() {
        let kubelets = [Path::new("/var/lib/kubelet/device-plugins")];
        Config::default().check(&kubelets).unwrap();
        for directory in [
            format!("/{}", "x".repeat(42)),
            kubelets[0].display().to_string(),
        ] {
            let config = Config {
                directory: directory.into(),
                ..Config::default()
            };
            assert_eq!(config.check(&kubelets).unwrap_err().0, "directory");
        }
    }

    #[test]
    fn kind_of_a_resource_for_a_swarm_has_no_slash() {
        for (kind, is_valid) in [
            ("", true),
            ("NVIDIA-GPU", true),
            ("gpu", true),
            ("acme.com/gpu", false),
            ("gpu=2", false),
        ] {
            let config = Config {
                resources: vec![ResourceConfig {
                    name: "acme.com/gpu".to_owned(),
                    quota: BTreeMap::new(),
                    swarm_kind: kind.to_owned(),
                }],
                ..Config::default()
            };
            assert_eq!(config.check(&[]).is_ok(), is_valid, "{kind}");
        }
    }

    #[test]
    fn resource_configuration_is_validated() {
        let check = |resources: &[(&str, &str)]| {
            let config = Config {
                resources: resources
                    .iter()
                    .map(|(name, owner)| ResourceConfig {
                        name: (*name).to_owned(),
                        quota: BTreeMap::from([((*owner).to_owned(), 2)]),
                        swarm_kind: String::new(),
                    })
                    .collect(),
                ..Config::default()
            };
            config.check(&[]).map(|()| config.quotas())
        };
        let quotas = check(&[("acme.com/gpu", "nomad"), ("acme.com/nic", "kubernetes")]).unwrap();
        assert_eq!(quotas["acme.com/gpu"], BTreeMap::from([(Owner::Nomad, 2)]));
        for (resources, why) in [
            (&[("gpu", "nomad")][..], "name: \"gpu\" is no resource"),
            (
                &[("acme.com/gpu", "nomad"), ("acme.com/gpu", "kubernetes")],
                "two of them are acme.com/gpu",
            ),
            (
                &[("acme.com/gpu", "docker")],
                "acme.com/gpu: quota: \"docker\" is no owner: kubernetes",
            ),
        ] {
            let (key, text) = check(resources).unwrap_err();
            assert!(key == "resources" && text.contains(why), "{text}");
        }
    }
}
