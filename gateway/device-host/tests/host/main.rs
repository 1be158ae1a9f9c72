//! Vendors' plugins register with the gateway, over real sockets: a kubelet's model and Nomad's scope are offered their devices.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod faults;
mod giving;
mod node;
mod registering;
mod reporting;
