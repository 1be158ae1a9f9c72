//! The report for operators: the plugins, their states, and their last errors.

use std::time::{Duration, SystemTime};

use switchyard_core::device::Health;

use crate::hosted::{Failure, Fault, Hosted, RegisteredResource};
use crate::last_error::LastError;

/// The state of the registry, and of all plugins that have registered since the daemon started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The reason why no plugin can register at present; `None` if they can.
    pub fault: Option<String>,
    /// The newest plugin of each resource, in the order of the resources' first registration.
    pub plugins: Vec<PluginReport>,
    /// The last registration that was refused, or whose plugin did not answer.
    pub refused: Option<LastError>,
    /// Number of failures of each kind, by [`Failure::as_str`](crate::Failure::as_str).
    pub failures: Vec<(&'static str, u64)>,
}

/// The newest plugin of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginReport {
    /// The resource.
    pub resource: String,
    /// The name of the plugin's socket in the directory.
    pub endpoint: String,
    /// Its state.
    pub state: PluginState,
    /// Since when it is in this state.
    pub since: SystemTime,
    /// Number of devices in its last list.
    pub devices: usize,
    /// Number of them that can be allocated at present.
    pub healthy: usize,
    /// The last failure of it, or of an earlier plugin of the resource.
    pub last_error: Option<LastError>,
}

/// The state of a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginState {
    /// It is connected.
    Connected,
    /// It is connected, but its first list is late.
    Silent,
    /// Its connection or stream has ended.
    Ended,
    /// It has ended long ago, and is probably not to come back.
    Gone,
}

/// Time after which a plugin that has ended counts as removed from the node. Its devices stay known, and unhealthy.
const GONE_AFTER: Duration = Duration::from_secs(24 * 3600);

// === impl Report ===

impl Report {
    /// The number of plugins in a state.
    #[must_use]
    pub fn count(&self, state: PluginState) -> usize {
        self.plugins
            .iter()
            .filter(|plugin| plugin.state == state)
            .count()
    }
}

// === impl PluginState ===

impl PluginState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Connected, Self::Silent, Self::Ended, Self::Gone];

    /// The state in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Silent => "silent",
            Self::Ended => "ended",
            Self::Gone => "gone",
        }
    }

    /// Returns whether somebody has to look at the plugin.
    #[must_use]
    pub const fn is_faulty(self) -> bool {
        match self {
            Self::Silent | Self::Ended => true,
            Self::Connected | Self::Gone => false,
        }
    }

    /// The state of a plugin, of which this has been so for some time. Pure.
    fn of(is_connected: bool, fault: Option<Fault>, lasts: Duration) -> Self {
        match (is_connected, fault) {
            (false, _) if lasts >= GONE_AFTER => Self::Gone,
            (false, _) => Self::Ended,
            (true, Some(Fault::Silent)) => Self::Silent,
            // A plugin that follows an ended one has its fault until it lists its devices, but it is connected.
            (true, Some(Fault::Ended) | None) => Self::Connected,
        }
    }
}

// === impl Hosted ===

impl Hosted {
    /// The current report.
    #[must_use]
    pub fn report(&self) -> Report {
        let state = self.state();
        Report {
            fault: state.fault.clone(),
            plugins: state.resources.iter().map(plugin).collect(),
            refused: state.refused.clone(),
            failures: Failure::ALL
                .map(|failure| (failure.as_str(), self.count_of(failure)))
                .to_vec(),
        }
    }
}

fn plugin(resource: &RegisteredResource) -> PluginReport {
    let listed: &[_] = resource
        .listed
        .as_ref()
        .map_or(&[], |listed| &listed.devices);
    let can_be_given = listed
        .iter()
        .filter(|device| device.health == Health::Healthy);
    // The clock may have been set back.
    let lasts = resource.since.elapsed().unwrap_or_default();
    PluginReport {
        resource: resource.name.clone(),
        endpoint: resource.endpoint.clone(),
        state: PluginState::of(resource.plugin.is_some(), resource.fault, lasts),
        since: resource.since,
        devices: listed.len(),
        healthy: if resource.fault.is_some() {
            0
        } else {
            can_be_given.count()
        },
        last_error: resource.last_error.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_that_ended_a_day_ago_is_gone_and_needs_nobody() {
        let hour = Duration::from_secs(3600);
        let ended = |lasts| PluginState::of(false, Some(Fault::Ended), lasts);
        assert_eq!(ended(23 * hour), PluginState::Ended);
        assert_eq!(ended(24 * hour), PluginState::Gone);
        assert!(ended(hour).is_faulty() && !ended(24 * hour).is_faulty());
        let connected = PluginState::of(true, None, 48 * hour);
        assert_eq!(connected, PluginState::Connected);
    }
}
