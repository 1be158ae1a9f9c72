//! Log output, and the logging of panics.

use std::backtrace::Backtrace;
use std::io::{self, IsTerminal};
use std::panic::PanicHookInfo;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{LogConfig, LogFormat};
use crate::filter::{LevelError, parse_level};
use crate::journal::{JournalSocket, SendWait, is_stderr_journal, journal_socket};
use crate::level::LogLevel;
use crate::lines::{JournalLayer, LineForm, WithContext};
use crate::output::{LogCounts, LogOutput, Sink};

/// Time for the last lines to be written when the process ends or something panics.
const FLUSH: Duration = Duration::from_secs(1);

/// Time for the journal to take an entry, after which it is sent again.
const JOURNAL_WAIT: Duration = Duration::from_secs(1);

/// The output of this process, which has one log.
static OUTPUT: OnceLock<LogOutput> = OnceLock::new();

/// Reason why logs cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The level is invalid.
    #[error("log.level is invalid")]
    Level(#[source] LevelError),
    /// Logging is set up already.
    #[error("logs are set up already")]
    Twice(#[source] TryInitError),
    /// The thread that writes the lines cannot be started.
    #[error("the thread that writes the log cannot be started")]
    Thread(#[source] io::Error),
}

/// The way in which lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogWriting {
    /// By a thread, so that nothing waits for the journal or a disk.
    ByThread,
    /// By who logs them: for a process that confines itself, whose earlier threads would keep their rights.
    AtOnce,
}

/// Sends logs to the journal, if the service manager has connected standard error to it and its socket can be reached, and else
/// to standard error as configured; panics go to the log. Returns the handle with which the level is changed.
///
/// # Errors
/// [`TelemetryError`]; nothing is changed then.
pub fn init(config: &LogConfig, writing: LogWriting) -> Result<LogLevel, TelemetryError> {
    let filter = parse_level(&config.level).map_err(TelemetryError::Level)?;
    let (filter, handle) = reload::Layer::new(filter);
    let journal = is_stderr_journal()
        .then(|| reached(journal_socket(), writing))
        .flatten();
    let is_journal = journal.is_some();
    let sink = journal.map_or(Sink::Stderr, Sink::Journal);
    let output = match writing {
        LogWriting::ByThread => LogOutput::start(sink).map_err(TelemetryError::Thread)?,
        LogWriting::AtOnce => LogOutput::direct(sink),
    };
    let writer = {
        let output = output.clone();
        move || output.clone()
    };
    let layer: Box<dyn Layer<Registry> + Send + Sync> = if is_journal {
        Box::new(JournalLayer::new(output.clone()))
    } else {
        match form(config.format, io::stderr().is_terminal()) {
            Form::Text { colour } => {
                let text = fmt::layer::<Registry>()
                    .with_ansi(colour)
                    .map_event_format(|format| {
                        WithContext::new(format.with_ansi(colour), LineForm::Text)
                    });
                Box::new(text.with_writer(writer))
            }
            Form::Json => {
                let json = fmt::layer::<Registry>()
                    .json()
                    .flatten_event(true)
                    .with_current_span(true)
                    .with_span_list(false)
                    .map_event_format(|format| WithContext::new(format, LineForm::Json));
                Box::new(json.with_writer(writer))
            }
        }
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter))
        .try_init()
        .map_err(TelemetryError::Twice)?;
    // It was not set before: the log was not set up.
    let _ = OUTPUT.set(output);
    std::panic::set_hook(Box::new(|info| {
        log_panic(info);
        flush_log();
    }));
    Ok(LogLevel::new(&config.level, move |filter| {
        // The subscriber lives as long as the process.
        let _ = handle.reload(filter);
    }))
}

/// The journal at this socket; `None` if it cannot be reached now, as from a root directory without it: each line would wait
/// for it and be lost, while standard error leads to the journal too.
fn reached(socket: PathBuf, writing: LogWriting) -> Option<JournalSocket> {
    let wait = match writing {
        LogWriting::ByThread => SendWait::AtMost(JOURNAL_WAIT),
        LogWriting::AtOnce => SendWait::Never,
    };
    let mut journal = JournalSocket::new(socket, wait);
    journal.connect().is_ok().then_some(journal)
}

/// The lines of this process's log since it started.
#[must_use]
pub fn log_counts() -> LogCounts {
    OUTPUT
        .get()
        .map_or_else(LogCounts::default, LogOutput::counts)
}

/// Waits until the lines so far are written, at most for a second. Blocks.
pub fn flush_log() {
    if let Some(output) = OUTPUT.get() {
        output.flush(FLUSH);
    }
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
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn journal_that_cannot_be_reached_gets_no_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        for writing in [LogWriting::ByThread, LogWriting::AtOnce] {
            assert!(reached(path.clone(), writing).is_none());
        }
        let _journal = UnixDatagram::bind(&path).unwrap();
        assert!(reached(path, LogWriting::ByThread).is_some());
    }

    #[test]
    fn auto_log_format_is_text_on_a_terminal_else_json() {
        assert_eq!(form(LogFormat::Auto, true), Form::Text { colour: true });
        assert_eq!(form(LogFormat::Auto, false), Form::Json);
        assert_eq!(form(LogFormat::Text, false), Form::Text { colour: false });
        assert_eq!(form(LogFormat::Json, true), Form::Json);
    }
}
