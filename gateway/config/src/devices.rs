//! `[devices]` and `[ledger]`: the resources of the node that the ledger allocates.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use switchyard_device_host::ReservedNames;
use switchyard_devices::Group;
use switchyard_swarm::{DeviceKinds, default_kind};

use super::{DescribedDevices, DeviceHost, KubeletDevices};

/// The devices of the node, and the directories with their descriptions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DevicesConfig {
    /// Directories with vendors' files of the Container Device Interface; a later one wins.
    pub cdi_spec_dirs: Vec<PathBuf>,
    /// Groups of devices, which jobs request by vendor, type and name.
    pub groups: Vec<Group>,
    /// Minutes for which an orchestrator keeps devices that it was allocated but has not used yet.
    pub lease_minutes: u32,
    /// Seconds for which an orchestrator keeps devices after the sandbox that used them has stopped.
    pub restart_grace_seconds: u32,
    /// Policy for a task that requests a device of a group by path or CDI name while another holder has it.
    pub named: NamedDevicePolicy,
    /// The kubelet to which groups with a resource are offered.
    pub kubelet: KubeletDevices,
    /// The registration host for vendors' device plugins.
    pub host: DeviceHost,
}

/// Policy for a task that requests a device by path or CDI name while another holder has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedDevicePolicy {
    /// It is refused.
    #[default]
    Refuse,
    /// It is created, with a warning in the log.
    Warn,
}

/// The accounting of processors and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerConfig {
    /// Policy for a task that reserves more than the node has left.
    pub overcommit: Overcommit,
}

/// Policy for a task that reserves more processors or memory than the node has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overcommit {
    /// It is created.
    Off,
    /// It is created, with a warning in the log.
    #[default]
    Warn,
    /// It is refused.
    Enforce,
}

impl Default for DevicesConfig {
    fn default() -> Self {
        Self {
            cdi_spec_dirs: DescribedDevices::default().cdi_spec_dirs,
            groups: Vec::new(),
            lease_minutes: 10,
            restart_grace_seconds: 20,
            named: NamedDevicePolicy::default(),
            kubelet: KubeletDevices::default(),
            host: DeviceHost::default(),
        }
    }
}

impl DevicesConfig {
    /// The part of the section that the backend needs.
    pub fn described(&self) -> DescribedDevices {
        DescribedDevices {
            cdi_spec_dirs: self.cdi_spec_dirs.clone(),
        }
    }

    /// The names of the configured groups, which resources of vendors' plugins cannot have.
    #[must_use]
    pub fn reserved_names(&self) -> ReservedNames {
        ReservedNames {
            resources: self
                .groups
                .iter()
                .map(|group| group.resource.clone())
                .collect(),
            names: self
                .groups
                .iter()
                .map(|group| [group.vendor.clone(), group.kind.clone(), group.name.clone()])
                .collect(),
        }
    }

    /// The kinds under which a swarm is offered groups and resources of vendors' plugins that name one.
    #[must_use]
    pub fn swarm_kinds(&self) -> DeviceKinds {
        let of_groups = self.groups.iter().map(|group| {
            let name = [&group.vendor, &group.kind, &group.name].map(String::as_str);
            (default_kind(&group.resource, name), &group.swarm_kind)
        });
        let of_plugins = self
            .host
            .resources
            .iter()
            .map(|resource| (resource.name.clone(), &resource.swarm_kind));
        of_groups
            .chain(of_plugins)
            .filter(|(_, kind)| !kind.is_empty())
            .map(|(of, kind)| (of, kind.clone()))
            .collect()
    }

    /// Returns the time for which an orchestrator keeps devices that it was allocated but has not used yet.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        Duration::from_secs(60 * self.lease_minutes as u64)
    }

    /// Returns the time for which an orchestrator keeps devices after the sandbox that used them has stopped.
    #[must_use]
    pub const fn restart_grace(&self) -> Duration {
        Duration::from_secs(self.restart_grace_seconds as u64)
    }
}
