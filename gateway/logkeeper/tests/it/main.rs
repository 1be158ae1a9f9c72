//! Tests of the keeper as a whole, over its socket and with real FIFOs.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests may fail and speak as tests do"
)]

mod attach;
mod confined;
mod containers;
mod control;
mod disk_full;
mod fuse;
mod held;
mod hung;
mod kill;
mod many;
mod slow;
mod stopping;
mod stored;
mod support;
