//! Pulls over real sockets: from a registry inside this process that can be made to misbehave, and from
//! Debian's `docker-registry`.

#![expect(
    clippy::unwrap_used,
    reason = "a failed unwrap is a failed test, also in the functions that tests share"
)]

#[path = "registry/answers.rs"]
mod answers;
#[path = "registry/auth.rs"]
mod auth;
#[path = "registry/debian.rs"]
mod debian;
#[path = "registry/faults.rs"]
mod faults;
#[path = "registry/hostile.rs"]
mod hostile;
#[path = "registry/hosts.rs"]
mod hosts;
#[path = "registry/ranges.rs"]
mod ranges;
#[path = "registry/server.rs"]
mod server;
#[path = "registry/unusual.rs"]
mod unusual;
