//! The sockets of the daemon: what it listens on, and how its own programs connect to it.

pub mod channel;
pub mod listener;
