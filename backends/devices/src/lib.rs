//! The devices of a node that jobs and pods may ask for: groups that its operator names, looked at again and again.
//!
//! ```text
//! [[devices.groups]] ─► look: paths, usb, pci, cdi ─► candidates ─► assemble: owners of nodes, ids ─► Inventory ─► whoever watches
//!                        ▲ /dev, /sys, /etc/cdi
//! events (inotify, uevents) or two seconds
//! ```
//!
//! Nothing is kept on disk: what a device is called follows from what it is known by, which is the
//! same after a restart.

mod assemble;
mod combine;
mod config;
mod events;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod identity;
mod roots;
mod scan;
mod watch;

pub use config::{Entry, Group, GroupMount, PathMatch, PciMatch, Placement, SHARES_MAX, UsbMatch};
pub use roots::Roots;
pub use scan::{Found, Search, scan};
pub use watch::watch;
