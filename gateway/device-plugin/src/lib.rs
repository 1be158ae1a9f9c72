//! The kubelet's device plugin API over one scope of the gateway.
//!
//! ```text
//!                  ┌ directory: inotify on kubelet.sock ─► registration ─ Register ─► kubelet
//! Frontend::serve ─┼ endpoint: one socket for each resource ◄──────────── ListAndWatch, Allocate, … ─ kubelet
//!                  └ pod_resources: every 10 s ─ List ─► kubelet
//!         │
//!         └──► Scope: which devices there are, leases of them
//! ```
//!
//! - A *resource* is what kubelets call a group of devices, as `acme.com/tpu`. What they call a device is a *slot* here: a device that
//!   several tasks may share has several.
//! - A *lease* is a set of slots that is given to one owner. Its token is an annotation of the answer to Allocate, which the kubelet passes
//!   on with the container, so that CreateContainer of CRI says which lease the container has. Nothing else does.
//!
//! Invariants:
//! - An id that a kubelet was told of is told for as long as the daemon lives: a kubelet crashes if an id vanishes while it
//!   allocates it. What has gone is unhealthy.
//! - Resources of which a kubelet's pods may have devices are registered with it before all others: it does not wait for any.
//! - A plugin registers again after every end of its ListAndWatch and every new kubelet.sock, each time on a new socket.

mod backoff;
mod config;
mod directory;
mod endpoint;
mod from_proto;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod listing;
mod plugin;
mod pod_resources;
mod preference;
mod registration;
mod serve;
mod status;
mod streams;
mod to_proto;
mod urgency;

pub use config::Config;
pub use pod_resources::exclusive_cpus;
pub use serve::{Frontend, Observe, Registrations};
