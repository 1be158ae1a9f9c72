//! Hosts device plugins of vendors: it serves them what a kubelet serves, and makes groups of the inventory of what they list.
//!
//! ```text
//! plugin ─ Register ─► registration ─ dials back ─► GetDevicePluginOptions, ListAndWatch ─ plugin
//!                                                          │
//! hardware ─► inventory::merged ◄─ groups ─ Hosted ◄── from_proto (what was listed)
//!                    │                         │
//!                    ▼                         └── Allocate, PreStartContainer, GetPreferredAllocation ─► plugin
//!          Gateway::watch_devices          Gateway::provide_devices
//! ```
//!
//! - A *resource* is what a plugin registers, as `nvidia.com/gpu`. It is a group of that vendor, type and resource here.
//! - A device has an *id* of the vendor's and one of ours, which are the same where the vendor's fits.
//!
//! Invariants:
//! - A plugin is known by its connection. What an earlier one of the same resource does, its end included, changes nothing of a later one.
//! - A plugin that has ended leaves its devices behind as unhealthy ones, for as long as the daemon lives.
//! - Nothing that a plugin sends is taken that is not bounded and checked, and no call of it is waited for without a deadline.

mod calls;
mod config;
mod directory;
mod from_proto;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hosted;
mod ids;
pub mod inventory;
mod registration;
mod report;
mod serve;
mod status;

pub use config::{Config, ResourceConfig};
pub use hosted::{Failure, Hosted, ReservedNames};
pub use report::{LastError, PluginReport, PluginState, Report};
pub use serve::{Host, Observe};
