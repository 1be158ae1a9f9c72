//! Exec, attach and port-forward, as clients have them through the streaming server.

mod attach;
mod exec;
mod forward;
mod requests;
mod websocket;
