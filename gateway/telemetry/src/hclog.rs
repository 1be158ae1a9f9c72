//! Log lines in the format that Nomad agents read from the standard error of their plugins: hclog's JSON, one
//! object per line.
//!
//! An agent panics if a line's message is not a string, and treats a line as plain text if its time does not
//! have six fractional digits. So each line is formatted here completely. It is written only if that cannot
//! block: an agent that does not read must not block its tasks, and an agent that has died never reads again.
//! Lines that are dropped are also in the daemon's own log.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::filter::parse_level;
use crate::log::{TelemetryError, log_panic};

/// The maximum length of a line: what a pipe with free space accepts in one write.
const LINE_MAX: usize = 4096;

/// Length to which a message is cut if its line is too long, in bytes.
const MESSAGE_MAX: usize = 2048;

/// Writes events to standard error.
#[derive(Debug, Default)]
struct Hclog {
    left_out: AtomicU64,
}

/// The fields of an event.
#[derive(Default)]
struct Fields {
    message: String,
    others: Map<String, Value>,
}

/// Sends logs and panics to the agent that started this process. `level` is a level or filters.
///
/// # Errors
/// [`TelemetryError`]; nothing is changed then.
pub fn init(level: &str) -> Result<(), TelemetryError> {
    let filter = parse_level(level).map_err(TelemetryError::Level)?;
    tracing_subscriber::registry()
        .with(Hclog::default().with_filter(filter))
        .try_init()
        .map_err(TelemetryError::Twice)?;
    std::panic::set_hook(Box::new(log_panic));
    Ok(())
}

/// Reports an error to the agent if logs are not set up, or cannot be.
pub fn log_error(message: &str) {
    // A failure is ignored: it cannot be reported anywhere.
    let _ = print_error_if_room(&line(
        Level::ERROR,
        "switchyard",
        message,
        Map::new(),
        Timestamp::now(),
    ));
}

// === impl Hclog ===

impl<S: Subscriber> Layer<S> for Hclog {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0 {
            fields
                .others
                .insert("lines_left_out_before".into(), left_out.into());
        }
        let meta = event.metadata();
        let line = line(
            *meta.level(),
            meta.target(),
            &fields.message,
            fields.others,
            Timestamp::now(),
        );
        if !print_error_if_room(&line).unwrap_or(false) {
            self.left_out.fetch_add(left_out + 1, Ordering::Relaxed);
        }
    }
}

/// Formats one line. Text fields that would make it too long are omitted, and a message that is too long is
/// truncated.
fn line(
    level: Level,
    module: &str,
    message: &str,
    fields: Map<String, Value>,
    at: Timestamp,
) -> String {
    let whole = object(level, module, message, fields, at);
    if whole.len() <= LINE_MAX {
        return whole;
    }
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    // JSON escapes may make it six times as long.
    let cut = object(level, module, &message[..end], Map::new(), at);
    if cut.len() <= LINE_MAX {
        cut
    } else {
        object(level, module, "a message that is no text", Map::new(), at)
    }
}

fn object(
    level: Level,
    module: &str,
    message: &str,
    mut fields: Map<String, Value>,
    at: Timestamp,
) -> String {
    let level = match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    };
    fields.insert("@level".into(), level.into());
    fields.insert("@message".into(), message.into());
    fields.insert("@module".into(), module.into());
    fields.insert(
        "@timestamp".into(),
        at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string().into(),
    );
    format!("{}\n", Value::Object(fields))
}

// === impl Fields ===

impl Fields {
    fn insert(&mut self, field: &Field, value: Value) {
        // Names with this prefix are reserved by hclog's format.
        let name = field.name().trim_start_matches('@');
        self.others.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        if field.name() == "message" {
            self.message = text
        } else {
            self.insert(field, text.into())
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            self.message = value.into()
        } else {
            self.insert(field, value.into())
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.insert(field, value.into());
    }
}

/// Prints one line of at most 4096 bytes to standard error, if that does not block; returns whether it was
/// printed.
///
/// # Errors
/// Standard error cannot be written, for example because it is a closed pipe.
fn print_error_if_room(line: &str) -> io::Result<bool> {
    let mut stderr = io::stderr().lock();
    let mut room = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    // A pipe polls as writable only if it accepts this much at once.
    if poll(&mut room, PollTimeout::ZERO)? == 0 {
        return Ok(false);
    }
    stderr.write_all(line.as_bytes())?;
    stderr.flush()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Map<String, Value> {
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.ends_with('\n') && line.len() <= LINE_MAX);
        serde_json::from_str(line).unwrap()
    }

    #[test]
    fn hclog_line_has_string_fields_and_microseconds() {
        let at: Timestamp = "2026-01-02T15:04:05.5Z".parse().unwrap();
        let fields = Map::from_iter([("pid".to_owned(), Value::from(7))]);
        let line = parsed(&line(
            Level::WARN,
            "switchyard_nomad",
            "away\n\"still\"",
            fields,
            at,
        ));
        assert_eq!(line["@timestamp"], "2026-01-02T15:04:05.500000Z");
        assert_eq!(line["@level"], "warn");
        assert_eq!(line["@message"], "away\n\"still\"");
        assert_eq!(line["@module"], "switchyard_nomad");
        assert_eq!(line["pid"], 7);
    }

    #[test]
    fn hclog_line_fits_an_atomic_pipe_write() {
        let long = "ä".repeat(9000);
        let whole = parsed(&line(Level::INFO, "x", &long, Map::new(), Timestamp::now()));
        assert!(whole["@message"].as_str().unwrap().starts_with('ä'));
        let fields = Map::from_iter([("field".to_owned(), Value::from(long))]);
        assert_eq!(
            parsed(&line(Level::INFO, "x", "kept", fields, Timestamp::now()))["@message"],
            "kept"
        );
        parsed(&line(
            Level::INFO,
            "x",
            &"\u{1}".repeat(9000),
            Map::new(),
            Timestamp::now(),
        ));
    }
}
