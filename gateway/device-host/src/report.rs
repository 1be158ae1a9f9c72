//! What operators are shown: which plugins there are, how they are, and what went wrong last.

use std::time::SystemTime;

use switchyard_core::device::Health;

use crate::hosted::{Failure, Fault, Hosted, RegisteredResource};

/// The most characters of an error that are kept.
const TEXT_MAX: usize = 500;

/// The host of plugins, and all plugins that have registered since the daemon began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// Why no plugin can register now; `None` if they can.
    pub fault: Option<String>,
    /// The plugins, one for each resource, in the order in which the resources were registered first.
    pub plugins: Vec<PluginReport>,
    /// The registration that was refused last, or whose plugin did not answer.
    pub refused: Option<LastError>,
    /// How often something has failed so far, by its word.
    pub failures: Vec<(&'static str, u64)>,
}

/// The newest plugin of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PluginReport {
    /// The resource.
    pub resource: String,
    /// The name of the plugin's socket in the directory.
    pub endpoint: String,
    /// What it does.
    pub state: PluginState,
    /// Since when it does so.
    pub since: SystemTime,
    /// How many devices it has listed last.
    pub devices: usize,
    /// How many of them can be given to a task now.
    pub healthy: usize,
    /// What failed last of it, or of an earlier plugin of the resource.
    pub last_error: Option<LastError>,
}

/// What a plugin does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PluginState {
    /// It is connected.
    Connected,
    /// It is connected, and has listed no devices for a while.
    Silent,
    /// It has ended.
    Ended,
}

/// The last thing that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastError {
    /// When.
    pub at: SystemTime,
    /// What, and why.
    pub text: String,
}

// === impl Report ===

impl Report {
    /// How many plugins are in a state.
    #[must_use]
    pub fn count(&self, state: PluginState) -> usize {
        self.plugins.iter().filter(|plugin| plugin.state == state).count()
    }
}

// === impl PluginState ===

impl PluginState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Connected, Self::Silent, Self::Ended];

    /// It in one word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "connected",
            Self::Silent => "silent",
            Self::Ended => "ended",
        }
    }
}

// === impl LastError ===

impl LastError {
    /// An error of now. A text that is too long is cut.
    pub(crate) fn now(text: &str) -> Self {
        let text = match text.char_indices().nth(TEXT_MAX) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text.to_owned(),
        };
        Self { at: SystemTime::now(), text }
    }
}

// === impl Hosted ===

impl Hosted {
    /// Which plugins there are, how they are, and what has failed.
    #[must_use]
    pub fn report(&self) -> Report {
        let state = self.state();
        Report {
            fault: state.fault.clone(),
            plugins: state.resources.iter().map(plugin).collect(),
            refused: state.refused.clone(),
            failures: Failure::ALL.map(|failure| (failure.as_str(), self.count_of(failure))).to_vec(),
        }
    }
}

fn plugin(resource: &RegisteredResource) -> PluginReport {
    let listed: &[_] = resource.listed.as_ref().map_or(&[], |listed| &listed.devices);
    let can_be_given = listed.iter().filter(|device| device.health == Health::Healthy);
    let state = match (&resource.plugin, resource.fault) {
        (None, _) => PluginState::Ended,
        (Some(_), Some(Fault::Silent)) => PluginState::Silent,
        // One that follows another has the fault of that until it lists its devices.
        (Some(_), Some(Fault::Ended) | None) => PluginState::Connected,
    };
    PluginReport {
        resource: resource.name.clone(),
        endpoint: resource.endpoint.clone(),
        state,
        since: resource.since,
        devices: listed.len(),
        healthy: if resource.fault.is_some() { 0 } else { can_be_given.count() },
        last_error: resource.last_error.clone(),
    }
}
