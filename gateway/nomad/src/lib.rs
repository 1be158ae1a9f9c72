//! The Nomad frontend: an unmodified agent uses it as a task driver and a device plugin.
//!
//! ```text
//!  agent ──starts──► launcher (same binary, other name; serves its own socket)   daemon
//!    │                  │ answers: PluginInfo, ConfigSchema, SetConfig, Init,      │
//!    └──────gRPC───────►│   Capabilities, TaskConfigSchema, go-plugin's own calls  │
//!                       │ forwards: calls about tasks and devices ── nomad.sock ──►│ Driver, DevicePlugin
//!                       └ holds a session (`Sessions.Open`); exits when it ends ──►│ Sessions
//!
//!  nomad::TaskConfig + driver config + PluginConfig ─plan─► ImageRequest, SandboxSpec, TaskSpec ─► Scope
//! ```
//!
//! - The launcher makes the start of an agent independent of the daemon: it answers what it can itself,
//!   reports the fingerprint `undetected` while the daemon is not available, and holds calls about tasks
//!   until it is. The options of tasks are those of the daemon, if it answers. When the daemon that it is
//!   connected to ends, the launcher exits at once, so that the agent starts a new one and recovers its tasks.
//! - A Nomad task is a sandbox with one task in it, both named by the id that Nomad gave the task. A digest
//!   of the request is stored with it, so that a repeated `StartTask` finds it and a restart of the daemon
//!   loses nothing.
//! - Wire types are used only in `from_proto`, `to_proto` and the handlers; status codes are chosen only in
//!   `status.rs`.
//! - Tasks belong to no session: any agent, and any process of an agent, can address every task by its id.

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
mod health;
mod identity;
mod images;
pub mod launcher;
mod names;
mod paths;
mod plan;
mod plugin_config;
mod preparation;
mod reconcile;
mod schema;
mod services;
mod session;
mod sessions;
mod status;
mod task_config;
mod times;
mod to_proto;
mod transport;
mod value;

pub use device::HEALTHY_SLOTS;
pub use identity::check_request;
pub use names::{log_files, names};
pub use plugin_config::PluginConfig;
pub use services::{AT_ONCE, LIVENESS, Launchers, Services, services};
pub use transport::tune;
