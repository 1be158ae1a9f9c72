//! The operator's interface of a node: the admin server with its pages and metrics, the audit log, events,
//! and the status page for browsers.
//!
//! ```text
//! admin ──► node           the objects of all owners, and the parts of the daemon
//!   │   ──► control         traits of the daemon's components: what they report, and what can be changed on them
//!   ├──► metrics           /metrics
//!   ├──► history           operations in flight, the audit log, events in memory and on record, traces
//!   └──► page              the status page
//! inspect, images, blockers, exec_session, find, task_logs, container_metrics, owners   objects of all owners, as people name them
//! ```
//!
//! It names no backend and no frontend: what it needs of them, the daemon gives it as functions and traits.

pub mod admin;
pub mod audit;
mod blockers;
pub mod config;
pub mod container_metrics;
pub mod control;
pub mod events;
mod exec_session;
mod find;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod history;
mod hosts;
mod images;
pub mod inspect;
mod line_file;
pub mod metrics;
pub mod node;
pub mod owners;
pub mod page;
mod span_attributes;
pub mod status;
pub mod task_logs;
