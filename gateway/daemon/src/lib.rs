//! The Switchyard daemon: the composition root, which starts and connects everything else.
//!
//! ```text
//! serve ──► wiring: backend, frontends
//!   │
//!   ├── reload        the same again at SIGHUP, as a whole or not at all
//!   ├── daemon_record where the daemon and its logkeeper serve, for processes that cannot read the configuration
//!   ├── run_file      files for other processes, which a full disk refuses at first
//!   ├── device_parts  devices, vendors' plugins, a kubelet's device plugins
//!   ├── managed       containerd and logkeeper: started, adopted, restarted, left running
//!   ├── node_events   starts and ends of these processes, and jumps of the clock, for the history
//!   ├── reports       what frontends, devices and the swarm report, for the admin server (the crate `operator`)
//!   ├── start_check   what the start needs beside the configuration, checked also without a start
//!   ├── self_check    asks each of its servers, for systemd's watchdog
//!   └── layer         one tower layer: spans and metrics of every RPC
//! ```
//!
//! # Invariants
//! - One daemon per state directory and run directory ([`lock`]): only the holder of the lock uses the
//!   sockets and processes in them.
//! - Containers, containerd and the logkeeper outlive the daemon, however it ends.
//! - A part that ends or panics by itself ends the daemon with an error ([`shutdown`]), so that no failure
//!   goes unnoticed.
//! - [`wiring`] alone names backends and frontends.

mod capacity;
mod credentials;
pub mod daemon_record;
pub mod detach;
mod device_parts;
pub mod gate;
pub mod layer;
pub mod lock;
pub mod managed;
pub mod network_defaults;
mod node_events;
pub mod reload;
pub mod reports;
mod run_file;
pub mod self_check;
pub mod serve;
pub mod service_manager;
pub mod shutdown;
pub mod start_check;
mod streaming;
pub mod wiring;
