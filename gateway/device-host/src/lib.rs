//! Hosts vendors' device plugins: it serves them the kubelet's registration API, and adds the devices that
//! they list to the inventory.
//!
//! ```text
//! plugin ─ Register ─► registration ─ dials back ─► GetDevicePluginOptions, ListAndWatch ─ plugin
//!                                                          │
//! hardware ─► inventory::merged ◄─ groups ─ Hosted ◄── from_proto (the listed devices)
//!                    │                       │
//!                    ▼                       └─ Allocate, PreStartContainer, GetPreferredAllocation ► plugin
//!          DeviceLeases::watch            DeviceLeases::set_provider
//! ```
//!
//! - A *resource* is the name that a plugin registers, such as `nvidia.com/gpu`. Its devices form one group
//!   with that vendor, type and resource.
//! - A device has its vendor's *id* and our id. They are the same if the vendor's id meets our rules (see
//!   `ids`).
//!
//! Invariants:
//! - A plugin is identified by its connection. Nothing that an earlier plugin of the same resource does, not
//!   even its end, affects a later one.
//! - The devices of a plugin that has ended stay, as unhealthy ones, for as long as the daemon lives.
//! - Everything that a plugin sends is bounded and validated, and every call to it has a timeout.

mod calls;
mod config;
mod directory;
mod from_proto;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod hosted;
mod ids;
pub mod inventory;
mod last_error;
mod registration;
mod report;
mod serve;

pub use config::{Config, ResourceConfig};
pub use hosted::{Failure, Hosted, ReservedNames};
pub use last_error::LastError;
pub use report::{PluginReport, PluginState, Report};
pub use serve::{Host, Observe};
