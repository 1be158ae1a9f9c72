//! The configuration of a node with the defaults of its networks, as the daemon's next start settles them.

use switchyard_config::{ConfigError, Loaded, NetworkDefaults, SettleError, Sources};
use switchyard_linux::report;

use super::view::NodeView;

/// What the configuration takes from the defaults of the node's networks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UsedDefaults {
    /// Nothing: it sets all keys itself, or this process may not look.
    None,
    /// These.
    Known(NetworkDefaults),
    /// They are not known, for this reason.
    Unknown(String),
}

/// The configuration of these sources, with what this node has where they set nothing.
pub(super) fn load_settled(
    view: &dyn NodeView,
    sources: &Sources,
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
        Err(SettleError::Config(error)) => Err(error),
        Ok(()) | Err(SettleError::Defaults(_)) => Ok((loaded, used)),
    }
}
