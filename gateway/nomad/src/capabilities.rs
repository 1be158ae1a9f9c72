//! The driver's capabilities, which an agent requests at the start of every task.

use switchyard_proto::nomad::drivers::proto as nomad;
use switchyard_proto::nomad::drivers::proto::driver_capabilities::FsIsolation;
use switchyard_proto::nomad::drivers::proto::network_isolation_spec::NetworkIsolationMode;

use crate::PluginConfig;

/// The capabilities of a driver with this configuration.
pub(crate) fn capabilities(config: &PluginConfig) -> nomad::DriverCapabilities {
    let modes = [
        NetworkIsolationMode::Host,
        NetworkIsolationMode::Group,
        NetworkIsolationMode::Task,
    ];
    nomad::DriverCapabilities {
        send_signals: true,
        exec: true,
        fs_isolation: FsIsolation::Image.into(),
        network_isolation_modes: modes.into_iter().map(Into::into).collect(),
        must_create_network: config.must_create_network,
        mount_configs: 0,
        disable_log_collection: config.disable_log_collection,
        // Users are resolved in the image.
        dynamic_workload_users: false,
    }
}
