//! Sandboxes without a process: their namespaces are pinned by bind mounts, their files and mounts live under
//! one directory.
//!
//! ```text
//! <sandbox dir>/ns/{user,net,ipc,uts} bind mounts of nsfs, which keep the namespaces alive   (pin)
//! <sandbox dir>/{hostname,hosts,resolv.conf}   bind-mounted into every task of the sandbox    (files)
//! <sandbox dir>/shm                   tmpfs that becomes /dev/shm                             (shm)
//! ```
//!
//! Everything here is synchronous and does system calls that may block: call it from a blocking thread, or
//! through [`tasks`]. Whatever changes a namespace happens on a throw-away thread, because `unshare` and
//! `setns` change the calling thread and a pooled thread would carry the change to its next job.
//!
//! Invariants: creation either succeeds completely or leaves nothing; removal is idempotent and does not
//! follow symlinks, so both can be repeated after a kill at any line.

mod addresses;
mod error;
mod helper;
mod link;
mod namespace_file;
mod ns;
mod pin;
mod sysctl;
mod within;

pub mod files;
pub mod mounts;
pub mod projects;
pub mod shm;
pub mod tasks;

#[cfg(test)]
mod testing;

pub use addresses::{addresses, has_ipv6_loopback, node_addresses, restore_ipv6};
pub use error::Error;
pub use helper::{PROGRAM, map_ids, set_program_dir, try_mount_setattr};
pub use link::{delete_device, has_device};
pub use namespace_file::is_namespace_file;
pub use ns::Ns;
pub use pin::{PinSpec, Pins, Users};
pub use sysctl::set_in_netns;
pub use within::{run_in_each_netns, run_in_netns, with_own_mounts};
