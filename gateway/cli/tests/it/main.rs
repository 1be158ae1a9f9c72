//! Tests of the daemon from outside: its binary, its sockets, and the processes it manages.
#![expect(
    clippy::unwrap_used,
    reason = "clippy's own exception for tests does not reach their helpers"
)]

mod admin;
mod binary;
mod cli;
mod daemon_record;
mod inherited;
mod managed;
mod network;
mod nomad_plugin;
mod rpc;
mod serve;
mod support;
