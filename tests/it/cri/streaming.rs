//! Exec, attach and port-forward through the streaming server.

mod attach;
mod exec;
mod forward;
mod requests;
mod websocket;
