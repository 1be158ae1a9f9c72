//! The devices of a node that jobs may ask for: groups that its operator names by paths, looked at again and again.
//!
//! ```text
//! [[devices.groups]] ─► look: paths ─► device nodes, their health, their place on the PCI bus ─► Inventory ─► whoever watches
//! ```
//!
//! Nothing is kept on disk: a device is known by its path, which is the same after a restart.

mod config;
mod look;
mod watch;

pub use config::Group;
pub use look::{Node, look};
pub use watch::watch;
