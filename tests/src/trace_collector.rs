//! A collector of traces that keeps all spans, and shows the tree that they form.

use switchyard_collector::Collector;
use switchyard_proto::opentelemetry::proto::common::v1::any_value::Value;
use switchyard_proto::opentelemetry::proto::common::v1::{AnyValue, KeyValue};
use switchyard_proto::opentelemetry::proto::trace::v1::Span;
use switchyard_proto::opentelemetry::proto::trace::v1::status::StatusCode;
use tokio::runtime::Runtime;

/// Listens on loopback until it is dropped.
#[derive(Debug)]
pub struct TraceCollector {
    collector: Collector,
    _runtime: Runtime,
}

/// A span, with the name of the program that sent it.
#[derive(Debug, Clone)]
pub struct CollectedSpan {
    /// The attribute `service.name` of the sender.
    pub service: String,
    /// The span.
    pub span: Span,
}

impl TraceCollector {
    /// Starts a collector.
    ///
    /// # Panics
    /// When it cannot listen on loopback.
    #[must_use]
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime can be made");
        let collector = runtime.block_on(Collector::start());
        Self {
            collector,
            _runtime: runtime,
        }
    }

    /// The value of `OTEL_EXPORTER_OTLP_ENDPOINT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.collector.address())
    }

    /// The spans that have come, in the order in which they came.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        let resources = self
            .collector
            .requests()
            .into_iter()
            .flat_map(|request| request.resource_spans);
        let of_one = resources.flat_map(|of| {
            let attributes = of.resource.unwrap_or_default().attributes;
            let service = text_of(&attributes, "service.name").unwrap_or_default();
            let spans = of.scope_spans.into_iter().flat_map(|of| of.spans);
            spans.map(move |span| CollectedSpan {
                service: service.clone(),
                span,
            })
        });
        of_one.collect()
    }
}

impl CollectedSpan {
    /// The text of an attribute.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<String> {
        text_of(&self.span.attributes, key)
    }

    /// Returns the reason for its failure; `None` if it did not fail.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        let status = self.span.status.as_ref()?;
        (status.code() == StatusCode::Error).then_some(&*status.message)
    }

    /// The names of the spans above this one, the first of the tree first, and its own.
    #[must_use]
    pub fn path(&self, all: &[Self]) -> Vec<String> {
        let above = all.iter().find(|other| {
            other.span.span_id == self.span.parent_span_id
                && other.span.trace_id == self.span.trace_id
        });
        let mut path = above.map(|above| above.path(all)).unwrap_or_default();
        path.push(self.span.name.clone());
        path
    }
}

fn text_of(attributes: &[KeyValue], key: &str) -> Option<String> {
    let found = attributes.iter().find(|attribute| attribute.key == key)?;
    match &found.value {
        Some(AnyValue {
            value: Some(Value::StringValue(text)),
        }) => Some(text.clone()),
        Some(_) | None => None,
    }
}
