//! `[devices]` and `[ledger]`: what of the node is given out, and how.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use switchyard_device_host::ReservedNames;
use switchyard_devices::Group;

use super::{DescribedDevices, DeviceHost, KubeletDevices};

/// Which devices there are, and where they are described.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DevicesConfig {
    /// Directories with vendors' files of the Container Device Interface; a later one wins.
    pub cdi_spec_dirs: Vec<PathBuf>,
    /// Devices that jobs ask for by vendor, type and name.
    pub groups: Vec<Group>,
    /// How long devices that an orchestrator was given and made nothing with are kept from the others, in minutes.
    pub lease_minutes: u32,
    /// How long devices are kept for a restart of what had them, in seconds.
    pub restart_grace_seconds: u32,
    /// What becomes of a task that names a device of a group by itself, where somebody else has that device.
    pub named: NamedDevicePolicy,
    /// Where the kubelet is found that is offered those with a resource.
    pub kubelet: KubeletDevices,
    /// Where vendors' device plugins register with the gateway.
    pub host: DeviceHost,
}

/// What becomes of a task that names a device by itself, where somebody else has that device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NamedDevicePolicy {
    /// It is refused.
    #[default]
    Refuse,
    /// It is made, and the log says so.
    Warn,
}

/// How processors and memory are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LedgerConfig {
    /// What becomes of a task that reserves more than the node has left.
    pub overcommit: Overcommit,
}

/// What becomes of a task that reserves more processors or memory than the node has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Overcommit {
    /// It is made.
    Off,
    /// It is made, and the log says so.
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
    /// The part of it that is about containers.
    pub(crate) fn described(&self) -> DescribedDevices {
        DescribedDevices { cdi_spec_dirs: self.cdi_spec_dirs.clone() }
    }

    /// What the groups are called, which no resource of vendors' plugins can be.
    #[must_use]
    pub fn reserved_names(&self) -> ReservedNames {
        let name = |group: &Group| [group.vendor.clone(), group.kind.clone(), group.name.clone()];
        ReservedNames {
            resources: self.groups.iter().map(|group| group.resource.clone()).collect(),
            names: self.groups.iter().map(name).collect(),
        }
    }

    /// How long devices that an orchestrator was given and made nothing with are kept from the others.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        Duration::from_secs(60 * self.lease_minutes as u64)
    }

    /// How long devices are kept for a restart of what had them.
    #[must_use]
    pub const fn restart_grace(&self) -> Duration {
        Duration::from_secs(self.restart_grace_seconds as u64)
    }
}
