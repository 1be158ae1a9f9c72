//! The streaming server of exec, attach and port-forward: one-shot URLs, served over SPDY/3.1 and WebSocket.
//!
//! A frontend registers a session with [`Sessions`] and passes the returned URL to its client. The client
//! opens the URL once, within the token's lifetime. Only then is the session opened ([`Command::open`],
//! [`Dial::dial`]), and its bytes are copied in both directions until either end is done.
//!
//! ```text
//!  frontend ── Sessions::exec(Exec, Command) ──► URL ──► client
//!                        │ token                           │ GET/POST, Upgrade
//!                        ▼                                 ▼
//!                   token table ◄──────────────── Server::run ──► Command::open ──► Process
//! ```
//!
//! The crate depends on no container runtime and no frontend. Terms: an `Input` is what a process reads, an
//! `Output` what it writes.

mod batch;
mod budget;
mod buffers;
mod carry;
mod channel;
#[cfg(feature = "client")]
pub mod client;
mod config;
mod copy;
mod ends;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod gone;
mod io;
mod parts;
mod port_forward;
mod remote_command;
mod request;
mod resize;
mod server;
mod session;
mod sessions;
mod spdy;
mod status;
mod token;
mod unsent;
mod upgrade;
mod websocket;

pub use config::Config;
pub use ends::{Connection, Input, Output};
pub use server::{BindError, Server};
pub use session::{Command, Control, Dial, Outcome, Process, Refusal, Size, Streams, TooMany};
pub use sessions::Sessions;
