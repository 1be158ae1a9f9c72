//! Log output, and the logging of panics.

use std::backtrace::Backtrace;
use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{LogConfig, LogFormat};
use crate::filter::{LevelError, parse_level};
use crate::level::LogLevel;

/// Reason why logs cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level is invalid.
    #[error("log.level is invalid")]
    Level(#[source] LevelError),
    /// Logging is set up already.
    #[error("logs are set up already")]
    Twice(#[source] TryInitError),
}

/// Sends logs to standard error as configured, and panics to the log. Returns the handle with which the level
/// is changed.
///
/// # Errors
/// [`TelemetryError`]; nothing is changed then.
pub fn init(config: &LogConfig) -> Result<LogLevel, TelemetryError> {
    let filter = parse_level(&config.level).map_err(TelemetryError::Level)?;
    let (filter, handle) = reload::Layer::new(filter);
    let output: Box<dyn Layer<Registry> + Send + Sync> =
        match form(config.format, io::stderr().is_terminal()) {
            Form::Text { colour } => {
                Box::new(fmt::layer().with_writer(io::stderr).with_ansi(colour))
            }
            Form::Json => {
                let json = fmt::layer()
                    .json()
                    .flatten_event(true)
                    .with_current_span(true)
                    .with_span_list(false);
                Box::new(json.with_writer(io::stderr))
            }
        };
    tracing_subscriber::registry()
        .with(output.with_filter(filter))
        .try_init()
        .map_err(TelemetryError::Twice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(LogLevel::new(&config.level, move |filter| {
        // The subscriber lives as long as the process.
        let _ = handle.reload(filter);
    }))
}

#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text { colour: bool },
    Json,
}

fn form(format: LogFormat, terminal: bool) -> Form {
    match format {
        LogFormat::Auto if !terminal => Form::Json,
        LogFormat::Auto | LogFormat::Text => Form::Text { colour: terminal },
        LogFormat::Json => Form::Json,
    }
}

/// A panic ends one task, not the daemon, so that only the log shows it.
pub(crate) fn log_panic(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a value that is no text");
    let place = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = std::thread::current().name().unwrap_or_default().to_owned();
    tracing::error!(panic = message, place, thread, backtrace = %Backtrace::capture(), "a task panicked");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_log_format_is_text_on_a_terminal_else_json() {
        assert_eq!(form(LogFormat::Auto, true), Form::Text { colour: true });
        assert_eq!(form(LogFormat::Auto, false), Form::Json);
        assert_eq!(form(LogFormat::Text, false), Form::Text { colour: false });
        assert_eq!(form(LogFormat::Json, true), Form::Json);
    }
}
