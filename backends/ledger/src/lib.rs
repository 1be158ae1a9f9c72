//! The journal of leases of devices: what an orchestrator was given and no container object bears yet.
//!
//! ```text
//! core::ledger ──put, remove──► Journal ──append──► <state>/ledger/leases.journal ──load──► recovery
//! ```
//!
//! Invariants:
//! - A lease that was put is on disk, also after a power cut.
//! - Whatever a kill, a power cut or a full disk leaves of the file, the leases whose records are whole are found, and no others.
//! - The file is bounded: what has ended is left out when it is written anew.
//! - One daemon at a time has the file: it holds the lock of its state directory.

#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod journal;
mod record;

pub use journal::Journal;
