//! The task model of Switchyard: what every frontend requests and every backend runs.
//!
//! ```text
//! frontend (CRI, Nomad, Swarm) ──► Scope ──► components of the Gateway ──► Backend (containerd, fake)
//!                                              │
//!                                            Table ──► EventBus
//! ```
//!
//! - A [`Sandbox`](object::Sandbox) is what tasks share: network, IPC and UTS namespaces, DNS files, a parent
//!   cgroup.
//! - A [`Task`](object::Task) is one container with one main process.
//! - A frontend holds a [`Scope`](gateway::Scope): the view of one [`Owner`](id::Owner). It can neither see
//!   nor change another owner's objects.
//! - The [`Gateway`](gateway::Gateway) decides; the [`Backend`](backend::Backend) carries it out. States
//!   change in one pure function ([`TaskState::apply`](state::TaskState::apply)), and only inside the
//!   [`Table`](table::Table).
//!
//! This crate contains no protocol and no runtime: it depends on neither tonic, prost, axum nor containerd.

pub mod backend;
pub mod backoff;
pub mod blocking_pool;
pub mod capability;
pub mod device;
pub mod error;
pub mod event;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod gateway;
pub mod id;
pub mod image;
pub mod keyed_lock;
pub mod ledger;
pub mod logged_texts;
pub mod names;
pub mod object;
pub mod operation;
pub mod reload;
pub mod singleflight;
pub mod spec;
pub mod state;
pub mod stats;
pub mod stop_request;
pub mod stream;
pub mod sysctl;
pub mod table;
pub mod text;
pub mod threads;
pub mod trace;
pub mod waiters;

pub use error::{Error, ErrorKind, Reason, Result, STATUS_TEXT_MAX, SpecPart};
