//! Vendors' plugins register with the gateway, over real sockets: their devices are offered to a model of a
//! kubelet and to Nomad's scope.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod faults;
mod giving;
mod node;
mod registering;
mod reporting;
