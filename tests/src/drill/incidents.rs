//! The incidents: a function for each, named after its cause.

pub(super) mod clients;
pub(super) mod containerd;
pub(super) mod devices;
pub(super) mod disks;
pub(super) mod images;
pub(super) mod monitoring;
pub(super) mod network;
pub(super) mod nomad;
pub(super) mod processes;
pub(super) mod runtime;
pub(super) mod swarm;
