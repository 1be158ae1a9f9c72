//! The form of log lines: entries of the journal, and the lines of standard error with what is known of their work.

use std::fmt;

use serde_json::Value;
use switchyard_core::operation::{ContextField, log_context};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use crate::journal::{JournalEntry, Priority};
use crate::output::{LogLine, LogOutput};

/// The program in entries of the journal.
const PROGRAM: &str = "switchyard";

/// Sends each event to the journal as an entry with fields.
#[derive(Debug)]
pub(crate) struct JournalLayer(LogOutput);

/// Adds to a line what is known of the work that it is about.
#[derive(Debug)]
pub(crate) struct WithContext<F> {
    format: F,
    form: LineForm,
}

/// The form of a line of standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineForm {
    /// For people.
    Text,
    /// A JSON object.
    Json,
}

/// The fields of an event or a span, in their order.
#[derive(Debug, Default)]
struct LineFields {
    message: String,
    others: Vec<(&'static str, String)>,
}

/// The fields of an event's context that it does not have itself.
fn context_of(event: &Event<'_>) -> Vec<ContextField> {
    let own = event.metadata().fields();
    let mut context = log_context();
    context.retain(|(name, _)| own.field(*name).is_none());
    context
}

// === impl JournalLayer ===

impl JournalLayer {
    pub(crate) const fn new(output: LogOutput) -> Self {
        Self(output)
    }
}

impl<S> Layer<S> for JournalLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = LineFields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = LineFields::default();
        event.record(&mut fields);
        for (name, value) in context_of(event) {
            fields.add(name, &value);
        }
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(of_span) = span.extensions().get::<LineFields>() {
                for (name, value) in &of_span.others {
                    let name: &'static str = name;
                    fields.add(name, value);
                }
            }
        }
        let metadata = event.metadata();
        let entry = fields.entry(*metadata.level(), metadata.target());
        self.0.take(LogLine::Entry(entry));
    }
}

// === impl WithContext ===

impl<F> WithContext<F> {
    pub(crate) const fn new(format: F, form: LineForm) -> Self {
        Self { format, form }
    }
}

impl<S, N, F> FormatEvent<S, N> for WithContext<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let fields = context_of(event);
        if fields.is_empty() {
            return self.format.format_event(context, writer, event);
        }
        let mut line = String::new();
        self.format
            .format_event(context, Writer::new(&mut line), event)?;
        writer.write_str(&self.form.extended(&line, &fields))
    }
}

// === impl LineForm ===

impl LineForm {
    /// A line with further fields. Pure.
    fn extended(self, line: &str, fields: &[ContextField]) -> String {
        let end = match self {
            Self::Text => "\n",
            Self::Json => "}\n",
        };
        let mut extended = line.strip_suffix(end).unwrap_or(line).to_owned();
        for (name, value) in fields {
            match self {
                Self::Text => extended.push_str(&pair(name, value)),
                Self::Json => {
                    let name = Value::from(*name);
                    let value = Value::from(value.as_str());
                    extended.push_str(&format!(",{name}:{value}"));
                }
            }
        }
        extended + end
    }
}

/// A field as a message shows it. What could be mistaken for something else is quoted.
fn pair(name: &str, value: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:@+%".contains(c);
    if !value.is_empty() && value.chars().all(is_plain) {
        format!(" {name}={value}")
    } else {
        format!(" {name}={value:?}")
    }
}

/// The text with its control characters escaped.
fn on_one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

// === impl LineFields ===

impl LineFields {
    /// Adds a field, unless there is one of that name.
    fn add(&mut self, name: &'static str, value: &str) {
        if self.others.iter().all(|(other, _)| *other != name) {
            self.others.push((name, value.to_owned()));
        }
    }

    /// The entry of the journal. Its message has the fields too, for readers that ask for none, and is one line: a support
    /// bundle reads the journal backwards, and puts lines in order.
    fn entry(&self, level: Level, target: &str) -> JournalEntry {
        let mut message = on_one_line(&self.message);
        for (name, value) in &self.others {
            message.push_str(&pair(name, value));
        }
        let mut entry = JournalEntry::new(priority(level), PROGRAM, &message);
        entry.field("target", target);
        for (name, value) in &self.others {
            entry.field(name, value);
        }
        entry
    }

    fn record(&mut self, field: &Field, value: String) {
        match field.name() {
            "message" => self.message = value,
            // Of lines of libraries that use another interface: the place in their source.
            name if name.starts_with("log.") => {}
            name => self.others.push((name, value)),
        }
    }
}

impl Visit for LineFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record(field, value.to_owned());
    }
}

const fn priority(level: Level) -> Priority {
    match level {
        Level::ERROR => Priority::Error,
        Level::WARN => Priority::Warning,
        Level::INFO => Priority::Info,
        Level::DEBUG | Level::TRACE => Priority::Debug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context() -> Vec<ContextField> {
        vec![
            ("operation", "create_sandbox".to_owned()),
            ("pod", "web \"1\"\nx".to_owned()),
        ]
    }

    #[test]
    fn lines_get_the_fields_of_their_work_in_their_own_form() {
        let json = LineForm::Json.extended("{\"level\":\"WARN\",\"task\":\"9b0e\"}\n", &context());
        assert!(json.ends_with("}\n") && json.lines().count() == 1, "{json}");
        let parsed: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(parsed["task"], "9b0e");
        assert_eq!(parsed["operation"], "create_sandbox");
        assert_eq!(parsed["pod"], "web \"1\"\nx");
        let text = LineForm::Text.extended("WARN an operation failed\n", &context());
        assert_eq!(
            text,
            "WARN an operation failed operation=create_sandbox pod=\"web \\\"1\\\"\\nx\"\n"
        );
    }

    #[test]
    fn entry_has_its_priority_and_each_field_once_and_in_its_message() {
        let mut fields = LineFields {
            message: "a task\nfailed".to_owned(),
            others: vec![("task", "9b0e".to_owned())],
        };
        fields.add("task", "another");
        fields.add("error", "no space");
        let entry = fields.entry(Level::WARN, "switchyard_core");
        assert_eq!(
            String::from_utf8_lossy(entry.as_bytes()),
            "PRIORITY=4\nSYSLOG_IDENTIFIER=switchyard\n\
             MESSAGE=a task\\nfailed task=9b0e error=\"no space\"\n\
             SWITCHYARD_TARGET=switchyard_core\nSWITCHYARD_TASK=9b0e\n\
             SWITCHYARD_ERROR=no space\n"
        );
    }
}
