//! The Container Runtime Interface of the real daemon, with real containers.

mod bad_input;
mod cadvisor;
mod chaos;
mod confinement;
mod crashes;
mod devices;
mod ends;
pub(crate) mod foreign;
mod limits;
mod logs;
mod mounts;
mod network;
mod pods;
mod processes;
mod programs;
mod recovery;
mod retries;
mod streaming;
mod users;
mod v1alpha2;
mod volumes;
mod watching;
