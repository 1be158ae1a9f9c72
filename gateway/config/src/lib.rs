//! Configuration: the sections with their keys and defaults. The only user of figment is [`load`].
//!
//! Order, later wins: the documented defaults (`config.toml` of the repository) < the file <
//! `config.d/*.toml` beside it < `SWITCHYARD_SECTION__KEY` < flags. A key that no section knows is an error,
//! wherever it comes from, save for a process that starts ([`load_for_start`]).

mod change;
mod devices;
mod document;
mod dump;
mod effect;
mod error;
mod limits;
mod load;
mod migrate;
mod nearest;
mod network_defaults;
mod removed;
mod renamed;
mod sections;
mod security;
mod swarm;
mod tree;
mod validate;

#[cfg(test)]
mod tests;

pub use change::{Effective, Reload};
pub use devices::{DevicesConfig, LedgerConfig, NamedDevicePolicy, Overcommit};
pub use document::Location;
pub use error::ConfigError;
pub use load::{DEFAULT_FILE, Flag, Loaded, Sources, load, load_for_start};
pub use migrate::{Migrated, migrate};
pub use network_defaults::{
    DefaultsError, FoundDefaults, RecordError, SettleError, encode_network_defaults,
    find_network_defaults, network_defaults_file,
};
pub use sections::{
    Config, CriConfig, DOCUMENTED, ExecConfig, LogkeeperConfig, ManagedConfig, NomadConfig,
    PathsConfig, StreamingConfig, VERSION, admin_socket, nomad_socket,
};
pub use swarm::SwarmConfig;
pub use switchyard_containerd::config::{
    AdvisoriesConfig, CgroupConfig, ContainerdConfig as Containerd, ContainerdMode,
    DevicesConfig as DescribedDevices, ImagesConfig, NetworkConfig, NetworkDefaults,
    PodNetworkChoice, ProxyPlugin, RecoveryConfig, RegistryConfig,
};
pub use switchyard_cri::UnsetSeccomp;
pub use switchyard_device_host::Config as DeviceHost;
pub use switchyard_device_plugin::Config as KubeletDevices;
pub use switchyard_operator::config::{AdminConfig, AuditConfig, AuditTarget, ContainerMetrics};
pub use switchyard_operator_api::JoinAvailability;
pub use switchyard_telemetry::{LogConfig, LogFormat};
