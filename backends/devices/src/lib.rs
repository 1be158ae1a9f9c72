//! The devices of a node that jobs and pods can request: groups that the operator configures, scanned
//! continuously.
//!
//! ```text
//! [[devices.groups]] ─► scan: paths, usb, pci, cdi ─► candidates ─► assemble: node owners, ids ─► Inventory
//!                        ▲ /dev, /sys, /etc/cdi
//! events (inotify, uevents) or two seconds
//! ```
//!
//! Nothing is stored on disk: the id of a device is derived from its identity, which is the same after a
//! restart.

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
