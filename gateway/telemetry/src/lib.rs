//! Telemetry of this process: its log, for the service manager or for a Nomad agent, and its traces.
//!
//! - [`init`] sends the log to standard error; its level can be changed while the process runs ([`LogLevel`]).
//! - [`hclog`] formats the log of a launcher as the Nomad agent reads it that has started it.
//! - [`Traces`] sends the spans of calls and operations to a collector, by OTLP.
//! - [`LogPace`] keeps a repeated line from filling the log.

mod config;
mod filter;
pub mod hclog;
mod level;
mod log;
mod pace;
mod traces;

pub use config::{LogConfig, LogFormat};
pub use filter::{LevelError, parse_level};
pub use level::LogLevel;
pub use log::{TelemetryError, init};
pub use pace::LogPace;
pub use traces::{TraceCounts, TraceSettings, TraceSettingsError, Traces};
