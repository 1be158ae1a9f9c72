//! The streaming server with real processes and sockets behind it, called by the crate's own clients.

#![expect(
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm,
    reason = "a failed unwrap is a failed test, also in the functions that tests share; what a test does not wait for it skips"
)]

mod bad_input;
mod exec;
mod flow;
mod overload;
mod port_forward;
mod requests;
mod support;
mod websocket;
