//! The limits of the gateway that the configuration sets.

use std::time::Duration;

use switchyard_containerd::config::PortConflictPolicy;
use switchyard_core::gateway::{Limits, NamedDevices, PortConflict};
use switchyard_core::ledger;

use super::devices::{NamedDevicePolicy, Overcommit};
use super::sections::Config;

impl Config {
    /// The limits of the gateway, without the capacity of the node, which is no configuration.
    #[must_use]
    pub fn gateway_limits(&self) -> Limits {
        Limits {
            kill: Duration::from_secs(self.containerd.shim_timeout_seconds),
            exec_output_bytes: self.exec.max_output_bytes,
            exec_per_task: self.exec.max_per_container,
            lease: self.devices.lease(),
            restart_grace: self.devices.restart_grace(),
            named_devices: match self.devices.named {
                NamedDevicePolicy::Refuse => NamedDevices::Refuse,
                NamedDevicePolicy::Warn => NamedDevices::Warn,
            },
            port_conflict: match self.network.port_conflict {
                PortConflictPolicy::Warn => PortConflict::Warn,
                PortConflictPolicy::Refuse => PortConflict::Refuse,
            },
            overcommit: match self.ledger.overcommit {
                Overcommit::Off => ledger::Overcommit::Off,
                Overcommit::Warn => ledger::Overcommit::Warn,
                Overcommit::Enforce => ledger::Overcommit::Enforce,
            },
            ..Limits::default()
        }
    }
}
