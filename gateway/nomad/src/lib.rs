//! Nomad: the frontend that an unmodified agent runs its tasks on, as a task driver and a device plugin.
//!
//! ```text
//!  agent ──starts──► launcher (our binary under a small name; serves a socket of its own)     daemon
//!    │                  │ answers by itself: PluginInfo, ConfigSchema, SetConfig, Init,          │
//!    └──────gRPC───────►│   Capabilities, TaskConfigSchema, health, broker, stdio, Shutdown      │
//!                       │ passes on: all calls about tasks and devices ───── nomad.sock ────────►│ Driver, DevicePlugin ─► Scope
//!                       └ holds a session there (`Sessions.Open`); its end is the launcher's ───►│ Sessions
//!
//!  nomad::TaskConfig + its driver config + the session's PluginConfig ──plan──► ImageWish, SandboxSpec, TaskSpec ──► Scope
//! ```
//!
//! - The launcher makes an agent's start independent of the daemon: what it can answer it answers by itself, the fingerprint says
//!   `undetected` while the daemon is away, and a call about a task is held until it is back. When a daemon that was there goes, the
//!   launcher ends at once, so that the agent starts it anew and recovers its tasks.
//! - A task of Nomad is a sandbox with one task in it, both named by the id that Nomad gave the task; a digest of the request is kept
//!   with it, so that a repeated `StartTask` finds it and a restart of the daemon loses nothing.
//! - Wire types go no further than `from_proto`, `to_proto` and the handlers; status codes are chosen in `status.rs` alone.
//! - Tasks belong to no session: several agents, and several lives of one, see them all by the ids that they know.

mod auth;
mod capabilities;
mod capability;
#[cfg(test)]
mod configs;
mod device;
mod driver;
mod duration;
mod events;
mod fingerprint;
mod from_proto;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod identity;
mod images;
pub mod launcher;
mod paths;
mod plan;
mod plugin_config;
mod reconcile;
mod schema;
mod services;
mod session;
mod sessions;
mod status;
mod task_config;
mod times;
mod to_proto;
mod value;

pub use device::HEALTHY_SLOTS;
pub use plugin_config::PluginConfig;
pub use services::{AT_ONCE, Launchers, Services, services, tune};

/// The longest message that is read or written, in bytes: Nomad's own clients know no limit.
pub(crate) const MAX_MESSAGE: usize = 64 << 20;
