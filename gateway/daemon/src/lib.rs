//! The Switchyard daemon and its command line.
//!
//! ```text
//! main ──► cli ──► serve ──► wiring: backend, frontends
//!                    │
//!                    ├── reload        the same again at SIGHUP, as a whole or not at all
//!                    ├── device_parts  devices, vendors' plugins, a kubelet's device plugins
//!                    ├── managed       containerd and logkeeper: started, adopted, restarted, left running
//!                    ├── node, admin   /metrics, /readyz, /statusz and pages for the command line
//!                    ├── container_metrics  what containers use, with the names of their owners
//!                    ├── inspect       all that is known of an object; the images with their users
//!                    ├── audit, events what changed, for whom; in a log, and the latest in memory
//!                    ├── doctor        what is wrong with the node; works without the daemon too
//!                    ├── bundle        an archive for somebody who helps
//!                    ├── self_check    asks each of its servers, for systemd's watchdog
//!                    └── layer         one tower layer: spans and metrics of every RPC
//! ```
//!
//! # Invariants
//! - One daemon per state directory and run directory ([`lock`]): only the holder of the lock uses the
//!   sockets and processes in them.
//! - Containers, containerd and the logkeeper outlive the daemon, however it ends.
//! - A part that ends or panics by itself ends the daemon with an error ([`shutdown`]), so that no failure
//!   goes unnoticed.
//! - [`wiring`] alone names backends and frontends, [`output`] alone prints.

pub mod admin;
pub mod audit;
pub mod bundle;
mod capacity;
pub mod channel;
pub mod cli;
pub mod container_metrics;
mod credentials;
pub mod detach;
mod device_parts;
pub mod doctor;
pub mod events;
mod find;
pub mod gate;
pub mod history;
pub mod hosts;
mod inspect;
pub mod layer;
pub mod listener;
pub mod lock;
pub mod managed;
pub mod metrics;
pub mod node;
pub mod output;
pub mod owners;
pub mod page;
pub mod reload;
pub mod self_check;
pub mod serve;
pub mod service_manager;
pub mod shutdown;
pub mod status;
mod streaming;
mod task_logs;
pub mod wiring;
