//! The CRI services over a real unix socket, with the generated clients, the gateway, and a backend in
//! memory.

mod compute;
mod containers;
mod held;
mod hostile;
mod images;
mod leases;
mod node;
mod pods;
mod support;
mod v1alpha2;
mod watching;
