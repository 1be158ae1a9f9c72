//! The containerd backend: sandboxes, tasks and images through containerd's core services, never its CRI
//! plugin.
//!
//! ```text
//!  Containerd (impl core::Backend)
//!   ├── images    registry ──► content ──► snapshots        one download however many ask
//!   ├── sandbox   pinned namespaces, CNI, files, infra process
//!   ├── task      OCI spec, snapshot, FIFOs, containerd task, exit
//!   ├── exec      further processes: by the shim itself, or through containerd
//!   ├── recover   objects of a predecessor: adopted, or cleaned up
//!   ├── cleanup   retries undos and removals that failed
//!   ├── protected_exits      exits of tasks that end while containerd is down
//!   ├── health               whether containerd answers
//!   └── containerd_features  what the running containerd can do
//! ```
//!
//! Types stand apart from the operations on the whole backend: `task/entry.rs`, `sandbox/entry.rs`, `record/*` and the like import nothing
//! of `backend`; the files with `impl Inner` import them.
//!
//! # Invariants
//! - **State lives in containerd.** The container object is written first and deleted last; everything else
//!   is named after its id, so the object alone is enough to undo everything. The backend has no database.
//! - **Only content and snapshots without a container need a lease.** containerd does not garbage-collect a
//!   snapshot that a container object names.
//! - **An exit is persisted before the task is deleted**, so that killing the daemon never loses an exit
//!   code.
//! - Every step treats "not found" as done, so stop, remove and undo can be repeated from any point.

mod advisories;
mod apparmor;
mod backend;
mod backoff;
mod bundle;
mod busy_cgroups;
mod call_outcome;
mod cgroup_removal;
mod cleanup;
mod client;
pub mod config;
mod contact;
mod container_id;
mod containerd_features;
mod creates_in_flight;
mod dial;
mod disk_watch;
mod disks;
mod ending;
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
mod node_advisories;
mod options;
mod process_state;
mod protected_exits;
mod quota;
mod record;
mod recover;
mod reserved;
mod runtime_probes;
mod runtime_watch;
mod sandbox;
mod shim;
mod shim_processes;
mod stats;
pub mod steps;
mod task;
mod trees;
mod unresponsive_shims;
mod userns;
mod userns_support;
mod volume_removal;
mod volumes;

pub use backend::Containerd;
pub use config::Settings;
