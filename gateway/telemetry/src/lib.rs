//! Telemetry of this process: its log, for the service manager or for a Nomad agent, and its traces.
//!
//! - [`init`] sends the log to the journal or to standard error; its level can be changed while the process runs
//!   ([`LogLevel`]). [`FIELDS`] has the names of the fields of its lines.
//! - [`hclog`] formats the log of a launcher as the Nomad agent reads it that has started it.
//! - [`Traces`] sends the spans of calls and operations to a collector, by OTLP.
//! - [`LogPace`] and [`LossReport`] keep a repeated line from filling the log; [`flush_queue`] waits for a thread that writes
//!   lines.

mod config;
mod fields;
mod filter;
mod flush;
pub mod hclog;
mod journal;
mod level;
mod lines;
mod log;
mod loss;
mod output;
mod pace;
mod traces;

pub use config::{LogConfig, LogFormat};
pub use fields::{DETAILS, FIELDS, LogField};
pub use filter::{LevelError, parse_level};
pub use flush::flush_queue;
pub use journal::{
    JournalEntry, JournalSocket, Priority, SendWait, is_stderr_journal, journal_socket,
};
pub use level::LogLevel;
pub use log::{LogWriting, TelemetryError, flush_log, init, log_counts};
pub use loss::LossReport;
pub use output::LogCounts;
pub use pace::LogPace;
pub use traces::{TraceCounts, TraceSettings, TraceSettingsError, Traces};
