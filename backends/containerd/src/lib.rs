//! The containerd backend: sandboxes, tasks and images through containerd's core services, never its CRI plugin.
//!
//! ```text
//!  Containerd (impl core::Backend)
//!   ├── images    registry ──► content ──► snapshots        one download however many ask
//!   ├── sandbox   pinned namespaces, CNI, files, infra process
//!   ├── task      OCI spec, snapshot, FIFOs, containerd task, exit
//!   ├── exec      further processes: by the shim itself, or through containerd
//!   ├── recover   what a predecessor left: adopted, or cleaned up
//!   ├── keep      exits of tasks that end while containerd is away
//!   └── health    is containerd there; abilities: what it can do
//! ```
//!
//! # Invariants
//! - **State lives in containerd.** The container object is written first and deleted last; all else is named after its id, so the
//!   object alone is enough to undo everything. There is no database here.
//! - **Nothing needs a lease but what has no container yet.** A snapshot that a container object names is not collected.
//! - **An exit is on record before the task is deleted**, so that no kill of ours loses an exit code.
//! - Every step treats "it is not there" as done, so stop, remove and undo can be repeated from any point.

mod advisories;
mod apparmor;
mod backend;
mod backoff;
mod bundle;
mod busy_cgroups;
mod cleanup;
mod client;
pub mod config;
mod container_id;
mod containerd_features;
mod dial;
mod disks;
mod error;
mod exec;
mod fs;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod health;
mod image;
mod image_reader;
mod input;
mod layout;
mod lifeline;
mod mount;
mod options;
mod protected_exits;
mod quota;
mod record;
mod recover;
mod reserved;
mod runtime_probes;
mod sandbox;
mod shim;
mod stats;
pub mod steps;
mod task;
mod trees;
mod userns;
mod volumes;

pub use backend::Containerd;
pub use config::Settings;
