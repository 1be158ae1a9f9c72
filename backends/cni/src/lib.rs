//! Container networks by CNI plugins (CNI specification 0.3.0 to 1.1.0).
//!
//! ```text
//! ConfDir ──load──> NetworkList ─┐
//!                                ├─> Network ──add/check/del/status/gc──> plugin, plugin, …   (one process each, in a chain)
//! Plugins (bin dirs, limits) ────┘      │
//!                                └─save, add_saved──> journal file ──del_saved──> the same chain, after any crash
//! ```
//!
//! A caller that attaches containers without plugins keeps its journals here too, under the name of its driver (`save_for_driver`).
//!
//! Vocabulary is the specification's: an *attachment* is one container on one network through one interface;
//! a *list* is the chain of plugins that makes it; a *result* is what the chain reports, and goes back in as
//! `prevResult`.
//!
//! Invariants:
//! - Every plugin process has a deadline, bounded output and a process group of its own, and is reaped.
//! - Plugins are looked up and started on threads that may hang, a bounded number of them, and within that deadline.
//! - The plugin `loopback` is never run: the caller brings up the loopback device of a namespace before it attaches it.
//! - A failed `add` has been followed by a `del` of the whole chain, or says why not.
//! - A journal file is enough for `del`, however the configuration directory has changed.
//! - Operations on one container must not overlap (the specification's rule); the caller sees to that.

mod attachment;
mod conf;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod host_local;
mod journal;
mod journalled;
mod loopback;
mod network;
mod plugin;
mod program_path;
mod result;
mod verb;
mod version;

#[cfg(test)]
mod real_plugins;
#[cfg(test)]
mod testing;

pub use attachment::{Attachment, Bandwidth, Capabilities, Dns, IpRange, PortMapping, Protocol};
pub use conf::{ConfDir, Loaded, NetworkList, PluginConf};
pub use error::{ConfError, Error, ResultError, Skipped};
pub use journal::{Driver, Saved, driver_of_journal};
pub use journalled::{del_saved, remove_journal, save_for_driver, save_result};
pub use network::{CheckOutcome, Network};
pub use plugin::{Limits, PluginObserver, Plugins, RunEnd};
pub use program_path::program_path;
pub use result::{CniResult, Interface, IpConfig, IpNet, ResultDns, Route};
pub use verb::{GC_OF, Verb};
pub use version::SpecVersion;

/// The maximum of threads for blocking calls that [`Plugins`] of one process take: those that look up and start plugins,
/// and one that searches for addresses without a holder.
pub const THREADS: usize = plugin::PLUGIN_THREADS + journalled::SEARCH_THREADS;
