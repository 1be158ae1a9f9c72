//! The frontend against a model of a kubelet, over a gateway with the fake backend.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

mod allocating;
mod devices;
mod hostile;
mod node;
mod registering;
