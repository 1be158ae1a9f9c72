//! The journal of device leases: the leases that an orchestrator was given and that no container object
//! records yet.
//!
//! ```text
//! core::ledger ──put, remove──► Journal ──append──► <state>/ledger/leases.journal ──load──► recovery
//! ```
//!
//! Invariants:
//! - A lease that was stored is on disk, also after a power failure.
//! - Whatever a kill, a power failure or a full disk leaves of the file, the leases with intact records are
//!   found, and no others.
//! - The file is bounded: ended leases are dropped when it is rewritten.
//! - Only one daemon at a time uses the file: it holds the lock of its state directory.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod journal;
mod record;

pub use journal::Journal;
