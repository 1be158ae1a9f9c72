//! The Container Runtime Interface of the real daemon, with real containers.

mod bad_input;
mod cadvisor;
mod chaos;
mod confinement;
mod crashes;
mod devices;
mod events_and_metrics;
mod exits;
mod limits;
pub(crate) mod logs;
mod mounts;
mod network;
mod pid_namespaces;
mod pinned_pods;
mod plugin_commands;
mod pod_bridge;
mod pods;
mod programs;
pub(crate) mod python_client;
mod recovery;
mod retries;
mod stops;
mod streaming;
mod user_namespaces;
mod v1alpha2;
mod volumes;
