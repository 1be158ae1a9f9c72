//! Spans in the messages of OTLP.

use std::time::{SystemTime, UNIX_EPOCH};

use switchyard_core::trace::{Attribute, AttributeValue, EndedSpan, SpanContext, SpanKind};
use switchyard_operator_api::VERSION;
use switchyard_proto::opentelemetry::proto::collector::trace::v1 as collector;
use switchyard_proto::opentelemetry::proto::common::v1 as common;
use switchyard_proto::opentelemetry::proto::resource::v1 as resource;
use switchyard_proto::opentelemetry::proto::trace::v1 as trace;

/// The sender of the spans, as part of every request.
#[derive(Debug)]
pub(super) struct SpanSource(resource::Resource);

impl SpanSource {
    pub(super) fn new(attributes: &[(String, String)]) -> Self {
        let attributes = attributes
            .iter()
            .map(|(key, value)| text(key, value.clone()))
            .collect();
        Self(resource::Resource { attributes })
    }

    /// The request that sends these spans.
    pub(super) fn request(&self, spans: Vec<EndedSpan>) -> collector::ExportTraceServiceRequest {
        let scope = common::InstrumentationScope {
            name: "switchyard".to_owned(),
            version: VERSION.to_owned(),
        };
        let spans = spans.into_iter().map(span).collect();
        let scope_spans = vec![trace::ScopeSpans {
            scope: Some(scope),
            spans,
        }];
        let resource_spans = vec![trace::ResourceSpans {
            resource: Some(self.0.clone()),
            scope_spans,
        }];
        collector::ExportTraceServiceRequest { resource_spans }
    }
}

fn span(ended: EndedSpan) -> trace::Span {
    let EndedSpan {
        context,
        parent,
        name,
        kind,
        began_at,
        took,
        attributes,
        failure,
    } = ended;
    let SpanContext {
        trace: trace_id,
        span: id,
        is_sampled,
        state,
    } = context;
    let code = match &failure {
        Some(_) => trace::status::StatusCode::Error,
        None => trace::status::StatusCode::Unset,
    };
    let status = trace::Status {
        message: failure.unwrap_or_default(),
        code: code.into(),
    };
    trace::Span {
        trace_id: trace_id.to_bytes().to_vec(),
        span_id: id.to_bytes().to_vec(),
        trace_state: state
            .map(|state| state.as_str().to_owned())
            .unwrap_or_default(),
        parent_span_id: parent
            .map(|parent| parent.to_bytes().to_vec())
            .unwrap_or_default(),
        name: name.into_owned(),
        kind: kind_of(kind).into(),
        start_time_unix_nano: nanoseconds(began_at),
        end_time_unix_nano: nanoseconds(began_at + took),
        attributes: attributes.into_iter().map(attribute).collect(),
        status: Some(status),
        flags: u32::from(is_sampled),
    }
}

const fn kind_of(kind: SpanKind) -> trace::span::SpanKind {
    match kind {
        SpanKind::Server => trace::span::SpanKind::Server,
        SpanKind::Client => trace::span::SpanKind::Client,
        SpanKind::Internal => trace::span::SpanKind::Internal,
    }
}

fn attribute(Attribute { key, value }: Attribute) -> common::KeyValue {
    let value = match value {
        AttributeValue::Text(value) => return text(key, value.into_owned()),
        AttributeValue::Number(value) => common::any_value::Value::IntValue(value),
    };
    common::KeyValue {
        key: key.to_owned(),
        value: Some(common::AnyValue { value: Some(value) }),
    }
}

fn text(key: &str, value: String) -> common::KeyValue {
    let value = Some(common::any_value::Value::StringValue(value));
    common::KeyValue {
        key: key.to_owned(),
        value: Some(common::AnyValue { value }),
    }
}

/// A time before 1970 is 1970.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
