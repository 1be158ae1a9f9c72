//! The kubelet's device plugin API over one scope of the gateway.
//!
//! ```text
//!                  ┌ directory: inotify on kubelet.sock ─► registration ─ Register ─► kubelet
//! Frontend::serve ─┼ endpoint: one socket for each resource ◄─────────── ListAndWatch, Allocate, … ─ kubelet
//!                  └ pod_resources: every 10 s ─ List ─► kubelet
//!         │
//!         └──► Scope: the devices and their leases
//! ```
//!
//! - A *resource* is the kubelet's name of a group of devices, such as `acme.com/tpu`. What the kubelet calls
//!   a device is a *slot* here: a device that several tasks may share has several slots.
//! - A *lease* is a set of slots that is given to one owner. Its token is an annotation in the answer to
//!   Allocate. The kubelet copies it to the container, so that CreateContainer of CRI knows which lease the
//!   container has. No other field carries it.
//!
//! Invariants:
//! - A slot id that was once sent to a kubelet is sent for as long as the daemon lives: a kubelet crashes if
//!   an id vanishes while it allocates it. A slot that is gone is listed as unhealthy.
//! - Resources of which a kubelet's pods may have devices are registered before all others: the kubelet waits
//!   for none.
//! - A plugin registers again whenever its ListAndWatch ends and whenever a new kubelet.sock appears, each
//!   time on a new socket.

mod channel;
mod config;
mod directory;
mod endpoint;
mod from_proto;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod listing;
mod outage;
mod plugin;
mod pod_resources;
mod preference;
mod registration;
mod serve;
mod shared;
mod streams;
mod to_proto;
mod urgency;

pub use config::Config;
pub use pod_resources::exclusive_cpus;
pub use serve::Frontend;
pub use shared::{Observe, Registrations};
