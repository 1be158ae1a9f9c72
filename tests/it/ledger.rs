//! The ledger of node resources: a kubelet and a Nomad agent want the same resource of one daemon, with real
//! containers.

mod compute;
mod devices;
mod hosted;
mod orchestrators;
mod ports;
