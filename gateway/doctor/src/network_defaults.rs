//! The configuration of a node with the defaults of its networks, as the daemon's next start settles them.

use switchyard_config::{
    Config, ConfigError, Loaded, NetworkConfig, NetworkDefaults, SettleError, Sources,
};
use switchyard_linux::report;

use super::view::NodeView;

/// Defaults of the node's networks that the configuration takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UsedDefaults {
    /// Nothing: it sets all keys itself, or this process may not look.
    None,
    /// These.
    Known(NetworkDefaults),
    /// They are not known, for this reason.
    Unknown(String),
}

/// The configuration of these sources, with what this node has where they set nothing; while that is not known, with what is in force in the
/// daemon that they are of.
pub(super) fn load_settled(
    view: &dyn NodeView,
    sources: &Sources,
    in_force: Option<&Config>,
) -> Result<(Loaded, UsedDefaults), ConfigError> {
    let mut loaded = view.load(sources)?;
    let config = &loaded.effective.config;
    let found = view.network_defaults(&config.paths.state);
    let used = if config.network.depends_on_defaults() {
        match &found {
            Ok(found) => UsedDefaults::Known(found.defaults()),
            // Only root may look.
            Err(error) if error.is_denied() => UsedDefaults::None,
            Err(error) => UsedDefaults::Unknown(report(error)),
        }
    } else {
        UsedDefaults::None
    };
    match loaded.effective.settle_as(found) {
        Ok(()) => {}
        Err(SettleError::Config(error)) => return Err(error),
        Err(SettleError::Defaults(_)) => {
            if let Some(in_force) = in_force {
                take_unset(&mut loaded.effective.config.network, &in_force.network);
            }
        }
    }
    Ok((loaded, used))
}

/// Sets the keys that no source sets to what they are in the other configuration. Pure.
fn take_unset(network: &mut NetworkConfig, other: &NetworkConfig) {
    network.bridge.driver = network.bridge.driver.or(other.bridge.driver);
    network.isolation = network.isolation.or(other.isolation);
    network.direct_routing = network.direct_routing.or(other.direct_routing);
}
