//! The containerd backend: sandboxes, tasks and images through containerd's core services, never its CRI
//! plugin.
//!
//! ```text
//!  Containerd (impl core::Backend), wired in backend/parts.rs
//!   ├── recover            objects of a predecessor: adopted, finished or cleaned up
//!   ├── exec, stats        further processes; measurements and inspection
//!   ├── task               Tasks, Attachments, Checkpoints
//!   │    ├── exit             Exits: observed, persisted, then reported
//!   │    └── storage, cgroups snapshots, volumes and quotas; what is done to a task's cgroup
//!   ├── sandbox            Sandboxes: pinned namespaces, files, infra process
//!   ├── node, network      what the node can do; CNI, and the bridge of the gateway
//!   ├── image              registry ──► content ──► snapshots, one download however many ask
//!   ├── processes, predecessor_calls   ends processes, protects exits, waits for calls of a predecessor
//!   ├── blockers           processes that hold up operations
//!   ├── shims, cgroups     finds, calls and terminates shims; groups claimed and groups busy
//!   ├── cleanup            retries undos and removals that failed
//!   └── client, record, base   calls to containerd; what is stored; files, configuration, identifiers
//! ```
//!
//! A part may import those below it and no others. Each component has its own fields; all share `Context`.
//!
//! # Invariants
//! - **State lives in containerd.** The container object is written first and deleted last; everything else
//!   is named after its id, so the object alone is enough to undo everything. The backend has no database.
//! - **Only content and snapshots without a container need a lease.** containerd does not garbage-collect a
//!   snapshot that a container object names.
//! - **An exit is persisted before the task is deleted**, so that killing the daemon never loses an exit
//!   code.
//! - Every step treats "not found" as done, so stop, remove and undo can be repeated from any point.

mod backend;
mod base;
mod blockers;
mod cgroups;
mod cleanup;
mod client;
mod context;
mod exec;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod image;
mod live;
mod network;
mod node;
mod predecessor_calls;
mod processes;
mod record;
mod recover;
mod sandbox;
mod shims;
mod stats;
mod task;

pub use backend::Containerd;
pub use base::config::{self, Settings};
pub use base::crash_points;
pub use base::instance::recover_as;
pub use client::features::SNAPSHOTTER_UNUSABLE;
pub use node::advisories;
