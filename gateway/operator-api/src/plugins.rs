//! Vendors' device plugins, as `/v1/devices` shows them.

use serde::{Deserialize, Serialize};

/// The registration host of vendors' device plugins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostView {
    /// Reason why no plugin can register now; `None` if they can.
    pub fault: Option<String>,
    /// The plugins that have registered since the daemon started, the newest for each resource.
    pub plugins: Vec<PluginView>,
    /// The last registration that was refused, or whose plugin did not answer.
    pub last_refused: Option<ErrorView>,
}

/// The newest plugin of a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginView {
    /// The resource.
    pub resource: String,
    /// The name of the plugin's socket in the directory.
    pub endpoint: String,
    /// `connected`; `silent`: it is connected and lists no devices; `ended`; or `gone`: it ended a day ago or more.
    pub state: String,
    /// Since when, as RFC 3339.
    pub since: String,
    /// Number of devices in its last list.
    pub devices: usize,
    /// Number of healthy devices among them.
    pub healthy: usize,
    /// The last failure of this or an earlier plugin of the resource.
    pub last_error: Option<ErrorView>,
}

/// A failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorView {
    /// Its time, as RFC 3339.
    pub at: String,
    /// The error.
    pub error: String,
}
