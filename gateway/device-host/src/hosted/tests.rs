//! Tests of the log messages about lists of plugins.

use std::fmt::{Debug, Write};

use tonic::transport::Endpoint;
use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use super::*;

const TPU: &str = "acme.com/tpu";

/// Keeps the warnings of a thread.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            write!(line, "{field}={value:?} ").unwrap()
        });
        self.0.lock().push(line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn list_that_stays_invalid_is_logged_once_and_again_when_it_changes() {
    let warnings = Warnings::default();
    // With one subscriber alone, an event that another thread logs first is disabled for this one too.
    let _second = Dispatch::new(warnings.clone());
    let _logging = tracing::subscriber::set_default(warnings.clone());
    let hosted = Hosted::new(ReservedNames::default(), &Config::default());
    let channel = Endpoint::from_static("http://localhost").connect_lazy();
    let plugin = Plugin {
        channel,
        pre_start: false,
        preferred: false,
    };
    let connection = hosted
        .connect(TPU, "tpu.sock", plugin, CancellationToken::new())
        .unwrap();
    let list = |count, why: &str| {
        let left_out = Some((count, why.to_owned()));
        hosted.list(
            &connection,
            ListedDevices {
                left_out,
                ..ListedDevices::default()
            },
        );
    };
    for _ in 0..100 {
        list(7, "one has no id");
    }
    for _ in 0..100 {
        list(8, "one has no id");
    }
    list(8, "one is listed twice");
    let logged: Vec<String> = std::mem::take(&mut *warnings.0.lock());
    assert_eq!(logged.len(), 3, "{logged:?}");
    for (line, (count, why)) in logged
        .iter()
        .zip([(7, "no id"), (8, "no id"), (8, "twice")])
    {
        let has = |part: &str| line.contains(part);
        assert!(
            has(TPU) && has(&format!("entries={count}")) && has(why) && has("left out"),
            "{line}"
        );
    }
    // Each counts, in a metric.
    assert_eq!(hosted.count_of(Failure::Malformed), 201);
    hosted.list(&connection, ListedDevices::default());
    assert_eq!(*warnings.0.lock(), Vec::<String>::new());
}
